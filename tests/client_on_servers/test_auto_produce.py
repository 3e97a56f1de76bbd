"""Payloads that others have encoded, checked with the topic's schema."""

import pytest
from schema_samples import Point
from targets import Target

from pulsar_txn.client import AvroSchema, InitialPosition, JsonSchema, StringSchema, sync
from pulsar_txn.client.errors import SchemaMismatch
from pulsar_txn.client.schemas import INT32_SCHEMA, AutoProduceSchema

EARLIEST = InitialPosition.EARLIEST


async def with_schema(client, topic, schema):
    await (await client.create_producer(topic, schema=schema)).close()


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        (AvroSchema(Point), Point(1, 2), b"\x02"),
        (JsonSchema(Point), Point(1, 2), b"{"),
        (INT32_SCHEMA, 7, b"123"),
        (StringSchema(), "ä", b"\xff"),
    ],
)
async def test_what_the_topics_schema_reads_is_sent_and_nothing_else(client, topic, schema, value, wrong):
    await with_schema(client, topic, schema)
    producer = await client.create_producer(topic, schema=AutoProduceSchema())
    consumer = await client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    with pytest.raises(SchemaMismatch):
        await producer.send(wrong)
    with pytest.raises(SchemaMismatch, match="bytes are needed"):
        await producer.send(value)
    await producer.send(schema.encode(value))
    message = await consumer.receive(10)
    assert message.value == value
    assert message.schema_version


async def test_without_a_schema_on_the_topic_any_bytes_are_sent(client, topic):
    producer = await client.create_producer(topic, schema=AutoProduceSchema())
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    await producer.send(b"\xff")
    assert (await consumer.receive(10)).data == b"\xff"


def test_the_sync_client_checks_as_well(pulsar: Target, topic: str):
    with sync.Client(pulsar.service_url) as client:
        client.create_producer(topic, schema=StringSchema()).close()
        producer = client.create_producer(topic, schema=AutoProduceSchema())
        consumer = client.subscribe(topic, "s", schema=StringSchema(), initial_position=EARLIEST)
        with pytest.raises(SchemaMismatch):
            producer.send(b"\xff")
        producer.send("ä".encode())
        assert consumer.receive(10).value == "ä"


def test_it_is_for_producers_alone():
    with pytest.raises(SchemaMismatch, match="for producers"):
        AutoProduceSchema().encode(b"x")
