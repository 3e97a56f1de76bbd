"""State of functions on real servers: state, output and acknowledgement are one."""

from __future__ import annotations

import asyncio
import collections

import admin
import pytest

from pulsar_txn.client import AccessMode, AsyncClient
from pulsar_txn.client.errors import SchemaMismatch, UsageError
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions.errors import StateMoved, StateTaken

MANAGED = {"transactionMode": "MANAGED", "transactionTimeoutMs": 20_000, "transactionBatchingMaxEntries": 10}


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url, initial_backoff=0.02, max_backoff=0.5) as connected:
        yield connected


def config(topic, **keys):
    told = {"name": "f", "inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST"}
    return told | {"state": {"stateTopic": f"{topic}-state"}, "transaction": MANAGED} | keys


async def produce(client, topic, *payloads, **options):
    source = await client.create_producer(topic)
    await asyncio.gather(*(source.send(payload, **options) for payload in payloads))
    await source.close()


async def read(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        found.append(await reader.read_next(5))
    await reader.close()
    return found


async def state(client, topic):
    """What a reader of the topic makes of it: the last value of each key."""
    found = {}
    for message in await read(client, topic):
        if message.key and message.key[0] != "\x00":
            found[message.key] = None if message.is_tombstone else message.data
    return {key: value for key, value in found.items() if value is not None}


async def run(client, told, function, count, **options):
    """Until so many messages were processed."""
    stop, seen = asyncio.Event(), []

    def observer(event):
        if event.kind == "processed":
            seen.extend(event.messages)
            if len(seen) >= count:
                stop.set()

    async with asyncio.timeout(40):
        return await functions.run(client, told, function, stop=stop, observer=observer, negative_ack_delay=0.1, **options)


def count_words(text, context):
    for word in text.split():
        context.incr_counter(word, 1)
    return f"{text.split()[0]}={context.get_counter(text.split()[0])}"


@pytest.mark.parametrize("keys", [{}, {"state": None}, {"transaction": {}}], ids=["told", "found out", "without transactions"])
async def test_counters_are_there_again_in_the_next_run(client, topic, keys):
    name = topic.rpartition("/")[2]
    told = config(topic, **keys) | {"name": name, "retainOrdering": True}
    await produce(client, topic, b"a b a", b"b")
    await run(client, told, count_words, 2)
    await produce(client, topic, b"a c")
    await run(client, told, count_words, 1)
    assert [message.data for message in await read(client, f"{topic}-out")] == [b"a=2", b"b=2", b"a=3"]
    assert await state(client, f"{topic}-state") == {"a": b"3", "b": b"2", "c": b"1"}


async def test_what_an_aborted_transaction_has_changed_is_rolled_back_in_memory_and_in_the_topic(client, topic):
    fails = ["b", "b"]

    def process(text, context):
        context.incr_counter("calls", 1)
        context.put_state("last", text)
        if text in fails:
            fails.remove(text)
            raise LookupError(text)
        return f"{text}{context.get_counter('calls')}"

    await produce(client, topic, b"a", b"b", b"c")
    await run(client, config(topic, retainOrdering=True), process, 3)
    assert [message.data for message in await read(client, f"{topic}-out")] == [b"a1", b"b2", b"c3"]
    assert await state(client, f"{topic}-state") == {"calls": b"3", "last": b"c"}


async def test_values_are_bytes_deleted_keys_are_gone_and_wrong_types_are_refused(client, topic):
    seen = []

    def process(text, context):
        seen.append((context.get_state("k"), context.get_counter("k"), context.get_state("n"), context.get_counter("none")))
        context.put_state("k", "größe")
        context.incr_counter("n", 258)
        with pytest.raises(SchemaMismatch, match="not a counter"):
            context.incr_counter("k", 1)
        with pytest.raises(SchemaMismatch, match="bytes or a text"):
            context.put_state("k", 7)
        with pytest.raises(SchemaMismatch, match="null character"):
            context.get_state("\x00owner")
        if text == "2":
            context.delete_state("k")
            context.del_counter("n")

    await produce(client, topic, b"1", b"2x", b"2", b"3")
    await run(client, config(topic, retainOrdering=True), lambda text, context: process(str(text), context), 4)
    assert seen[0] == (None, None, None, None)
    assert seen[1] == ("größe".encode(), None, (258).to_bytes(8, "big"), None)
    assert seen[3] == (None, None, None, None)


async def test_a_second_owner_fences_the_first_which_ends_with_a_sentence_and_nothing_is_counted_twice(client, topic, pulsar):
    """The older one had read state and was about to commit."""
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def slow(text, context):
        before = context.get_counter("n")
        taken.set()
        await go_on.wait()
        return f"old {before}"

    async def fast(text, context):
        context.incr_counter("n", 1)
        return "new"

    told = config(topic, transaction=MANAGED | {"transactionBatchingMaxEntries": 1})
    await produce(client, topic, b"1")
    older = asyncio.create_task(functions.run(client, told, slow))
    await taken.wait()
    async with AsyncClient(pulsar.service_url) as other:
        newer = asyncio.create_task(run(other, told, fast, 1))
        counters = await other.create_reader(f"{topic}-out")
        async with asyncio.timeout(20):
            while not await counters.has_message_available():
                await produce(client, topic, b"2")  # the older one may have got those before
        assert (await counters.read_next(20)).data == b"new"
        go_on.set()
        with pytest.raises(StateTaken, match="another instance"):
            await asyncio.wait_for(older, 20)
        await newer
    assert {message.data for message in await read(client, f"{topic}-out")} == {b"new"}


@pytest.mark.parametrize("keys", [{"parallelism": 2}, {"parallelism": 2, "state": None}], ids=["told", "found out"])
async def test_parallel_instances_with_one_state_are_refused_with_what_is_allowed(client, topic, keys):
    await produce(client, topic, b"a")
    with pytest.raises(UsageError, match="stateScope: PARTITION"):
        await run(client, config(topic, **keys), count_words, 1)


async def test_a_coroutine_function_names_its_state_in_the_configuration(client, topic):
    async def process(text, context):
        context.incr_counter(text, 1)

    await produce(client, topic, b"a")
    with pytest.raises(UsageError, match=r"state: \{\}"):
        await run(client, config(topic, state=None), process, 1)
    await run(client, config(topic), process, 1)
    assert await state(client, f"{topic}-state") == {"a": b"1"}


async def test_each_input_partition_has_a_state_and_instances_share_the_partitions(client, topic, pulsar):
    await admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 4)
    keys = [f"k{number}" for number in range(12)]
    source = await client.create_producer(topic)
    await asyncio.gather(*(source.send(key.encode(), key=key) for key in keys * 5))
    scope = {"stateTopic": f"{topic}-state", "stateScope": "PARTITION"}
    await run(client, config(topic, parallelism=2, retainOrdering=True, state=scope), count_words, 60)
    found = collections.Counter()
    for partition in range(4):
        found.update({key: int(value) for key, value in (await state(client, f"{topic}-state-{partition}")).items()})
    assert found == dict.fromkeys(keys, 5)


@pytest.mark.parametrize("transaction", [MANAGED, {}], ids=["transactions", "without transactions"])
async def test_an_instance_whose_partition_moves_lets_its_state_go_and_goes_on(client, topic, pulsar, transaction):
    """It works on messages of both partitions when another instance comes, takes one of them over, and commits its work."""
    await admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 2)
    scope = {"stateTopic": f"{topic}-state", "stateScope": "PARTITION"}
    holds, go_on, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen = {"older": [], "newer": []}

    async def older(text, context):
        holds.set()
        await go_on.wait()
        context.incr_counter(text, 1)

    async def newer(text, context):
        context.incr_counter(text, 1)

    def run_it(name, function, **batching):
        keys = config(topic, retainOrdering=True, state=scope, transaction=transaction and transaction | batching)
        return asyncio.create_task(
            functions.run(client, keys, function, stop=stop, observer=seen[name].append, negative_ack_delay=0.1)
        )

    def processed(name):
        return [message for event in seen[name] if event.kind == "processed" for message in event.messages]

    async def until(name, count):
        async with asyncio.timeout(30):
            while len(processed(name)) < count:  # noqa: ASYNC110 - the function changes it
                await asyncio.sleep(0.01)

    apart = AsyncClient(pulsar.service_url)  # stock Pulsar closes the connection of a fenced producer that sends
    source = await apart.create_producer(topic)
    for number in range(20):
        await source.send(b"n%d" % number, partition=number % 2)
    first = run_it("older", older, transactionBatchingMaxEntries=20, transactionBatchingQuietPeriodMs=3000)
    await holds.wait()
    second = run_it("newer", newer)
    await until("newer", 10)
    moved = {message.message_id.partition for message in processed("newer")}
    go_on.set()
    (stays,) = {0, 1} - moved
    for number in range(20, 30):
        await source.send(b"n%d" % number, partition=stays)
    await until("older", 20)
    stop.set()
    await asyncio.gather(first, second)
    await apart.close()
    assert [event.error for event in seen["newer"] if event.kind == "failed"] == []
    assert {type(event.error) for event in seen["older"] if event.kind == "failed"} == {StateMoved}
    assert {message.message_id.partition for message in processed("older")} == {stays}
    for partition in (stays, 1 - stays):
        mine = range(partition, 20, 2) if partition != stays else [*range(partition, 20, 2), *range(20, 30)]
        assert await state(client, f"{topic}-state-{partition}") == {f"n{number}": b"1" for number in mine}
    records = await read(client, f"{topic}-state-{1 - stays}")
    claims = [each for each in records if each.key == "\x00owner" and not each.properties and each.txn_id is None]
    assert len(claims) <= 2, "the older one took the state back"


async def test_a_new_owner_ends_the_transaction_that_its_dead_predecessor_left_open(client, topic, pulsar):
    """The timeout of that transaction is ten minutes: waiting for it would take this test's time."""
    await produce(client, topic, b"a")
    stuck = asyncio.Event()

    class Stuck:
        async def process(self, text, context):
            context.incr_counter(text, 10)
            stuck.set()

    long = config(topic, transaction=MANAGED | {"transactionTimeoutMs": 600_000})
    async with AsyncClient(pulsar.service_url) as dead:
        txn = await dead.begin_transaction(timeout=600)
        producer = await dead.create_producer(f"{topic}-state", access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
        await producer.send(b"", key="\x00owner", properties={"txn": str(txn.id)})
        await producer.send(b"10", key="a", properties={"kind": "counter"}, txn=txn)
        await run(client, long, count_words, 1)
    assert await state(client, f"{topic}-state") == {"a": b"1"}
