"""Contents of the messages of a log's topic, and their fold: the log's entries, its newest snapshot, and who leads it.

A message is a frame, with a header and the records of one turn. Nothing here does IO.

    "PTXL"  version u8  epoch u64  sequence u64  next entry u64  first entry u64  snapshot u64  CRC32C u32
    records: kind u8  number u64  size u32  data

`sequence` counts the frames of one epoch, so that a frame that was sent twice is known. A frame with sequence 0 is the CLAIM of
a new leader, which has not read the log yet: its other numbers mean nothing. In all others, `next entry` is the number of the
first entry in the frame or after it, `first entry` what the log was trimmed to, and `snapshot` the newest finished snapshot.
A frame without records is a heartbeat.

Frames count only if they are of the leader: the producer and the epoch of the last CLAIM. A frame that came twice is dropped
by its number. So what a former leader, or somebody else, wrote behind a CLAIM is not in the log.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from pulsar_txn.ledger.protocols import LogDamaged, StoreTooNew
from pulsar_txn.wire import checksums
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.tc_service")

_MAGIC: Final = b"PTXL"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBQQQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">BQI")
_END: Final = struct.Struct(">qI")

HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size
RECORD_BYTES: Final = _RECORD.size
"""Bytes of a frame, and of a record in it, beside the data."""

_MOST_UNFINISHED: Final = 2
_ADVICE: Final = (
    "the topic lost what the log needs: check message TTL, backlog quota and who else produces to it or acknowledges on it"
)


class Kind(IntEnum):
    """Kind of a record. `number`: see each."""

    ENTRY = 1
    """The next entry of the log. 0."""
    PART = 2
    """A part of a snapshot. The snapshot's number."""
    END = 3
    """The end of a snapshot: what it covers, and how many parts it has. The snapshot's number."""
    KEPT = 4
    """An entry that is in the log already, once more, so that its first place can be given up. The entry's number."""
    CLAIM = 5
    """The address of the new leader. 0."""
    NOTHING = 6
    """A position that was taken to see whether we still lead; nobody reads it. The entry's number, new or kept."""


class Record(NamedTuple):
    """One record of a frame."""

    kind: int
    number: int
    data: bytes


class Frame(NamedTuple):
    """A frame, decoded or about to be sent."""

    epoch: int
    sequence: int
    next_entry: int
    first_entry: int
    snapshot: int
    records: Sequence[Record]

    @property
    def is_claim(self) -> bool:
        """True if a leader begins with it."""
        return self.sequence == 0


class NotAFrame(Exception):  # noqa: N818 - named by what it is
    """Bytes that are no frame, or a damaged one."""


def encode(frame: Frame) -> bytes:
    """The payload of a message."""
    head = _HEAD.pack(_MAGIC, _VERSION, *frame[:5])
    pieces = []
    for kind, number, data in frame.records:
        pieces.append(_RECORD.pack(kind, number, len(data)))
        pieces.append(data)
    body = b"".join(pieces)
    return head + _CHECKSUM.pack(checksums.crc32c(body, checksums.crc32c(head))) + body


def decode(payload: bytes | memoryview) -> Frame:
    """The frame of a payload. NotAFrame; StoreTooNew for one of a later version."""
    data = bytes(payload)
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        raise NotAFrame("the payload does not begin as a frame does")
    _, version, *numbers = _HEAD.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if checksum != checksums.crc32c(memoryview(data)[HEADER_BYTES:], checksums.crc32c(data[: _HEAD.size])):
        raise NotAFrame("its checksum is wrong")
    if version != _VERSION:
        raise StoreTooNew(f"a frame of version {version} was written by a newer pulsar-txn; this one reads {_VERSION}")
    epoch, sequence, next_entry, first_entry, snapshot = numbers
    return Frame(epoch, sequence, next_entry, first_entry, snapshot, _records(data))


def _records(data: bytes) -> list[Record]:
    found, at, end = [], HEADER_BYTES, len(data)
    while at < end:
        if at + _RECORD.size > end:
            raise NotAFrame(f"{end - at} bytes at its end are no record")
        kind, number, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + size > end:
            raise NotAFrame(f"a record of {size} bytes where {end - at} are left")
        found.append(Record(kind, number, data[at : at + size]))
        at += size
    return found


def end_of_snapshot(number: int, covers: int, parts: int) -> Record:
    """The record that makes a snapshot the newest one."""
    return Record(Kind.END, number, _END.pack(covers, parts))


def read_end(record: Record) -> tuple[int, int]:
    """Last entry that a snapshot covers (its number), and the number of its parts. NotAFrame."""
    if len(record.data) != _END.size:
        raise NotAFrame("the end of a snapshot has another size")
    covers, parts = _END.unpack(record.data)
    return covers, parts


class StoredSnapshot(NamedTuple):
    """A finished snapshot: its number, the last entry that it covers, its parts."""

    number: int
    covers: int
    parts: tuple[bytes, ...]


class _Mark(NamedTuple):
    ordinal: int
    where: Position


class LogFold:
    """One log, as far as its topic was read. `name` and `ledger_id` are for its positions.

    `entries` holds None for positions that were taken for nothing. `next_entry` is None as long as no frame has said it.
    `epoch` is -1 before the first frame; `leader` is the address in the last CLAIM, `producer` the name of its producer.
    `frames` counts those that were applied, `strange` messages that are not of the log.
    """

    def __init__(self, name: str, ledger_id: int) -> None:
        self.name = name
        self.ledger_id = ledger_id
        self.entries: dict[int, bytes | None] = {}
        self.bytes = 0
        self.first_entry = 0
        self.next_entry: int | None = None
        self.snapshot: StoredSnapshot | None = None
        self.snapshot_number = 0
        self.epoch = -1
        self.sequence = -1
        self.producer = ""
        self.leader: str | None = None
        self.strange = 0
        self._claimed = False
        self._promised_snapshot = 0
        self.frames = 0
        self._numbered_at = 0
        self._at: dict[int, int] = {}
        self._snapshot_at = 0
        self._unfinished: dict[int, tuple[int, list[bytes]]] = {}
        self._marks: deque[_Mark] = deque()

    # ---- reading

    def take(self, where: Position, producer: str, payload: bytes | memoryview) -> bool:
        """A message of the topic; whether it is a new frame of the leader. LogDamaged, StoreTooNew."""
        try:
            frame = decode(payload)
        except NotAFrame as error:
            if producer and producer == self.producer:
                raise LogDamaged(self.name, self._position(), f"message {where}: {error}", _ADVICE) from None
            return self._is_strange(where, producer, str(error))
        if not self._is_of_leader(frame, producer):
            return self._is_strange(where, producer, f"epoch {frame.epoch}, where {self.producer} leads in {self.epoch}")
        if frame.epoch == self.epoch:
            if frame.sequence <= self.sequence:
                return False
            if frame.sequence != self.sequence + 1:
                lost = f"message {where} is frame {frame.sequence} of epoch {frame.epoch}, after {self.sequence}"
                raise LogDamaged(self.name, self._position(), lost, _ADVICE)
        elif not frame.is_claim and self.epoch >= 0:
            self._start_over()  # its CLAIM is before the first message here, so what came was of leaders sent away by then
        self.apply(frame, where, producer)
        return True

    def _is_of_leader(self, frame: Frame, producer: str) -> bool:
        if frame.epoch > self.epoch:
            return frame.is_claim or not self._claimed
        return frame.epoch == self.epoch and producer == self.producer

    def _start_over(self) -> None:
        self.entries, self._at, self.bytes = {}, {}, 0
        self.first_entry, self.next_entry = 0, None
        self.snapshot, self.snapshot_number, self._promised_snapshot = None, 0, 0

    def _is_strange(self, where: Position, producer: str, why: str) -> bool:
        self.strange += 1
        if self.strange & (self.strange - 1) == 0:  # the first, the second, the fourth…
            logger.warning(
                "log %r: message %s of producer %r is no record of it and is ignored: %s", self.name, where, producer, why
            )
        return False

    # ---- applying

    def apply(self, frame: Frame, where: Position, producer: str) -> None:
        """A frame that counts: the next one of the leader."""
        self.frames += 1
        self._marks.append(_Mark(self.frames, where))
        if frame.epoch != self.epoch:
            self.epoch, self.producer = frame.epoch, producer
            self._unfinished.clear()
        self.sequence = frame.sequence
        if frame.is_claim:
            self._claimed = True
            self.leader = next((str(each.data, "utf-8", "replace") for each in frame.records if each.kind == Kind.CLAIM), None)
            return
        if self.next_entry is not None and frame.next_entry != self.next_entry:
            lost = f"the next entry is said to be {frame.next_entry}, and should be {self.next_entry}"
            raise LogDamaged(self.name, self._position(), lost, _ADVICE)
        self.next_entry = frame.next_entry
        self._numbered_at = self.frames
        self._promised_snapshot = frame.snapshot
        self.snapshot_number = max(self.snapshot_number, frame.snapshot)
        self._trim(frame.first_entry)
        for record in frame.records:
            self._record(record)

    def _record(self, record: Record) -> None:
        assert self.next_entry is not None  # noqa: S101 - every frame with records says it
        if record.kind == Kind.ENTRY:
            self._keep(self.next_entry, record.data)
            self.next_entry += 1
        elif record.kind == Kind.KEPT:
            self._keep(record.number, record.data)
        elif record.kind == Kind.NOTHING:
            self._keep(record.number, None)
            self.next_entry += record.number == self.next_entry
        elif record.kind == Kind.PART:
            self._part(record)
        elif record.kind == Kind.END:
            self._finished(record)

    def _keep(self, entry: int, data: bytes | None) -> None:
        if entry >= self.first_entry:  # one may be trimmed in the turn in which it was appended
            self.bytes += len(data or b"") - len(self.entries.get(entry) or b"")
            self.entries[entry] = data
            self._at[entry] = self.frames

    def _trim(self, first: int) -> None:
        gone: Iterable[int] = range(self.first_entry, first)
        if first - self.first_entry > len(self.entries):
            gone = [entry for entry in self.entries if entry < first]
        for entry in gone:
            if entry in self.entries:
                self.bytes -= len(self.entries.pop(entry) or b"")
                del self._at[entry]
        self.first_entry = max(self.first_entry, first)

    def _part(self, record: Record) -> None:
        self.snapshot_number = max(self.snapshot_number, record.number)
        if record.number not in self._unfinished:
            while len(self._unfinished) >= _MOST_UNFINISHED:
                del self._unfinished[min(self._unfinished)]
            self._unfinished[record.number] = (self.frames, [])
        self._unfinished[record.number][1].append(record.data)

    def _finished(self, record: Record) -> None:
        try:
            covers, count = read_end(record)
        except NotAFrame as error:
            raise LogDamaged(self.name, self._position(), str(error), _ADVICE) from None
        self.snapshot_number = max(self.snapshot_number, record.number)
        begun, parts = self._unfinished.pop(record.number, (self.frames, []))
        if len(parts) == count:  # else its beginning was trimmed away, because a later one is in the log
            self.snapshot = StoredSnapshot(record.number, covers, tuple(parts))
            self._snapshot_at = begun

    def forget_snapshot(self, number: int) -> None:
        """This snapshot will not be finished."""
        self._unfinished.pop(number, None)

    # ---- what is there

    def check_whole(self) -> None:
        """LogDamaged when an entry, or the newest snapshot, is missing. Once the log was read up to its end."""
        for entry in range(self.first_entry, self.next_entry or 0):
            if entry not in self.entries:
                raise LogDamaged(self.name, (self.ledger_id, entry), "the entry is not in the topic any more", _ADVICE)
        found = 0 if self.snapshot is None else self.snapshot.number
        if found != self._promised_snapshot:
            missing = f"its snapshot {self._promised_snapshot} is not in the topic any more"
            raise LogDamaged(self.name, self._position(), missing, _ADVICE)

    @property
    def frame_count(self) -> int:
        """Frames in the topic that were not given up yet."""
        return len(self._marks)

    @property
    def live_bytes(self) -> int:
        """Bytes of the log that are still needed: entries and snapshot."""
        return self.bytes + (0 if self.snapshot is None else sum(map(len, self.snapshot.parts)))

    def droppable(self) -> int:
        """Number of the oldest frames that nobody needs."""
        needed = self._needed_from()
        return 0 if not self._marks else max(0, min(len(self._marks), needed - self._marks[0].ordinal))

    def drop(self) -> Position | None:
        """Forget those frames: everything up to the message that is returned may be acknowledged. None: nothing."""
        where = None
        for _ in range(self.droppable()):
            where = self._marks.popleft().where
        return where

    def _needed_from(self) -> int:
        needed = [self._numbered_at, *(begun for begun, _ in self._unfinished.values())]
        if self.snapshot is not None:
            needed.append(self._snapshot_at)
        first = self._at.get(self.first_entry)
        if first is not None:
            needed.append(first)
        return min(needed)

    def _position(self) -> Position | None:
        return None if self.next_entry is None else (self.ledger_id, self.next_entry)
