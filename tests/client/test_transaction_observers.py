"""What a client says of its transactions: to observers, in its statistics, in the log."""

import asyncio
import logging

import pytest
from fake_broker import fake_client

from pulsar_txn.client import TransactionState
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    MessageTooLarge,
    ProducerFenced,
    TransactionConflict,
    TransactionOperationFailed,
    TransactionStateError,
)
from pulsar_txn.client.txn.transaction import unit_of
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick


class Recorder:
    def __init__(self):
        self.told = []

    def txn_opened(self, txn):
        self.told.append(("opened", txn.state))

    def txn_registered(self, txn, targets):
        self.told.append(("registered", *targets))

    def txn_doomed(self, txn, error):
        self.told.append(("doomed", type(error)))

    def txn_ending(self, txn, action):
        self.told.append(("ending", action.name))

    def txn_ended(self, txn):
        self.told.append(("ended", txn.state))


class Broken:
    def txn_opened(self, txn):
        raise ZeroDivisionError("an observer of a user")


async def test_observers_are_told_in_order_and_a_broken_one_disturbs_nobody(broker, caplog):
    recorder, partial = Recorder(), Broken()
    async with fake_client(broker) as client:
        client.add_observer(partial)
        client.add_observer(recorder)
        client.add_observer(recorder)
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            await txn.send(producer, b"x")
        client.remove_observer(recorder)
        async with client.transaction():
            pass
    assert recorder.told == [
        ("opened", TransactionState.OPEN),
        ("registered", ("persistent://public/default/t", None)),
        ("ending", "COMMIT"),
        ("ended", TransactionState.COMMITTED),
    ]
    assert "an observer of a user" in caplog.text


async def test_observers_are_told_of_the_first_failure_and_of_the_abort(broker):
    recorder = Recorder()
    error = int(ServerError.InvalidTxnStatus)
    broker.on["addPartitionToTxn"] = lambda _pipe, body: command(
        "addPartitionToTxnResponse", request_id=body.request_id, error=error, message="no"
    )
    async with fake_client(broker) as client:
        client.add_observer(recorder)
        producer = await client.create_producer("t")
        with pytest.raises(TransactionOperationFailed):
            async with client.transaction() as txn:
                await asyncio.wait([producer.send_nowait(b"x", txn=txn), producer.send_nowait(b"y", txn=txn)])
    names = [told[0] for told in recorder.told]
    assert names == ["opened", "doomed", "ending", "ended"]
    assert recorder.told[-1] == ("ended", TransactionState.ABORTED)


async def test_the_statistics_of_a_transaction_say_where_its_time_went(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        consumer = await client.subscribe("in", "s")
        broker.deliver(1, 0, b"x")
        message = await consumer.receive(1)
        broker.on["endTxn"] = lambda _pipe, _body: None
        txn = await client.begin_transaction(name="mine")
        held = txn.stats()
        assert (held.state, held.name, held.coordinator_id, held.retries) == (TransactionState.OPEN, "mine", txn.id.most, 0)
        assert held.coordinator_endpoint == "broker:6650"
        assert held.opened_at <= asyncio.get_running_loop().time()
        broker.on["ack"] = lambda _pipe, _body: None
        acknowledging = asyncio.create_task(txn.acknowledge(consumer, message))
        await txn.send(producer, b"x")
        await asyncio.sleep(0.02)
        held = txn.stats()
        assert (held.sends_in_flight, held.acks_in_flight, held.operations_in_flight) == (0, 1, 1)
        assert held.phases.begin > 0
        assert held.phases.register > 0
        assert held.phases.send >= 15
        assert held.phases.wait_ops == held.phases.end == 0
        acknowledging.cancel()
        await asyncio.wait([acknowledging])


async def test_a_request_sent_again_is_counted(broker):
    seen = []

    def moved(pipe, body):
        seen.append(body)
        if len(seen) == 1:
            pipe.cut()
            return None
        return broker._endTxn(pipe, body)

    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        broker.on["endTxn"] = moved
        await txn.commit()
        assert txn.stats().retries == 1
        assert txn.stats().phases.end > 0
        assert txn.deadline is not None


async def test_the_statistics_of_a_client(broker):
    async with fake_client(broker) as client:
        assert client.stats().connections == ()
        await client.create_producer("t")
        await client.subscribe("t", "s")
        await client.create_reader("t")
        for end in ("commit", "commit", "abort"):
            await getattr(await client.begin_transaction(), end)()
        txn = await client.begin_transaction()
        stats = client.stats()
        assert (stats.connections, stats.producers, stats.consumers, stats.coordinators) == (("broker:6650",), 1, 2, 1)
        counts = stats.transactions
        assert (counts.begun, counts.committed, counts.aborted, counts.unknown, counts.doomed) == (4, 2, 1, 0, 0)
        assert counts.open == {TransactionState.OPEN: 1}
        await txn.abort()
    with pytest.raises(AttributeError):
        stats.producers = 3


async def test_the_log_names_transaction_and_state(broker, caplog):
    async with fake_client(broker) as client:
        with caplog.at_level(logging.DEBUG, logger="pulsar_txn.client.txn"):
            async with client.transaction(eager=True) as txn:
                pass
    records = [record for record in caplog.records if record.name == "pulsar_txn.client.txn" and hasattr(record, "state")]
    assert [(record.txn_id, record.state) for record in records] == [(str(txn.id), "OPEN"), (str(txn.id), "COMMITTED")]


async def test_a_dry_run_in_the_explicit_form_ends_with_an_abort(broker):
    async with fake_client(broker) as client:
        txn = await client.begin_transaction(force_abort=True)
        await txn.commit()
        assert txn.state is TransactionState.ABORTED
    assert [body.txn_action for body in broker.all("endTxn")] == [1]


# --- what there is not ----------------------------------------------------------------------------------------------


async def test_a_savepoint_is_refused_and_a_nested_transaction_is_independent(broker):
    async with fake_client(broker) as client:
        async with client.transaction(eager=True) as outer:
            with pytest.raises(TransactionStateError, match="Pulsar has no savepoints"):
                outer.savepoint()
            async with client.transaction(eager=True) as inner:
                inner.rollback()
            assert inner.id != outer.id
        assert (inner.state, outer.state) == (TransactionState.ABORTED, TransactionState.COMMITTED)


# --- running a unit again -------------------------------------------------------------------------------------------


async def test_run_transaction_pauses_as_told(broker):
    pauses, attempts = [], []

    def pause(attempt):
        pauses.append(attempt)
        return 0.0

    async def work(txn):
        attempts.append(txn)
        if len(attempts) < 3:
            raise TransactionConflict("taken")
        return "done"

    async with fake_client(broker) as client:
        assert await client.run_transaction(work, backoff=pause) == "done"
    assert pauses == [1, 2]


@pytest.mark.parametrize("cause", [ProducerFenced("a successor writes"), MessageTooLarge("6 MiB")])
async def test_a_failed_operation_that_cannot_be_mended_is_not_tried_again(broker, cause):
    attempts = []

    async def work(txn):
        attempts.append(txn)
        unit_of(txn).enlist_send(core_of(client), "t", 1, 1, Flushed())
        unit_of(txn).send_finished("t", 1, cause)

    class Flushed:
        def flush_nowait(self):
            pass

        def count_sends(self, txn):
            pass

    async with fake_client(broker) as client:
        with pytest.raises(TransactionOperationFailed) as raised:
            await client.run_transaction(work)
    assert raised.value.__cause__ is cause
    assert len(attempts) == 1


@pytest.mark.parametrize("declared", [False, True])
async def test_an_unknown_outcome_is_run_again_only_when_that_is_declared_harmless(broker, declared):
    attempts = []

    def forgotten(pipe, body):
        if len(attempts) > 1:
            return broker._endTxn(pipe, body)
        if not pipe.is_open:
            return None
        if broker.all("endTxn")[0] is body:
            pipe.cut()
            return None
        error = int(ServerError.TransactionNotFound)
        return command("endTxnResponse", request_id=body.request_id, error=error, message="forgotten")

    async def work(txn):
        attempts.append(txn)
        await unit_of(txn).open()

    broker.on["endTxn"] = forgotten
    async with fake_client(broker) as client:
        if declared:
            await client.run_transaction(work, retry_unknown=True, backoff=lambda _attempt: 0)
        else:
            with pytest.raises(CommitOutcomeUnknown):
                await client.run_transaction(work)
    assert len(attempts) == (2 if declared else 1)
