"""Schemas: values of a program as payloads, and back. `fastavro` is loaded when the first Avro schema is made."""

from pulsar_txn.client.schema.auto import AutoProduceSchema, AutoSchema
from pulsar_txn.client.schema.avro import AvroSchema, Float32, Int32
from pulsar_txn.client.schema.base import BytesSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.schema.key_value import KeyValue, KeyValueEncoding, KeyValueSchema
from pulsar_txn.client.schema.primitives import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
)
from pulsar_txn.client.schema.protobuf import ProtobufNativeSchema

__all__ = [
    "BOOLEAN_SCHEMA",
    "DOUBLE_SCHEMA",
    "FLOAT_SCHEMA",
    "INT8_SCHEMA",
    "INT16_SCHEMA",
    "INT32_SCHEMA",
    "INT64_SCHEMA",
    "AutoProduceSchema",
    "AutoSchema",
    "AvroSchema",
    "BytesSchema",
    "Float32",
    "Int32",
    "JsonSchema",
    "KeyValue",
    "KeyValueEncoding",
    "KeyValueSchema",
    "ProtobufNativeSchema",
    "Schema",
    "StringSchema",
]
