"""Producers: the order in which messages leave that do not share a batch."""

import asyncio

import pytest
from fake_broker import SILENCE, FakeTransaction, fake_client, sent_entry

from pulsar_txn.client import BatchingType, TxnId
from pulsar_txn.client.encoded import encode_batch
from pulsar_txn.wire.batches import decode_batch

pytestmark = pytest.mark.quick


def payloads(body):
    metadata, payload = sent_entry(body)
    if not metadata.HasField("num_messages_in_batch"):
        return [payload]
    return [message[0] for message in decode_batch(payload, metadata.num_messages_in_batch)]


def left(broker):
    """All messages in the order in which they left."""
    return [payload for body in broker.all("send") for payload in payloads(body)]


def sequence_ids(broker):
    return [body[1] for body in broker.all("send")]


async def in_flight(producer, broker, **options):
    """A producer whose next batch collects, because one has no receipt."""
    broker.on["send"] = lambda _pipe, _body: SILENCE
    producer.send_nowait(b"1", **options)
    await broker.until(lambda: broker.all("send"))


@pytest.mark.parametrize("apart", [{"replicate_to": ["eu"]}, {"deliver_after": 60}])
@pytest.mark.parametrize("of_txn", [False, True])
async def test_a_message_that_stands_alone_does_not_overtake_an_open_batch(broker, apart, of_txn):
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_max_delay=0.02)
        options = {"txn": FakeTransaction()} if of_txn else {}
        await in_flight(producer, broker, **options)
        producer.send_nowait(b"2", **options)
        producer.send_nowait(b"3", **options, **apart)
        producer.send_nowait(b"4", **options)
        producer.send_nowait(b"5", **options, **apart)
        await broker.until(lambda: len(left(broker)) == 5)
    assert left(broker) == [b"1", b"2", b"3", b"4", b"5"]
    assert sequence_ids(broker) == [0, 1, 2, 3, 4]


async def test_sequence_ids_of_the_programs_own_leave_ascending_beside_a_delayed_message(broker):
    """Named after a loss: 1, 3, 2 left, and a broker that looks for duplicates dropped 2."""
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_max_delay=0.02)
        await in_flight(producer, broker, sequence_id=1)
        producer.send_nowait(b"2", sequence_id=2)
        producer.send_nowait(b"3", sequence_id=3, deliver_after=60)
        await broker.until(lambda: len(left(broker)) == 3)
    assert sequence_ids(broker) == [1, 2, 3]


async def test_sequence_ids_of_the_programs_own_leave_ascending_over_transactions(broker):
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_max_delay=0.02)
        txns = [None, FakeTransaction(TxnId(0, 1)), FakeTransaction(TxnId(0, 2))]
        await in_flight(producer, broker, sequence_id=1)
        for number in range(2, 20):
            producer.send_nowait(b"%d" % number, sequence_id=number, txn=txns[number // 2 % 3])
            if number % 5 == 0:
                await asyncio.sleep(0)
        await broker.until(lambda: len(left(broker)) == 19)
    assert sequence_ids(broker) == sorted(sequence_ids(broker))
    assert left(broker) == [b"%d" % number for number in range(1, 20)]
    assert len(broker.all("send")) < 15


async def test_sequence_ids_pass_a_transaction_that_still_registers_and_nothing_is_refused(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction(registered=False)
        tickets = [producer.send_nowait(b"2", sequence_id=2, txn=txn), producer.send_nowait(b"3", sequence_id=3)]
        await tickets[1]
        txn.registration.set_result(txn.txn_id)
        await asyncio.gather(*tickets)
    assert sequence_ids(broker) == [3, 2]


async def test_a_transactions_messages_keep_their_order_over_its_registration_also_those_that_stand_alone(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction(registered=False)
        tickets = [
            producer.send_nowait(b"1", txn=txn, deliver_after=60),
            producer.send_nowait(b"2", txn=txn),
            producer.send_nowait(b"3", txn=txn),
            producer.send_nowait(b"4", txn=txn, deliver_after=60),
            producer.send_nowait(b"5", txn=txn, replicate_to=["eu"]),
            producer.send_encoded_nowait(encode_batch([b"6", b"7"]), txn=txn),
            producer.send_nowait(b"8", txn=txn),
        ]
        await asyncio.sleep(0.01)
        assert not broker.all("send")
        txn.registration.set_result(txn.txn_id)
        await asyncio.gather(*tickets)
        assert (txn.started, sum(count for count, _ in txn.finished)) == (8, 8)
    assert left(broker) == [b"%d" % number for number in range(1, 9)]
    assert [len(payloads(body)) for body in broker.all("send")] == [1, 2, 1, 1, 2, 1]


@pytest.mark.parametrize("batching_type", BatchingType)
async def test_an_encoded_batch_does_not_overtake_in_the_turn_in_which_the_registration_is_answered(broker, batching_type):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_type=batching_type)
        txn = FakeTransaction(registered=False)
        tickets = [producer.send_nowait(b"1", key="k", txn=txn), producer.send_nowait(b"2", key="k", txn=txn)]
        await asyncio.sleep(0)
        txn.registration.set_result(txn.txn_id)
        tickets.append(producer.send_encoded_nowait(encode_batch([b"3"]), txn=txn))
        await asyncio.gather(*tickets)
        assert (txn.started, sum(count for count, _ in txn.finished)) == (3, 3)
    assert left(broker) == [b"1", b"2", b"3"]


async def test_a_plain_send_does_not_overtake_in_that_turn_either(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_messages=2)
        txn = FakeTransaction(registered=False)
        tickets = [producer.send_nowait(b"%d" % number, txn=txn) for number in range(4)]
        txn.registration.set_result(txn.txn_id)
        tickets += [producer.send_nowait(b"4", txn=txn), producer.send_nowait(b"5", txn=txn, deliver_after=60)]
        await asyncio.gather(*tickets)
    assert left(broker) == [b"%d" % number for number in range(6)]


async def test_key_based_batches_keep_the_order_of_each_key_and_are_not_cut_by_others(broker):
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_type=BatchingType.KEY_BASED, batching_max_delay=0.02)
        for number in range(4):
            producer.send_nowait(b"%d" % number, key=f"k{number % 2}", sequence_id=number + 10)
        producer.send_nowait(b"4", key="k0", deliver_after=60)
        producer.send_nowait(b"5", key="k1")
        await broker.until(lambda: len(left(broker)) == 6)
    sent = [payloads(body) for body in broker.all("send")]
    assert sorted(sent) == [[b"0", b"2"], [b"1", b"3", b"5"], [b"4"]]
    assert sent.index([b"0", b"2"]) < sent.index([b"4"])


async def test_flushed_batches_leave_in_the_order_of_their_first_messages(broker):
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_max_delay=30)
        txn = FakeTransaction()
        await in_flight(producer, broker)
        producer.send_nowait(b"t1", txn=txn)
        await broker.until(lambda: len(broker.all("send")) == 2)
        producer.send_nowait(b"t2", txn=txn)
        producer.send_nowait(b"2")
        producer.send_nowait(b"t3", txn=txn)
        producer.send_nowait(b"3", deliver_after=60)
        await broker.until(lambda: len(left(broker)) == 6)
    assert left(broker) == [b"1", b"t1", b"t2", b"t3", b"2", b"3"]
