"""Columns to messages of a Pulsar batch, whole columns at a time: no Python object per row.

A message is a size of 4 bytes, SingleMessageMetadata of that size, and the value. Every part of it is a column of bytes
here, and the row is their concatenation. What depends on a number only (a length, a time) is made once per distinct number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn.client.inside import varint
from pulsar_txn.pipeline.spark.errors import OptionError

_SIZE: Final = struct.Struct(">I")
_NO_BYTES: Final = pa.scalar(b"", pa.binary())


@attrs.frozen
class EncodedRows:
    """Rows as messages: `messages` is a binary array, `sizes` are the bytes of their values."""

    messages: Any
    sizes: Any

    def take(self, indices: Any) -> EncodedRows:
        """These rows, in this order."""
        return EncodedRows(self.messages.take(indices), self.sizes.take(indices))


@attrs.frozen
class Columns:
    """The columns of a record batch that make messages; None for those that are absent. `keys` are text.

    `keys_are_base64` says of each row whether its key is Base64 of the key; None when none is.
    """

    values: Any
    keys: Any = None
    event_times_ms: Any = None
    properties: Any = None
    ordering_keys: Any = None
    keys_are_base64: Any = None


def encode_rows(columns: Columns, constant: Mapping[str, str]) -> EncodedRows:
    """Encode rows; each gets the properties `constant` as well, which win over its own of the same name."""
    values = columns.values
    sizes = pc.fill_null(pc.binary_length(values), 0)
    parts: list[Any] = [_properties(columns.properties, constant)]
    if columns.keys is not None:
        parts += _text(b"\x12", columns.keys.cast(pa.binary()))
    parts.append(_by_number(sizes, lambda size: b"\x18" + varint(size)))
    if columns.event_times_ms is not None:
        parts.append(_by_number(columns.event_times_ms, lambda ms: b"\x28" + varint(ms) if ms else b""))
    if columns.keys_are_base64 is not None and columns.keys is not None:
        parts.append(pc.if_else(columns.keys_are_base64, pa.scalar(b"\x30\x01", pa.binary()), _NO_BYTES))
    if columns.ordering_keys is not None:
        parts += _text(b"\x3a", columns.ordering_keys)
    if values.null_count:
        parts.append(pc.if_else(pc.is_null(values), pa.scalar(b"\x48\x01", pa.binary()), _NO_BYTES))
    metadata = _joined(parts)
    heads = _by_number(pc.binary_length(metadata), _SIZE.pack)
    return EncodedRows(_joined([heads, metadata, values]), sizes)


def _joined(parts: list[Any]) -> Any:
    """The parts of each row, one after the other; a null is nothing."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, _NO_BYTES, null_handling="replace", null_replacement=b"")


def _by_number(numbers: Any, make: Callable[[int], bytes]) -> Any:
    """Return what `make` says of each number, called once per distinct one; null for null."""
    distinct = numbers.dictionary_encode()
    made = pa.array([make(number) for number in distinct.dictionary.to_pylist()], pa.binary())
    return made.take(distinct.indices)


def _text(tag: bytes, column: Any) -> list[Any]:
    """A field of bytes, as tag with length, and content; both null where the column is null."""
    return [_by_number(pc.binary_length(column), lambda size: tag + varint(size)), column]


def _property(name: str, value: str) -> bytes:
    raw = [text.encode() for text in (name, value)]
    pair = b"\x0a" + varint(len(raw[0])) + raw[0] + b"\x12" + varint(len(raw[1])) + raw[1]
    return b"\x0a" + varint(len(pair)) + pair


def _properties(column: Any, constant: Mapping[str, str]) -> Any:
    """The properties of each row, and those of all."""
    shared = pa.scalar(b"".join(_property(*pair) for pair in constant.items()), pa.binary())
    if column is None:
        return shared
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    names, values = (child.slice(first, last - first).cast(pa.binary()) for child in (column.keys, column.items))
    if values.null_count:
        raise OptionError("column 'properties': a property's value is null; leave the property out instead")
    pair = _joined([*_text(b"\x0a", names), *_text(b"\x12", values)])
    field = _joined(_text(b"\x0a", pair))
    if constant:
        overruled = pc.is_in(names, value_set=pa.array([name.encode() for name in constant], pa.binary()))
        field = pc.if_else(overruled, _NO_BYTES, field)
    # A row's properties are neighbours among all of them, so its bytes are theirs.
    starts = pa.Array.from_buffers(pa.int32(), len(field) + 1, [None, field.buffers()[1]], offset=field.offset)
    own = starts.take(pc.subtract(offsets, offsets[0]))
    rows = pa.BinaryArray.from_buffers(pa.binary(), len(column), [None, own.buffers()[1], field.buffers()[2]])
    if column.null_count:
        rows = pc.if_else(column.is_valid(), rows, _NO_BYTES)
    return _joined([rows, shared])
