"""Numbers and truth values as payloads, big-endian as Java writes them."""

from __future__ import annotations

import struct
from typing import Final, Generic, TypeVar

from pulsar_txn.client.errors import SchemaMismatch
from pulsar_txn.client.schema.base import SchemaInfo

T = TypeVar("T", int, float, bool)


class _StructSchema(Generic[T]):
    """One value of a fixed size."""

    def __init__(self, kind: type[T], form: str, number: int, name: str) -> None:
        self._kind: type[T] = kind
        self._struct = struct.Struct(form)
        self._name = name
        self.info: SchemaInfo | None = SchemaInfo(number, b"", name)

    def encode(self, value: T) -> bytes:
        """The value's bytes; SchemaMismatch for another type or a value out of range."""
        fits = isinstance(value, self._kind) or (self._kind is float and isinstance(value, int))
        if not fits or (self._kind is not bool and isinstance(value, bool)):
            raise SchemaMismatch(f"{self._kind.__name__} is needed, not {type(value).__name__}")
        try:
            return self._struct.pack(value)
        except (struct.error, OverflowError) as error:
            raise SchemaMismatch(f"{value!r} does not fit {self._name}: {error}") from error

    def decode(self, payload: bytes) -> T:
        """The value of the bytes; SchemaMismatch when there are too many or too few."""
        if len(payload) != self._struct.size:
            raise SchemaMismatch(f"{self._name} has {self._struct.size} bytes, the payload {len(payload)}")
        value: T = self._struct.unpack(payload)[0]
        return value


BOOLEAN_SCHEMA: Final = _StructSchema(bool, "?", 5, "Boolean")
INT8_SCHEMA: Final = _StructSchema(int, ">b", 6, "INT8")
INT16_SCHEMA: Final = _StructSchema(int, ">h", 7, "INT16")
INT32_SCHEMA: Final = _StructSchema(int, ">i", 8, "INT32")
INT64_SCHEMA: Final = _StructSchema(int, ">q", 9, "INT64")
FLOAT_SCHEMA: Final = _StructSchema(float, ">f", 10, "Float")
DOUBLE_SCHEMA: Final = _StructSchema(float, ">d", 11, "Double")
