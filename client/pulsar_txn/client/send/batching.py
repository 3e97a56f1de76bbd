"""Messages and batches of them in their encoded form: rows, batches that are built elsewhere, and entries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import attrs

from pulsar_txn.client.errors import MessageTooLarge, SchemaMismatch
from pulsar_txn.client.schema.crypto import Encryptor
from pulsar_txn.client.state.outgoing import Row as Row
from pulsar_txn.client.state.outgoing import row_payload
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch as encode_rows
from pulsar_txn.wire.compression import compress
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.ids import MessageId, TxnId

SendTicket: TypeAlias = "asyncio.Future[MessageId]"
"""Result of `send_nowait`: a future of the message's id."""


def row(
    payload: bytes,
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int = 0,
    sequence_id: int | None = None,
    ordering_key: bytes | None = None,
    null_value: bool = False,
) -> Row:
    """One message of a batch; the payload itself when there is nothing else."""
    if key is None and sequence_id is None and not (properties or event_time_ms or ordering_key or null_value):
        return bytes(payload)
    return (payload, key, properties, event_time_ms, sequence_id, ordering_key, null_value)


def sized(message: object) -> tuple[Row, int]:
    """A row with bytes for its payload, and their number; SchemaMismatch when a schema has made something else of a value."""
    payload = message[0] if isinstance(message, tuple) else message
    if isinstance(payload, (bytearray, memoryview)):
        payload = bytes(payload)
    if not isinstance(payload, bytes):
        raise SchemaMismatch(f"the schema has made {type(payload).__name__} of the value", hint="encode() has to return bytes")
    return (payload, *message[1:]) if isinstance(message, tuple) else payload, len(payload)


def _has_base64_key(message: Row) -> bool:
    return isinstance(message, tuple) and len(message) > 7 and bool(message[7])


@attrs.frozen
class EncodedBatch:
    """A batch built by `encode_batch`, ready for `producer.send_encoded` of any producer, also in another process."""

    payload: bytes = attrs.field(repr=False)
    num_messages: int
    uncompressed_size: int
    compression: int = 0


def encode_batch(messages: Iterable[bytes | Row], *, compression: int = 0) -> EncodedBatch:
    """Build a batch of payloads (bytes) or rows (`row(payload, key=…, properties=…)`), outside of any producer.

    `compression` is Pulsar's number: 0 none, 1 LZ4, 2 ZLIB, 3 ZSTD, 4 SNAPPY. ValueError when there is no message.
    """
    rows = [message if isinstance(message, (bytes, tuple)) else bytes(message) for message in messages]
    if not rows:
        raise ValueError("a batch needs at least one message")
    return pack_batch(encode_rows(rows), len(rows), compression=compression)


def pack_batch(payload: bytes, num_messages: int, *, compression: int = 0) -> EncodedBatch:
    """A batch of messages that a program has encoded itself, one after the other: `payload` holds `num_messages` of them.

    Each is a size of 4 bytes, SingleMessageMetadata of that size, and the message. Nothing here looks inside.
    """
    packed = compress(compression, payload) if compression else payload
    return EncodedBatch(packed, num_messages, len(payload), compression)


class Alone(NamedTuple):
    """Reason for which a message shares no batch: its time of delivery, or its clusters (none: by the policies)."""

    deliver_at_ms: int | None = None
    replicate_to: tuple[str, ...] = ()


_MASK: Final = 2**64 - 1
_CHUNK_FIELDS: Final = 16
"""Bytes of a chunk's number and count in the metadata."""
_ENCRYPTION_FIELDS: Final = 2048
"""Bytes for the encrypted data keys in the metadata, and for what the cipher adds."""
_ABSENT: Final = (None, None, 0, None, None, False)


@attrs.frozen
class EntryFactory:
    """Turns rows into entries for one producer: its name, compression, schema version and encryption."""

    producer_name: str
    compression: int
    schema_version: bytes
    encryptor: Encryptor | None = None

    def batch(
        self, rows: list[Row], sequence_id: int, highest: int, now_ms: int, txn_id: TxnId | None, group: str | bytes | None
    ) -> bytes:
        """The entry of several messages."""
        batch = encode_batch(rows, compression=self.compression)
        return self.encoded(batch, sequence_id, highest, now_ms, txn_id, group, key_b64=_has_base64_key(rows[0]))

    def encoded(
        self,
        batch: EncodedBatch,
        sequence_id: int,
        highest: int,
        now_ms: int,
        txn_id: TxnId | None,
        group: str | bytes | None = None,
        *,
        key_b64: bool = False,
    ) -> bytes:
        """The entry of a batch that was built before."""
        metadata = self._metadata(sequence_id, now_ms, txn_id, batch.compression, batch.uncompressed_size)
        metadata.num_messages_in_batch = batch.num_messages
        metadata.highest_sequence_id = highest
        if isinstance(group, bytes):
            metadata.ordering_key = group
        elif group is not None:
            metadata.partition_key = group
            metadata.partition_key_b64_encoded = key_b64
        payload = batch.payload if self.encryptor is None else self.encryptor.seal(metadata, batch.payload)
        return encode_entry(metadata, payload)

    def single(self, message: Row, sequence_id: int, now_ms: int, txn_id: TxnId | None, alone: Alone | None) -> bytes:
        """The entry of one message that is alone."""
        metadata, packed = self._single(message, sequence_id, now_ms, txn_id, alone)
        return self._sealed(metadata, packed)

    def chunks(
        self,
        message: Row,
        sequence_id: int,
        now_ms: int,
        txn_id: TxnId | None,
        alone: Alone | None,
        max_bytes: int,
    ) -> list[bytes]:
        """The entries of one message, metadata included of at most `max_bytes` each; one when it fits (PIP-37)."""
        metadata, packed = self._single(message, sequence_id, now_ms, txn_id, alone)
        if len(packed) + metadata.ByteSize() <= max_bytes:
            return [self._sealed(metadata, packed)]
        metadata.uuid = f"{self.producer_name}-{sequence_id}"
        metadata.total_chunk_msg_size = len(packed)
        room = max_bytes - metadata.ByteSize() - _CHUNK_FIELDS - (0 if self.encryptor is None else _ENCRYPTION_FIELDS)
        if room < 1:
            raise MessageTooLarge(f"the message's properties have {metadata.ByteSize()} bytes, a chunk has {max_bytes}")
        metadata.num_chunks_from_msg = -(-len(packed) // room)
        entries = []
        for number in range(metadata.num_chunks_from_msg):
            metadata.chunk_id = number
            entries.append(self._sealed(metadata, packed[number * room : (number + 1) * room]))
        return entries

    def _sealed(self, metadata: pb.MessageMetadata, packed: bytes) -> bytes:
        if self.encryptor is not None:
            del metadata.encryption_keys[:]
            packed = self.encryptor.seal(metadata, packed)
        return encode_entry(metadata, packed)

    def _single(
        self, message: Row, sequence_id: int, now_ms: int, txn_id: TxnId | None, alone: Alone | None
    ) -> tuple[pb.MessageMetadata, bytes]:
        payload, key, properties, event_time_ms, _, ordering_key, null_value = (
            message[:7] if isinstance(message, tuple) and len(message) > 1 else (row_payload(message), *_ABSENT)
        )
        packed = compress(self.compression, payload) if self.compression else payload
        metadata = self._metadata(sequence_id, now_ms, txn_id, self.compression, len(payload))
        if key is not None:
            metadata.partition_key = key
            if _has_base64_key(message):
                metadata.partition_key_b64_encoded = True
        if properties:
            for name, value in properties.items():
                metadata.properties.add(key=name, value=value)
        if event_time_ms:
            metadata.event_time = event_time_ms
        if ordering_key is not None:
            metadata.ordering_key = ordering_key
        if null_value:
            metadata.null_value = True
        if alone is not None:
            if alone.deliver_at_ms is not None:
                metadata.deliver_at_time = alone.deliver_at_ms
            metadata.replicate_to.extend(alone.replicate_to)
        return metadata, packed

    def _metadata(
        self, sequence_id: int, now_ms: int, txn_id: TxnId | None, compression: int, uncompressed_size: int
    ) -> pb.MessageMetadata:
        metadata = pb.MessageMetadata(producer_name=self.producer_name, sequence_id=sequence_id & _MASK, publish_time=now_ms)
        if compression:
            metadata.compression = compression  # type: ignore[assignment]  # the generated stub wants the enum's type
            metadata.uncompressed_size = uncompressed_size
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if txn_id is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id[0] & _MASK, txn_id[1] & _MASK
        return metadata
