"""The administration of transactions: every question and action of `/admin/v3/transactions`, and peeking at messages."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from typing import Any

import pytest
from admin import TRANSACTIONS, AdminError, eventually, get_json, of_topic, post, put, topic_path, topic_stats
from coordinators import id_of
from differences import Observed
from insides import coordinators_of
from rows import row
from targets import Target
from transactions import PATIENCE, data_of, received, visible

from pulsar_txn.client import AsyncClient, AsyncTransaction, CommitOutcomeUnknown, InitialPosition, TransactionAborted
from pulsar_txn.wire.ids import MessageId


async def ask(pulsar: Target, path: str) -> Any:
    """GET below `/admin/v3/transactions`."""
    return await get_json(pulsar, TRANSACTIONS + path)


async def status_of(pulsar: Target, path: str) -> str:
    """The HTTP status of such a GET."""
    try:
        await ask(pulsar, path)
    except AdminError as error:
        return str(error.status)
    return "200"


def bits(txn: AsyncTransaction) -> str:
    """How paths name a transaction."""
    return f"{id_of(txn).most}/{id_of(txn).least}"


def place(message_id: MessageId, shift: int = 0) -> str:
    """How stats print a position."""
    return f"{message_id.ledger_id}:{message_id.entry_id + shift}"


# ---- coordinators


@row(123)
async def test_coordinators_are_listed_with_where_they_are(pulsar: Target) -> None:
    found = await ask(pulsar, "/coordinators")
    assert [each["id"] for each in found] == list(range(len(found)))
    assert {each["brokerServiceUrl"] for each in found} == {pulsar.service_url}


@row(123)
async def test_a_coordinator_counts_what_is_open(pulsar: Target, client: AsyncClient) -> None:
    txn = await client.begin_transaction()
    assert txn.id is not None
    one = await ask(pulsar, f"/coordinatorStats?coordinatorId={txn.id.most}")
    assert one["state"] == "Ready"
    assert one["leastSigBits"] >= txn.id.least
    assert one["lowWaterMark"] < txn.id.least
    assert one["ongoingTxnSize"] >= 1
    assert set(one) == set((await ask(pulsar, "/coordinatorStats"))[str(txn.id.most)])
    await txn.abort()


@row(123)
async def test_a_coordinator_shows_its_log(pulsar: Target, client: AsyncClient) -> None:
    txn = await client.begin_transaction()
    assert txn.id is not None
    found = (await ask(pulsar, f"/coordinatorInternalStats/{txn.id.most}?metadata=true"))["transactionLogStats"]
    assert found["managedLedgerName"] == f"pulsar/system/persistent/__transaction_log_{txn.id.most}"
    assert found["managedLedgerInternalStats"]["state"] == "LedgerOpened"
    assert found["managedLedgerInternalStats"]["numberOfEntries"] >= 1
    await txn.abort()


@row(123)
@pytest.mark.parametrize("path", ["/coordinatorStats?coordinatorId=", "/coordinatorInternalStats/"])
async def test_a_coordinator_that_there_is_not_is_not_found(pulsar: Target, path: str) -> None:
    count = len(await ask(pulsar, "/coordinators"))
    assert await status_of(pulsar, f"{path}{count}") == "404"


@row(123)
async def test_the_number_of_coordinators_goes_up_only(pulsar: Target) -> None:
    """The fixture of all stories made it go up."""
    count = len(await ask(pulsar, "/coordinators"))
    for number in (count, 1):
        with pytest.raises(AdminError) as refused:
            await post(pulsar, f"{TRANSACTIONS}/transactionCoordinator/replicas", number)
        assert refused.value.status == 406
    assert len(await ask(pulsar, "/coordinators")) == count > 1
    partitions = await get_json(pulsar, "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions")
    assert partitions["partitions"] == count


# ---- one transaction


@pytest.mark.seed_rows("C08")
@row(123)
async def test_a_transaction_is_shown_with_its_topics_and_subscriptions(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic)
    consumers = [await client.subscribe(topic, name) for name in ("single", "cumulative")]
    await producer.send(b"input")
    single, cumulative = [(await received(consumer, 1))[0] for consumer in consumers]
    txn = await client.begin_transaction(timeout=600)
    first = await producer.send(b"1", txn=txn)
    await producer.send(b"2", txn=txn)
    await consumers[0].acknowledge(single, txn=txn)
    await consumers[1].acknowledge_cumulative(cumulative, txn=txn)
    found = await ask(pulsar, f"/transactionMetadata/{bits(txn)}")
    opened_ms = found.pop("openTimestamp")
    assert 0 < opened_ms <= found.pop("modifiedAt", opened_ms)  # beyond Pulsar's shape; its tools pass it over
    assert found == {
        "txnId": str(txn.id),
        "status": "OPEN",
        "timeoutAt": 600_000,
        "producedPartitions": {topic: {"startPosition": place(first), "aborted": False}},
        "ackedPartitions": {topic: {"single": {}, "cumulative": {"cumulativeAckPosition": place(cumulative.message_id)}}},
    }
    await txn.commit()
    assert await status_of(pulsar, f"/transactionMetadata/{bits(txn)}") == "404"


@row(123)
async def test_a_transaction_with_a_topic_that_is_gone_is_shown(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    txn = await client.begin_transaction()
    assert txn.id is not None
    await coordinators_of(client).add_partitions(txn.id, [topic])
    seen = await status_of(pulsar, f"/transactionMetadata/{bits(txn)}")
    await txn.abort()
    observed(pulsar, 123, "HTTP status of a transaction with a topic that there is not", seen)


@row(123)
async def test_transactions_that_are_open_for_long_are_found(pulsar: Target, client: AsyncClient) -> None:
    txn = await client.begin_transaction()
    assert txn.id is not None

    async def listed(timeout_ms: int) -> Any:
        try:
            return await ask(pulsar, f"/slowTransactions/{timeout_ms}?coordinatorId={txn.id.most}")  # type: ignore[union-attr]
        except AdminError:  # stock answers 500 while any transaction has a participant that is gone
            return {}

    found = await eventually(lambda: listed(0), lambda found: str(txn.id) in found)
    assert found[str(txn.id)]["status"] == "OPEN"
    assert str(txn.id) not in await listed(3_600_000)
    await txn.abort()


@row(123)
async def test_a_transaction_is_aborted_by_the_administration(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"aborted", txn=txn)
    await producer.send(b"plain")
    await post(pulsar, f"{TRANSACTIONS}/abortTransaction/{bits(txn)}")
    assert await visible(client, topic) == [b"plain"]
    assert await status_of(pulsar, f"/transactionMetadata/{bits(txn)}") == "404"
    with pytest.raises((TransactionAborted, CommitOutcomeUnknown)):
        await txn.commit()
    observed(pulsar, 123, "state of a transaction aborted by the administration, after commit()", txn.state.value)


@row(123)
async def test_a_transaction_that_there_is_not_cannot_be_aborted(pulsar: Target, observed: Observed) -> None:
    with pytest.raises(AdminError) as refused:
        await post(pulsar, f"{TRANSACTIONS}/abortTransaction/0/{2**40}")
    observed(pulsar, 123, "HTTP status of the abort of a transaction that there is not", str(refused.value.status))


# ---- topics


@row(123)
async def test_the_buffer_of_a_topic_shows_how_far_may_be_read(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    plain = await producer.send(b"plain")
    txn = await client.begin_transaction()
    assert txn.id is not None
    first = await producer.send(b"held", txn=txn)
    stats = f"/transactionBufferStats/{of_topic(topic)}?lowWaterMarks=true&segmentStats=true"
    of_txn = f"/transactionInBufferStats/{of_topic(topic)}/{bits(txn)}"
    found = await ask(pulsar, stats)
    assert (found["state"], found["maxReadPosition"], found["ongoingTxnSize"]) == ("Ready", place(plain), 1)
    assert await ask(pulsar, of_txn) == {"startPosition": place(first), "aborted": False}
    await txn.abort()
    found = await ask(pulsar, stats)
    assert (found["maxReadPosition"], found["ongoingTxnSize"]) == (place(first, 1), 0)
    assert (found["totalAbortedTransactions"], found["snapshotType"]) == (1, "Single")
    assert str(txn.id.most) in found["lowWaterMarks"]
    assert await ask(pulsar, of_txn) == {"aborted": True}
    counted = await topic_stats(pulsar, topic)
    assert [counted[f"{name}TxnCount"] for name in ("ongoing", "aborted", "committed")] == [0, 1, 0]


@row(83, 123)
async def test_the_first_message_of_a_transaction_makes_the_buffer_of_its_topic_ready(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"plain")
    stats = f"/transactionBufferStats/{of_topic(topic)}"
    found = await eventually(lambda: ask(pulsar, stats), lambda found: found["state"] != "Initializing")
    observed(pulsar, 83, "state of the buffer of a topic without transactions", found["state"])
    txn = await client.begin_transaction()
    await producer.send(b"first", txn=txn)
    assert (await ask(pulsar, stats))["state"] == "Ready"
    await txn.abort()


@row(123)
async def test_the_log_of_snapshots_of_a_topic(pulsar: Target, client: AsyncClient, topic: str, observed: Observed) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    path = f"/transactionBufferInternalStats/{of_topic(topic)}?metadata=true"
    seen = await status_of(pulsar, path)
    observed(pulsar, 123, "HTTP status of the internal stats of a transaction buffer", seen)
    if seen == "200":
        found = await ask(pulsar, path)
        assert found["snapshotType"] == "Single"
        assert "managedLedgerInternalStats" in found["singleSnapshotSystemTopicInternalStats"]


@row(123)
@pytest.mark.parametrize("path", ["/transactionBufferStats/{}", "/transactionInBufferStats/{}/0/0", "/pendingAckStats/{}/s"])
async def test_a_topic_that_there_is_not_is_not_found(pulsar: Target, topic: str, path: str) -> None:
    assert await status_of(pulsar, path.format(of_topic(topic))) == "404"


# ---- subscriptions


@row(123)
async def test_pending_acks_of_a_subscription_are_shown(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic, batching=False)
    consumer = await client.subscribe(topic, "s")
    for number in range(3):
        await producer.send(b"%d" % number)
    one, _, three = await received(consumer, 3)
    stats = f"/pendingAckStats/{of_topic(topic)}/s?lowWaterMarks=true"
    assert (await ask(pulsar, stats))["state"] == "None"
    txn = await client.begin_transaction()
    await consumer.acknowledge(one, txn=txn)
    found = await ask(pulsar, stats)
    assert (found["state"], found["ongoingTxnSize"]) == ("Ready", 1)
    log = (await ask(pulsar, f"/pendingAckInternalStats/{of_topic(topic)}/s"))["pendingAckLogStats"]
    assert (
        log["managedLedgerName"] == f"{of_topic(topic).replace('default/', 'default/persistent/')}-s__transaction_pending_ack"
    )
    assert log["managedLedgerInternalStats"]["numberOfEntries"] == 1
    assert await ask(pulsar, f"/transactionInPendingAckStats/{of_topic(topic)}/s/{bits(txn)}") == {}
    await txn.commit()
    rest = await client.begin_transaction()
    await consumer.acknowledge_cumulative(three, txn=rest)
    found = await ask(pulsar, f"/transactionInPendingAckStats/{of_topic(topic)}/s/{bits(rest)}")
    assert found == {"cumulativeAckPosition": place(three.message_id)}
    name = "open transactions that a subscription counts beside one with a cumulative acknowledgement"
    observed(pulsar, 123, name, str((await ask(pulsar, stats))["ongoingTxnSize"]))
    await rest.abort()


@row(123)
async def test_a_position_is_pending_or_settled_or_neither(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    single = await client.create_producer(topic, batching=False)
    batches = await client.create_producer(topic, batching_max_messages=3, batching_max_delay=5)
    consumer = await client.subscribe(topic, "s")
    await single.send(b"single")
    tickets = [batches.send_nowait(b"batched %d" % number) for number in range(3)]
    await asyncio.gather(*tickets)
    alone, *batch = await received(consumer, 4)

    async def state(message_id: MessageId, query: str = "") -> str:
        at = f"{message_id.ledger_id}/{message_id.entry_id}{query}"
        return str((await ask(pulsar, f"/positionStatsInPendingAck/{of_topic(topic)}/s/{at}"))["state"])

    at = batch[0].message_id
    txn = await client.begin_transaction()
    await consumer.acknowledge(alone, txn=txn)
    assert [await state(alone.message_id), await state(at, "?batchIndex=1")] == ["PendingAck", "NotInPendingAck"]
    await consumer.acknowledge(batch[1], txn=txn)
    assert [await state(alone.message_id), await state(at, "?batchIndex=1")] == ["PendingAck"] * 2
    assert await state(at, "?batchIndex=0") == "NotInPendingAck"
    await txn.commit()
    assert await eventually(lambda: state(alone.message_id), "MarkDelete".__eq__) == "MarkDelete"
    assert await state(at, "?batchIndex=0") == "NotInPendingAck"
    name = "state of an index that was committed, in a batch that is not done"
    observed(pulsar, 123, name, await state(at, "?batchIndex=1"))


@row(123)
async def test_a_subscription_that_there_is_not(pulsar: Target, client: AsyncClient, topic: str, observed: Observed) -> None:
    await client.create_producer(topic)
    seen = await status_of(pulsar, f"/pendingAckStats/{of_topic(topic)}/never")
    observed(pulsar, 123, "HTTP status of the pending acknowledgements of a subscription that there is not", seen)


# ---- peeking


async def peeked(pulsar: Target, topic: str, number: int) -> tuple[bytes, dict[str, str]] | None:
    """The entry at this place after what subscription "s" acknowledged, with what is said of its transaction."""
    url = f"{pulsar.admin_url}{topic_path(topic)}/subscription/s/position/{number}"

    def answer() -> tuple[bytes, dict[str, str]] | None:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                said = {name.lower().removeprefix("x-pulsar-"): value for name, value in response.headers.items()}
                return response.read(), said
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
                return None

    return await asyncio.to_thread(answer)


@row(123)
async def test_peeking_shows_what_is_aborted_and_what_is_open(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await put(pulsar, f"{topic_path(topic)}/subscription/s")
    committed, aborted, is_open = [await client.begin_transaction() for _ in range(3)]
    await producer.send(b"plain", key="k", properties={"a": "b"})
    await producer.send(b"committed", txn=committed)
    await producer.send(b"aborted", txn=aborted)
    await committed.commit()
    await aborted.abort()
    last = await producer.send(b"open", txn=is_open)
    found = [await peeked(pulsar, topic, number) for number in range(1, 8)]
    shown = {data: said for data, said in filter(None, found) if data}
    assert {data: (said.get("txn-aborted"), said["txn-uncommitted"]) for data, said in shown.items()} == {
        b"plain": (None, "false"),
        b"committed": ("false", "false"),
        b"aborted": ("true", "false"),
        b"open": ("false", "true"),
    }
    assert shown[b"plain"]["partition-key"] == "k"
    assert shown[b"plain"]["property"] == '{"a":"b"}'
    assert shown[b"open"]["message-id"] == place(last)
    assert [each is None for each in found] == [False] * 6 + [True]
    await is_open.abort()
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    assert await data_of(consumer, 2) == [b"plain", b"committed"]
