"""Snapshots of any size in slices of one moment, and nothing that works on all transactions in one go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_states import restored, state_of

from pulsar_txn.ledger import ordered
from pulsar_txn.ledger.machine import SLICE_BYTES, Reply, WriteSnapshot
from pulsar_txn.rm_producer import TopicRecord, TopicTransactionBuffer, snapshots, topic_buffer
from pulsar_txn.rm_producer.requests import EndTxnOnPartition, Publish, Verified
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnAction, TxnId

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TXNS = [TxnId(most, least) for most in (0, 1) for least in range(5)]


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id):
    return TopicRecord(EntryHeader("p", 1, 1, 0, txn_id), b"data")


class Log:
    """A buffer, and the entries that it was given."""

    def __init__(self, ready=True, **options):
        self.buffer = TopicTransactionBuffer("t", marker, **options)
        self.entry = 0
        if ready:
            self.buffer.recovered(0)

    def append(self, *records):
        for record in records:
            self.buffer.apply("topic", (1, self.entry), record)
            self.entry += 1

    def carry_out(self, step):
        self.append(*(record for _, record in step.records))
        return step

    def end(self, txn_id, action, low_watermark=-1):
        request = EndTxnOnPartition("token", txn_id, action, low_watermark, marker(txn_id, action, low_watermark))
        return self.carry_out(self.buffer.decide(request, 0))


STEPS = st.lists(
    st.tuples(st.sampled_from(["data", "data", "abort", "commit", "trim", "begin", "slice", "slice"]), st.integers(0, 9)),
    min_size=20,
    max_size=80,
)


@settings(deadline=None)
@given(STEPS)
def test_slices_taken_between_entries_of_any_topic_are_those_of_the_moment(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "GROUP", 2)
        patch.setattr(snapshots, "_OBJECTS_PER_SLICE", 1)
        log = Log()
        walks = []
        for kind, number in steps:
            if kind == "begin":
                walks.append((state_of(log.buffer), log.buffer.snapshot(), []))
            elif kind == "slice" and walks:
                _, slices, seen = walks[number % len(walks)]
                seen.extend(part for part in [next(slices, b"")] if part)
            elif kind == "trim":
                log.buffer.topic_trimmed((1, max(0, log.entry - number)))
            elif kind == "data":
                log.append(data(TXNS[number]))
            else:
                log.append(marker(TXNS[number], COMMIT if kind == "commit" else ABORT, number // 2))
        for expected, slices, seen in walks:
            assert (*seen, *slices) == expected
            copy = restored(TopicTransactionBuffer("t", marker), expected)
            copy.check_invariants()
            assert state_of(copy) == expected


@pytest.mark.parametrize("count", [20_000, 200_000, pytest.param(2_000_000, marks=pytest.mark.soak)])
def test_a_topic_with_any_number_of_aborted_ids_has_slices_of_bounded_size(count):
    head = snapshots.Head((1, 2 * count), 0, count, {0: 7})
    groups = ([(TxnId(0, least), (1, 2 * least)) for least in range(at, at + 1_000)] for at in range(0, count, 1_000))
    parts = tuple(snapshots.slices(head, iter(()), groups, iter(())))
    assert max(map(len, parts)) <= SLICE_BYTES
    copy = restored(TopicTransactionBuffer("t", marker), parts)
    assert copy.stats().total_aborted_transactions == count
    assert copy.is_aborted(TxnId(0, count - 1))
    assert copy.is_aborted(TxnId(0, 0))
    assert state_of(copy) == parts
    calls = 1
    while copy.topic_trimmed((2, 0)):
        calls += 1
    assert copy.stats().total_aborted_transactions == 0
    assert calls >= count // 5_000, "a bounded number in each call"


def test_a_snapshot_of_one_piece_as_stored_by_earlier_versions_is_read():
    log = Log()
    log.append(*map(data, TXNS), marker(TXNS[0], ABORT), marker(TXNS[6], ABORT, 0), marker(TXNS[1], COMMIT))
    columns = []
    parts = tuple(part for part in state_of(log.buffer) if part[1:2] != snapshots.SENT)  # earlier versions had none
    for part, size in zip(parts, (3, 6, 4), strict=True):
        columns += list(snapshots.unpack_columns(part, 2))
        assert len(columns) - size in (0, 3, 9)
    old = b"\x01" + snapshots.pack_columns(columns)
    assert state_of(restored(TopicTransactionBuffer("t", marker), (old,))) == parts


def test_a_watermark_that_covers_many_aborts_them_a_bounded_number_at_a_time(monkeypatch):
    monkeypatch.setattr(topic_buffer, "_ABORTED_AT_ONCE", 10)
    log = Log()
    log.append(*(data(TxnId(0, least)) for least in range(35)), data(TxnId(1, 3)), data(TxnId(0, 50)))
    step = log.end(TxnId(0, 50), COMMIT, low_watermark=40)
    assert len(step.records) == 11
    assert step.records[-1][1].header.txn_id == TxnId(0, 50), "the ending one carries the watermark, after those it covers"
    assert step.effects == (Reply("token"),)
    left = TxnId(0, 34)
    for request in (Publish("late", left, data(left)), Verified(Publish("late", left, data(left)), True)):
        with pytest.raises(Refusal, match="has ended"):
            log.buffer.decide(request, 0)
    rounds = 0
    while log.buffer.deadline() is not None:
        assert log.buffer.deadline() == 0, "it is due at once"
        assert len(log.carry_out(log.buffer.expire(0)).records) <= 10
        rounds += 1
    assert rounds == 3
    assert all(log.buffer.is_aborted(TxnId(0, least)) for least in range(35))
    assert log.buffer.first_position(TxnId(1, 3)) is not None
    assert log.buffer.max_read_position == (1, 34), "just before the one that is left"
    log.buffer.check_invariants()


def test_what_a_watermark_covers_and_a_crash_left_is_aborted_a_bounded_number_at_a_time(monkeypatch):
    monkeypatch.setattr(topic_buffer, "_ABORTED_AT_ONCE", 10)
    log = Log(ready=False)
    log.append(*(data(TxnId(most, least)) for least in range(15) for most in (0, 1)), data(TxnId(0, 50)), data(TxnId(1, 50)))
    log.append(marker(TxnId(0, 50), COMMIT, 14), marker(TxnId(1, 50), COMMIT, 14))
    assert log.buffer.deadline() is None
    assert len(log.carry_out(log.buffer.recovered(0)).records) == 10
    while log.buffer.deadline() is not None:
        assert len(log.carry_out(log.buffer.expire(0)).records) <= 10
    assert log.buffer.stats().ongoing_txn_size == 0
    assert log.buffer.stats().aborted_txn_count == 30


def test_an_end_may_still_come_for_one_that_waits_to_be_aborted(monkeypatch):
    monkeypatch.setattr(topic_buffer, "_ABORTED_AT_ONCE", 1)
    log = Log()
    log.append(*(data(TxnId(0, least)) for least in (1, 2, 9)))
    log.end(TxnId(0, 9), COMMIT, low_watermark=5)
    step = log.end(TxnId(0, 2), COMMIT)
    assert step.records == (("topic", marker(TxnId(0, 2), COMMIT)),)
    assert log.buffer.deadline() is None
    assert log.buffer.max_read_position == (1, log.entry - 1)


def test_snapshots_are_asked_for_less_often_the_more_there_is_to_write():
    log = Log(snapshot_interval_transactions=1)
    asked = 0
    for least in range(4_000):
        log.append(data(TxnId(0, least)))
        if WriteSnapshot("topic") in log.end(TxnId(0, least), ABORT).effects:
            asked += 1
            for _ in log.buffer.snapshot():
                pass
    assert 20 < asked < 100, "each has an eighth more to write than the one before"
