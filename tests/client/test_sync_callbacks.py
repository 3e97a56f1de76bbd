"""What is the program's own never runs on the thread that speaks with the broker, and cannot stop it."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import attrs
import pytest
from crypto_samples import rsa_pair
from sync_sides import loop_of

from pulsar_txn.broker.base.config import BrokerConfig
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import InitialPosition, TransactionState, errors, sync
from pulsar_txn.client.net.authentication import TokenAuthentication
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.schema.base import StringSchema
from pulsar_txn.client.schema.crypto import PemKeys
from pulsar_txn.client.send.interceptors import ProducerInterceptor
from pulsar_txn.client.sync.callbacks import Callbacks
from pulsar_txn.client.sync.loop_thread import LoopThread

EARLIEST = InitialPosition.EARLIEST
CALLBACKS = "pulsar-txn-callbacks"
QUESTIONS = "pulsar-txn-questions"


@pytest.fixture
def url():
    """Our broker, in memory, on a loop of its own; topics have three partitions."""
    thread = LoopThread()
    config = BrokerConfig(allow_auto_topic_creation_type="partitioned", default_num_partitions=3)
    broker = thread.call(lambda: Standalone(None, config=config, port=0))
    thread.run(broker.__aenter__)
    yield broker.service_url
    thread.run(lambda: broker.__aexit__(None, None, None))
    thread.stop()


class Places:
    """Which threads ran what."""

    def __init__(self):
        self.of = {}

    def note(self, what):
        self.of.setdefault(what, set()).add(threading.current_thread().name)


@pytest.fixture
def places():
    return Places()


def test_what_no_thread_can_be_started_for_at_the_end_of_the_program_is_called_by_who_closes(monkeypatch, caplog):
    def start(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    callbacks, told = Callbacks(), []
    callbacks.settle(told.append, 1)
    callbacks.settle(told.remove, 7)
    callbacks.tell(told.append, 2)
    assert told == [], "the thread that speaks with the broker calls nothing"
    callbacks.close(1)
    assert told == [1, 2]
    assert "a callback of the program failed" in caplog.text


def test_observers_are_told_on_their_thread_in_order_and_of_sync_transactions(url, places):
    told = []

    class Observer:
        def txn_opened(self, txn):
            places.note("observer")
            told.append(("opened", txn))

        def txn_doomed(self, txn, error):
            raise RuntimeError("an observer's own trouble")

        def txn_ended(self, txn):
            told.append(("ended", txn, txn.stats().state))  # asks the client

    observer = Observer()
    with sync.Client(url) as client:
        client.add_observer(observer)
        client.add_observer(observer)
        with client.transaction(eager=True) as txn:
            pass
        client.remove_observer(observer)
        with client.transaction(eager=True):
            pass
    assert places.of == {"observer": {CALLBACKS}}
    assert told == [("opened", txn), ("ended", txn, TransactionState.COMMITTED)]
    assert isinstance(told[0][1], sync.Transaction)


def test_a_slow_observer_holds_up_neither_the_connection_nor_the_program(url):
    entered, leave = threading.Event(), threading.Event()

    class Observer:
        def txn_opened(self, txn):
            entered.set()
            leave.wait(30)

    with sync.Client(url, keep_alive_interval=0.2, authentication=TokenAuthentication(lambda: "asked meanwhile")) as client:
        client.add_observer(Observer())
        consumer = client.subscribe("in", "s")
        with client.transaction(eager=True):
            assert entered.wait(10)
            time.sleep(1.0)  # several keep-alive intervals
            producer = client.create_producer("in")
            producer.send(b"x")
            assert consumer.receive(10).data == b"x"
            assert consumer.is_connected
        leave.set()


def test_too_many_calls_of_a_slow_observer_are_left_out_and_no_callback_is(url, monkeypatch, caplog):
    monkeypatch.setattr(sync.callbacks, "MAX_WAITING", 3)
    leave, opened, receipts = threading.Event(), [], []

    class Observer:
        def txn_opened(self, txn):
            opened.append(txn)
            leave.wait(30)

    with sync.Client(url) as client:
        client.add_observer(Observer())
        producer = client.create_producer("t")
        with client.transaction(eager=True):
            pass
        tickets = [producer.send_nowait(b"%d" % number, partition=0) for number in range(3)]
        for ticket in tickets:
            ticket.add_done_callback(lambda done: receipts.append(done.result()))
        while loop_of(client).callbacks._told.waiting < 3:  # the three, behind the call that does not return
            time.sleep(0.001)
        for _ in range(5):
            with client.transaction(eager=True):
                pass
        with pytest.raises(errors.ProducerQueueFull, match="callbacks"):
            producer.send_nowait(b"more")
        leave.set()
        loop_of(client).callbacks.drain(30)
        with client.transaction(eager=True):
            pass
    assert len(opened) == 2
    assert receipts == [ticket.result() for ticket in tickets]
    assert "calls of observers and interceptors were dropped" in caplog.text


def test_routers_schemas_and_interceptors_of_a_producer_run_in_the_thread_that_sends(url, places):
    finished = []

    class Schema(StringSchema):
        def encode(self, value):
            places.note("encode")
            return super().encode(value)

    class Interceptor(ProducerInterceptor):
        def before_send(self, producer, message):
            places.note("before_send")
            return attrs.evolve(message, value=message.value.upper(), properties={"by": producer.producer_name})

        def on_send_finished(self, producer, message, message_id, error):
            places.note("on_send_finished")
            finished.append((producer, message.value, message_id, error))

    def router(key, payload):
        places.note("router")
        return int(payload == b"B")

    with sync.Client(url) as client:
        producer = client.create_producer("t", schema=Schema(), routing=router, interceptors=[Interceptor()])
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, schema=StringSchema())
        ids = [producer.send("a"), producer.send_nowait("b").result(10)]
        with client.transaction() as txn:
            ids.append(txn.send(producer, "b"))
        got = sorted((message.value, message.properties["by"]) for message in (consumer.receive(10) for _ in range(3)))
    name = threading.current_thread().name
    assert places.of == {
        "encode": {name},
        "before_send": {name},
        "router": {name},
        "on_send_finished": {CALLBACKS},
    }
    assert [each.partition for each in ids] == [0, 1, 1]
    assert [value for value, _ in got] == ["A", "B", "B"]
    assert [(value, message_id, error) for _, value, message_id, error in finished] == [
        ("A", ids[0], None),
        ("B", ids[1], None),
        ("B", ids[2], None),
    ]
    assert all(each is producer for each, *_ in finished)


def test_a_value_that_is_none_of_the_schema_is_refused_before_it_leaves_and_interceptors_hear_of_it(url):
    finished = []

    class Interceptor(ProducerInterceptor):
        def on_send_finished(self, producer, message, message_id, error):
            finished.append((message.value, message_id, type(error)))

    with sync.Client(url) as client:
        producer = client.create_producer("t", schema=StringSchema(), interceptors=[Interceptor()])
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(errors.SchemaMismatch):
                send(3)
        assert producer.stats().messages == 0
    assert finished == [(3, None, errors.SchemaMismatch)] * 2


def test_interceptors_of_a_consumer_are_told_on_the_thread_for_that_with_the_sync_consumer(url, places):
    told = []

    class Interceptor(ConsumerInterceptor):
        def on_receive(self, consumer, message):
            places.note("told")
            told.append(("received", consumer, message.data))

        def on_acknowledge(self, consumer, messages, error):
            told.append(("acknowledged", consumer, [each.data for each in messages]))

        def on_negative_acknowledge(self, consumer, message):
            told.append(("refused", consumer, message.data))

    with sync.Client(url) as client:
        consumer = client.subscribe("t", "s", interceptors=[Interceptor()])
        client.create_producer("t").send(b"x")
        message = consumer.receive(10)
        consumer.negative_acknowledge(message, delay=0)
        message = consumer.receive(10)
        consumer.acknowledge(message)
    assert places.of == {"told": {CALLBACKS}}
    assert [(what, data) for what, _, data in told] == [
        ("received", b"x"),
        ("refused", b"x"),
        ("received", b"x"),
        ("acknowledged", [b"x"]),
    ]
    assert all(each is consumer for _, each, _ in told)


async def token_of_a_coroutine(places):
    places.note("token")
    await asyncio.sleep(0)
    return "abc"


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_credentials_of_the_program_are_had_on_a_thread_of_their_own(url, places, kind):
    def token():
        places.note("token")
        return "abc"

    source = token if kind == "function" else lambda: token_of_a_coroutine(places)
    with sync.Client(url, authentication=TokenAuthentication(source)) as client:
        client.create_producer("t").send(b"x")
    assert places.of == {"token": {QUESTIONS}}


def test_credentials_that_cannot_be_had_are_told_where_the_client_is_used(url):
    def token():
        raise KeyError("no such secret")

    with sync.Client(url, authentication=TokenAuthentication(token)) as client, pytest.raises(errors.AuthenticationError):
        client.create_producer("t")


def test_keys_of_the_program_are_had_off_the_io_thread_and_messages_wait_for_them_in_order(url, places):
    pair, given = rsa_pair(), threading.Event()

    def public(name, metadata):
        places.note("public")
        return pair.public

    def private(name, metadata):
        places.note("private")
        assert given.wait(30)
        return pair.private

    with sync.Client(url, keep_alive_interval=0.2) as client:
        clear = client.create_producer("t")
        secret = client.create_producer("t", encryption_keys=["k"], crypto_keys=PemKeys(public=public))
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, crypto_keys=PemKeys(private=private))
        for number in range(4):
            (secret if number % 2 == 0 else clear).send(b"%d" % number, partition=0)
        assert consumer.receive_many(4, max_wait=0.7) == []
        assert consumer.is_connected
        given.set()
        assert [consumer.receive(10).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        consumer.redeliver_unacknowledged()
        assert [consumer.receive(10).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert places.of["private"] == {QUESTIONS}
    assert places.of["public"] <= {threading.current_thread().name, QUESTIONS}


def test_a_seek_forgets_what_waited_for_a_key(url):
    pair, asked, given = rsa_pair(), threading.Event(), threading.Event()

    def private(name, metadata):
        asked.set()
        assert given.wait(30)
        return pair.private

    with sync.Client(url) as client:
        producer = client.create_producer("t", encryption_keys=["k"], crypto_keys=PemKeys(public=pair.public), batching=False)
        ids = [producer.send(b"%d" % number, partition=0) for number in range(3)]
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, crypto_keys=PemKeys(private=private))
        assert asked.wait(10)
        consumer.seek(ids[1])
        given.set()
        assert consumer.receive(10).data == b"2"
        assert consumer.receive_many(5, max_wait=0.3) == []


def test_keys_that_cannot_be_had_fail_as_without_threads(url):
    def missing(name, metadata):
        raise KeyError(name)

    pair = rsa_pair()
    with sync.Client(url) as client:
        with pytest.raises(errors.CryptoError):
            client.create_producer("t", encryption_keys=["k"], crypto_keys=PemKeys(public=missing))
        secret = client.create_producer("t", encryption_keys=["k"], crypto_keys=PemKeys(public=pair.public))
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, crypto_keys=PemKeys(private=missing))
        secret.send(b"secret", partition=0)
        client.create_producer("t").send(b"clear", partition=0)
        assert consumer.receive(10).data == b"clear"


def test_values_of_a_table_view_are_decoded_off_the_io_thread(url, places):
    class Schema(StringSchema):
        def decode(self, payload):
            places.note("decode")
            return super().decode(payload)

    with sync.Client(url) as client:
        producer = client.create_producer("t")
        producer.send(b"1", key="a")
        view = client.create_table_view("t", schema=Schema())
        assert view.get("a") == "1"
        told, all_told = [], threading.Event()

        def action(key, value):
            places.note("listener")
            told.append((key, value, view.size))  # asks the view
            if value == "2":
                all_told.set()

        view.for_each_and_listen(action)
        producer.send(b"2", key="a")
        assert all_told.wait(10)
        view.for_each(lambda key, value: told.append((key, value)))
    assert places.of == {"decode": {QUESTIONS}, "listener": {CALLBACKS}}
    assert told == [("a", "1", 1), ("a", "2", 1), ("a", "2")]


def test_the_pauses_of_run_transaction_are_asked_for_in_the_callers_thread(url, places):
    tried = []

    def work(txn):
        tried.append(txn)
        if len(tried) < 3:
            raise errors.TransactionConflict("acknowledged elsewhere")

    def backoff(attempt):
        places.note("backoff")
        return 0.001 * attempt

    with sync.Client(url) as client:
        client.run_transaction(work, backoff=backoff)
    assert places.of == {"backoff": {threading.current_thread().name}}
    assert len(tried) == 3


INTERRUPTED = """
import signal, sys, threading
from pulsar_txn.client.sync import Client

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
client = Client(sys.argv[1])
consumer = client.subscribe("in", "s")
producer = client.create_producer("in", max_pending_messages=1)
view = client.create_table_view("in")

def handler(batch):
    if batch:
        print("waiting", flush=True)
        threading.Event().wait()

def blocked():
    call = sys.argv[2]
    if call == "handler":
        producer.send(b"x")
        client.pipeline(consumer, handler)
    print("waiting", flush=True)
    if call == "receive":
        consumer.receive()
    if call == "receive_many":
        consumer.receive_many(10, max_wait=600)
    if call == "iteration":
        for message in consumer:
            pass
    if call == "batch":
        with consumer.transactional_batch(max_wait=600):
            pass
    if call == "transaction":
        with client.transaction():
            consumer.receive()
    if call == "pipeline":
        client.pipeline(consumer, handler)
    if call == "run_transaction":
        client.run_transaction(lambda txn: consumer.receive())

try:
    blocked()
except KeyboardInterrupt:
    print("interrupted", flush=True)
client.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    ["receive", "receive_many", "iteration", "batch", "transaction", "pipeline", "run_transaction", "handler"],
)
def test_an_interrupt_ends_whatever_call_it_meets(url, call):
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, url, call], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.stdout.readline() == "closed\n"
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_it_works_inside_a_running_loop_as_notebooks_have_one(url):
    async def cell():
        with sync.Client(url) as client:
            consumer = client.subscribe("t", "s")
            with client.transaction() as txn:
                client.create_producer("t").send(b"x", txn=txn)
            return consumer.receive(10).data

    assert asyncio.run(cell()) == b"x"


def test_what_is_pickled_says_where_to_make_it_instead(url):
    with sync.Client(url) as client:
        for each in (client, client.create_producer("t"), client.subscribe("t", "s")):
            with pytest.raises(errors.UsageError, match="create the client in the process that uses it"):
                pickle.dumps(each)


def in_a_child(work):
    """What `work()` says in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        except BaseException as error:  # noqa: BLE001 - the parent is told
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    said = os.read(reading, 10_000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return said


def test_a_forked_child_is_refused_everything_but_closing_and_may_make_a_client_of_its_own(url):
    with sync.Client(url) as client:
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")

        def inherited():
            calls = [
                lambda: producer.send(b"x"),
                lambda: producer.send_nowait(b"x"),
                lambda: consumer.receive(1),
                lambda: client.begin_transaction(),
                lambda: client.transaction().__enter__(),
                lambda: client.create_producer("u"),
                lambda: client.pipeline(consumer, print),
                client.stats,
            ]
            said = []
            for call in calls:
                try:
                    call()
                except errors.ForkedClientError:
                    said.append("refused")
            client.close()
            return " ".join(said)

        def of_its_own():
            with sync.Client(url) as own:
                return str(own.create_producer("t").send(b"from the child", partition=0).partition)

        assert in_a_child(inherited).split() == ["refused"] * 8
        assert in_a_child(of_its_own) == "0"
        assert consumer.receive(10).data == b"from the child"
        assert producer.send(b"still here")
