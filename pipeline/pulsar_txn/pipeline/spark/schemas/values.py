"""Payloads as columns of typed values (`PartReader`), and columns of typed values as payloads (`PartWriter`).

A payload that does not fit its schema is read as null, and reported with its row number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from pulsar_txn.client.encoded import SchemaInfo, message_class
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.schemas.definitions import AvroValues, Node, json_reader, json_writer, parsed
from pulsar_txn.pipeline.spark.schemas.parts import AVRO, JSON, PROTOBUF_NATIVE, Part, message_reader, message_writer
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES, UNFIT, Unfit, UnfitValueError, cast_column, one_by_one

Payloads = Sequence[bytes | None]
Versions = Sequence[tuple[int, bytes]]
"""Runs of messages with the same version of the schema: their number and the version (empty: not known)."""
Asked = Callable[[bytes], SchemaInfo | None]
"""The schema of a version."""


class PartReader:
    """Reads one part of the messages of one topic."""

    def __init__(self, topic: str, part: Part, asked: Asked) -> None:
        self._part = part
        self._asked = asked
        self._type = to_arrow_type(part.kind, timezone="UTC")
        self._written: dict[bytes, Callable[[bytes], Any]] = {}
        self._avro: AvroValues | None = None
        self._decode: Callable[[bytes], Any] | None = None
        info = part.info
        if info is None or info.type in PRIMITIVES:
            return
        if info.type == JSON:
            self._decode = json_reader(parsed(topic, info.data))
        elif info.type == AVRO:
            self._avro = AvroValues(info, parsed(topic, info.data))
        elif info.type == PROTOBUF_NATIVE:
            self._decode = message_reader(message_class(info))

    def column(self, payloads: Payloads, versions: Versions) -> tuple[Any, Unfit]:
        """The values, and what is wrong with those that are null because they do not fit."""
        info = self._part.info
        if info is None:
            return pa.array(payloads, pa.binary()), {}
        if info.type in PRIMITIVES:
            primitive = PRIMITIVES[info.type]
            found, bad = primitive.column(payloads)
            return found, {number: ValueError(f"it is no {primitive.name}") for number in bad}
        if self._avro is None and self._decode is None:
            return cast_column(pa.array(payloads, pa.binary()), self._type)
        values, unfit = self._values(payloads, versions)
        found, more = _array(values, self._type)
        return found, unfit | more

    def _values(self, payloads: Payloads, versions: Versions) -> tuple[list[Any], Unfit]:
        values: list[Any] = []
        unfit: Unfit = {}
        for count, version in versions:
            decode = self._decode or self._reader_of(version)
            for payload in payloads[len(values) : len(values) + count]:
                try:
                    values.append(None if payload is None else decode(payload))
                except UNFIT as error:
                    unfit[len(values)] = error
                    values.append(None)
        return values, unfit

    def _reader_of(self, version: bytes) -> Callable[[bytes], Any]:
        """With Avro, a payload can be read only with the definition that it was written with."""
        found = self._written.get(version)
        if found is None:
            assert self._avro is not None  # noqa: S101  # no other kind comes here
            assert self._part.info is not None  # noqa: S101
            found = self._written[version] = self._avro.reader((self._asked(version) if version else None) or self._part.info)
        return found


def _array(values: Sequence[Any], kind: Any) -> tuple[Any, Unfit]:
    """Decoded values as a column."""
    try:
        return pa.array(values, kind), {}
    except UNFIT:
        return one_by_one(values, lambda value: pa.array([value], kind), kind)


_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TEXT = (StringType, CharType, VarcharType)
_WIDER = (_WHOLE, (FloatType, DoubleType), _TEXT, (DecimalType,))
"""Types that can stand for each other, as long as the values fit."""


def check_part(part: Part, have: DataType, column: str) -> None:
    """Check that a column can be written; nothing of it may be left out silently. OptionError names what does not fit."""
    info = part.info
    node = parsed(column, info.data) if info is not None and info.type in (JSON, AVRO) else None
    _check(have, part.kind, node, column)


def _check(have: DataType, want: DataType, node: Node | None, path: str) -> None:
    if isinstance(have, StructType) and isinstance(want, StructType):
        _check_fields(have, want, node, path)
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        _check(have.elementType, want.elementType, node and node.inner, f"{path}[]")
    elif isinstance(have, MapType) and isinstance(want, MapType):
        _check(have.keyType, want.keyType, None, f"{path}.key")
        _check(have.valueType, want.valueType, node and node.inner, f"{path}.value")
    elif have != want and not isinstance(have, NullType) and not _is_wider(have, want):
        raise OptionError(f"column {path!r} is {have.simpleString()}; the schema needs {want.simpleString()}: cast it")


def _check_fields(have: StructType, want: StructType, node: Node | None, path: str) -> None:
    nodes = {} if node is None else dict(node.fields)
    for field in have.fields:
        if field.name not in want.names:
            raise OptionError(
                f"column '{path}.{field.name}': the schema has no such field, so it would be lost; drop it, or give the topic "
                f"a schema with it. The schema has {', '.join(want.names)}"
            )
        _check(field.dataType, want[field.name].dataType, nodes.get(field.name), f"{path}.{field.name}")
    for name, each in nodes.items():
        if name not in have.names and not each.is_optional:
            raise OptionError(f"column {path!r} has no field {name!r}, which the schema requires: add it")


def _is_wider(have: DataType, want: DataType) -> bool:
    if isinstance(have, DoubleType) and isinstance(want, FloatType):
        return False
    return any(isinstance(have, kinds) and isinstance(want, kinds) for kinds in _WIDER)


class PartWriter:
    """Writes one part of messages."""

    def __init__(self, column: str, part: Part) -> None:
        info = part.info
        self._type = to_arrow_type(part.kind, timezone="UTC")
        self._primitive = None if info is None else PRIMITIVES.get(info.type)
        self._encode: Callable[[Any], bytes] | None = None
        if info is None:
            return
        if info.type == JSON:
            self._encode = json_writer(parsed(column, info.data))
        elif info.type == AVRO:
            self._encode = AvroValues(info, parsed(column, info.data)).write
        elif info.type == PROTOBUF_NATIVE:
            self._encode = message_writer(message_class(info))

    def payloads(self, column: Any) -> Any:
        """An array of binaries; null for null. UnfitValueError."""
        found, unfit = cast_column(column, self._type)
        if unfit:
            first = min(unfit)
            raise UnfitValueError(first, str(unfit[first]))
        if self._primitive is not None:
            return self._primitive.payloads(found)
        if self._encode is None:
            return found.cast(pa.binary())
        return pa.array(self._encoded(found, self._encode), pa.binary())

    def _encoded(self, column: Any, encode: Callable[[Any], bytes]) -> list[bytes | None]:
        payloads: list[bytes | None] = []
        for value in _values(column):
            try:
                payloads.append(None if value is None else encode(value))
            except UNFIT as error:
                raise UnfitValueError(len(payloads), str(error)) from error
        return payloads


def _values(column: Any) -> Any:
    """The values of a column. UnfitValueError for one that Python does not have, as a time after the year 9999."""
    try:
        return column.to_pylist()
    except UNFIT:
        return [_value(number, each) for number, each in enumerate(column)]


def _value(number: int, scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UNFIT as error:
        raise UnfitValueError(number, f"no query could read it: {error}") from error
