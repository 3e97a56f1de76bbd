"""A function with state is killed between every two steps of a transaction; the official client reads what is left."""

from __future__ import annotations

import asyncio
import collections
import signal
import sys

import pulsar
import pytest
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient

STEPS = ("fenced", "announced", "a record", "all records", "committed", "trimmed")
CHILD = """
import asyncio, os, signal, sys
from pulsar_txn.client import AsyncClient
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions.state import owned, table
from pulsar_txn.pipeline.functions.state.table import StateLog

url, topic, step = sys.argv[1:]
owned.TRIM_RECORDS, table.SLACK = 5, 0
seen = {"calls": 0}

def die(cls, name, after, number):
    before = getattr(cls, name)
    async def wrapped(self, *args, **options):
        seen["calls"] += not after
        if not after and seen["calls"] >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await before(self, *args, **options)
        seen["calls"] += after
        if after and seen["calls"] >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(cls, name, wrapped)

match step:
    case "fenced": die(StateLog, "_read_until", False, 1)
    case "announced": die(StateLog, "_send", False, 4)
    case "a record": die(StateLog, "_send", True, 5)
    case "all records": die(StateLog, "write", True, 3)
    case "committed": die(AsyncManagedTransaction, "__aexit__", True, 3)
    case "trimmed": die(StateLog, "trim", True, 1)

def process(text, context):
    for word in text.split():
        context.incr_counter(word, 1)
    context.put_state("last", text)
    context.incr_counter("all", 1)
    return f"{context.get_counter('all')} {text}"

async def main():
    stop = asyncio.Event()
    told = {
        "name": "words", "inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST",
        "retainOrdering": True, "state": {"stateTopic": f"{topic}-state"},
        "transaction": {"transactionMode": "MANAGED", "transactionTimeoutMs": 600_000, "transactionBatchingMaxEntries": 3},
    }
    def observer(event):
        if event.kind == "processed" and event.messages[-1].data.endswith(b" end"):
            stop.set()
    async with AsyncClient(url) as client:
        await functions.run(client, told, process, stop=stop, observer=observer)

asyncio.run(main())
"""


def everything(client, topic):
    """What the official client reads: committed messages, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def received(client, topic, subscription):
    """What a subscription has not acknowledged."""
    consumer = client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Failover)
    found = []
    with pytest.raises(pulsar.Timeout):
        while True:
            message = consumer.receive(500)
            found.append((message.partition_key(), message.data()))
    return found


@pytest.mark.timeout(120)
async def test_kills_between_all_steps_lose_and_double_nothing_of_state_output_and_acknowledgement(tmp_path):
    topic = "persistent://public/default/words"
    texts = [f"w{number % 7} w{number % 3} t{number}" for number in range(60)] + ["the end"]
    with OurBroker() as broker:
        async with AsyncClient(broker.service_url) as client:
            source = await client.create_producer(topic)
            await asyncio.gather(*(source.send(text.encode()) for text in texts))
        for step in (*STEPS, "none"):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, broker.service_url, topic, step)
            async with asyncio.timeout(40):
                assert await process.wait() == (0 if step == "none" else -signal.SIGKILL), step
        await asyncio.to_thread(judge, broker.service_url, topic, texts)


def judge(service_url, topic, texts):
    client = pulsar.Client(service_url)
    try:
        assert [data.decode() for _, data in everything(client, f"{topic}-out")] == [
            f"{number + 1} {text}" for number, text in enumerate(texts)
        ]
        kept = received(client, f"{topic}-state", "function-state")
        assert len(kept) < len(everything(client, f"{topic}-state"))
        records = {key: data.decode() for key, data in kept if key[0] != "\x00"}
        words = collections.Counter(word for text in texts for word in text.split())
        assert records == {"last": texts[-1], "all": str(len(texts))} | {word: str(count) for word, count in words.items()}
        assert received(client, topic, "s") == []
    finally:
        client.close()
