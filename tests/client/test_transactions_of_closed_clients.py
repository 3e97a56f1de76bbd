"""What becomes of the open transactions of a client that is closed: they are aborted, in a bounded time, with one log line."""

import asyncio
import gc
import logging

import pytest
from fake_broker import SILENCE, FakeRuntime, fake_client
from fake_coordinators import ends, silence

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AlreadyClosed, AsyncClient, Client, ConsumerType, TransactionState
from pulsar_txn.client.txn import transactions
from pulsar_txn.client.txn.transactions import CLOSED_TOGETHER
from pulsar_txn.wire.ids import TxnAction, TxnId


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_closing_the_client_aborts_its_open_transactions_with_one_log_line(broker, caplog):
    async with fake_client(broker) as client:
        opened = [await client.begin_transaction() for _ in range(3)]
        lazily = await client.begin_transaction(eager=False)
    assert {txn.state for txn in [*opened, lazily]} == {TransactionState.ABORTED}
    assert ends(broker) == [TxnAction.ABORT] * 3
    assert len(lines(caplog)) == 1
    assert "3 open transactions, which were aborted" in lines(caplog)[0]


async def test_a_client_that_an_exception_closes_aborts_its_open_transactions(broker):
    with pytest.raises(LookupError):
        async with fake_client(broker) as client:
            txn = await client.begin_transaction()
            raise LookupError
    assert txn.state is TransactionState.ABORTED
    assert ends(broker) == [TxnAction.ABORT]


async def test_readers_go_on_after_a_client_with_an_open_transaction_was_closed():
    async with Standalone(None) as server, AsyncClient(server.service_url) as reading:
        consumer = await reading.subscribe("t", "s")
        client = AsyncClient(server.service_url)
        producer = await client.create_producer("t")
        txn = await client.begin_transaction(timeout=600)
        await producer.send(b"never seen", txn=txn)
        await (await reading.create_producer("t")).send(b"waits for it")
        await client.close()
        assert (await consumer.receive(timeout=20)).data == b"waits for it"


@pytest.mark.parametrize("gone", ["silent", "away"])
async def test_closing_ends_also_when_the_broker_is_gone(broker, gone, caplog):
    client = fake_client(broker)
    txns = [await client.begin_transaction() for _ in range(50)]
    if gone == "silent":
        broker.on["endTxn"] = silence
    else:
        broker.on["connect"] = silence
        for pipe in list(broker.pipes):
            pipe.cut()
    async with asyncio.timeout(20):  # not the 50 transactions one after the other, and not their timeout
        await client.close()
    assert not any(txn.state is TransactionState.OPEN for txn in txns)
    said = [line for line in lines(caplog) if "open transactions" in line]
    assert len(said) == 1
    assert "50 of them could not be aborted" in said[0]


async def test_a_block_that_is_left_after_its_client_was_closed_says_that_it_was_not_committed(broker):
    client, entered, leave = fake_client(broker), asyncio.Event(), asyncio.Event()

    async def unit():
        async with client.transaction(eager=True):
            entered.set()
            await leave.wait()

    task = asyncio.create_task(unit())
    await entered.wait()
    await client.close()
    leave.set()
    with pytest.raises(AlreadyClosed, match="was aborted"):
        await task
    assert ends(broker) == [TxnAction.ABORT]


async def test_closing_lets_a_commit_that_is_under_way_finish(broker, caplog):
    client = fake_client(broker)
    txn = await client.begin_transaction()
    broker.on["endTxn"] = lambda pipe, body: (
        asyncio.get_running_loop().call_later(0.2, lambda: pipe.send(broker._endTxn(pipe, body))) and SILENCE
    )
    commit = asyncio.create_task(txn.commit())
    await broker.until(lambda: broker.all("endTxn"))
    await client.close()
    await commit
    assert txn.state is TransactionState.COMMITTED
    assert lines(caplog) == []


async def test_closing_leaves_a_transaction_alone_that_was_begun_elsewhere(broker, caplog):
    async with fake_client(broker) as client:
        txn = client.attach_transaction(TxnId(0, 7))
    assert txn.state is TransactionState.OPEN
    assert ends(broker) == []
    assert lines(caplog) == []


def test_closing_the_blocking_client_aborts_its_open_transactions(broker, caplog):
    with Client("pulsar://broker:6650", runtime=FakeRuntime({"broker:6650": broker})) as client:
        txns = [client.begin_transaction() for _ in range(3)]
    assert {txn.state for txn in txns} == {TransactionState.ABORTED}
    assert ends(broker) == [TxnAction.ABORT] * 3
    assert [line for line in lines(caplog) if "open transactions" in line] == lines(caplog)
    assert len(lines(caplog)) == 1


async def test_very_many_open_transactions_are_ended_so_many_at_a_time(broker, caplog, monkeypatch):
    """A hundred thousand that began to end together held the loop for longer than closing may take."""
    monkeypatch.setattr(transactions, "CLOSE_SECONDS", 60.0)
    client = fake_client(broker)
    txns = [await client.begin_transaction() for _ in range(3 * CLOSED_TOGETHER)]
    most = 0

    def answer(pipe, body):
        nonlocal most
        most = max(most, len(under_way := [txn for txn in txns if txn.state is TransactionState.ABORTING]))
        asyncio.get_running_loop().call_soon(lambda: pipe.send(broker._endTxn(pipe, body)))
        assert under_way
        return SILENCE

    broker.on["endTxn"] = answer
    await client.close()
    assert {txn.state for txn in txns} == {TransactionState.ABORTED}
    assert 1 < most <= CLOSED_TOGETHER
    assert len(lines(caplog)) == 1


async def test_transactions_for_which_a_closing_client_has_no_time_are_left_to_their_timeouts(broker, caplog, monkeypatch):
    monkeypatch.setattr(transactions, "CLOSE_SECONDS", 0.0)
    client = fake_client(broker)
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
    broker.deliver(1, 0, b"x")
    txns = [await client.begin_transaction() for _ in range(5)]
    await consumer.receive(1, txn=txns[0])
    attached = client.attach_transaction(TxnId(0, 7))
    await client.close()
    assert ends(broker) == []
    assert {txn.state for txn in txns} == {TransactionState.TIMED_OUT}
    assert attached.state is TransactionState.OPEN
    with pytest.raises(AlreadyClosed, match="was aborted"):
        await txns[0].commit()
    (said,) = lines(caplog)
    assert "5 open transactions" in said
    assert "5 of them could not be aborted" in said


async def test_a_begin_that_was_given_up_before_its_client_is_closed_leaves_no_error_behind(broker, caplog):
    broker.on["newTxn"] = silence
    left = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: left.append(context["message"]))
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")

        async def unit():
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)

        given_up = asyncio.create_task(unit())
        await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.wait([given_up])
    gc.collect()
    await asyncio.sleep(0)
    assert left == []
    assert lines(caplog)[0].endswith("aborts it at its timeout: no answer in time")
