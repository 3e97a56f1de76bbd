"""Columns as columns of other types: structs by the names of their fields, and no value is cut silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pulsar_txn.client import PulsarError
from pulsar_txn.pipeline.spark.errors import OptionError

Unfit = dict[int, Exception]
"""What is wrong with which value, by its number."""

UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, PulsarError, pa.ArrowException)
"""What is raised for a value that does not fit."""


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
