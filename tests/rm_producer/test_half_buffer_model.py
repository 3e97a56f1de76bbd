"""The half-topic buffer against any history with crashes, and its bytes against what a disk may hold."""

import pytest
from buffer_history import OPS, TXNS, History
from hypothesis import example, given, settings
from hypothesis import strategies as st
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import CopyEntries
from pulsar_txn.rm_producer import PLAIN, TopicRecord
from pulsar_txn.rm_producer.half import HalfTopicTransactionBuffer, records
from pulsar_txn.rm_producer.snapshots import pack_columns
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnId

A, B = TXNS[:2]


def data(txn_id):
    return TopicRecord(EntryHeader("p", 1, 1, 0, txn_id), b"data")


def marker(txn_id, kind=MarkerType.TXN_COMMIT, low_watermark=-1):
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def fresh(*read):
    buffer = HalfTopicTransactionBuffer("t", marker)
    for entry, (log, record) in enumerate(read):
        buffer.apply(log, (1, entry), record)
        if len(read) <= 40:  # they look at all that is open
            buffer.check_invariants()
    buffer.check_invariants()
    return buffer


@pytest.mark.seed_rows("A21", "A29")
@settings(deadline=None)
@given(st.lists(OPS, max_size=40))
@example([("send", A), ("commit", A), ("crash", 2), ("snapshot", None), ("crash", 3)])
@example(
    [("send", A), ("send", TXNS[4]), ("commit", TXNS[4]), ("commit", A), ("snapshot", None), ("confirm", None), ("crash", 1)]
)
def test_any_history_with_crashes_ends_as_its_coordinator_decided(ops):
    history = History(HalfTopicTransactionBuffer)
    for op in ops:
        history.do(*op)
    history.finish()


LOGS = st.sampled_from(["half", "op", "topic"])
READ = st.lists(
    st.one_of(
        st.tuples(st.just("topic"), st.just(PLAIN)),
        st.tuples(st.just("half"), st.builds(data, st.sampled_from(TXNS))),
        st.tuples(st.just("topic"), st.builds(data, st.sampled_from(TXNS))),
        st.tuples(
            st.just("op"),
            st.builds(
                marker,
                st.sampled_from(TXNS),
                st.sampled_from([MarkerType.TXN_COMMIT, MarkerType.TXN_ABORT, 10]),
                st.integers(-1, 4),
            ),
        ),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(READ)
@example([("half", data(A)), ("half", data(B)), ("op", marker(B)), ("op", marker(A)), ("topic", PLAIN)])
def test_a_snapshot_anywhere_and_the_rest_of_the_logs_equal_the_whole(read):
    whole = fresh(*read)
    for cut in range(len(read) + 1):
        resumed = restored(HalfTopicTransactionBuffer("t", marker), state_of(fresh(*read[:cut])))
        for entry, (log, record) in enumerate(read[cut:], cut):
            resumed.apply(log, (1, entry), record)
            resumed.check_invariants()
        assert state_of(resumed) == state_of(whole)
        assert resumed.recovered(0) == fresh(*read).recovered(0)


def test_a_snapshot_shows_one_moment_while_transactions_go_on():
    ids = [TxnId(0, least) for least in range(1, 301)]
    buffer = fresh(*(("half", data(txn_id)) for txn_id in ids))
    buffer.recovered(0)
    taken = buffer.snapshot()
    expected = tuple(fresh(*(("half", data(txn_id)) for txn_id in ids)).snapshot())
    first = next(taken)
    for entry, (log, record) in enumerate(
        [*(("half", data(txn_id)) for txn_id in ids), ("op", marker(ids[0])), ("op", marker(ids[9], 22))], 300
    ):
        buffer.apply(log, (1, entry), record)
    assert (first, *taken) == expected


def test_a_large_transaction_is_many_slices_and_comes_back_whole():
    count = 5000
    buffer = fresh(*(("half", data(A)) for _ in range(count)), ("half", data(TXNS[1])), ("op", marker(A)))
    slices = state_of(buffer)
    assert max(map(len, slices)) < 128 * 1024
    again = restored(HalfTopicTransactionBuffer("t", marker), slices)
    assert state_of(again) == slices
    (copies,) = (effect for effect in again.recovered(0).effects if type(effect) is CopyEntries)
    assert copies.positions == tuple((1, entry) for entry in range(count))
    assert again.trim_before("half") == (1, 0)
    assert again.trim_before("op") == (1, count + 2)
    assert again.trim_before("topic") is None


@pytest.mark.parametrize("count", [2048, 5000])
def test_many_transactions_are_slices_of_a_size(count):
    ids = [TxnId(0, least) for least in range(1, count + 1)]
    slices = state_of(fresh(*(("half", data(txn_id)) for txn_id in ids)))
    rounds = -(-count // 2048)
    assert [part[1:2] for part in slices] == [b"H", *[b"T", b"P"] * rounds, *[b"S"] * -(-count // 1024)]
    assert max(map(len, slices)) < 128 * 1024
    assert state_of(restored(HalfTopicTransactionBuffer("t", marker), slices)) == slices


def test_a_snapshot_shows_one_moment_while_copies_go_on():
    read = [("half", data(A)), ("half", data(A)), ("op", marker(A))]
    buffer = fresh(*read)
    taken = buffer.snapshot()
    first = next(taken)
    buffer.apply("topic", (1, 3), data(A))
    buffer.apply("topic", (1, 4), data(A))
    assert buffer.first_position(A) is None
    assert (first, *taken) == state_of(fresh(*read))


HEADERS = st.builds(
    EntryHeader,
    st.text(max_size=20).filter(lambda name: name.isprintable()),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**62),
    st.builds(TxnId, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.one_of(st.none(), st.sampled_from([21, 22])),
    st.one_of(st.none(), st.integers(1, 1000)),
)


@given(HEADERS, st.binary(max_size=50))
def test_a_record_survives_its_bytes(header, entry):
    record = TopicRecord(header, entry)
    assert records.decode(records.encode(record)) == record


@given(HEADERS, st.data())
def test_bytes_that_are_no_record_say_so(header, draw):
    whole = records.encode(TopicRecord(header, b""))
    with pytest.raises(WireError):
        records.decode(whole[: draw.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError, match="version 9"):
        records.decode(b"\x09" + whole[1:])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_wire_error(data_):
    for read in (records.decode, HalfTopicTransactionBuffer("t", marker).restore):
        try:
            read(data_)
        except WireError:
            continue


@pytest.mark.parametrize(
    "change", [lambda s: s[1:], lambda s: (s[0], s[0]), lambda s: (s[0], s[2]), lambda s: (s[0], s[1][:-3])]
)
def test_a_damaged_snapshot_says_so(change):
    slices = state_of(fresh(("half", data(A))))
    assert len(slices) == 4
    with pytest.raises(WireError):
        restored(HalfTopicTransactionBuffer("t", marker), change(slices))


@pytest.mark.parametrize(
    "columns",
    [
        (b"H", [[0] * 6, [0] * 3, [1], []]),
        (b"H", [[0] * 5, [0] * 3, [], []]),
        (b"H", [[0] * 6]),
        (b"T", [[1]] * 5 + [[1, 2]]),
        (b"P", [[0], [99], [1], [0]]),
    ],
)
def test_a_snapshot_with_columns_that_do_not_fit_says_so(columns):
    kind, rows = columns
    buffer = HalfTopicTransactionBuffer("t", marker)
    if kind != b"H":
        buffer.restore(state_of(fresh())[0])
    with pytest.raises(WireError):
        buffer.restore(bytes([1]) + kind + pack_columns(rows))


def test_what_cannot_be_is_found_by_the_invariants():
    buffer = fresh(("half", data(A)))
    buffer._transactions[A].copied = 1
    with pytest.raises(AssertionError, match="S1"):
        buffer.check_invariants()


@given(HEADERS)
def test_a_name_that_is_cut_off_is_no_record(header):
    whole = records.encode(TopicRecord(header, b""))
    name = len(header.producer_name.encode())
    for cut in range(1, name + 1):
        with pytest.raises(WireError):
            records.decode(whole[:-cut])


def test_what_belongs_to_the_host_is_not_decoded_here():
    with pytest.raises(WireError, match="decoded by the host"):
        fresh().decode("topic", b"")
    with pytest.raises(WireError, match="not an op"):
        records.span(data(A))
