"""Payloads as typed values: the topic's schema as Spark's type, and payloads decoded by it (`option("schema", "topic")`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
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
    TimestampType,
)

from pulsar_txn.client import AvroSchema, PulsarError, SchemaMismatch
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.pipeline.spark.errors import OptionError, UndecodableValue

logger = logging.getLogger(__name__)

JSON: Final = 2
AVRO: Final = 4

_NUMBERS: Final[dict[int, tuple[int, DataType]]] = {
    6: (1, ByteType()),
    7: (2, ShortType()),
    8: (4, IntegerType()),
    9: (8, LongType()),
}
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
_LOGICAL: Final[dict[str, DataType]] = {
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "date": DateType(),
    "uuid": StringType(),
}


def spark_type(topic: str, info: SchemaInfo | None) -> DataType:
    """The type of the column `value` for a topic's schema. OptionError for one that has none."""
    if info is None:
        raise OptionError(f'{topic} has no schema: leave .option("schema", "topic") out, and read bytes')
    if info.type in _NUMBERS:
        return _NUMBERS[info.type][1]
    if info.type == 1:
        return StringType()
    if info.type not in (JSON, AVRO):
        raise OptionError(
            f"{topic} has a schema of the kind {info.name or info.type}; JSON, Avro, strings and whole numbers are read"
        )
    definition = json.loads(info.data)
    return _Definitions(topic, is_json=info.type == JSON).type_of(definition)


class _Definitions:
    """Avro's types as Spark's. Payloads in JSON have numbers and text where Avro has logical types and bytes."""

    def __init__(self, topic: str, *, is_json: bool) -> None:
        self._topic = topic
        self._is_json = is_json
        self._named: dict[str, Any] = {}

    def type_of(self, definition: Any) -> DataType:
        """The type; OptionError where Spark has none."""
        if isinstance(definition, list):
            return self._of_union(definition)
        if isinstance(definition, str):
            if definition in self._named:
                return self.type_of(self._named[definition])
            return self._plain(definition)
        kind = definition["type"]
        if not isinstance(kind, str):
            return self.type_of(kind)
        if "name" in definition:
            self._name(definition)
        logical = definition.get("logicalType")
        if logical is not None and not self._is_json:
            if logical == "decimal":
                return DecimalType(definition["precision"], definition.get("scale", 0))
            if logical in _LOGICAL:
                return _LOGICAL[logical]
        return self._composed(kind, definition)

    def _composed(self, kind: str, definition: Mapping[str, Any]) -> DataType:
        if kind == "record":
            return StructType([StructField(each["name"], self.type_of(each["type"])) for each in definition["fields"]])
        if kind == "array":
            return ArrayType(self.type_of(definition["items"]))
        if kind == "map":
            return MapType(StringType(), self.type_of(definition["values"]))
        return self._plain(kind)

    def _plain(self, kind: str) -> DataType:
        found = _PLAIN.get(kind)
        if found is None:
            raise OptionError(f"{self._topic}: Spark has no type for {kind!r} in the topic's schema: read bytes instead")
        return StringType() if self._is_json and isinstance(found, BinaryType) else found

    def _of_union(self, options: Sequence[Any]) -> DataType:
        kinds = [each for each in options if each != "null"]
        if len(kinds) != 1:
            raise OptionError(f"{self._topic}: a union of several types in the topic's schema has no type in Spark: read bytes")
        return self.type_of(kinds[0])

    def _name(self, definition: Mapping[str, Any]) -> None:
        name = definition["name"]
        if self._named.get(name) is not None and definition["type"] == "record" and self._named[name] is not definition:
            raise OptionError(f"{self._topic}: the record {name} is defined twice in the topic's schema")
        if definition["type"] == "record" and _mentions(definition["fields"], name):
            raise OptionError(f"{self._topic}: the record {name} contains itself, which Spark has no type for: read bytes")
        self._named[name] = definition


def _mentions(part: Any, name: str) -> bool:
    if isinstance(part, str):
        return part == name
    if isinstance(part, Mapping):
        return any(_mentions(part.get(key), name) for key in ("type", "items", "values", "fields"))
    return isinstance(part, list) and any(_mentions(each, name) for each in part)


class Values:
    """Decodes the payloads of one topic. `writer(version)` asks for the schema that messages were written with."""

    def __init__(self, topic: str, info: SchemaInfo, mode: str, writer: Callable[[bytes], SchemaInfo | None]) -> None:
        self._topic = topic
        self._info = info
        self._is_strict = mode == "FAILFAST"
        self._writer = writer
        self._writers: dict[bytes, SchemaInfo] = {}
        self._avro: AvroSchema[Any] | None = AvroSchema(info.data.decode()) if info.type == AVRO else None
        self._undecodable = 0

    def decoded(self, payloads: Sequence[bytes | None], version: bytes, place: tuple[int, int]) -> list[Any]:
        """The values; None for tombstones, and with PERMISSIVE for payloads that do not fit. UndecodableValue."""
        decode = self._decoder(version)
        values: list[Any] = []
        for payload in payloads:
            try:
                values.append(None if payload is None else decode(payload))
            except (ValueError, TypeError, PulsarError) as error:
                self._report(place, error)
                values.append(None)
        return values

    def _decoder(self, version: bytes) -> Callable[[bytes], Any]:
        kind = self._info.type
        if self._avro is not None:
            avro, writer = self._avro, self._writer_of(version)
            return lambda payload: avro.decode_written(payload, writer)
        if kind == JSON:
            return json.loads
        return _number(_NUMBERS[kind][0]) if kind in _NUMBERS else bytes.decode

    def _writer_of(self, version: bytes) -> SchemaInfo:
        found = self._writers.get(version)
        if found is None:
            found = self._writers[version] = (self._writer(version) if version else None) or self._info
        return found

    def _report(self, place: tuple[int, int], error: Exception) -> None:
        if self._is_strict:
            raise UndecodableValue(
                f"{self._topic}: a message of the entry {place} does not fit the topic's schema ({error}); "
                "mode=PERMISSIVE reads null instead"
            ) from error
        if not self._undecodable:
            logger.warning(
                "%s: a message of the entry %s does not fit the topic's schema, and is read as null: %s",
                self._topic,
                place,
                error,
            )
        self._undecodable += 1

    def unfit(self, error: Exception) -> None:
        """A decoded value is not of the column's type."""
        self._report((-1, -1), error)


def _number(size: int) -> Callable[[bytes], int]:
    def decode(payload: bytes) -> int:
        if len(payload) != size:
            raise SchemaMismatch(f"{size} bytes are needed, not {len(payload)}")
        return int.from_bytes(payload, signed=True)

    return decode
