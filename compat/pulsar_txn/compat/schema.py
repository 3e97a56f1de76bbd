"""Schemas under the official names. A value is encoded in the caller's thread, and decoded by `message.value()`.

`JsonSchema`, `AvroSchema` take an attrs class, a dataclass or a pydantic model, or a `Record` of `compat.schema`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pulsar_txn.client import JsonSchema as OurJsonSchema
from pulsar_txn.client import Schema as OurSchema
from pulsar_txn.client.inside import PROTOBUF_NATIVE, SchemaInfo, need
from pulsar_txn.compat.records import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    Record,
    String,
)

if TYPE_CHECKING:
    from pulsar_txn.compat.messages import Message

_SCHEMA_TYPES = {"STRING": 1, "JSON": 2, "PROTOBUF": 3, "AVRO": 4}


class Schema:
    """Base of the schemas, also for a program's own: override `encode` and `decode`.

    `record_cls` is the class of the values, `schema_type` Pulsar's number (0: just bytes), `schema_definition` what the
    broker keeps (a mapping or None), `schema_name` its name.
    """

    def __init__(self, record_cls: Any, schema_type: Any, schema_definition: Any, schema_name: str) -> None:
        self._record_cls = record_cls
        self._schema_info = _info(int(schema_type), schema_definition, schema_name)

    def encode(self, obj: Any) -> bytes:
        """The payload of a value; TypeError for a value of another class."""
        raise TypeError(f"{type(self).__name__} has no encode")

    def decode(self, data: bytes) -> Any:
        """The value of a payload."""
        raise TypeError(f"{type(self).__name__} has no decode")

    def decode_message(self, msg: Message) -> Any:
        """The value of a received message."""
        return self.decode(msg.data())

    def schema_info(self) -> SchemaInfo | None:
        """What the broker is told; None for just bytes."""
        return self._schema_info

    def attach_client(self, client: Any) -> None:
        """Nothing: schemas need no client here."""

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self._schema_info)

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            raise TypeError(f"{self._record_cls.__name__} is needed, not {type(obj).__name__}")

    def __str__(self) -> str:
        return type(self).__name__


def _info(schema_type: int, definition: Any, name: str) -> SchemaInfo | None:
    if schema_type <= 0:
        return None
    data = b"" if definition is None else json.dumps(definition).encode()
    return SchemaInfo(schema_type, data, name)


class PreEncoded:
    """A schema of our client for payloads that are encoded already; told to the broker as `info`."""

    def __init__(self, info: SchemaInfo | None) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        """As it is."""
        return value

    def decode(self, payload: bytes) -> bytes:
        """As it is."""
        return payload


class PreEncodedWritten(PreEncoded):
    """As `PreEncoded`, and received values are read with the definition that they were written with."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.info)
        self._inner = inner

    def decode(self, payload: bytes) -> Any:
        """By the schema."""
        return self._inner.decode(payload)

    def decode_written(self, payload: bytes, writer: SchemaInfo) -> Any:
        """By the schema and its writer's."""
        return self._inner.decode_written(payload, writer)


class BytesSchema(Schema):
    """Payloads as they are."""

    def __init__(self) -> None:
        super().__init__(bytes, 0, None, "BYTES")

    def encode(self, obj: Any) -> bytes:
        """The bytes themselves; TypeError for anything else."""
        self._validate_object_type(obj)
        return bytes(obj)

    def decode(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data


class StringSchema(Schema):
    """Text as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, _SCHEMA_TYPES["STRING"], None, "STRING")

    def encode(self, obj: Any) -> bytes:
        """UTF-8 bytes; TypeError for anything but text."""
        self._validate_object_type(obj)
        return str(obj).encode()

    def decode(self, data: bytes) -> str:
        """Text of UTF-8 bytes."""
        return data.decode()


class JsonSchema(Schema):
    """JSON documents of a Record, an attrs class, a dataclass or a pydantic model; written compactly."""

    def __init__(self, record_cls: Any) -> None:
        self._of_record = isinstance(record_cls, type) and issubclass(record_cls, Record)
        self._inner: OurJsonSchema[Any] | None = None if self._of_record else OurJsonSchema(record_cls)
        super().__init__(record_cls, _SCHEMA_TYPES["JSON"], record_cls.schema() if self._of_record else None, "JSON")

    def encode(self, obj: Any) -> bytes:
        """UTF-8 JSON; TypeError for a value of another class."""
        self._validate_object_type(obj)
        if self._inner is not None:
            return self._inner.encode(obj)
        return json.dumps(obj.as_document(), separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes) -> Any:
        """A value of the class."""
        return self._record_cls(**json.loads(data)) if self._inner is None else self._inner.decode(data)

    def schema_info(self) -> SchemaInfo | None:
        """The class's definition."""
        return self._schema_info if self._inner is None else self._inner.info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self.schema_info())


class AvroSchema(Schema):
    """Avro of a Record, an attrs class, a dataclass or a pydantic model; or of dicts, with a definition. Extra `avro`."""

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        if record_cls is None and schema_definition is None:
            raise AssertionError("give record_cls or schema_definition")
        self._of_record = isinstance(record_cls, type) and issubclass(record_cls, Record)
        definition = schema_definition or (record_cls.schema() if self._of_record else None)
        avro = need("pulsar_txn.client.schema.avro", "avro")
        self._inner = avro.AvroSchema(record_cls if definition is None else definition)
        super().__init__(record_cls or dict, _SCHEMA_TYPES["AVRO"], definition, "AVRO")

    def encode(self, obj: Any) -> bytes:
        """Avro's binary form; TypeError for a value of another class."""
        self._validate_object_type(obj)
        return self.encode_dict(obj.as_document(plain=False)) if self._of_record else self._encoded(obj)

    def encode_dict(self, d: dict[str, Any]) -> bytes:
        """Avro's binary form of a dict."""
        return self._encoded(d)

    def _encoded(self, value: Any) -> bytes:
        payload: bytes = self._inner.encode(value)
        return payload

    def decode(self, data: bytes) -> Any:
        """A value of the class, written with this very definition."""
        return self._of(self._inner.decode(data))

    def decode_message(self, msg: Message) -> Any:
        """A value of the class, read with its writer's definition."""
        return self._of(msg.native().value)

    def _of(self, value: Any) -> Any:
        return self._record_cls(**value) if self._of_record and value is not None else value

    def schema_info(self) -> SchemaInfo | None:
        """The definition."""
        info: SchemaInfo | None = self._inner.info
        return info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncodedWritten(self._inner)


class ProtobufNativeSchema(Schema):
    """Messages of one generated protobuf class."""

    def __init__(self, record_cls: Any) -> None:
        protobuf = need("pulsar_txn.client.schema.protobuf", "protobuf")
        self._inner = protobuf.ProtobufNativeSchema(record_cls)
        super().__init__(record_cls, PROTOBUF_NATIVE, None, "PROTOBUF_NATIVE")

    def encode(self, obj: Any) -> bytes:
        """The message's bytes; TypeError for a value of another class."""
        self._validate_object_type(obj)
        payload: bytes = self._inner.encode(obj)
        return payload

    def decode(self, data: bytes) -> Any:
        """The message of its bytes."""
        return self._inner.decode(data)

    def schema_info(self) -> SchemaInfo | None:
        """The class's descriptor."""
        info: SchemaInfo | None = self._inner.info
        return info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self.schema_info())


__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "String",
    "StringSchema",
]
