"""Values in Avro payloads, read with the definition that they were written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from pulsar_txn.client import AvroSchema
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.pipeline.spark.schemas.definitions import Convert, Node, converter


class AvroValues:
    """Both directions, for one definition."""

    def __init__(self, info: SchemaInfo, node: Node) -> None:
        self._schema: AvroSchema[Any] = AvroSchema(info.data.decode())
        self._fix = converter(node, _leaf)
        self._prepare = converter(node, lambda _: None, pairs=True)

    def reader(self, written: SchemaInfo) -> Callable[[bytes], Any]:
        """From a payload that was written with this schema to a value for Arrow. SchemaMismatch."""
        decode, fix = self._schema.decode_written, self._fix
        if fix is None:
            return lambda payload: decode(payload, written)
        return lambda payload: fix(decode(payload, written))

    def write(self, value: Any) -> bytes:
        """The payload of a value of Arrow. SchemaMismatch."""
        return self._schema.encode(value if self._prepare is None else self._prepare(value))


def _leaf(node: Node) -> Convert | None:
    """Spark has no type for UUIDs."""
    return (lambda value: str(value) if isinstance(value, UUID) else value) if node.logical == "uuid" else None
