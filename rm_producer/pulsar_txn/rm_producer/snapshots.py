"""The bytes of a topic buffer's snapshot: slices of a version, a kind, and columns of integers.

A column is `base` and the differences to it, in the narrowest of 1, 2, 4 or 8 bytes that holds them all: about ten
bytes for an aborted transaction, and 100,000 of them take milliseconds to write, not a second of varints. No
checksum: the ledger that stores the snapshot has one. Every slice but the last of its kind has the same number of objects, so
that equal states give equal slices. Version 1 was one piece without a kind, with the columns of all kinds one after the other;
version 2 had no slices with what open transactions have got (`sent_messages`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import attrs

from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position, TxnId

VERSION: Final = 4
SENT: Final = b"S"
"""The kind of a slice with what open transactions have got."""

_HEAD: Final = struct.Struct("<cIq")
_WIDTHS: Final = ((b"B", 0xFF), (b"H", 0xFFFF), (b"I", 0xFFFF_FFFF), (b"Q", 0xFFFF_FFFF_FFFF_FFFF))
_CODES: Final = {code: code.decode() for code, _ in _WIDTHS}
_COLUMNS_OF: Final = {b"H": 3, b"O": 6, b"A": 4}
"""Kind of a slice -> columns: head, ongoing transactions, aborted ones."""
_OBJECTS_PER_SLICE: Final = 2048

Ongoing: TypeAlias = tuple[TxnId, tuple[Position, Position]]
Aborted: TypeAlias = tuple[TxnId, Position]
ItemT = TypeVar("ItemT")


@attrs.frozen
class Head:
    """Head of a snapshot: the position applied last, counters, low watermarks by coordinator."""

    last: Position
    committed_count: int
    aborted_count: int
    low_watermarks: dict[int, int]


def slices(
    head: Head, ongoing: Iterator[list[Ongoing]], aborted: Iterator[list[Aborted]], sent: Iterator[bytes]
) -> Iterator[bytes]:
    """The slices of a state. `sent`: the columns of what open transactions have got."""
    counters = (*head.last, head.committed_count, head.aborted_count)
    yield _pack(b"H", (counters, list(head.low_watermarks), list(head.low_watermarks.values())))
    for opened in _even(ongoing):
        flat = [(*txn_id, *first, *before) for txn_id, (first, before) in opened]
        yield _pack(b"O", list(zip(*flat, strict=True)))
    for ended in _even(aborted):
        yield _pack(b"A", list(zip(*[(*txn_id, *position) for txn_id, position in ended], strict=True)))
    for columns in sent:
        yield bytes([VERSION]) + SENT + columns


def read_slice(part: bytes, *, is_first: bool) -> tuple[Head | None, list[Ongoing], list[Aborted]]:
    """Decode a slice. Raises WireError: not one, of a newer version, or (`is_first`) not the first of a snapshot."""
    if not part or not 1 <= part[0] <= VERSION:
        raise WireError(f"a transaction buffer snapshot of version {part[0] if part else '?'}; this one reads up to {VERSION}")
    if part[0] == 1:
        columns = _unpack(part, 1, 13)
        return _head(columns[:3]), _ongoing(columns[3:9]), _aborted(columns[9:])
    kind = part[1:2]
    if kind not in _COLUMNS_OF or is_first is not (kind == b"H"):
        raise WireError(f"a transaction buffer snapshot with a slice of kind {kind!r} where it does not belong")
    columns = _unpack(part, 2, _COLUMNS_OF[kind])
    return (
        _head(columns) if kind == b"H" else None,
        _ongoing(columns) if kind == b"O" else [],
        _aborted(columns) if kind == b"A" else [],
    )


def pack_columns(columns: Sequence[Sequence[int]]) -> bytes:
    """The bytes of columns of integers (each within 64 bits, signed)."""
    parts: list[bytes] = []
    for column in columns:
        base = min(column, default=0)
        spread = max(column, default=0) - base
        code = next(code for code, limit in _WIDTHS if spread <= limit)
        parts.append(_HEAD.pack(code, len(column), base))
        parts.append(struct.pack(f"<{len(column)}{_CODES[code]}", *[value - base for value in column]))
    return b"".join(parts)


def unpack_columns(data: bytes, offset: int = 0) -> Iterator[list[int]]:
    """The inverse of `pack_columns`, from an offset on. WireError for other bytes."""
    while offset < len(data):
        try:
            code, length, base = _HEAD.unpack_from(data, offset)
            column = struct.Struct(f"<{length}{_CODES[code]}")
            values = column.unpack_from(data, offset + _HEAD.size)
        except (struct.error, KeyError) as error:
            raise WireError(f"a damaged transaction buffer snapshot: {error}") from error
        offset += _HEAD.size + column.size
        yield [base + value for value in values]


def _even(groups: Iterator[list[ItemT]]) -> Iterator[list[ItemT]]:
    """The same items, in lists of one length."""
    gathered: list[ItemT] = []
    for group in groups:
        gathered += group
        while len(gathered) >= _OBJECTS_PER_SLICE:
            yield gathered[:_OBJECTS_PER_SLICE]
            del gathered[:_OBJECTS_PER_SLICE]
    if gathered:
        yield gathered


def _pack(kind: bytes, columns: Sequence[Sequence[int]]) -> bytes:
    return bytes([VERSION]) + kind + pack_columns(columns)


def _unpack(part: bytes, offset: int, count: int) -> list[list[int]]:
    columns = list(unpack_columns(part, offset))
    if len(columns) != count:
        raise WireError(f"a transaction buffer snapshot has {count} columns, here are {len(columns)}")
    return columns


def _head(columns: list[list[int]]) -> Head:
    counters, mosts, leasts = columns
    if len(counters) != 4 or len(mosts) != len(leasts):
        raise WireError("a damaged transaction buffer snapshot: its columns differ in length")
    ledger_id, entry_id, committed, aborted = counters
    return Head((ledger_id, entry_id), committed, aborted, dict(zip(mosts, leasts, strict=True)))


def _ongoing(columns: list[list[int]]) -> list[Ongoing]:
    return [(TxnId(row[0], row[1]), ((row[2], row[3]), (row[4], row[5]))) for row in _rows(columns)]


def _aborted(columns: list[list[int]]) -> list[Aborted]:
    return [(TxnId(row[0], row[1]), (row[2], row[3])) for row in _rows(columns)]


def _rows(columns: list[list[int]]) -> Iterator[tuple[int, ...]]:
    if len({len(column) for column in columns}) != 1:
        raise WireError("a damaged transaction buffer snapshot: its columns differ in length")
    return zip(*columns, strict=True)
