"""The schema of a query's topics, as the driver finds it and the tasks use it."""

from __future__ import annotations

from typing import NoReturn

from pulsar_txn.client.encoded import SchemaInfo, matching_topics, topic_schema
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.chosen import asks_for_bytes, check_schema_options, chosen_schema
from pulsar_txn.pipeline.spark.schemas.parts import TopicType, topic_type


def topics_type(options: Options) -> TopicType | None:
    """Return what the options ask for: the one schema of all topics, or one that they describe; None for bytes. OptionError."""
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
