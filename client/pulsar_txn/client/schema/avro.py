"""Avro schemas, by fastavro (extra `avro`). Payloads are Avro's bare binary form, as all of Pulsar's clients write it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

import attrs

from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.base import AVRO, SchemaInfo, need

T = TypeVar("T")

_MOST_WRITERS: Final = 1000
"""Parsed definitions of writers that one schema keeps."""


@attrs.frozen
class AvroType:
    """Says in an `Annotated` type which Avro type is meant."""

    name: str


Int32: TypeAlias = Annotated[int, AvroType("int")]
"""An int that is Avro's 32-bit `int`, as other languages may want it."""

Float32: TypeAlias = Annotated[float, AvroType("float")]
"""A float that is Avro's single-precision `float`."""


class AvroSchema(Generic[T]):
    """Values of an attrs class, a dataclass or a pydantic model; or dicts, with a definition (text or a mapping).

    A consumer reads each message with the definition that it was written with, resolved to this one by Avro's rules; the
    record's name does not matter. InvalidConfiguration without the extra `avro`, and when class or definition is no record.
    """

    def __init__(self, of: type[T] | str | Mapping[str, Any]) -> None:
        self._avro = need("fastavro", "avro")
        self._class: type[T] | None = None
        if isinstance(of, type):
            types = need("pulsar_txn.client.schema.types", "avro")
            self._class = of
            self._converter = types.avro_converter()
            definition = types.definition_of(of)
        else:
            definition = _definition(of)
        try:
            self._reader = self._avro.parse_schema(definition)
        except Exception as error:
            raise InvalidConfiguration(f"this is no Avro definition: {error!r}") from error
        self._name = definition.get("name", "")
        self._writers: dict[bytes, Any] = {}
        self.info: SchemaInfo | None = SchemaInfo(AVRO, json.dumps(definition).encode(), "AVRO")

    def encode(self, value: T) -> bytes:
        """The value in Avro's binary form."""
        if self._class is not None and not isinstance(value, self._class):
            raise SchemaMismatch(f"{self._class.__name__} is needed, not {type(value).__name__}")
        buffer = io.BytesIO()
        try:
            document = value if self._class is None else self._converter.unstructure(value, unstructure_as=self._class)
            self._avro.schemaless_writer(buffer, self._reader, document)
        except Exception as error:
            raise SchemaMismatch(f"the value does not fit its Avro definition: {error!r}") from error
        return buffer.getvalue()

    def decode(self, payload: bytes) -> T:
        """The value of a payload that was written with this very definition."""
        return self._decode(payload, self._reader)

    def decode_written(self, payload: bytes, writer: SchemaInfo) -> T:
        """The value of a payload that was written with another definition."""
        if writer.type != AVRO:
            raise SchemaMismatch(f"the message was written with a schema of type {writer.type} ({writer.name}), not Avro")
        return self._decode(payload, self._writer(writer.data))

    def _decode(self, payload: bytes, writer: Any) -> T:
        try:
            document: Any = self._avro.schemaless_reader(io.BytesIO(payload), writer, self._reader)
            return document if self._class is None else self._converter.structure(document, self._class)  # type: ignore[no-any-return]  # T is dict without a class
        except Exception as error:
            raise SchemaMismatch(f"the payload does not fit the Avro definition: {error!r}") from error

    def _writer(self, data: bytes) -> Any:
        found = self._writers.get(data)
        if found is None:
            try:
                definition = json.loads(data)
                if isinstance(definition, dict) and definition.get("name") != self._name:
                    # Resolution wants equal names; programs that share a topic need not share a class name.
                    definition = definition | {"name": self._name}
                found = self._avro.parse_schema(definition)
            except Exception as error:
                raise SchemaMismatch(f"the writer's Avro definition cannot be read: {error!r}") from error
            if len(self._writers) >= _MOST_WRITERS:
                self._writers.clear()
            self._writers[data] = found
        return found


def _definition(of: str | Mapping[str, Any]) -> dict[str, Any]:
    try:
        definition = json.loads(of) if isinstance(of, str) else dict(of)
    except (ValueError, TypeError) as error:
        raise InvalidConfiguration(f"an Avro definition is needed: {error}") from error
    if not isinstance(definition, dict):
        raise InvalidConfiguration(f"an Avro definition is a JSON object, not {type(definition).__name__}")
    return definition
