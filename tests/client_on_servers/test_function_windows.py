"""Windows of functions on real servers: output, state and acknowledgement of a window are one, also over crashes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pulsar as official
import pytest
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline import functions

MANAGED = {"transactionMode": "MANAGED", "transactionTimeoutMs": 20_000}


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url, initial_backoff=0.02, max_backoff=0.5) as connected:
        yield connected


def config(topic, window, **keys):
    told = {"name": "f", "inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST"}
    told |= {"outputSerdeClassName": f"{__name__}.Json", "state": {"stateTopic": f"{topic}-state"}, "transaction": MANAGED}
    return told | {"windowConfig": {"watermarkEmitIntervalMs": 50} | window} | keys


class Json(functions.SerDe):
    def serialize(self, value):
        return json.dumps(value).encode()

    def deserialize(self, input_bytes):
        return json.loads(input_bytes)


class EventTime:
    def extract_timestamp(self, value, message):
        assert value == int(message.data)
        return message.event_time_ms


EVENT_TIME = {"timestampExtractorClassName": f"{__name__}.EventTime"}


async def produce(client, topic, numbers, **options):
    source = await client.create_producer(topic, **options)
    await asyncio.gather(*(source.send(b"%d" % number, event_time_ms=number or None) for number in numbers))
    await source.close()


async def output(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        found.append(json.loads((await reader.read_next(5)).data))
    await reader.close()
    return found


async def left(client, topic):
    consumer = await client.subscribe(topic, "s")
    found = await consumer.receive_many(100, max_wait=0.4)
    await consumer.close()
    return [int(message.data) for message in found]


async def run(client, told, function, windows):
    """Until so many windows were processed."""
    stop, seen = asyncio.Event(), []

    def observer(event):
        seen.append(event.kind)
        if seen.count("processed") >= windows:
            stop.set()

    async with asyncio.timeout(40):
        await functions.run(client, told, function, stop=stop, observer=observer)
    return seen


async def test_a_count_window_is_one_output_and_what_it_holds_is_acknowledged_with_it(client, topic):
    await produce(client, topic, range(8))
    await run(client, config(topic, {"windowLengthCount": 3}), lambda values: values, 2)
    assert await output(client, f"{topic}-out") == [[0, 1, 2], [3, 4, 5]]
    assert await left(client, topic) == [6, 7]


async def test_a_sliding_count_window_goes_on_where_the_last_run_was(client, topic):
    told = config(topic, {"windowLengthCount": 4, "slidingIntervalCount": 2})
    await produce(client, topic, range(5))
    await run(client, told, lambda values: values, 2)
    assert await left(client, topic) == [2, 3, 4]
    await produce(client, topic, range(5, 8))
    await run(client, told, lambda values: values, 2)
    assert await output(client, f"{topic}-out") == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]


async def test_a_time_window_has_the_messages_of_its_time_whatever_their_order(client, topic):
    def process(values, context):
        window = context.get_window()
        assert [int(message.data) for message in window.messages] == values
        return [window.start_ms, window.end_ms, values]

    window = {"windowLengthDurationMs": 100, "slidingIntervalDurationMs": 50, "maxLagMs": 30} | EVENT_TIME
    await produce(client, topic, [110, 160, 155, 220, 190, 290])
    await run(client, config(topic, window), process, 3)
    assert await output(client, f"{topic}-out") == [
        [50, 150, [110]],
        [100, 200, [110, 155, 160, 190]],
        [150, 250, [155, 160, 190, 220]],
    ]
    assert sorted(await left(client, topic)) == [220, 290]


async def test_what_comes_after_its_last_window_goes_to_the_topic_for_late_messages(client, topic):
    window = {"windowLengthDurationMs": 100, "lateDataTopic": f"{topic}-late"} | EVENT_TIME
    told = config(topic, window)
    await produce(client, topic, [110, 250])
    await run(client, told, lambda values: values, 1)
    await produce(client, topic, [120, 310])
    seen = await run(client, told, lambda values: values, 1)
    assert seen == ["late", "processed"]
    assert await output(client, f"{topic}-out") == [[110], [250]]
    assert await output(client, f"{topic}-late") == [120]
    assert await left(client, topic) == [310]


async def test_by_the_time_of_publishing_a_window_ends_without_another_message(client, topic):
    await produce(client, topic, [1, 2])
    await run(client, config(topic, {"windowLengthDurationMs": 100}), lambda values: len(values), 1)
    assert sum(await output(client, f"{topic}-out")) >= 1


async def test_a_window_that_fails_is_tried_again_and_leaves_no_trace_in_the_state(client, topic):
    fails = [True, True]

    def process(values, context):
        context.incr_counter("windows", 1)
        context.publish(f"{topic}-more", len(values))
        if fails:
            raise LookupError(f"{fails.pop()}")
        return context.get_counter("windows")

    await produce(client, topic, range(4))
    seen = await run(client, config(topic, {"windowLengthCount": 2}), process, 2)
    assert seen == ["failed", "failed", "processed", "processed"]
    assert await output(client, f"{topic}-out") == [1, 2]
    assert await output(client, f"{topic}-more") == [2, 2]


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_second_instance_of_a_window_is_refused_while_the_first_one_lives(client, topic):
    told = config(topic, {"windowLengthCount": 2})
    stop = asyncio.Event()
    await produce(client, topic, range(2))
    begun = asyncio.Event()
    first = asyncio.create_task(functions.run(client, told, sum, stop=stop, observer=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), 20)
    with pytest.raises(ConsumerBusy):
        await functions.run(client, told, sum)
    stop.set()
    await first


STEPS = ("_read_until", "begin", "write", "acknowledge", "__aexit__")
CHILD = """
import asyncio, json, os, signal, sys
from pulsar_txn.client import AsyncClient, AsyncConsumer
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions.state.table import StateLog
from pulsar_txn.pipeline.functions.state.owned import States

url, topic, step, window, windows = sys.argv[1:]
classes = {"_read_until": StateLog, "begin": States, "write": StateLog, "acknowledge": AsyncConsumer}
classes["__aexit__"] = AsyncManagedTransaction
if step != "none":
    cls, calls = classes[step], []
    before = getattr(cls, step)
    async def wrapped(self, *args, **options):
        calls.append(step)
        result = await before(self, *args, **options)
        if len(calls) == (1 if step == "_read_until" else 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(cls, step, wrapped)

class Time:
    def extract_timestamp(self, value, message):
        return value

def process(values, context):
    context.incr_counter("windows", 1)
    return json.dumps([context.get_counter("windows"), values])

async def main():
    stop = asyncio.Event()
    told = {
        "name": "w", "inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST",
        "state": {"stateTopic": f"{topic}-state"}, "windowConfig": json.loads(window),
        "transaction": {"transactionTimeoutMs": 600_000},
    }
    def observer(event):
        if event.kind == "processed" and int(event.messages[-1].data) == int(windows):
            stop.set()
    async with AsyncClient(url) as client:
        await functions.run(client, told, process, stop=stop, observer=observer)

asyncio.run(main())
"""


@pytest.mark.seed_rows("D07")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "window",
    [
        {"windowLengthCount": 5, "slidingIntervalCount": 2},
        {"windowLengthDurationMs": 5, "slidingIntervalDurationMs": 2, "timestampExtractorClassName": "__main__.Time"},
    ],
    ids=["count", "time"],
)
async def test_kills_between_all_steps_of_a_window_change_no_window(window):
    topic = "persistent://public/default/windows"
    with OurBroker() as broker:
        async with AsyncClient(broker.service_url) as client:
            await produce(client, topic, range(61))
        last = 59
        for step in (*STEPS, "none"):
            arguments = (broker.service_url, topic, step, json.dumps(window), str(last))
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *arguments)
            async with asyncio.timeout(40):
                assert await process.wait() == (0 if step == "none" else -signal.SIGKILL), step
        found = await asyncio.to_thread(read_all, broker.service_url, f"{topic}-out")
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    expected = [[value for value in range(end - 5, end) if value >= 0] for end in range(2, 61, 2)]
    assert [values for _, values in found] == expected


def read_all(service_url, topic):
    client = official.Client(service_url)
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(json.loads(reader.read_next(10_000).data()))
        return found
    finally:
        client.close()


class Strict:
    """Takes no message without an event time, and none whose value it does not know."""

    def extract_timestamp(self, value, message):
        if value == 5:
            raise LookupError("no time for 5")
        return message.event_time_ms or "none"


STRICT = {"timestampExtractorClassName": f"{__name__}.Strict"}


@pytest.mark.parametrize("place", ["", "deadLetterTopic", "lateDataTopic"])
async def test_a_message_that_can_be_in_no_window_goes_aside_and_the_windows_go_on(client, topic, place):
    """Its extractor raised, and the function ended: in this run, and in each one after it."""
    source = await client.create_producer(topic)
    for data, time_ms in ((b"1", 110), (b"5", 120), (b"6", None), (b"no json", 130), (b"2", 140), (b"3", 250)):
        await source.send(data, event_time_ms=time_ms, key="k", properties={"a": "b"})
    name = topic.rpartition("/")[2]
    window = {"windowLengthDurationMs": 100, "maxLagMs": 0} | STRICT
    keys = {"name": name, "inputSpecs": {topic: {"serdeClassName": f"{__name__}.Json"}}}
    aside = f"{topic}-aside" if place else f"persistent://public/default/{name}-DLQ"
    if place == "lateDataTopic":
        window[place] = aside
    elif place:
        keys[place] = aside
    seen = await run(client, config(topic, window, **keys), lambda values: values, 1)
    assert seen.count("dead_letter") == 3
    assert await output(client, f"{topic}-out") == [[1, 2]]
    consumer = await client.subscribe(topic, "s")
    assert [each.data for each in await consumer.receive_many(100, max_wait=0.4)] == [b"3"]
    if place == "lateDataTopic":
        reader = await client.create_reader(aside)
        letters = [await reader.read_next(10) for _ in range(3)]
    else:
        kept = await client.subscribe(aside, "dead-letters")  # made by the function, not by this line
        letters = [await kept.receive(10) for _ in range(3)]
    assert [each.data for each in letters] == [b"5", b"6", b"no json"]
    assert [each.properties["EXCEPTION"].partition(":")[0] for each in letters] == [
        "LookupError",
        "SchemaMismatch",
        "JSONDecodeError",
    ]
    assert {(each.key, each.properties["a"], each.properties["REAL_TOPIC"]) for each in letters} == {("k", "b", topic)}


async def test_without_an_extractor_too_a_message_that_is_no_value_is_put_aside(client, topic):
    """A window with such a message in it was tried again for ever."""
    source = await client.create_producer(topic)
    for data in (b"0", b"no json", b"1"):
        await source.send(data)
    keys = {"inputSpecs": {topic: {"serdeClassName": f"{__name__}.Json"}}, "deadLetterTopic": f"{topic}-dead"}
    await run(client, config(topic, {"windowLengthCount": 2}, **keys), lambda values: values, 1)
    assert await output(client, f"{topic}-out") == [[0, 1]]
    assert await left(client, topic) == []


async def test_an_extractor_that_takes_none_of_the_first_ten_messages_ends_the_function_with_its_error(client, topic):
    await produce(client, topic, [5] * 15)
    told = config(topic, {"windowLengthDurationMs": 100} | STRICT, inputSpecs={topic: {"serdeClassName": f"{__name__}.Json"}})
    with pytest.raises(LookupError, match="no time for 5") as raised:
        await run(client, told | {"deadLetterTopic": f"{topic}-dead"}, lambda values: values, 1)
    assert "the first 10 messages all failed" in raised.value.__notes__[0]
    kept = await client.subscribe(topic, "s")
    assert len(await kept.receive_many(15, max_wait=0.5)) == 15
