"""Part of a unit is never committed: a blocking send that is refused on the loop's thread dooms its transaction."""

import contextlib

import attrs
import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime
from fake_coordinators import ends
from insides import partitions_of
from sync_sides import inner, loop_of

from pulsar_txn import compat
from pulsar_txn.client import TransactionState, errors, sync
from pulsar_txn.client.send.producer import encoded_sender_of
from pulsar_txn.wire.ids import TxnAction
from pulsar_txn.wire.topics import ASSIGN_TOPIC

TOPIC = "persistent://public/default/t"


def new_broker():
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    return broker


@contextlib.contextmanager
def client_of(broker, **options):
    options = {"operation_timeout": 20, "runtime": FakeRuntime({broker.address: broker})} | options
    with sync.Client(f"pulsar://{broker.address}", **options) as client:
        yield client


WAYS = {"payload": {}, "arguments": {"key": "k"}}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_send_nowait_in_a_transaction_to_a_topic_that_keeps_nothing_raises_at_once(options):
    broker = new_broker()
    with client_of(broker) as client:
        producer = client.create_producer("non-persistent://public/default/t")
        with pytest.raises(errors.InvalidConfiguration, match="keeps nothing"), client.transaction(eager=True) as txn:
            producer.send_nowait(b"x", txn=txn, **options)
        assert txn.state is TransactionState.ABORTED
    assert ends(broker) == [TxnAction.ABORT]


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_send_nowait_in_a_transaction_of_another_client_raises_at_once(options):
    broker, other = new_broker(), new_broker()
    with client_of(broker) as client, client_of(other) as elsewhere:
        producer = elsewhere.create_producer("t")
        with pytest.raises(errors.TransactionStateError, match="another client"), client.transaction(eager=True) as txn:
            producer.send_nowait(b"x", txn=txn, **options)
    assert ends(broker) == [TxnAction.ABORT]
    assert other.all("send") == []


def left(client, producer, expected, **options):
    """A block whose one send is refused on the loop's thread, although the caller's was told that there is room."""
    producer._sending._encoded_sender = attrs.evolve(encoded_sender_of(inner(producer)), takes=lambda *_: True)
    with pytest.raises(errors.TransactionOperationFailed) as raised, client.transaction(eager=True) as txn:
        ticket = producer.send_nowait(b"x", txn=txn, **options)
    assert isinstance(ticket.exception(), expected)
    assert [type(each) for each in raised.value.failures] == [type(ticket.exception())]
    assert txn.doomed
    assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("bound", ["max_pending_messages", "memory_limit"])
def test_send_nowait_that_finds_no_room_on_the_other_thread_dooms_its_transaction(bound, options):
    broker = new_broker()
    broker.on["send"] = lambda _pipe, _body: SILENCE
    of_client = {"memory_limit": 1} if bound == "memory_limit" else {}
    of_producer = {"max_pending_messages": 1} if bound == "max_pending_messages" else {}
    with client_of(broker, **of_client) as client:
        producer = client.create_producer("t", send_timeout=0.2, **of_producer)
        producer.send_nowait(b"first")
        left(client, producer, errors.MemoryBufferIsFull if of_client else errors.ProducerQueueFull, **options)
    assert ends(broker) == [TxnAction.ABORT]


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_send_nowait_to_a_producer_that_is_closed_on_the_other_thread_dooms_its_transaction(options):
    broker = new_broker()
    with client_of(broker) as client:
        producer = client.create_producer("t")
        producer.close()
        left(client, producer, errors.AlreadyClosed, **options)
    assert ends(broker) == [TxnAction.ABORT]


def test_send_nowait_to_a_partition_that_does_not_exist_dooms_its_transaction():
    broker = new_broker()
    broker.partitions[TOPIC] = 2
    with client_of(broker) as client:
        left(client, client.create_producer("t"), errors.InvalidConfiguration, partition=7)
    assert ends(broker) == [TxnAction.ABORT]


def test_send_nowait_of_a_fenced_producer_counts_as_one_failure():
    broker = new_broker()
    with client_of(broker) as client:
        producer = client.create_producer("t")
        partition = partitions_of(inner(producer)).only
        loop_of(client).call(lambda: partition._give_up(errors.ProducerFenced("another one")))
        left(client, producer, errors.ProducerFenced)


def test_a_refusal_that_send_raises_itself_dooms_nothing_as_with_asyncio():
    broker = new_broker()
    broker.partitions[TOPIC] = 2
    with client_of(broker) as client:
        producer = client.create_producer("t")
        with client.transaction() as txn:
            with pytest.raises(errors.InvalidConfiguration):
                producer.send(b"x", txn=txn, partition=7)
            producer.send(b"x", txn=txn)
    assert ends(broker) == [TxnAction.COMMIT]


@contextlib.contextmanager
def compat_client(broker, monkeypatch):
    monkeypatch.setattr(
        compat.Client,
        "_open",
        staticmethod(lambda options: sync.Client(**options, runtime=FakeRuntime({broker.address: broker}))),
    )
    client = compat.Client(f"pulsar://{broker.address}", operation_timeout_seconds=20)
    try:
        yield client
    finally:
        client.close()


def test_send_async_of_compat_that_is_refused_dooms_its_transaction(monkeypatch):
    broker, told = new_broker(), []
    with compat_client(broker, monkeypatch) as client:
        producer = client.create_producer("t")
        producer.close()
        with pytest.raises(errors.TransactionOperationFailed), client.transaction(eager=True) as txn:
            producer.send_async(b"x", lambda result, message_id: told.append((result, message_id)), txn=txn)
    assert told == [(compat.Result.AlreadyClosed, None)]
    assert ends(broker) == [TxnAction.ABORT]


def test_send_async_of_compat_in_a_transaction_that_cannot_take_part_raises_at_once(monkeypatch):
    broker = new_broker()
    with compat_client(broker, monkeypatch) as client:
        producer = client.create_producer("non-persistent://public/default/t")
        with pytest.raises(compat.InvalidConfiguration, match="keeps nothing"), client.transaction(eager=True) as txn:
            producer.send_async(b"x", None, txn=txn)
    assert ends(broker) == [TxnAction.ABORT]
