"""The bytes of a half-topic buffer's snapshot: slices of a version, a kind, and columns of integers.

Four kinds: the head, transactions, places (positions of halves, each with its transaction), and what open transactions have got
(`sent_messages`; version 1 had none of these). A transaction of a million halves is many slices of places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import attrs

from pulsar_txn.rm_producer.snapshots import SENT, pack_columns, unpack_columns
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position, TxnId

from .half_transaction import Image, positions_of

VERSION: Final = 3
LOGS: Final = ("half", "op", "topic")
_COLUMNS_OF: Final = {b"H": 4, b"T": 6, b"P": 4}
_ROWS_PER_SLICE: Final = 2048

Row: TypeAlias = tuple[int, ...]


@attrs.frozen
class Head:
    """Head of a snapshot: the position applied last in each log, commits and aborts counted, low watermarks."""

    last: dict[str, Position]
    committed_count: int
    aborted_count: int
    commits: int
    low_watermarks: dict[int, int]


@attrs.frozen
class Slice:
    """Content of a slice: a head, transactions `(txn_id, commit, copied, before)`, or places `(txn_id, position)`."""

    head: Head | None = None
    transactions: Sequence[tuple[TxnId, int, int, Position]] = ()
    places: Sequence[tuple[TxnId, Position]] = ()


def slices(head: Head, transactions: Iterator[list[tuple[TxnId, Image]]], sent: Iterator[bytes]) -> Iterator[bytes]:
    """The slices of a state; `sent`: the columns of what open transactions have got. Equal states give equal slices."""
    lasts = [number for log in LOGS for number in head.last[log]]
    counts = (head.committed_count, head.aborted_count, head.commits)
    yield _pack(b"H", [lasts, counts, list(head.low_watermarks), list(head.low_watermarks.values())])
    images: list[tuple[TxnId, Image]] = []
    for group in transactions:
        for txn_id, image in group:
            images.append((txn_id, image))
            if len(images) == _ROWS_PER_SLICE:
                yield from _slices_of(images)
                images = []
    if images:
        yield from _slices_of(images)
    for columns in sent:
        yield bytes([VERSION]) + SENT + columns


def _slices_of(images: list[tuple[TxnId, Image]]) -> Iterator[bytes]:
    """Transactions, and then their places."""
    yield _packed(b"T", [(*txn_id, image[0], image[1], *image[2]) for txn_id, image in images])
    gathered: list[Row] = []
    for txn_id, image in images:
        for chunk in positions_of(image, _ROWS_PER_SLICE):
            gathered += [(*txn_id, *position) for position in chunk]
            if len(gathered) >= _ROWS_PER_SLICE:
                yield _packed(b"P", gathered[:_ROWS_PER_SLICE])
                gathered = gathered[_ROWS_PER_SLICE:]
    if gathered:
        yield _packed(b"P", gathered)


def read_slice(part: bytes, *, is_first: bool) -> Slice:
    """Decode a slice. Raises WireError: not one, of a newer version, or (`is_first`) not the first of a snapshot."""
    if not part or not 1 <= part[0] <= VERSION:
        text = f"a half-topic buffer's snapshot of version {part[0] if part else '?'}; this one reads up to {VERSION}"
        raise WireError(text)
    kind = part[1:2]
    if kind not in _COLUMNS_OF or is_first is not (kind == b"H"):
        raise WireError(f"a half-topic buffer's snapshot with a slice of kind {kind!r} where it does not belong")
    columns = list(unpack_columns(part, 2))
    if len(columns) != _COLUMNS_OF[kind]:
        raise WireError(f"a half-topic buffer's snapshot has {_COLUMNS_OF[kind]} columns of {kind!r}, here are {len(columns)}")
    if kind == b"H":
        return Slice(_head(columns))
    rows = _rows(columns)
    if kind == b"T":
        return Slice(transactions=[(TxnId(row[0], row[1]), row[2], row[3], (row[4], row[5])) for row in rows])
    return Slice(places=[(TxnId(row[0], row[1]), (row[2], row[3])) for row in rows])


def _head(columns: list[list[int]]) -> Head:
    lasts, counts, mosts, lows = columns
    if len(lasts) != 2 * len(LOGS) or len(counts) != 3 or len(mosts) != len(lows):
        raise WireError("a damaged snapshot of a half-topic buffer: its columns differ in length")
    last = {log: (lasts[2 * at], lasts[2 * at + 1]) for at, log in enumerate(LOGS)}
    committed, aborted, commits = counts
    return Head(last, committed, aborted, commits, dict(zip(mosts, lows, strict=True)))


def _rows(columns: list[list[int]]) -> Iterator[tuple[int, ...]]:
    if len({len(column) for column in columns}) != 1:
        raise WireError("a damaged snapshot of a half-topic buffer: its columns differ in length")
    return zip(*columns, strict=True)


def _packed(kind: bytes, rows: list[Row]) -> bytes:
    return _pack(kind, list(zip(*rows, strict=True)))


def _pack(kind: bytes, columns: Iterable[Sequence[int]]) -> bytes:
    return bytes([VERSION]) + kind + pack_columns(list(columns))
