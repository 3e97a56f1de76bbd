"""Schemas of topics as types of Spark, those that options ask for, and Protobuf messages as structs.

A topic has the type of its values, and of its keys when it has pairs. The options `schema`, `schemaType`, `keySchema` and
`keyValueEncoding` choose a schema for the sink.

In Protobuf (Pulsar's PROTOBUF_NATIVE) numbers without a sign are the next larger type (uint64: decimal(20,0)), and enums are
the names of their values. A field without presence that was not written has its default; with presence it is null.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import attrs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pulsar_txn.client import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.encoded import SchemaInfo, encoding_of, message_class, pair_info, parts_of
from pulsar_txn.client.schemas import KeyValueEncoding
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import PRIMITIVE_SCHEMAS, Options
from pulsar_txn.pipeline.spark.schemas.definitions import parsed, type_of
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES

_UNSIGNED: Final = (4, 6)
_PLAIN: Final[dict[int, DataType]] = {
    1: DoubleType(),
    2: FloatType(),
    3: LongType(),
    4: DecimalType(20, 0),
    5: IntegerType(),
    6: DecimalType(20, 0),
    7: LongType(),
    8: BooleanType(),
    9: StringType(),
    12: BinaryType(),
    13: LongType(),
    14: StringType(),
    15: IntegerType(),
    16: LongType(),
    17: IntegerType(),
    18: LongType(),
}
"""By the numbers of Protobuf's field types: double, float, int64, uint64, int32, fixed64, fixed32, bool, string, bytes,
uint32, enum, sfixed32, sfixed64, sint32, sint64."""

Convert = Callable[[Any], Any]


def type_of_message(topic: str, descriptor: Any, within: tuple[str, ...] = ()) -> StructType:
    """The struct of a message's fields."""
    if descriptor.full_name in within:
        what = f"the message {descriptor.full_name} contains itself, which Spark has no type for"
        raise OptionError(f"{topic}: {what}: read bytes")
    path = (*within, descriptor.full_name)
    return StructType([StructField(field.name, _type_of_field(topic, field, path)) for field in descriptor.fields])


def _type_of_field(topic: str, field: Any, within: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_type_of_one(topic, key, within), _type_of_one(topic, value, within))
    one = _type_of_one(topic, field, within)
    return ArrayType(one) if field.is_repeated else one


def _type_of_one(topic: str, field: Any, within: tuple[str, ...]) -> DataType:
    return _PLAIN[field.type] if field.message_type is None else type_of_message(topic, field.message_type, within)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def message_reader(kind: Any) -> Callable[[bytes], Any]:
    """Function from a payload to a value for Arrow; `kind` is the class of the messages."""
    to_row = _row_of(kind.DESCRIPTOR)
    return lambda payload: to_row(kind.FromString(payload))


def _row_of(descriptor: Any) -> Convert:
    parts = [(field.name, field.has_presence, _part_of(field)) for field in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if optional and not message.HasField(name) else part(getattr(message, name))
            for name, optional, part in parts
        }

    return convert


def _part_of(field: Any) -> Convert:
    if _is_map(field):
        key, value = (_one_of(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return lambda values: [(key(name), value(values[name])) for name in values]
    one = _one_of(field)
    return (lambda values: [one(each) for each in values]) if field.is_repeated else one


def _one_of(field: Any) -> Convert:
    if field.message_type is not None:
        return _row_of(field.message_type)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return Decimal if field.type in _UNSIGNED else _same


def _same(value: Any) -> Any:
    return value


def message_writer(kind: Any) -> Callable[[Any], bytes]:
    """Function from a value of Arrow to a payload. A null field is not written. ValueError, TypeError."""

    def write(value: Any) -> bytes:
        message = kind()
        _fill(message, value)
        payload: bytes = message.SerializeToString()
        return payload

    return write


def _fill(message: Any, values: Any) -> None:
    for name, value in values.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if _is_map(field):
            _fill_map(field, getattr(message, name), value)
        elif field.is_repeated:
            for each in value:
                if field.message_type is None:
                    getattr(message, name).append(_written(field, each))
                else:
                    _fill(getattr(message, name).add(), each)
        elif field.message_type is None:
            setattr(message, name, _written(field, value))
        else:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)


def _fill_map(field: Any, target: Any, pairs: Any) -> None:
    key, kind = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for name, value in pairs.items() if isinstance(pairs, dict) else pairs:
        if kind.message_type is None:
            target[_written(key, name)] = _written(kind, value)
        else:
            _fill(target[_written(key, name)], value)


def _written(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise ValueError(f"{value!r} is no value of the enum {field.enum_type.full_name}")
        return found.number
    return int(value) if isinstance(value, Decimal) else value


STRING = 1
JSON = 2
PROTOBUF = 3
AVRO = 4
KEY_VALUE = 15
PROTOBUF_NATIVE = 20
_BYTES = (0, -1)


@attrs.frozen
class Part:
    """One part of a message, its value or its key. Without `info` it is bytes."""

    info: SchemaInfo | None
    kind: DataType


@attrs.frozen
class TopicType:
    """A schema and its parts; `key` only when it has pairs."""

    info: SchemaInfo
    value: Part
    key: Part | None = None
    encoding: KeyValueEncoding | None = None


def topic_type(topic: str, info: SchemaInfo) -> TopicType:
    """OptionError names the topic, and the kind that cannot be read."""
    if info.type != KEY_VALUE:
        return TopicType(info, part_of(topic, info))
    try:
        key, value = parts_of(info)
    except SchemaMismatch as error:
        raise OptionError(f"{topic}: the definition of its KeyValue schema cannot be read: {error}") from None
    return TopicType(info, part_of(topic, value), part_of(topic, key), encoding_of(info))


def part_of(topic: str, info: SchemaInfo | None) -> Part:
    """A schema that has no parts of its own; None is bytes."""
    if info is None or info.type in _BYTES:
        return Part(None, BinaryType())
    return Part(info, spark_type(topic, info))


def spark_type(topic: str, info: SchemaInfo) -> DataType:
    """The type of a column."""
    if info.type in PRIMITIVES:
        return PRIMITIVES[info.type].kind
    if info.type == STRING:
        return StringType()
    if info.type in (JSON, AVRO):
        return type_of(parsed(topic, info.data))
    if info.type == PROTOBUF_NATIVE:
        try:
            return type_of_message(topic, message_class(info).DESCRIPTOR)
        except InvalidConfiguration as error:
            raise OptionError(f"{topic}: {error}") from None
    kind = "PROTOBUF" if info.type == PROTOBUF else info.name or str(info.type)
    raise OptionError(
        f"{topic} has a schema of the kind {kind}; read are JSON, AVRO, PROTOBUF_NATIVE, KeyValue and all primitive "
        "ones. Leave the option schema out, read bytes, and decode them in Spark, for instance with from_protobuf"
    )


_JAVA_NAMES = {1: "String", 5: "Boolean", 10: "Float", 11: "Double", 12: "Date", 13: "Time", 14: "Timestamp"}
_KINDS = {"json": JSON, "avro": AVRO}

Define = Callable[[str, int], str]
"""The definition for a column, `value` or `key`, where the option says only of which kind (JSON, AVRO) it is to be."""


def asks_for_bytes(options: Options) -> bool:
    """True if nothing is said about schemas."""
    return options.schema == "bytes" and options.key_schema is None


def check_schema_options(options: Options) -> None:
    """OptionError for options that have no effect on each other."""
    if options.schema == "topic" and options.key_schema is not None:
        raise OptionError('keySchema goes with an own schema: with .option("schema", "topic") the topic says what its keys are')
    has_definition = any(each is not None and each.startswith("{") for each in (options.schema, options.key_schema))
    if options.schema_type is not None and not has_definition:
        raise OptionError("schemaType says how the values of a definition are written: give the definition as option schema")


def chosen_schema(options: Options, define: Define, topics_own: Callable[[], SchemaInfo | None]) -> SchemaInfo | None:
    """The schema that the options describe; None for bytes. `topics_own` is asked how values of a definition are written."""
    value = _one("value", options.schema, options, define, topics_own)
    if options.key_schema is None:
        return value
    key = _one("key", options.key_schema, options, define, topics_own)
    return pair_info(key, value, KeyValueEncoding(options.key_value_encoding))


def _one(
    column: str, given: str, options: Options, define: Define, topics_own: Callable[[], SchemaInfo | None]
) -> SchemaInfo | None:
    if given == "bytes":
        return None
    if given in PRIMITIVE_SCHEMAS:
        number = PRIMITIVE_SCHEMAS[given]
        return SchemaInfo(number, b"", _JAVA_NAMES.get(number, given.upper()))
    if given in _KINDS:
        return _described(_KINDS[given], define(column, _KINDS[given]))
    return _described(_kind_of_definition(column, options, topics_own), given)


def _kind_of_definition(column: str, options: Options, topics_own: Callable[[], SchemaInfo | None]) -> int:
    if options.schema_type is not None:
        return _KINDS[options.schema_type]
    found = topics_own()
    if found is not None and found.type == KEY_VALUE:
        found = parts_of(found)[column == "value"]
    if found is None or found.type not in (JSON, AVRO):
        raise OptionError('JSON and Avro share their definitions: say with .option("schemaType", "AVRO") or "JSON" which it is')
    return found.type


def _described(kind: int, definition: str) -> SchemaInfo:
    return SchemaInfo(kind, definition.encode(), "JSON" if kind == JSON else "AVRO")
