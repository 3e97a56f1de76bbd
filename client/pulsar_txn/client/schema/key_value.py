"""Pairs of a key and a value, each with a schema of its own, as Java's `Schema.KeyValue`.

INLINE: both in the payload, each after its length (4 bytes, big-endian; -1 for None). SEPARATED: the payload is the value,
and the message's key is the key, as Base64; so routing, Key_Shared and compaction go by it.
"""

from __future__ import annotations

import base64
import enum
import json
import struct
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pulsar_txn.client._validation import validate_schema
from pulsar_txn.client.errors import SchemaMismatch
from pulsar_txn.client.schema.base import (
    AVRO,
    JSON,
    KEY_VALUE,
    PROTOBUF_NATIVE,
    STRING,
    EncodedPair,
    Schema,
    SchemaInfo,
    WrittenSchema,
)

K = TypeVar("K")
V = TypeVar("V")

_SIZE: Final = struct.Struct(">i")
_ENCODING: Final = "kv.encoding.type"
_BYTES: Final = "BYTES"
_NAMES: Final = {
    STRING: "STRING",
    JSON: "JSON",
    AVRO: "AVRO",
    5: "BOOLEAN",
    6: "INT8",
    7: "INT16",
    8: "INT32",
    9: "INT64",
    10: "FLOAT",
    11: "DOUBLE",
    12: "DATE",
    13: "TIME",
    14: "TIMESTAMP",
    16: "INSTANT",
    17: "LOCAL_DATE",
    18: "LOCAL_TIME",
    19: "LOCAL_DATE_TIME",
    KEY_VALUE: "KEY_VALUE",
    PROTOBUF_NATIVE: "PROTOBUF_NATIVE",
}
"""Java's names of the types, which the properties of such a schema hold."""

_NUMBERS: Final = {name: number for number, name in _NAMES.items()}


class KeyValue(NamedTuple, Generic[K, V]):
    """A value of `KeyValueSchema`; either part may be None."""

    key: K | None
    value: V | None


class KeyValueEncoding(enum.Enum):
    """Place of the key: in the payload, before the value, or into the message's key."""

    INLINE = "INLINE"
    SEPARATED = "SEPARATED"


class KeyValueSchema(Generic[K, V]):
    """Values are `KeyValue(key, value)`; `key` and `value` are the schemas of the parts.

    With SEPARATED the message's key is the key, so `key=` cannot be given to a send, and a value of None is a tombstone.
    Both ends need the same encoding. Avro parts are read with the definition that they were written with.
    """

    def __init__(self, key: Schema[K], value: Schema[V], encoding: KeyValueEncoding = KeyValueEncoding.INLINE) -> None:
        validate_schema(key, "key")
        validate_schema(value, "value")
        self._key = key
        self._value = value
        self.encoding = encoding
        self.info: SchemaInfo | None = pair_info(key.info, value.info, encoding)
        if encoding is KeyValueEncoding.SEPARATED:
            self.encode_pair = self._encode_pair
            self.decode_pair = self._decode_pair
        if isinstance(key, WrittenSchema) or isinstance(value, WrittenSchema):
            self.decode_written = self._decode_written

    def encode(self, pair: KeyValue[K, V]) -> bytes:
        """The payload; with SEPARATED that of the value alone."""
        if self.encoding is KeyValueEncoding.SEPARATED:
            return self._encode_pair(pair).payload
        key, value = _parts(pair)
        return join_pair(None if key is None else self._key.encode(key), None if value is None else self._value.encode(value))

    def decode(self, payload: bytes) -> KeyValue[K, V]:
        """The pair of a payload; SchemaMismatch. With SEPARATED the key is None: it is not in the payload."""
        if self.encoding is KeyValueEncoding.SEPARATED:
            return self._decode_pair(None, payload, None)
        key, value = split_pair(payload)
        return KeyValue(None if key is None else self._key.decode(key), None if value is None else self._value.decode(value))

    def _encode_pair(self, pair: KeyValue[K, V]) -> EncodedPair:
        key, value = _parts(pair)
        text = None if key is None else base64.b64encode(self._key.encode(key)).decode()
        return EncodedPair(b"" if value is None else self._value.encode(value), text, value is None)

    def _decode_pair(self, key: bytes | None, payload: bytes | None, writer: SchemaInfo | None) -> KeyValue[K, V]:
        infos = (None, None) if writer is None else parts_of(writer)
        return KeyValue(_decoded(self._key, key, infos[0]), _decoded(self._value, payload, infos[1]))

    def _decode_written(self, payload: bytes, writer: SchemaInfo) -> KeyValue[K, V]:
        if self.encoding is KeyValueEncoding.SEPARATED:
            return self._decode_pair(None, payload, writer)
        key, value = split_pair(payload)
        infos = parts_of(writer)
        return KeyValue(_decoded(self._key, key, infos[0]), _decoded(self._value, value, infos[1]))


def _parts(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise SchemaMismatch(f"KeyValue(key, value) is needed, not {type(pair).__name__}")
    return pair


def _decoded(schema: Schema[Any], payload: bytes | None, writer: SchemaInfo | None) -> Any:
    if payload is None:
        return None
    if writer is not None and isinstance(schema, WrittenSchema):
        return schema.decode_written(payload, writer)
    return schema.decode(payload)


def join_pair(key: bytes | None, value: bytes | None) -> bytes:
    """The payload of an INLINE pair."""
    parts = ((_SIZE.pack(-1), b"") if part is None else (_SIZE.pack(len(part)), part) for part in (key, value))
    return b"".join(piece for part in parts for piece in part)


def split_pair(payload: bytes) -> tuple[bytes | None, bytes | None]:
    """Both parts; SchemaMismatch when the lengths do not fit."""
    parts: list[bytes | None] = []
    position = 0
    for _ in range(2):
        begin = position + _SIZE.size
        size = _SIZE.unpack_from(payload, position)[0] if begin <= len(payload) else -2
        position = begin + max(size, 0)
        if size < -1 or position > len(payload):
            raise SchemaMismatch("the payload is no pair of key and value")
        parts.append(None if size < 0 else payload[begin:position])
    if position != len(payload):
        raise SchemaMismatch(f"{len(payload) - position} bytes follow the pair of key and value")
    return parts[0], parts[1]


def pair_info(key: SchemaInfo | None, value: SchemaInfo | None, encoding: KeyValueEncoding) -> SchemaInfo:
    """Make what the broker is told of pairs of these; None stands for bytes."""
    properties = {}
    for part, info in (("key", key), ("value", value)):
        properties[f"{part}.schema.name"] = "" if info is None else info.name
        properties[f"{part}.schema.type"] = _BYTES if info is None else _NAMES[info.type]
        properties[f"{part}.schema.properties"] = json.dumps({} if info is None else dict(info.properties))
    properties[_ENCODING] = encoding.value
    data = join_pair(b"" if key is None else key.data, b"" if value is None else value.data)
    return SchemaInfo(KEY_VALUE, data, "KeyValue", tuple(properties.items()))


def encoding_of(info: SchemaInfo) -> KeyValueEncoding:
    """The place of the keys of such pairs."""
    return KeyValueEncoding(dict(info.properties).get(_ENCODING, "INLINE"))


def parts_of(info: SchemaInfo) -> tuple[SchemaInfo | None, SchemaInfo | None]:
    """The schemas of key and value, None for bytes, and where nothing is said of them. SchemaMismatch for another kind."""
    if info.type != KEY_VALUE:
        raise SchemaMismatch(f"the message was written with a schema of type {info.type} ({info.name}), not KeyValue")
    properties = dict(info.properties)
    definitions = split_pair(info.data)
    found = []
    for part, data in zip(("key", "value"), definitions, strict=True):
        number = _NUMBERS.get(properties.get(f"{part}.schema.type", ""))
        name = properties.get(f"{part}.schema.name", "")
        found.append(None if number is None else SchemaInfo(number, data or b"", name))
    return found[0], found[1]
