"""Markers and aborted entries are acknowledged with what is before them, however that came to be acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import FULL, RawClient, Received

from pulsar_txn.broker.topics.cursors import MemoryCursor
from pulsar_txn.broker.topics.dispatcher import MAX_HIDDEN, CursorMoves
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire.ids import TxnAction, TxnId, full_ack_set

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
EVERY_KIND = [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED]


def subscription(bench: Any) -> Any:
    return bench.broker.topics[FULL + "a"].subscriptions["s"]


async def opened(client: RawClient) -> TxnId:
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    return txn


async def acked(client: RawClient, batch: Received, index: int, *, txn: TxnId | None = None, cumulative: bool = False) -> None:
    left = full_ack_set(batch.batch_size) & ~(full_ack_set(index + 1) if cumulative else 1 << index)
    await client.ack(batch, left=left, txn=txn, cumulative=cumulative)


async def written(client: RawClient, *payloads: bytes, action: TxnAction = TxnAction.COMMIT) -> None:
    """A batch in a transaction of its own: one entry, and a marker after it."""
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.sent(payloads, txn=txn)
    await client.end(txn, action)


def nothing_left(bench: Any) -> None:
    found = subscription(bench)
    assert found.cursor.backlog() == 0
    assert found.cursor.deleted_ranges() == []
    assert not found.dispatcher.moves.hidden


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("durable", [True, False])
async def test_batches_acknowledged_in_pieces_by_transactions_leave_no_backlog(
    client: RawClient, bench: Any, kind: int, durable: bool
) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind, durable=durable)
    for _ in range(50):
        await written(client, b"0", b"1")
        await written(client, b"x", action=TxnAction.ABORT)
        batch = await client.receive()
        for index in (0, 1):
            txn = await opened(client)
            await acked(client, batch, index, txn=txn)
            await client.end(txn)
    nothing_left(bench)


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_batches_acknowledged_in_pieces_leave_no_backlog(client: RawClient, bench: Any, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for _ in range(5):
        await written(client, b"0", b"1")
    for batch in [await client.receive() for _ in range(5)]:
        await acked(client, batch, 1)
        await acked(client, batch, 0)
    nothing_left(bench)


@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_cumulative_acknowledgements_up_to_an_index_leave_no_backlog(
    client: RawClient, bench: Any, kind: int, in_transaction: bool
) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for _ in range(5):
        await written(client, b"0", b"1")
        batch = await client.receive()
        for index in (0, 1):
            txn = await opened(client) if in_transaction else None
            await acked(client, batch, index, txn=txn, cumulative=True)
            if txn is not None:
                await client.end(txn)
    nothing_left(bench)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_marker_that_came_after_the_acknowledgement_before_it_leaves_no_hole(
    client: RawClient, bench: Any, kind: int
) -> None:
    """The oldest message is acknowledged last: no marker is next to the mark-delete position before."""
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent(b"oldest")
    oldest = await client.receive()
    for _ in range(5):
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + "a")
        await client.sent(b"x", txn=txn)
        await client.sent(b"y")
        await client.end(txn)
        await client.ack(await client.receive(), await client.receive())
        await client.settle()
    assert len(subscription(bench).cursor.deleted_ranges()) == 1
    await client.ack(oldest)
    nothing_left(bench)


@pytest.mark.parametrize("end", ["crash", "drop"])
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_a_restart_in_the_middle_of_a_batch_leaves_no_backlog(bench: Any, kind: int, end: str) -> None:
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for _ in range(3):
        await written(client, b"0", b"1")
    batches = [await client.receive() for _ in range(3)]
    txn = await opened(client)
    for batch in batches:
        await acked(client, batch, 0, txn=txn)
    await client.end(txn)
    if end == "crash":
        await bench.crash()
    else:
        client.drop()
    again = bench.client()
    await again.subscribe("a", kind=kind)
    txn = await opened(again)
    for batch in [await again.receive() for _ in range(3)]:
        await acked(again, batch, 1, txn=txn)
    await again.end(txn)
    nothing_left(bench)


ENTRIES = 12
steps = st.lists(
    st.tuples(st.sampled_from(["delete", "index", "upto", "upto index", "pass"]), st.integers(0, ENTRIES - 1)), max_size=40
)


@given(steps, st.sets(st.integers(0, ENTRIES - 1)), st.booleans())
@settings(deadline=None)
async def test_no_hidden_entry_ever_follows_an_acknowledged_one(
    moves: list[tuple[str, int]], markers: set[int], durable: bool
) -> None:
    """Whatever moves the cursor, in any order; nothing is acknowledged that is neither named nor hidden."""
    async with MemoryStore() as store:
        log = await store.open("log")
        for _ in range(ENTRIES):
            log.append(b"x")
        await log.flush()
        ledger_id = log.last_appended[0]
        cursor = await log.open_cursor("s") if durable else MemoryCursor(log, "s", (ledger_id, -1))
        target = CursorMoves(cursor, log)
        passed, named, halves = 0, set(), [0] * ENTRIES
        carry_out: dict[str, Callable[[int], None]] = {
            "delete": lambda entry: target.delete([(ledger_id, entry)]),
            "index": lambda entry: target.delete_indexes([((ledger_id, entry), halves[entry], 2)]),
            "upto": lambda entry: target.delete_upto((ledger_id, entry), None, 0),
            "upto index": lambda entry: target.delete_upto((ledger_id, entry), halves[entry], 2),
        }
        for kind, entry in moves:
            if kind == "pass":
                while passed <= entry:
                    if passed in markers and not cursor.is_deleted((ledger_id, passed)):
                        target.hide((ledger_id, passed))
                    passed += 1
            else:
                halves[entry] = 2 if halves[entry] else 1
                carry_out[kind](entry)
                named |= {entry} if kind == "delete" or halves[entry] == 2 else set()
                named |= set(range(entry + (kind == "upto"))) if "upto" in kind else set()
            deleted = {each for each in range(ENTRIES) if cursor.is_deleted((ledger_id, each))}
            waiting = {each for each in markers if each < passed} - deleted
            assert not any(each - 1 in deleted or each == 0 for each in waiting), (deleted, waiting)
            assert {each[1] for each in target.hidden} >= waiting
            assert deleted <= named | {each for each in markers if each < passed}


@pytest.mark.parametrize("durable", [True, False])
async def test_hidden_entries_after_a_message_that_nobody_acknowledges_are_bounded_in_memory(durable: bool) -> None:
    """One message is not acknowledged; then come more aborted entries than are remembered, and messages between them."""
    count = 3 * MAX_HIDDEN
    async with MemoryStore() as store:
        log = await store.open("log")
        for _ in range(count + 1):
            log.append(b"x")
        await log.flush()
        ledger_id = log.last_appended[0]
        cursor = await log.open_cursor("s") if durable else MemoryCursor(log, "s", (ledger_id, -1))
        target = CursorMoves(cursor, log)
        seen = {0, *range(5, count, 1000)}
        for entry in range(count + 1):
            if entry not in seen:
                target.hide((ledger_id, entry))
            assert len(target.hidden) < MAX_HIDDEN
        assert not any(cursor.is_deleted((ledger_id, entry)) for entry in seen)
        target.delete([(ledger_id, entry) for entry in sorted(seen)])
        assert cursor.backlog() == 0
        assert cursor.mark_delete == (ledger_id, count)
