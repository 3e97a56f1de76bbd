"""What a durable cursor remembers, and how its changes and bases are written: pure, shared by all providers.

A log of these providers has one ledger id for life, so the model works on entry ids (plain ints) and the handles
translate to positions. Everything up to `mark` is acknowledged; behind it lie acknowledged ranges (two parallel
sorted lists, never adjacent) and ack sets of entries whose batch is acknowledged in part (bit i set: index i is not).

Two encodings, little endian:

    base    mark i64 · ranges u32 · (start i64, end i64)* · sets u32 · (entry i64, bytes u32, set)* · properties
    change  a sequence of operations, each one tag byte and its body (see `Changes`)

A change is applied by the same methods that made it, so replaying changes over a base gives an equal state.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

_I64: Final = struct.Struct("<q")
_U32: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<qq")
_SET: Final = struct.Struct("<qI")
_INDEXES: Final = struct.Struct("<qII")

_MARK, _DELETE, _INDEX, _RESET, _PROPERTIES = b"M", b"D", b"I", b"R", b"P"


class CursorState:
    """The acknowledgement state of one subscription, in entry ids."""

    __slots__ = ("_ends", "_starts", "ack_sets", "mark", "properties")

    def __init__(self, mark: int = -1, properties: dict[str, str] | None = None) -> None:
        self.mark = mark
        self.ack_sets: dict[int, int] = {}
        self.properties: dict[str, str] = dict(properties or {})
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CursorState) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment] # mutable state compares by value and must not be a key

    def ranges(self) -> list[tuple[int, int]]:
        """Acknowledged ranges behind the mark, both ends inclusive, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    def is_deleted(self, entry: int) -> bool:
        """Whether the whole entry is acknowledged."""
        if entry <= self.mark:
            return True
        place = bisect_right(self._starts, entry) - 1
        return place >= 0 and entry <= self._ends[place]

    def deleted_upto(self, entry: int) -> int:
        """How many entries of (mark, entry] are acknowledged."""
        return sum(min(end, entry) - start + 1 for start, end in zip(self._starts, self._ends, strict=True) if start <= entry)

    def delete(self, entry: int) -> bool:
        """Acknowledge one entry; False when it was acknowledged already."""
        if entry <= self.mark:
            return False
        if self.ack_sets:
            self.ack_sets.pop(entry, None)
        starts, ends = self._starts, self._ends
        if entry == self.mark + 1:
            self.mark = entry
            self._absorb()
            return True
        if not ends or entry > ends[-1] + 1:  # the usual case of a Shared subscription: acks come nearly in order
            starts.append(entry)
            ends.append(entry)
            return True
        if entry == ends[-1] + 1:
            ends[-1] = entry
            return True
        return self._insert(entry)

    def mark_delete_to(self, entry: int) -> bool:
        """Acknowledge everything up to `entry`; False when nothing changed."""
        if entry <= self.mark:
            return False
        self.mark = entry
        self._drop_sets_upto(entry)
        place = bisect_right(self._starts, entry)
        if place and self._ends[place - 1] > entry:
            self.mark = self._ends[place - 1]
            self._drop_sets_upto(self.mark)
        del self._starts[:place], self._ends[:place]
        self._absorb()
        return True

    def delete_indexes(self, entry: int, acked: int, batch_size: int) -> bool:
        """Acknowledge the batch indexes in `acked`; deletes the entry when none is left. False when nothing changed."""
        if self.is_deleted(entry):
            return False
        before = self.ack_sets.get(entry, (1 << batch_size) - 1)
        left = before & ~acked
        if left == before:
            return False
        if not left:
            return self.delete(entry)
        self.ack_sets[entry] = left
        return True

    def reset(self, entry: int) -> bool:
        """Stand at `entry`, back or forth, and forget everything behind it. False when nothing changed."""
        if entry == self.mark and not self._starts and not self.ack_sets:
            return False
        self.mark = entry
        self.ack_sets.clear()
        self._starts.clear()
        self._ends.clear()
        return True

    def encode(self) -> bytes:
        """The base: whole state, for `decode`."""
        parts = [_I64.pack(self.mark), _U32.pack(len(self._starts))]
        parts += [_PAIR.pack(start, end) for start, end in zip(self._starts, self._ends, strict=True)]
        parts.append(_U32.pack(len(self.ack_sets)))
        for entry, ack_set in sorted(self.ack_sets.items()):
            data = _int_bytes(ack_set)
            parts += (_SET.pack(entry, len(data)), data)
        parts.append(encode_properties(self.properties))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> CursorState:
        """The state of a base; ValueError when the bytes are none."""
        try:
            return cls._decode(data)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"not a cursor base: {error}") from error

    @classmethod
    def _decode(cls, data: bytes) -> CursorState:
        state = cls(_I64.unpack_from(data)[0])
        (ranges,) = _U32.unpack_from(data, 8)
        at = 12
        for _ in range(ranges):
            start, end = _PAIR.unpack_from(data, at)
            state._starts.append(start)
            state._ends.append(end)
            at += 16
        (sets,) = _U32.unpack_from(data, at)
        at += 4
        for _ in range(sets):
            entry, size = _SET.unpack_from(data, at)
            at += _SET.size + size
            state.ack_sets[entry] = int.from_bytes(data[at - size : at], "little")
        state.properties, at = decode_properties(data, at)
        if at != len(data):
            raise ValueError(f"not a cursor base: {len(data) - at} bytes too many")
        return state

    def _absorb(self) -> None:
        """Raise the mark over ranges that now touch it."""
        if self._starts and self._starts[0] <= self.mark + 1:
            self.mark = max(self.mark, self._ends[0])
            del self._starts[0], self._ends[0]

    def _insert(self, entry: int) -> bool:
        starts, ends = self._starts, self._ends
        place = bisect_right(starts, entry)
        if place and entry <= ends[place - 1]:
            return False
        joins_left = place > 0 and ends[place - 1] == entry - 1
        joins_right = place < len(starts) and starts[place] == entry + 1
        if joins_left and joins_right:
            ends[place - 1] = ends[place]
            del starts[place], ends[place]
        elif joins_left:
            ends[place - 1] = entry
        elif joins_right:
            starts[place] = entry
        else:
            starts.insert(place, entry)
            ends.insert(place, entry)
        return True

    def _drop_sets_upto(self, entry: int) -> None:
        if self.ack_sets:
            for known in [known for known in self.ack_sets if known <= entry]:
                del self.ack_sets[known]

    def check_invariants(self) -> None:
        """Raise AssertionError when the ranges are not sorted, apart and behind the mark."""
        previous = self.mark
        for start, end in zip(self._starts, self._ends, strict=True):
            assert previous + 1 < start <= end, f"C1 ranges: {self.mark} {self.ranges()}"  # noqa: S101 - invariant
            previous = end
        assert not any(self.is_deleted(entry) for entry in self.ack_sets), "C2 ack set of a deleted entry"  # noqa: S101 - invariant


class Changes:
    """Changes of one cursor since the last commit group, in order, ready to be encoded.

    Deletes in a row are one operation of 8 bytes each, so an acknowledgement costs a list append.
    """

    __slots__ = ("_deletes", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._deletes: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._parts or self._deletes)

    def delete(self, entries: Iterable[int]) -> None:
        """Whole entries were acknowledged."""
        self._deletes.extend(entries)

    def mark_delete_to(self, entry: int) -> None:
        """Everything up to `entry` was acknowledged."""
        self._add(_MARK + _I64.pack(entry))

    def delete_indexes(self, entry: int, acked: int, batch_size: int) -> None:
        """Batch indexes were acknowledged."""
        data = _int_bytes(acked)
        self._add(_INDEX + _INDEXES.pack(entry, batch_size, len(data)) + data)

    def reset(self, entry: int) -> None:
        """The cursor was put to `entry`."""
        self._add(_RESET + _I64.pack(entry))

    def put_properties(self, properties: dict[str, str]) -> None:
        """The properties were replaced."""
        self._add(_PROPERTIES + encode_properties(properties))

    def take(self) -> bytes:
        """The encoded changes; the collection is empty afterwards."""
        self._add(b"")
        data = b"".join(self._parts)
        self._parts = []
        return data

    def _add(self, part: bytes) -> None:
        if self._deletes:
            self._parts.append(_DELETE + _U32.pack(len(self._deletes)) + array("q", self._deletes).tobytes())
            self._deletes = []
        self._parts.append(part)


def apply_changes(state: CursorState, data: bytes) -> None:
    """Apply encoded changes to `state`; ValueError when the bytes are none."""
    at = 0
    try:
        while at < len(data):
            at = _apply_one(state, data, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cursor change: {error}") from error


def _apply_one(state: CursorState, data: bytes, at: int) -> int:
    tag, at = data[at : at + 1], at + 1
    if tag == _DELETE:
        (count,) = _U32.unpack_from(data, at)
        end = int(at + 4 + 8 * count)
        entries = array("q", data[at + 4 : end])
        if len(entries) != count:
            raise ValueError("not a cursor change: cut short")
        for entry in entries:
            state.delete(entry)
        return end
    if tag == _INDEX:
        entry, batch_size, size = _INDEXES.unpack_from(data, at)
        end = int(at + _INDEXES.size + size)
        state.delete_indexes(entry, int.from_bytes(data[end - size : end], "little"), batch_size)
        return end
    if tag == _PROPERTIES:
        state.properties, at = decode_properties(data, at)
        return at
    entry = int(_I64.unpack_from(data, at)[0])
    if tag == _MARK:
        state.mark_delete_to(entry)
    elif tag == _RESET:
        state.reset(entry)
    else:
        raise ValueError(f"not a cursor change: tag {tag!r}")
    return at + 8


def encode_properties(properties: dict[str, str]) -> bytes:
    """Text pairs with their lengths, in the order of the dict."""
    parts = [_U32.pack(len(properties))]
    for pair in properties.items():
        for text in pair:
            data = text.encode()
            parts += (_U32.pack(len(data)), data)
    return b"".join(parts)


def decode_properties(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """The properties at `at`, and the offset behind them."""
    (count,) = _U32.unpack_from(data, at)
    at += 4
    texts: list[str] = []
    for _ in range(2 * count):
        (size,) = _U32.unpack_from(data, at)
        at += 4 + size
        if at > len(data):
            raise IndexError("cut short")
        texts.append(data[at - size : at].decode())
    return dict(zip(texts[::2], texts[1::2], strict=True)), at


def _int_bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "little")
