"""Protobuf varints by table: the building block of the hand-written codecs.

Nearly all numbers on the wire are small, and a look-up is several times cheaper in Python than a loop; larger
numbers are put together from 14-bit digits, each again a look-up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF
MINUS_ONE: Final = b"\xff" * 9 + b"\x01"
"""The varint of -1: frequent ("no partition", "no sequence id"), and the longest there is."""


def _pairs(high: bytes) -> list[bytes]:
    """Two bytes for each 14-bit number: its low seven bits with the sign of more to come, and `high[its high bits]`."""
    both = bytearray(1 << 15)
    both[0::2] = bytes(range(128, 256)) * 128
    both[1::2] = b"".join(bytes((each,)) * 128 for each in high)
    data = bytes(both)
    return [data[i : i + 2] for i in range(0, 1 << 15, 2)]


LAST: Final = (*(bytes((i,)) for i in range(128)), *_pairs(bytes(range(128)))[128:])
MORE: Final = tuple(_pairs(bytes(range(128, 256))))
"""The varint of a number below 2**14 is `LAST[number]`; `MORE[digit]` is a 14-bit digit that others follow.

Codecs of commands that travel per message look numbers below 2**28 up themselves, without a call:
`LAST[n] if n < 16384 else MORE[n & 16383] + LAST[n >> 14]`.
"""


def varint(value: int) -> bytes:
    """The varint of a number below 2**64; a negative one travels as its two's complement in 64 bits."""
    if 0 <= value < 16384:
        return LAST[value]
    value &= MASK64
    if value < 1 << 28:
        return MORE[value & 16383] + LAST[value >> 14] if value > 16383 else LAST[value]
    if value < 1 << 42:
        return MORE[value & 16383] + MORE[value >> 14 & 16383] + LAST[value >> 28]
    if value == MASK64:
        return MINUS_ONE
    head = MORE[value & 16383] + MORE[value >> 14 & 16383] + MORE[value >> 28 & 16383]
    if value < 1 << 56:
        return head + LAST[value >> 42]
    return head + MORE[value >> 42 & 16383] + LAST[value >> 56]


cached_varint: Final = lru_cache(4096)(varint)
"""`varint` of numbers that are written several times: a transaction's id in each of its records, a time in each of a turn."""


NUMBER: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}[\x00\x01])"
"""A regular expression of one varint of at most 64 bits, as a group; its number is `NUMBERS[group]`."""


_KEPT: Final = 4096


class _Numbers(dict[bytes, int]):
    """Varint -> number: a look-up for the small ones, the others are put together when they are asked for.

    Those of three and of six bytes are kept for a while: the id of a transaction comes in each of its commands, and the time of
    a message in those of the same millisecond.
    """

    def __missing__(self, data: bytes) -> int:
        size = len(data)
        if size == 3:
            number = data[0] + data[1] * 128 + data[2] * 16384 - 16512
        elif size == 6:  # the time in milliseconds, since 2004 and until 2109
            low = data[0] + data[1] * 128 + data[2] * 16384 - 2113664
            number = low + data[3] * 2097152 + data[4] * 268435456 + data[5] * 34359738368 - 34628173824
        elif size == 9:  # Java's clients begin to count their requests at a random long
            low = data[0] + data[1] * 128 + data[2] * 16384 - 2113664
            middle = data[3] + data[4] * 128 + data[5] * 16384 - 2113664
            return low + middle * 2097152 + (data[6] + data[7] * 128 + data[8] * 16384 - 16512) * 4398046511104
        elif data == MINUS_ONE:
            return MASK64
        else:
            return read_varint(data, 0)[0]
        if len(self) == (1 << 14) + _KEPT:
            for _ in range(_KEPT):
                self.popitem()  # the newest first, so the small ones stay
        self[data] = number
        return number


NUMBERS: Final = _Numbers(zip(LAST, range(1 << 14), strict=True))


def signed32(value: int) -> int:
    """The int32 that a varint represents: its low 32 bits, as every protobuf parser takes them."""
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value > 0x7FFF_FFFF else value


def read_varint(data: bytes | memoryview, position: int, more: int = 3) -> tuple[int, int]:
    """The number at `position` (below 2**64) and the position after it.

    IndexError when the bytes end inside it, OverflowError when it is longer than 64 bits: callers turn both
    into their own typed error. Three bytes at a time, `more` times; the continuation bits are taken off by
    subtraction, because CPython has fast paths for +, - and *, not for & and |.
    """
    first = data[position]
    if first < 128:
        return first, position + 1
    if not more:
        raise OverflowError
    second = data[position + 1]
    if second < 128:
        return first + second * 128 - 128, position + 2
    third = data[position + 2]
    if third < 128:
        return first + second * 128 + third * 16384 - 16512, position + 3
    high, end = read_varint(data, position + 3, more - 1)
    value = first + second * 128 + third * 16384 - 2113664 + high * 2097152
    if value > MASK64:
        raise OverflowError
    return value, end
