"""What transactions of the compat layer raise is caught by the official names and by ours."""

import contextlib
import time

import pytest
from fake_broker import SILENCE, FakeRuntime
from insides import ours_of

from pulsar_txn import compat
from pulsar_txn.client import CommitOutcomeUnknown, TransactionState, errors, sync
from pulsar_txn.client.client import AsyncClient as AsyncioClient
from pulsar_txn.compat import asyncio as compat_asyncio
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import command


class Clocked(FakeRuntime):
    """Tells the time in the program's thread as well, as the real one does."""

    def monotonic(self):
        return time.monotonic()


def options_of(broker):
    return {
        "service_url": f"pulsar://{broker.address}",
        "runtime": Clocked({broker.address: broker}),
        "operation_timeout": 0.5,
        "initial_backoff": 0.001,
    }


@pytest.fixture
def client(broker, monkeypatch):
    monkeypatch.setattr(compat.Client, "_open", staticmethod(lambda _options: sync.Client(**options_of(broker))))
    client = compat.Client("pulsar://broker:6650")
    yield client
    client.close()


@contextlib.asynccontextmanager
async def asyncio_client(broker):
    client = compat_asyncio.Client("pulsar://broker:6650")
    client._ours = AsyncioClient(**options_of(broker))
    try:
        yield client
    finally:
        await client.close()


def refusing(broker, name, error):
    answer = {"endTxn": "endTxnResponse", "addPartitionToTxn": "addPartitionToTxnResponse"}[name]
    broker.on[name] = lambda _pipe, body: command(
        answer, request_id=body.request_id, error=getattr(pb.ServerError, error), message="no"
    )


BOTH = {
    "TransactionAborted": (errors.TransactionAborted, compat.PulsarException),
    "CommitOutcomeUnknown": (errors.CommitOutcomeUnknown, compat.PulsarException),
    "TransactionOperationFailed": (errors.TransactionOperationFailed, compat.PulsarException),
    "TransactionTimedOut": (errors.TransactionTimedOut, compat.Timeout),
}


def prepare(broker, name):
    if name == "TransactionAborted":
        broker.keeps_outcomes = True
        refusing(broker, "endTxn", "InvalidTxnStatus")
    elif name == "CommitOutcomeUnknown":
        broker.on["endTxn"] = lambda _pipe, _body: SILENCE
    elif name == "TransactionOperationFailed":
        refusing(broker, "addPartitionToTxn", "NotAllowedError")
    else:
        broker.on["send"] = lambda _pipe, _body: SILENCE


@pytest.mark.parametrize("name", BOTH)
def test_what_leaving_a_block_raises_has_the_official_class_too(broker, client, name):
    prepare(broker, name)
    producer = client.create_producer("t")
    with pytest.raises(compat.PulsarException) as raised, client.transaction() as txn:
        producer.send_async(b"x", None, txn=txn)
    assert all(isinstance(raised.value, cls) for cls in BOTH[name]), raised.value


@pytest.mark.parametrize("name", BOTH)
def test_what_commit_raises_has_the_official_class_too(broker, client, name):
    prepare(broker, name)
    producer = client.create_producer("t")
    txn = client.begin_transaction()
    producer.send_async(b"x", None, txn=txn)
    with pytest.raises(compat.PulsarException) as raised:
        txn.commit()
    assert all(isinstance(raised.value, cls) for cls in BOTH[name]), raised.value
    with contextlib.suppress(compat.PulsarException):
        txn.abort()


@pytest.mark.parametrize("name", BOTH)
async def test_what_leaving_an_asyncio_block_raises_has_the_official_class_too(broker, name):
    prepare(broker, name)
    async with asyncio_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(compat.PulsarException) as raised:
            async with client.transaction() as txn:
                ours_of(producer).send_nowait(b"x", txn=txn.native())
        assert all(isinstance(raised.value, cls) for cls in BOTH[name]), raised.value
        begun = await client.begin_transaction()
        ours_of(producer).send_nowait(b"x", txn=begun.native())
        with pytest.raises(compat.PulsarException) as raised:
            await begun.commit()
        assert all(isinstance(raised.value, cls) for cls in BOTH[name]), raised.value


def test_abort_send_and_acknowledge_of_a_transaction_raise_the_official_classes(broker, client):
    producer, consumer = client.create_producer("t"), client.subscribe("t", "s")
    native = ours_of(client).create_producer("u")
    txn = client.begin_transaction()
    txn.abort()
    calls = [
        lambda: txn.send(producer, b"x"),
        lambda: txn.send(native, b"x"),
        lambda: txn.acknowledge(consumer, compat.MessageId(-1, 1, 1, -1)),
        txn.commit,
        txn.savepoint,
    ]
    for call in calls:
        with pytest.raises(compat.PulsarException) as raised:
            call()
        assert isinstance(raised.value, errors.TransactionStateError)
    refusing(broker, "endTxn", "UnknownError")
    other = client.begin_transaction()
    with pytest.raises(compat.UnknownError):
        other.abort()


async def test_abort_send_and_acknowledge_of_an_asyncio_transaction_raise_the_official_classes(broker):
    async with asyncio_client(broker) as client:
        producer, consumer = await client.create_producer("t"), await client.subscribe("t", "s")
        txn = await client.begin_transaction()
        await txn.abort()
        calls = [
            lambda: txn.send(producer, b"x"),
            lambda: txn.acknowledge(consumer, compat.MessageId(-1, 1, 1, -1)),
            txn.commit,
        ]
        for call in calls:
            with pytest.raises(compat.PulsarException) as raised:
                await call()
            assert isinstance(raised.value, errors.TransactionStateError)
        with pytest.raises(compat.PulsarException):
            txn.savepoint()


def test_the_programs_own_exceptions_pass_unchanged_and_rollback_is_quiet(broker, client):
    producer = client.create_producer("t")
    own = [LookupError("mine"), errors.OperationTimeout("ours, raised by the program"), compat.Timeout("theirs")]
    for error in own:
        with pytest.raises(type(error)) as raised, client.transaction() as txn:
            producer.send(b"x", txn=txn)
            raise error
        assert raised.value is error
        assert txn.state is TransactionState.ABORTED
    with client.transaction() as txn:
        producer.send(b"x", txn=txn)
        txn.rollback()
    assert txn.state is TransactionState.ABORTED


async def test_the_programs_own_exceptions_pass_an_asyncio_block_unchanged_and_rollback_is_quiet(broker):
    async with asyncio_client(broker) as client:
        producer = await client.create_producer("t")
        error = errors.OperationTimeout("ours, raised by the program")
        with pytest.raises(errors.OperationTimeout) as raised:
            async with client.transaction() as txn:
                raise error
        assert raised.value is error
        async with client.transaction() as txn:
            await producer.send(b"x", txn=txn)
            txn.rollback()
        assert txn.state is TransactionState.ABORTED
        async with client.transaction(ambient=True) as txn:
            await producer.send(b"x")
        assert txn.state is TransactionState.COMMITTED
        assert txn.stats().partitions[0].confirmed == 1


def test_run_transaction_recognises_errors_with_official_names(broker, client):
    producer, tried = client.create_producer("t"), []

    def work(txn):
        tried.append(txn)
        if len(tried) == 1:
            raise compat.exceptions.translated(errors.TransactionConflict("acknowledged elsewhere"))
        producer.send(b"x", txn=txn)
        return "done"

    assert ours_of(client).run_transaction(work, backoff=lambda _attempt: 0.001) == "done"
    assert len(tried) == 2


def test_an_unknown_outcome_can_be_resolved_through_its_official_name(broker, client):
    broker.keeps_outcomes = True
    broker.on["endTxn"] = lambda _pipe, _body: SILENCE
    with pytest.raises(CommitOutcomeUnknown) as raised, client.transaction(eager=True):
        pass
    del broker.on["endTxn"]
    assert isinstance(raised.value, compat.PulsarException)
    assert raised.value.resolve() is TransactionState.COMMITTED
