"""Snapshots in slices of one moment, of a state of any size; and what is held has a bound."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pulsar_txn.rm_pending_ack.records_pb2 as pb
from pulsar_txn.ledger import ordered
from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.rm_pending_ack import Op, PendingAckHandle, Record, snapshots
from pulsar_txn.rm_pending_ack.held import ITEM_BYTES, KEY_BYTES
from pulsar_txn.rm_pending_ack.records import NO_TXN
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.rm_pending_ack.testing import FIRST, LOG_LEDGER, SECOND, ListedCursor, Subscription, ack, at, commit, state_of
from pulsar_txn.wire.errors import ServerError, WireError
from pulsar_txn.wire.ids import TxnAction, TxnId

ENTRIES = 40


def fresh() -> PendingAckHandle:
    return PendingAckHandle("t", "s", ListedCursor([0] * ENTRIES))


def restored(slices: list[bytes]) -> PendingAckHandle:
    handle = fresh()
    for part in slices:
        handle.restore(part)
    handle.check_invariants()
    return handle


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_ITEMS_PER_SLICE", 3)
    monkeypatch.setattr(snapshots, "_ITEMS_PER_ELEMENT", 2)
    monkeypatch.setattr(ordered, "GROUP", 2)


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Records as a handle writes them: each entry is held once, in one of a few transactions."""
    free, held, records = list(range(ENTRIES)), {}, []
    ids = iter(range(1, 1000))
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["open", "more", "commit", "abort", "plain", "stored", "stranger"]))
        known = draw(st.sampled_from(sorted(held))) if held else None
        taken = [free.pop() for _ in range(min(len(free), draw(st.integers(1, 4))))]
        items: tuple[AckItem, ...] = tuple((at(entry), None, 0) for entry in taken)
        if kind == "open" or known is None:
            known = TxnId(draw(st.integers(0, 1)), next(ids))
            kind = "more"
        if kind == "more" and items:
            held.setdefault(known, []).extend(taken)
            records.append(Record(Op.ACK, known, items))
            continue
        free.extend(taken)
        if kind in ("commit", "abort") and known in held:
            freed = held.pop(known)
            free.extend(freed if kind == "abort" else [])
            records.append(Record(Op.COMMIT if kind == "commit" else Op.ABORT, known))
        elif kind == "plain" and held.get(known):
            records.append(Record(Op.PLAIN_ACK, NO_TXN, ((at(held[known].pop()), None, 0),)))
        elif kind == "stored":
            records.append(Record(Op.CURSOR_STORED, items=(((LOG_LEDGER, len(records) - 2), None, 0),)))
        elif kind == "stranger":
            records.append(Record(Op.COMMIT, TxnId(1, next(ids))))
    return records


def applied(handle: PendingAckHandle, records: list[Record], start: int = 0) -> PendingAckHandle:
    for number, record in enumerate(records, start):
        handle.apply("log", (LOG_LEDGER, number), record)
    return handle


@pytest.mark.usefixtures("small_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(histories(), st.data())
def test_slices_taken_between_records_show_the_moment_of_the_call(records: list[Record], data: st.DataObject) -> None:
    moment = data.draw(st.integers(0, len(records)))
    expected = list(applied(fresh(), records[:moment]).snapshot())
    handle = applied(fresh(), records[:moment])
    slices, taken = handle.snapshot(), []
    for number, record in enumerate(records[moment:], moment):
        if data.draw(st.booleans()) and len(taken) < len(expected):
            taken.append(next(slices))
        handle.apply("log", (LOG_LEDGER, number), record)
    taken += slices
    assert taken == expected
    again = restored(taken)
    assert state_of(again) == b"".join(expected)
    assert state_of(applied(again, records[moment:], moment)) == state_of(handle)


@pytest.mark.usefixtures("small_slices")
def test_what_a_transaction_acknowledges_while_slices_are_taken_is_not_in_them() -> None:
    handle = applied(fresh(), [Record(Op.ACK, TxnId(0, number), ((at(number), None, 0),)) for number in range(1, 9)])
    expected = list(handle.snapshot())
    slices = handle.snapshot()
    taken = [next(slices)]
    applied(handle, [Record(Op.ACK, TxnId(0, 8), ((at(20), None, 0),))], start=8)
    assert [*taken, *slices] == expected
    assert list(handle.snapshot()) != expected


@pytest.mark.usefixtures("small_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(histories())
def test_a_snapshot_of_version_one_is_read(records: list[Record]) -> None:
    """It was one message with everything in it."""
    handle = applied(fresh(), records)
    whole = pb.PendingAckSnapshot()
    for part in handle.snapshot():
        whole.MergeFromString(part)
    whole.format_version = 1
    assert state_of(restored([whole.SerializeToString()])) == state_of(handle)


def test_a_hundred_thousand_acks_are_small_slices() -> None:
    handle = fresh()
    for number in range(1000):
        items = tuple(((1, 100 * number + each), 0b1, 70) for each in range(100))
        handle.apply("log", (LOG_LEDGER, number), Record(Op.ACK, FIRST if number < 700 else TxnId(0, number), items))
    handle.apply("log", (LOG_LEDGER, 1000), Record(Op.COMMIT, FIRST))
    slices = list(handle.snapshot())
    assert max(map(len, slices)) <= 2 * SLICE_BYTES
    assert len(slices) >= 100_000 // 1024
    again = fresh()
    for part in slices:
        again.restore(part)
    assert state_of(again) == b"".join(slices)


def test_a_snapshot_with_an_unknown_action_or_too_few_of_them_is_refused() -> None:
    handle = applied(fresh(), [Record(Op.COMMIT, FIRST)])
    snapshot = pb.PendingAckSnapshot.FromString(state_of(handle))
    snapshot.coordinators[0].ended_action[0] = 7
    with pytest.raises(WireError, match="unknown action 7"):
        fresh().restore(snapshot.SerializeToString())
    snapshot.coordinators[0].ended_action[:] = [TxnAction.COMMIT, TxnAction.ABORT]
    with pytest.raises(WireError, match="1 ended transactions and 2 outcomes"):
        fresh().restore(snapshot.SerializeToString())


def test_a_transaction_holds_so_many_bytes_and_a_repeat_is_answered_all_the_same() -> None:
    host = Subscription(
        lambda *names: PendingAckHandle(*names, max_transaction_bytes=3 * ITEM_BYTES + KEY_BYTES), [0] * ENTRIES
    )
    entries: list[AckItem] = [(at(entry), None, 0) for entry in range(ENTRIES)]
    assert host.answer(ack(FIRST, *entries[:3], key=(1, 1))) is None
    assert host.answer(ack(FIRST, entries[3])) is ServerError.NotAllowedError
    assert host.answer(ack(FIRST, *entries[:3], key=(1, 1))) is None
    assert host.answer(ack(SECOND, entries[3])) is None
    assert host.answer(ack(TxnId(0, 3), *entries[4:8])) is ServerError.NotAllowedError
    assert host.answer(commit(FIRST)) is None


def test_all_transactions_together_hold_so_many_bytes_until_the_cursor_has_stored_their_commits() -> None:
    host = Subscription(lambda *names: PendingAckHandle(*names, max_bytes=3 * ITEM_BYTES, stored_every=1), [0] * ENTRIES)
    entries: list[AckItem] = [(at(entry), None, 0) for entry in range(ENTRIES)]
    assert host.answer(ack(FIRST, *entries[:3])) is None
    assert host.answer(ack(SECOND, entries[3])) is ServerError.TooManyRequests
    assert host.answer(commit(FIRST)) is None
    assert host.answer(ack(SECOND, entries[3])) is ServerError.TooManyRequests
    host.store()
    assert host.answer(ack(SECOND, entries[3])) is None
