"""A Shared subscription divides its messages; a look that finds nothing to send costs no consumer its turn."""

import asyncio

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType


async def test_two_shared_consumers_get_half_of_what_is_sent_one_by_one():
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        producer = await client.create_producer("fair")
        consumers = [await client.subscribe("fair", "s", consumer_type=ConsumerType.SHARED) for _ in range(2)]
        for number in range(20):
            await producer.send(b"%d" % number)
        async with asyncio.timeout(10):
            for consumer in consumers:
                assert len([await consumer.receive() for _ in range(10)]) == 10
