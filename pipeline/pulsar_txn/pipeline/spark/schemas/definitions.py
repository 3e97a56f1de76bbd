"""Avro definitions as trees with resolved names, and the values that they describe in Avro and JSON payloads.

JSON topics of Pulsar keep an Avro definition as well. Values in Avro payloads are read with the definition that they were
written with. JSON payloads have numbers and text where Avro has bytes and logical types. The JSON reader accepts what Java's
client (Jackson) and this project write: times as numbers in the unit of the definition, instants as seconds with a fraction,
times as text or as lists of their parts; bytes as Base64; decimals as numbers or text. The JSON writer writes numbers in the
unit of the definition, Base64, and decimals as text, which keeps all digits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

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

from pulsar_txn.client import AvroSchema
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import BEGIN_OF_TIME_MS, END_OF_TIME_MS

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
    """True if a value may be absent: it may be null, or the field has a default."""


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
    """Parser of a definition. A name can be used after its definition."""

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


class AvroValues:
    """Both directions, for one definition."""

    def __init__(self, info: SchemaInfo, node: Node) -> None:
        self._schema: AvroSchema[Any] = AvroSchema(info.data.decode())
        self._fix = converter(node, _leaf)
        self._prepare = converter(node, lambda _: None, pairs=True)

    def reader(self, written: SchemaInfo) -> Callable[[bytes], Any]:
        """Function from a payload with this schema to a value for Arrow. SchemaMismatch."""
        decode, fix = self._schema.decode_written, self._fix
        if fix is None:
            return lambda payload: decode(payload, written)
        return lambda payload: fix(decode(payload, written))

    def write(self, value: Any) -> bytes:
        """The payload of a value of Arrow. SchemaMismatch."""
        return self._schema.encode(value if self._prepare is None else self._prepare(value))


def _leaf(node: Node) -> Convert | None:
    """Spark has no type for UUIDs."""
    return (lambda value: str(value) if isinstance(value, UUID) else value) if node.logical == "uuid" else None


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # without a time zone, as the type says
_DAY_ZERO: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_PER_DAY: Final = timedelta(days=1) // _MICROSECOND
_DAY_MS: Final = _PER_DAY // 1000


def json_reader(node: Node) -> Callable[[bytes], Any]:
    """Function from a payload to a value for Arrow. It raises ValueError, TypeError."""
    convert = converter(node, _read)
    if convert is None:
        return json.loads
    fix = convert
    if not _needs_text(node):
        return lambda payload: fix(json.loads(payload))
    return lambda payload: fix(json.loads(payload, parse_float=_Number))


def _needs_text(node: Node) -> bool:
    """True if the digits of numbers matter, beyond those of a double."""
    if node.logical == "decimal" or (node.logical or "").startswith("timestamp"):
        return True
    below = [each for _, each in node.fields] if node.inner is None else [node.inner]
    return any(_needs_text(each) for each in below)


def json_writer(node: Node) -> Callable[[Any], bytes]:
    """Function from a value of Arrow to a payload."""
    convert = converter(node, _write, pairs=True)
    check = _required(node)

    def write(value: Any) -> bytes:
        if check is not None:
            check(value, "value")
        document = value if convert is None else convert(value)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    return write


class _Number(float):
    """A number with a fraction, and its text."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> _Number:
        """Keep the text beside the number."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _read(node: Node) -> Convert | None:
    logical = node.logical
    if logical == "decimal":
        return _decimal
    if node.kind in ("bytes", "fixed"):
        return lambda text: base64.b64decode(text, validate=True)
    if logical is None and node.kind in ("int", "long"):
        return _whole
    if node.kind in ("float", "double"):
        return _fraction
    if logical is None or logical == "uuid":
        return None
    scale = 1000 if logical.endswith("millis") else 1
    if logical == "date":
        return lambda value: _days(value) if _is_whole(value) else (_parts(date, value) - _DAY_ZERO).days
    if logical.startswith("timestamp"):
        return lambda value: _micros(value * scale if _is_whole(value) else _instant(value))
    if logical.startswith("local"):
        return lambda value: (
            _micros(value * scale) if _is_whole(value) else (_parts(datetime, value) - _LOCAL_EPOCH) // _MICROSECOND
        )
    return lambda value: _time_of_day(value * scale) if _is_whole(value) else _parts(time, value)


def _micros(value: int) -> int:
    """A time in Spark's unit, which Python's calendar has as well: else it passes, and ends the query that collects it."""
    if not BEGIN_OF_TIME_MS <= value // 1000 < END_OF_TIME_MS:
        raise ValueError(f"{value} microseconds are not between the years 1 and 9999")
    return value


def _days(value: int) -> int:
    if not BEGIN_OF_TIME_MS <= value * _DAY_MS < END_OF_TIME_MS:
        raise ValueError(f"{value} days are not between the years 1 and 9999")
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    """Arrow would cut a fraction, and take truth for a number."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise TypeError(f"a whole number is needed, not {value!r}")


def _fraction(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(f"a number is needed, not {value!r}")
    number: float = value
    return number


def _decimal(value: Any) -> Decimal:
    if isinstance(value, _Number):
        return Decimal(value.text)
    if isinstance(value, str) or _is_whole(value):
        return Decimal(value)
    raise TypeError(f"a number is needed, not {value!r}")


def _instant(value: Any) -> int:
    """Microseconds: of seconds with a fraction, as Jackson writes Instants, or of text with a time zone."""
    if isinstance(value, _Number):
        return int(Decimal(value.text).scaleb(6))
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return (found - _EPOCH) // _MICROSECOND


def _parts(kind: Any, value: Any) -> Any:
    """A date or time from its text, or from its parts, of which the last may be nanoseconds."""
    if isinstance(value, str):
        return kind.fromisoformat(value)
    if not isinstance(value, Sequence):
        raise TypeError(f"a {kind.__name__} is needed, not {value!r}")
    most = {date: 3, time: 4, datetime: 7}[kind]
    return kind(*value[: most - 1], *(part // 1000 if most != 3 else part for part in value[most - 1 :]))


def _time_of_day(micros: int) -> time:
    if not 0 <= micros < _PER_DAY:
        raise ValueError(f"{micros} microseconds are no time of day")
    return (_LOCAL_EPOCH + micros * _MICROSECOND).time()


def _write(node: Node) -> Convert | None:
    logical = node.logical
    if node.kind == "enum":
        return lambda value: _symbol(node, value)
    if logical == "decimal":
        return str
    if node.kind in ("bytes", "fixed"):
        return lambda value: base64.b64encode(value).decode()
    if logical is None or logical == "uuid":
        return None
    unit = timedelta(milliseconds=1) if logical.endswith("millis") else _MICROSECOND
    if logical == "date":
        return lambda value: (value - _DAY_ZERO).days
    if logical.startswith("timestamp"):
        return lambda value: (value - _EPOCH) // unit
    if logical.startswith("local"):
        return lambda value: (value - _LOCAL_EPOCH) // unit
    return lambda value: (datetime.combine(_DAY_ZERO, value) - _LOCAL_EPOCH) // unit


def _symbol(node: Node, value: str) -> str:
    if value not in node.symbols:
        raise ValueError(f"{value!r} is not one of {', '.join(sorted(node.symbols))}")
    return value


Check = Callable[[Any, str], None]


def _required(node: Node) -> Check | None:
    """Refuses null where the definition has no null; None where it has null everywhere."""
    if node.kind == "record":
        parts = [(name, each.is_optional, _required(each)) for name, each in node.fields]
        strict = [each for each in parts if not each[1] or each[2] is not None]
        return _of_fields(strict) if strict else None
    inner = node.inner
    if inner is None:
        return None
    below, is_map = _required(inner), node.kind == "map"
    if inner.is_optional and below is None:
        return None

    def check(values: Any, path: str) -> None:
        for each in values or ():
            _check_one(each[1] if is_map else each, f"{path}[]", below, optional=inner.is_optional)

    return check


def _of_fields(parts: Sequence[tuple[str, bool, Check | None]]) -> Check:
    def check(value: Any, path: str) -> None:
        for name, optional, below in parts:
            _check_one(value.get(name), f"{path}.{name}", below, optional=optional)

    return check


def _check_one(value: Any, path: str, below: Check | None, *, optional: bool) -> None:
    if value is None:
        if not optional:
            raise ValueError(f"{path} is null, and the schema has no null there")
    elif below is not None:
        below(value, path)
