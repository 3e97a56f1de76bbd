"""The hashes by which Pulsar's clients choose a partition, and brokers a Key_Shared consumer.

They must give the numbers that other clients get, or one key would live in two partitions. Beyond ASCII the Java
and C++ clients disagree on `java_string_hash` (UTF-16 units in Java, UTF-8 bytes in C++); ours is Java's.
"""

from __future__ import annotations

import struct
from typing import Final

KEY_SLOTS: Final = 65536
"""Slots that Key_Shared consumers divide among themselves."""

_MASK32: Final = 0xFFFF_FFFF
_MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15
_GOLDEN_SQUARED: Final = _GOLDEN * _GOLDEN & _MASK64
_POSITIVE: Final = 0x7FFF_FFFF


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` (over UTF-16 units) with the sign bit cleared: the routing hash of Java clients by default."""
    value = 0
    raw = text.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(raw) // 2}H", raw):
        value = (value * 31 + unit) & _MASK32
    return value & _POSITIVE


def murmur3_32(data: bytes) -> int:
    """Murmur3 of 32 bits, seed 0, with the sign bit cleared."""
    value = 0
    whole = len(data) & ~3
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        value ^= _scramble(block)
        value = (value << 13 | value >> 19) & _MASK32
        value = (value * 5 + 0xE6546B64) & _MASK32
    if whole < len(data):
        value ^= _scramble(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value ^= value >> 16
    value = value * 0x85EBCA6B & _MASK32
    value ^= value >> 13
    value = value * 0xC2B2AE35 & _MASK32
    value ^= value >> 16
    return value & _POSITIVE


def _scramble(block: int) -> int:
    block = block * 0xCC9E2D51 & _MASK32
    block = (block << 15 | block >> 17) & _MASK32
    return block * 0x1B873593 & _MASK32


def boost_string_hash(data: bytes) -> int:
    """Boost's hash of a string on 64 bits, cut to 31: the routing hash of C++ clients by default, and of those over them.

    Of Boost 1.81 and newer, which `pulsar-client` 3.13 is built with; wheels built with an older Boost spread keys otherwise.
    """
    state = _folded(_GOLDEN)
    value = state ^ len(data)
    for start in range(0, len(data) - len(data) % 8 + 1, 8):  # the last block has 0 to 7 bytes
        state += _GOLDEN
        value ^= _folded(int.from_bytes(data[start : start + 8], "little") + state)
    return _folded(value + state) & _POSITIVE


def _folded(number: int) -> int:
    product = (number & _MASK64) * _GOLDEN_SQUARED
    return (product ^ product >> 64) & _MASK64


def key_slot(key: bytes) -> int:
    """The Key_Shared slot of a key, 0 to 65535."""
    return murmur3_32(key) % KEY_SLOTS
