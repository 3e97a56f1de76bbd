"""Contents of the messages of a log's topic: frames, each with a header and the records of one turn.

    "PTXL"  version u8  epoch u64  sequence u64  next entry u64  first entry u64  snapshot u64  CRC32C u32
    records: kind u8  number u64  size u32  data

`sequence` counts the frames of one epoch, so that a frame that was sent twice is known. A frame with sequence 0 is the CLAIM of
a new leader, which has not read the log yet: its other numbers mean nothing. In all others, `next entry` is the number of the
first entry in the frame or after it, `first entry` what the log was trimmed to, and `snapshot` the newest finished snapshot.
A frame without records is a beat.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from pulsar_txn.ledger.protocols import StoreTooNew
from pulsar_txn.wire import checksums

_MAGIC: Final = b"PTXL"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBQQQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">BQI")
_END: Final = struct.Struct(">qI")

HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size
RECORD_BYTES: Final = _RECORD.size
"""What a frame, and a record in it, take beside the data."""


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
    """Return what a snapshot covers (an entry's number), and how many parts it has. NotAFrame."""
    if len(record.data) != _END.size:
        raise NotAFrame("the end of a snapshot has another size")
    covers, parts = _END.unpack(record.data)
    return covers, parts
