"""What an entry holds, checked: how many messages, whether it can be read, how large it may become."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from pulsar_txn.client.chunks import MAX_CHUNKED
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.compression import decompress
from pulsar_txn.wire.entries import split_entry
from pulsar_txn.wire.errors import ChecksumMismatch, MalformedBatch, MalformedFrame, WireError

MAX_UNCOMPRESSED: Final = 64 * 1024 * 1024
"""Bytes that a payload may have after decompression."""

MAX_BATCH_MESSAGES: Final = 1_000_000
"""Messages that one entry may hold; more is taken for damage."""


def why_discarded(error: Exception) -> int:
    """Why an entry is discarded, as ACK says it."""
    return pb.CommandAck.ChecksumMismatch if isinstance(error, ChecksumMismatch) else pb.CommandAck.BatchDeSerializeError


def decompressed(metadata: pb.MessageMetadata, payload: bytes | memoryview, *, chunked: bool) -> bytes:
    """The payload behind its compression; MalformedBatch when it is not what it is said to be, or too large."""
    most = MAX_CHUNKED if chunked else MAX_UNCOMPRESSED
    return decompress(metadata.compression, payload, metadata.uncompressed_size, max_size=most)


def permits_of(data: bytes | memoryview) -> int:
    """How many permits an entry takes."""
    try:
        metadata = pb.MessageMetadata.FromString(split_entry(data)[0])
    except (WireError, DecodeError):
        return 1
    return max(metadata.num_messages_in_batch, 1)


def checked(metadata: pb.MessageMetadata) -> int:
    """The messages of a batch, 0 for none; MalformedBatch, and MalformedFrame where text is none (protobuf says bytes then)."""
    if type(metadata.producer_name) is not str or type(metadata.partition_key) is not str:
        raise MalformedFrame("producer name or partition key are not UTF-8")
    for pair in metadata.properties:
        if type(pair.key) is not str or type(pair.value) is not str:
            raise MalformedFrame("a property is not UTF-8")
    batch_size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if not 0 <= batch_size <= MAX_BATCH_MESSAGES:
        raise MalformedBatch(f"a batch of {batch_size} messages is announced")
    return batch_size
