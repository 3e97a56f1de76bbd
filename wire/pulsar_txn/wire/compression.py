"""Compression of payloads, by the numbers of MessageMetadata.compression.

LZ4 is the bare block, Snappy the bare ("raw") format, ZLIB and ZSTD are whole streams: what the Java and C++
clients write. How large the result is stands in the metadata (`uncompressed_size`), not in the data, and is
the sender's word: it is checked against a limit before memory is taken, and against what really came out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import cramjam

from .errors import MalformedBatch

NONE: Final = 0
LZ4: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3
SNAPPY: Final = 4

_Bytes: TypeAlias = bytes | bytearray | memoryview


def _lz4(data: _Bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(data, store_size=False))


def _zlib(data: _Bytes) -> bytes:
    return bytes(cramjam.zlib.compress(data))


def _zstd(data: _Bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _snappy(data: _Bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _unlz4(data: bytes, out: bytearray) -> int:
    return int(cramjam.lz4.decompress_block_into(data, out, output_len=len(out)))


def _unzlib(data: bytes, out: bytearray) -> int:
    return int(cramjam.zlib.decompress_into(data, out))


def _unzstd(data: bytes, out: bytearray) -> int:
    return int(cramjam.zstd.decompress_into(data, out))


def _unsnappy(data: bytes, out: bytearray) -> int:
    return int(cramjam.snappy.decompress_raw_into(data, out))


_COMPRESS: Final[dict[int, Callable[[_Bytes], bytes]]] = {LZ4: _lz4, ZLIB: _zlib, ZSTD: _zstd, SNAPPY: _snappy}
_DECOMPRESS: Final[dict[int, Callable[[bytes, bytearray], int]]] = {
    LZ4: _unlz4,
    ZLIB: _unzlib,
    ZSTD: _unzstd,
    SNAPPY: _unsnappy,
}


def compress(kind: int, data: _Bytes) -> bytes:
    """The compressed bytes; ValueError for a kind that does not exist. Its size before goes into the metadata."""
    if kind == NONE:
        return bytes(data)
    codec = _COMPRESS.get(kind)
    if codec is None:
        raise ValueError(f"compression {kind} does not exist: NONE 0, LZ4 1, ZLIB 2, ZSTD 3, SNAPPY 4")
    return codec(data)


def decompress(kind: int, data: _Bytes, uncompressed_size: int, *, max_size: int) -> bytes:
    """The bytes before compression, exactly `uncompressed_size` of them.

    MalformedBatch when that is more than `max_size`, when the data are damaged or have another size, and for an
    unknown kind. Never takes more memory than `uncompressed_size` for the result. With NONE the size is not looked at
    (senders leave it out).
    """
    if kind == NONE:
        if len(data) > max_size:
            raise MalformedBatch(f"a payload of {len(data)} bytes, {max_size} are allowed")
        return bytes(data)
    codec = _DECOMPRESS.get(kind)
    if codec is None:
        raise MalformedBatch(f"unknown compression {kind}: the sender is newer than this program")
    if not 0 <= uncompressed_size <= max_size:
        raise MalformedBatch(f"a payload of {uncompressed_size} bytes after decompression, {max_size} are allowed")
    out = bytearray(uncompressed_size)
    try:
        size = codec(bytes(data), out)
    except cramjam.DecompressionError as error:
        raise MalformedBatch(f"the payload does not decompress to {uncompressed_size} bytes: {error}") from error
    if size != uncompressed_size:
        raise MalformedBatch(f"the payload decompresses to {size} bytes, its metadata says {uncompressed_size}")
    return bytes(out)
