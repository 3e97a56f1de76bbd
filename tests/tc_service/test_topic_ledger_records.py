"""What stands in a log's topic, and what is made of it: hostile bytes, frames that come twice, leaders that were sent away."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn.ledger.protocols import LogDamaged, StoreTooNew, VersionConflict
from pulsar_txn.tc_service.topic_ledger import metadata
from pulsar_txn.tc_service.topic_ledger.frames import Frame, Kind, LogFold, NotAFrame, Record, decode, encode, end_of_snapshot
from pulsar_txn.tc_service.topic_ledger.metadata import ANY_VERSION, Catchup, Item, MetadataFold, Op, Operation, end_data
from pulsar_txn.wire import checksums
from pulsar_txn.wire.ids import Position

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.lists(st.builds(Record, st.integers(1, 6), U64, st.binary(max_size=40)), max_size=5)
FRAMES = st.builds(Frame, U64, U64, U64, U64, U64, RECORDS)
OPERATIONS = st.builds(
    Operation,
    st.integers(1, 6),
    st.binary(min_size=8, max_size=8),
    U64,
    st.integers(-2, 2**62),
    st.text(max_size=20),
    st.binary(),
)


@given(FRAMES)
def test_a_frame_is_read_as_it_was_written(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(FRAMES, st.integers(0), st.integers(1, 255))
def test_a_frame_with_another_byte_is_none(frame: Frame, place: int, change: int) -> None:
    damaged = bytearray(encode(frame))
    damaged[place % len(damaged)] ^= change
    with pytest.raises(NotAFrame):
        decode(bytes(damaged))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (decode, metadata.decode, lambda part: list(metadata.decode_items(part))):
        try:
            read(data)
        except NotAFrame:
            continue


@given(FRAMES, st.integers(1, 200))
def test_a_frame_that_ends_early_is_none(frame: Frame, cut: int) -> None:
    with pytest.raises(NotAFrame):
        decode(encode(frame)[:-cut])


def test_a_record_that_is_longer_than_its_frame_is_refused_though_the_checksum_is_right() -> None:
    good = encode(Frame(1, 1, 0, 0, 0, (Record(Kind.ENTRY, 0, b"data"),)))
    head, body = good[:45], good[49:-1]
    with pytest.raises(NotAFrame, match="4 bytes where 3 are left"):
        decode(head + struct.pack(">I", checksums.crc32c(body, checksums.crc32c(head))) + body)


def test_a_frame_of_a_later_version_is_refused_with_a_sentence() -> None:
    good = bytearray(encode(Frame(1, 1, 0, 0, 0, ())))
    good[4] = 2
    good[45:49] = struct.pack(">I", checksums.crc32c(bytes(good[:45])))
    with pytest.raises(StoreTooNew, match="newer pulsar-txn"):
        decode(bytes(good))


@given(OPERATIONS)
def test_an_operation_is_read_as_it_was_written(operation: Operation) -> None:
    assert metadata.decode(metadata.encode(operation)) == operation


@given(OPERATIONS, st.integers(0), st.integers(1, 255))
def test_an_operation_with_another_byte_is_none(operation: Operation, place: int, change: int) -> None:
    damaged = bytearray(metadata.encode(operation))
    damaged[place % len(damaged)] ^= change
    with pytest.raises(NotAFrame):
        metadata.decode(bytes(damaged))


@given(st.lists(st.builds(Item, st.sampled_from([b"V", b"C", b"W"]), st.binary(max_size=9), st.binary(max_size=90), U64)))
def test_items_of_a_snapshot_come_back_whatever_the_parts_are(items: list[Item]) -> None:
    parts = list(metadata.encode_items(items, 100))
    assert [item for part in parts for item in metadata.decode_items(part)] == items


# ---- a topic, and what a reader makes of it


class Topic:
    """A topic with leaders, as brokers store it: `messages` are (place, producer, payload)."""

    def __init__(self) -> None:
        self.messages: list[tuple[Position, str, bytes]] = []

    def add(self, producer: str, payload: bytes) -> Position:
        where = (7, len(self.messages))
        self.messages.append((where, producer, payload))
        return where

    def fold(self, start: int = 0) -> LogFold:
        fold = LogFold("log", 1)
        for where, producer, payload in self.messages[start:]:
            fold.take(where, producer, payload)
        return fold


class Leader:
    """Writes frames as a leader does."""

    def __init__(self, topic: Topic, name: str, epoch: int, before: LogFold | None = None) -> None:
        self.topic, self.name, self.epoch, self.sequence = topic, name, epoch, 0
        self.next_entry = 0 if before is None else before.next_entry or 0
        self.first_entry = 0 if before is None else before.first_entry
        self.snapshot = 0 if before is None or before.snapshot is None else before.snapshot.number
        self.numbers = 0 if before is None else before.snapshot_number
        self.write(Record(Kind.CLAIM, 0, f"pulsar://{name}".encode()))

    def frame(self, *records: Record) -> bytes:
        frame = Frame(self.epoch, self.sequence, self.next_entry, self.first_entry, self.snapshot, records)
        self.sequence += 1
        self.next_entry += sum(record.kind == Kind.ENTRY for record in records)
        return encode(frame)

    def write(self, *records: Record) -> bytes:
        payload = self.frame(*records)
        self.topic.add(self.name, payload)
        return payload

    def append(self, *data: bytes) -> bytes:
        return self.write(*(Record(Kind.ENTRY, 0, each) for each in data))

    def put_snapshot(self, *parts: bytes) -> None:
        self.numbers += 1
        for part in parts:
            self.write(Record(Kind.PART, self.numbers, part))
        self.snapshot = self.numbers
        self.write(end_of_snapshot(self.numbers, self.next_entry - 1, len(parts)))


def readable(fold: LogFold) -> list[bytes | None]:
    fold.check_whole()
    return [fold.entries[entry] for entry in range(fold.first_entry, fold.next_entry or 0)]


def test_only_frames_of_the_last_claim_count() -> None:
    topic = Topic()
    old = Leader(topic, "old", 3)
    old.append(b"1", b"2")
    new = Leader(topic, "new", 4, topic.fold())
    topic.add("old", old.frame(Record(Kind.ENTRY, 0, b"too late")))
    topic.add("else", encode(Frame(4, 1, 2, 0, 0, (Record(Kind.ENTRY, 0, b"of a shared producer"),))))
    topic.add("else", encode(Frame(9, 1, 2, 0, 0, (Record(Kind.ENTRY, 0, b"an epoch without a claim"),))))
    topic.add("else", b"not ours at all")
    new.append(b"3")
    fold = topic.fold()
    assert (readable(fold), fold.leader, fold.epoch, fold.strange) == ([b"1", b"2", b"3"], "pulsar://new", 4, 4)


def test_a_log_is_read_from_a_place_where_a_former_leader_goes_on() -> None:
    """Named after a log that nobody could open: its first message there was of a leader that had been sent away."""
    topic = Topic()
    old = Leader(topic, "old", 3)
    old.append(b"1", b"2")
    new = Leader(topic, "new", 4, topic.fold())
    start = len(topic.messages)
    old.append(b"too late", b"also too late")
    new.first_entry = 2
    new.append(b"3")
    old.append(b"much too late")
    new.put_snapshot(b"part")
    new.append(b"4")
    fold = topic.fold(start)
    assert (readable(fold), fold.next_entry, fold.epoch, fold.producer) == ([b"3", b"4"], 4, 4, "new")
    assert fold.snapshot is not None
    assert fold.bytes == 2
    assert fold.drop() == (7, start)


def test_a_frame_that_comes_twice_counts_once() -> None:
    topic = Topic()
    leader = Leader(topic, "a", 1)
    sent = [leader.append(b"%d" % number) for number in range(4)]
    for payload in sent[2:]:
        topic.add("a", payload)
    leader.append(b"4")
    assert readable(topic.fold()) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_missing_or_wrong_is_damage_with_its_position() -> None:
    topic = Topic()
    leader = Leader(topic, "a", 1)
    leader.append(b"0")
    leader.frame(Record(Kind.ENTRY, 0, b"lost"))
    leader.append(b"2")
    with pytest.raises(LogDamaged, match="is frame 3 of epoch 1, after 1") as caught:
        topic.fold()
    assert caught.value.position == (1, 1)
    topic.messages.pop()
    topic.add("a", b"PTXL, and not the rest")
    with pytest.raises(LogDamaged, match="does not begin as a frame"):
        topic.fold()


def test_a_topic_that_lost_its_beginning_is_damage() -> None:
    topic = Topic()
    leader = Leader(topic, "a", 1)
    leader.append(b"0")
    leader.append(b"1")
    with pytest.raises(LogDamaged, match=r"\(1, 0\)"):
        topic.fold(2).check_whole()
    leader.first_entry = 2
    leader.put_snapshot(b"part", b"part")
    leader.append(b"2")
    with pytest.raises(LogDamaged, match="its snapshot 1 is not in the topic"):
        topic.fold(4).check_whole()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_reader_sees_the_same_log_from_every_place_that_was_given_up_to(seed: int) -> None:
    """Random leaders, snapshots, trims, resends, strangers, and former leaders that go on."""
    rng = random.Random(seed)
    topic, expected = Topic(), list[bytes]()
    leader = Leader(topic, "leader-0", 0)
    former: list[Leader] = []
    places: list[Position | None] = [None]
    for step in range(rng.randrange(60)):
        action = rng.randrange(10)
        if rng.random() < 0.2:
            places.append(topic.fold().drop())
        if action == 9 and former:
            for _ in range(rng.randint(1, 3)):
                rng.choice(former[-2:]).append(b"too late")
        elif action == 0:
            former.append(leader)
            leader = Leader(topic, f"leader-{step + 1}", leader.epoch + 1, topic.fold())
        elif action == 1 and expected:
            leader.first_entry = leader.next_entry - rng.randrange(len(expected) + 1)
            del expected[: len(expected) - (leader.next_entry - leader.first_entry)]
            leader.write()
        elif action == 2:
            leader.put_snapshot(*[b"part %d" % step] * rng.randrange(4))
        elif action == 3:
            leader.write(Record(Kind.PART, leader.numbers + 1, b"never finished"))
            leader.numbers += 1
        elif action == 4 and leader.sequence > 1:
            topic.messages.append(((7, len(topic.messages)), *topic.messages[-1][1:]))
        elif action == 5:
            topic.add("stranger", rng.randbytes(rng.randrange(80)))
        else:
            some = [b"entry %d" % rng.randrange(1 << 20) for _ in range(rng.randrange(3))]
            leader.append(*some)
            expected += some
    whole = topic.fold()
    assert readable(whole) == expected
    for where in {rng.choice(places), topic.fold().drop()}:
        part = topic.fold(0 if where is None else where[1] + 1)
        assert (readable(part), part.next_entry, part.epoch) == (expected, whole.next_entry, whole.epoch)
        assert (part.snapshot and part.snapshot[1:]) == (whole.snapshot and whole.snapshot[1:])


# ---- metadata


class Writers:
    """Operations of several writers, in the order of a topic."""

    def __init__(self) -> None:
        self.topic: list[tuple[Position, Operation]] = []
        self._sequences = {b"writer-a": 0, b"writer-b": 0}

    def write(self, writer: bytes, op: Op, path: str = "", data: bytes = b"", expected: int = ANY_VERSION) -> Operation:
        number = self._sequences[writer]
        self._sequences[writer] += 1
        operation = Operation(op, writer, number, expected, path, data)
        self.topic.append(((3, len(self.topic)), operation))
        return operation

    def live(self) -> MetadataFold:
        """What an instance knows that was there from the start."""
        fold = MetadataFold()
        for _, operation in self.topic:
            if operation.kind in (Op.PUT, Op.DELETE, Op.INCREMENT) and fold.is_new(operation):
                fold.apply(operation)
        return fold

    def late(self, start: int = 0) -> MetadataFold:
        """What one knows that reads the topic from `start` on."""
        fold, catchup = MetadataFold(), Catchup("metadata")
        for where, operation in self.topic[start:]:
            catchup.take(where, operation)
        catchup.finish(fold, was_trimmed=start > 0)
        return fold


def of(fold: MetadataFold) -> tuple[object, object]:
    return fold.values, fold.counters


def test_the_order_in_the_topic_says_who_has_won() -> None:
    writers, fold = Writers(), MetadataFold()
    first = writers.write(b"writer-a", Op.PUT, "/x", b"a", -1)
    second = writers.write(b"writer-b", Op.PUT, "/x", b"b", -1)
    assert fold.apply(first) == 0
    refused = fold.apply(second)
    assert isinstance(refused, VersionConflict)
    assert "found version 0" in str(refused)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_whoever_comes_late_knows_the_same_metadata(seed: int) -> None:
    rng, writers = random.Random(seed), Writers()
    starts = [0]
    for _ in range(rng.randrange(40)):
        writer = rng.choice([b"writer-a", b"writer-b"])
        action = rng.randrange(8)
        if action == 0 and writers.topic:
            covered = len(writers.topic) - 1
            parts = list(writers.live().snapshot(30))
            for index, part in enumerate(parts):
                writers.write(writer, Op.PART, "", part, index)
                if rng.random() < 0.3:
                    writers.write(b"writer-a", Op.INCREMENT, "/between")
            if rng.random() < 0.8:
                writers.write(writer, Op.END, "", end_data((3, covered), len(parts)), 0)
                starts.append(covered + 1)
        elif action == 1 and writers.topic:
            writers.topic.append(((3, len(writers.topic)), writers.topic[-1][1]))
        else:
            op = rng.choice([Op.PUT, Op.PUT, Op.DELETE, Op.INCREMENT, Op.HELLO])
            writers.write(writer, op, rng.choice(["/a", "/b", "/c"]), rng.randbytes(9), rng.choice([ANY_VERSION, -1, 0, 1]))
    for start in (0, starts[-1]):
        assert of(writers.late(start)) == of(writers.live())


def test_metadata_without_its_beginning_and_without_a_snapshot_is_damage() -> None:
    writers = Writers()
    for op in (Op.INCREMENT, Op.INCREMENT):
        writers.write(b"writer-a", op, "/c")
    with pytest.raises(LogDamaged, match="there is no snapshot"):
        writers.late(1)
