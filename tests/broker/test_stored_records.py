"""Records as they lie in the logs of a broker: what each of them says of its transaction, and where half messages are.

The broker is closed before its logs are read, so nothing here depends on what it keeps in memory.
"""

from __future__ import annotations

from typing import Any

import pytest
from admin_client import admin_of
from raw_client import FULL, Refused

from pulsar_txn.broker.catalog.catalog import log_name, pending_ack_log_name, role_log_name
from pulsar_txn.rm_pending_ack.records import Op, decode_record
from pulsar_txn.rm_producer.requests import TakeSnapshot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import read_header, read_metadata, split_entry
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import MarkerType, TxnId
from pulsar_txn.wire.topics import TopicName

TOPIC = FULL + "orders"
NAME = TopicName.parse(TOPIC)


async def records(bench: Any, name: str) -> list[bytes]:
    """All entries of a log. The broker is closed by the first call."""
    await bench.broker.close()
    log = await bench.store.open(name, create=False)
    found, at = [], (0, 0)
    while some := await log.read(at):
        found += [bytes(data) for _, data in some]
        at = log.next_position(some[-1][0])
    await log.close()
    return found


def payload_of(entry: bytes) -> bytes:
    """The payload of an entry whose checksum is right."""
    return bytes(split_entry(entry)[1])


async def opened(client: Any, *topics: str) -> TxnId:
    """A transaction with these topics registered."""
    txn: TxnId = await client.new_txn()
    await client.add_topics(txn, *topics)
    return txn


@pytest.mark.seed_rows("C21")
async def test_each_stored_message_names_its_transaction_and_each_end_is_a_control_record(bench: Any) -> None:
    client = bench.client()
    await client.producer(TOPIC)
    committed, aborted = await opened(client, TOPIC), await opened(client, TOPIC)
    await client.sent(b"0", txn=committed)
    await client.sent([b"1", b"2"], txn=aborted)
    await client.sent(b"plain")
    await client.end(committed)
    await client.abort(aborted)
    headers = [read_header(entry, verify=True) for entry in await records(bench, log_name(NAME))]
    assert [(each.txn_id, each.marker_type) for each in headers] == [
        (committed, None),
        (aborted, None),
        (None, None),
        (committed, MarkerType.TXN_COMMIT),
        (aborted, MarkerType.TXN_ABORT),
    ]


@pytest.mark.seed_rows("C23")
async def test_the_id_and_the_epoch_of_a_producer_are_checked_and_not_stored(bench: Any) -> None:
    old, new = bench.client(), bench.client()
    mode = pb.ProducerAccessMode.ExclusiveWithFencing
    first = await old.producer(TOPIC, 7, producer_access_mode=mode)
    await old.sent(b"same", 7, sequence_id=1)
    second = await new.producer(TOPIC, 9, producer_access_mode=mode)
    await new.sent(b"same", 9, sequence_id=1)
    old.send(b"of the zombie", 7)
    await old.settle()
    assert second.topic_epoch > first.topic_epoch
    entries = await records(bench, log_name(NAME))
    assert len(entries) == 2, "the zombie's message was refused by its epoch"
    of_first, of_second = (read_metadata(entry) for entry in entries)
    for metadata in (of_first, of_second):
        for field in ("broker_entry_metadata", "publish_time", "producer_name"):
            if field in type(metadata).DESCRIPTOR.fields_by_name:
                metadata.ClearField(field)
    assert of_first == of_second, "entries of different producer ids and epochs differ in neither"


@pytest.mark.seed_rows("C01")
async def test_the_log_of_a_subscription_holds_acknowledgements_and_control_records(bench: Any) -> None:
    client = bench.client()
    await client.producer(TOPIC)
    await client.subscribe(TOPIC, "s")
    ended = []
    for action in (client.end, client.abort):
        await client.sent(b"m")
        message = await client.receive()
        txn = await client.new_txn()
        await client.add_subscriptions(txn, (TOPIC, "s"))
        await client.ack(message, txn=txn)
        await action(txn)
        ended.append((txn, message.position))
    found = [decode_record(data) for data in await records(bench, pending_ack_log_name(NAME, "s"))]
    (committed, first), (aborted, second) = ended
    assert [(each.op, each.txn_id) for each in found] == [
        (Op.ACK, committed),
        (Op.COMMIT, committed),
        (Op.ACK, aborted),
        (Op.ABORT, aborted),
    ]
    assert [found[at].items[0][0] for at in (0, 2)] == [first, second]


@pytest.mark.seed_rows("B34", "C15")
async def test_an_acknowledgement_of_a_subscription_that_the_coordinator_was_not_told_of_is_refused(bench: Any) -> None:
    client = bench.client()
    await client.producer(TOPIC)
    await client.sent(b"m")
    await client.subscribe(TOPIC, "s")
    message, txn = await client.receive(), await client.new_txn()
    await client.add_topics(txn, TOPIC)
    with pytest.raises(Refused) as refused:
        await client.ack(message, txn=txn)
    assert refused.value.code == ServerError.NotAllowedError
    await client.add_subscriptions(txn, (TOPIC, "s"))
    await client.ack(message, txn=txn)
    await client.end(txn)
    again = bench.client()
    client.drop()
    await again.subscribe(TOPIC, "s")
    await again.nothing()


@pytest.mark.seed_rows("D01")
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_a_transaction_spans_tenants_and_namespaces_as_a_whole(bench: Any, commits: bool) -> None:
    topics = ["persistent://acme/orders/t", "persistent://acme/invoices/t", "persistent://globex/orders/t"]
    client = bench.client()
    for number, topic in enumerate(topics):
        await client.producer(topic, number)
        await client.subscribe(topic, consumer_id=number)
    txn = await opened(client, *topics)
    for number, topic in enumerate(topics):
        await client.sent(topic.encode(), number, txn=txn)
        await client.nothing(number)
    await (client.end if commits else client.abort)(txn)
    for number, topic in enumerate(topics):
        await client.sent(b"plain", number)
        expected = [topic.encode(), b"plain"] if commits else [b"plain"]
        assert await client.payloads(len(expected), number) == expected


@pytest.fixture
async def half(benches: Any) -> Any:
    return await benches(transaction_buffer_provider_overrides=f"{TOPIC}=half-topic").start()


@pytest.mark.seed_rows("A13", "A22")
async def test_half_and_op_logs_are_no_topics_that_anybody_can_consume(half: Any) -> None:
    client = half.client()
    await client.producer(TOPIC)
    txn = await opened(client, TOPIC)
    await client.sent(b"half", txn=txn)
    await client.end(await opened(client, TOPIC))
    inner = [role_log_name(NAME, role) for role in ("half", "op")]
    assert set(inner) <= set(half.store.names())
    async with admin_of(half) as admin:
        assert await admin("GET", "/admin/v2/persistent/public/default") == (200, [TOPIC])
    for number, name in enumerate(inner, 1):
        last = name.rsplit("/", 1)[1]
        for spelled in (last, f"transaction-buffer/{last}", name, name.replace("/", "%2F")):
            try:
                await client.subscribe(FULL + spelled, consumer_id=number)
            except Refused:
                continue
            await client.nothing(number)
    await client.subscribe(TOPIC)
    await client.nothing()


@pytest.mark.seed_rows("A12")
async def test_a_half_message_waits_unchanged_in_a_log_that_belongs_to_its_topic(half: Any) -> None:
    client = half.client()
    await client.producer(TOPIC)
    txn = await opened(client, TOPIC)
    await client.sent(b"half", txn=txn, key="k", fields={"event_time": 5})
    await half.crash()
    (waiting,) = await records(half, role_log_name(NAME, "half"))
    assert await records(half, log_name(NAME)) == [], "the topic itself has nothing of an open transaction"
    await half.start()
    again = half.client()
    await again.subscribe(TOPIC)
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    assert await again.payloads(1) == [b"half"]
    (copied, *_) = await records(half, log_name(NAME))
    assert payload_of(copied) == b"half"
    assert waiting.endswith(copied), "what waited is the entry, byte for byte, behind a head of the log's own"
    assert copied not in waiting[: -len(copied)]


@pytest.mark.seed_rows("A30")
async def test_what_is_decided_before_the_oldest_undecided_half_is_trimmed(half: Any) -> None:
    client = half.client()
    await client.producer(TOPIC)
    for number in range(20):
        txn = await opened(client, TOPIC)
        await client.sent(b"early %d" % number, txn=txn)
        await client.end(txn)
    undecided = await opened(client, TOPIC)
    await client.sent(b"undecided", txn=undecided)
    for number in range(20):
        txn = await opened(client, TOPIC)
        await client.sent(b"late %d" % number, txn=txn)
        await client.end(txn)
    half.broker.topics[TOPIC].host.submit(TakeSnapshot())
    await client.settle()
    kept = await records(half, role_log_name(NAME, "half"))
    assert kept[0].endswith(b"undecided"), "the checkpoint stands at the oldest half that nobody decided"
    assert len(kept) == 21
