"""What open transactions have got: against a plain set, with its limits, and through its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.rm_producer import HalfTopicTransactionBuffer, TopicRecord, TopicTransactionBuffer, sent_ids, sent_messages
from pulsar_txn.rm_producer.half import records
from pulsar_txn.rm_producer.sent_ids import MAX_CHUNKED, SentIds
from pulsar_txn.rm_producer.sent_messages import SentMessages
from pulsar_txn.rm_producer.snapshots import pack_columns
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, MarkerType, TxnId

A, B = TxnId(0, 1), TxnId(1, 1)


def header(sequence_id, last=None, name="p", chunk=None, txn_id=A, checksum=1):
    hints = None if chunk is None else DispatchHints(None, b"uuid", *chunk)
    return EntryHeader(name, sequence_id, sequence_id if last is None else last, 0, txn_id, hints=hints, checksum=checksum)


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


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.integers(1, 3)), max_size=40))
def test_an_entry_is_known_by_its_ids_and_its_checksum(batches):
    ids, sent = SentIds(), {}
    for first, more, checksum in batches:
        last = first + more
        known = sent.get((first, last), set())
        assert ids.is_repeat(first, last, checksum) is (True if checksum in known else None if known else False)
        ids.note(first, last, checksum)
        sent.setdefault((first, last), set()).add(checksum)
        assert ids.check_invariants()
    assert all(ids.is_repeat(*each, checksum) for each, known in sent.items() for checksum in known)


@pytest.mark.parametrize("step", [2, -2])
def test_between_many_gaps_nothing_is_taken_for_sent_and_memory_is_bounded(monkeypatch, step):
    monkeypatch.setattr(sent_ids, "MAX_ENTRIES", 500)
    monkeypatch.setattr(sent_ids, "MAX_RANGES", 2000)
    ids = SentIds()
    used = range(0, 2000, 2)[:: step // 2]
    for each in used:
        assert ids.is_repeat(each, each, 1) is False
        ids.note(each, each, 1)
        assert ids.check_invariants()
    assert not any(ids.is_repeat(each + 1, each + 1, 1) for each in used), "what lies between was not sent"
    highest = sorted(used)[-200:]
    assert all(ids.is_repeat(each, each, 1) and ids.is_repeat(each, each, 2) is None for each in highest)
    assert all(ids.is_repeat(each, each, 1) in (True, None) for each in used), "nobody knows: it is not answered as if one did"
    _, entries, _ = ids.image()
    assert len(entries) <= 3 * 500
    monkeypatch.setattr(sent_ids, "MAX_RANGES", 10)
    for each in range(5000, 7000, 2):
        ids.note(each, each, 1)
    assert len(ids.image()[0]) == 2 * 10
    assert ids.is_repeat(1, 1, 1) is None, "between the lowest ranges nobody knows any more"


def test_ids_without_gaps_take_hardly_more_than_their_newest_entries(monkeypatch):
    monkeypatch.setattr(sent_ids, "MAX_ENTRIES", 100)
    ids = SentIds()
    for each in range(1000):
        ids.note(each, each, 1)
    ranges, entries, _ = ids.image()
    assert ranges == (0, entries[0] - 1)
    assert len(entries) <= 3 * 100


def test_chunks_of_a_message_share_its_id_and_count_one_by_one():
    sent = SentMessages()
    for chunk in range(3):
        assert not sent.is_repeat(A, header(7, chunk=(chunk, 3), checksum=chunk + 1))
        sent.note(A, header(7, chunk=(chunk, 3), checksum=chunk + 1))
        assert sent.is_repeat(A, header(7, chunk=(chunk, 3), checksum=chunk + 1))
        assert sent.is_repeat(A, header(7, chunk=(0, 3), checksum=1))
        with pytest.raises(Refusal, match="another message"):
            sent.is_repeat(A, header(7, chunk=(chunk, 3), checksum=9))
    with pytest.raises(Refusal, match="another message"):
        sent.is_repeat(A, header(7, checksum=8))
    assert not sent.is_repeat(A, header(8, chunk=(0, 2)))
    assert sent.last("p") == 7


def test_messages_that_never_come_whole_take_bounded_memory():
    ids = SentIds()
    for sequence_id in range(1000):
        ids.note_chunk(sequence_id, 1, 0, 3)
    assert len(ids.image()[2]) == MAX_CHUNKED
    assert ids.is_repeat(999, 999, 1, 0)
    assert ids.is_repeat(999, 999, 2, 1) is False
    assert ids.is_repeat(0, 0, 2, 1) is None, "nobody knows which chunks of it came"


def test_an_entry_without_a_checksum_is_no_proof_of_a_repeat():
    sent = SentMessages()
    sent.note(A, header(7, checksum=0))
    with pytest.raises(Refusal) as refused:
        sent.is_repeat(A, header(7, checksum=0))
    assert refused.value.code is ServerError.NotAllowedError


def test_a_snapshot_of_an_earlier_version_is_read_and_its_ids_prove_no_repeat():
    """Version 3 had ranges and chunks only."""
    columns = [[0], [1], [1], [*b"p"], [4], [3, 9], [5, 12], [1], [20], [1]]
    sent = SentMessages()
    sent.restore(pack_columns(columns), 0)
    assert sent.last("p") == 20
    for known in (header(4), header(9, 12), header(20, chunk=(1, 3))):
        with pytest.raises(Refusal):
            sent.is_repeat(A, known)
    for unknown in (header(6), header(13), header(20, chunk=(2, 3)), header(4, name="q")):
        assert not sent.is_repeat(A, unknown)


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
    ("broken", "found"), [("SentIds.check_invariants", "out of order"), ("_Senders.names", "producers of open transactions")]
)
def test_invariants_find_ids_that_are_no_ranges_and_producers_that_are_not_counted(monkeypatch, broken, found):
    sent = SentMessages()
    sent.note(A, header(1))
    assert sent.check_invariants({A}) is None
    monkeypatch.setattr(f"pulsar_txn.rm_producer.sent_messages.{broken}", lambda _: ())
    assert found in sent.check_invariants({A})
