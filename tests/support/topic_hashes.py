"""The hash of a list of topics, computed in one go."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c


def hash_of(topics: Iterable[str]) -> str:
    """CRC32C of the sorted names, low byte first, as hexadecimal text."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
