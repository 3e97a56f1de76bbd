"""Messages and their ids with the official methods."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import attrs

from pulsar_txn import client as ids
from pulsar_txn.client import EARLIEST_ID, LATEST_ID, encryption, errors
from pulsar_txn.client import Message as OurMessage
from pulsar_txn.client.messages import deserialize_message_id, serialize_message_id
from pulsar_txn.compat.enums import CompressionType
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.schema import Schema


@functools.total_ordering
class MessageId:
    """A message's place: ledger, entry, partition, index in its batch; -1 if absent.

    Ordered by ledger, entry, batch index and partition; hashable, which the official one is not.
    """

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1) -> None:
        self._id = ids.MessageId(ledger_id, entry_id, partition, batch_index, 0)
        self._topic = ""
        self._message: OurMessage[Any] | None = None

    @classmethod
    def wrap(cls, msg_id: ids.MessageId | MessageId, topic: str = "", message: OurMessage[Any] | None = None) -> MessageId:
        """For the client: one of its ids as an official one; `message` is the received message that it is the id of."""
        self = cls()
        self._id = msg_id.native() if isinstance(msg_id, MessageId) else msg_id
        self._topic = topic
        self._message = message
        return self

    def native(self) -> ids.MessageId:
        """For the client: its id."""
        return self._id

    def acknowledged(self) -> OurMessage[Any] | ids.MessageId:
        """For the client: what an acknowledgement names, the received message where that is known."""
        return self._id if self._message is None else self._message

    def ledger_id(self) -> int:
        """The ledger."""
        return self._id.ledger_id

    def entry_id(self) -> int:
        """The entry in its ledger."""
        return self._id.entry_id

    def batch_index(self) -> int:
        """The index in its batch; -1 for a message of its own."""
        return self._id.batch_index

    def partition(self) -> int:
        """The partition; -1 for a topic without partitions."""
        return self._id.partition

    def topic_name(self, name: str | None = None) -> str:
        """The full name of its topic partition where that is known, else empty; with `name` it is set."""
        if name is not None:
            self._topic = name
        return self._topic

    def serialize(self) -> bytes:
        """Pulsar's MessageIdData."""
        return serialize_message_id(self._id)

    @staticmethod
    @mapped
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """The id of what `serialize` returned, here or in another client. ValueError for anything else."""
        return MessageId.wrap(deserialize_message_id(message_id_bytes), topic or "")

    def _key(self) -> tuple[int, int, int, int]:
        mine = self._id
        return (mine.ledger_id, mine.entry_id, mine.batch_index, mine.partition)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        mine = self._id
        return f"({mine.ledger_id},{mine.entry_id},{mine.partition},{mine.batch_index})"

    def __repr__(self) -> str:
        return f"MessageId{self}"


MessageId.earliest = MessageId.wrap(EARLIEST_ID)
MessageId.latest = MessageId.wrap(LATEST_ID)


@attrs.frozen
class EncryptionKey:
    """A data key wrapped with one public key: the name of that, the wrapped key, and what travels with it."""

    key: str
    value: bytes = attrs.field(repr=False)
    metadata: dict[str, str]


class EncryptionContext:
    """Encryption of a message, for programs that decrypt it themselves; everything is a method."""

    def __init__(self, context: encryption.EncryptionContext) -> None:
        self._context = context

    def keys(self) -> list[EncryptionKey]:
        """The data key, wrapped with each public key."""
        return [EncryptionKey(name, key.value, dict(key.metadata)) for name, key in self._context.keys.items()]

    def param(self) -> bytes:
        """The nonce."""
        return self._context.param

    def algorithm(self) -> str:
        """The sender's name of its cipher; empty for the usual one."""
        return self._context.algorithm

    def compression_type(self) -> CompressionType:
        """The compression of the payload before."""
        return CompressionType(self._context.compression)

    def uncompressed_message_size(self) -> int:
        """Bytes of the payload before compression; 0 without compression."""
        return self._context.uncompressed_size if self._context.compression else 0

    def batch_size(self) -> int:
        """Messages of the batch; -1 without one."""
        return self._context.batch_size or -1

    def is_decryption_failed(self) -> bool:
        """True if the message was handed out as it came."""
        return self._context.decryption_failed

    def __repr__(self) -> str:
        return f"EncryptionContext(keys={self.keys()}, is_decryption_failed={self.is_decryption_failed()})"


class Message:
    """A received message; everything is a method."""

    def __init__(self, message: OurMessage[Any], schema: Schema) -> None:
        self._message = message
        self._schema = schema

    def native(self) -> OurMessage[Any]:
        """For the client: its message."""
        return self._message

    def data(self) -> bytes:
        """The payload."""
        return self._message.data

    @mapped
    def value(self) -> Any:
        """The payload decoded by the schema; None for a tombstone."""
        try:
            return self._schema.decode_message(self)
        except errors.AlreadyClosed:
            return self._schema.decode(self._message.data)

    def properties(self) -> dict[str, str]:
        """The properties."""
        return dict(self._message.properties)

    def partition_key(self) -> str:
        """The partition key; empty without one."""
        return self._message.key or ""

    def ordering_key(self) -> str:
        """The ordering key as text; empty without one."""
        key = self._message.ordering_key
        return "" if key is None else key.decode(errors="surrogateescape")

    def publish_timestamp(self) -> int:
        """Milliseconds since the epoch, by the sender's clock."""
        return self._message.publish_time_ms

    def event_timestamp(self) -> int:
        """Milliseconds since the epoch, as the sender said; 0 when it did not."""
        return self._message.event_time_ms or 0

    def message_id(self) -> MessageId:
        """Its id."""
        return MessageId.wrap(self._message.message_id, self._message.topic, self._message)

    def topic_name(self) -> str:
        """The full name of the topic partition."""
        return self._message.topic

    def redelivery_count(self) -> int:
        """The number of its deliveries before."""
        return self._message.redelivery_count

    def schema_version(self) -> str:
        """The schema version's bytes as the official client shows them: text, one character per byte."""
        return self._message.schema_version.decode("latin-1")

    def producer_name(self) -> str:
        """The name of its producer."""
        return self._message.producer_name

    def has_null_value(self) -> bool:
        """True if it is a tombstone."""
        return self._message.is_tombstone

    def encryption_context(self) -> EncryptionContext | None:
        """Its encryption; None when it was not encrypted."""
        context = self._message.encryption_context
        return None if context is None else EncryptionContext(context)

    def __repr__(self) -> str:
        return repr(self._message)


class Outgoing:
    """Message that is about to be sent, as a `message_router` is shown it."""

    def __init__(self, payload: bytes, options: dict[str, Any]) -> None:
        self._payload = payload
        self._options = options

    def data(self) -> bytes:
        """The payload."""
        return self._payload

    def properties(self) -> dict[str, str]:
        """The properties."""
        return dict(self._options.get("properties") or {})

    def partition_key(self) -> str:
        """The partition key; empty without one."""
        return self._options.get("key") or ""

    def ordering_key(self) -> str:
        """The ordering key; empty without one."""
        return (self._options.get("ordering_key") or b"").decode()

    def event_timestamp(self) -> int:
        """Milliseconds since the epoch; 0 when not set."""
        return self._options.get("event_time_ms") or 0
