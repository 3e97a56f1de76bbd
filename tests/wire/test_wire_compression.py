"""Compression round trips, reads what other programs wrote, and does not let itself be bombed."""

from __future__ import annotations

import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD, compress, decompress
from pulsar_txn.wire.errors import MalformedBatch

KINDS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
COMPRESSING = [LZ4, ZLIB, ZSTD, SNAPPY]
TEXT = b"consume, process, produce; " * 40


def test_the_numbers_are_those_of_the_definition():
    assert dict(pb.CompressionType.items()) == {"NONE": NONE, "LZ4": LZ4, "ZLIB": ZLIB, "ZSTD": ZSTD, "SNAPPY": SNAPPY}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=2000) | st.integers(0, 100_000).map(lambda size: b"abc" * size))
def test_what_goes_in_comes_out(kind: int, data: bytes):
    for form in (bytes, bytearray, memoryview):
        assert decompress(kind, form(compress(kind, form(data))), len(data), max_size=len(data)) == data


@pytest.mark.parametrize("kind", COMPRESSING)
def test_it_compresses(kind: int):
    assert len(compress(kind, TEXT)) < len(TEXT) / 3


@pytest.mark.parametrize("kind", COMPRESSING)
def test_another_size_than_announced_is_refused(kind: int):
    packed = compress(kind, TEXT)
    for size in (0, 1, len(TEXT) - 1, len(TEXT) + 1, 2 * len(TEXT)):
        with pytest.raises(MalformedBatch):
            decompress(kind, packed, size, max_size=10**6)


@pytest.mark.parametrize("kind", COMPRESSING)
def test_a_size_above_the_limit_is_refused_before_memory_is_taken(kind: int):
    packed = compress(kind, TEXT)
    with pytest.raises(MalformedBatch, match="1000 are allowed"):
        decompress(kind, packed, 2**32 - 1, max_size=1000)
    with pytest.raises(MalformedBatch, match="-1 bytes"):
        decompress(kind, packed, -1, max_size=1000)


@pytest.mark.parametrize("kind", COMPRESSING)
def test_a_bomb_takes_no_more_memory_than_it_announces(kind: int):
    bomb = compress(kind, bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBatch):
            decompress(kind, bomb, 100_000, max_size=100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 + len(bomb)
    finally:
        tracemalloc.stop()


def test_an_uncompressed_payload_above_the_limit_is_refused():
    assert decompress(NONE, b"12345", 0, max_size=5) == b"12345"
    with pytest.raises(MalformedBatch, match="4 are allowed"):
        decompress(NONE, b"12345", 0, max_size=4)


def test_unknown_kinds_are_refused():
    with pytest.raises(MalformedBatch, match="unknown compression 9"):
        decompress(9, b"", 0, max_size=10)
    with pytest.raises(ValueError, match="compression 9 does not exist"):
        compress(9, b"")


@pytest.mark.parametrize("kind", COMPRESSING)
@given(
    data=st.binary(max_size=60),
    size=st.integers(0, 3000),
    places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
def test_garbage_and_damage_raise_malformed_batch_only(kind: int, data: bytes, size: int, places: list[tuple[int, int]]):
    damaged = bytearray(compress(kind, TEXT))
    for place, byte in places:
        damaged[place % len(damaged)] = byte
    for packed in (data, damaged, damaged[: size % len(damaged)]):
        for announced in (size, len(TEXT)):
            try:
                out = decompress(kind, bytes(packed), announced, max_size=3000)
            except MalformedBatch:
                continue
            assert len(out) == announced


def test_the_formats_are_those_of_other_clients():
    assert zlib.decompress(compress(ZLIB, TEXT)) == TEXT
    assert decompress(ZLIB, zlib.compress(TEXT, 9), len(TEXT), max_size=2000) == TEXT
    # An LZ4 block without size before it: one literal run of five bytes.
    assert decompress(LZ4, b"\x50hello", 5, max_size=5) == b"hello"
    assert compress(LZ4, b"hello") == b"\x50hello"
    # Raw Snappy: size as varint, one literal.
    assert compress(SNAPPY, b"hello") == b"\x05\x10hello"
    assert decompress(SNAPPY, b"\x05\x10hello", 5, max_size=5) == b"hello"
    assert compress(ZSTD, TEXT).startswith(b"\x28\xb5\x2f\xfd")
    assert decompress(ZSTD, bytes(cramjam.zstd.compress(TEXT, 19)), len(TEXT), max_size=2000) == TEXT
