"""Messages that come again without the broker, because this consumer still has others of their entry."""

import asyncio
import random
from collections import Counter

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client, sent_entry

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import (
    AsyncClient,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    RedeliveryBackoff,
)
from pulsar_txn.client.errors import TransactionAborted
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.state import acknowledgements
from pulsar_txn.client.txn.transaction import unit_of
from pulsar_txn.wire import hot
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.topics import ASSIGN_TOPIC

SHARED = ConsumerType.SHARED
TEN = [b"%d" % number for number in range(10)]
MESSAGES = 1000


@pytest.fixture
def broker():
    found = FakeBroker()
    found.partitions[ASSIGN_TOPIC] = 1
    return found


def asked(broker):
    return [[each.entryId for each in body.message_ids] for body in broker.all("redeliverUnacknowledgedMessages")]


def datas(messages):
    return [message.data for message in messages]


async def unit_with(client, consumer, count):
    txn = await client.begin_transaction()
    return txn, await consumer.receive_many(count, max_wait=1, txn=txn)


@pytest.mark.parametrize("kind", [SHARED, ConsumerType.KEY_SHARED])
@pytest.mark.parametrize("entry", [7, 100])
@pytest.mark.parametrize("consumers", [3, 8])
async def test_units_of_several_consumers_conflict_at_most_as_often_as_they_fail(kind, entry, consumers):
    """96 failures of three consumers had made 198 conflicts: a broker gave entries to others of which units had messages."""
    rnd, failures, conflicts, done = random.Random(entry), 0, 0, Counter()
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        earliest = {"consumer_type": kind, "initial_position": InitialPosition.EARLIEST, "receiver_queue_size": 200}
        all_of_them = [await client.subscribe("t", "s", **earliest) for _ in range(consumers)]
        source = await client.create_producer("t", batching_max_messages=entry, batching_max_delay=60)
        tickets = [source.send_nowait(b"%d" % number, key=str(number // entry)) for number in range(MESSAGES)]
        await source.flush()
        await asyncio.gather(*tickets)

        async def process(consumer, txn):
            nonlocal failures
            messages = await consumer.receive_many(rnd.randint(1, 7), max_wait=0.05, txn=txn)
            if messages and rnd.random() < 0.3:
                await consumer.acknowledge(messages[0], txn=txn)
            await asyncio.sleep(rnd.random() / 200)
            if messages and rnd.random() < 0.2:
                failures += 1
                raise ZeroDivisionError
            return messages

        async def work(consumer):
            nonlocal conflicts
            while sum(done.values()) < MESSAGES:
                try:
                    async with client.transaction() as txn:
                        messages = await process(consumer, txn)
                        if not messages:
                            await txn.rollback()
                except ZeroDivisionError:
                    continue
                except TransactionAborted:
                    conflicts += 1
                    continue
                done.update(datas(messages))

        async with asyncio.timeout(120):
            await asyncio.gather(*(work(consumer) for consumer in all_of_them))
        assert done == Counter(b"%d" % number for number in range(MESSAGES))
        assert failures > 20
        assert conflicts <= failures


async def test_what_comes_again_here_comes_after_what_is_queued_and_counts_one_delivery_more(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *TEN[:4])
        txn, messages = await unit_with(client, consumer, 2)
        broker.deliver(1, 1, b"next")
        await txn.abort()
        again = await consumer.receive_many(5, max_wait=1)
        assert datas(again) == [b"2", b"3", b"next", b"0", b"1"]
        assert [message.redelivery_count for message in again] == [0, 0, 0, 1, 1]
        assert [message.message_id for message in again[3:]] == [message.message_id for message in messages]
        assert [message.redelivery_count for message in messages] == [0, 0]
    assert asked(broker) == []


async def test_the_broker_is_asked_when_nothing_else_of_the_entry_is_here(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, ack_group_delay=0)
        broker.deliver(1, 0, *TEN[:4])
        first, messages = await unit_with(client, consumer, 2)
        second, _ = await unit_with(client, consumer, 2)
        await second.commit()
        await first.abort()
        await broker.until(lambda: asked(broker))
        assert asked(broker) == [[0]]
        assert consumer.queued == 0
        broker.deliver(1, 0, *TEN[:4], ack_set=0b0011)
        assert datas(await consumer.receive_many(2, max_wait=1)) == datas(messages)


async def test_what_is_pending_in_an_open_transaction_keeps_its_entry_here(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *TEN[:4])
        first, messages = await unit_with(client, consumer, 2)
        second, others = await unit_with(client, consumer, 2)
        await consumer.acknowledge(others, txn=second)
        await first.abort()
        assert datas(consumer.receive_nowait()) == datas(messages)
        await second.commit()
    assert asked(broker) == []


async def test_messages_that_come_again_here_bring_no_permits(broker):
    """Permits are given back when a message leaves the queue; each of these leaves it twice."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, receiver_queue_size=10)
        broker.deliver(1, 0, *TEN)
        for _ in range(20):
            txn, _ = await unit_with(client, consumer, 5)
            await txn.abort()
        assert consumer.queued == 10
        assert broker.permits[broker.consumer_id] == 15  # those of the first five are on their way
        txn, _ = await unit_with(client, consumer, 10)
        await txn.commit()
        await broker.until(lambda: broker.permits[broker.consumer_id] == 20)


async def test_after_a_new_connection_the_broker_is_asked_because_another_consumer_may_have_the_entry(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *TEN[:4])
        txn, _ = await unit_with(client, consumer, 2)
        other, _ = await unit_with(client, consumer, 2)
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        await txn.abort()
        await broker.until(lambda: asked(broker))
        assert (asked(broker), consumer.queued) == ([[0]], 0)
        await other.abort()


async def test_what_the_broker_refused_is_asked_for_because_another_consumer_may_have_it(broker):
    """Handed out here again it would be refused again, for as long as this consumer has others of its entry."""

    def refuse(_pipe, body):
        if body[4] is None:
            return None
        return hot.encode_ack_response(
            body[0], body[4], txn=body[3], error=ServerError.TransactionConflict, message="acknowledged by another consumer"
        )

    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *TEN[:4])
        broker.on["ack"] = refuse
        with pytest.raises(TransactionAborted):
            async with client.transaction() as txn:
                await consumer.receive_many(2, max_wait=1, txn=txn)
        await broker.until(lambda: asked(broker))
        assert datas(consumer.receive_nowait()) == [b"2", b"3"]


async def test_a_closed_consumer_hands_nothing_out_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *TEN[:4])
        txn, _ = await unit_with(client, consumer, 2)
        await consumer.close()
        await txn.abort()
        assert (consumer.queued, asked(broker)) == (0, [])


async def test_a_nack_in_a_unit_waits_its_time_before_the_message_comes_again_here(broker):
    async with fake_client(broker) as client:
        backoff = RedeliveryBackoff(min_delay=0.05, max_delay=10, multiplier=100)
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, negative_ack_backoff=backoff)
        broker.deliver(1, 0, *TEN[:4])
        txn, messages = await unit_with(client, consumer, 4)
        consumer.negative_acknowledge(messages[3])
        assert consumer.queued == 0
        again = await consumer.receive(2)
        assert (again.data, again.redelivery_count, backoff.delay(again.redelivery_count)) == (b"3", 1, 5)
        await txn.commit()
    assert asked(broker) == []


async def test_a_poison_message_goes_to_the_dead_letters_while_others_of_its_entry_stay_here(broker):
    policy = DeadLetterPolicy(max_redeliver_count=2)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, dead_letter_policy=policy)
        broker.deliver(1, 0, *TEN[:3])
        for expected in range(3):
            txn = await client.begin_transaction()
            seen = [await consumer.receive(1, txn=txn)]
            while seen[-1].data != b"0":
                consumer.leave_out(seen[-1])
                seen.append(await consumer.receive(1, txn=txn))
            assert seen[-1].redelivery_count == expected
            await txn.abort()
        await broker.until(lambda: broker.all("send"))
        await broker.until(lambda: broker.all("ack"))
        assert [body[2] for body in broker.all("ack")] == [[(1, 0, 0b110, 3)]]
    assert asked(broker) == []


async def test_parts_of_one_entry_become_dead_letters_each_when_it_is_due(broker):
    """The second part of an entry that came while the first was being sent would have been forgotten."""
    policy = DeadLetterPolicy(max_redeliver_count=1)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, dead_letter_policy=policy)
        broker.on["producer"] = lambda _pipe, _body: SILENCE
        broker.deliver(1, 0, *TEN[:6])
        await consumer.receive(1)  # the program has it, so that the entry stays here
        for _ in range(2):
            units = [await unit_with(client, consumer, 2) for _ in range(2)]
            for txn, _ in units:
                await txn.abort()
            consumer.receive_nowait(1)
        await broker.until(lambda: broker.all("producer"))
        del broker.on["producer"]
        request_id = broker.all("producer")[-1].request_id
        broker.say("producer_success", request_id=request_id, producer_name="p", last_sequence_id=-1)
        await broker.until(lambda: sum(sent_entry(body)[0].num_messages_in_batch for body in broker.all("send")) == 4)


async def test_a_unit_keeps_no_message_of_an_entry_that_it_has_as_a_whole(broker):
    """A unit of a million messages has their bits, not their payloads."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        for entry in range(20):
            broker.deliver(1, entry, *TEN)
        txn = await client.begin_transaction()
        for _ in range(195):
            await consumer.receive(1, txn=txn)
        (part,) = reception_of(consumer).partitions
        copies = part.share(unit_of(txn)).copies
        assert {position[1]: len(messages) for position, messages in copies.items()} == {19: 5}
        await txn.abort()


async def test_a_unit_keeps_messages_of_so_many_entries_and_the_broker_is_asked_for_the_others(broker, monkeypatch):
    monkeypatch.setattr(acknowledgements, "ENTRIES_WITH_COPIES", 3)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        for entry in range(5):
            broker.deliver(1, entry, *TEN[:2])
        txn = await client.begin_transaction()
        other = await client.begin_transaction()
        for _ in range(5):
            await consumer.receive(1, txn=txn)
            await consumer.receive(1, txn=other)
        await txn.abort()
        await broker.until(lambda: asked(broker))
        assert asked(broker) == [[0, 1]]
        assert len(consumer.receive_nowait()) == 3
        await other.abort()


async def test_a_timed_acknowledgement_starts_again_with_the_next_delivery(broker):
    """The time of the first delivery ran on, so that the message came once more while a second unit worked on it."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, ack_timeout=1)
        broker.deliver(1, 0, *TEN[:4])
        txn, _ = await unit_with(client, consumer, 2)
        await txn.abort()
        assert reception_of(consumer).partitions.all[0].machine.redelivery.awaited_acks == 0
        assert len(await consumer.receive_many(4, max_wait=1)) == 4
        assert reception_of(consumer).partitions.all[0].machine.redelivery.awaited_acks == 4


async def test_a_message_that_was_refused_comes_again_although_a_unit_has_another_one_of_its_batch(broker):
    """The copy was taken for one that the program has: it stayed with the broker until the consumer was closed."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, negative_ack_delay=0.01)
        broker.deliver(1, 0, *TEN[:3])
        consumer.negative_acknowledge(await consumer.receive(1))
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        async with client.transaction() as txn:
            assert (await consumer.receive(1, txn=txn)).data == TEN[1]
            broker.deliver(1, 0, *TEN[:3])
            again = [(await consumer.receive(1)).data for _ in range(2)]
        assert again == [TEN[2], TEN[0]]
        assert consumer.queued == 0


async def test_what_is_queued_or_acknowledged_of_a_batch_is_not_handed_out_twice_after_a_refusal(broker):
    """The broker brings all of the entry again, also what was acknowledged while the request was on its way."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, negative_ack_delay=0.01)
        broker.deliver(1, 0, *TEN[:3])
        consumer.negative_acknowledge(await consumer.receive(1))
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        await consumer.acknowledge(await consumer.receive(1))
        broker.deliver(1, 0, *TEN[:3])
        assert [(await consumer.receive(1)).data for _ in range(2)] == [TEN[2], TEN[0]]
        assert consumer.queued == 0
