"""The client against real servers: producing, consuming, seeking, reading, reconnecting, transactions through it all."""

import asyncio
import urllib.request

import pytest

from pulsar_txn.client import (
    EARLIEST_ID,
    LATEST_ID,
    AccessMode,
    AsyncClient,
    BatchingType,
    Compression,
    ConsumerType,
    InitialPosition,
    JsonSchema,
    StringSchema,
    TransactionConflict,
)
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.errors import ConsumerBusy, ProducerBusy, ProducerFenced, TransactionOperationFailed
from pulsar_txn.client.txn.transactions import core_of

EARLIEST = InitialPosition.EARLIEST


def make_partitions(pulsar, topic, count):
    path = topic.replace("://", "/")
    url = f"{pulsar.admin_url}/admin/v2/{path}/partitions"
    request = urllib.request.Request(url, str(count).encode(), {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


async def drain(consumer, wait=0.5, first=5.0):
    """Everything that comes until nothing comes for a while; the first message may take longer."""
    messages = await consumer.receive_many(1, max_wait=first)
    while batch := await consumer.receive_many(1000, max_wait=wait):
        messages += batch
    return messages


async def test_what_is_sent_is_received_once_in_order_batched_and_not(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    ids = [await producer.send(b"%d" % number) for number in range(5)]
    ids += await asyncio.gather(*(producer.send(b"%d" % number, key="k") for number in range(5, 500)))
    messages = await drain(consumer)
    assert [message.data for message in messages] == [b"%d" % number for number in range(500)]
    assert [message.message_id for message in messages] == ids
    await consumer.acknowledge(messages, receipt=True)
    await consumer.close()
    again = await client.subscribe(topic, "s")
    assert await drain(again, 0.3, first=0.3) == []


@pytest.mark.parametrize("kind", list(Compression))
async def test_every_compression_comes_back_as_it_was(client, topic, kind):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic, compression=kind)
    sent = [b"%d " % number * 300 for number in range(20)]
    await producer.send(sent[0])
    await asyncio.gather(*(producer.send(payload) for payload in sent[1:]))
    assert [message.data for message in await consumer.receive_many(20, max_wait=5)] == sent


async def test_schemas_and_everything_said_of_a_message(client, topic):
    consumer = await client.subscribe(topic, "s", schema=StringSchema(), initial_position=EARLIEST)
    producer = await client.create_producer(topic, schema=StringSchema())
    await producer.send("grüß", key="k", ordering_key=b"o", properties={"a": "1"}, event_time_ms=1234)
    message = await consumer.receive(5)
    assert (message.value, message.key, message.ordering_key, message.event_time_ms) == ("grüß", "k", b"o", 1234)
    assert message.properties == {"a": "1"}
    assert message.producer_name == producer.producer_name
    documents = await client.create_producer(f"{topic}-json", schema=JsonSchema())
    reader = await client.create_reader(f"{topic}-json", schema=JsonSchema())
    await documents.send({"a": [1, "zwei"]})
    assert (await reader.read_next(5)).value == {"a": [1, "zwei"]}


async def test_partitions_keep_keys_together_and_all_are_received(client, pulsar, topic):
    make_partitions(pulsar, topic, 3)
    producer = await client.create_producer(topic)
    assert producer.partitions == 3
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    await asyncio.gather(*(producer.send(b"%d" % number, key=f"k{number % 10}") for number in range(100)))
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100, 200)))
    messages = await consumer.receive_many(200, max_wait=5)
    assert sorted(int(message.data) for message in messages) == list(range(200))
    by_key = {}
    for message in messages:
        if message.key is not None:
            by_key.setdefault(message.key, []).append((message.topic, int(message.data)))
    assert all(len({name for name, _ in found}) == 1 for found in by_key.values())
    assert all(found == sorted(found) for found in by_key.values())
    await consumer.acknowledge(messages, receipt=True)
    assert len(await client.get_topic_partitions(topic)) == 3


async def test_shared_consumers_share_and_key_shared_ones_keep_keys(client, topic):
    for kind in (ConsumerType.SHARED, ConsumerType.KEY_SHARED):
        name = f"{topic}-{kind.name.lower()}"
        options = {"consumer_type": kind, "initial_position": EARLIEST, "receiver_queue_size": 50}
        consumers = [await client.subscribe(name, "s", **options) for _ in range(2)]
        producer = await client.create_producer(name, batching_type=BatchingType.KEY_BASED)
        await asyncio.gather(*(producer.send(b"%d" % number, key=f"k{number % 20}") for number in range(200)))
        halves = await asyncio.gather(*(drain(consumer) for consumer in consumers))
        assert sorted(int(message.data) for half in halves for message in half) == list(range(200))
        assert all(halves)
        if kind is ConsumerType.KEY_SHARED:
            keys = [{message.key for message in half} for half in halves]
            assert keys[0].isdisjoint(keys[1])


@pytest.mark.seed_rows("D05")
async def test_the_failover_consumer_takes_over_what_is_not_acknowledged(client, topic):
    options = {"consumer_type": ConsumerType.FAILOVER, "initial_position": EARLIEST}
    first = await client.subscribe(topic, "s", consumer_name="a", **options)
    second = await client.subscribe(topic, "s", consumer_name="b", **options)
    producer = await client.create_producer(topic)
    for number in range(3):
        await producer.send(b"%d" % number)
    async with asyncio.timeout(10):
        while not (first.queued or second.queued):  # noqa: ASYNC110 - the consumers have no event for it
            await asyncio.sleep(0.01)
    active, standby = (first, second) if first.queued else (second, first)
    messages = await active.receive_many(3, max_wait=5)
    await active.acknowledge(messages[0], receipt=True)
    await active.close()
    assert [message.data for message in await standby.receive_many(2, max_wait=5)] == [b"1", b"2"]


async def test_a_second_exclusive_consumer_or_producer_is_refused(client, topic):
    await client.subscribe(topic, "s")
    with pytest.raises(ConsumerBusy):
        await client.subscribe(topic, "s")
    await client.create_producer(topic, producer_name="mine")
    with pytest.raises(ProducerBusy):
        await client.create_producer(topic, producer_name="mine")


async def test_a_fenced_producer_is_told_and_its_successor_writes(client, topic):
    old = await client.create_producer(topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    await old.send(b"old")
    new = await client.create_producer(topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    assert new.topic_epoch > old.topic_epoch
    await new.send(b"new")
    with pytest.raises(ProducerFenced):
        await old.send(b"late")


async def test_negative_acknowledgement_and_redelivery_bring_messages_back(client, topic):
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    for number in range(3):
        await producer.send(b"%d" % number)
    messages = await consumer.receive_many(3, max_wait=5)
    await consumer.acknowledge(messages[1], receipt=True)
    consumer.negative_acknowledge(messages[0], delay=0.01)
    back = await consumer.receive(5)
    assert (back.data, back.redelivery_count) == (b"0", 1)
    consumer.redeliver_unacknowledged()
    assert {message.data for message in await consumer.receive_many(2, max_wait=5)} == {b"0", b"2"}


async def test_part_of_a_batch_is_acknowledged_and_the_rest_comes_back(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(6)))
    messages = await consumer.receive_many(6, max_wait=5)
    await consumer.acknowledge([messages[0], messages[2]], receipt=True)
    consumer.redeliver_unacknowledged()
    assert [message.data for message in await consumer.receive_many(4, max_wait=5)] == [b"1", b"3", b"4", b"5"]
    await consumer.acknowledge_cumulative(messages[3], receipt=True)
    consumer.redeliver_unacknowledged()
    assert [message.data for message in await consumer.receive_many(2, max_wait=5)] == [b"4", b"5"]


async def test_seeking_by_message_end_and_time(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    ids = [await producer.send(b"%d" % number) for number in range(3)]
    ids += await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3, 7)))
    messages = await consumer.receive_many(7, max_wait=5)
    await consumer.acknowledge(messages, receipt=True)
    for target, inclusive, expected in [
        (ids[1], False, b"2"),
        (ids[1], True, b"1"),
        (ids[4], False, b"5"),
        (ids[4], True, b"4"),
        (EARLIEST_ID, False, b"0"),
        (messages[0].publish_time_ms - 60_000, False, b"0"),
    ]:
        await consumer.seek(target, inclusive=inclusive)
        assert (await consumer.receive(5)).data == expected
    await consumer.seek(LATEST_ID)
    await producer.send(b"new")
    assert (await consumer.receive(5)).data == b"new"
    last = await producer.send(b"last")
    assert await consumer.get_last_message_id() == last


async def test_a_reader_reads_from_its_place_to_the_end(client, topic):
    producer = await client.create_producer(topic)
    ids = [await producer.send(b"%d" % number) for number in range(3)]
    ids += await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3, 6)))

    async def rest(reader):
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(5)).data)
        await reader.close()
        return found

    assert await rest(await client.create_reader(topic)) == [b"%d" % number for number in range(6)]
    assert await rest(await client.create_reader(topic, ids[1])) == [b"2", b"3", b"4", b"5"]
    assert await rest(await client.create_reader(topic, ids[4], start_inclusive=True)) == [b"4", b"5"]
    assert await rest(await client.create_reader(topic, ids[1], start_inclusive=True)) == [b"1", b"2", b"3", b"4", b"5"]
    latest = await client.create_reader(topic, LATEST_ID)
    assert not await latest.has_message_available()
    await producer.send(b"new")
    assert (await latest.read_next(5)).data == b"new"


async def test_a_broken_connection_loses_and_doubles_nothing_that_was_acknowledged(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic, producer_name="p")
    sending = [producer.send_nowait(b"%d" % number) for number in range(50)]
    first = await consumer.receive_many(50, max_wait=5)
    await consumer.acknowledge(first, receipt=True)
    for connection in core_of(client).pool.current():
        connection._transport.abort()
    sending += [producer.send_nowait(b"%d" % number) for number in range(50, 100)]
    await asyncio.gather(*sending)
    rest = await consumer.receive_many(50, max_wait=5)
    assert [int(message.data) for message in first + rest] == list(range(100))


async def test_batches_built_elsewhere_are_ordinary_batches(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    batch = encode_batch([b"a", row(b"b", key="k", properties={"p": "1"})], compression=Compression.LZ4)
    async with client.transaction(timeout=10) as txn:
        await producer.send_encoded(batch, txn=txn)
        await producer.send_encoded(batch, txn=txn)
        assert await consumer.receive_many(1, max_wait=0.2) == []
    messages = await consumer.receive_many(4, max_wait=5)
    assert [(message.data, message.key) for message in messages] == [(b"a", None), (b"b", "k")] * 2
    assert {message.txn_id for message in messages} == {txn.id}


# --- transactions --------------------------------------------------------------------------------------------------


async def test_a_committed_unit_is_seen_as_a_whole_and_an_aborted_one_never(client, topic):
    names = [f"{topic}-{index}" for index in range(3)]
    consumers = [await client.subscribe(name, "s", initial_position=EARLIEST) for name in names]
    producers = [await client.create_producer(name) for name in names]
    for outcome in (b"commit", b"abort", b"commit"):
        txn = await client.begin_transaction(timeout=20)
        await asyncio.gather(*(producer.send(outcome, txn=txn) for producer in producers for _ in range(10)))
        assert all([await consumer.receive_many(1, max_wait=0.05) == [] for consumer in consumers])
        await (txn.commit() if outcome == b"commit" else txn.abort())
        first = 5.0 if outcome == b"commit" else 0.2
        seen = [[message.data for message in await drain(consumer, 0.2, first)] for consumer in consumers]
        assert seen == [[b"commit"] * 10 if outcome == b"commit" else []] * 3


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED, ConsumerType.FAILOVER, ConsumerType.KEY_SHARED])
async def test_acknowledgements_take_effect_with_the_commit_and_come_back_with_the_abort(client, topic, kind):
    options = {"consumer_type": kind, "initial_position": EARLIEST}
    consumer = await client.subscribe(topic, "s", **options)
    producer = await client.create_producer(topic)
    await producer.send(b"0")
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(1, 6)))
    messages = await consumer.receive_many(6, max_wait=5)
    txn = await client.begin_transaction(timeout=20)
    await consumer.acknowledge(messages[0], txn=txn)
    await consumer.acknowledge(messages[2:4], txn=txn)
    await txn.abort()
    back = {message.data: message for message in await drain(consumer)}
    assert {b"0", b"2", b"3"} <= back.keys()
    async with client.transaction(timeout=20) as txn:
        await consumer.acknowledge([back[b"0"], back[b"2"], back[b"3"]], txn=txn)
    await consumer.close()
    again = await client.subscribe(topic, "s", **options)
    assert sorted(message.data for message in await drain(again)) == [b"1", b"4", b"5"]


async def test_a_cumulative_acknowledgement_in_a_transaction(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    for number in range(4):
        await producer.send(b"%d" % number)
    messages = await consumer.receive_many(4, max_wait=5)
    async with client.transaction(timeout=20) as txn:
        await consumer.acknowledge_cumulative(messages[2], txn=txn)
    await consumer.close()
    again = await client.subscribe(topic, "s")
    assert [message.data for message in await drain(again)] == [b"3"]


async def test_two_transactions_cannot_take_one_message(client, pulsar, topic):
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    message = await consumer.receive(5)
    first, second = await client.begin_transaction(timeout=20), await client.begin_transaction(timeout=20)
    await consumer.acknowledge(message, txn=first)
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(message, txn=second)
    with pytest.raises(TransactionOperationFailed):
        await second.commit()
    async with AsyncClient(pulsar.service_url) as other:
        rival = await other.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        third = await other.begin_transaction(timeout=20)
        with pytest.raises(TransactionConflict):
            await rival.acknowledge(message.message_id, txn=third)
        await third.abort()
    await first.commit()


async def test_an_open_transaction_holds_back_what_comes_behind_it_and_order_is_kept(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction(timeout=20)
    await producer.send(b"before")
    await producer.send(b"inside", txn=txn)
    await producer.send(b"behind")
    assert [message.data for message in await drain(consumer, 0.3)] == [b"before"]
    await txn.commit()
    assert [message.data for message in await consumer.receive_many(2, max_wait=5)] == [b"inside", b"behind"]


@pytest.mark.seed_rows("D11")
async def test_a_chain_of_consume_process_produce_keeps_each_message_exactly_once(client, topic):
    """A worker that aborts now and then, with batches that it takes apart: nothing lost, nothing doubled."""
    source = await client.create_producer(topic)
    middle = await client.create_producer(f"{topic}-out")
    await asyncio.gather(*(source.send(b"%d" % number) for number in range(60)))
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    attempts = 0
    while messages := await consumer.receive_many(7, max_wait=1):
        attempts += 1
        try:
            async with client.transaction(timeout=20) as txn:
                for message in messages:
                    middle.send_nowait(message.data, txn=txn)
                await consumer.acknowledge(messages, txn=txn)
                if attempts % 3 == 1:
                    txn.rollback()
        except (TransactionConflict, TransactionOperationFailed):
            continue
    result = await client.subscribe(f"{topic}-out", "check", initial_position=EARLIEST)
    assert sorted(int(message.data) for message in await drain(result)) == list(range(60))
