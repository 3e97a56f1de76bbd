"""Programs of the users of `pulsar.asyncio`; `pulsar` is the package, `aio` its asyncio part. See `compat_kit`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from compat_kit import QUIET

ASYNCIO_PROGRAMS = {}
WAIT = 10


def asyncio_program(function):
    ASYNCIO_PROGRAMS[function.__name__] = function
    return function


@asynccontextmanager
async def open_client(aio, url, **options):
    client = aio.Client(url, logger=QUIET, **options)
    try:
        yield client
    finally:
        await client.close()


def place(message_id):
    """The official package has two classes of ids here, which cannot be compared."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


async def drain(receive, count):
    return [await asyncio.wait_for(receive(), WAIT) for _ in range(count)]


async def refused(aio, awaitable):
    """What a call raises, and its code when it is the package's own exception."""
    try:
        await awaitable
    except aio.PulsarException as error:
        return int(error.error())
    except Exception as error:  # noqa: BLE001 - its kind is the fact
        return type(error).__name__
    return "nothing"


@asyncio_program
async def sending_and_receiving(pulsar, aio, url, topic):
    async with open_client(aio, url, operation_timeout_seconds=20) as client:
        consumer = await client.subscribe(topic, "s", consumer_name="c", properties={"a": "b"})
        producer = await client.create_producer(topic, producer_name="p", initial_sequence_id=41)
        facts = [producer.topic(), producer.producer_name(), producer.last_sequence_id(), producer.is_connected()]
        facts += [consumer.topic(), consumer.subscription_name(), consumer.consumer_name()]
        sent = await producer.send(b"x", {"a": "1"}, "k", "o", 50, event_timestamp=1234)
        message = (await drain(consumer.receive, 1))[0]
        facts += [message.data(), message.properties(), message.partition_key(), message.ordering_key()]
        facts += [message.event_timestamp(), place(message.message_id()) == place(sent), producer.last_sequence_id()]
        await consumer.acknowledge(message)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
        await producer.flush()
        found = await drain(consumer.receive, 100)
        facts.append([int(each.data()) for each in found])
        await consumer.acknowledge_cumulative(found[-1].message_id())
        facts.append(await client.get_topic_partitions(topic))
        await producer.close()
        facts.append(await refused(aio, producer.send(b"x")))
    return facts


@asyncio_program
async def delivered_again(pulsar, aio, url, topic):
    async with open_client(aio, url) as client:
        shared = pulsar.ConsumerType.Shared
        consumer = await client.subscribe(topic, "s", consumer_type=shared, negative_ack_redelivery_delay_ms=100)
        producer = await client.create_producer(topic, compression_type=pulsar.CompressionType.LZ4)
        await producer.send(b"x")
        first = (await drain(consumer.receive, 1))[0]
        await consumer.negative_acknowledge(first)
        again = (await drain(consumer.receive, 1))[0]
        facts = [again.data(), again.redelivery_count() > 0, await refused(aio, consumer.acknowledge_cumulative(again))]
        consumer.redeliver_unacknowledged_messages()
        third = (await drain(consumer.receive, 1))[0]
        await consumer.acknowledge(third)
        await consumer.unsubscribe()
        facts += [third.data(), await refused(aio, consumer.receive())]
    return facts


@asyncio_program
async def seeking_and_reading(pulsar, aio, url, topic):
    async with open_client(aio, url) as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s")
        ids = [await producer.send(b"%d" % number) for number in range(5)]
        last = await consumer.get_last_message_id()
        facts = [place(last)[:2] == place(ids[-1])[:2]]
        await consumer.seek(ids[1])
        facts.append((await drain(consumer.receive, 1))[0].data())
        for start, options in ((pulsar.MessageId.earliest, {}), (ids[2], {}), (ids[2], {"start_message_id_inclusive": True})):
            reader = await client.create_reader(topic, start, **options)
            found = []
            while await reader.has_message_available():
                found += [message.data() for message in await drain(reader.read_next, 1)]
            facts += [found, reader.topic(), reader.is_connected()]
            await reader.close()
    return facts


@asyncio_program
async def schemas_and_patterns(pulsar, aio, url, topic):
    class Order(pulsar.schema.Record):
        id = pulsar.schema.Integer(required=True)
        note = pulsar.schema.String()

    schema = pulsar.schema.JsonSchema(Order)
    earliest = pulsar.InitialPosition.Earliest
    async with open_client(aio, url) as client:
        for number in range(2):
            producer = await client.create_producer(f"{topic}-{number}", schema=schema)
            await producer.send(Order(id=number, note="x"))
        options = {"schema": schema, "initial_position": earliest}
        several = await client.subscribe([f"{topic}-0", f"{topic}-1"], "s", **options)
        matching = await client.subscribe(f"{topic}-.*", "t", is_pattern_topic=True, **options)
        return [sorted(message.value().id for message in await drain(consumer.receive, 2)) for consumer in (several, matching)]


@asyncio_program
async def what_is_refused(pulsar, aio, url, topic):
    async with open_client(aio, url) as client:
        mode = pulsar.ProducerAccessMode.Exclusive
        kept = [await client.create_producer(topic, access_mode=mode), await client.subscribe(topic, "s")]
        facts = [
            await refused(aio, client.create_producer(topic, access_mode=mode)),
            await refused(aio, client.subscribe(topic, "s")),
        ]
        return len(kept), facts
