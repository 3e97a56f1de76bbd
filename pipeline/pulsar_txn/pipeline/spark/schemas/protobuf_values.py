"""Protobuf messages (Pulsar's PROTOBUF_NATIVE) as structs, in both directions.

Numbers without a sign are the next larger type (uint64: decimal(20,0)), enums are the names of their values. A field without
presence that was not written has its default, as Protobuf says; with presence it is null.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

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

from pulsar_txn.pipeline.spark.errors import OptionError

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
    """From a payload to a value for Arrow; `kind` is the class of the messages."""
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
    """From a value of Arrow to a payload. A null field is not written. ValueError, TypeError."""

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
