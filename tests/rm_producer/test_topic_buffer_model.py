"""The in-topic buffer against plain models: of any log, entry by entry; and of any history with crashes."""

import pytest
from buffer_history import OPS, TXNS, History
from hypothesis import example, given, settings
from hypothesis import strategies as st
from machine_states import restored, state_of

from pulsar_txn.rm_producer import PLAIN, TopicRecord, TopicTransactionBuffer
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, TxnAction

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id):
    return TopicRecord(EntryHeader("p", 1, 1, 0, txn_id), b"data")


ENTRIES = st.one_of(
    st.just(PLAIN),
    st.just(TopicRecord(EntryHeader("pulsar.marker", 0, 0, 0, None, 10))),
    st.builds(data, st.sampled_from(TXNS)),
    st.builds(marker, st.sampled_from(TXNS), st.sampled_from(TxnAction), st.integers(-1, 4)),
)
POSITIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), unique=True, max_size=40).map(sorted)


def naive(log):
    """(max_read_position, hidden positions, first position of each open transaction), from the whole log, slowly."""
    opened, hidden, aborted_by, before = {}, set(), {}, EARLIEST
    for position, record in log:
        header = record.header
        txn_id = header.txn_id
        if header.marker_type is not None:
            hidden.add(position)
            if header.marker_type in (21, 22) and txn_id in opened:
                if header.marker_type == 22:
                    aborted_by[txn_id] = position
                del opened[txn_id]
        elif txn_id is not None and txn_id not in opened and txn_id not in aborted_by:
            opened[txn_id] = (position, before if before != EARLIEST else (position[0], -1))
        before = position
    hidden |= {position for position, record in log if record.header.txn_id in aborted_by}
    max_read = min((just_before for _, just_before in opened.values()), default=before)
    return max_read, hidden, {txn_id: first for txn_id, (first, _) in opened.items()}


def recovered(log, snapshot=None):
    buffer = TopicTransactionBuffer("t", marker)
    if snapshot is not None:
        restored(buffer, snapshot)
    for position, record in log:
        buffer.apply("topic", position, record)
        buffer.check_invariants()
    return buffer


@settings(deadline=None)
@given(st.data())
def test_any_log_reads_as_the_plain_model_reads_it(draw):
    log = [(position, draw.draw(ENTRIES)) for position in draw.draw(POSITIONS)]
    buffer = TopicTransactionBuffer("t", marker)
    buffer.recovered(0)
    previous = EARLIEST
    for count, (position, record) in enumerate(log, 1):
        buffer.apply("topic", position, record)
        buffer.check_invariants()
        max_read, hidden, firsts = naive(log[:count])
        assert buffer.max_read_position == max_read >= previous
        assert {at for at, entry in log[:count] if buffer.is_hidden(at, entry.header)} == hidden
        assert {txn_id: buffer.first_position(txn_id) for txn_id in TXNS if buffer.first_position(txn_id)} == firsts
        previous = max_read


@pytest.mark.seed_rows("D57", "D61")
@settings(deadline=None)
@given(st.data())
def test_a_snapshot_anywhere_and_the_rest_of_the_log_equal_the_whole_log(draw):
    log = [(position, draw.draw(ENTRIES)) for position in draw.draw(POSITIONS)]
    whole = recovered(log)
    for cut in range(len(log) + 1):
        resumed = recovered(log[cut:], state_of(recovered(log[:cut])))
        assert state_of(resumed) == state_of(whole)
        assert resumed.recovered(0) == recovered(log).recovered(0)
    whole.recovered(0)
    assert resumed.max_read_position == whole.max_read_position


@settings(deadline=None)
@given(st.data())
def test_what_is_trimmed_from_the_topic_needs_no_record(draw):
    log = [(position, draw.draw(ENTRIES)) for position in draw.draw(POSITIONS)]
    whole, trimmed = recovered(log), recovered(log)
    cut = draw.draw(st.integers(0, len(log)))
    before = log[cut][0] if cut < len(log) else (9, 0)
    trimmed.topic_trimmed(before)
    trimmed.check_invariants()
    for position, record in log[cut:]:
        assert trimmed.is_hidden(position, record.header) == whole.is_hidden(position, record.header)
    left = {record.header.txn_id for _, record in log[cut:]}
    assert all(txn_id in left for txn_id in TXNS if trimmed.is_aborted(txn_id)), "remembered, and nothing of it is left"


@settings(deadline=None)
@given(st.lists(OPS, max_size=40))
@example([("send", TXNS[0]), ("send", TXNS[1]), ("forget", TXNS[0]), ("commit", TXNS[1]), ("crash", 1), ("commit", TXNS[2])])
def test_any_history_with_crashes_ends_as_its_coordinator_decided(ops):
    history = History(TopicTransactionBuffer)
    for op in ops:
        history.do(*op)
    history.finish()
