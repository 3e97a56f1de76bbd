"""The in-topic buffer on its own: positions, watermarks, trims, snapshots, and what it refuses."""

import pytest
from insides import aborted_in, leasts_of, open_in
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import NOTHING, PublishMaxRead, Reply, WriteSnapshot
from pulsar_txn.ledger.swept_heap import SLACK
from pulsar_txn.rm_producer import PLAIN, TopicRecord, TopicTransactionBuffer
from pulsar_txn.rm_producer.requests import Copied, EndTxnOnPartition, Publish, TakeSnapshot, Verified
from pulsar_txn.rm_producer.snapshots import VERSION, pack_columns, unpack_columns
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, TxnAction, TxnId

A, B, C, D = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3), TxnId(1, 1)
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id):
    return TopicRecord(EntryHeader("p", 1, 1, 0, txn_id), b"data")


def buffer_with(*records, ready=True, ledger_id=1, **settings):
    buffer = TopicTransactionBuffer("t", marker, **settings)
    for entry_id, record in enumerate(records):
        buffer.apply("topic", (ledger_id, entry_id), record)
        buffer.check_invariants()
    if ready:
        buffer.recovered(0)
    return buffer


def end(txn_id, action, low_watermark=-1):
    return EndTxnOnPartition("token", txn_id, action, low_watermark, marker(txn_id, action, low_watermark))


@pytest.mark.seed_rows("D31")
def test_max_read_position_stands_just_before_the_oldest_open_transaction():
    seen = []
    buffer = buffer_with()
    for entry_id, record in enumerate(
        [PLAIN, data(A), data(B), PLAIN, data(A), marker(B, COMMIT), data(C), marker(A, ABORT), PLAIN, marker(C, COMMIT), PLAIN]
    ):
        buffer.apply("topic", (1, entry_id), record)
        seen.append(buffer.max_read_position[1])
    assert seen == [0, 0, 0, 0, 0, 0, 0, 5, 5, 9, 10]


def test_it_is_the_position_that_was_applied_before_whatever_ledger_that_was_in():
    buffer = buffer_with(PLAIN, PLAIN, ledger_id=4)
    buffer.apply("topic", (9, 0), data(A))
    assert buffer.max_read_position == (4, 1)


def test_on_a_fresh_log_it_is_before_its_first_entry():
    assert buffer_with().max_read_position == EARLIEST
    assert buffer_with(data(A), ledger_id=7).max_read_position == (7, -1)


@pytest.mark.seed_rows("C22")
def test_markers_that_are_not_of_transactions_are_hidden_and_move_readers_on():
    other = TopicRecord(EntryHeader("pulsar.marker", 0, 0, 0, None, 10))
    strange = TopicRecord(EntryHeader("pulsar.marker", 0, 0, 0, A, 10))
    buffer = buffer_with(PLAIN, other, strange)
    assert buffer.max_read_position == (1, 2)
    assert buffer.is_hidden((1, 1), other.header)
    assert not buffer.is_hidden((1, 0), PLAIN.header)
    assert buffer.stats().ongoing_txn_size == 0


def test_recovery_publishes_where_readers_may_go():
    buffer = buffer_with(PLAIN, data(A), PLAIN, ready=False)
    assert buffer.max_read_position == EARLIEST
    assert buffer.stats().state == "Initializing"
    assert buffer.recovered(0).effects == (PublishMaxRead((1, 0)),)
    assert buffer.stats().state == "Ready"


def test_a_watermark_aborts_everything_stale_and_not_only_the_head():
    buffer = buffer_with(data(D), data(C), data(B), data(A), data(TxnId(0, 9)))
    step = buffer.decide(end(TxnId(0, 9), COMMIT, low_watermark=2), 0)
    assert step.records == (
        ("topic", marker(A, ABORT)),
        ("topic", marker(B, ABORT)),
        ("topic", marker(TxnId(0, 9), COMMIT, low_watermark=2)),
    )
    assert step.effects == (Reply("token"),)


def test_a_watermark_that_covers_the_ending_transaction_leaves_it_its_outcome():
    buffer = buffer_with(data(A))
    assert buffer.decide(end(A, COMMIT, low_watermark=A.least), 0).records == (("topic", marker(A, COMMIT, A.least)),)


def test_a_watermark_covers_transactions_of_its_own_coordinator_alone():
    first, other, ending = TxnId(0, 1), TxnId(1, 2), TxnId(1, 9)
    buffer = buffer_with(data(first), data(other), data(ending))
    step = buffer.decide(end(ending, COMMIT, low_watermark=5), 0)
    assert step.records == (("topic", marker(other, ABORT)), ("topic", marker(ending, COMMIT, low_watermark=5)))


def test_the_end_of_an_unknown_transaction_still_brings_its_watermark():
    buffer = buffer_with(data(A), data(C))
    assert buffer.decide(end(TxnId(0, 9), ABORT, low_watermark=1), 0).records == (("topic", marker(A, ABORT)),)


def test_ends_by_the_hundred_keep_the_numbers_of_coordinators_apart():
    """What a watermark covers is looked for among the numbers of its own coordinator, ended or open."""
    records = [data(TxnId(0, 5)), data(TxnId(1, 1000)), data(TxnId(1, 3))]
    for least in range(1000, 1200):
        records += [data(TxnId(0, least)), marker(TxnId(0, least), COMMIT)]
    buffer = buffer_with(*records)  # which checks the invariants after every record
    for low_watermark in (4, 1100):
        assert buffer.decide(end(TxnId(0, 5), COMMIT, low_watermark), 0).records == (
            ("topic", marker(TxnId(0, 5), COMMIT, low_watermark)),
        )


def test_a_watermark_refuses_late_writes_up_to_itself_also_after_a_restart():
    buffer = buffer_with(data(C), marker(C, COMMIT, low_watermark=2))
    after = restored(TopicTransactionBuffer("t", marker), state_of(buffer))
    after.recovered(0)
    for each in (buffer, after):
        for request in (Publish("token", B, data(B)), Verified(Publish("token", B, data(B)), True)):
            with pytest.raises(Refusal, match="has ended") as refused:
                each.decide(request, 0)
            assert refused.value.code is ServerError.NotAllowedError
        assert each.decide(Publish("token", D, data(D)), 0).records == ()
        assert each.decide(Verified(Publish("token", C, data(C)), True), 0).records == (("topic", data(C)),)
        assert each.stats().low_watermarks == {0: 2}


@pytest.mark.parametrize("carried", [0, -1, 2**64 - 1])
def test_a_marker_of_stock_pulsar_carries_no_watermark(carried):
    stock = TopicRecord(EntryHeader("pulsar.txn.marker", -1, carried, 0, A, 21))
    assert buffer_with(data(A), stock).stats().low_watermarks == {}


def test_watermarks_never_fall():
    buffer = buffer_with(data(C), marker(C, COMMIT, low_watermark=2), marker(C, COMMIT, low_watermark=1))
    assert buffer.stats().low_watermarks == {0: 2}


def test_what_a_foreign_log_left_below_a_watermark_is_aborted_after_recovery():
    buffer = buffer_with(data(C), marker(C, COMMIT, low_watermark=2), data(B), ready=False)
    step = buffer.recovered(0)
    assert step.records == (("topic", marker(B, ABORT)),)
    assert step.effects == (PublishMaxRead((1, 1)),)


def test_a_late_entry_of_an_aborted_transaction_is_hidden_and_remembered():
    buffer = buffer_with(data(A), marker(A, ABORT), data(B), marker(B, ABORT), data(A))
    assert buffer.max_read_position == (1, 4)
    assert buffer.is_hidden((1, 4), data(A).header)
    buffer.topic_trimmed((1, 4))
    assert (buffer.is_aborted(A), buffer.is_aborted(B)) == (True, False)


def test_aborted_transactions_are_forgotten_once_the_topic_is_trimmed_behind_them():
    buffer = buffer_with(data(A), data(B), marker(A, ABORT), marker(B, ABORT))
    buffer.topic_trimmed((1, 2))
    assert buffer.stats().total_aborted_transactions == 2
    buffer.topic_trimmed((1, 3))
    assert buffer.stats().total_aborted_transactions == 1
    buffer.topic_trimmed((2, 0))
    assert buffer.stats().total_aborted_transactions == 0
    assert buffer.stats().aborted_txn_count == 2


def test_any_number_of_markers_reads_like_the_first():
    once = buffer_with(data(A), marker(A, ABORT), data(B), marker(B, COMMIT), PLAIN, PLAIN, PLAIN, PLAIN)
    again = [marker(A, ABORT), marker(A, COMMIT), marker(B, COMMIT), marker(B, ABORT)]
    many = buffer_with(data(A), marker(A, ABORT), data(B), marker(B, COMMIT), *again)
    assert state_of(many) == state_of(once)


@pytest.mark.seed_rows("C22", "D56")
def test_an_entry_that_names_another_transaction_or_a_marker_type_is_refused():
    buffer = buffer_with(data(A))
    for record in (data(B), TopicRecord(EntryHeader("p", 1, 1, 0), b""), marker(A, COMMIT)):
        with pytest.raises(Refusal, match="metadata") as refused:
            buffer.decide(Publish("token", A, record), 0)
        assert refused.value.code is ServerError.NotAllowedError


def test_half_messages_belong_to_the_other_buffer():
    with pytest.raises(Refusal, match="half"):
        buffer_with().decide(Copied("half", "topic", (1, 0), data(A)), 0)


@pytest.mark.seed_rows("D44")
def test_every_so_many_ends_ask_for_a_snapshot():
    buffer = buffer_with(snapshot_interval_transactions=3)
    asked = []
    for least in range(9):
        buffer.apply("topic", (1, 2 * least), data(TxnId(0, least)))
        step = buffer.decide(end(TxnId(0, least), COMMIT), 0)
        buffer.apply("topic", (1, 2 * least + 1), step.records[0][1])
        asked.append(WriteSnapshot("topic") in step.effects)
    assert asked == [False, False, True] * 3
    assert buffer.decide(end(A, COMMIT), 0).effects == (Reply("token"),)
    assert buffer.decide(TakeSnapshot(), 0).effects == (WriteSnapshot("topic"),)


def test_ends_that_jump_over_the_interval_ask_too():
    buffer = buffer_with(data(A), data(B), data(C), snapshot_interval_transactions=2)
    assert buffer.decide(end(C, COMMIT, low_watermark=2), 0).effects == (Reply("token"), WriteSnapshot("topic"))


def test_an_interval_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        TopicTransactionBuffer("t", marker, snapshot_interval_transactions=0)


@pytest.mark.seed_rows("D56")
def test_an_entry_is_its_own_record_and_the_host_decodes_it():
    buffer = buffer_with()
    assert buffer.encode("topic", data(A)) == b"data"
    with pytest.raises(WireError, match="host"):
        buffer.decode("topic", b"data")


def test_nothing_is_timed_and_the_topic_is_not_trimmed_by_its_buffer():
    buffer = buffer_with()
    assert (buffer.deadline(), buffer.expire(0), buffer.trim_before("topic")) == (None, NOTHING, None)


def test_one_old_transaction_does_not_make_the_buffer_remember_those_that_ended():
    buffer = buffer_with(data(A))
    for least in range(2, 2000):
        txn_id = TxnId(0, least)
        buffer.apply("topic", (1, 2 * least), data(txn_id))
        buffer.apply("topic", (1, 2 * least + 1), marker(txn_id, COMMIT))
    assert len(leasts_of(buffer)[0]) <= SLACK + 4
    buffer.check_invariants()
    buffer.apply("topic", (2, 0), marker(A, COMMIT))
    assert leasts_of(buffer) == {}
    assert buffer.max_read_position == (2, 0)


def test_a_snapshot_of_another_kind_or_version_is_refused():
    good, aborted = state_of(buffer_with(data(A), marker(A, ABORT)))
    uneven = b"\x02H" + pack_columns([[1, 2, 3, 4], [1], []])
    short = b"\x02H" + pack_columns([[1, 2, 3], [], []])
    old = b"\x01" + pack_columns([[1, 2, 3, 4], [1], [], *[[]] * 10])
    newer, strange = bytes([VERSION + 1]) + good[1:], good[:2] + b"d" + good[3:]
    for bad in (b"", b"\x01", newer, good[:-1], good[:20], good + b"\x01", strange, uneven, short, old, aborted, b"\x02X"):
        with pytest.raises(WireError, match="snapshot"):
            TopicTransactionBuffer("t", marker).restore(bad)
    begun = restored(TopicTransactionBuffer("t", marker), (good,))
    for bad in (good, aborted[:-1], b"\x02A" + pack_columns([[1], [1], [1], []])):
        with pytest.raises(WireError, match="snapshot"):
            begun.restore(bad)


@pytest.mark.parametrize(
    "column", [[], [0], [-1], [7] * 3, [0, 255], [0, 256], [0, 65535], [1, 65537], [5, 2**32 + 5], [-(2**63), 2**63 - 1]]
)
def test_columns_of_any_spread_come_back(column):
    assert list(unpack_columns(pack_columns([column, [1], column]))) == [column, [1], column]


def test_a_large_abort_set_takes_about_ten_bytes_a_transaction():
    buffer = buffer_with()
    for least in range(20_000):
        buffer.apply("topic", (3, 2 * least), data(TxnId(least % 16, least)))
        buffer.apply("topic", (3, 2 * least + 1), marker(TxnId(least % 16, least), ABORT))
    assert sum(map(len, state_of(buffer))) < 12 * 20_000


def put(kept, items):
    for key, value in items.items():
        kept[key] = value


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (lambda buffer: put(open_in(buffer), {B: ((0, 0), (0, 0))}), "S9"),
        (lambda buffer: put(aborted_in(buffer), {A: (1, 0)}), "S11"),
        (lambda buffer: put(aborted_in(buffer), {B: (1, 9)}), "S10"),
        (lambda buffer: put(aborted_in(buffer), {B: (1, 1), C: (1, 0)}), "S10"),
        (lambda buffer: setattr(buffer, "_has_ongoing", False), "S9"),
        (lambda buffer: setattr(buffer, "_max_read", (1, 1)), "S9"),
        (lambda buffer: leasts_of(buffer).clear(), "heap"),
        (lambda buffer: leasts_of(buffer)[0].heap.clear(), "heap"),
    ],
)
def test_a_state_that_contradicts_itself_is_named(broken, invariant):
    buffer = buffer_with(PLAIN, data(A))
    broken(buffer)
    with pytest.raises(AssertionError, match=f"^{invariant}"):
        buffer.check_invariants()


def test_an_open_transaction_of_another_coordinator_with_the_same_number_makes_nothing_due():
    buffer = buffer_with(data(A), data(D), data(C), marker(A, COMMIT), marker(C, COMMIT, low_watermark=A.least))
    assert buffer.first_position(D) is not None
    assert buffer.deadline() is None
    assert buffer.expire(0) is NOTHING


def test_it_keeps_nothing_beside_the_topic():
    assert buffer_with(PLAIN, data(A)).waiting() is None
