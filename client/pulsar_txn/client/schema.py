"""Schemas: how values become payloads and back, and what the broker is told about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from pulsar_txn.client.errors import SchemaMismatch

T = TypeVar("T")

STRING: Final = 1
JSON: Final = 2


@attrs.frozen
class SchemaInfo:
    """What PRODUCER and SUBSCRIBE tell the broker: Pulsar's type number, definition bytes, name."""

    type: int
    data: bytes = b""
    name: str = ""


class Schema(Protocol[T]):
    """Turns values of type T into payloads and payloads into values; `info` None means "just bytes" to the broker."""

    @property
    def info(self) -> SchemaInfo | None:
        """What the broker is told; None: nothing."""
        ...

    def encode(self, value: T) -> bytes:
        """The payload of a value; SchemaMismatch when it cannot be one."""
        ...

    def decode(self, payload: bytes) -> T:
        """The value of a payload; SchemaMismatch when it cannot be read."""
        ...


class BytesSchema:
    """Payloads as they are: bytes, bytearray or memoryview in, bytes out."""

    info: SchemaInfo | None = None

    def encode(self, value: bytes | bytearray | memoryview) -> bytes:
        """The value itself."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        raise SchemaMismatch(
            f"bytes are needed, not {type(value).__name__}", hint="encode the value, or create the producer with a schema"
        )

    def decode(self, payload: bytes) -> bytes:
        """The payload itself."""
        return payload


class StringSchema:
    """Text as UTF-8."""

    info: SchemaInfo | None = SchemaInfo(STRING, b"", "String")

    def encode(self, value: str) -> bytes:
        """UTF-8 bytes."""
        if not isinstance(value, str):
            raise SchemaMismatch(f"str is needed, not {type(value).__name__}")
        return value.encode()

    def decode(self, payload: bytes) -> str:
        """Text of UTF-8 bytes."""
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise SchemaMismatch(f"the payload is not UTF-8: {error}") from error


class JsonSchema(Generic[T]):
    """JSON documents.

    `definition` is the Avro-style definition that brokers keep for JSON topics; without it the broker sees plain bytes.
    `to_json` and `from_json` convert between values and what `json` understands (dicts by default).
    """

    def __init__(
        self,
        definition: str | None = None,
        *,
        to_json: Callable[[T], Any] | None = None,
        from_json: Callable[[Any], T] | None = None,
    ) -> None:
        self.info: SchemaInfo | None = None if definition is None else SchemaInfo(JSON, definition.encode(), "JSON")
        self._to_json = to_json
        self._from_json = from_json

    def encode(self, value: T) -> bytes:
        """Compact UTF-8 JSON."""
        try:
            document = value if self._to_json is None else self._to_json(value)
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise SchemaMismatch(f"the value is not JSON: {error}") from error

    def decode(self, payload: bytes) -> T:
        """The document, converted by `from_json`."""
        try:
            document = json.loads(payload)
        except ValueError as error:
            raise SchemaMismatch(f"the payload is not JSON: {error}") from error
        return document if self._from_json is None else self._from_json(document)  # T is the caller's word
