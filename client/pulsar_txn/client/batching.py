"""From messages to entries: batches that collect messages of one fate, and their encoded form.

A batch holds messages of one transaction, or of none, never of both. Sequence ids are given when a batch is sealed,
so that what leaves is in ascending order however many batches were open side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from pulsar_txn.client._enlist import Enlisting, SendCounter
from pulsar_txn.client.crypto import Encryptor
from pulsar_txn.client.errors import MessageTooLarge
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch as encode_rows
from pulsar_txn.wire.compression import compress
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.ids import MessageId, TxnId

Row: TypeAlias = bytes | tuple[Any, ...]
"""One message as `wire.batches.encode_batch` takes it; see `row`."""

SendTicket: TypeAlias = "asyncio.Future[MessageId]"
"""What `send_nowait` returns: a future of the message's id."""


def fail_tickets(tickets: list[SendTicket], error: BaseException, *, looked_at: bool) -> None:
    """Fail those that are not done; with `looked_at` somebody reports it, and asyncio need not complain of a dropped one."""
    for ticket in tickets:
        if not ticket.done():
            ticket.set_exception(error)
            if looked_at:
                ticket.exception()


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


def row_sequence_id(message: Row) -> int | None:
    """The sequence id that the program gave to a message."""
    return message[4] if isinstance(message, tuple) and len(message) > 4 else None


def _has_base64_key(message: Row) -> bool:
    return isinstance(message, tuple) and len(message) > 7 and bool(message[7])


def row_payload(message: Row) -> bytes:
    """The payload of a message."""
    return message[0] if isinstance(message, tuple) else message


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
    payload = encode_rows(rows)
    packed = compress(compression, payload) if compression else payload
    return EncodedBatch(packed, len(rows), len(payload), compression)


class Alone(NamedTuple):
    """Why a message shares no batch: the time of its delivery, the clusters that it goes to (none: by the policies)."""

    deliver_at_ms: int | None = None
    replicate_to: tuple[str, ...] = ()


class Builder:
    """Messages that wait to leave together: one per (transaction, key group).

    With `alone` or `encoded` it holds one message, or one batch built elsewhere. `txn_id` stays None until the
    transaction has registered the partition (`registering` is its future); until then nothing leaves, and complete
    batches wait in `full`. `sends` is where the transaction counts the messages: the first of a batch when it comes, the
    others when the batch is complete (`counted` of them were). `in_flight` counts its sealed batches without receipt: while
    there is one, the next batch collects.
    """

    __slots__ = (
        "alone",
        "counted",
        "counted_size",
        "due",
        "encoded",
        "full",
        "futures",
        "group",
        "in_flight",
        "key",
        "registering",
        "rows",
        "sends",
        "size",
        "txn",
        "txn_id",
    )

    def __init__(
        self, key: object, txn: Enlisting | None, group: str | bytes | None = None, alone: Alone | None = None
    ) -> None:
        self.key = key
        self.txn = txn
        self.group = group
        self.alone = alone
        self.encoded: EncodedBatch | None = None
        self.txn_id: TxnId | None = None
        self.sends: SendCounter | None = None
        self.counted = self.counted_size = 0
        self.registering: asyncio.Future[TxnId] | None = None
        self.full: deque[tuple[list[Row], list[SendTicket], int]] = deque()
        self.rows: list[Row] = []
        self.futures: list[SendTicket] = []
        self.size = 0
        self.in_flight = 0
        self.due = 0.0

    @property
    def waits_for_registration(self) -> bool:
        """Whether the transaction has not registered the partition yet."""
        return self.txn is not None and self.txn_id is None

    def count(self) -> None:
        """Tell the transaction of the messages that the open batch got since its first, or since the last call."""
        if self.sends is not None:
            self.sends.started += len(self.rows) - self.counted
            self.sends.bytes += self.size - self.counted_size
            self.counted, self.counted_size = len(self.rows), self.size

    def complete(self) -> None:
        """What is open leaves together; each message by itself when it has to be alone."""
        self.count()
        if self.alone is None:
            self.full.append((self.rows, self.futures, self.size))
        else:
            for message, future in zip(self.rows, self.futures, strict=True):
                self.full.append(([message], [future], len(row_payload(message))))
        self.rows, self.futures, self.size = [], [], 0
        self.counted = self.counted_size = 0

    def give_up(self) -> tuple[list[SendTicket], int, int]:
        """The tickets of everything in it, how many messages and bytes that is; it is empty then."""
        if self.futures:
            self.complete()
        batches, self.full = self.full, deque()
        messages = sum(self.messages_of(rows) for rows, _, _ in batches)
        return [each for _, futures, _ in batches for each in futures], messages, sum(size for _, _, size in batches)

    def tickets(self) -> list[list[SendTicket]]:
        """Those of each batch."""
        batches = [futures for _, futures, _ in self.full]
        return [*batches, self.futures] if self.futures else batches

    def messages_of(self, rows: list[Row]) -> int:
        """How many messages a batch of these rows has."""
        return len(rows) if self.encoded is None else self.encoded.num_messages


class Pending:
    """A sealed batch or message on its way: everything needed to send it again, and to answer for it."""

    __slots__ = ("buffers", "builder", "deadline", "futures", "highest", "messages", "sequence_id", "size")

    def __init__(self, builder: Builder, futures: list[SendTicket], messages: int, size: int) -> None:
        self.builder = builder
        self.futures = futures
        self.messages = messages
        self.size = size
        self.sequence_id = -1
        self.highest = -1
        self.buffers: list[bytes] = []
        self.deadline = 0.0


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
        """The entry of one message that stands alone."""
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
            metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
        return metadata
