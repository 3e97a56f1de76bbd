"""Reading topics whose schema is not known before (what other clients call AUTO_CONSUME)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.avro import AvroSchema
from pulsar_txn.client.schema.base import (
    AVRO,
    JSON,
    PROTOBUF_NATIVE,
    STRING,
    BytesSchema,
    JsonSchema,
    Schema,
    SchemaInfo,
    StringSchema,
    WrittenSchema,
)
from pulsar_txn.client.schema.primitives import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
)
from pulsar_txn.client.schema.protobuf import ProtobufNativeSchema, message_class

_NUMBERS: Final[dict[int, Schema[Any]]] = {
    5: BOOLEAN_SCHEMA,
    6: INT8_SCHEMA,
    7: INT16_SCHEMA,
    8: INT32_SCHEMA,
    9: INT64_SCHEMA,
    10: FLOAT_SCHEMA,
    11: DOUBLE_SCHEMA,
}
"""By Pulsar's numbers of the types."""

_MOST_WRITERS: Final = 1000


class AutoSchema:
    """For consumers and readers only: each message is read by what it was written with.

    Values are str, numbers, bool, dicts (Avro, JSON), Protobuf messages of classes made from the writer's descriptors, and
    bytes where there is no schema, or one of a kind that is not among these. Avro needs the extra `avro`.
    """

    def __init__(self) -> None:
        self.info: SchemaInfo | None = None
        self._writers: dict[SchemaInfo, Schema[Any]] = {}

    def encode(self, value: Any) -> bytes:
        """SchemaMismatch: what to write is for the program to say."""
        raise SchemaMismatch("AutoSchema only reads", hint="create the producer with the schema of its values")

    def decode(self, payload: bytes) -> Any:
        """The payload: nothing is known of it."""
        return payload

    def decode_written(self, payload: bytes, writer: SchemaInfo) -> Any:
        """The value of a payload that was written with the schema `writer`."""
        schema = self._writers.get(writer)
        if schema is None:
            schema = _schema_of(writer)
            if len(self._writers) >= _MOST_WRITERS:
                self._writers.clear()
            self._writers[writer] = schema
        return schema.decode(payload)


class AutoProduceSchema:
    """For producers that send payloads which others have encoded: bytes, checked with the topic's own schema.

    The schema is asked for when the producer is made; what it cannot read is SchemaMismatch at `send`. Without one on the
    topic, and with kinds that cannot be read here, bytes are sent as they are. Avro needs the extra `avro`.
    """

    info: SchemaInfo | None = None

    def encode(self, value: bytes) -> bytes:
        """SchemaMismatch: only a producer knows the topic."""
        raise SchemaMismatch("AutoProduceSchema is for producers", hint=f"{type(value).__name__} of which topic?")

    def decode(self, payload: bytes) -> bytes:
        """The payload itself."""
        return payload

    def of_topic(self, info: SchemaInfo | None) -> Schema[bytes]:
        """The schema that checks payloads by the topic's."""
        return BytesSchema() if info is None else _Checked(info)


class _Checked(BytesSchema):
    """Bytes that another schema can read."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = self._written = info
        self._reader = _schema_of(info)

    def encode(self, value: bytes | bytearray | memoryview) -> bytes:
        """The value itself, if it can be read."""
        payload = super().encode(value)
        if isinstance(self._reader, WrittenSchema):
            self._reader.decode_written(payload, self._written)
        else:
            self._reader.decode(payload)
        return payload


def _schema_of(writer: SchemaInfo) -> Schema[Any]:
    make: dict[int, Callable[[], Schema[Any]]] = {
        STRING: StringSchema,
        JSON: JsonSchema,
        AVRO: lambda: AvroSchema(_text(writer)),
        PROTOBUF_NATIVE: lambda: ProtobufNativeSchema(message_class(writer)),
    }
    if writer.type in _NUMBERS:
        return _NUMBERS[writer.type]
    try:
        return make.get(writer.type, BytesSchema)()
    except InvalidConfiguration as error:
        raise SchemaMismatch(f"the writer's schema {writer.name} cannot be used: {error}") from error


def _text(writer: SchemaInfo) -> str:
    try:
        return writer.data.decode()
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f"its definition is not UTF-8: {error}") from error
