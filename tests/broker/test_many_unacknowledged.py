"""Consumers that hold very much, and very many of them: what they give back or acknowledge holds the loop for no long turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loop_blocks import LONGEST_SECONDS, held_loop
from raw_client import FULL, RawClient

from pulsar_txn.broker.dispatch.shared import RETURNED_PER_TURN
from pulsar_txn.wire.frames import command

SHARED, KEY_SHARED = 1, 3
MANY = 40_000


async def delivered(client: RawClient, kind: int, count: int, name: str = "first") -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind, permits=count, consumer_name=name)
    for number in range(count):
        client.send(b"", key=f"k{number % 4000}")
        if number % 500 == 0:
            await asyncio.sleep(0)
    await client.until(lambda: len(client.messages[0]) == count, turns=100_000)


def subscription_of(bench: Any) -> Any:
    return bench.broker.topics[FULL + "a"].subscriptions["s"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_a_lost_consumer_held_comes_back_in_slices_and_all_of_it(kind: int, client: RawClient, bench: Any) -> None:
    await delivered(client, kind, MANY)
    other = bench.client()
    await other.subscribe("a", kind=kind, permits=MANY // 2, consumer_name="second")
    async with held_loop() as held:
        client.drop()
        await other.until(lambda: len(other.messages[0]) == MANY // 2, turns=100_000)
    other.flow(MANY)
    await other.until(lambda: len(other.messages[0]) == MANY, turns=100_000)
    assert len({each.position for each in other.messages[0]}) == MANY
    assert all(each.redelivery_count == 1 for each in other.messages[0])
    assert subscription_of(bench).dispatcher.machine.holders.count == MANY
    assert held.longest_seconds < LONGEST_SECONDS, held


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_consumer_that_asks_for_all_again_is_sent_each_entry_once_more(
    kind: int, client: RawClient, bench: Any
) -> None:
    await delivered(client, kind, 5 * RETURNED_PER_TURN)
    client.messages[0].clear()
    client.flow(20 * RETURNED_PER_TURN)
    for _ in range(2):  # the second request finds what the first has not given back yet
        client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0))
        await asyncio.sleep(0)
    await client.until(lambda: len(client.messages[0]) >= 5 * RETURNED_PER_TURN, turns=100_000)
    await client.settle()
    assert len(client.messages[0]) == 5 * RETURNED_PER_TURN
    assert {each.redelivery_count for each in client.messages[0]} == {1}


async def test_what_a_transaction_committed_while_it_was_given_back_does_not_come_again(client: RawClient, bench: Any) -> None:
    await delivered(client, SHARED, 3 * RETURNED_PER_TURN)
    other = bench.client()
    await other.subscribe("a", kind=SHARED, permits=10_000, consumer_name="second")
    positions = [each.position for each in client.messages[0]]
    txn = await client.new_txn()
    await client.request(
        "addSubscriptionToTxn",
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
        subscription=[{"topic": FULL + "a", "subscription": "s"}],
    )
    await client.ack(*positions[-500:], txn=txn)
    request = other.start("endTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action=0)
    client.drop()
    await other.answer(request)
    await other.until(lambda: len(other.messages[0]) >= len(positions) - 500, turns=100_000)
    await other.settle()
    assert sorted(each.position for each in other.messages[0]) == positions[:-500]
    await other.ack(*positions[:-500])
    assert subscription_of(bench).cursor.backlog() == 0
    machine = subscription_of(bench).dispatcher.machine
    assert machine.holders.count == 0
    assert not machine.redeliveries.keys() & set(positions[-500:]), "nothing is remembered of what is settled"


async def test_an_acknowledgement_looks_at_one_consumer_of_very_many(client: RawClient, bench: Any) -> None:
    other = bench.client()
    for number in range(400):
        await other.subscribe("a", consumer_id=number, kind=SHARED, permits=0, consumer_name=f"idle{number}")
    await delivered(client, SHARED, 4000)
    machine = subscription_of(bench).dispatcher.machine

    class Untouched(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            pytest.fail("a consumer that holds nothing was asked")

        get = pop = __getitem__ = __contains__

    for consumer in machine.consumers:
        if not consumer.unacked:
            consumer.unacked = Untouched()
    positions = [each.position for each in client.messages[0]]
    for start in range(0, 4000, 500):
        await client.ack(*positions[start : start + 500])
    assert machine.holders.count == 0
