"""A transaction with very many acknowledgements is carried out over several turns of the loop; nobody sees a difference."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import FULL, RawClient, Received

from pulsar_txn.broker.topics import pending_ack_host as hosts
from pulsar_txn.ledger.machine import MoveCursor
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import TxnId

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
COUNT = 3000


def subscription(bench: Any) -> Any:
    return bench.broker.topics[FULL + "a"].subscriptions["s"]


async def all_acknowledged(client: RawClient, kind: int) -> tuple[TxnId, list[Received]]:
    await client.producer("a")
    await client.subscribe("a", kind=kind, permits=10**6)
    for number in range(COUNT):
        client.send(b"%d" % number)
        if number % 500 == 0:
            await client.settle(5)
    messages = [await client.receive() for _ in range(COUNT)]
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    for first in range(0, COUNT, 1000):
        await client.ack(*messages[first : first + 1000], txn=txn)
    return txn, messages


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_a_commit_acknowledges_all_of_it_a_part_in_each_turn(
    client: RawClient, bench: Any, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn, _ = await all_acknowledged(client, kind)
    found = subscription(bench)
    largest, apply_move = 0, found.dispatcher.apply_move

    def watched(move: MoveCursor) -> None:
        nonlocal largest
        largest = max(largest, len(move.individual))
        apply_move(move)

    monkeypatch.setattr(found.dispatcher, "apply_move", watched)
    await client.end(txn)
    await client.nothing()
    await client.until(lambda: found.cursor.backlog() == 0, "an empty backlog")
    assert largest == hosts.AT_ONCE
    await client.until(lambda: not found.is_busy, "the end of the work")


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_an_abort_brings_all_of_it_back_once(client: RawClient, bench: Any, kind: int) -> None:
    txn, messages = await all_acknowledged(client, kind)
    await client.abort(txn)
    again = [await client.receive() for _ in range(COUNT)]
    assert {each.position for each in again} == {each.position for each in messages}
    await client.nothing()
    assert subscription(bench).cursor.backlog() == COUNT


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_a_seek_in_the_middle_of_a_commit_gives_everything_again(client: RawClient, bench: Any, kind: int) -> None:
    txn, messages = await all_acknowledged(client, kind)
    await client.end(txn)
    found = subscription(bench)
    assert found.is_busy
    assert found.cursor.backlog() > 0, "the commit is answered before the cursor has moved all the way"
    ledger_id, entry_id = messages[0].position
    place = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    await client.request("seek", consumer_id=0, message_id=place)
    later = bench.client()
    await later.subscribe("a", kind=kind, permits=10**6)
    again = [await later.receive() for _ in range(COUNT)]
    assert {each.position for each in again} == {each.position for each in messages}
    await later.settle(200)
    assert found.cursor.backlog() == COUNT


async def test_a_crash_in_the_middle_of_a_commit_loses_none_of_it(client: RawClient, bench: Any) -> None:
    txn, _ = await all_acknowledged(client, SHARED)
    await client.end(txn)
    await bench.crash()
    later = bench.client()
    await later.subscribe("a", kind=SHARED, permits=10**6)
    await later.nothing()
    await later.until(lambda: subscription(bench).cursor.backlog() == 0, "an empty backlog")
