"""The schema of a query's topics, as the driver finds it and the tasks use it."""

from __future__ import annotations

import attrs
from pyspark.sql.types import DataType, StructField, StructType

from pulsar_txn.client.encoded import SchemaInfo, matching_topics, topic_schema
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.columns import SCHEMA
from pulsar_txn.pipeline.spark.source.values import spark_type


@attrs.frozen
class TypedValue:
    """The topics' schema, and the type of the column `value` for it."""

    info: SchemaInfo
    kind: DataType

    @property
    def schema(self) -> StructType:
        """The source's columns."""
        return StructType([StructField("value", self.kind) if each.name == "value" else each for each in SCHEMA.fields])


def typed_value(options: Options) -> TypedValue | None:
    """What `option("schema", "topic")` asks for: the one schema of all topics; None for bytes. OptionError."""
    if options.schema != "topic":
        return None
    local = background()
    client = local.run(local.client(options))
    topics = options.topics or tuple(local.run(matching_topics(client, options.topics_pattern or "")))
    if not topics:
        raise OptionError(f"no topic matches {options.topics_pattern!r}, so there is no schema to read: create one first")
    found: TypedValue | None = None
    for topic in topics:
        info = local.run(topic_schema(client, topic))
        kind = spark_type(topic, info)
        if found is not None and kind != found.kind:
            raise OptionError(
                f"{topics[0]} and {topic} have different schemas, {found.kind.simpleString()} and {kind.simpleString()}: read "
                "each by itself, or read bytes"
            )
        if found is None and info is not None:
            found = TypedValue(info, kind)
    return found
