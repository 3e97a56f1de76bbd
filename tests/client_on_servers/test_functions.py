"""Functions on real servers: what each guarantee promises, and what goes together in a transaction."""

from __future__ import annotations

import asyncio
import json
import logging

import admin
import pytest

from pulsar_txn.client import AsyncClient, BatchingType
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, InvalidTopicName, UsageError
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions import Context, Function, SerDe

MANAGED = {"transactionMode": "MANAGED", "transactionTimeoutMs": 20_000}


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url, initial_backoff=0.02, max_backoff=0.5) as connected:
        yield connected


async def produce(client, topic, *payloads, **options):
    source = await client.create_producer(topic)
    for payload in payloads:
        await source.send(payload, **options)
    await source.close()


async def messages(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        found.append(await reader.read_next(5))
    await reader.close()
    return found


async def output(client, topic):
    return [message.data for message in await messages(client, topic)]


def config(topic, **keys):
    told = {"name": "f", "inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST"}
    return told | keys


async def run(client, told, function, count, kind="processed", **options):
    """Until so many messages were processed (or whatever `kind` says)."""
    stop, seen, options = asyncio.Event(), [], {"negative_ack_delay": 0.1} | options

    def observer(event):
        seen.append(event)
        if sum(len(each.messages) for each in seen if each.kind == kind) >= count:
            stop.set()

    async with asyncio.timeout(40):
        stats = await functions.run(client, told, function, stop=stop, observer=observer, **options)
    return stats, seen


async def left(client, topic):
    """What the subscription has not acknowledged."""
    consumer = await client.subscribe(topic, "s")
    found = await consumer.receive_many(100, max_wait=0.4)
    await consumer.close()
    return [message.data for message in found]


class Exclaim(Function):
    """Fails at the first sight of what is in `fails`."""

    def __init__(self, *fails):
        self.fails = list(fails)

    def process(self, text, context):
        context.publish(f"{context.get_output_topic()}-audit", f"saw {text}")
        context.record_metric("length", len(text))
        if text in self.fails:
            self.fails.remove(text)
            raise LookupError(f"no {text} today")
        return f"{text}!"


@pytest.mark.parametrize("keys", [{}, {"transaction": MANAGED}, {"processingGuarantees": "ATMOST_ONCE"}], ids=str)
async def test_what_a_function_returns_goes_to_the_output_with_where_it_came_from(client, topic, keys):
    await produce(client, topic, b"hello", key="k", properties={"colour": "red"})
    stats, _ = await run(client, config(topic, **keys), lambda text: f"{text}!", 1)
    (message,) = await messages(client, f"{topic}-out")
    assert message.data == b"hello!"
    assert message.key == "k"
    assert message.properties["colour"] == "red"
    assert message.properties["__pfn_input_topic__"] == topic
    assert message.properties["__pfn_input_msg_id__"]
    assert (stats.received, stats.processed_successfully, stats.user_exceptions) == (1, 1, 0)
    assert await left(client, topic) == []


@pytest.mark.parametrize("entries", [1, 10])
async def test_in_a_transaction_an_exception_takes_back_output_and_everything_published(client, topic, entries):
    """With several entries it takes back the output of those before it as well."""
    await produce(client, topic, b"a", b"b", b"c")
    told = config(topic, retainOrdering=True, transaction=MANAGED | {"transactionBatchingMaxEntries": entries})
    stats, seen = await run(client, told, Exclaim("b"), 3)
    assert sorted(await output(client, f"{topic}-out")) == [b"a!", b"b!", b"c!"]
    assert sorted(await output(client, f"{topic}-out-audit")) == [b"saw a", b"saw b", b"saw c"]
    assert [event.kind for event in seen].count("failed") == 1
    assert (stats.user_exceptions, stats.system_exceptions, stats.processed_successfully) == (1, 0, 3)
    assert await left(client, topic) == []


@pytest.mark.seed_rows("D06")
async def test_without_a_transaction_what_was_published_before_the_exception_stays(client, topic):
    await produce(client, topic, b"a", b"b")
    await run(client, config(topic), Exclaim("b"), 2)
    assert sorted(await output(client, f"{topic}-out")) == [b"a!", b"b!"]
    assert sorted(await output(client, f"{topic}-out-audit")) == [b"saw a", b"saw b", b"saw b"]
    assert await left(client, topic) == []


async def test_a_managed_poison_message_goes_to_the_dead_letter_topic(client, topic):
    await produce(client, topic, b"a", b"b", b"c")
    told = config(
        topic,
        transaction=MANAGED | {"transactionBatchingMaxEntries": 10},
        maxMessageRetries=1,
        deadLetterTopic=f"{topic}-dead",
    )
    await run(client, told, Exclaim(*"bbbbbbbb"), 1, kind="dead_letter")
    assert await output(client, f"{topic}-dead") == [b"b"]
    assert b"saw b" not in await output(client, f"{topic}-out-audit")


async def test_a_poison_message_without_a_transaction_goes_to_the_dead_letter_topic(client, topic):
    await produce(client, topic, b"b")
    told = config(topic, maxMessageRetries=1, deadLetterTopic=f"{topic}-dead")
    stop = asyncio.Event()
    running = asyncio.create_task(functions.run(client, told, Exclaim(*"bbbbb"), stop=stop, negative_ack_delay=0.1))
    dead = await client.subscribe(f"{topic}-dead", "s", initial_position=1)
    assert (await dead.receive(20)).data == b"b"
    stop.set()
    assert (await running).user_exceptions == 2
    kept = await client.subscribe(f"{topic}-dead", "dead-letters")  # made by the function, not by this line
    assert (await kept.receive(20)).data == b"b"


@pytest.mark.parametrize("keys", [{}, {"transaction": MANAGED}, {"retainOrdering": True}], ids=str)
async def test_what_a_function_raises_is_told_once_with_its_traceback_and_counted(client, topic, keys, caplog):
    await produce(client, topic, b"a", b"b")
    with caplog.at_level("INFO", "pulsar_txn"):
        await run(client, config(topic, **keys), Exclaim("b", "b", "b"), 2)
    told = [each for each in caplog.records if "LookupError" in each.getMessage() and each.levelname == "WARNING"]
    assert [bool(each.exc_info) for each in told] == [True] * (2 if "transaction" in keys else 1)
    assert "no b today" in told[0].getMessage()
    assert "number 3 of its kind" in caplog.text


@pytest.mark.parametrize(
    "keys",
    [
        {"transaction": MANAGED, "maxMessageRetries": 1},
        {"maxMessageRetries": 1},
        {"processingGuarantees": "ATMOST_ONCE"},
        {"processingGuarantees": "ATMOST_ONCE", "retainOrdering": True},
    ],
    ids=str,
)
async def test_a_function_whose_first_ten_messages_all_fail_ends_with_the_error(client, topic, keys):
    await produce(client, topic, *(b"%d" % number for number in range(15)))
    with pytest.raises(NameError, match="autput") as raised:
        await run(client, config(topic, **keys), lambda text: autput, 100)  # noqa: F821 - that is the mistake
    assert "the first 10 messages all failed" in raised.value.__notes__[0]
    found = await left(client, topic)
    if "maxMessageRetries" in keys:
        letters = await client.subscribe(f"{topic}-s-DLQ", "dead-letters")
        found += [message.data for message in await letters.receive_many(15, max_wait=0.5)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(15)]
    assert len(found) >= 5


async def test_at_most_once_does_not_try_again(client, topic):
    await produce(client, topic, b"a", b"b", b"c")
    stats, _ = await run(client, config(topic, processingGuarantees="ATMOST_ONCE"), Exclaim("b"), 2)
    assert await output(client, f"{topic}-out") == [b"a!", b"c!"]
    assert (stats.received, stats.user_exceptions) == (3, 1)
    assert await left(client, topic) == []


async def test_with_retained_order_nothing_overtakes_what_is_tried_again(client, topic):
    await produce(client, topic, b"a", b"b", b"c")
    await run(client, config(topic, retainOrdering=True), Exclaim("b", "b"), 3)
    assert await output(client, f"{topic}-out") == [b"a!", b"b!", b"c!"]


@pytest.mark.seed_rows("D06")
async def test_effectively_once_stops_at_what_was_sent_before(client, topic):
    """The acknowledgements are undone by a seek, as a crash before them would; the sequence ids of the output are the same."""
    source = await client.create_producer(topic)
    await asyncio.gather(*(source.send(b"%d" % number) for number in range(5)))  # in a batch, which shares an entry
    told = config(topic, processingGuarantees="EFFECTIVELY_ONCE")
    await run(client, told, lambda number: number * 10, 5)
    (first, *others) = await messages(client, f"{topic}-out")
    ids = [first.sequence_id, *(each.sequence_id for each in others)]
    assert sorted(set(ids)) == ids
    assert {message.producer_name for message in (first, *others)} == {f"public/default/f-{topic}"}
    consumer = await client.subscribe(topic, "s", consumer_type=2)
    await consumer.seek(0)
    await consumer.close()
    await run(client, told, lambda number: number * 10, 5)
    again = await messages(client, f"{topic}-out")
    assert {message.sequence_id for message in again} == set(ids)


async def test_by_hand_only_what_the_function_acknowledges_is_acknowledged(client, topic):
    await produce(client, topic, b"a", b"b", b"c")

    def process(text: str, context: Context) -> None:
        if text != "b":
            context.ack(context.get_message_id(), context.get_current_message_topic_name())

    await run(client, config(topic, processingGuarantees="MANUAL"), process, 3)
    assert await left(client, topic) == [b"b"]


async def test_a_coroutine_function_may_wait_and_publish(client, topic):
    await produce(client, topic, b"1", b"2")

    async def process(number: int, context: Context) -> int:
        await asyncio.sleep(0.01)
        context.publish(f"{topic}-squares", number * number)
        return -number

    await run(client, config(topic, transaction=MANAGED), process, 2)
    assert sorted(await output(client, f"{topic}-out")) == [b"-1", b"-2"]
    assert sorted(await output(client, f"{topic}-squares")) == [b"1", b"4"]


async def test_a_function_knows_its_message_and_its_configuration(client, topic, monkeypatch):
    monkeypatch.setenv("DATABASE", "secret")
    await produce(client, topic, b"1", key="k", ordering_key=b"o", properties={"a": "b"}, event_time_ms=5)
    known = {}

    def process(number: int, context: Context) -> None:
        known.update(
            key=context.get_message_key(),
            ordering_key=context.get_ordering_key(),
            time=context.get_message_eventtime(),
            properties=context.get_message_properties(),
            topic=context.get_current_message_topic_name(),
            name=(context.get_function_tenant(), context.get_function_namespace(), context.get_function_name()),
            instance=context.get_instance_id(),
            config=(context.get_user_config_value("limit"), context.get_user_config_value("none")),
            secrets=(context.get_secret("DATABASE"), context.get_secret("HOME")),
            topics=(context.get_input_topics(), context.get_output_topic()),
            entry=context.get_message_id().entry_id(),
        )

    await run(client, config(topic, userConfig={"limit": 3}, secrets={"DATABASE": {"path": "p"}}), process, 1)
    assert known == {
        "key": "k",
        "ordering_key": "o",
        "time": 5,
        "properties": {"a": "b"},
        "topic": topic,
        "name": ("public", "default", "f"),
        "instance": 0,
        "config": (3, None),
        "secrets": ("secret", None),
        "topics": ([topic], f"{topic}-out"),
        "entry": 0,
    }


async def test_a_callback_hears_what_became_of_a_published_message(client, topic):
    await produce(client, topic, b"1")
    heard = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def process(number: int, context: Context) -> None:
        conf = {"partition_key": "k", "properties": {"more": "2"}}
        context.publish(
            f"{topic}-more",
            "x",
            properties={"some": "1"},
            callback=lambda result, msg_id: loop.call_soon_threadsafe(heard.set_result, (str(result), msg_id.entry_id())),
            message_conf=conf,
        )

    await run(client, config(topic), process, 1)
    assert await heard == ("Result.Ok", 0)
    (message,) = await messages(client, f"{topic}-more")
    assert (message.key, message.properties) == ("k", {"some": "1", "more": "2"})


async def test_what_a_function_logs_goes_to_the_log_topic_and_stays_when_its_transaction_does_not(client, topic):
    await produce(client, topic, b"a")
    failed = []

    def process(text: str, context: Context) -> str:
        context.get_logger().info("attempt %d", len(failed) + 1)
        if not failed:
            failed.append(text)
            raise LookupError("once")
        return text

    await run(client, config(topic, transaction=MANAGED, logTopic=f"{topic}-log"), process, 1)
    found = await messages(client, f"{topic}-log")
    texts = [message.data.decode() for message in found]
    assert [text for text in texts if text.startswith("attempt")] == ["attempt 1", "attempt 2"]
    assert [text.splitlines()[-1] for text in texts if "Traceback" in text] == ["LookupError: once"]
    assert found[0].properties == {"fqn": "public/default/f", "instance": "0", "loglevel": "INFO"}
    assert logging.getLogger("pulsar_txn.functions.public.default.f.0").handlers == []


class JsonSerDe(SerDe):
    def serialize(self, value):
        return json.dumps(value).encode()

    def deserialize(self, input_bytes):
        return json.loads(input_bytes)


async def test_inputs_have_their_own_serdes_and_what_cannot_be_read_comes_again(client, topic):
    name = f"{JsonSerDe.__module__}.JsonSerDe"
    await produce(client, f"{topic}-json", b'{"a": [1]}')
    await produce(client, topic, b"plain")
    told = config(topic, customSerdeInputs={f"{topic}-json": name}, outputSerdeClassName=name)
    await run(client, told, lambda value: [value], 2)
    assert sorted(await output(client, f"{topic}-out")) == [b'["plain"]', b'[{"a": [1]}]']
    await produce(client, f"{topic}-json", b"{")
    stats, _ = await run(client, told, lambda value: [value], 1, kind="failed")
    assert (stats.system_exceptions, stats.user_exceptions) == (1, 0)


async def test_instances_share_the_work_and_a_class_makes_one_object_for_each(client, topic):
    await produce(client, topic, *(b"%d" % number for number in range(20)))
    objects = set()

    class Copy(Function):
        def process(self, number, context):
            objects.add((id(self), context.get_instance_id()))
            return number

    stats, _ = await run(client, config(topic, parallelism=3, transaction=MANAGED), Copy, 20)
    assert sorted(map(int, await output(client, f"{topic}-out"))) == list(range(20))
    assert len({number for number, _ in objects}) == len({instance for _, instance in objects})
    assert stats.processed_successfully == 20


async def test_instances_keep_the_order_of_keys_also_when_transactions_are_aborted(client, topic):
    source = await client.create_producer(topic, batching_type=BatchingType.KEY_BASED)
    await asyncio.gather(*(source.send(b"%d" % number, key=f"k{number % 4}") for number in range(40)))
    failing = [7, 18, 25]

    def process(number: int) -> int:
        if number in failing:
            failing.remove(number)
            raise LookupError(f"no {number} today")
        return number

    batching = {"transactionBatchingMaxEntries": 5, "transactionBatchingQuietPeriodMs": 20}
    told = config(topic, parallelism=3, retainKeyOrdering=True, transaction=MANAGED | batching)
    await run(client, told, process, 40)
    found = [int(each) for each in await output(client, f"{topic}-out")]
    for key in range(4):
        assert [number for number in found if number % 4 == key] == list(range(key, 40, 4))


async def test_a_partitioned_input_has_the_serde_of_its_topic(client, topic, pulsar):
    await admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 2)
    await produce(client, topic, b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    told = config(topic, inputs=[], customSerdeInputs={topic: f"{JsonSerDe.__module__}.JsonSerDe"}, transaction=MANAGED)
    await run(client, told, lambda value: value["n"], 3)
    assert sorted(await output(client, f"{topic}-out")) == [b"1", b"2", b"3"]


async def test_nothing_joins_a_transaction_behind_the_end_of_process(client, topic):
    await produce(client, topic, b"1")
    contexts = []

    def process(_number: int, context: Context) -> None:
        contexts.append(context)

    await run(client, config(topic, transaction=MANAGED), process, 1)
    with pytest.raises(UsageError, match="after the end of process"):
        contexts[0].publish(f"{topic}-more", "late")


@pytest.mark.parametrize("transaction", [{}, MANAGED], ids=["plain", "managed"])
async def test_what_cannot_be_published_fails_the_call(client, topic, transaction):
    await produce(client, topic, b"1")

    def process(number: int, context: Context) -> int:
        context.publish("no://such/name", number)
        return number

    _, seen = await run(client, config(topic, transaction=transaction), process, 1, kind="failed")
    assert isinstance(seen[0].error, InvalidTopicName)
    assert await left(client, topic) == [b"1"]


async def test_a_run_inside_somebody_elses_transaction_is_not_part_of_it(client, topic):
    await produce(client, topic, b"1")
    async with client.transaction(ambient=True) as txn:
        await run(client, config(topic), lambda number: number, 1)
        txn.rollback()
    assert await output(client, f"{topic}-out") == [b"1"]
    assert await left(client, topic) == []


async def test_what_is_not_acknowledged_in_time_comes_again_to_another_instance(client, topic):
    await produce(client, topic, b"1")
    again = asyncio.Event()
    calls = []

    async def process(number: int, context: Context) -> None:
        calls.append(context.get_instance_id())
        if len(calls) == 2:
            again.set()
        await again.wait()

    await run(client, config(topic, timeoutMs=500, parallelism=2), process, 2)
    assert len(calls) == 2


async def test_a_call_may_publish_more_than_may_be_on_its_way(client, topic):
    await produce(client, topic, b"50")

    def process(count: int, context: Context) -> None:
        for number in range(count):
            context.publish(f"{topic}-more", number)

    await run(client, config(topic, transaction=MANAGED, producerConfig={"maxPendingMessages": 2}), process, 1)
    assert await output(client, f"{topic}-more") == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("keys", [{}, {"retainOrdering": True}, {"transaction": MANAGED}], ids=str)
async def test_a_run_ends_with_its_client(pulsar, topic, keys):
    async with AsyncClient(pulsar.service_url) as client:
        await produce(client, topic, b"1")
        failed = asyncio.Event()

        def process(number: int) -> int:
            raise LookupError("always")

        running = asyncio.create_task(functions.run(client, config(topic, **keys), process, observer=lambda _: failed.set()))
        await failed.wait()
    async with asyncio.timeout(20):
        with pytest.raises((AlreadyClosed, LookupError)):
            await running


async def test_a_run_that_is_cancelled_gives_back_what_it_was_at(client, topic):
    await produce(client, topic, b"1")
    begun = asyncio.Event()

    async def process(number: int, context: Context) -> None:
        context.publish(f"{topic}-more", number)
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(functions.run(client, config(topic, transaction=MANAGED), process))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await left(client, topic) == [b"1"]
    assert await output(client, f"{topic}-more") == []


async def test_inputs_may_be_a_pattern(client, topic):
    await produce(client, f"{topic}-a", b"1")
    await produce(client, f"{topic}-b", b"2")
    told = {"topicsPattern": f"{topic}-[ab]", "output": f"{topic}-out", "subscriptionPosition": "EARLIEST"}
    await run(client, told, lambda number: number, 2)
    assert sorted(await output(client, f"{topic}-out")) == [b"1", b"2"]


@pytest.mark.parametrize(
    "call",
    [
        lambda context: context.put_state("k", "v"),
        lambda context: context.incr_counter("k", 1),
        lambda context: context.ack(context.get_message_id(), context.get_current_message_topic_name()),
    ],
    ids=["state of two instances", "counter of two instances", "ack"],
)
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("transaction", [{}, MANAGED], ids=["plain", "managed"])
async def test_what_is_not_there_ends_the_run_and_nothing_is_lost(client, topic, call, transaction):
    await produce(client, topic, b"1")
    with pytest.raises(UsageError):
        await run(client, config(topic, transaction=transaction, parallelism=2), lambda _, context: call(context), 1)
    assert await left(client, topic) == [b"1"]


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_partitioned_input_is_refused_where_sequence_ids_would_not_ascend(client, topic, pulsar):
    await admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 2)
    with pytest.raises(InvalidConfiguration, match="partitioned"):
        await functions.run(client, config(topic, processingGuarantees="EFFECTIVELY_ONCE"), lambda text: text)


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_metric_of_the_function_is_in_the_statistics(client, topic):
    await produce(client, topic, b"abc", b"x")
    stats, _ = await run(client, config(topic), Exclaim(), 2)
    assert stats.user_metrics["length"] == functions.UserMetric(2, 4.0)
    assert stats.metrics()["pulsar_function_processed_successfully_total"] == 2
    assert stats.last_invocation_ms > 0
