"""Messages with the official methods."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_txn import client as ours
from pulsar_txn.client import Message as OurMessage
from pulsar_txn.client import errors
from pulsar_txn.compat.enums import CompressionType
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.ids import MessageId
from pulsar_txn.compat.schema import Schema


@attrs.frozen
class EncryptionKey:
    """A data key wrapped with one public key: the name of that, the wrapped key, and what travels with it."""

    key: str
    value: bytes = attrs.field(repr=False)
    metadata: dict[str, str]


class EncryptionContext:
    """How a message was encrypted, for programs that decrypt it themselves; everything is a method."""

    def __init__(self, context: ours.EncryptionContext) -> None:
        self._context = context

    def keys(self) -> list[EncryptionKey]:
        """The data key, wrapped with each public key."""
        return [EncryptionKey(name, key.value, dict(key.metadata)) for name, key in self._context.keys.items()]

    def param(self) -> bytes:
        """The nonce."""
        return self._context.param

    def algorithm(self) -> str:
        """What the sender calls its cipher; empty for the usual one."""
        return self._context.algorithm

    def compression_type(self) -> CompressionType:
        """How the payload was compressed before."""
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
        """How often it was delivered before."""
        return self._message.redelivery_count

    def schema_version(self) -> str:
        """The schema version's bytes as the official client shows them: text, one character per byte."""
        return self._message.schema_version.decode("latin-1")

    def producer_name(self) -> str:
        """Who sent it."""
        return self._message.producer_name

    def has_null_value(self) -> bool:
        """True if it is a tombstone."""
        return self._message.is_tombstone

    def encryption_context(self) -> EncryptionContext | None:
        """How it was encrypted; None when it was not."""
        context = self._message.encryption_context
        return None if context is None else EncryptionContext(context)

    def __repr__(self) -> str:
        return repr(self._message)


class Outgoing:
    """What a `message_router` is shown: a message that is about to be sent."""

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
