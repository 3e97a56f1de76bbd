"""Schema of a topic in Spark: the type of its values, and of its keys when it has pairs."""

from __future__ import annotations

import attrs
from pyspark.sql.types import BinaryType, DataType, StringType

from pulsar_txn.client import InvalidConfiguration, KeyValueEncoding, SchemaMismatch
from pulsar_txn.client.encoded import SchemaInfo, encoding_of, message_class, parts_of
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.schemas.definitions import parsed, type_of
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES
from pulsar_txn.pipeline.spark.schemas.protobuf_values import type_of_message

STRING = 1
JSON = 2
PROTOBUF = 3
AVRO = 4
KEY_VALUE = 15
PROTOBUF_NATIVE = 20
_BYTES = (0, -1)


@attrs.frozen
class Part:
    """One part of a message, its value or its key. Without `info` it is bytes."""

    info: SchemaInfo | None
    kind: DataType


@attrs.frozen
class TopicType:
    """A schema and its parts; `key` only when it has pairs."""

    info: SchemaInfo
    value: Part
    key: Part | None = None
    encoding: KeyValueEncoding | None = None


def topic_type(topic: str, info: SchemaInfo) -> TopicType:
    """OptionError names the topic, and the kind that cannot be read."""
    if info.type != KEY_VALUE:
        return TopicType(info, part_of(topic, info))
    try:
        key, value = parts_of(info)
    except SchemaMismatch as error:
        raise OptionError(f"{topic}: the definition of its KeyValue schema cannot be read: {error}") from None
    return TopicType(info, part_of(topic, value), part_of(topic, key), encoding_of(info))


def part_of(topic: str, info: SchemaInfo | None) -> Part:
    """A schema that has no parts of its own; None is bytes."""
    if info is None or info.type in _BYTES:
        return Part(None, BinaryType())
    return Part(info, spark_type(topic, info))


def spark_type(topic: str, info: SchemaInfo) -> DataType:
    """The type of a column."""
    if info.type in PRIMITIVES:
        return PRIMITIVES[info.type].kind
    if info.type == STRING:
        return StringType()
    if info.type in (JSON, AVRO):
        return type_of(parsed(topic, info.data))
    if info.type == PROTOBUF_NATIVE:
        try:
            return type_of_message(topic, message_class(info).DESCRIPTOR)
        except InvalidConfiguration as error:
            raise OptionError(f"{topic}: {error}") from None
    kind = "PROTOBUF" if info.type == PROTOBUF else info.name or str(info.type)
    raise OptionError(
        f"{topic} has a schema of the kind {kind}; read are JSON, AVRO, PROTOBUF_NATIVE, KeyValue and all primitive "
        "ones. Leave the option schema out, read bytes, and decode them in Spark, for instance with from_protobuf"
    )
