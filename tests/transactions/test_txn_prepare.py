"""Prepared transactions end to end, with the real client, on our broker and beside a stock cluster."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pytest
from asking_servers import AskingServer
from frame_proxy import Fault, FrameProxy
from our_broker import OurBroker
from targets import Target
from transactions import PATIENCE, eventually_visible, visible

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.errors import FeatureUnsupported, InvalidTransactionStatus, TransactionAborted
from pulsar_txn.client.half_messages import CheckQuestion, LocalOutcome
from pulsar_txn.client.transactions import PreparedToken
from pulsar_txn.wire.ids import TxnStatus

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_what_a_killed_process_prepared_is_ended_by_whoever_has_its_token_also_after_a_kill_of_the_server(
    asking: AskingServer, topic: str, commits: bool
) -> None:
    token = await asking.of_the_dead(topic, "prepare")
    await asking.kill_and_start()
    async with asking.client() as client:
        await asyncio.sleep(3)  # longer than its timeout, and than a lease
        assert await visible(client, topic) == []
        txn = await client.attach_prepared(token)
        await (txn.commit() if commits else txn.abort())
        producer = await client.create_producer(topic)
        await producer.send(b"plain")
        assert await eventually_visible(client, topic, [b"half", b"plain"] if commits else [b"plain"])
        again = await client.attach_prepared(token)
        with pytest.raises(InvalidTransactionStatus if commits else TransactionAborted):
            await (again.abort() if commits else again.commit())


async def test_a_successor_finds_what_its_predecessor_prepared(asking: AskingServer, topic: str) -> None:
    async with asking.client(transactional_id=topic) as old, asking.client(transactional_id=topic) as new:
        producer = await old.create_producer(topic)
        txn = await old.begin_transaction(timeout=60)
        await producer.send(b"prepared", txn=txn)
        token = await txn.prepare()
        await (await new.begin_transaction()).abort()
        assert await visible(new, topic) == []
        known = await new.describe_transactional_id(topic)
        assert known is not None
        (left,) = known.transactions
        assert (str(left.txn_id), left.status, left.epoch < known.epoch) == (str(txn.id), TxnStatus.PREPARED, True)
        assert [each.topic.endswith(topic.rpartition("/")[2]) for each in left.participants] == [True]
        await (await new.attach_prepared(token)).commit()
        assert await eventually_visible(new, topic, [b"prepared"])


@pytest.mark.seed_rows("C26")
async def test_a_commit_that_does_not_wait_for_readers_reaches_them(asking: AskingServer, topic: str) -> None:
    async with asking.client() as client:
        producer = await client.create_producer(topic)
        async with client.transaction(visible=False) as txn:
            await producer.send(b"soon", txn=txn)
        assert await eventually_visible(client, topic, [b"soon"])


async def test_prepared_takes_nothing_more_and_has_no_timeout(asking: AskingServer, topic: str) -> None:
    async with asking.client() as client:
        producer = await client.create_producer(topic)
        txn = await client.begin_transaction(timeout=1)
        await producer.send(b"event", txn=txn)
        await txn.prepare()
        stranger = client.attach_transaction(txn.id or "")
        with pytest.raises(Exception, match="PREPARED"):
            await producer.send(b"late", txn=stranger)
        await asyncio.sleep(1.5)
        await txn.commit()
        assert await visible(client, topic) == [b"event"]


async def test_a_group_is_asked_about_a_prepared_transaction_for_ever(asking: AskingServer, topic: str) -> None:
    asked: list[CheckQuestion] = []

    async def check(question: CheckQuestion) -> LocalOutcome:
        asked.append(question)
        return LocalOutcome.COMMIT if len(asked) > 5 else LocalOutcome.UNKNOWN  # more often than `transactionCheckMax`

    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=check, prepare=True, timeout=1)

        async def execute(half: object) -> LocalOutcome:
            return LocalOutcome.UNKNOWN

        await producer.send_in_transaction(b"event", execute=execute)
        assert await eventually_visible(client, topic, [b"event"])
    assert [question.count for question in asked] == [1, 2, 3, 4, 5, 6]
    assert all(question.prepared for question in asked)


@pytest.mark.seed_rows("E04")
async def test_taking_over_ends_what_the_predecessor_left_before_it_returns(asking: AskingServer, topic: str) -> None:
    async with asking.client(transactional_id=topic) as first:
        producer = await first.create_producer(topic)
        left = await first.begin_transaction()
        await producer.send(b"left open", txn=left)
        async with asking.client(transactional_id=topic) as second:
            epoch = await second.take_over()
            assert await second.take_over() == epoch
            plain = await second.create_producer(topic)
            await plain.send(b"plain")
            assert await visible(second, topic) == [b"plain"]
            with pytest.raises(Exception, match=r"newer instance|ABORTED"):
                await left.commit()


@pytest.mark.seed_rows("C37")
@pytest.mark.parametrize("fault", [Fault.RESET_AFTER, Fault.RESET_MEANWHILE])
async def test_a_begin_whose_answer_is_lost_leaves_no_second_open_transaction(fault: Fault, topic: str) -> None:
    with OurBroker() as server:
        async with FrameProxy(server.service_url) as proxy, AsyncClient(proxy.service_url) as client:
            await (await client.begin_transaction()).abort()
            trap = proxy.arm("newTxn", fault)
            txn = await client.begin_transaction()
            assert trap.sprung
            assert str(txn.id) in await open_ones(server)
            assert (await open_ones(server)).count('"OPEN"') == 1
            await txn.abort()
            assert '"OPEN"' not in await open_ones(server)


async def open_ones(server: OurBroker) -> str:
    """What the administration says of the open transactions, as text with quoted states and ids."""
    url = f"{server.admin_url}/admin/v3/transactions/slowTransactions/0"
    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE) as answer:
        found = json.load(answer)
    return "\n".join(f'{each["txnId"]} "{each["status"]}"' for each in found.values())


async def test_stock_pulsar_says_what_it_lacks_and_leaves_the_transaction_as_it_was(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        txn = await client.begin_transaction()
        await producer.send(b"event", txn=txn)
        with pytest.raises(FeatureUnsupported):
            await txn.prepare()
        with pytest.raises(FeatureUnsupported):
            await txn.commit(visible=False)
        await txn.commit()
        assert await visible(client, topic) == [b"event"]
        for work in (
            client.begin_transaction(check_group="orders"),
            client.join_check_group("orders", lambda _question: LocalOutcome.COMMIT),
            client.attach_prepared(PreparedToken(txn.id, b"s")),  # type: ignore[arg-type]  # it has one
        ):
            with pytest.raises(FeatureUnsupported):
                await work
