"""Contents of the messages of a store's metadata topic: one operation each, or a piece of a snapshot.

    "PTXM"  version u8  kind u8  writer 8 bytes  sequence u64  expected i64  path size u16  CRC32C u32  path  data

`writer` names one life of one instance, and `sequence` counts its operations: one that was sent twice counts once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from pulsar_txn.ledger.protocols import StoreTooNew
from pulsar_txn.wire import checksums

from .frames import NotAFrame

_MAGIC: Final = b"PTXM"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBB8sQqH")
_CHECKSUM: Final = struct.Struct(">I")
_ITEM: Final = struct.Struct(">BHIQ")
ANY_VERSION: Final = -2
"""`expected` where any version will do; -1: there must be no value."""


class Op(IntEnum):
    """Kind of an operation."""

    HELLO = 1
    """Nothing: whoever has read it has read everything before it."""
    PUT = 2
    DELETE = 3
    INCREMENT = 4
    PART = 5
    """A part of a snapshot."""
    END = 6
    """The snapshot of this writer is complete: `data` says which message it covers."""


class Operation(NamedTuple):
    """One operation."""

    kind: int
    writer: bytes
    sequence: int
    expected: int
    path: str
    data: bytes


class Item(NamedTuple):
    """One line of a snapshot: `V`alue, `C`ounter or `W`riter, its name, its data, its version or number."""

    kind: bytes
    name: bytes
    data: bytes
    number: int


def encode(operation: Operation) -> bytes:
    """The payload of a message."""
    path = operation.path.encode()
    kind, writer, sequence, expected = operation[:4]
    head = _HEAD.pack(_MAGIC, _VERSION, kind, writer, sequence, expected, len(path))
    body = path + operation.data
    return head + _CHECKSUM.pack(checksums.crc32c(body, checksums.crc32c(head))) + body


def decode(payload: bytes | memoryview) -> Operation:
    """The operation of a payload. NotAFrame; StoreTooNew."""
    data = bytes(payload)
    start = _HEAD.size + _CHECKSUM.size
    if len(data) < start or data[:4] != _MAGIC:
        raise NotAFrame("the payload does not begin as an operation does")
    _, version, kind, writer, sequence, expected, size = _HEAD.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if checksum != checksums.crc32c(data[start:], checksums.crc32c(data[: _HEAD.size])):
        raise NotAFrame("its checksum is wrong")
    if version != _VERSION:
        raise StoreTooNew(f"metadata of version {version} was written by a newer pulsar-txn; this one reads {_VERSION}")
    try:
        path = data[start : start + size].decode()
    except UnicodeDecodeError:
        raise NotAFrame("its path is no text") from None
    return Operation(kind, writer, sequence, expected, path, data[start + size :])


def encode_items(items: Iterable[Item], part_bytes: int) -> Iterator[bytes]:
    """The parts of a snapshot, each of about so many bytes, and of whole items."""
    part = bytearray()
    for kind, name, data, number in items:
        part += _ITEM.pack(kind[0], len(name), len(data), number) + name + data
        if len(part) >= part_bytes:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def decode_items(part: bytes) -> Iterator[Item]:
    """The items of a part. NotAFrame."""
    at = 0
    while at < len(part):
        if at + _ITEM.size > len(part):
            raise NotAFrame("a part of a snapshot ends within an item")
        kind, name_size, data_size, number = _ITEM.unpack_from(part, at)
        at += _ITEM.size
        end = at + name_size + data_size
        if end > len(part):
            raise NotAFrame("an item is longer than its part")
        yield Item(bytes((kind,)), part[at : at + name_size], part[at + name_size : end], number)
        at = end
