"""Schemas: how values become payloads and back, and what the broker is told about it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import attrs

from pulsar_txn.client._validation import validate_text
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch

T = TypeVar("T")
R = TypeVar("R", covariant=True)

STRING: Final = 1
JSON: Final = 2
AVRO: Final = 4
KEY_VALUE: Final = 15
PROTOBUF_NATIVE: Final = 20


def need(module: str, extra: str) -> Any:
    """A module that only some installations have; InvalidConfiguration names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidConfiguration(
            f"{error.name or module} is needed", hint=f"pip install '.[{extra}]' in a checkout"
        ) from error


@attrs.frozen
class SchemaInfo:
    """Schema as PRODUCER and SUBSCRIBE tell it to the broker: Pulsar's type number, definition bytes, name, pairs of text."""

    type: int
    data: bytes = b""
    name: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    def field(self) -> dict[str, Any]:
        """As the protocol's Schema."""
        pairs = [{"key": key, "value": value} for key, value in self.properties]
        return {"name": self.name, "type": self.type, "schema_data": self.data, "properties": pairs}

    @classmethod
    def of(cls, schema: Any) -> SchemaInfo:
        """Of the protocol's Schema."""
        return cls(schema.type, schema.schema_data, schema.name, tuple((pair.key, pair.value) for pair in schema.properties))


class Schema(Protocol[T]):
    """Turns values of type T into payloads and payloads into values; `info` None means "just bytes" to the broker."""

    @property
    def info(self) -> SchemaInfo | None:
        """The schema that the broker is told; None: nothing."""
        ...

    def encode(self, value: T, /) -> bytes:
        """The payload of a value; SchemaMismatch when it cannot be one."""
        ...

    def decode(self, payload: bytes, /) -> T:
        """The value of a payload; SchemaMismatch when it cannot be read."""
        ...


@runtime_checkable
class WrittenSchema(Protocol[R]):
    """A schema that reads a payload better when it knows what it was written with (Avro does not work without)."""

    def decode_written(self, payload: bytes, writer: SchemaInfo, /) -> R:
        """The value of a payload that was written with the schema `writer`; SchemaMismatch when it cannot be read."""
        ...


@runtime_checkable
class TopicSchema(Protocol):
    """A schema for producers that becomes another one, which knows the schema of the topic."""

    def of_topic(self, info: SchemaInfo | None, /) -> Schema[Any]:
        """The schema for a topic that has this schema, or none."""
        ...


class EncodedPair(NamedTuple):
    """A value of which a part goes into the message's key: payload, key as Base64, whether it is a tombstone."""

    payload: bytes
    key: str | None
    null_value: bool

    @property
    def is_base64(self) -> bool:
        """True if the key is Base64."""
        return self.key is not None


class TextPair(EncodedPair):
    """One whose key is text as it is."""

    @property
    def is_base64(self) -> bool:
        """No."""
        return False


@runtime_checkable
class PairSchema(Protocol):
    """A schema that puts a part of the value into the message's key."""

    def encode_pair(self, value: Any, /) -> EncodedPair:
        """Payload and key of a value; SchemaMismatch when it cannot be one."""
        ...

    def decode_pair(self, key: bytes | None, payload: bytes | None, writer: SchemaInfo | None, /) -> Any:
        """The value; SchemaMismatch when it cannot be read."""
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


class EncodedSchema(BytesSchema):
    """Values that were encoded elsewhere, for a schema that the broker is told of."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info


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

    `of` is an attrs class, a dataclass or a pydantic model (extra `json`), or the Avro-style definition that brokers keep for
    JSON topics; without it the broker sees plain bytes. `to_json` and `from_json` convert between values and what `json`
    understands (dicts by default; by the class where one was given).
    """

    def __init__(
        self,
        of: type[T] | str | None = None,
        *,
        to_json: Callable[[T], Any] | None = None,
        from_json: Callable[[Any], T] | None = None,
    ) -> None:
        self._class: type[T] | None = None
        definition: str | None
        if isinstance(of, type):
            kind = self._class = of
            types = need("pulsar_txn.client.schema.types", "json")
            converter = types.json_converter()
            to_json = to_json or (lambda value: converter.unstructure(value, unstructure_as=kind))
            from_json = from_json or (lambda document: converter.structure(document, kind))
            definition = json.dumps(types.definition_of(kind))
        else:
            if of is not None:
                validate_text("of", of)
            definition = of
        self.info: SchemaInfo | None = None if definition is None else SchemaInfo(JSON, definition.encode(), "JSON")
        self._to_json = to_json
        self._from_json = from_json

    def encode(self, value: T) -> bytes:
        """Compact UTF-8 JSON."""
        if self._class is not None and not isinstance(value, self._class):
            raise SchemaMismatch(f"{self._class.__name__} is needed, not {type(value).__name__}")
        try:
            document = value if self._to_json is None else self._to_json(value)
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=self._class is None).encode()
        except (TypeError, ValueError, AttributeError) as error:
            raise SchemaMismatch(f"the value is not JSON: {error}") from error

    def decode(self, payload: bytes) -> T:
        """The document, converted by `from_json`."""
        try:
            document = json.loads(payload)
        except ValueError as error:
            raise SchemaMismatch(f"the payload is not JSON: {error}") from error
        if self._from_json is None:
            return document  # type: ignore[no-any-return]  # T is the caller's word
        try:
            return self._from_json(document)
        except Exception as error:
            if self._class is None:
                raise
            raise SchemaMismatch(f"the document is no {self._class.__name__}: {error!r}") from error
