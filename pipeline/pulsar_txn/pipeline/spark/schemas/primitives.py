"""Pulsar's primitive schemas in Java's bytes, whole columns at a time, and casts of columns to other types.

Numbers are big-endian. `DATE`, `TIME` and `TIMESTAMP` are instants in Java, with milliseconds; only `LOCAL_…` have no time
zone. Nanoseconds of `INSTANT`, `LOCAL_TIME` and `LOCAL_DATE_TIME` are cut to the microseconds that Spark has. Casts match
structs by the names of their fields, and cut no value silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from pulsar_txn.client import PulsarError
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import BEGIN_OF_TIME_MS, END_OF_TIME_MS

Unfit = dict[int, Exception]
"""Fault of a value, by the value's number."""

UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, PulsarError, pa.ArrowException)
"""Error for a value that does not fit."""


class UnfitValueError(ValueError):
    """A value that the schema does not take. `number` counts the values of the column."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number = number


def check_choice(have: DataType, want: DataType, path: str) -> None:
    """Check that a column can be read as another type, of which it may have more fields. OptionError names what cannot be."""
    if isinstance(have, StructType) and isinstance(want, StructType):
        for field in want.fields:
            if field.name not in have.names:
                raise OptionError(f"the schema of the query has {path}.{field.name}; there are {', '.join(have.names)}")
            check_choice(have[field.name].dataType, field.dataType, f"{path}.{field.name}")
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        check_choice(have.elementType, want.elementType, f"{path}[]")
    elif isinstance(have, MapType) and isinstance(want, MapType):
        check_choice(have.keyType, want.keyType, f"{path}.key")
        check_choice(have.valueType, want.valueType, f"{path}.value")
    elif have != want and not _is_castable(have, want):
        raise OptionError(f"column {path!r} is {have.simpleString()}, which cannot be read as {want.simpleString()}")


def _is_castable(have: DataType, want: DataType) -> bool:
    try:
        first, last = (to_arrow_type(each, timezone="UTC") for each in (have, want))
        if pa.types.is_nested(first) or pa.types.is_nested(last):
            return False
        pa.nulls(0, first).cast(last)
    except Exception:  # noqa: BLE001  # Arrow and Spark raise of several kinds, and all say no
        return False
    return True


def cast_column(column: Any, kind: Any) -> tuple[Any, Unfit]:
    """A column as one of another type, of structs by the names of their fields; nothing is cut."""
    if column.type == kind:
        return column, {}
    try:
        return cast(column, kind), {}
    except UNFIT:
        pieces = [column.slice(number, 1) for number in range(len(column))]
        return one_by_one(pieces, lambda piece: cast(piece, kind), kind)


def cast(column: Any, kind: Any) -> Any:
    """Raises one of UNFIT for a value that does not fit, and for types that cannot be cast."""
    if column.type == kind:
        return column
    if pa.types.is_list(kind):
        column, offsets = _offsets(column)
        return pa.ListArray.from_arrays(offsets, cast(column.values, kind.value_type), type=kind)
    if pa.types.is_map(kind):
        column, offsets = _offsets(column)
        keys, items = cast(column.keys, kind.key_type), cast(column.items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    parts = [
        cast(children[each.name], each.type) if each.name in children else pa.nulls(len(column), each.type) for each in kind
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())


def _offsets(column: Any) -> tuple[Any, Any]:
    """A list or map without what is not in it, and where its elements begin; null for null."""
    whole = column.take(pa.array(np.arange(len(column))))
    absent = np.append(whole.is_null().to_numpy(zero_copy_only=False), False)
    return whole, pa.array(whole.offsets.to_numpy(zero_copy_only=False), pa.int32(), mask=absent)


def one_by_one(values: Sequence[Any], make: Callable[[Any], Any], kind: Any) -> tuple[Any, Unfit]:
    """A column made value by value, where one of them does not fit."""
    pieces: list[Any] = []
    unfit: Unfit = {}
    for number, value in enumerate(values):
        try:
            pieces.append(make(value))
        except UNFIT as error:
            unfit[number] = error
            pieces.append(pa.nulls(1, kind))
    return pa.concat_arrays(pieces), unfit


_MICROS_PER_DAY: Final = 86_400_000_000
_DAY_MS: Final = _MICROS_PER_DAY // 1000
_PAIR: Final = np.dtype([("first", ">i8"), ("nanos", ">i8")])
_INSTANT: Final = np.dtype([("first", ">i8"), ("nanos", ">i4")])


@attrs.frozen(eq=False)
class Primitive:
    """A schema of values of one size. `read` and `write` turn what is in the bytes into what is in Arrow's, and back.

    `fits` says which of the numbers in the bytes Spark can express.
    """

    number: int
    name: str
    kind: DataType
    stored: Any
    """numpy's type of the bytes."""
    held: Any
    """numpy's type in Arrow's array."""
    read: Callable[[Any], Any] = lambda values: values
    write: Callable[[Any], Any] = lambda values: values
    fits: Callable[[Any], Any] | None = None

    @property
    def size(self) -> int:
        """The bytes of a value."""
        return int(self.stored.itemsize)

    def column(self, payloads: Sequence[bytes | None]) -> tuple[Any, list[int]]:
        """The values, and the numbers of the payloads that are none; null for these."""
        size, blank = self.size, bytes(self.size)
        bad = [number for number, each in enumerate(payloads) if each is not None and len(each) != size]
        wrong = set(bad)
        absent = np.fromiter((each is None or n in wrong for n, each in enumerate(payloads)), bool, len(payloads))
        whole = payloads
        if absent.any():
            whole = [blank if gone else each for gone, each in zip(absent, payloads, strict=True)]
        stored = np.frombuffer(b"".join(whole), self.stored)  # type: ignore[arg-type]  # none is None now
        if self.fits is not None:
            beyond = ~self.fits(stored) & ~absent
            if beyond.any():
                bad, absent = sorted({*bad, *np.flatnonzero(beyond).tolist()}), absent | beyond
                stored = np.where(absent, np.zeros(1, self.stored), stored)
        held = pa.array(np.ascontiguousarray(self.read(stored), self.held), mask=absent)
        return (held if self.held is np.bool_ else held.view(_arrow(self.kind))), bad

    def payloads(self, column: Any) -> Any:
        """The payloads of a column of this type, as an array of binaries; null for null. UnfitValueError."""
        valid = column.is_valid()
        filled = column if not column.null_count else pc.coalesce(column, _zero(column.type))
        held = np.asarray(_numbers(filled), self.held)
        stored = np.ascontiguousarray(self.write(held), self.stored)
        if self.fits is not None and not (fits := self.fits(stored)).all():
            text = f"no query could read it as {self.name}: is it between the years 1 and 9999?"
            raise UnfitValueError(int(np.argmin(fits)), text)
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(self.size), len(column), [None, pa.py_buffer(stored.tobytes())])
        found = fixed.cast(pa.binary())
        return pc.if_else(valid, found, pa.scalar(None, pa.binary())) if column.null_count else found


def _arrow(kind: DataType) -> Any:
    return to_arrow_type(kind, timezone="UTC")


def _zero(kind: Any) -> Any:
    return pa.scalar(False) if pa.types.is_boolean(kind) else pa.scalar(0, _storage(kind)).cast(kind)


def _storage(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _numbers(column: Any) -> Any:
    storage = _storage(column.type)
    return (column if storage == column.type else column.view(storage)).to_numpy(zero_copy_only=False)


def _two(kind: Any, first: Any, nanos: Any) -> Any:
    made = np.zeros(len(first), kind)
    made["first"], made["nanos"] = first, nanos
    return made


def _long(values: Any) -> Any:
    return values.astype(np.int64)


def _within(values: Any, unit_ms: int) -> Any:
    """True if times in this unit are between the years 1 and 9999, which all calendars here have."""
    return (values >= BEGIN_OF_TIME_MS // unit_ms) & (values < END_OF_TIME_MS // unit_ms)


def _instants(number: int, name: str) -> Primitive:
    return Primitive(
        number,
        name,
        TimestampType(),
        np.dtype(">i8"),
        np.int64,
        lambda ms: _long(ms) * 1000,
        lambda us: us // 1000,
        lambda ms: _within(ms, 1),
    )


def _plain_number(number: int, name: str, kind: DataType, form: str) -> Primitive:
    stored = np.dtype(form)
    return Primitive(number, name, kind, stored, stored.newbyteorder("="))


_ALL: Final = (
    Primitive(
        5, "BOOLEAN", BooleanType(), np.dtype("u1"), np.bool_, lambda each: each != 0, lambda each: each.astype(np.uint8)
    ),
    _plain_number(6, "INT8", ByteType(), ">i1"),
    _plain_number(7, "INT16", ShortType(), ">i2"),
    _plain_number(8, "INT32", IntegerType(), ">i4"),
    _plain_number(9, "INT64", LongType(), ">i8"),
    _plain_number(10, "FLOAT", FloatType(), ">f4"),
    _plain_number(11, "DOUBLE", DoubleType(), ">f8"),
    _instants(12, "DATE"),
    _instants(13, "TIME"),
    _instants(14, "TIMESTAMP"),
    Primitive(
        16,
        "INSTANT",
        TimestampType(),
        _INSTANT,
        np.int64,
        lambda each: _long(each["first"]) * 1_000_000 + each["nanos"] // 1000,
        lambda us: _two(_INSTANT, us // 1_000_000, us % 1_000_000 * 1000),
        lambda each: _within(each["first"], 1000) & (each["nanos"] >= 0) & (each["nanos"] < 10**9),
    ),
    Primitive(
        17,
        "LOCAL_DATE",
        DateType(),
        np.dtype(">i8"),
        np.int32,
        lambda days: days.astype(np.int32),
        lambda days: days.astype(np.int64),
        lambda days: _within(days, _DAY_MS),
    ),
    Primitive(
        18,
        "LOCAL_TIME",
        TimeType(),
        np.dtype(">i8"),
        np.int64,
        lambda nanos: _long(nanos) // 1000 * 1000,
        lambda nanos: nanos,
        lambda nanos: (nanos >= 0) & (nanos < _MICROS_PER_DAY * 1000),
    ),
    Primitive(
        19,
        "LOCAL_DATE_TIME",
        TimestampNTZType(),
        _PAIR,
        np.int64,
        lambda each: _long(each["first"]) * _MICROS_PER_DAY + _long(each["nanos"]) // 1000,
        lambda us: _two(_PAIR, us // _MICROS_PER_DAY, us % _MICROS_PER_DAY * 1000),
        lambda each: _within(each["first"], _DAY_MS) & (each["nanos"] >= 0) & (each["nanos"] < _MICROS_PER_DAY * 1000),
    ),
)
PRIMITIVES: Final = {each.number: each for each in _ALL}
"""By Pulsar's numbers of the kinds."""
