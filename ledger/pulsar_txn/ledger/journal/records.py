"""Records of a frame: everything that is not an entry. Last value wins; a checkpoint holds all of them, in slices. Pure.

    kind u8 · number u64 · key length u16 · value length u32 · key · value

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
from collections.abc import Iterator
from typing import Final

from pulsar_txn.ledger.protocols import Buffer

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
