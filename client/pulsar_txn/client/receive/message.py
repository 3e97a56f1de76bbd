"""A received message: cheap to make, with its fields as attributes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.base import EncodedPair, PairSchema, Schema, TextPair
from pulsar_txn.client.schema.crypto import EncryptionContext, encryption_context
from pulsar_txn.client.state.owners import bit_of
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import BatchMessage
from pulsar_txn.wire.ids import LATEST, MessageId, Position, TxnId, signed64, unsigned64

if TYPE_CHECKING:
    from pulsar_txn.client.receive.writer_schemas import WriterSchemas

T = TypeVar("T")

EARLIEST_ID: Final = MessageId(-1, -1)
"""Before the first message that the topic still has."""

LATEST_ID: Final = MessageId(*LATEST)
"""Behind the last message."""


class Source(Protocol):
    """Source of messages: the consumer of one partition, as messages and queues see it."""

    id: int
    topic: str
    partition: int
    schema: Schema[Any]
    pairs: PairSchema | None
    writers: WriterSchemas[Any] | None
    last: Message[Any] | None
    """Message that was handed out last."""

    def give_permits_back(self, count: int) -> None:
        """So many messages have left the queue."""
        ...

    def handed_out(self, last: Message[Any], count: int) -> None:
        """The program gets so many messages of the queue, this one last."""
        ...

    def taken_in_thread(self, message: Message[Any], post: Callable[[Callable[[], object]], object]) -> None:
        """A thread of the blocking client has taken a message, and holds the queue's guard."""
        ...

    def received(self, messages: Iterable[Message[Any]]) -> None:
        """The program has these, and is to acknowledge them in time."""
        ...

    def deliver_again(
        self, entries: Mapping[Position, tuple[int, int, tuple[int, int]]], copies: Iterable[Message[Any]] = ()
    ) -> None:
        """Have messages again: by entry `(bits, batch size, delivery)`, where bits 0 are all of it. See `Recall.these`."""
        ...


class Entry:
    """State that the messages of one entry share."""

    __slots__ = ("batch_size", "broker", "consumer", "delivery", "metadata", "position", "redelivery_count", "undecrypted")

    def __init__(
        self,
        consumer: Source,
        position: Position,
        metadata: pb.MessageMetadata,
        batch_size: int,
        redelivery_count: int,
        broker: pb.BrokerEntryMetadata | None = None,
        *,
        undecrypted: bool = False,
    ) -> None:
        self.consumer = consumer
        self.position = position
        self.metadata = metadata
        self.batch_size = batch_size
        self.redelivery_count = redelivery_count
        self.delivery = (-1, 0)
        """The generation of `owners` in which it came, and the bits that were live."""
        self.undecrypted = undecrypted
        self.broker = broker

    def admitted(self, delivery: tuple[int, int]) -> None:
        """Note the delivery in which its messages are queued."""
        self.delivery = delivery

    def once_more(self) -> Entry:
        """The same, for messages that are handed out again here: one delivery more."""
        redeliveries = self.redelivery_count + 1
        more = Entry(
            self.consumer,
            self.position,
            self.metadata,
            self.batch_size,
            redeliveries,
            self.broker,
            undecrypted=self.undecrypted,
        )
        more.delivery = self.delivery
        return more


class Message(Generic[T]):
    """One received message. Immutable; keeps the metadata of its entry alive, not the other messages of its batch."""

    __slots__ = ("_row", "entry", "index")

    def __init__(self, entry: Entry, index: int, row: BatchMessage) -> None:
        self.entry = entry
        self.index = index
        self._row = row

    def of(self, entry: Entry) -> Message[T]:
        """The same message, as part of another delivery of its entry."""
        return Message(entry, self.index, self._row)

    @property
    def data(self) -> bytes:
        """The payload, decompressed; empty for a tombstone."""
        return self._row[0]

    @property
    def value(self) -> T:
        """The payload decoded by the consumer's schema, again at each access; None for a tombstone. SchemaMismatch."""
        consumer = self.entry.consumer
        if consumer.pairs is not None:
            return self._pair(consumer.pairs, consumer.writers)  # type: ignore[no-any-return]  # T is what the schema makes
        if self.is_tombstone:
            return None  # type: ignore[return-value]  # whoever sends tombstones expects them
        if consumer.writers is not None:
            value: T = consumer.writers.decode(self._row[0], self.entry.metadata.schema_version, consumer.schema)
        else:
            value = consumer.schema.decode(self._row[0])
        return value

    def as_pair(self) -> EncodedPair:
        """Payload and key as they came, for sending it on."""
        return (EncodedPair if self._row[8] else TextPair)(self._row[0], self._row[2], self._row[6])

    def _pair(self, pairs: PairSchema, writers: WriterSchemas[Any] | None) -> Any:
        writer = None if writers is None else writers.writer(self.entry.metadata.schema_version)
        return pairs.decode_pair(self.key_bytes, None if self.is_tombstone else self._row[0], writer)

    @property
    def message_id(self) -> MessageId:
        """The message's place; unique in its topic."""
        entry = self.entry
        ledger_id, entry_id = entry.position
        return MessageId(ledger_id, entry_id, entry.consumer.partition, self.index, entry.batch_size if self.index >= 0 else 0)

    @property
    def topic(self) -> str:
        """The full name of the topic partition that it came from."""
        return self.entry.consumer.topic

    @property
    def key(self) -> str | None:
        """The partition key; in Base64 if the sender had bytes, as with `KeyValueSchema`: see `key_bytes`."""
        return self._row[2]

    @property
    def key_bytes(self) -> bytes | None:
        """The partition key as bytes. SchemaMismatch when it is said to be Base64 and is not."""
        key = self._row[2]
        if key is None or not self._row[8]:
            return None if key is None else key.encode()
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error as error:
            raise SchemaMismatch(f"the key {key!r} is no Base64: {error}") from error

    @property
    def ordering_key(self) -> bytes | None:
        """The key of Key_Shared subscriptions, where it differs from the partition key."""
        return self._row[5]

    @property
    def properties(self) -> Mapping[str, str]:
        """The message's properties; may be empty."""
        return self._row[1] or {}

    @property
    def event_time_ms(self) -> int | None:
        """Milliseconds since the epoch, as the sender said; None when it did not."""
        return self._row[3] or None

    @property
    def publish_time_ms(self) -> int:
        """Milliseconds since the epoch, by the sender's clock."""
        return self.entry.metadata.publish_time

    @property
    def broker_index(self) -> int | None:
        """The message's number in its partition, counted by the broker without gaps from 0; None if the broker does not count.

        Stock brokers do with `AppendIndexMetadataInterceptor` among their `brokerEntryMetadataInterceptors`, and tell with
        `exposingBrokerEntryMetadataToClientEnabled`.
        """
        broker, size = self.entry.broker, self.entry.batch_size
        if broker is None or not broker.HasField("index"):
            return None
        return broker.index if self.index < 0 else broker.index - size + 1 + self.index

    @property
    def broker_publish_time_ms(self) -> int | None:
        """Milliseconds since the epoch, by the broker's clock; None where it does not tell, see `broker_index`."""
        broker = self.entry.broker
        return broker.broker_timestamp if broker is not None and broker.HasField("broker_timestamp") else None

    @property
    def sequence_id(self) -> int:
        """The sender's sequence id."""
        own = self._row[4]
        return self.entry.metadata.sequence_id + max(self.index, 0) if own is None else own

    @property
    def producer_name(self) -> str:
        """The name of the producer that sent it."""
        return self.entry.metadata.producer_name

    @property
    def redelivery_count(self) -> int:
        """The number of its deliveries before: as the broker counts for its entry, and again here without the broker."""
        return self.entry.redelivery_count

    @property
    def txn_id(self) -> TxnId | None:
        """The transaction that it was sent in."""
        metadata = self.entry.metadata
        if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
            return TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)
        return None

    @property
    def schema_version(self) -> bytes:
        """The version of the topic's schema that it was sent with; empty without."""
        return self.entry.metadata.schema_version

    @property
    def encryption_context(self) -> EncryptionContext | None:
        """The end-to-end encryption of the message; None for a plain one."""
        return encryption_context(self.entry.metadata, decryption_failed=self.entry.undecrypted)

    @property
    def is_tombstone(self) -> bool:
        """True if the message deletes the value of its key."""
        return self._row[6]

    def __repr__(self) -> str:
        return f"<Message {self.message_id} of {self.topic}, {len(self.data)} bytes>"


def single_row(metadata: pb.MessageMetadata, payload: bytes) -> BatchMessage:
    """The message of an entry that is not a batch, in the form of a batch's messages."""
    return (
        payload,
        {pair.key: pair.value for pair in metadata.properties} or None,
        metadata.partition_key if metadata.HasField("partition_key") else None,
        metadata.event_time,
        None,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        metadata.null_value,
        False,
        metadata.partition_key_b64_encoded,
    )


def runs(messages: Iterable[Message[Any]]) -> list[list[Message[Any]]]:
    """Neighbours of the same entry together."""
    found: list[list[Message[Any]]] = []
    last: Any = None
    for message in messages:
        if message.entry is not last:
            last = message.entry
            found.append([])
        found[-1].append(message)
    return found


def bits_of(messages: Sequence[Message[Any]]) -> int:
    """The bits of messages of one entry."""
    bits = 0
    for message in messages:
        bits |= bit_of(message.index)
    return bits


def serialize_message_id(message_id: MessageId) -> bytes:
    """The id as bytes, for a store or a program in another language."""
    data = pb.MessageIdData(ledgerId=unsigned64(message_id.ledger_id), entryId=unsigned64(message_id.entry_id))
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index
    if message_id.batch_size > 0:
        data.batch_size = message_id.batch_size
    return data.SerializeToString()


def deserialize_message_id(data: bytes) -> MessageId:
    """The id of such bytes. InvalidConfiguration, a ValueError, for anything else."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise refused("data", data, "the bytes of a message id")
    try:
        parsed = pb.MessageIdData.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidConfiguration(f"these bytes are no message id: {error}") from error
    if not (parsed.HasField("ledgerId") and parsed.HasField("entryId")):
        raise InvalidConfiguration("these bytes are no message id: ledger and entry are missing")
    place = (signed64(parsed.ledgerId), signed64(parsed.entryId))
    return MessageId(*place, parsed.partition, parsed.batch_index, parsed.batch_size)
