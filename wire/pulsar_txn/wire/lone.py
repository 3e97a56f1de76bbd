"""SENDs of one message that is nothing but its payload: command, metadata and checksum in one go.

A program that waits for each send before the next pays for everything between the call and the write, and the processor has
forgotten most of the code in between. So these are put together in as few steps as there can be, from parts that are the
same for all messages of a producer; everything else goes through `entries.encode_entry` and `hot.encode_send`.
"""

from __future__ import annotations

import struct
from typing import Final

from . import checksums
from .entries import MAGIC
from .ids import TxnId
from .varints import varint

_HEAD: Final = struct.Struct(">II3sB").pack
_CHECKSUM_AND_SIZE: Final = struct.Struct(">2sII").pack
_SIZE: Final = struct.Struct(">I").pack


class LoneSends:
    """Encodes those of one producer, as long as its name and its schema version stay the same."""

    __slots__ = ("_after_time", "_body", "_metadata", "_schema_version", "_time")

    def __init__(self, producer_id: int, producer_name: str, schema_version: bytes = b"") -> None:
        name = producer_name.encode()
        self._body = b"\x08" + varint(producer_id) + b"\x10"
        self._metadata = b"\x0a" + varint(len(name)) + name + b"\x10"
        self._schema_version = b"\x82\x01" + varint(len(schema_version)) + schema_version if schema_version else b""
        self._time, self._after_time = -1, b""

    def encode(self, sequence_id: int, publish_time_ms: int, payload: bytes, txn: TxnId | None = None) -> bytes:
        """The whole frame."""
        high = publish_time_ms >> 14
        if high != self._time:  # which it is every sixteen seconds
            self._time = high
            self._after_time = (varint(high) if high else b"") + self._schema_version
        low = bytes((publish_time_ms & 127 | 128, publish_time_ms >> 7 & 127 | 128)) if high else varint(publish_time_ms)
        sequence = varint(sequence_id)
        body = self._body + sequence
        metadata = self._metadata + sequence + b"\x18" + low + self._after_time
        if txn is not None:
            most, least = varint(txn[0]), varint(txn[1])
            body += b"\x20" + least + b"\x28" + most
            metadata += b"\xb0\x01" + least + b"\xb8\x01" + most
        body_size, size = len(body), len(metadata)
        return b"".join(
            (
                _HEAD(body_size + size + len(payload) + 18, body_size + 4, b"\x08\x06\x32", body_size),
                body,
                _CHECKSUM_AND_SIZE(MAGIC, checksums.crc32c(payload, checksums.crc32c(_SIZE(size) + metadata)), size),
                metadata,
                payload,
            )
        )
