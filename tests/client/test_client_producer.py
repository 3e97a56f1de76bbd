"""Producers: batches, order, resending, bounds, and the fate of a message in a transaction."""

import asyncio
import pickle
from datetime import UTC, datetime

import pytest
from fake_broker import SILENCE, FakeTransaction, fake_client, sent_entry

from pulsar_txn.client import AccessMode, BatchingType, Compression, MessageId, StringSchema, TxnId
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    InvalidConfiguration,
    MessageTooLarge,
    NotAllowedError,
    OperationTimeout,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueFull,
    SchemaMismatch,
    TopicTerminatedError,
    TransactionOperationFailed,
)
from pulsar_txn.client.net.runtime import secret_bytes
from pulsar_txn.wire import hot
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.compression import decompress
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

pytestmark = pytest.mark.quick


def payloads(body):
    metadata, payload = sent_entry(body)
    if not metadata.HasField("num_messages_in_batch"):
        return [payload]
    return [message[0] for message in decode_batch(payload, metadata.num_messages_in_batch)]


def send_error(code, message="no"):
    return lambda _pipe, body: command("send_error", producer_id=body[0], sequence_id=body[1], error=code, message=message)


async def test_a_lone_message_is_no_batch_and_is_not_delayed(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_delay=30)
        assert await producer.send(b"one") == MessageId(1, 0)
    metadata, payload = sent_entry(broker.all("send")[0])
    assert payload == b"one"
    assert not metadata.HasField("num_messages_in_batch")


async def test_what_is_sent_in_one_turn_is_one_batch_in_order(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        ids = await asyncio.gather(*(producer.send(b"%d" % index) for index in range(5)))
    (body,) = broker.all("send")
    assert payloads(body) == [b"0", b"1", b"2", b"3", b"4"]
    assert ids == [MessageId(1, 0, -1, index, 5) for index in range(5)]
    assert body[1:3] == (0, 5)
    assert body[4] == 4
    assert sent_entry(body)[0].highest_sequence_id == 4


async def test_while_a_batch_is_in_flight_the_next_one_collects(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_delay=30)
        tickets = [producer.send_nowait(b"first")]
        await asyncio.sleep(0.01)
        for index in range(3):
            tickets.append(producer.send_nowait(b"%d" % index))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(broker.all("send")) == 1
        del broker.on["send"]
        broker.receipt(0, 0)
        await asyncio.gather(*tickets)
    assert [payloads(body) for body in broker.all("send")] == [[b"first"], [b"0", b"1", b"2"]]


async def test_a_collecting_batch_leaves_after_its_delay_and_when_it_is_full(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.1) as client:
        producer = await client.create_producer("t", batching_max_delay=0.02, batching_max_messages=3)
        producer.send_nowait(b"first").cancel()
        await asyncio.sleep(0.005)
        waiting = [producer.send_nowait(b"x")]
        await broker.until(lambda: len(broker.all("send")) == 2)
        waiting += [producer.send_nowait(b"%d" % index) for index in range(3)]
        await asyncio.sleep(0.005)
        assert payloads(broker.all("send")[2]) == [b"0", b"1", b"2"]
        await producer.close()
        for ticket in waiting:
            assert isinstance(ticket.exception(), AlreadyClosed)


async def test_a_batch_ends_before_the_message_that_does_not_fit(broker):
    """Named after a waste: that message left in an entry of its own, so that every second entry held one message."""
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_bytes=1000, batching_max_delay=0.02)
        tickets = [producer.send_nowait(bytes(300)) for _ in range(7)]
        await asyncio.gather(*tickets)
        large = [producer.send_nowait(bytes(size)) for size in (10, 2000, 10)]
        await asyncio.gather(*large)
    assert [len(payloads(body)) for body in broker.all("send")] == [3, 3, 1, 1, 1, 1]


async def test_batches_that_wait_for_their_transaction_are_cut_like_others(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_bytes=1000)
        async with client.transaction() as txn:
            tickets = [producer.send_nowait(bytes(300), txn=txn) for _ in range(8)]
            assert not broker.all("send")
        assert [ticket.result().entry_id for ticket in tickets] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [len(payloads(body)) for body in broker.all("send")] == [3, 3, 2]


@pytest.mark.parametrize("of_txn", [False, True])
async def test_a_message_behind_one_that_cannot_be_sent_is_flushed(broker, of_txn):
    """Named after a gap: it went into the batch that had just failed, which flush() and close() no longer knew."""
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", compression=Compression.ZLIB, batching_max_delay=30)
        options = {"txn": await client.begin_transaction()} if of_txn else {}
        await producer.send(b"first", **options)
        lost = producer.send_nowait(secret_bytes(6 << 20), **options)
        ticket = producer.send_nowait(b"x", **options)
        await producer.flush()
        assert ticket.done()
        with pytest.raises(MessageTooLarge):
            await lost
        if of_txn:
            assert [(each.sent, each.confirmed, each.failed) for each in options["txn"].stats().partitions] == [(3, 2, 1)]
    leaving = [sent_entry(body) for body in broker.all("send")]
    assert [decompress(2, packed, head.uncompressed_size, max_size=9) for head, packed in leaving] == [b"first", b"x"]


async def test_the_statistics_of_a_transaction_count_what_waits_in_open_batches(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        producers = [await client.create_producer("t", batching_max_bytes=1000) for _ in range(2)]
        txn = await client.begin_transaction()
        tickets = [producer.send_nowait(bytes(300), txn=txn) for producer in producers for _ in range(5)]

        def counts():
            (sent,) = txn.stats().partitions
            return (sent.sent, sent.confirmed, sent.bytes, txn.stats().sends_in_flight)

        assert counts() == counts() == (10, 0, 3000, 10)
        await asyncio.gather(*tickets)
        assert counts() == (10, 10, 3000, 0)
        producers[0].send_nowait(bytes(7), txn=txn)
        assert counts() == (11, 10, 3007, 1)
        await txn.abort()
        assert counts() == (11, 11, 3007, 0)


async def test_all_batches_that_wait_fail_with_the_registration(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    broker.on["addPartitionToTxn"] = lambda _pipe, body: command(
        "addPartitionToTxnResponse", request_id=body.request_id, error=22, message="no"
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_messages=2)
        with pytest.raises(TransactionOperationFailed, match="1 operations failed"):
            async with client.transaction() as txn:
                tickets = [producer.send_nowait(b"x", txn=txn) for _ in range(5)]
        assert all(ticket.exception() is not None for ticket in tickets)
        assert (producer.stats().failed, producer.stats().in_flight_bytes) == (5, 0)


async def test_without_batching_each_message_leaves_alone(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        await asyncio.gather(*(producer.send(b"x") for _ in range(4)))
    assert [body[1:3] for body in broker.all("send")] == [(0, 1), (1, 1), (2, 1), (3, 1)]


async def test_everything_that_can_be_said_of_a_message_is_said_alone_and_in_a_batch(broker):
    said = {"key": "k", "ordering_key": b"o", "properties": {"a": "1"}, "event_time_ms": 77, "sequence_id": 5}
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        await producer.send(b"x", **said)
        await asyncio.gather(producer.send(b"y", **(said | {"sequence_id": 6})), producer.send(b"z"))
    single, batch = broker.all("send")
    metadata, _ = sent_entry(single)
    assert (metadata.partition_key, metadata.ordering_key, metadata.event_time, metadata.sequence_id) == ("k", b"o", 77, 5)
    assert [(pair.key, pair.value) for pair in metadata.properties] == [("a", "1")]
    metadata, payload = sent_entry(batch)
    assert decode_batch(payload, 2)[0] == (b"y", {"a": "1"}, "k", 77, 6, b"o", False, False, False)
    assert (batch[1], batch[4]) == (6, 7)
    assert metadata.publish_time == 1_700_000_000_000


async def test_none_is_a_tombstone(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        await producer.send(None, key="k")
    assert sent_entry(broker.all("send")[0])[0].null_value


async def test_delayed_messages_are_never_batched(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        due = datetime(2030, 1, 1, tzinfo=UTC)
        await asyncio.gather(*(producer.send(b"x", deliver_at=due) for _ in range(2)), producer.send(b"y", deliver_after=1.5))
    delays = [sent_entry(body)[0].deliver_at_time for body in broker.all("send")]
    assert sorted(delays) == [1_700_000_001_500, int(due.timestamp() * 1000), int(due.timestamp() * 1000)]


async def test_clusters_are_named_per_message_and_an_empty_list_keeps_it_at_home(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        due = datetime(2030, 1, 1, tzinfo=UTC)
        await asyncio.gather(
            producer.send(b"policies"),
            producer.send(b"two", replicate_to=["eu", "us"]),
            producer.send(b"home", replicate_to=[], deliver_at=due),
            producer.send(b"policies"),
        )
    sent = [sent_entry(body)[0] for body in broker.all("send")]
    clusters = {(tuple(metadata.replicate_to), metadata.deliver_at_time > 0) for metadata in sent}
    assert clusters == {((), False), (("eu", "us"), False), (("__local__",), True)}
    assert [tuple(metadata.replicate_to) for metadata in sent] == [(), ("eu", "us"), ("__local__",), ()]


async def test_key_based_batches_hold_one_key(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_type=BatchingType.KEY_BASED)
        await asyncio.gather(*(producer.send(b"%d" % index, key=f"k{index % 2}") for index in range(6)))
    found = {sent_entry(body)[0].partition_key: payloads(body) for body in broker.all("send")}
    assert found == {"k0": [b"0", b"2", b"4"], "k1": [b"1", b"3", b"5"]}


async def test_key_based_batches_go_by_the_ordering_key_where_there_is_one(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_type=BatchingType.KEY_BASED)
        sends = [producer.send(b"%d" % index, key="same", ordering_key=b"o%d" % (index % 2)) for index in range(6)]
        await asyncio.gather(*sends, producer.send(b"a"), producer.send(b"b"), producer.send(b"k", key="same"))
    found = {}
    for body in broker.all("send"):
        metadata = sent_entry(body)[0]
        found[metadata.ordering_key or metadata.partition_key] = payloads(body)
    assert found == {b"o0": [b"0", b"2", b"4"], b"o1": [b"1", b"3", b"5"], "": [b"a", b"b"], "same": [b"k"]}


async def test_key_based_batches_never_mix_transactions(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_type=BatchingType.KEY_BASED)
        first, second = FakeTransaction(TxnId(0, 1)), FakeTransaction(TxnId(0, 2))
        sends = [producer.send(b"%d" % index, key="k", txn=(first, second, None)[index % 3]) for index in range(6)]
        await asyncio.gather(*sends)
    found = [(sent_entry(body)[0].txnid_least_bits, payloads(body)) for body in broker.all("send")]
    assert sorted(found) == [(0, [b"2", b"5"]), (1, [b"0", b"3"]), (2, [b"1", b"4"])]


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZLIB, Compression.ZSTD, Compression.SNAPPY])
async def test_compressed_payloads_say_how(broker, kind):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", compression=kind)
        await producer.send(b"x" * 1000)
        await asyncio.gather(*(producer.send(b"y" * 500) for _ in range(2)))
    for body in broker.all("send"):
        metadata, payload = sent_entry(body)
        assert metadata.compression == kind
        assert len(decompress(kind, payload, metadata.uncompressed_size, max_size=2000)) >= 1000


async def test_after_a_reconnect_everything_without_a_receipt_goes_out_again_in_order(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        tickets = [producer.send_nowait(b"%d" % index) for index in range(3)]
        await broker.until(lambda: len(broker.all("send")) == 3)
        del broker.on["send"]
        broker.got.clear()
        broker.pipe.cut()
        tickets.append(producer.send_nowait(b"3"))
        await asyncio.gather(*tickets)
    assert [(body[1], payloads(body)) for body in broker.all("send")] == [(index, [b"%d" % index]) for index in range(4)]
    (opened,) = broker.all("producer")
    assert (opened.producer_name, opened.epoch, opened.user_provided_producer_name) == (producer.producer_name, 1, False)


async def test_a_producer_that_the_broker_closes_is_opened_anew(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        broker.say("close_producer", producer_id=broker.producer_id, request_id=2**64 - 1)
        await broker.until(lambda: len(broker.all("producer")) == 2)
        await producer.send(b"x")
    assert len(broker.all("producer")) == 2
    assert len(broker.pipes) == 1


async def test_a_refused_message_fails_alone(broker):
    broker.on["send"] = send_error(22, "not this one")
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        first = producer.send_nowait(b"bad")
        await broker.until(lambda: broker.all("send"))
        del broker.on["send"]
        await producer.send(b"good")
        with pytest.raises(NotAllowedError, match="not this one"):
            await first
    assert len(broker.pipes) == 1


@pytest.mark.parametrize(("code", "error"), [(25, ProducerFenced), (15, TopicTerminatedError)])
async def test_a_fenced_producer_and_a_terminated_topic_end_the_producer(broker, code, error):
    broker.on["send"] = send_error(code)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(error):
            await producer.send(b"x")
        with pytest.raises(error):
            await producer.send(b"y")
    assert len(broker.all("send")) == 1


async def test_a_send_with_a_producer_that_was_fenced_before_dooms_its_transaction(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        fenced, other = await client.create_producer("t"), await client.create_producer("u")
        broker.on["send"] = send_error(25)
        with pytest.raises(ProducerFenced):
            await fenced.send(b"outside of the transaction")
        del broker.on["send"]
        txn = await client.begin_transaction()
        await other.send(b"one half", txn=txn)
        with pytest.raises(ProducerFenced):
            await fenced.send(b"the other half", txn=txn)
        with pytest.raises(TransactionOperationFailed) as failed:
            await txn.commit()
        assert isinstance(failed.value.__cause__, ProducerFenced)
    assert [body.txn_action for body in broker.all("endTxn")] == [1]


async def test_a_producer_whose_closing_is_cancelled_is_closed_all_the_same(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=30) as client:
        producer = await client.create_producer("t")
        ticket = producer.send_nowait(b"x")
        closing = asyncio.create_task(producer.close())
        await broker.until(lambda: broker.all("send"))
        closing.cancel()
        with pytest.raises(AlreadyClosed):
            await ticket
        await broker.until(lambda: broker.all("close_producer"))
        assert closing.cancelled()


@pytest.mark.seed_rows("C40")
async def test_a_retriable_refusal_makes_the_connection_anew_and_sends_again(broker):
    refuse = send_error(2, "disk")
    broker.on["send"] = lambda pipe, body: (broker.on.pop("send"), refuse(pipe, body))[1]
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        await producer.send(b"x")
    assert len(broker.pipes) == 2
    assert [body[1] for body in broker.all("send")] == [0, 0]


async def test_a_broker_that_refuses_again_and_again_is_not_hammered(broker):
    broker.on["send"] = send_error(2, "disk")
    async with fake_client(broker, initial_backoff=0.02, max_backoff=1, operation_timeout=0.05) as client:
        producer = await client.create_producer("t")
        producer.send_nowait(b"x").cancel()
        await asyncio.sleep(0.2)
        assert 2 <= len(broker.pipes) <= 6


async def test_a_timeout_says_what_the_broker_answered_meanwhile_and_nothing_older(broker):
    broker.on["send"] = send_error(2, "the disk is full; new data is refused until there is room")
    async with fake_client(broker, initial_backoff=0.01, max_backoff=0.02) as client:
        producer = await client.create_producer("t", send_timeout=0.2)
        with pytest.raises(OperationTimeout, match=r"no receipt .* within 0\.2 s; the broker's last answer: the disk is full"):
            await producer.send(b"x")
        broker.on["send"] = lambda _pipe, _body: SILENCE
        await asyncio.sleep(0.1)
        with pytest.raises(OperationTimeout) as caught:
            await producer.send(b"y")
        assert "last answer" not in str(caught.value)


@pytest.mark.seed_rows("D04")
async def test_without_a_receipt_a_send_times_out_and_a_late_receipt_is_nobodys(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", send_timeout=0.03)
        with pytest.raises(OperationTimeout, match="no receipt") as caught:
            await producer.send(b"x")
        assert caught.value.maybe_processed
        broker.receipt(0, 0)
        del broker.on["send"]
        assert (await producer.send(b"y")).entry_id == 0
    assert broker.all("send")[-1][1] == 1


async def test_a_skipped_receipt_makes_everything_go_out_again(broker):
    def skip_one(_pipe, body):
        if body[1] == 0:
            return SILENCE
        del broker.on["send"]
        return hot.encode_send_receipt(body[0], body[1], 1, 9)

    broker.on["send"] = skip_one
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        tickets = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
        await asyncio.gather(*tickets)
    assert [body[1] for body in broker.all("send")] == [0, 1, 0, 1]


async def test_bounds_hold_senders_back_and_refuse_those_that_do_not_wait(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", max_pending_messages=2, batching=False)
        tickets = [producer.send_nowait(b"x"), producer.send_nowait(b"x")]
        with pytest.raises(ProducerQueueFull, match="wait_for_room"):
            producer.send_nowait(b"x")
        waiting = asyncio.create_task(producer.send(b"late"))
        cancelled = asyncio.create_task(producer.send(b"never"))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        assert len(broker.all("send")) == 2
        del broker.on["send"]
        broker.receipt(0, 0)
        broker.receipt(1, 1)
        await asyncio.gather(*tickets, waiting)
    assert [payloads(body) for body in broker.all("send")] == [[b"x"], [b"x"], [b"late"]]


async def test_bytes_are_bounded_too_and_block_if_full_can_be_switched_off(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", max_pending_bytes=10, block_if_full=False)
        producer.send_nowait(b"x" * 10).cancel()
        with pytest.raises(ProducerQueueFull):
            await producer.send(b"x")


async def test_a_message_above_the_brokers_maximum_is_refused_before_it_is_queued(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(MessageTooLarge, match="split"):
            await producer.send(b"x" * (5 * 1024 * 1024 + 1))
        await producer.send(b"x" * 1024 * 1024)


async def test_a_message_above_the_brokers_maximum_dooms_its_transaction_although_it_never_left(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        with pytest.raises(MessageTooLarge):
            await producer.send(b"x" * (5 * 1024 * 1024 + 1), txn=txn)
        await producer.send(b"x", txn=txn)
        with pytest.raises(TransactionOperationFailed) as failed:
            await txn.commit()
        assert isinstance(failed.value.__cause__, MessageTooLarge)
    assert [body.txn_action for body in broker.all("endTxn")] == [1]


async def test_a_value_that_the_schema_cannot_encode_is_refused(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(SchemaMismatch, match="bytes are needed, not str"):
            await producer.send("text")
        texts = await client.create_producer("t", schema=StringSchema())
        await texts.send("grüß dich")
    assert payloads(broker.all("send")[0]) == ["grüß dich".encode()]
    assert broker.all("producer")[1].schema.type == 1


async def test_flush_waits_for_all_and_tells_the_first_error(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        tickets = [producer.send_nowait(b"x") for _ in range(3)]
        await producer.flush()
        assert all(ticket.done() for ticket in tickets)
        broker.on["send"] = send_error(22)
        ticket = producer.send_nowait(b"bad")
        with pytest.raises(NotAllowedError):
            await producer.flush()
        assert isinstance(ticket.exception(), NotAllowedError)


async def test_close_waits_for_receipts(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        ticket = producer.send_nowait(b"x")
        await producer.close()
        assert ticket.result() == MessageId(1, 0)
        with pytest.raises(AlreadyClosed):
            producer.send_nowait(b"y")
    assert len(broker.all("close_producer")) == 1


async def test_a_taken_name_is_producer_busy_at_once(broker):
    broker.on["producer"] = lambda _pipe, body: command("error", request_id=body.request_id, error=16, message="taken")
    async with fake_client(broker) as client:
        with pytest.raises(ProducerBusy, match="another producer name"):
            await client.create_producer("t", producer_name="me")
    assert len(broker.all("producer")) == 1


async def test_waiting_for_exclusive_access_outlasts_the_operation_timeout(broker):
    def queued(pipe, body):
        asyncio.get_running_loop().call_later(
            0.1, lambda: broker.say("producer_success", request_id=body.request_id, producer_name="n", topic_epoch=4)
        )
        return command("producer_success", request_id=body.request_id, producer_name="n", producer_ready=False)

    broker.on["producer"] = queued
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        assert producer.topic_epoch == 4
        del broker.on["producer"]
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("producer")) == 2)
    assert broker.all("producer")[1].topic_epoch == 4


@pytest.mark.seed_rows("B12")
async def test_sequence_ids_go_on_where_the_broker_says(broker):
    broker.on["producer"] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="n", last_sequence_id=41
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", producer_name="n")
        assert producer.last_sequence_id == 41
        await producer.send(b"x")
        assert producer.last_sequence_id == 42
        other = await client.create_producer("t", producer_name="m", initial_sequence_id=7)
        await other.send(b"x")
    assert [body[1] for body in broker.all("send")] == [42, 7]


# --- partitions ----------------------------------------------------------------------------------------------------


async def test_keys_choose_their_partition_as_java_clients_do(broker):
    broker.partitions["persistent://public/default/t"] = 4
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        ids = [await producer.send(b"x", key=key) for key in ("a", "b", "hello")]
        assert [message_id.partition for message_id in ids] == [97 % 4, 98 % 4, 99162322 % 4]
        assert (await producer.send(b"x", key="a", partition=0)).partition == 0
        with pytest.raises(InvalidConfiguration, match="partition 4"):
            await producer.send(b"x", partition=4)


@pytest.mark.parametrize(
    ("hashing", "hashes"),
    [
        ("java_string", (3_288_498, 3_288_499, 101_943_456, 101_943_457)),
        ("murmur3", (462_881_061, 1_936_800_180, 39_696_932, 751_761_803)),
        ("boost", (2_071_103_098, 78_330_853, 2_101_636_627, 95_556_565)),
    ],
)
@pytest.mark.parametrize("routing", ["round_robin", "single_partition"])
async def test_the_hash_that_was_asked_for_chooses_the_partition_of_a_key(broker, hashing, hashes, routing):
    broker.partitions["persistent://public/default/t"] = 5
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", hashing=hashing, routing=routing)
        ids = [await producer.send(b"x", key=key) for key in ("key1", "key2", "key01", "key02")]
        assert [message_id.partition for message_id in ids] == [each % 5 for each in hashes]


async def test_messages_without_a_key_walk_over_the_partitions(broker):
    broker.partitions["persistent://public/default/t"] = 3
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        found = [(await producer.send(b"x")).partition for _ in range(6)]
        custom = await client.create_producer("t", routing=lambda _key, payload: len(payload))
        assert (await custom.send(b"12")).partition == 2
    assert sorted(found) == [0, 0, 1, 1, 2, 2]


async def test_when_one_partition_cannot_be_opened_none_stays_open(broker):
    broker.partitions["persistent://public/default/t"] = 2
    healthy = broker._producer
    broker.on["producer"] = lambda pipe, body: (
        healthy(pipe, body)
        if body.topic.endswith("0")
        else command("error", request_id=body.request_id, error=4, message="not yours")
    )
    async with fake_client(broker) as client:
        with pytest.raises(Exception, match="not yours"):
            await client.create_producer("t")
        assert len(broker.all("close_producer")) == 1


# --- transactions --------------------------------------------------------------------------------------------------


async def test_a_batch_never_mixes_transactions(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        one, two = FakeTransaction(TxnId(0, 1)), FakeTransaction(TxnId(0, 2))
        await asyncio.gather(*(producer.send(b"%d" % index, txn=(one, two, None)[index % 3]) for index in range(6)))
    found = {body[3]: (payloads(body), sent_entry(body)[0]) for body in broker.all("send")}
    assert {txn: contents for txn, (contents, _) in found.items()} == {
        TxnId(0, 1): [b"0", b"3"],
        TxnId(0, 2): [b"1", b"4"],
        None: [b"2", b"5"],
    }
    for txn, (_, metadata) in found.items():
        stamped = (metadata.txnid_most_bits, metadata.txnid_least_bits) if metadata.HasField("txnid_most_bits") else None
        assert stamped == txn
    assert one.finished == [(2, None)]
    sequence_ids = [body[1] for body in broker.all("send")]
    assert sequence_ids == sorted(sequence_ids)


@pytest.mark.seed_rows("D55")
async def test_messages_wait_for_their_registration_in_order_and_others_pass(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        txn = FakeTransaction(registered=False)
        held = [producer.send_nowait(b"%d" % index, txn=txn) for index in range(3)]
        await producer.send(b"free")
        assert len(broker.all("send")) == 1
        txn.registration.set_result(txn.txn_id)
        await asyncio.gather(*held)
    assert [payloads(body) for body in broker.all("send")] == [[b"free"], [b"0"], [b"1"], [b"2"]]
    assert (txn.started, sum(count for count, _ in txn.finished)) == (3, 3)


@pytest.mark.seed_rows("D55")
async def test_a_failed_registration_fails_its_messages_and_reports_each_once(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction(registered=False)
        tickets = [producer.send_nowait(b"x", txn=txn) for _ in range(3)]
        error = ConnectionLost("gone")
        txn.registration.set_exception(error)
        results = await asyncio.gather(*tickets, return_exceptions=True)
        assert results == [error] * 3
        assert txn.finished == [(3, error)]
        await producer.send(b"free")
    assert len(broker.all("send")) == 1


async def test_every_started_operation_is_finished_exactly_once_when_the_producer_closes(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", batching_max_messages=2)
        sent, waiting = FakeTransaction(), FakeTransaction(registered=False)
        for txn in (sent, waiting):
            for _ in range(5):
                producer.send_nowait(b"x", txn=txn)
        await producer.close()
        for txn in (sent, waiting):
            assert (txn.started, sum(count for count, _ in txn.finished)) == (5, 5)
            assert all(isinstance(error, AlreadyClosed) for _, error in txn.finished)


async def test_a_transaction_does_not_send_to_a_topic_that_keeps_nothing(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("non-persistent://public/default/t")
        with pytest.raises(InvalidConfiguration, match="persistent topic"):
            await producer.send(b"x", txn=FakeTransaction())


# --- batches built elsewhere ---------------------------------------------------------------------------------------


async def test_a_batch_built_elsewhere_is_sent_as_one_entry_in_its_transaction(broker):
    batch = pickle.loads(pickle.dumps(encode_batch([b"a", row(b"b", key="k", properties={"p": "1"})], compression=1)))
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction(registered=False)
        before = producer.send_nowait(b"before", txn=txn)
        sending = asyncio.create_task(producer.send_encoded(batch, txn=txn))
        await asyncio.sleep(0)
        txn.registration.set_result(txn.txn_id)
        assert await sending == MessageId(1, 1, -1, -1, 2)
        await before
        after = await producer.send(b"after")
    bodies = broker.all("send")
    assert [(body[1], body[2]) for body in bodies] == [(0, 1), (1, 2), (3, 1)]
    metadata, payload = sent_entry(bodies[1])
    messages = decode_batch(decompress(1, payload, metadata.uncompressed_size, max_size=1000), 2)
    assert [message[:3] for message in messages] == [(b"a", None, None), (b"b", {"p": "1"}, "k")]
    assert (metadata.sequence_id, metadata.highest_sequence_id, metadata.producer_name) == (1, 2, producer.producer_name)
    assert after.entry_id == 2
    assert txn.finished == [(1, None), (2, None)]


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])
