"""Avro definitions as trees, with names resolved: JSON and Avro topics of Pulsar both keep one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
)

from pulsar_txn.pipeline.spark.errors import OptionError

_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "enum": StringType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
    ("int", "date"): DateType(),
    ("int", "time-millis"): TimeType(),
    ("long", "time-micros"): TimeType(),
    ("string", "uuid"): StringType(),
}
_OF_SPARK: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimeType: {"type": "long", "logicalType": "time-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_MOST_DIGITS: Final = 38


@attrs.frozen
class Node:
    """A type of a definition. `kind` is Avro's name, `logical` a logical type that Spark has a type for."""

    kind: str
    logical: str | None = None
    decimal: tuple[int, int] = (0, 0)
    fields: tuple[tuple[str, Node], ...] = ()
    inner: Node | None = None
    """Of the items or values of an array or a map."""
    symbols: frozenset[str] = frozenset()
    """Of an enum."""
    is_optional: bool = False
    """Whether a value may be absent: it may be null, or the field has a default."""


def parsed(topic: str, definition: bytes | str) -> Node:
    """The tree of a definition. OptionError names the topic and what Spark has no type for."""
    try:
        document = json.loads(definition)
    except ValueError as error:
        raise OptionError(f"{topic}: the schema's definition is no JSON: {error}") from None
    try:
        return _Parser(topic).node(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{topic}: the schema's definition is no Avro definition: {error!r}") from None


class _Parser:
    """Names that were defined are known to what follows."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._named: dict[str, Node | None] = {}

    def node(self, definition: Any) -> Node:
        if isinstance(definition, list):
            return self._union(definition)
        if isinstance(definition, str):
            return self._by_name(definition)
        kind = definition["type"]
        if not isinstance(kind, str):
            return self.node(kind)
        name = definition.get("name") if kind in ("record", "enum", "fixed") else None
        if name is None:
            return self._composed(kind, definition)
        if name in self._named:
            raise OptionError(f"{self._topic}: the record {name} is defined twice in the topic's schema")
        self._named[name] = None
        found = self._named[name] = self._composed(kind, definition)
        return found

    def _by_name(self, name: str) -> Node:
        short = name.rpartition(".")[2]
        for each in (name, short):
            if each in self._named:
                found = self._named[each]
                if found is None:
                    what = f"the record {short} contains itself, which Spark has no type for"
                    raise OptionError(f"{self._topic}: {what}: read bytes")
                return found
        if name not in _PLAIN:
            raise OptionError(f"{self._topic}: Spark has no type for {name!r} in the topic's schema: read bytes instead")
        return Node(name)

    def _union(self, options: Sequence[Any]) -> Node:
        kinds = [each for each in options if each != "null"]
        if len(kinds) != 1:
            raise OptionError(f"{self._topic}: a union of several types in the topic's schema has no type in Spark: read bytes")
        return attrs.evolve(self.node(kinds[0]), is_optional=len(kinds) < len(options))

    def _composed(self, kind: str, definition: Mapping[str, Any]) -> Node:
        if kind == "record":
            return Node(kind, fields=tuple(self._field(each) for each in definition["fields"]))
        if kind in ("array", "map"):
            return Node(kind, inner=self.node(definition["items" if kind == "array" else "values"]))
        if kind not in ("enum", "fixed"):
            self._by_name(kind)
        logical = definition.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(kind, definition)
        symbols = frozenset(definition["symbols"]) if kind == "enum" else frozenset()
        return Node(kind, logical if (kind, logical) in _LOGICAL else None, symbols=symbols)

    def _decimal(self, kind: str, definition: Mapping[str, Any]) -> Node:
        precision = definition["precision"]
        if precision > _MOST_DIGITS:
            raise OptionError(f"{self._topic}: a decimal of {precision} digits; Spark has {_MOST_DIGITS}: read bytes")
        return Node(kind, "decimal", (precision, definition.get("scale", 0)))

    def _field(self, definition: Mapping[str, Any]) -> tuple[str, Node]:
        found = self.node(definition["type"])
        if "default" in definition:
            found = attrs.evolve(found, is_optional=True)
        return definition["name"], found


def type_of(node: Node) -> DataType:
    """The type of a column."""
    if node.kind == "record":
        return StructType([StructField(name, type_of(each)) for name, each in node.fields])
    if node.inner is not None:
        inner = type_of(node.inner)
        return ArrayType(inner) if node.kind == "array" else MapType(StringType(), inner)
    if node.logical == "decimal":
        return DecimalType(*node.decimal)
    return _PLAIN[node.kind] if node.logical is None else _LOGICAL[node.kind, node.logical]


def definition_of(kind: DataType) -> dict[str, Any]:
    """The definition for values of a struct, as Spark's own Avro writer makes it. OptionError names what cannot be."""
    if not isinstance(kind, StructType):
        raise OptionError(
            f"column 'value' is {kind.simpleString()}; a JSON or Avro schema needs a struct, for instance struct(*)"
        )
    record: dict[str, Any] = _record(kind, "topLevelRecord", "value")
    return record


def _record(kind: StructType, name: str, path: str) -> dict[str, Any]:
    fields = []
    for each in kind.fields:
        field = f"{path}.{each.name}"
        if not _is_name(each.name):
            raise OptionError(f"column {field!r}: Avro's names have letters, digits and _ only: rename it")
        avro = _avro(each.dataType, f"{name}_{each.name}", field)
        fields.append(
            {"name": each.name, "type": ["null", avro], "default": None} if each.nullable else {"name": each.name, "type": avro}
        )
    return {"type": "record", "name": name, "fields": fields}


def _avro(kind: DataType, name: str, path: str) -> Any:
    if isinstance(kind, StructType):
        return _record(kind, name, path)
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _maybe_null(kind.elementType, kind.containsNull, name, path)}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "map", "values": _maybe_null(kind.valueType, kind.valueContainsNull, name, path)}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _OF_SPARK:
        raise OptionError(f"column {path!r} is {kind.simpleString()}, which Avro has no type for: cast it, or leave it out")
    return _OF_SPARK[type(kind)]


def _maybe_null(kind: DataType, nullable: bool, name: str, path: str) -> Any:
    avro = _avro(kind, name, path)
    return ["null", avro] if nullable else avro


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier()


Convert = Callable[[Any], Any]
"""From one form of a value to another. None stands for "as it is"."""


def converter(node: Node, leaf: Callable[[Node], Convert | None], *, pairs: bool = False) -> Convert | None:
    """Convert values of a tree where `leaf` says how; None when nothing in it needs that. Null stays null.

    With `pairs` maps are given as pairs, as Arrow has them. TypeError for what is no record, array or map where one is needed.
    """
    if node.kind == "record":
        parts = [(name, converter(each, leaf, pairs=pairs)) for name, each in node.fields]
        changed = [(name, part) for name, part in parts if part is not None]
        return _null_safe(_of_record(changed)) if changed else None
    if node.inner is not None:
        inner = converter(node.inner, leaf, pairs=pairs)
        if node.kind == "map":
            return _null_safe(_of_map(inner or _same, pairs=pairs)) if inner is not None or pairs else None
        return None if inner is None else _null_safe(_of_array(inner))
    found = leaf(node)
    return None if found is None else _null_safe(found)


def _of_record(changed: Sequence[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> Any:
        return _checked(dict, value) | {name: part(value.get(name)) for name, part in changed}

    return convert


def _of_array(convert: Convert) -> Convert:
    return lambda values: [convert(each) for each in _checked(list, values)]


def _of_map(convert: Convert, *, pairs: bool) -> Convert:
    if pairs:
        return lambda values: {key: convert(each) for key, each in values}
    return lambda values: {key: convert(each) for key, each in _checked(dict, values).items()}


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {'object' if kind is dict else 'array'}")
    return value


def _same(value: Any) -> Any:
    return value


def _null_safe(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
