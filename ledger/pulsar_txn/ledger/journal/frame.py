"""Frames: the form of a commit group in a segment, with its entries and its records. Pure.

    header     magic, store uuid, segment number, sequence, flags, length, directory length, runs, two checksums (64 bytes)
    directory  per run: ledger, first entry, count, kind, where its tables and its data are, how long it is
               per run its tables: lengths and CRCs of its entries
               the records: everything that is not an entry
    data       the entries, run after run

Frames begin at multiples of 4096 bytes: no page and no physical sector that holds confirmed bytes is ever written again,
so a torn write cannot reach them. Everything little endian. The directory has a CRC32C of its own beside the one over
the whole frame, so that damaged data can be told from an unknown frame.

An entry's CRC starts from a value made of its ledger, kind and entry id instead of 0. That is the CRC of (place, data)
with the place's prefix folded into the start value: bytes that are right but in a wrong place do not fit.

A record is kind u8 · number u64 · key length u16 · value length u32 · key · value. The last value wins; a checkpoint holds
all of them, in slices.

| kind         | number          | key  | value                                                 |
|--------------|-----------------|------|-------------------------------------------------------|
| LOG          | ledger id       | name | epoch, first entry, next entry, newest serial, and of |
|              |                 |      | the snapshot: first serial (0: none), parts, covers   |
| LOG_GONE     | ledger id       |      |                                                       |
| CURSOR       | cursor id       | name | ledger id, base of the cursor state                   |
| OLD_CURSOR   | cursor id       | name | the same of format 1                                  |
| CURSOR_PIECE | cursor id       |      | the next piece of a cursor too large for one slice    |
| CHANGE       | cursor id       |      | changes since the last group                          |
| CURSOR_GONE  | cursor id       |      |                                                       |
| META         | version         | path | data                                                  |
| META_GONE    |                 | path |                                                       |
| COUNTER      | next value      | path |                                                       |
| SEGMENT_LIVE | segment number  |      | (checkpoints only) the segment is needed              |
| SEGMENT_GONE | segment number  |      | nothing in the segment is needed any more             |
| IDS          | next ledger id  |      | next cursor id                                        |
| REPLAY_FROM  | segment number  |      | the newest complete checkpoint begins there           |
| SEGMENT_SIZE | bytes           |      | (first frames only) how long the segment's file is    |
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from pulsar_txn.ledger.protocols import Buffer

MAGIC: Final = b"PTJ1"
ALIGNMENT: Final = 4096
HEADER: Final = struct.Struct("<4s16sQQIIIIII4x")
RUN: Final = struct.Struct("<QqIIIII4x")
_COVERED: Final = 48  # of the header: uuid to runs, after the magic

CHECKPOINT, SEAL, CLOSE, SLICED, COMPLETE = 1, 2, 4, 8, 16
"""Frame flags: a checkpoint begins, at a segment's start; a segment's index, at its end; a clean shutdown.

A CHECKPOINT is the whole state, unless it is SLICED as well: the rest follows in later frames, the last of which is COMPLETE.
The first frame of a segment without a whole state, and a COMPLETE one, have a record that says where replay begins.
"""

DATA, SNAPSHOT, COPY = 0, 1, 2
"""Run kinds; COPY is added to the kind of a run that was copied forward."""

_PLACE: Final = struct.Struct("<QI")


def crc_seed(ledger_id: int, kind: int) -> int:
    """Return what the start value of a ledger's entry checksums is made of."""
    return int(crc32c(_PLACE.pack(ledger_id, kind & ~COPY))) ^ 0x5BD1E995


def entry_crc(seed: int, entry: int, data: Buffer) -> int:
    """The checksum of an entry at its place."""
    return int(crc32c(data, (seed ^ entry ^ (entry >> 32)) & 0xFFFFFFFF))


class Run:
    """Entries of one log in a row, on their way into a frame. `JournalLog.append` adds to it."""

    __slots__ = ("bytes", "count", "crcs", "data", "first", "kind", "ledger_id", "lengths", "old_location", "owner")

    def __init__(self, owner: object, ledger_id: int, first: int, kind: int = DATA, old_location: int = -1) -> None:
        self.owner = owner
        self.ledger_id = ledger_id
        self.first = first
        self.kind = kind
        self.crcs: list[int] = []
        self.data: list[Buffer] = []
        self.lengths: list[int] = []
        self.bytes = 0
        self.count = 0
        self.old_location = old_location

    def add_all(self, data: Iterable[Buffer], lengths: Iterable[int], crcs: Iterable[int]) -> None:
        """Entries that came together."""
        more = list(lengths)
        self.data.extend(data)
        self.lengths.extend(more)
        self.crcs.extend(crcs)
        self.count += len(more)
        self.bytes += sum(more)


class FrameHeader(NamedTuple):
    """A header that fits its store and segment."""

    sequence: int
    flags: int
    length: int
    directory_length: int
    runs: int
    directory_crc: int
    frame_crc: int


def aligned(size: int) -> int:
    """`size` rounded up to where the next frame begins."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def frame_size(runs: list[Run], records_bytes: int) -> int:
    """The size of a frame before it is encoded."""
    size = HEADER.size + records_bytes + RUN.size * len(runs)
    for run in runs:
        size += 8 * run.count + run.bytes
    return size


def encode_frame(
    uuid: bytes, segment: int, sequence: int, flags: int, runs: list[Run], records: bytes
) -> tuple[list[Buffer], int]:
    """Encode a frame; return its buffers and their size in bytes. Entries of a large frame are not copied.

    The headers of the runs follow the header of the frame, in the order of `runs`.
    """
    headers: list[bytes] = []
    tables = array("I")
    data: list[Buffer] = []
    # Places in a run's header count from where that header is.
    table_at = RUN.size * len(runs)
    data_at = table_at + len(records)
    for run in runs:
        data_at += 8 * run.count
    directory_length = data_at
    for run in runs:
        headers.append(RUN.pack(run.ledger_id, run.first, run.count, run.kind, table_at, data_at, run.bytes))
        tables.extend(run.lengths)
        tables.extend(run.crcs)
        data += run.data
        table_at += 8 * run.count - RUN.size
        data_at += run.bytes - RUN.size
    directory = b"".join((*headers, tables.tobytes(), records))
    size = HEADER.size + data_at + RUN.size * len(runs)
    header = HEADER.pack(MAGIC, uuid, segment, sequence, flags, size, directory_length, len(runs), 0, 0)
    directory_crc = frame_crc = crc32c(directory, crc32c(header[4 : 4 + _COVERED]))
    if size <= SMALL_FRAME_BYTES:
        data = [b"".join(data)]
    for piece in data:
        frame_crc = crc32c(piece, frame_crc)
    header = HEADER.pack(MAGIC, uuid, segment, sequence, flags, size, directory_length, len(runs), directory_crc, frame_crc)
    return [header + directory, *data], size


def encode_filler(uuid: bytes, segment: int, sequence: int, size: int) -> bytes:
    """A frame without runs and records over `size` bytes: it takes the place of one that nobody can read."""
    header = HEADER.pack(MAGIC, uuid, segment, sequence, 0, size, 0, 0, 0, 0)
    directory_crc = crc32c(header[4 : 4 + _COVERED])
    data = bytes(size - HEADER.size)
    frame_crc = crc32c(data, directory_crc)
    return HEADER.pack(MAGIC, uuid, segment, sequence, 0, size, 0, 0, directory_crc, frame_crc) + data


SMALL_FRAME_BYTES: Final = 128 << 10
"""Frames up to here are joined and written in one call; larger ones leave the loop in slices."""


def frame_prefix(uuid: bytes) -> bytes:
    """Return what every frame of a store begins with: to look for frames after a bad one.

    Without the segment number, whose zeros would make the search slow.
    """
    return MAGIC + uuid


def read_header(buffer: Buffer, offset: int, uuid: bytes, segment: int) -> FrameHeader | None:
    """The frame header at `offset`, None if it is not one of this store and segment."""
    if offset + HEADER.size > len(buffer):
        return None
    magic, found_uuid, found_segment, *rest = HEADER.unpack_from(buffer, offset)
    if magic != MAGIC or found_uuid != uuid or found_segment != segment:
        return None
    header = FrameHeader(*rest)
    if header.length < HEADER.size + header.directory_length or offset + header.length > len(buffer):
        return None
    return header


def directory_fits(buffer: memoryview, offset: int, header: FrameHeader) -> bool:
    """True if header and directory fit their checksum."""
    start = crc32c(buffer[offset + 4 : offset + 4 + _COVERED])
    end = offset + HEADER.size + header.directory_length
    return bool(crc32c(buffer[offset + HEADER.size : end], start) == header.directory_crc)


def frame_fits(buffer: memoryview, offset: int, header: FrameHeader) -> bool:
    """True if the data after a directory that fits does so as well."""
    data_start = offset + HEADER.size + header.directory_length
    return bool(crc32c(buffer[data_start : offset + header.length], header.directory_crc) == header.frame_crc)


def read_runs(buffer: memoryview, offset: int, header: FrameHeader) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """(ledger, first, count, kind, tables at, data at, bytes) of a frame's runs; the places count from the run's header."""
    at = offset + HEADER.size
    return RUN.iter_unpack(buffer[at : at + RUN.size * header.runs])


def read_records(buffer: memoryview, offset: int, header: FrameHeader, table_entries: int) -> memoryview:
    """The records of a frame whose runs have `table_entries` entries together."""
    at = offset + HEADER.size
    return buffer[at + RUN.size * header.runs + 8 * table_entries : at + header.directory_length]


def split_run(chunk: Buffer, count: int) -> tuple[array[int], array[int]]:
    """Lengths and CRCs of a run from the bytes after its header."""
    lengths, crcs = array("I"), array("I")
    lengths.frombytes(chunk[: 4 * count])
    crcs.frombytes(chunk[4 * count : 8 * count])
    return lengths, crcs


TRAILER: Final = struct.Struct("<4sIQ16sI")
_TRAILER_MAGIC: Final = b"PTJF"
_FIRST_TRAILER: Final = struct.Struct("<4sIQ16s")
_FIRST_TRAILER_MAGIC: Final = b"PTJE"


def encode_trailer(uuid: bytes, segment: int, seal_offset: int) -> bytes:
    """The last bytes of a sealed segment: where its SEAL frame is, with a checksum."""
    data = TRAILER.pack(_TRAILER_MAGIC, seal_offset, segment, uuid, 0)[: _FIRST_TRAILER.size]
    return data + struct.pack("<I", crc32c(data))


def decode_trailer(data: bytes, uuid: bytes, segment: int) -> int | None:
    """The offset of the SEAL frame, None when the segment has no trailer of this life, or it does not fit its checksum.

    Segments of format version 1 have a trailer without a checksum: the caller checks the frame it leads to.
    """
    if len(data) != TRAILER.size:
        return None
    magic, offset, found_segment, found_uuid, crc = TRAILER.unpack(data)
    if magic == _TRAILER_MAGIC and crc != crc32c(data[: _FIRST_TRAILER.size]):
        return None
    if magic != _TRAILER_MAGIC:
        magic, offset, found_segment, found_uuid = _FIRST_TRAILER.unpack(data[-_FIRST_TRAILER.size :])
        if magic != _FIRST_TRAILER_MAGIC:
            return None
    return int(offset) if (found_segment, found_uuid) == (segment, uuid) else None


LOG, LOG_GONE, OLD_CURSOR, CHANGE, CURSOR_GONE, CURSOR, CURSOR_PIECE = 1, 2, 3, 4, 5, 12, 13
META, META_GONE, COUNTER, SEGMENT_LIVE, SEGMENT_GONE, IDS, REPLAY_FROM, SEGMENT_SIZE = 6, 7, 8, 9, 10, 11, 14, 15

_RECORD: Final = struct.Struct("<BQHI")
LOG_VALUE: Final = struct.Struct("<QqqQ")
"""Before what is said of the snapshot. In format 1 it is all: the newest serial is that of a snapshot of one part."""
NUMBER: Final = struct.Struct("<Q")


def encode_record(kind: int, number: int = 0, key: bytes = b"", value: bytes = b"") -> bytes:
    """One record."""
    return _RECORD.pack(kind, number, len(key), len(value)) + key + value


def decode_records(data: Buffer) -> Iterator[tuple[int, int, str, bytes]]:
    """(kind, number, key, value) of each record; ValueError when the bytes are invalid."""
    view, at = memoryview(data), 0
    while at < len(view):
        if at + _RECORD.size > len(view):
            raise ValueError("records are cut short")
        kind, number, key_length, value_length = _RECORD.unpack_from(view, at)
        at += _RECORD.size
        key = str(view[at : at + key_length], "utf-8")
        at += key_length + value_length
        if at > len(view):
            raise ValueError("records are cut short")
        yield kind, number, key, bytes(view[at - value_length : at])
