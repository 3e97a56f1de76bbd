"""Stories that a shared server cannot tell: limits, owners, small ledgers, and coordinators that are loaded again.

One server of each kind serves them all: at most ten active transactions on each coordinator, ledgers of fifty entries. The
stock ones ask who connects (tokens; nobody's name is a superuser's).
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias

import jwt
import pytest
import servers
import stock_install
import targets
from admin import TRANSACTIONS, AdminError, buffer_stats, eventually, get_json, post, put, topic_path
from coordinators import begun_at, id_of, metadata, what_came_of
from differences import Observed
from fake_broker import FakeTransaction
from insides import coordinators_of, partitions_of
from our_broker import OurBroker
from rows import row
from stock_pulsar import StockPulsar
from transactions import data_of, eventually_visible, forget_acknowledgements, received, stays_silent, visible

from pulsar_txn.client import AsyncClient, AsyncConsumer, AsyncProducer, AsyncTransaction, InitialPosition, TokenAuthentication
from pulsar_txn.client.errors import TransactionNotFound, TransactionsDisabled
from pulsar_txn.wire.ids import TxnAction, TxnId

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Server: TypeAlias = OurBroker | StockPulsar

KEY = b"k" * 32
LIMIT = 10
ALL = {"maxActiveTransactionsPerCoordinator": str(LIMIT), "managedLedgerMaxEntriesPerLedger": "50"}
OURS = ALL | {"numberOfTransactionCoordinators": "1", "retentionCheckIntervalInSeconds": "1"}
SECRET = f"data:;base64,{base64.b64encode(KEY).decode()}"


def token(name: str) -> str:
    return jwt.encode({"sub": name}, KEY, "HS256")


AUTHENTICATION = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": SECRET,
}
STOCK = (
    ALL
    | AUTHENTICATION
    | {
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "authorizationEnabled": "true",
        "anonymousUserRole": "anonymous",
        "superUserRoles": "admin,anonymous",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('admin')}",
    }
)


def kinds() -> list[Any]:
    """Our broker, and each stock version of this session."""
    chosen = os.environ.get("PULSAR_TXN_STOCK")
    versions = chosen.split(",") if chosen else stock_install.VERSIONS
    return ["ours", *(pytest.param(version, marks=pytest.mark.stock) for version in versions)]


def new_server(kind: str, conf: dict[str, str]) -> Server:
    if kind == "ours":
        return OurBroker(conf=conf)
    if reason := stock_install.missing_tools():
        targets.lacking("pulsar", reason)
    return StockPulsar(kind, conf=conf)


@pytest.fixture(scope="module", params=kinds())
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    with new_server(request.param, OURS if request.param == "ours" else STOCK) as server:
        yield server


@pytest.fixture
async def client(own: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(own.service_url, operation_timeout=30) as client:
        yield client


# ---- a server without transactions


@pytest.fixture(params=kinds())
def without_transactions(request: pytest.FixtureRequest) -> Iterator[Server]:
    with new_server(request.param, {"transactionCoordinatorEnabled": "false"}) as server:
        yield server


@row(121, 123)
async def test_a_server_without_transactions_says_so_and_serves_everything_else(
    without_transactions: Server, topic: str
) -> None:
    async with AsyncClient(without_transactions.service_url) as client:
        producer = await client.create_producer(topic)
        with pytest.raises(TransactionsDisabled, match="transactionCoordinatorEnabled=true"):
            await client.begin_transaction()
        with pytest.raises(AdminError) as refused:
            await get_json(without_transactions, f"{TRANSACTIONS}/coordinators")
        assert refused.value.status == 503
        await producer.send(b"plain")
        assert await visible(client, topic) == [b"plain"]


# ---- limits


@row(97)
async def test_one_transaction_too_many_begins_when_another_one_has_ended(
    own: Server, client: AsyncClient, observed: Observed
) -> None:
    begun = [await client.begin_transaction() for _ in range(LIMIT)]
    async with AsyncClient(own.service_url, operation_timeout=1.5) as impatient:
        seen = await what_came_of(impatient.begin_transaction(), "begun")
        observed(own, 97, "a transaction above the limit of its coordinator", seen)
        await begun.pop().commit()
        begun.append(await client.begin_transaction())
    for txn in begun:
        await txn.abort()


# ---- owners


@pytest.fixture(scope="module")
def asking(own: Server) -> Iterator[Server]:
    """A server that asks who connects. The stock ones do, ours is another one that lets nobody in without a name."""
    if isinstance(own, StockPulsar):
        yield own
        return
    with OurBroker(conf=OURS | AUTHENTICATION | {"superUserRoles": "admin"}) as server:
        yield server


async def named(stack: AsyncExitStack, own: Server, name: str) -> AsyncClient:
    """A client that connects under a name."""
    return await stack.enter_async_context(AsyncClient(own.service_url, authentication=TokenAuthentication(token(name))))


async def end(client: AsyncClient, txn_id: TxnId, _topic: str) -> None:
    await coordinators_of(client).end_txn(txn_id, TxnAction.COMMIT)


async def add_topic(client: AsyncClient, txn_id: TxnId, topic: str) -> None:
    await coordinators_of(client).add_partitions(txn_id, [topic])


async def add_subscription(client: AsyncClient, txn_id: TxnId, topic: str) -> None:
    await coordinators_of(client).add_subscriptions(txn_id, [(topic, "s")])


@row(77)
@pytest.mark.parametrize("what", [end, add_topic, add_subscription])
async def test_only_its_owner_and_superusers_may_use_a_transaction(
    asking: Server, topic: str, what: Callable[[AsyncClient, TxnId, str], Awaitable[None]]
) -> None:
    if isinstance(asking, StockPulsar):  # ours gives every role the right to produce and consume
        for name in ("alice", "mallory"):
            for namespace in ("public/default", "pulsar/system"):  # without the second one nobody finds the coordinators
                await post(asking, f"/admin/v2/namespaces/{namespace}/permissions/{name}", ["produce", "consume"])
    async with AsyncExitStack() as stack:
        alice, mallory, admin = [await named(stack, asking, name) for name in ("alice", "mallory", "admin")]
        await alice.subscribe(topic, "s")
        for somebody in (alice, admin):
            txn_id = await coordinators_of(alice).new_txn(30_000)
            with pytest.raises(TransactionNotFound):
                await what(mallory, txn_id, topic)
            await what(somebody, txn_id, topic)
            if what is not end:
                await end(alice, txn_id, topic)


# ---- the low watermark


async def ended_without_a_trace(client: AsyncClient) -> TxnId:
    """A transaction that has ended, and of which no topic knows anything."""
    async with client.transaction(eager=True) as txn:
        pass
    return id_of(txn)


async def late_send(producer: AsyncProducer[bytes], txn_id: TxnId) -> str:
    """Send in a transaction without the coordinator's knowledge."""
    ticket = partitions_of(producer)[0].add((b"late",), FakeTransaction(txn_id))  # type: ignore[arg-type]  # enough of one
    return await what_came_of(ticket, "stored")


@row(90)
async def test_a_late_send_does_not_hold_readers_back_for_ever(
    own: Server, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"first")
    stale = await ended_without_a_trace(client)
    seen = await late_send(producer, stale)
    observed(own, 90, "a send of an ended transaction to a topic that it never registered", seen)
    await producer.send(b"plain")
    async with client.transaction() as txn:
        await producer.send(b"committed", txn=txn)
    assert await eventually_visible(client, topic, [b"first", b"plain", b"committed"])
    assert (await buffer_stats(own, topic))["ongoingTxnSize"] == 0


@row(91)
async def test_a_topic_that_knows_how_far_its_coordinator_is_refuses_late_sends(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    stale = await ended_without_a_trace(client)
    async with client.transaction() as txn:
        await producer.send(b"committed", txn=txn)
    assert await late_send(producer, stale) == "NotAllowedError"
    await producer.send(b"plain")
    assert await visible(client, topic) == [b"committed", b"plain"]


@row(90, 103)
async def test_a_late_ack_does_not_hold_its_message_for_ever(
    own: Server, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic, batching=False)
    consumer = await client.subscribe(topic, "s")
    for number in range(2):
        await producer.send(b"%d" % number)
    messages = await received(consumer, 2)
    stale = await ended_without_a_trace(client)
    seen = await what_came_of(consumer.acknowledge(messages[0], txn=FakeTransaction(stale)), "pending")  # type: ignore[arg-type]
    observed(own, 90, "an ack of an ended transaction on a subscription that it never registered", seen)
    forget_acknowledgements(consumer, messages)
    async with client.transaction() as txn:
        await consumer.acknowledge(messages[1], txn=txn)
    await consumer.close()
    successor = await client.subscribe(topic, "s")
    assert await data_of(successor, 1) == [b"0"]
    async with client.transaction() as txn:
        await successor.acknowledge((await received_again(successor))[0], txn=txn)


async def received_again(consumer: AsyncConsumer[bytes]) -> list[Any]:
    consumer.redeliver_unacknowledged()
    return await received(consumer, 1)


@pytest.mark.seed_rows("D54")
@row(92)
async def test_how_far_one_coordinator_is_says_nothing_of_another_ones_transactions(own: Server, topic: str) -> None:
    target = targets.Target("ours" if isinstance(own, OurBroker) else "stock", "", own.service_url, own.admin_url)
    servers.grow_coordinators(target)
    async with AsyncClient(own.service_url) as client:
        producer = await client.create_producer(topic, batching=False)
        lasting = await begun_at(client, 1)
        await producer.send(b"lasting", txn=lasting)
        for _ in range(5):
            other = await begun_at(client, 0)
            await producer.send(b"other", txn=other)
            await other.commit()
        assert (await buffer_stats(own, topic))["ongoingTxnSize"] == 1
        await producer.send(b"lasting still", txn=lasting)
        await lasting.commit()
        assert await visible(client, topic) == [b"lasting", *[b"other"] * 5, b"lasting still"]


# ---- small ledgers


@pytest.mark.seed_rows("A17")
@row(72)
async def test_aborted_transactions_are_forgotten_with_the_ledgers_of_their_markers(
    own: Server, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    consumer = await client.subscribe(topic, "s")
    for _ in range(5):
        txn = await client.begin_transaction()
        await producer.send(b"aborted", txn=txn)
        await txn.abort()
    assert (await buffer_stats(own, topic))["totalAbortedTransactions"] == 5

    async def after_some_more() -> int:
        await asyncio.gather(*(producer.send(b"plain") for _ in range(60)))
        for message in await received(consumer, 60):
            last = message
        await consumer.acknowledge_cumulative(last, receipt=True)
        async with client.transaction() as txn:
            await producer.send(b"plain", txn=txn)
        await consumer.acknowledge_cumulative(await consumer.receive(timeout=20), receipt=True)
        return int((await buffer_stats(own, topic))["totalAbortedTransactions"])

    assert await eventually(after_some_more, lambda count: count == 0) == 0


# ---- coordinators that are loaded again


async def reload_coordinators(own: Server) -> None:
    """Ours: kill the broker and start it again. Stock: the coordinators are closed, whoever asks for them loads them again."""
    if isinstance(own, OurBroker):
        await asyncio.to_thread(own.restart, hard=True)
        return
    for each in await get_json(own, f"{TRANSACTIONS}/coordinators"):
        path = topic_path(f"persistent://pulsar/system/transaction_coordinator_assign-partition-{each['id']}")
        assert await eventually(partial(unloaded, own, path), bool)


async def unloaded(own: Server, path: str) -> bool:
    """Whether the server closed it; one that has just ended a transaction may be busy with it."""
    try:
        await put(own, f"{path}/unload")
    except AdminError as error:
        if "doing other operations" not in str(error):
            raise
        return False
    return True


@row(98)
async def test_coordinators_go_with_their_bundles_and_come_back_where_those_are_served(
    own: Server, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    before = await get_json(own, f"{TRANSACTIONS}/coordinators")
    await put(own, "/admin/v2/namespaces/pulsar/system/unload")
    await txn.commit()
    await ask_every_coordinator(own, client)
    assert await eventually_visible(client, topic, [b"x"])
    assert await get_json(own, f"{TRANSACTIONS}/coordinators") == before
    states = await get_json(own, f"{TRANSACTIONS}/coordinatorStats")
    assert {each["state"] for each in states.values()} == {"Ready"}


async def ask_every_coordinator(own: Server, client: AsyncClient) -> None:
    """A coordinator of stock is loaded by the first request that needs it, and not before."""
    for _ in await get_json(own, f"{TRANSACTIONS}/coordinators"):
        await (await client.begin_transaction()).abort()


@row(114)
async def test_ids_go_on_where_they_were(own: Server, client: AsyncClient) -> None:
    last: dict[int, int] = {}
    for _ in range(3):
        for _ in range(6):
            txn = await client.begin_transaction()
            most, least = id_of(txn)
            assert least > last.get(most, -1)
            last[most] = least
            await txn.commit()
        await reload_coordinators(own)


@row(115)
async def test_a_reload_gives_back_the_same_transactions(own: Server, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"in")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    empty, busy, ended = [await client.begin_transaction(timeout=200) for _ in range(3)]
    await producer.send(b"out", txn=busy)
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=busy)
    await producer.send(b"ended", txn=ended)
    await ended.commit()
    before = [await metadata(own, id_of(txn)) for txn in (empty, busy)]
    await reload_coordinators(own)
    await ask_every_coordinator(own, client)
    assert [await metadata(own, id_of(txn)) for txn in (empty, busy)] == before
    await empty.abort()
    await busy.commit()
    assert await eventually_visible(client, topic, [b"in", b"out", b"ended"])
    assert await stays_silent(consumer) is False


@row(111)
async def test_an_abandoned_transaction_is_aborted_although_its_coordinator_was_loaded_anew(
    own: Server, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction(timeout=2)
    await producer.send(b"abandoned", txn=txn)
    await reload_coordinators(own)
    await ask_every_coordinator(own, client)
    await producer.send(b"plain")
    assert await eventually_visible(client, topic, [b"plain"])


async def begin(client: AsyncClient, _txn: AsyncTransaction, _topic: str) -> None:
    await (await client.begin_transaction()).abort()


async def send(client: AsyncClient, txn: AsyncTransaction, topic: str) -> None:
    await (await client.create_producer(topic)).send(b"x", txn=txn)


async def acknowledge(client: AsyncClient, txn: AsyncTransaction, topic: str) -> None:
    consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
    await consumer.acknowledge(await consumer.receive(timeout=60), txn=txn)


async def commit(_client: AsyncClient, txn: AsyncTransaction, _topic: str) -> None:
    await txn.commit()


async def abort(_client: AsyncClient, txn: AsyncTransaction, _topic: str) -> None:
    await txn.abort()


@row(120)
@pytest.mark.parametrize("request_", [begin, send, acknowledge, commit, abort])
async def test_each_request_to_a_coordinator_outlives_its_reload(
    own: Server, client: AsyncClient, topic: str, request_: Callable[[AsyncClient, AsyncTransaction, str], Awaitable[None]]
) -> None:
    await (await client.create_producer(f"{topic}-in")).send(b"x")
    txn = await client.begin_transaction(timeout=200)
    await reload_coordinators(own)
    await request_(client, txn, topic)
    if request_ not in (commit, abort):
        await txn.commit()
