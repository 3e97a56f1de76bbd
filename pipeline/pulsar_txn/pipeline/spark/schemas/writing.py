"""Columns of typed values as payloads."""

from __future__ import annotations

from collections.abc import Callable
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

from pulsar_txn.client.encoded import message_class
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.schemas.avro_values import AvroValues
from pulsar_txn.pipeline.spark.schemas.casting import UNFIT, UnfitValueError, cast_column
from pulsar_txn.pipeline.spark.schemas.definitions import Node, parsed
from pulsar_txn.pipeline.spark.schemas.json_values import json_writer
from pulsar_txn.pipeline.spark.schemas.parts import AVRO, JSON, PROTOBUF_NATIVE, Part
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES
from pulsar_txn.pipeline.spark.schemas.protobuf_values import message_writer

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
