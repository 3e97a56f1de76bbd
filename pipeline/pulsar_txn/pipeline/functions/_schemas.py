"""Schemas by the names that a configuration gives: Pulsar's types, or a class of the function's own."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from pulsar_txn.client import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    AutoSchema,
    AvroSchema,
    BytesSchema,
    JsonSchema,
    Schema,
    StringSchema,
)
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.inside import SchemaInfo
from pulsar_txn.pipeline.functions._loading import load

_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": BOOLEAN_SCHEMA,
    "int8": INT8_SCHEMA,
    "int16": INT16_SCHEMA,
    "int32": INT32_SCHEMA,
    "int64": INT64_SCHEMA,
    "float": FLOAT_SCHEMA,
    "double": DOUBLE_SCHEMA,
}
_JSON: Final = 2
_AVRO: Final = 4


def schema_of(schema_type: str | None, type_class_name: str | None, py: str | None) -> Schema[Any] | None:
    """The schema with that type, for values of that class; None without a type. InvalidConfiguration for other names."""
    if schema_type is None:
        return None
    kind = schema_type.lower()
    if kind in ("bytes", "none"):
        return BytesSchema()
    if kind == "string":
        return StringSchema()
    if kind in ("auto_consume", "auto"):
        return AutoSchema()
    if kind in _PRIMITIVES:
        primitive: Schema[Any] = _PRIMITIVES[kind]
        return primitive
    if kind in ("json", "avro"):
        return _of_class(kind, None if type_class_name is None else load(type_class_name, py))
    if "." in schema_type:
        return _own(schema_type, py)
    raise InvalidConfiguration(
        f"there is no schema type {schema_type!r}",
        hint=f"write one of bytes, string, json, avro, auto_consume, {', '.join(_PRIMITIVES)}, or module.Class of a schema",
    )


def _of_class(kind: str, cls: Any) -> Schema[Any]:
    if cls is None:
        if kind == "json":
            return JsonSchema()
        raise InvalidConfiguration(
            "schema type avro needs the class of the values", hint="name it: inputTypeClassName, or outputTypeClassName"
        )
    official = sys.modules.get("pulsar.schema")
    if official is not None and isinstance(cls, type) and issubclass(cls, official.Record):
        return _RecordSchema(kind, cls, official)
    return JsonSchema(cls) if kind == "json" else AvroSchema(cls)


def _own(class_name: str, py: str | None) -> Schema[Any]:
    found = load(class_name, py)
    schema: Any = found() if isinstance(found, type) else found
    if not callable(getattr(schema, "encode", None)) or not callable(getattr(schema, "decode", None)):
        raise InvalidConfiguration(f"{class_name} is no schema", hint="it needs encode(value), decode(payload) and info")
    own: Schema[Any] = schema
    return own


class _RecordSchema:
    """Values of a `Record` of the official package, which encodes and decodes them itself."""

    def __init__(self, kind: str, record: Any, official: Any) -> None:
        self._inner = (official.JsonSchema if kind == "json" else official.AvroSchema)(record)
        definition = json.dumps(record.schema()).encode()
        self.info: SchemaInfo | None = SchemaInfo(_JSON if kind == "json" else _AVRO, definition, kind.upper())

    def encode(self, value: Any) -> bytes:
        """The payload of a record. SchemaMismatch."""
        try:
            return bytes(self._inner.encode(value))
        except Exception as error:
            raise SchemaMismatch(f"the value does not fit its record: {error!r}") from error

    def decode(self, payload: bytes) -> Any:
        """The record of a payload. SchemaMismatch."""
        try:
            return self._inner.decode(payload)
        except Exception as error:
            raise SchemaMismatch(f"the payload does not fit its record: {error!r}") from error
