"""Rows that the sink writes with a schema: what the broker is told, and rows as messages of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from pulsar_txn.client import KeyValueEncoding
from pulsar_txn.client.encoded import SchemaInfo, join_pair, topic_schema
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.casting import UnfitValueError
from pulsar_txn.pipeline.spark.schemas.chosen import asks_for_bytes, check_schema_options, chosen_schema
from pulsar_txn.pipeline.spark.schemas.definitions import definition_of
from pulsar_txn.pipeline.spark.schemas.parts import TopicType, topic_type
from pulsar_txn.pipeline.spark.schemas.writing import PartWriter, check_part


def written_type(options: Options, columns: StructType) -> TopicType | None:
    """The schema that the options ask for, checked with the columns; None for bytes. OptionError, before any task runs."""
    check_schema_options(options)
    if asks_for_bytes(options):
        return None
    name = options.topics[0] if options.topics else "this sink"
    if options.schema == "topic":
        info = _topics_own(options)
        if info is None:
            raise OptionError(
                f'{name} has no schema: say which with .option("schema", "avro") or "json", and it gets that of column value'
            )
    else:
        info = chosen_schema(
            options, lambda column, _: json.dumps(definition_of(_kind(columns, column))), lambda: _topics_own(options)
        )
    if info is None:
        return None
    typed = topic_type(name, info)
    check_part(typed.value, _kind(columns, "value"), "value")
    if typed.key is not None:
        check_part(typed.key, _kind(columns, "key"), "key")
    elif "key" in columns.names and not isinstance(columns["key"].dataType, StringType | BinaryType):
        raise OptionError(f"column 'key' is {columns['key'].dataType.simpleString()}; the sink takes string or binary")
    return typed


def _kind(columns: StructType, name: str) -> Any:
    if name not in columns.names:
        raise OptionError(f"the schema has pairs of key and value, so the sink needs a column {name!r}")
    return columns[name].dataType


def _topics_own(options: Options) -> SchemaInfo | None:
    if not options.topics:
        raise OptionError("rows with a column topic go to many topics: name the schema, instead of asking one topic for it")
    local = background()
    return local.run(topic_schema(local.run(local.client(options)), options.topics[0]))


class UnfitColumnError(UnfitValueError):
    """A value that the schema does not take, in a column."""

    def __init__(self, error: UnfitValueError, column: str) -> None:
        super().__init__(error.number, str(error))
        self.column = column


class MessageWriter:
    """Rows as payloads, and keys of messages where the schema says that they are there."""

    def __init__(self, typed: TopicType) -> None:
        self._value = PartWriter("value", typed.value)
        self._key = None if typed.key is None else PartWriter("key", typed.key)
        self._encoding = typed.encoding

    @property
    def has_keys(self) -> bool:
        """True if the column `key` belongs to the schema."""
        return self._key is not None

    @property
    def keys_are_base64(self) -> bool:
        """True if the keys of the messages are."""
        return self._encoding is KeyValueEncoding.SEPARATED

    def written(self, values: Any, keys: Any) -> tuple[Any, Any]:
        """Payloads, and the keys of the messages, if they have some. UnfitColumnError."""
        payloads = _part(self._value, values, "value")
        if self._key is None:
            return payloads, None
        raw = _part(self._key, keys, "key")
        if self.keys_are_base64:
            texts = [None if each is None else base64.b64encode(each).decode() for each in raw.to_pylist()]
            return payloads, pa.array(texts, pa.string())
        pairs = zip(raw.to_pylist(), payloads.to_pylist(), strict=True)
        return pa.array([join_pair(*pair) for pair in pairs], pa.binary()), None


def _part(writer: PartWriter, column: Any, name: str) -> Any:
    try:
        return writer.payloads(column)
    except UnfitValueError as error:
        raise UnfitColumnError(error, name) from None
