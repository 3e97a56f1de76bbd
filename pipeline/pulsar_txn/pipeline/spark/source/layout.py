"""Layout of a query: its columns and the types of its values.

The columns are those of the source, or those that the user's `.schema(…)` chooses of them. The driver finds the schema of the
query's topics, and the tasks use it.
"""

from __future__ import annotations

from typing import Final, NoReturn

import attrs
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_txn.client.encoded import SchemaInfo, matching_topics, topic_schema
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType, asks_for_bytes, check_schema_options, chosen_schema, topic_type
from pulsar_txn.pipeline.spark.schemas.primitives import check_choice

SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("message_id", StringType()),
        StructField("publish_time", TimestampType()),
        StructField("event_time", TimestampType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("ordering_key", BinaryType()),
        StructField("producer_name", StringType()),
        StructField("sequence_id", LongType()),
    ]
)
"""Columns of `load()`; all may be null. `message_id` is `ledger:entry:partition:batch index`."""


@attrs.frozen
class Layout:
    """The columns of a query, in their order, and where each comes from."""

    schema: StructType
    sources: tuple[str, ...]
    """The source's name of each column; `CORRUPT` for the one of payloads that do not fit."""
    mode: str = "FAILFAST"
    typed: TopicType | None = None


CORRUPT: Final = "_corrupt"


def all_columns(options: Options, typed: TopicType | None) -> Layout:
    """Layout of a query that names no columns."""
    kinds: dict[str, DataType] = {}
    if typed is not None:
        kinds["value"] = typed.value.kind
        if typed.key is not None:
            kinds["key"] = typed.key.kind
    fields = [StructField(each.name, kinds.get(each.name, each.dataType)) for each in SCHEMA.fields]
    sources = list(SCHEMA.names)
    if options.corrupt_column is not None:
        if options.mode != "PERMISSIVE" or options.corrupt_column in sources:
            raise OptionError(
                "columnNameOfCorruptRecord is a name of its own for a column with the payloads that do not fit, with "
                "mode=PERMISSIVE"
            )
        fields.append(StructField(options.corrupt_column, BinaryType()))
        sources.append(CORRUPT)
    return Layout(StructType(fields), tuple(sources), options.mode, typed)


def chosen_columns(every: Layout, wanted: StructType) -> Layout:
    """Columns that `.schema(…)` asks for: by name, in its order, cast to its types. OptionError names what there is not."""
    if wanted == every.schema:
        return every
    found = []
    for field in wanted.fields:
        name = _same_name(field.name, every)
        check_choice(every.schema[name].dataType, field.dataType, field.name)
        found.append(every.sources[every.schema.names.index(name)])
    return Layout(wanted, tuple(found), every.mode, every.typed)


def _same_name(name: str, every: Layout) -> str:
    """Spark does not look at the case of names."""
    for each in every.schema.names:
        if each.lower() == name.lower():
            return str(each)
    value = every.schema["value"].dataType
    if isinstance(value, StructType) and name in value.names:
        raise OptionError(f"{name!r} is a field of the column value: leave .schema(…) out and select value.{name}")
    raise OptionError(f"the source has no column {name!r}; the columns are {every.schema.simpleString()}")


def topics_type(options: Options) -> TopicType | None:
    """Type of the topics by the options: the schema of all topics, or one that they describe; None for bytes. OptionError."""
    check_schema_options(options)
    if asks_for_bytes(options):
        return None
    topics = _topics(options)
    if options.schema != "topic":
        info = chosen_schema(options, _not_defined, lambda: _asked(options, topics[0]))
        return None if info is None else topic_type(topics[0], info)
    found: TopicType | None = None
    for topic in topics:
        info = _asked(options, topic)
        if info is None:
            raise OptionError(f'{topic} has no schema: leave .option("schema", "topic") out, and read bytes')
        one = topic_type(topic, info)
        if found is not None and _columns(one) != _columns(found):
            raise OptionError(
                f"{topics[0]} and {topic} have different schemas, {_columns(found)} and {_columns(one)}: read "
                "each by itself, or read bytes"
            )
        found = found or one
    return found


def _topics(options: Options) -> tuple[str, ...]:
    if options.topics_pattern is None:
        return options.topics
    local = background()
    topics = tuple(local.run(matching_topics(local.run(local.client(options)), options.topics_pattern)))
    if not topics:
        raise OptionError(f"no topic matches {options.topics_pattern!r}, so there is no schema to read: create one first")
    return topics


def _asked(options: Options, topic: str) -> SchemaInfo | None:
    local = background()
    return local.run(topic_schema(local.run(local.client(options)), topic))


def _columns(found: TopicType) -> str:
    value = found.value.kind.simpleString()
    return value if found.key is None else f"key {found.key.kind.simpleString()}, value {value}"


def _not_defined(column: str, kind: int) -> NoReturn:
    del kind
    name = "schema" if column == "value" else "keySchema"
    raise OptionError(f"the source needs to know the fields: give the option {name} an Avro definition, or schema=topic")
