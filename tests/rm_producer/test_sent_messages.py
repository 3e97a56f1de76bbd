"""What open transactions have got: against a plain set, with its limits, and through its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.rm_producer import HalfTopicTransactionBuffer, TopicRecord, TopicTransactionBuffer, sent_messages
from pulsar_txn.rm_producer.half import records
from pulsar_txn.rm_producer.sent_ids import MAX_CHUNKED, MAX_RANGES, SentIds
from pulsar_txn.rm_producer.sent_messages import SentMessages
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, MarkerType, TxnId

A, B = TxnId(0, 1), TxnId(1, 1)


def header(sequence_id, last=None, name="p", chunk=None, txn_id=A):
    hints = None if chunk is None else DispatchHints(None, b"uuid", *chunk)
    return EntryHeader(name, sequence_id, sequence_id if last is None else last, 0, txn_id, hints=hints)


def marker(txn_id, action=None, low_watermark=-1):
    return TopicRecord(EntryHeader("m", -1, low_watermark + 1, 0, txn_id, int(MarkerType.TXN_COMMIT)), b"marker")


def columns_of(sent):
    return tuple(sent.slices())


def again(sent):
    """The same after a snapshot."""
    fresh = SentMessages()
    for data in columns_of(sent):
        fresh.restore(data, 0)
    return fresh


@given(st.lists(st.tuples(st.integers(-5, 40), st.integers(0, 4)), max_size=40))
def test_the_ranges_are_the_set_of_ids_that_were_used(batches):
    ids, used = SentIds(), set()
    for first, more in batches:
        assert ids.has(first, first + more) == (set(range(first, first + more + 1)) <= used)
        ids.note(first, first + more)
        used |= set(range(first, first + more + 1))
        assert ids.check_invariants()
        assert all(ids.has(each, each) == (each in used) for each in range(-6, 50))


def test_ids_that_go_up_with_gaps_are_all_known_and_take_bounded_memory():
    ids = SentIds()
    for each in range(0, 20_000, 2):
        assert not ids.has(each, each)
        ids.note(each, each)
    assert all(ids.has(each, each) for each in range(0, 20_000, 2))
    assert len(ids.image()[0]) == 2 * (MAX_RANGES + 1)
    newest = range(20_000 - 2 * MAX_RANGES + 1, 20_000, 2)
    assert not any(ids.has(each, each) for each in newest), "what lies between the newest ones was not sent"


def test_ids_that_go_down_take_bounded_memory():
    ids = SentIds()
    for each in range(10_000, 0, -2):
        ids.note(each, each)
        assert ids.has(each, each)
        assert ids.check_invariants()
    assert len(ids.image()[0]) <= 2 * (MAX_RANGES + 1)


def test_chunks_of_a_message_share_its_id_and_count_one_by_one():
    sent = SentMessages()
    for chunk in range(3):
        assert not sent.is_repeat(A, header(7, chunk=(chunk, 3)))
        sent.note(A, header(7, chunk=(chunk, 3)))
        assert sent.is_repeat(A, header(7, chunk=(chunk, 3)))
        assert sent.is_repeat(A, header(7, chunk=(0, 3)))
    assert sent.is_repeat(A, header(7)), "the message is there"
    assert not sent.is_repeat(A, header(8, chunk=(0, 2)))
    assert sent.last("p") == 7


def test_messages_that_never_come_whole_take_bounded_memory():
    ids = SentIds()
    for sequence_id in range(1000):
        ids.note_chunk(sequence_id, 0, 2)
    assert len(ids.image()[1]) == MAX_CHUNKED
    assert ids.has_chunk(999, 0)
    assert not ids.has_chunk(0, 0)


SENDS = st.lists(
    st.tuples(
        st.sampled_from([A, B, TxnId(0, 2)]),
        st.builds(
            header,
            st.integers(-(2**63), 2**63 - 1),
            st.none(),
            st.sampled_from(["p", "q", "ü", ""]),
            st.none() | st.tuples(st.integers(0, 3), st.just(3)),
        ),
    ),
    max_size=30,
)


@given(SENDS, st.integers(1, 3))
def test_a_snapshot_knows_all_of_it(sends, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sent_messages, "_ROWS_PER_SLICE", rows)
        sent = SentMessages()
        for txn_id, each in sends:
            sent.note(txn_id, each)
        copy = again(sent)
        assert columns_of(copy) == columns_of(sent)
        assert copy.further == sent.further
        assert all(copy.is_repeat(txn_id, each) for txn_id, each in sends)
        assert copy.check_invariants({A, B, TxnId(0, 2)}) is None
        names = ("p", "q", "ü", "", "other")
        assert [copy.last(name) for name in names] == [sent.last(name) for name in names]


def test_a_snapshot_shows_one_moment_while_more_is_sent():
    sent = SentMessages()
    for least in range(200):
        sent.note(TxnId(0, least), header(least))
    expected, walk = columns_of(sent), sent.slices()
    for least in range(200):
        sent.note(TxnId(0, least), header(1000, name="q"))
        sent.note(TxnId(0, least), header(500))
    sent.ended(TxnId(0, 3))
    assert tuple(walk) == expected


def test_nothing_is_kept_of_transactions_that_have_ended():
    sent = SentMessages()
    for txn_id in (A, B):
        for name in ("p", "q", "r"):
            sent.note(txn_id, header(4, name=name))
    assert sent.further == 4
    sent.ended(A)
    assert not sent.is_repeat(A, header(4))
    assert [sent.last(name) for name in ("p", "q", "r")] == [4, 4, 4]
    sent.ended(B)
    sent.ended(B)
    assert (sent.further, sent.last("p"), columns_of(sent)) == (0, -1, ())
    assert sent.check_invariants(()) is None


def test_one_producer_of_each_transaction_always_has_room_and_others_are_counted(monkeypatch):
    monkeypatch.setattr(sent_messages, "MAX_FURTHER_PRODUCERS", 2)
    sent = SentMessages()
    for name in ("first", "second", "third"):
        sent.check_room(A, header(0, name=name))
        sent.note(A, header(0, name=name))
    with pytest.raises(Refusal, match="2 producers beside") as refused:
        sent.check_room(A, header(0, name="fourth"))
    assert refused.value.code is ServerError.TooManyRequests
    sent.check_room(A, header(1, name="third"))
    sent.check_room(B, header(0, name="fourth"))


def test_slices_of_many_producers_are_small():
    sent = SentMessages()
    for number in range(20_000):
        sent.note(TxnId(0, number % 50), header(number, name=f"{number}-" + "n" * 200))
    assert max(map(len, columns_of(sent))) <= SLICE_BYTES
    assert columns_of(again(sent)) == columns_of(sent)


@pytest.mark.parametrize("factory", [TopicTransactionBuffer, HalfTopicTransactionBuffer])
@pytest.mark.parametrize("damage", [lambda part: part[:-9], lambda part: part[:2], lambda part: part[:2] + part[11:]])
def test_a_damaged_slice_says_so(factory, damage):
    buffer = factory("t", marker)
    buffer.apply(buffer.logs[0], (1, 0), TopicRecord(header(1), b"data"))
    *others, sent = state_of(buffer)
    assert sent[1:2] == b"S"
    with pytest.raises(WireError):
        restored(factory("t", marker), (*others, damage(sent)))
    with pytest.raises(WireError):
        restored(factory("t", marker), (sent,))


def test_a_half_record_knows_the_number_of_its_chunk():
    decoded = records.decode(records.encode(TopicRecord(header(3, chunk=(1, 3)), b"part")))
    assert decoded.header.hints == DispatchHints(None, b"", 1, 3)
    assert (decoded.header.sequence_id, decoded.header.producer_name, decoded.data) == (3, "p", b"part")
    later = TopicRecord(EntryHeader("p", 3, 3, 0, A, hints=DispatchHints(77)), b"data")
    assert records.encode(later)[0] == 1, "as before, so that an older version reads it"
    with pytest.raises(WireError, match="not a record"):
        records.decode(records.encode(TopicRecord(header(3, chunk=(1, 3)), b""))[:56])


@pytest.mark.parametrize("factory", [TopicTransactionBuffer, HalfTopicTransactionBuffer])
def test_invariants_find_ids_of_a_transaction_that_is_not_open(factory):
    buffer = factory("t", marker)
    buffer._sent.note(B, header(1))
    with pytest.raises(AssertionError, match="not open"):
        buffer.check_invariants()


@pytest.mark.parametrize(
    ("broken", "found"), [("SentIds.check_invariants", "no ranges"), ("_Senders.names", "producers of open transactions")]
)
def test_invariants_find_ids_that_are_no_ranges_and_producers_that_are_not_counted(monkeypatch, broken, found):
    sent = SentMessages()
    sent.note(A, header(1))
    assert sent.check_invariants({A}) is None
    monkeypatch.setattr(f"pulsar_txn.rm_producer.sent_messages.{broken}", lambda _: ())
    assert found in sent.check_invariants({A})
