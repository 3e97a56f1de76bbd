"""Compression of payloads, by the numbers of MessageMetadata.compression.

LZ4 is the bare block, Snappy the bare ("raw") format, ZLIB and ZSTD are whole streams: what the Java and C++
clients write. The metadata says how large the result is (`uncompressed_size`), not the data, and is
the sender's word: it is checked against a limit before memory is taken, and against what really came out.
The library of codecs is loaded when it is first used: many programs never compress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .errors import MalformedBatch

NONE: Final = 0
LZ4: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3
SNAPPY: Final = 4

_Bytes: TypeAlias = bytes | bytearray | memoryview


def _codecs() -> Any:
    import cramjam

    return cramjam


_COMPRESS: Final[dict[int, Callable[[Any, _Bytes], Any]]] = {
    LZ4: lambda codecs, data: codecs.lz4.compress_block(data, store_size=False),
    ZLIB: lambda codecs, data: codecs.zlib.compress(data),
    ZSTD: lambda codecs, data: codecs.zstd.compress(data),
    SNAPPY: lambda codecs, data: codecs.snappy.compress_raw(data),
}
_DECOMPRESS: Final[dict[int, Callable[[Any, bytes, bytearray], int]]] = {
    LZ4: lambda codecs, data, out: codecs.lz4.decompress_block_into(data, out, output_len=len(out)),
    ZLIB: lambda codecs, data, out: codecs.zlib.decompress_into(data, out),
    ZSTD: lambda codecs, data, out: codecs.zstd.decompress_into(data, out),
    SNAPPY: lambda codecs, data, out: codecs.snappy.decompress_raw_into(data, out),
}


def compress(kind: int, data: _Bytes) -> bytes:
    """The compressed bytes; ValueError for a kind that does not exist. Its size before goes into the metadata."""
    if kind == NONE:
        return bytes(data)
    codec = _COMPRESS.get(kind)
    if codec is None:
        raise ValueError(f"compression {kind} does not exist: NONE 0, LZ4 1, ZLIB 2, ZSTD 3, SNAPPY 4")
    return bytes(codec(_codecs(), data))


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
    codecs = _codecs()
    try:
        size = codec(codecs, bytes(data), out)
    except codecs.DecompressionError as error:
        raise MalformedBatch(f"the payload does not decompress to {uncompressed_size} bytes: {error}") from error
    if size != uncompressed_size:
        raise MalformedBatch(f"the payload decompresses to {size} bytes, its metadata says {uncompressed_size}")
    return bytes(out)
