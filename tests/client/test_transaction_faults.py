"""Ends of transactions that went wrong once: each test is named after a fault that was found by reading, and mended."""

import asyncio
import time
from datetime import timedelta

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import TransactionState
from pulsar_txn.client.errors import (
    AlreadyClosed,
    CommitOutcomeUnknown,
    ConnectionLost,
    CoordinatorUnavailable,
    InvalidConfiguration,
    TransactionAborted,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.options import AutoClusterFailover
from pulsar_txn.client.txn.transaction import unit_of
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

pytestmark = pytest.mark.quick


def silent(_pipe, _body):
    return SILENCE


# --- what is known of a commit --------------------------------------------------------------------------------------


async def test_a_commit_whose_client_is_closed_before_the_answer_is_unknown(broker):
    """It was taken for one that had never left."""
    broker.on["endTxn"] = silent
    client = fake_client(broker)
    txn = await client.begin_transaction()
    committing = asyncio.create_task(txn.commit())
    await broker.until(lambda: broker.all("endTxn"))
    await client.close()
    with pytest.raises(CommitOutcomeUnknown):
        await committing
    assert txn.state is TransactionState.UNKNOWN


async def test_a_commit_whose_session_is_fenced_at_the_reconnect_is_unknown(broker):
    """It was taken for aborted, although it may have been carried out before the connection broke."""

    def connect(_pipe, _body):
        flags = {"keeps_transaction_outcomes": True, "supports_transactional_ids": True}
        return command("connected", server_version="Fake", protocol_version=21, max_message_size=5 << 20, feature_flags=flags)

    def introduce(_pipe, body):
        refused = {"error": 22, "message": "epoch 7 was not given by this cluster"} if broker.all("endTxn") else {}
        return command("tcClientConnectResponse", request_id=body.request_id, tc_id=0, transactional_epoch=1, **refused)

    broker.on |= {"connect": connect, "tcClientConnectRequest": introduce}
    broker.on["endTxn"] = lambda pipe, _body: pipe.cut()
    async with fake_client(broker, transactional_id="x") as client:
        txn = await client.begin_transaction()
        with pytest.raises(CommitOutcomeUnknown):
            await txn.commit()
        assert txn.state is TransactionState.UNKNOWN


@pytest.mark.parametrize("retry_unknown", [False, True])
async def test_a_unit_whose_outcome_nobody_can_tell_is_unknown_and_not_retriable(broker, retry_unknown):
    """The error of asking came out instead, which said that the call may be repeated."""
    runs = []

    async def work(txn):
        runs.append(txn)
        await unit_of(txn).open()

    broker.on["endTxn"] = lambda pipe, body: broker._endTxn(pipe, body) if len(runs) > 1 else SILENCE
    async with fake_client(broker, operation_timeout=0.5) as client:
        if retry_unknown:
            await client.run_transaction(work, retry_unknown=True)
        else:
            with pytest.raises(CommitOutcomeUnknown) as raised:
                await client.run_transaction(work)
            assert not raised.value.retriable
            assert any("could not be asked" in note for note in raised.value.__notes__)
    assert len(runs) == 1 + retry_unknown


async def test_resolve_commits_nothing_whose_commit_was_not_sent(broker):
    """It sent END_TXN commit from every state, an open or aborting one included."""
    async with fake_client(broker, operation_timeout=1.0) as client:
        txn = await client.begin_transaction()
        with pytest.raises(TransactionStateError, match="would commit it"):
            await txn.resolve()
        broker.on["endTxn"] = silent
        with pytest.raises(TimeoutError):
            await txn.abort()
        with pytest.raises(TransactionStateError, match="ABORTING"):
            await txn.resolve()
    assert {body.txn_action for body in broker.all("endTxn")} == {1}


async def test_a_coordinator_that_is_never_ready_is_unavailable(broker):
    broker.on["newTxn"] = lambda _pipe, body: command(
        "newTxnResponse", request_id=body.request_id, error=6, message="not ready"
    )
    # The last attempt has time for its answer, also on a busy machine: at least a second is left when it begins.
    async with fake_client(broker, operation_timeout=3.0, initial_backoff=2.0, max_backoff=2.0) as client:
        with pytest.raises(CoordinatorUnavailable, match="not ready"):
            await client.begin_transaction()


# --- time -----------------------------------------------------------------------------------------------------------


async def test_a_program_that_holds_up_the_loop_cannot_send_behind_the_deadline(broker):
    """Only the timer said that the time was over, and a stock broker keeps what comes after the abort."""
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction(timeout=0.2)
        await producer.send(b"1", txn=txn)
        held = producer.send_nowait(b"2", txn=txn)
        time.sleep(0.3)  # noqa: ASYNC251 - this is the fault
        with pytest.raises(TransactionTimedOut):
            await held
        with pytest.raises(TransactionTimedOut):
            producer.send_nowait(b"3", txn=txn)
        with pytest.raises(TransactionTimedOut):
            await txn.commit()
    assert len(broker.all("send")) == 1


async def test_an_operation_without_an_answer_leaves_the_abort_its_time(broker):
    broker.on["send"] = silent

    def later(pipe, body):
        asyncio.get_running_loop().call_later(0.02, pipe.send, broker._endTxn(pipe, body))
        return SILENCE

    broker.on["endTxn"] = later
    async with fake_client(broker, operation_timeout=0.3) as client:
        producer = await client.create_producer("t")
        with pytest.raises(TransactionTimedOut):
            async with client.transaction(commit_timeout=0.3) as txn:
                producer.send_nowait(b"x", txn=txn)
        assert txn.state is TransactionState.ABORTED
        task = asyncio.create_task(_cancelled_with_a_send_under_way(client, producer))
        await broker.until(lambda: len(broker.all("send")) == 2)
        task.cancel()
        await asyncio.wait([task])
    assert [body.txn_action for body in broker.all("endTxn")] == [1, 1]


async def _cancelled_with_a_send_under_way(client, producer):
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0, 0.0004, -1, "soon", timedelta(0)])
async def test_a_time_that_cannot_be_is_refused(broker, timeout):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration, match="timeout"):
            await client.begin_transaction(timeout=timeout)
        txn = await client.begin_transaction(timeout=timedelta(seconds=10))
        with pytest.raises(InvalidConfiguration, match="timeout"):
            await txn.commit(timeout=timeout)
        await txn.commit(timeout=timedelta(seconds=3))


# --- another cluster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [False, True])
async def test_a_transaction_does_not_move_to_another_cluster(sent):
    """Its id went on there, where it is nobody's or somebody else's, and the client said that it was committed."""
    first, second = FakeBroker("a:6650"), FakeBroker("b:6650")
    for each in (first, second):
        each.partitions[ASSIGN_TOPIC] = 1
    first.on |= {"endTxn": silent, "send": silent}
    url = AutoClusterFailover(primary="pulsar://a:6650", secondaries=["pulsar://b:6650"])
    async with fake_client(first, second, url=url, operation_timeout=2) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        if not sent:
            producer.send_nowait(b"x", txn=txn)
            await first.until(lambda: first.all("send"))
        committing = asyncio.create_task(txn.commit())
        await first.until(lambda: not sent or first.all("endTxn"))
        core_of(client)._move("pulsar://b:6650")
        with pytest.raises(CommitOutcomeUnknown if sent else TransactionAborted):
            await committing
        assert not second.all("endTxn")
        assert not second.all("send")
        with pytest.raises((TransactionStateError, ConnectionLost)):
            await txn.resolve()
        async with client.transaction() as other:
            await producer.send(b"y", txn=other)
        assert other.state is TransactionState.COMMITTED
    assert len(second.all("newTxn")) == 1


# --- closing --------------------------------------------------------------------------------------------------------


async def test_what_is_made_while_the_client_closes_is_closed_with_it(broker):
    """It was cut off without a word, and `receive` waited for ever."""
    client = fake_client(broker, operation_timeout=1.0)
    held = []

    def later(pipe, body):
        held.append(lambda: pipe.send(broker._subscribe(pipe, body)))
        return SILENCE

    broker.on["subscribe"] = later
    producer = await client.create_producer("t")
    broker.on["send"] = silent
    producer.send_nowait(b"x")
    making = asyncio.create_task(client.subscribe("t", "s"))
    await broker.until(lambda: held)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.01)
    held[0]()
    with pytest.raises(AlreadyClosed):
        await (await making).receive(timeout=20)
    await closing


async def test_a_connection_that_breaks_while_the_client_closes_is_made_anew(broker):
    """What waited for its receipt failed after the whole timeout, although it could have been sent."""
    broker.on["send"] = silent
    client = fake_client(broker)
    producer = await client.create_producer("t")
    ticket = producer.send_nowait(b"x")
    await broker.until(lambda: broker.all("send"))
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.01)
    del broker.on["send"]
    broker.pipe.cut()
    await closing
    assert ticket.result().ledger_id == 1
