"""State of a durable cursor: pure, shared by all providers.

A log of these providers has one ledger id for life, so the model works on entry ids (plain ints) and the handles
translate to positions. Everything up to `mark` is acknowledged. What is acknowledged after it is a bit per entry, in
chunks of 4096 entries: 512 bytes each, or one shared constant when all of a chunk is acknowledged. So an
acknowledgement costs the same among ten holes and among ten million. Bits at and before the mark mean nothing.
Ack sets belong to entries whose batch is acknowledged in part (bit i set: index i is not).

`piece` writes a part of the state, from an entry on and of a bounded size; `add_piece` takes it over. Little endian:

    piece   mark i64 · upto i64 · chunks u32 · (number i64, form u8, size u16, data)* · sets u32 · (entry i64, size u32, set)*

A piece holds all of (after, upto], `upto` being 2**63 - 1 for the last one. Form 0 is a bit map without its last zeros,
form 1 the offsets of the bits as u16. Changes are in `cursor_changes`.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

from pulsar_txn.ledger.limits import Tally

END: Final = 2**63 - 1
"""After all entries."""

_SHIFT: Final = 12
CHUNK_ENTRIES: Final = 1 << _SHIFT
_LAST: Final = CHUNK_ENTRIES - 1
_BYTES: Final = CHUNK_ENTRIES >> 3
_FULL: Final = bytes([255]) * _BYTES
_OFFSETS_BELOW: Final = _BYTES >> 1
"""Up to so many bits in a chunk, their offsets are shorter than the bit map."""

_BITS_COST: Final = 800
_SET_COST: Final = 160
_PAIR_COST: Final = 200
"""Bytes in memory of a chunk with its places, of an ack set beside its bits, of a property beside its texts."""

_HEAD: Final = struct.Struct("<qqI")
_CHUNK: Final = struct.Struct("<qBH")
_U32: Final = struct.Struct("<I")
_SET: Final = struct.Struct("<qI")


class CursorState:
    """The acknowledgement state of one subscription, in entry ids."""

    __slots__ = ("_bits", "_order", "_sets", "bytes", "deleted_count", "mark", "properties", "properties_bytes", "tally")

    def __init__(self, mark: int = -1, properties: dict[str, str] | None = None, tally: Tally | None = None) -> None:
        self.mark = mark
        self.properties: dict[str, str] = {}
        self.properties_bytes = 0
        self.deleted_count = 0
        """Acknowledged entries after the mark."""
        self.bytes = 0
        """Approximate bytes of chunks and ack sets in memory; counted in `tally` as well."""
        self.tally = tally or Tally()
        self.put_properties(properties or {})
        self._bits: dict[int, bytearray | bytes] = {}
        self._sets: dict[int, dict[int, int]] = {}
        self._order: list[int] = []
        """Numbers of the chunks that have bits or ack sets, ascending."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CursorState) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment] # mutable state compares by value and must not be a key

    def ranges(self, limit: int | None = None) -> list[tuple[int, int]]:
        """Acknowledged ranges after the mark, both ends inclusive, ascending; the first `limit` of them."""
        found: list[tuple[int, int]] = []
        for start, end in self._ranges():
            if found and found[-1][1] + 1 == start:
                found[-1] = (found[-1][0], end)
            elif limit is not None and len(found) >= limit:
                break
            else:
                found.append((start, end))
        return found

    def ack_set(self, entry: int) -> int | None:
        """The ack set of an entry whose batch is acknowledged in part."""
        sets = self._sets.get(entry >> _SHIFT)
        return None if sets is None else sets.get(entry)

    def ack_sets(self) -> dict[int, int]:
        """All ack sets, by entry."""
        return {entry: left for number in self._order for entry, left in sorted(self._sets.get(number, {}).items())}

    def is_deleted(self, entry: int) -> bool:
        """True if the whole entry is acknowledged."""
        if entry <= self.mark:
            return True
        bits = self._bits.get(entry >> _SHIFT)
        return bits is not None and bits[(entry & _LAST) >> 3] >> (entry & 7) & 1 == 1

    def deleted_upto(self, entry: int) -> int:
        """Return how many entries of (mark, entry] are acknowledged; costs the fewer of the chunks before and after `entry`."""
        if entry <= self.mark or not self.deleted_count:
            return 0
        place = bisect_left(self._order, entry >> _SHIFT)
        if 2 * place < len(self._order):
            return sum(self._count(number, self.mark + 1, entry) for number in self._order[: place + 1])
        return self.deleted_count - sum(self._count(number, entry + 1, END) for number in self._order[place:])

    def delete(self, entry: int) -> bool:
        """Acknowledge one entry; False when it was acknowledged already."""
        if entry <= self.mark:
            return False
        if entry == self.mark + 1:
            self.mark = entry
            if self._order:
                self._passed(entry - 1)
            return True
        number, at, bit = entry >> _SHIFT, (entry & _LAST) >> 3, 1 << (entry & 7)
        bits = self._bits.get(number)
        if bits is None:
            bits = self._begin_chunk(number)
        elif bits[at] & bit:
            return False
        bits[at] |= bit  # type: ignore[index] # a full chunk has every bit and was left before
        self.deleted_count += 1
        if number in self._sets:
            self._drop_set(number, entry)
        if bits[at] == 255 and bits == _FULL:
            self._bits[number] = _FULL
        return True

    def mark_delete_to(self, entry: int) -> bool:
        """Acknowledge everything up to `entry`; False when nothing changed."""
        old = self.mark
        if entry <= old:
            return False
        if self._order:
            number = entry >> _SHIFT
            for passed in self._order[: bisect_left(self._order, number + 1)]:
                self.deleted_count -= self._count(passed, old + 1, entry)
            self.mark = entry
            self._passed(old)
        else:
            self.mark = entry
        return True

    def delete_indexes(self, entry: int, acked: int, batch_size: int) -> bool:
        """Acknowledge the batch indexes in `acked`; deletes the entry when none is left. False when nothing changed."""
        if self.is_deleted(entry):
            return False
        known = self.ack_set(entry)
        before = (1 << batch_size) - 1 if known is None else known
        left = before & ~acked
        if left == before:
            return False
        if not left:
            return self.delete(entry)
        self._put_set(entry, left)
        return True

    def reset(self, entry: int) -> bool:
        """Stand at `entry`, back or forth, and forget everything after it. False when nothing changed."""
        if entry == self.mark and not self.deleted_count and not self._sets:
            return False
        self.mark = entry
        self._clear()
        return True

    def free(self) -> None:
        """The cursor was deleted: nothing of it counts any more."""
        self._clear()
        self.put_properties({})
        self.tally = Tally()

    def put_properties(self, properties: dict[str, str]) -> None:
        """Replace the properties."""
        self.properties = dict(properties)
        size = sum(_PAIR_COST + len(key) + len(text) for key, text in properties.items())
        self.tally.grew(size - self.properties_bytes)
        self.properties_bytes = size

    def piece(self, after: int, max_bytes: int) -> tuple[bytes, int]:
        """Return what is after `after`, until about `max_bytes` are reached, and the entry up to which that is everything."""
        start = max(after, self.mark) + 1
        chunks: list[bytes] = []
        sets: list[bytes] = []
        set_count = size = 0
        upto = END
        order = self._order
        for place in range(bisect_left(order, start >> _SHIFT), len(order)):
            number = order[place]
            low = max(start, number << _SHIFT)
            if size >= max_bytes:
                upto = (number << _SHIFT) - 1
                break
            for entry, left in sorted(self._sets.get(number, {}).items()):
                if entry < low:
                    continue
                if size >= max_bytes:
                    upto = entry - 1
                    break
                data = _int_bytes(left)
                sets += (_SET.pack(entry, len(data)), data)
                set_count += 1
                size += _SET.size + len(data)
            chunk = self._chunk_piece(number, low, upto)
            if chunk:
                chunks.append(chunk)
                size += len(chunk)
            if upto != END:
                break
        head = _HEAD.pack(self.mark, upto, len(chunks))
        return b"".join([head, *chunks, _U32.pack(set_count), *sets]), upto

    def add_piece(self, data: bytes, at: int = 0) -> tuple[int, int]:
        """Take over a piece at `at` of `data`: (the entry up to which the state is complete, the offset after it).

        ValueError when the bytes are invalid. Adding a piece twice is adding it once.
        """
        try:
            return self._add_piece(data, at)
        except (struct.error, IndexError) as error:
            raise ValueError(f"not a piece of a cursor: {error}") from error

    def _add_piece(self, data: bytes, at: int) -> tuple[int, int]:
        mark, upto, chunks = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        self.mark_delete_to(mark)
        for _ in range(chunks):
            number, form, size = _CHUNK.unpack_from(data, at)
            at += _CHUNK.size + size
            if at > len(data) or size > _BYTES or form > 1:
                raise ValueError("not a piece of a cursor: a chunk does not fit")
            self._add_bits(number, _bits_of(form, data[at - size : at]))
        (sets,) = _U32.unpack_from(data, at)
        at += 4
        for _ in range(sets):
            entry, size = _SET.unpack_from(data, at)
            at += _SET.size + size
            if at > len(data):
                raise ValueError("not a piece of a cursor: cut short")
            self.put_ack_set(entry, int.from_bytes(data[at - size : at], "little"))
        return upto, at

    def put_ack_set(self, entry: int, left: int) -> None:
        """The ack set of an entry, unless all of the entry is acknowledged."""
        if not self.is_deleted(entry):
            self._put_set(entry, left)

    def add_range(self, start: int, end: int) -> None:
        """Acknowledge [start, end]."""
        for number in range(start >> _SHIFT, (end >> _SHIFT) + 1):
            base = number << _SHIFT
            low, high = max(start - base, 0), min(end - base, _LAST)
            self._add_bits(number, (1 << (high + 1)) - (1 << low))

    def _add_bits(self, number: int, new: int) -> None:
        """Set bits of a chunk; those up to the mark mean nothing."""
        passed = self.mark + 1 - (number << _SHIFT)
        if passed > 0:
            new = new >> passed << passed
        bits = self._bits.get(number)
        old = 0 if bits is None else int.from_bytes(bits, "little")
        if not new & ~old:
            return
        if bits is None:
            self._begin_chunk(number)
        self.deleted_count += (new & ~old).bit_count()
        whole = (new | old).to_bytes(_BYTES, "little")
        self._bits[number] = _FULL if whole == _FULL else bytearray(whole)
        for entry in list(self._sets.get(number, ())):
            if new >> (entry & _LAST) & 1:
                self._drop_set(number, entry)
        self._passed(self.mark)

    def _chunk_piece(self, number: int, low: int, high: int) -> bytes:
        """The bits of [low, high] in a chunk, in the shorter form; otherwise empty."""
        value = self._between(number, low, high)
        if not value:
            return b""
        if value.bit_count() < _OFFSETS_BELOW:
            data = array("H", _ones(value)).tobytes()
            return _CHUNK.pack(number, 1, len(data)) + data
        data = _int_bytes(value)
        return _CHUNK.pack(number, 0, len(data)) + data

    def _between(self, number: int, low: int, high: int) -> int:
        """The bits of a chunk for entries in [low, high], others 0."""
        bits = self._bits.get(number)
        if bits is None:
            return 0
        base = number << _SHIFT
        value = int.from_bytes(bits, "little")
        if low > base:
            value = value >> (low - base) << (low - base)
        if high < base + _LAST:
            value &= (1 << max(0, high - base + 1)) - 1
        return value

    def _count(self, number: int, low: int, high: int) -> int:
        return self._between(number, low, high).bit_count()

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Runs of bits, chunk by chunk."""
        for number in self._order:
            at = number << _SHIFT
            value = self._between(number, self.mark + 1, END)
            while value:
                zeros = (value & -value).bit_length() - 1
                value >>= zeros
                ones = (~value & (value + 1)).bit_length() - 1
                value >>= ones
                yield at + zeros, at + zeros + ones - 1
                at += zeros + ones

    def _begin_chunk(self, number: int) -> bytearray:
        bits = self._bits[number] = bytearray(_BYTES)
        if number not in self._sets:
            self._enter(number)
        self._grow(_BITS_COST)
        return bits

    def _enter(self, number: int) -> None:
        order = self._order
        if order and number <= order[-1]:
            insort(order, number)
        else:
            order.append(number)

    def _put_set(self, entry: int, left: int) -> None:
        number = entry >> _SHIFT
        sets = self._sets.get(number)
        if sets is None:
            if number not in self._bits:
                self._enter(number)
            sets = self._sets[number] = {}
        known = sets.get(entry)
        self._grow(_set_cost(left) - (0 if known is None else _set_cost(known)))
        sets[entry] = left

    def _drop_set(self, number: int, entry: int) -> None:
        sets = self._sets[number]
        left = sets.pop(entry, None)
        if left is not None:
            self._grow(-_set_cost(left))
            if not sets:
                del self._sets[number]
                if number not in self._bits:
                    del self._order[bisect_left(self._order, number)]

    def _passed(self, old: int) -> None:
        """The mark moved on from `old`: absorb what it touches now, and forget what it has passed."""
        self._absorb()
        mark, order = self.mark, self._order
        if order[0] <= mark >> _SHIFT:
            gone = bisect_left(order, (mark + 1) >> _SHIFT)
            for number in order[:gone]:
                if self._bits.pop(number, None) is not None:
                    self._grow(-_BITS_COST)
                for left in self._sets.pop(number, {}).values():
                    self._grow(-_set_cost(left))
            del order[:gone]
        if self._sets:
            sets = self._sets.get(mark >> _SHIFT, {})
            passed = range(old + 1, mark + 1) if mark - old < len(sets) else sorted(sets)
            for entry in passed:
                if entry <= mark and entry in sets:
                    self._drop_set(mark >> _SHIFT, entry)

    def _absorb(self) -> None:
        """Raise the mark over entries that are acknowledged already."""
        entry, get = self.mark + 1, self._bits.get
        while (bits := get(entry >> _SHIFT)) is not None:
            offset = entry & _LAST
            value = bits[offset >> 3] >> (offset & 7)  # mostly the end is in the first byte
            ones = (~value & (value + 1)).bit_length() - 1
            if ones and ones + (offset & 7) == 8:
                value = int.from_bytes(bits, "little") >> offset
                ones = (~value & (value + 1)).bit_length() - 1
            entry += ones
            if not ones or entry & _LAST:
                break
        self.deleted_count -= entry - self.mark - 1
        self.mark = entry - 1

    def _clear(self) -> None:
        self._bits.clear()
        self._sets.clear()
        self._order.clear()
        self.deleted_count = 0
        self._grow(-self.bytes)

    def _grow(self, size: int) -> None:
        self.bytes += size
        self.tally.grew(size)

    def _key(self) -> tuple[int, list[tuple[int, int]], dict[int, int], dict[str, str]]:
        return self.mark, self.ranges(), self.ack_sets(), self.properties

    def check_invariants(self) -> None:
        """Raise AssertionError when counts, order and contents contradict each other."""
        assert not self.is_deleted(self.mark + 1), f"C1 the mark {self.mark} is followed by what is deleted"  # noqa: S101 - invariant
        assert not any(map(self.is_deleted, self.ack_sets())), "C2 ack set of a deleted entry"  # noqa: S101 - invariant
        assert self._order == sorted({*self._bits, *self._sets}), "C3 chunks and their order"  # noqa: S101 - invariant
        assert all(self._sets.values()), "C4 a chunk without ack sets is kept"  # noqa: S101 - invariant
        counted = sum(end - start + 1 for start, end in self.ranges())
        assert self.deleted_count == counted, f"C5 {self.deleted_count} deleted entries are counted, not {counted}"  # noqa: S101 - invariant
        size = _BITS_COST * len(self._bits) + sum(map(_set_cost, self.ack_sets().values()))
        assert self.bytes == size, f"C6 {self.bytes} bytes are counted, not {size}"  # noqa: S101 - invariant


def _bits_of(form: int, data: bytes) -> int:
    if form == 0:
        return int.from_bytes(data, "little")
    offsets, bits = array("H"), bytearray(_BYTES)
    offsets.frombytes(data)
    for offset in offsets:
        bits[offset >> 3] |= 1 << (offset & 7)
    return int.from_bytes(bits, "little")


def _ones(value: int) -> Iterator[int]:
    """Offsets of the bits that are set."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def _set_cost(left: int) -> int:
    return _SET_COST + (left.bit_length() >> 3)


def _int_bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "little")
