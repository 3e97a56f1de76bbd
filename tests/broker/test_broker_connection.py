"""Connections and producers, in frames: what is refused, what is bounded, who may publish."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.topics.producers import AccessMode
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot import encode_send
from pulsar_txn.wire.topics import TopicName


def _entry(sequence_id: int = 0) -> bytes:
    return encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1), b"x")


async def test_connected_names_the_limit_and_the_lower_protocol_version(bench: Any) -> None:
    client = bench.client()
    await client.settle(3)
    ((name, body),) = client.events
    assert (name, body.max_message_size, body.protocol_version) == ("connected", 5 * 1024 * 1024, 21)


async def test_a_command_before_connect_closes_the_connection(bench: Any) -> None:
    client = RawClient(bench.broker)
    client.connection.connected = False
    client.raw(command("ping"))
    assert client.pipe.closed


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
    ],
    ids=["http", "tls", "garbage"],
)
async def test_bytes_that_are_not_pulsar_close_the_connection_and_nothing_else(
    client: RawClient, bench: Any, data: bytes
) -> None:
    other = bench.client()
    client.raw(data)
    assert client.pipe.closed
    await other.producer("a")


async def test_ping_is_answered_and_a_silent_client_is_sent_away(client: RawClient) -> None:
    client.raw(command("ping"))
    await client.until(lambda: "pong" in [name for name, _ in client.events])
    client.answers_pings = False
    client.connection.tick()
    await client.until(lambda: "ping" in [name for name, _ in client.events])
    assert not client.pipe.closed
    client.connection.tick()
    assert client.pipe.closed


async def test_a_send_for_an_unknown_producer_closes_the_connection_but_not_right_after_its_close(client: RawClient) -> None:
    await client.producer("a", 3)
    await client.request("close_producer", producer_id=3)
    client.raw(b"".join(encode_send(3, 0, 1, _entry())))
    assert not client.pipe.closed
    client.raw(b"".join(encode_send(99, 0, 1, _entry())))
    assert client.pipe.closed


async def test_a_damaged_entry_is_refused_with_checksum_error_in_order(client: RawClient) -> None:
    await client.producer("a")
    client.send(b"good")
    broken = bytearray(_entry(1))
    broken[-1] ^= 1
    client.raw(b"".join(encode_send(0, 1, 1, bytes(broken))))
    client.send(b"good", sequence_id=2)
    await client.until(lambda: len(client.receipts) == 2 and client.send_errors)
    assert client.send_errors[0].error == ServerError.ChecksumError
    assert client.send_errors[0].sequence_id == 1


async def test_reading_stops_with_too_many_pending_sends_and_goes_on_when_they_are_durable(benches: Any) -> None:
    bench = await benches(max_pending_publish_requests_per_connection=4).start()
    client = bench.client()
    await client.producer("a")
    bench.store.auto_confirm = False
    for number in range(4):
        assert client.pipe.reading
        client.send(b"%d" % number)
    assert not client.pipe.reading
    bench.store.auto_confirm = True
    bench.store.confirm()
    await asyncio.sleep(0)
    assert client.pipe.reading


async def test_reading_stops_while_the_ledger_is_under_pressure_for_newcomers_too(client: RawClient, bench: Any) -> None:
    bench.store.pressure.enter(bench.store.pressure.high_bytes + 1)
    assert not client.pipe.reading
    late = bench.client()
    assert not late.pipe.reading
    bench.store.pressure.leave(bench.store.pressure.high_bytes + 1)
    assert client.pipe.reading
    await late.until(lambda: late.pipe.reading, "reading goes on behind what it had said already")


async def test_a_full_disk_refuses_sends_and_lets_ends_and_acks_go_on(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a")
    message_at = await client.sent(b"0")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.sent(b"in", txn=txn)
    bench.store.disk_full = True
    for options in ({}, {"txn": txn}):
        with pytest.raises(Refused) as refused:
            await client.sent(b"1", **options)
        assert refused.value.code == ServerError.PersistenceError
    await client.ack(message_at, txn=txn)
    await client.end(txn)
    bench.store.disk_full = False
    await client.sent(b"2")
    assert await client.payloads(3) == [b"0", b"in", b"2"]


async def test_names_that_are_none_and_topics_of_the_machinery_are_refused(client: RawClient) -> None:
    for topic, code in (
        ("persistent://a/b", ServerError.InvalidTopicName),
        ("persistent://pulsar/system/__transaction_log_0", ServerError.NotAllowedError),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-0", ServerError.NotAllowedError),
        (FULL + "a-s__transaction_pending_ack", ServerError.NotAllowedError),
    ):
        with pytest.raises(Refused) as refused:
            await client.producer(topic)
        assert refused.value.code == code
        with pytest.raises(Refused) as refused:
            await client.subscribe(topic)
        assert refused.value.code == code


RESERVED = [
    (f"{domain}://{name}", sentence)
    for domain in ("persistent", "non-persistent")
    for name, sentence in (
        ("public/default/.", "has a part '.' or '..'"),
        ("public/default/..", "has a part '.' or '..'"),
        ("public/default/..-partition-0", "has a part '.' or '..'"),
        ("public/../t", "has a part '.' or '..'"),
        ("./default/t", "has a part '.' or '..'"),
        ("public/default/__change_events", "is the name of a system topic"),
        ("public/default/__change_events-partition-1", "is the name of a system topic"),
        ("public/default/__transaction_buffer_snapshot", "is the name of a system topic"),
        ("public/default/__transaction_log_0", "is the name of a system topic"),
        ("public/default/transaction_coordinator_assign", "is the name of a system topic"),
        ("public/default/transaction_coordinator_assign-partition-0", "is the name of a system topic"),
    )
]


@pytest.mark.parametrize("kind", ["non-partitioned", "partitioned"])
@pytest.mark.parametrize(("topic", "sentence"), RESERVED)
async def test_names_that_no_path_can_say_and_names_of_system_topics_are_refused(
    benches: Any, topic: str, sentence: str, kind: str
) -> None:
    bench = await benches(allow_auto_topic_creation_type=kind).start()
    client = bench.client()
    for act in (client.producer, client.subscribe):
        with pytest.raises(Refused, match=re.escape(sentence)) as refused:
            await act(topic)
        assert refused.value.code == ServerError.NotAllowedError
    assert (await client.request("partitionMetadata", topic=topic, metadata_auto_creation_enabled=True)).partitions == 0
    await client.producer(FULL + "..a")
    await client.producer(FULL + "my__change_events", 2)


async def test_a_topic_with_a_reserved_name_that_an_earlier_version_made_goes_on(
    benches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await benches().start()
    with monkeypatch.context() as before:
        before.setattr("pulsar_txn.broker.broker.why_reserved", lambda _name: None)
        before.setattr("pulsar_txn.broker.catalog.catalog.why_reserved", lambda _name: None)
        await bench.client().producer(FULL + "..")
        await bench.broker.catalog.create_partitioned(TopicName.parse(FULL + "__change_events"), 2)
    await bench.crash()
    client = bench.client()
    await client.producer(FULL + "..")
    await client.sent(b"x")
    await client.producer(FULL + "__change_events-partition-1", 2)


async def test_topics_are_not_made_when_the_configuration_says_so(benches: Any) -> None:
    bench = await benches(allow_auto_topic_creation=False).start()
    client = bench.client()
    with pytest.raises(Refused) as refused:
        await client.producer("a")
    assert refused.value.code == ServerError.TopicNotFound


async def test_auto_creation_makes_partitioned_topics_when_asked_and_lookups_answer_this_broker(benches: Any) -> None:
    bench = await benches(allow_auto_topic_creation_type="partitioned", default_num_partitions=3).start()
    client = bench.client()
    bench.broker.service_url = "pulsar://127.0.0.1:1"
    topic = FULL + "p"
    ask = {"topic": topic}
    assert (await client.request("partitionMetadata", metadata_auto_creation_enabled=False, **ask)).partitions == 0
    assert (await client.request("partitionMetadata", **ask)).partitions == 3
    answer = await client.request("lookupTopic", topic=topic + "-partition-1")
    assert answer.brokerServiceUrl == "pulsar://127.0.0.1:1"
    await client.producer(topic + "-partition-2", 1)
    with pytest.raises(Refused) as refused:
        await client.producer(topic + "-partition-3")
    assert refused.value.code == ServerError.TopicNotFound
    with pytest.raises(Refused):
        await client.producer(topic)
    assign = "persistent://pulsar/system/transaction_coordinator_assign"
    assert (await client.request("partitionMetadata", topic=assign)).partitions == 2
    names = (await client.request("getTopicsOfNamespace", namespace="public/default")).topics
    assert list(names) == [f"{topic}-partition-{index}" for index in range(3)]


async def test_schemas_are_stored_and_given_back_by_version(client: RawClient, bench: Any) -> None:
    def schema(text: bytes) -> pb.Schema:
        return pb.Schema(name="s", schema_data=text, type=pb.Schema.Json, properties=[pb.KeyValue(key="k", value="v")])

    first = await client.request("getOrCreateSchema", topic=FULL + "a", schema=schema(b"1"))
    again = await client.request("getOrCreateSchema", topic=FULL + "a", schema=schema(b"1"))
    second = await client.request("getOrCreateSchema", topic=FULL + "a", schema=schema(b"2"))
    assert first.schema_version == again.schema_version == bytes(8)
    assert second.schema_version == bytes(7) + b"\x01"
    await bench.crash()
    client = bench.client()
    newest = await client.request("getSchema", topic=FULL + "a")
    assert (newest.schema, newest.schema_version) == (schema(b"2"), second.schema_version)
    old = await client.request("getSchema", topic=FULL + "a", schema_version=bytes(8))
    assert old.schema == schema(b"1")
    absent = await client.request("getSchema", topic=FULL + "none")
    assert absent.error_code == ServerError.TopicNotFound


# ---- access modes


async def test_a_name_is_taken_once_and_free_again_after_the_close(client: RawClient, bench: Any) -> None:
    other = bench.client()
    await client.producer("a", producer_name="p")
    with pytest.raises(Refused) as refused:
        await other.producer("a", producer_name="p")
    assert refused.value.code == ServerError.ProducerBusy
    client.drop()
    await other.producer("a", producer_name="p")
    names = {(await other.producer("a", number)).producer_name for number in range(1, 5)}
    assert len(names) == 4


async def test_a_silent_connection_keeps_neither_a_name_nor_an_exclusive_subscription(benches: Any) -> None:
    bench = await benches(connection_liveness_check_timeout_millis=1).start()
    client = bench.client()
    await client.producer("a", producer_name="p")
    await client.request("subscribe", topic="a", subscription="s", subType=0, consumer_id=0)
    client.answers_pings = False
    heir = bench.client()
    name = heir.start("producer", topic="a", producer_id=0, producer_name="p")
    place = heir.start("subscribe", topic="a", subscription="s", subType=0, consumer_id=0)
    await client.until(lambda: client.pipe.closed, turns=1_000_000)
    client.drop()
    assert (await heir.answer(name)).producer_name == "p"
    await heir.answer(place)


async def test_exclusive_is_alone_and_shared_stays_out(client: RawClient, bench: Any) -> None:
    other = bench.client()
    answer = await client.producer("a", producer_access_mode=AccessMode.Exclusive)
    assert answer.topic_epoch == 0
    with pytest.raises(Refused) as refused:
        await other.producer("a", producer_access_mode=AccessMode.Exclusive)
    assert refused.value.code == ServerError.ProducerFenced
    with pytest.raises(Refused) as refused:
        await other.producer("a")
    assert refused.value.code == ServerError.ProducerBusy
    await client.request("close_producer", producer_id=0)
    await other.producer("a")


async def test_wait_for_exclusive_is_told_first_that_it_waits_and_later_that_it_may(client: RawClient, bench: Any) -> None:
    other = bench.client()
    await client.producer("a", producer_access_mode=AccessMode.Exclusive)
    request_id = other.start("producer", topic="a", producer_id=0, producer_access_mode=int(AccessMode.WaitForExclusive))
    assert not (await other.answer(request_id)).producer_ready
    await other.settle()
    client.drop()
    answer = await other.answer(request_id)
    assert answer.producer_ready
    assert answer.topic_epoch == 1
    await other.sent(b"x")


@pytest.mark.seed_rows("B15")
async def test_fencing_takes_the_topic_over_and_the_old_epoch_cannot_come_back_after_a_crash_either(
    client: RawClient, bench: Any
) -> None:
    old = await client.producer("a", producer_access_mode=AccessMode.Exclusive)
    other = bench.client()
    new = await other.producer("a", producer_access_mode=AccessMode.ExclusiveWithFencing)
    assert new.topic_epoch > old.topic_epoch
    await client.until(lambda: "close_producer" in [name for name, _ in client.events])
    client.send(b"late")
    await client.settle()
    assert not client.receipts
    await bench.crash()
    again = bench.client()
    with pytest.raises(Refused) as refused:
        await again.producer("a", producer_access_mode=AccessMode.Exclusive, topic_epoch=old.topic_epoch)
    assert refused.value.code == ServerError.ProducerFenced
    back = await again.producer("a", producer_access_mode=AccessMode.Exclusive, topic_epoch=new.topic_epoch)
    assert back.topic_epoch == new.topic_epoch


@pytest.mark.seed_rows("B11", "D02")
async def test_duplicates_in_flight_are_answered_when_the_first_one_is_durable(benches: Any) -> None:
    bench = await benches(broker_deduplication_enabled=True).start()
    client = bench.client()
    await client.producer("a", producer_name="p")
    bench.store.auto_confirm = False
    client.send(b"0", sequence_id=0)
    client.send(b"0", sequence_id=0)
    await client.settle()
    assert not client.receipts
    bench.store.auto_confirm = True
    bench.store.confirm()
    await client.until(lambda: len(client.receipts) == 2)
    assert client.receipts[1][2] == (-1, -1)


async def test_a_topic_whose_log_failed_is_recovered_when_somebody_asks_again(client: RawClient, bench: Any) -> None:
    await client.producer("a", producer_name="p")
    await client.sent(b"0")
    topic = bench.broker.topics[FULL + "a"]
    topic.host.fail(RuntimeError("a fault"))
    await client.until(lambda: "close_producer" in [name for name, _ in client.events])
    await asyncio.sleep(0.01)
    again = bench.client()
    await again.producer("a", producer_name="p")
    await again.sent(b"1", sequence_id=1)
    await again.subscribe("a")
    assert await again.payloads(2) == [b"0", b"1"]
    assert bench.broker.topics[FULL + "a"] is not topic


async def test_acknowledged_entries_go_after_a_cut_and_what_they_said_is_kept(benches: Any) -> None:
    bench = await benches(managed_ledger_max_entries_per_ledger=5, broker_deduplication_enabled=True).start()
    client = bench.client()
    await client.producer("a", producer_name="p")
    await client.subscribe("a")
    for _ in range(12):
        last = await client.sent(b"x")
    topic = bench.broker.topics[FULL + "a"]
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries == 12
    await client.ack(last, cumulative=True)
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries < 12
    await bench.crash()
    again = bench.client()
    assert (await again.producer("a", producer_name="p")).last_sequence_id == 11
    await again.subscribe("a")
    await again.nothing()


@pytest.mark.parametrize("count", [0, -1, 2**31 - 1])
async def test_a_batch_of_nonsense_size_is_refused_before_it_reaches_the_log(client: RawClient, bench: Any, count: int) -> None:
    await client.producer("a")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    client.raw(b"".join(encode_send(0, 0, 1, encode_entry(metadata, b"x"))))
    await client.until(lambda: client.send_errors)
    assert client.send_errors[0].error == ServerError.NotAllowedError
    assert bench.broker.topics[FULL + "a"].log.stats().entries == 0


@pytest.mark.parametrize("size", [-1, 2**31 - 1])
async def test_an_ack_of_a_nonsense_batch_closes_the_connection(client: RawClient, size: int) -> None:
    await client.subscribe("a")
    place = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[1], batch_size=size)
    client.raw(command("ack", consumer_id=0, ack_type=0, message_id=[place]))
    assert client.pipe.closed


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_bytes_of_a_client_disturb_the_others(bench: Any, data: st.DataObject) -> None:
    """Frames that were changed in places: the connection may be closed, everybody else is served."""
    sound = [
        command("producer", topic="f", producer_id=0, request_id=1),
        command("subscribe", topic="f", subscription="s", subType=3, consumer_id=0, request_id=2),
        command("flow", consumer_id=0, messagePermits=10),
        b"".join(encode_send(0, 0, 1, _entry())),
        command(
            "ack", consumer_id=0, ack_type=0, message_id=[pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[1], batch_size=2)]
        ),
        command("seek", consumer_id=0, request_id=3, message_publish_time=5),
        command("endTxn", request_id=4, txnid_least_bits=1, txnid_most_bits=1, txn_action=1),
        command("newTxn", request_id=5, tc_id=1, txn_ttl_millis=5),
        command("redeliverUnacknowledgedMessages", consumer_id=0),
    ]
    client = bench.client()
    for frame in data.draw(st.lists(st.sampled_from(sound), min_size=1, max_size=12)):
        changed = bytearray(frame)
        for place in data.draw(st.lists(st.integers(4, len(frame) - 1), max_size=3)):
            changed[place] = data.draw(st.integers(0, 255))
        if client.pipe.closed:
            break
        client.raw(bytes(changed))
        await client.settle(4)
    client.drop()
    other = bench.client()
    await other.producer("g")
    await other.sent(b"x")
    other.drop()
