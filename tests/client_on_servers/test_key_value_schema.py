"""Pairs of a key and a value: what they look like, and Java's client at the other end."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from pathlib import Path

import pytest
import stock_install
from other_languages import java_program
from schema_samples import Point, PointWithName
from targets import Target

from pulsar_txn.client import (
    AvroSchema,
    BatchingType,
    BytesSchema,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    JsonSchema,
    StringSchema,
    sync,
)
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.key_value import parts_of
from pulsar_txn.client.schemas import INT32_SCHEMA, KeyValue, KeyValueEncoding, KeyValueSchema

EARLIEST = InitialPosition.EARLIEST
BOTH = pytest.mark.parametrize("encoding", list(KeyValueEncoding))
PROBE = Path(__file__).parents[1] / "support" / "KeyValueProbe.java"


def pairs(encoding=KeyValueEncoding.INLINE):
    return KeyValueSchema(StringSchema(), INT32_SCHEMA, encoding)


def test_inline_puts_both_behind_their_lengths():
    payload = pairs().encode(KeyValue("ä", 7))
    assert payload == struct.pack(">i", 2) + "ä".encode() + struct.pack(">ii", 4, 7)
    assert pairs().decode(payload) == KeyValue("ä", 7)


@pytest.mark.parametrize("pair", [KeyValue(None, 1), KeyValue("a", None), KeyValue(None, None), KeyValue("", 0)])
def test_inline_tells_nothing_from_empty(pair):
    assert pairs().decode(pairs().encode(pair)) == pair


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0\0", struct.pack(">i", 9) + b"x", struct.pack(">ii", -1, -2), struct.pack(">ii", -1, -1) + b"x"],
)
def test_a_payload_that_is_no_pair_is_a_mismatch(payload):
    with pytest.raises(SchemaMismatch):
        pairs().decode(payload)


@pytest.mark.parametrize("value", ["a", 3, ("a",), KeyValue(3, 3), KeyValue("a", "b")])
@BOTH
def test_a_value_that_is_no_such_pair_is_a_mismatch(value, encoding):
    with pytest.raises(SchemaMismatch):
        pairs(encoding).encode(value)


@BOTH
def test_the_broker_is_told_both_schemas_and_the_encoding(encoding):
    schema = KeyValueSchema(JsonSchema(Point), BytesSchema(), encoding)
    assert schema.info.type == 15
    assert parts_of(schema.info) == (JsonSchema(Point).info, None)
    assert dict(schema.info.properties)["kv.encoding.type"] == encoding.value
    assert dict(schema.info.properties)["value.schema.type"] == "BYTES"


@BOTH
async def test_pairs_come_back_and_the_key_is_where_it_belongs(client, topic, encoding):
    schema = pairs(encoding)
    producer = await client.create_producer(topic, schema=schema)
    consumer = await client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    sent = [KeyValue("a", 1), KeyValue("ä", -2), KeyValue("gone", None), KeyValue(None, 3)]
    async with client.transaction() as txn:
        for pair in sent:
            await producer.send(pair, txn=txn)
    received = [await consumer.receive(10) for _ in sent]
    assert [message.value for message in received] == sent
    keys = [message.key_bytes for message in received]
    if encoding is KeyValueEncoding.SEPARATED:
        assert keys == [b"a", "ä".encode(), b"gone", None]
        assert received[2].is_tombstone
        assert received[0].data == struct.pack(">i", 1)
    else:
        assert keys == [None] * 4


async def test_separated_pairs_are_kept_together_by_their_key_on_key_shared(client, topic):
    schema = pairs(KeyValueEncoding.SEPARATED)
    options = {"schema": schema, "consumer_type": ConsumerType.KEY_SHARED, "initial_position": EARLIEST}
    consumers = [await client.subscribe(topic, "s", **options) for _ in range(2)]
    producer = await client.create_producer(topic, schema=schema, batching_type=BatchingType.KEY_BASED)
    await asyncio.gather(*(producer.send(KeyValue(f"k{number % 10}", number)) for number in range(100)))
    seen = []
    for consumer in consumers:
        messages = []
        while batch := await consumer.receive_many(100, max_wait=1.0):
            messages += batch
        seen.append([message.value for message in messages])
    assert sum(len(each) for each in seen) == 100
    assert not {pair.key for pair in seen[0]} & {pair.key for pair in seen[1]}
    for key in {pair.key for each in seen for pair in each}:
        (values,) = [[pair.value for pair in each if pair.key == key] for each in seen if any(pair.key == key for pair in each)]
        assert values == sorted(values)


async def test_the_key_of_a_pair_cannot_be_given_twice(client, topic):
    producer = await client.create_producer(topic, schema=pairs(KeyValueEncoding.SEPARATED))
    with pytest.raises(InvalidConfiguration):
        await producer.send(KeyValue("a", 1), key="b")


@BOTH
async def test_avro_parts_are_read_with_the_definition_that_they_were_written_with(client, topic, encoding):
    old, new = (KeyValueSchema(StringSchema(), AvroSchema(each), encoding) for each in (Point, PointWithName))
    async with await client.create_producer(topic, schema=old) as producer:
        await producer.send(KeyValue("k", Point(1, 2)))
    reader = await client.create_reader(topic, schema=new)
    message = await reader.read_next(10)
    assert message.value.key == "k"
    assert (message.value.value.x, message.value.value.y) == (1, 2)


@BOTH
async def test_pairs_that_are_put_off_come_again_as_they_were(client, topic, encoding):
    schema = pairs(encoding)
    producer = await client.create_producer(topic, schema=schema)
    consumer = await client.subscribe(
        topic,
        "s",
        schema=schema,
        consumer_type=ConsumerType.SHARED,
        initial_position=EARLIEST,
        dead_letter_policy=DeadLetterPolicy(max_redeliver_count=3, retry=True),
    )
    sent = [KeyValue("a", 1), KeyValue("gone", None), KeyValue(None, 3)]
    for pair in sent:
        await producer.send(pair)
    for _ in sent:
        await consumer.reconsume_later(await consumer.receive(10))
    again = [(await consumer.receive(10)).value for _ in sent]
    assert sorted(again, key=repr) == sorted(sent, key=repr)  # Shared promises no order, least to what has a delay


@BOTH
def test_the_sync_client_sends_and_receives_them(pulsar, topic, encoding):
    seen = []
    with sync.Client(pulsar.service_url) as client:
        producer = client.create_producer(topic, schema=pairs(encoding), routing=lambda key, payload: seen.append(key) or 0)
        consumer = client.subscribe(topic, "s", schema=pairs(encoding))
        producer.send(KeyValue("a", 1))
        producer.send_nowait(KeyValue("b", None)).result(10)
        assert [consumer.receive(10).value for _ in range(2)] == [KeyValue("a", 1), KeyValue("b", None)]


@BOTH
@pytest.mark.timeout(180)
def test_javas_client_reads_ours_and_we_read_its(stock_pulsar: Target, topic: str, encoding: KeyValueEncoding):
    sent = [KeyValue("a", 1), KeyValue("ä", -2), KeyValue("gone", None)]
    with sync.Client(stock_pulsar.service_url) as client:
        producer = client.create_producer(f"{topic}-ours", schema=pairs(encoding))
        for pair in sent:
            producer.send(pair)
        command = java_program(PROBE, stock_install.VERSIONS[-1])
        arguments = [stock_pulsar.service_url, encoding.value, f"{topic}-java", f"{topic}-ours"]
        said = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, encoding="utf-8")
        assert [line for line in said.stdout.splitlines() if "=" in line][-3:] == ["a=1", "ä=-2", "gone=null"]
        reader = client.create_reader(f"{topic}-java", schema=pairs(encoding))
        assert [reader.read_next(10).value for _ in range(3)] == sent
