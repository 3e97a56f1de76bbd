"""From messages to entries: batches that collect messages of one fate, and their encoded form.

A batch holds messages of one transaction, or of none, never of both. Sequence ids are given when a batch is sealed,
so that what leaves is in ascending order however many batches were open side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from pulsar_txn.client.errors import MessageTooLarge, PulsarError, SchemaMismatch, TransactionAborted, TransactionTimedOut
from pulsar_txn.client.schema.crypto import Encryptor
from pulsar_txn.client.txn.enlist import Enlisting, SendCounter
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch as encode_rows
from pulsar_txn.wire.compression import compress
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.ids import MessageId, TxnAction, TxnId

Row: TypeAlias = bytes | tuple[Any, ...]
"""One message as `wire.batches.encode_batch` takes it; see `row`."""

SendTicket: TypeAlias = "asyncio.Future[MessageId]"
"""What `send_nowait` returns: a future of the message's id."""

_new_tuple: Final[Callable[..., Any]] = tuple.__new__


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
    return pack_batch(encode_rows(rows), len(rows), compression=compression)


def pack_batch(payload: bytes, num_messages: int, *, compression: int = 0) -> EncodedBatch:
    """A batch of messages that a program has encoded itself, one after the other: `payload` holds `num_messages` of them.

    Each is a size of 4 bytes, SingleMessageMetadata of that size, and the message. Nothing here looks inside.
    """
    packed = compress(compression, payload) if compression else payload
    return EncodedBatch(packed, num_messages, len(payload), compression)


class Alone(NamedTuple):
    """Why a message shares no batch: the time of its delivery, the clusters that it goes to (none: by the policies)."""

    deliver_at_ms: int | None = None
    replicate_to: tuple[str, ...] = ()


class Builder:
    """Messages that wait to leave together: one per transaction (and one for none), or per key group of it.

    `full` holds complete batches in their order, among them unbatched messages and batches built elsewhere.
    `txn_id` stays None until the transaction has registered the partition (`registering` is its future); until then nothing
    leaves. `sends` is where the transaction counts the messages: the first of a batch when it comes, the others when the
    batch is complete (`counted` of them were). `in_flight` counts its sealed batches without receipt: while there is one,
    the next batch collects.
    """

    __slots__ = (
        "counted",
        "counted_size",
        "due",
        "fate",
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

    def __init__(self, key: object, txn: Enlisting | None, group: str | bytes | None = None) -> None:
        self.key = key
        self.txn = txn
        self.group = group
        self.fate: Fate | None = None
        self.txn_id: TxnId | None = None
        self.sends: SendCounter | None = None
        self.counted = self.counted_size = 0
        self.registering: asyncio.Future[TxnId] | None = None
        self.full: deque[Pending] = deque()
        self.rows: list[Row] = []
        self.futures: list[SendTicket] = []
        self.size = 0
        self.in_flight = 0
        self.due = 0.0

    @property
    def waits_for_registration(self) -> bool:
        """Whether the transaction has not registered the partition yet."""
        return self.txn is not None and self.txn_id is None

    def lateness(self) -> TransactionAborted | None:
        """Why its messages must not leave, or not again: a broker may hold a topic back for what comes after an abort."""
        if self.txn is None:
            return None
        if not self.txn.in_time():
            return TransactionTimedOut("the transaction was over before the message could leave", txn_id=self.txn_id)
        if self.fate is not None and self.fate.ended:
            return TransactionAborted("the transaction was over before the message could leave", txn_id=self.txn_id)
        return None

    def count(self) -> None:
        """Tell the transaction of the messages that the open batch got since its first, or since the last call."""
        if self.sends is not None:
            self.sends.started += len(self.rows) - self.counted
            self.sends.bytes += self.size - self.counted_size
            self.counted, self.counted_size = len(self.rows), self.size

    def complete(self) -> None:
        """What is open leaves together."""
        self.count()
        self.full.append(Pending(self, self.rows, self.futures, len(self.rows), self.size))
        self.rows, self.futures, self.size = [], [], 0
        self.counted = self.counted_size = 0

    def give_up(self) -> Pending | None:
        """Everything in it as one, to be failed; it is empty then. None when it is empty already."""
        if self.futures:
            self.complete()
        if not self.full:
            return None
        batches, self.full = self.full, deque()
        futures = [future for each in batches for future in each.futures]
        whole = Pending(self, [], futures, sum(each.messages for each in batches), sum(each.size for each in batches))
        whole.watchers = tuple(watcher for each in batches for watcher in each.watchers)
        self.in_flight += 1
        return whole


def not_again(in_flight: Iterable[Pending], topic: str, *, deduplicates: bool) -> dict[Pending, PulsarError]:
    """What must not be sent again, and why: a transaction is over, or would have a message twice.

    A broker that looks for duplicates tells the last sequence id that it has of this producer, and drops what it has
    got already; ours does so in transactions in any case. Any other stores it once more; a transaction is rather run again
    than committed like that.
    """
    given_up: dict[Pending, PulsarError] = {}
    doubtful = {each.builder.txn for each in in_flight if each.written and not deduplicates}
    for each in in_flight:
        error: PulsarError | None = each.builder.lateness()
        if error is None and each.builder.txn is not None and each.builder.txn in doubtful:
            text = f"the connection broke before the receipt, and {topic} does not look for duplicates"
            error = TransactionAborted(text, txn_id=each.builder.txn_id, hint="run the unit again, in a new transaction")
        if error is not None:
            given_up[each] = error
    return given_up


class _Both:
    """Tells who watches a batch that was cut in two: after both, the first error."""

    def __init__(self, watchers: tuple[Callable[[BaseException | None], object], ...]) -> None:
        self._watchers = watchers
        self._one_is_done = False
        self._error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        """One of them is."""
        self._error = self._error or error
        if self._one_is_done:
            for tell in self._watchers:
                tell(self._error)
        self._one_is_done = True


class Fate:
    """Whether a transaction is over, as far as one producer was told, and which sequence ids the program gave it there."""

    __slots__ = ("__weakref__", "ended", "given")

    def __init__(self) -> None:
        self.ended = False
        self.given: set[int] = set()

    def end(self, _outcome: TxnAction | None) -> None:
        """It has ended, or can no longer be used; sends of one that is being committed are answered before that."""
        self.ended = True


class Pending:
    """A complete batch, or a message alone: what it holds until it is sealed, then everything needed to send it again."""

    __slots__ = (
        "alone",
        "buffers",
        "builder",
        "deadline",
        "encoded",
        "futures",
        "highest",
        "messages",
        "rows",
        "sequence_id",
        "size",
        "watchers",
        "written",
    )

    def __init__(
        self,
        builder: Builder,
        rows: list[Row],
        futures: list[SendTicket],
        messages: int,
        size: int,
        alone: Alone | None = None,
        encoded: EncodedBatch | None = None,
    ) -> None:
        self.builder = builder
        self.rows = rows
        self.futures = futures
        self.messages = messages
        self.size = size
        self.alone = alone
        self.encoded = encoded
        self.sequence_id = -1
        self.highest = -1
        self.buffers: list[bytes] = []
        self.deadline = 0.0
        self.watchers: tuple[Callable[[BaseException | None], object], ...] = ()
        """Called with its error, or None, once it is done."""
        self.written = False
        """Whether a connection took it, so that a broker may have it."""

    def chunk(self) -> Pending:
        """For one of its chunks but the last: that counts for nothing, and when it fails so does the message."""
        chunk = Pending(self.builder, [], self.futures, 0, 0)
        chunk.sequence_id = chunk.highest = self.sequence_id
        self.builder.in_flight += 1
        return chunk

    def halves(self) -> tuple[Pending, Pending]:
        """Two of it; who watches it is told when both are done."""
        middle = len(self.rows) // 2
        first, second = (
            Pending(self.builder, rows, futures, len(rows), sum(len(row_payload(each)) for each in rows))
            for rows, futures in (
                (self.rows[:middle], self.futures[:middle]),
                (self.rows[middle:], self.futures[middle:]),
            )
        )
        if self.watchers:
            first.watchers = second.watchers = (_Both(self.watchers).done,)
        return first, second

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[BaseException | None]:
        """A future of its error, or None, which no program can cancel as it can a ticket."""
        watcher: asyncio.Future[BaseException | None] = loop.create_future()
        self.watchers += (watcher.set_result,)
        return watcher

    def succeed(self, ledger_id: int, entry_id: int, partition: int) -> None:
        """Give every message its id."""
        futures, size = self.futures, self.messages
        if len(futures) == 1:  # one message, or a batch built elsewhere
            if not futures[0].done():
                futures[0].set_result(_new_tuple(MessageId, (ledger_id, entry_id, partition, -1, size if size > 1 else 0)))
            return
        for index, future in enumerate(futures):
            if not future.done():
                future.set_result(_new_tuple(MessageId, (ledger_id, entry_id, partition, index, size)))

    def fail(self, error: BaseException) -> None:
        """Give every message the error; a transaction reports it, and asyncio need not complain of a dropped ticket."""
        looked_at = self.builder.txn is not None
        for ticket in self.futures:
            if not ticket.done():
                ticket.set_exception(error)
                if looked_at:
                    ticket.exception()


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
