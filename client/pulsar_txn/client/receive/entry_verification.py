"""Verification of an entry: how many messages, whether it can be read, how large it may become."""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_txn.client.receive.message import single_row
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import BatchMessage, split_batch
from pulsar_txn.wire.compression import LZ4, SNAPPY, ZLIB, ZSTD, decompress
from pulsar_txn.wire.entries import split_entry
from pulsar_txn.wire.errors import ChecksumMismatch, MalformedBatch, MalformedFrame, WireError

MAX_BATCH_MESSAGES: Final = 1_000_000
"""Messages that one entry may hold; more is taken for damage."""

IMPOSSIBLE: Final = 2**31
"""Bytes that no client makes a payload of: sizes are signed 32-bit numbers with the others."""

_KNOWN: Final = frozenset((LZ4, ZLIB, ZSTD, SNAPPY))
_COMPRESSION: Final = pb.MessageMetadata.COMPRESSION_FIELD_NUMBER


class BeyondUsError(Exception):
    """An entry that is whole, as far as can be seen, but larger or newer than this program takes; says what to do."""


def why_discarded(error: Exception) -> int:
    """The reason for which an entry is discarded, as ACK says it."""
    return pb.CommandAck.ChecksumMismatch if isinstance(error, ChecksumMismatch) else pb.CommandAck.BatchDeSerializeError


def decompressed(metadata: pb.MessageMetadata, payload: bytes | memoryview, most: int) -> bytes | memoryview:
    """The payload after its compression; BeyondUsError when that is unknown, or the payload larger than `most` bytes.

    MalformedBatch when it is not what it is said to be.
    """
    kind, size = metadata.compression, metadata.uncompressed_size
    if not kind:
        if size and size != len(payload):
            _check_kind(metadata)
        return payload
    if kind not in _KNOWN:
        raise _too_new(kind)
    if most < size < IMPOSSIBLE:
        raise BeyondUsError(
            f"{size} bytes after decompression are more than max_uncompressed_bytes={most}: subscribe with a larger limit"
        )
    return decompress(kind, payload, size, max_size=most)


def _check_kind(metadata: pb.MessageMetadata) -> None:
    """A number that our protocol does not have is no value of the field; protobuf puts it aside."""
    unknown = UnknownFieldSet(metadata)
    for index in range(len(unknown)):
        if unknown[index].field_number == _COMPRESSION:
            raise _too_new(unknown[index].data)


def _too_new(kind: object) -> BeyondUsError:
    return BeyondUsError(f"compression {kind} is unknown, its sender is newer than this program: update pulsar-txn")


def permits_of(data: bytes | memoryview) -> int:
    """The number of permits that an entry takes."""
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


class UnreadableEntryError(ValueError):
    """An entry that is damaged, encrypted, or newer or larger than this program takes; the text says which."""


class OpenedEntry(NamedTuple):
    """The metadata of an entry, its payload without compression, and its number of messages: 0 when it is not a batch."""

    metadata: pb.MessageMetadata
    payload: bytes | memoryview
    batch_size: int


def open_entry(data: bytes, *, max_uncompressed_bytes: int = 256 * 1024 * 1024) -> OpenedEntry:
    """Check and decompress an entry. The payload of a chunk is a part of a message; raises UnreadableEntryError."""
    try:
        head, payload = split_entry(data)
        metadata = pb.MessageMetadata.FromString(head)
        batch_size = checked(metadata)
        if metadata.encryption_keys:
            raise UnreadableEntryError(f"it is encrypted with the key {metadata.encryption_keys[0].key!r}")
        if metadata.num_chunks_from_msg > 1:
            return OpenedEntry(metadata, payload, 0)
        return OpenedEntry(metadata, decompressed(metadata, payload, max_uncompressed_bytes), batch_size)
    except (WireError, DecodeError, MalformedBatch, BeyondUsError) as error:
        raise UnreadableEntryError(str(error)) from error


def join_chunks(metadata: pb.MessageMetadata, chunks: list[bytes], *, max_uncompressed_bytes: int = 256 * 1024 * 1024) -> bytes:
    """The payload of a message in chunks, from the payloads of all its entries. UnreadableEntryError."""
    try:
        return bytes(decompressed(metadata, b"".join(chunks), max_uncompressed_bytes))
    except (WireError, MalformedBatch, BeyondUsError) as error:
        raise UnreadableEntryError(str(error)) from error


def split_entry_payload(opened: OpenedEntry) -> tuple[list[bytes], dict[int, int], dict[int, BatchMessage]]:
    """Payloads, sequence ids by index, and whole messages by index. UnreadableEntryError.

    Whole are messages that have more than a payload and a sequence id: `(payload, properties, key, event_time_ms, sequence_id,
    ordering_key, is_tombstone, is_compacted_out, key_is_base64)`.
    """
    try:
        if opened.batch_size:
            return split_batch(opened.payload, opened.batch_size)
        row = single_row(opened.metadata, bytes(opened.payload))
    except (WireError, MalformedBatch, UnicodeDecodeError) as error:
        raise UnreadableEntryError(str(error)) from error
    plain = row[1] is None and row[2] is None and not row[3] and row[5] is None and not row[6]
    return [row[0]], {}, {} if plain else {0: row}
