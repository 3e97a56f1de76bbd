"""Schemas of Pulsar that the options `schema`, `schemaType`, `keySchema` and `keyValueEncoding` ask for."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_txn.client import KeyValueEncoding
from pulsar_txn.client.encoded import SchemaInfo, pair_info, parts_of
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.option_values import PRIMITIVE_SCHEMAS
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import AVRO, JSON, KEY_VALUE

_JAVA_NAMES = {1: "String", 5: "Boolean", 10: "Float", 11: "Double", 12: "Date", 13: "Time", 14: "Timestamp"}
_KINDS = {"json": JSON, "avro": AVRO}

Define = Callable[[str, int], str]
"""The definition for a column, `value` or `key`, where the option says only of which kind (JSON, AVRO) it is to be."""


def asks_for_bytes(options: Options) -> bool:
    """True if nothing is said about schemas."""
    return options.schema == "bytes" and options.key_schema is None


def check_schema_options(options: Options) -> None:
    """OptionError for options that have no effect on each other."""
    if options.schema == "topic" and options.key_schema is not None:
        raise OptionError('keySchema goes with an own schema: with .option("schema", "topic") the topic says what its keys are')
    has_definition = any(each is not None and each.startswith("{") for each in (options.schema, options.key_schema))
    if options.schema_type is not None and not has_definition:
        raise OptionError("schemaType says how the values of a definition are written: give the definition as option schema")


def chosen_schema(options: Options, define: Define, topics_own: Callable[[], SchemaInfo | None]) -> SchemaInfo | None:
    """The schema that the options describe; None for bytes. `topics_own` is asked how values of a definition are written."""
    value = _one("value", options.schema, options, define, topics_own)
    if options.key_schema is None:
        return value
    key = _one("key", options.key_schema, options, define, topics_own)
    return pair_info(key, value, KeyValueEncoding(options.key_value_encoding))


def _one(
    column: str, given: str, options: Options, define: Define, topics_own: Callable[[], SchemaInfo | None]
) -> SchemaInfo | None:
    if given == "bytes":
        return None
    if given in PRIMITIVE_SCHEMAS:
        number = PRIMITIVE_SCHEMAS[given]
        return SchemaInfo(number, b"", _JAVA_NAMES.get(number, given.upper()))
    if given in _KINDS:
        return _described(_KINDS[given], define(column, _KINDS[given]))
    return _described(_kind_of_definition(column, options, topics_own), given)


def _kind_of_definition(column: str, options: Options, topics_own: Callable[[], SchemaInfo | None]) -> int:
    if options.schema_type is not None:
        return _KINDS[options.schema_type]
    found = topics_own()
    if found is not None and found.type == KEY_VALUE:
        found = parts_of(found)[column == "value"]
    if found is None or found.type not in (JSON, AVRO):
        raise OptionError('JSON and Avro share their definitions: say with .option("schemaType", "AVRO") or "JSON" which it is')
    return found.type


def _described(kind: int, definition: str) -> SchemaInfo:
    return SchemaInfo(kind, definition.encode(), "JSON" if kind == JSON else "AVRO")
