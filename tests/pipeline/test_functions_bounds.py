"""Keys of a function's configuration: what an instance begins before it waits, subscribes with and hands on."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.pipeline import functions


@pytest.mark.parametrize(("given", "begun"), [({}, 10), ({"maxPendingAsyncRequests": 2}, 3)])
async def test_an_instance_waits_when_the_outputs_of_so_many_messages_are_on_their_way(given, begun):
    store, stop, begins, seen = MemoryStore(), asyncio.Event(), asyncio.Event(), []
    await store.start()
    told = {"name": "f", "inputs": ["in"], "output": "out", "subscriptionPosition": "EARLIEST", **given}

    def process(value):
        if not seen:
            store.auto_confirm = False  # no output is durable from here on
        seen.append(value)
        if len(seen) == begun:
            begins.set()
        return value

    async with Standalone(store=store) as broker, AsyncClient(broker.service_url) as client:
        producer, consumer = await client.create_producer("in"), await client.subscribe("out", "s")
        for number in range(10):
            await producer.send(b"%d" % number)
        running = asyncio.create_task(functions.run(client, told, process, stop=stop))
        async with asyncio.timeout(20):
            await begins.wait()
        await asyncio.sleep(0.3)
        assert len(seen) == begun
        store.auto_confirm = True
        store.confirm()
        found = {(await consumer.receive(5)).data for _ in range(10)}
        assert found == {b"%d" % number for number in range(10)}
        stop.set()
        await running
    await store.close()


@pytest.mark.parametrize(("given", "forwarded"), [({}, True), ({"forwardSourceMessageProperty": False}, False)])
async def test_properties_of_the_input_come_with_the_output_unless_a_key_says_no(given, forwarded):
    told = {"name": "f", "inputs": ["in"], "output": "out", "subscriptionPosition": "EARLIEST", **given}
    stop = asyncio.Event()
    async with Standalone() as broker, AsyncClient(broker.service_url) as client:
        consumer = await client.subscribe("out", "s")
        await (await client.create_producer("in")).send(b"x", properties={"colour": "red"})
        running = asyncio.create_task(functions.run(client, told, lambda value: value, stop=stop))
        properties = (await consumer.receive(20)).properties
        stop.set()
        await running
    assert ("colour" in properties) is forwarded
    assert "__pfn_input_msg_id__" in properties


async def test_an_input_is_subscribed_with_its_properties_and_queue(monkeypatch):
    spec = {"consumerProperties": {"team": "blue"}, "receiverQueueSize": 7}
    told = {"name": "f", "inputSpecs": {"in": spec}, "output": "out", "subscriptionPosition": "EARLIEST"}
    stop, asked = asyncio.Event(), []
    async with Standalone() as broker, AsyncClient(broker.service_url) as client:
        subscribe = client.subscribe

        def noted(topic, subscription, **options):
            asked.append((topic, options["properties"], options["receiver_queue_size"]))
            return subscribe(topic, subscription, **options)

        consumer = await client.subscribe("out", "s")
        await (await client.create_producer("in")).send(b"x")
        monkeypatch.setattr(client, "subscribe", noted)
        running = asyncio.create_task(functions.run(client, told, lambda value: value, stop=stop))
        assert (await consumer.receive(20)).data == b"x"
        stop.set()
        await running
    assert asked == [(["in"], {"team": "blue"}, 7)]
