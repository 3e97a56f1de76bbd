"""An entry opened: checked, decompressed, and cut into messages, for programs that take many at once."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from pulsar_txn.client.receive.entry_verification import BeyondUsError, checked, decompressed
from pulsar_txn.client.receive.message import single_row
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import BatchMessage, split_batch
from pulsar_txn.wire.entries import split_entry
from pulsar_txn.wire.errors import MalformedBatch, WireError


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
