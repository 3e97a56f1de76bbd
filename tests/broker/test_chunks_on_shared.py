"""The chunks of one message reach one consumer of a Shared subscription, whatever happens in between."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from insides import takers_of, waiting_chunks_of
from raw_client import FULL, RawClient

from pulsar_txn.broker.dispatch import shared

SHARED = 1


async def send_chunk(client: RawClient, message: str, chunk_id: int, count: int) -> Any:
    fields = {"uuid": message, "num_chunks_from_msg": count, "chunk_id": chunk_id, "total_chunk_msg_size": count}
    return await client.sent(f"{message}/{chunk_id}".encode(), fields=fields)


async def consumers(bench: Any, count: int, permits: int = 1000) -> list[RawClient]:
    clients = [bench.client() for _ in range(count)]
    for each in clients:
        await each.subscribe("a", kind=SHARED, permits=permits)
    return clients


def seen(clients: list[RawClient]) -> list[dict[str, list[int]]]:
    """Of each consumer: message -> the chunks it got, in their order."""
    found: list[dict[str, list[int]]] = []
    for client in clients:
        of_one: dict[str, list[int]] = defaultdict(list)
        for each in client.messages[0]:
            message, _, chunk = each.payloads[0].decode().partition("/")
            of_one[message].append(int(chunk or -1))
        found.append(dict(of_one))
    return found


async def test_each_message_is_with_one_consumer_whole_and_in_order(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    clients = await consumers(bench, 3)
    for chunk_id in range(5):  # three messages at once, and others between their chunks
        for message in ("x", "y", "z"):
            await send_chunk(client, message, chunk_id, 5)
        await client.sent(b"plain%d" % chunk_id)
    await client.settle()
    got = [{message: ids for message, ids in of_one.items() if ids != [-1]} for of_one in seen(clients)]
    assert sorted(message for of_one in got for message in of_one) == ["x", "y", "z"]
    assert all(ids == [0, 1, 2, 3, 4] for of_one in got for ids in of_one.values())
    assert sum(len(each.messages[0]) for each in clients) == 20
    machine = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine
    assert not takers_of(machine)


async def test_a_chunk_waits_for_its_consumer_and_others_go_on(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    first, second = await consumers(bench, 2, permits=0)
    first.flow(1)
    await send_chunk(client, "x", 0, 2)
    await client.settle()
    second.flow(10)
    await send_chunk(client, "x", 1, 2)
    await client.sent(b"plain")
    await client.settle()
    assert seen([first, second]) == [{"x": [0]}, {"plain": [-1]}]
    first.flow(1)
    await client.settle()
    assert seen([first, second]) == [{"x": [0, 1]}, {"plain": [-1]}]


async def test_when_its_consumer_is_gone_the_whole_message_goes_to_another(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    first, second = await consumers(bench, 2)
    await send_chunk(client, "x", 0, 4)
    await send_chunk(client, "x", 1, 4)
    await client.settle()
    loser, winner = (first, second) if first.messages[0] else (second, first)
    third = (await consumers(bench, 1))[0]
    loser.drop()
    await send_chunk(client, "x", 2, 4)
    await send_chunk(client, "x", 3, 4)
    await client.settle()
    assert sorted(map(str, seen([winner, third]))) == ["{'x': [0, 1, 2, 3]}", "{}"]


async def test_a_chunk_that_waits_is_not_lost_with_its_consumer(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    first, second = await consumers(bench, 2, permits=0)
    first.flow(1)
    await send_chunk(client, "x", 0, 2)
    await client.settle()
    second.flow(10)
    await send_chunk(client, "x", 1, 2)
    await client.settle()
    first.drop()
    await client.settle()
    assert seen([second]) == [{"x": [0, 1]}]


async def test_what_a_transaction_gave_back_comes_to_one_consumer_again(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    clients = await consumers(bench, 2)
    for chunk_id in range(3):
        await send_chunk(client, "x", chunk_id, 3)
    await client.settle()
    (owner,) = [each for each in clients if each.messages[0]]
    txn = await owner.new_txn()
    await owner.add_subscriptions(txn, (FULL + "a", "s"))
    await owner.ack(*owner.messages[0], txn=txn)
    owner.messages[0].clear()
    await owner.abort(txn)
    await owner.settle()
    assert sorted(map(str, seen(clients))) == ["{'x': [0, 1, 2]}", "{}"]


async def test_messages_that_are_never_completed_are_forgotten(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_INCOMPLETE", 5)
    await client.producer("a")
    clients = await consumers(bench, 2)
    for number in range(50):
        await send_chunk(client, f"m{number}" + 1000 * "long", 0, 2)
    machine = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine
    assert len(takers_of(machine)) == 5
    assert sum(map(len, takers_of(machine))) < 1000
    assert sum(len(each.messages[0]) for each in clients) == 50


async def test_chunks_that_wait_are_bounded(client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_CHUNKS_WAITING", 3)
    await client.producer("a")
    first, second = await consumers(bench, 2, permits=0)
    first.flow(1)
    await send_chunk(client, "x", 0, 9)
    await client.settle()
    second.flow(100)
    for chunk_id in range(1, 9):
        await send_chunk(client, "x", chunk_id, 9)
    await client.sent(b"plain")
    await client.settle()
    machine = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine
    assert len(waiting_chunks_of(machine)) == 3
    first.flow(100)
    await client.settle()
    assert seen([first, second]) in [
        [{"x": list(range(9))}, {"plain": [-1]}],
        [{"x": list(range(9)), "plain": [-1]}, {}],
    ]
