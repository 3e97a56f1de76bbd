"""The bytes of a topic buffer's snapshot: a version, then columns of integers.

A column is `base` and the differences to it, in the narrowest of 1, 2, 4 or 8 bytes that holds them all: about ten
bytes for an aborted transaction, and 100,000 of them take milliseconds to write, not a second of varints. No
checksum: the ledger that stores the snapshot has one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from pulsar_txn.wire.errors import WireError

VERSION: Final = 1
_HEAD: Final = struct.Struct("<cIq")
_WIDTHS: Final = ((b"B", 0xFF), (b"H", 0xFFFF), (b"I", 0xFFFF_FFFF), (b"Q", 0xFFFF_FFFF_FFFF_FFFF))
_CODES: Final = {code: code.decode() for code, _ in _WIDTHS}


def pack_columns(columns: Sequence[Sequence[int]]) -> bytes:
    """The bytes of columns of integers (each within 64 bits, signed)."""
    parts = [bytes([VERSION])]
    for column in columns:
        base = min(column, default=0)
        spread = max(column, default=0) - base
        code = next(code for code, limit in _WIDTHS if spread <= limit)
        parts.append(_HEAD.pack(code, len(column), base))
        parts.append(struct.pack(f"<{len(column)}{_CODES[code]}", *[value - base for value in column]))
    return b"".join(parts)


def unpack_columns(data: bytes, count: int) -> list[list[int]]:
    """The inverse of `pack_columns`, for `count` columns. WireError when it is none, or of a newer version."""
    if not data or data[0] > VERSION:
        raise WireError(f"a transaction buffer snapshot of version {data[0] if data else '?'}; this one reads up to {VERSION}")
    columns = list(_columns(data))
    if len(columns) != count:
        raise WireError(f"a transaction buffer snapshot has {count} columns, here are {len(columns)}")
    return columns


def _columns(data: bytes) -> Iterator[list[int]]:
    offset = 1
    while offset < len(data):
        try:
            code, length, base = _HEAD.unpack_from(data, offset)
            column = struct.Struct(f"<{length}{_CODES[code]}")
            values = column.unpack_from(data, offset + _HEAD.size)
        except (struct.error, KeyError) as error:
            raise WireError(f"a damaged transaction buffer snapshot: {error}") from error
        offset += _HEAD.size + column.size
        yield [base + value for value in values]
