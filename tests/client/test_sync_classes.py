"""The blocking client: the same names as the asyncio client, and the caller's thread never in the way of the connection."""

import ast
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sync_sides import inner

from pulsar_txn import client as asyncio_side
from pulsar_txn.client import errors, sync
from pulsar_txn.client.txn.managed import AsyncManagedTransaction

CHECKOUT = Path(__file__).parents[2]
GENERATOR = CHECKOUT / "client" / "generate_sync.py"
INTERNAL = {"inside"}


def names(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["Client", "Coordinator", "Producer", "Consumer", "Reader", "TableView", "Transaction"])
def test_the_twin_has_the_same_names(name):
    original = getattr(asyncio_side, f"Async{name}")
    attributes = {"subscription", "consumer_name", "schema"}  # set in the constructor there
    assert names(original) - INTERNAL == names(getattr(sync, name)) - attributes - INTERNAL


def test_the_twin_has_the_same_attributes(url):
    inside = {"inside"}
    with sync.Client(url) as client:
        twins = [client, client.create_producer("t"), client.subscribe("t", "s"), client.create_reader("t")]
        twins += [client.create_table_view("t"), client.begin_transaction()]
        for twin in twins:
            for name in {name for name in vars(inner(twin)) if not name.startswith("_")} - inside:
                assert getattr(twin, name) is getattr(inner(twin), name)
        assert (twins[2].subscription, twins[2].schema.decode(b"x")) == ("s", b"x")
        twins[-1].abort()


@pytest.mark.parametrize("name", ["Client", "Coordinator", "Producer", "Consumer", "Reader", "TableView", "Transaction"])
def test_the_twin_takes_the_same_arguments(name):
    for method in names(getattr(asyncio_side, name)) - INTERNAL:
        original, twin = (getattr(getattr(side, name), method) for side in (asyncio_side, sync))
        if callable(original):
            assert list(inspect.signature(original).parameters) == list(inspect.signature(twin).parameters), method


def test_the_generated_file_is_current(tmp_path):
    written = tmp_path / "classes.py"
    subprocess.run([sys.executable, str(GENERATOR), str(written)], check=True, capture_output=True)
    committed = CHECKOUT / "client" / "pulsar_txn" / "client" / "sync" / "classes.py"
    assert ast.dump(ast.parse(written.read_text())) == ast.dump(ast.parse(committed.read_text()))


@pytest.mark.seed_rows("D11")
def test_consume_process_produce_in_one_transaction(url):
    with sync.Client(url) as client:
        source, target = client.create_producer("in"), client.create_producer("out")
        consumer, reader = client.subscribe("in", "s"), client.subscribe("out", "r")
        source.send(b"1")
        with client.transaction(timeout=10) as txn:
            message = consumer.receive(timeout=5)
            target.send(message.value + b"!", txn=txn)
            consumer.acknowledge(message, txn=txn)
        assert reader.receive(timeout=5).value == b"1!"
        with client.transaction() as txn:
            target.send(b"never", txn=txn)
            txn.rollback()
        ticket = target.send_nowait(b"2")
        assert ticket.result(5)
        assert reader.receive(timeout=5).value == b"2"


def test_an_exception_in_the_block_aborts_and_is_raised(url):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        with pytest.raises(ZeroDivisionError), client.transaction() as txn:
            producer.send(b"x", txn=txn)
            raise ZeroDivisionError
        assert txn.state is asyncio_side.TransactionState.ABORTED


@pytest.mark.seed_rows("C38")
def test_run_transaction_runs_again_after_an_abort(url):
    tried = []

    def work(txn):
        tried.append(threading.current_thread())
        producer.send(b"x", txn=txn)
        if len(tried) == 1:
            raise errors.TransactionConflict("acknowledged elsewhere")
        return "done"

    with sync.Client(url, initial_backoff=0.01) as client:
        producer = client.create_producer("t")
        assert client.run_transaction(work) == "done"
    assert tried == [threading.current_thread()] * 2


def test_a_transactional_batch_commits_on_leaving_and_comes_again_after_an_exception(url):
    with sync.Client(url) as client:
        source, target = client.create_producer("in"), client.create_producer("out")
        consumer, reader = client.subscribe("in", "s"), client.subscribe("out", "r")
        for data in (b"1", b"2"):
            source.send(data)
        with pytest.raises(ZeroDivisionError), consumer.transactional_batch(max_messages=2, max_wait=5) as batch:
            assert [message.data for message in batch] == [b"1", b"2"]
            raise ZeroDivisionError
        with consumer.transactional_batch(max_messages=2, max_wait=5) as batch:
            for message in batch:
                batch.txn.send(target, message.data + b"!")
        assert (len(batch), batch[1].data, batch[:1][0].data, batch.consumer.topics) == (2, b"2", b"1", consumer.topics)
        assert batch.txn.state is asyncio_side.TransactionState.COMMITTED
        assert [reader.receive(5).data for _ in range(2)] == [b"1!", b"2!"]
        assert client.stats().transactions.committed == 1
        assert "TransactionalBatch of 2" in repr(batch)
        batch.redeliver()
        assert consumer.receive_many(1, max_wait=0.2) == []


def test_sugar_observers_and_what_is_refused(url):
    told = []

    class Observer:
        def txn_ended(self, txn):
            told.append(txn.state)

    with sync.Client(url) as client:
        client.add_observer(Observer())
        producer, consumer = client.create_producer("t"), client.subscribe("t", "s")
        producer.send(b"x")
        with client.transaction() as txn:
            txn.acknowledge(consumer, consumer.receive(5))
            with pytest.raises(errors.TransactionStateError, match="no savepoints"):
                txn.savepoint()
        assert txn.stats().subscriptions[0].confirmed == 1
    assert told == [asyncio_side.TransactionState.COMMITTED]


def test_a_unit_runs_again_in_the_callers_thread(url):
    tried = []

    def work(txn):
        tried.append(threading.current_thread())
        producer.send(b"x", txn=txn)
        if len(tried) == 1:
            raise errors.TransactionConflict("acknowledged elsewhere")
        return "done"

    with sync.Client(url) as client:
        producer = client.create_producer("t")
        assert client.run_transaction(work, attempts=3, backoff=lambda attempt: 0.01 * attempt) == "done"
    assert tried == [threading.current_thread()] * 2


def test_an_unknown_outcome_is_resolved_without_await():
    error = errors.CommitOutcomeUnknown("?")

    async def resolver():
        return "COMMITTED"

    async def commit():
        error.resolver = resolver
        raise error

    loop = sync.blocking.SyncLoop()
    try:
        with pytest.raises(errors.CommitOutcomeUnknown) as raised:
            loop.run(commit)
        assert raised.value.resolve() == "COMMITTED"
    finally:
        loop.stop()


def test_receiving_goes_on_while_the_caller_computes(url):
    with sync.Client(url, keep_alive_interval=0.2) as client:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        producer.send(b"x")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            sum(range(1000))
        assert consumer.queued == 1
        assert consumer.is_connected


def test_an_interrupt_is_answered_at_once(url):
    program = (
        "import signal, sys\nfrom pulsar_txn.client.sync import Client\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background inherits that it is ignored
        "client = Client(sys.argv[1]); consumer = client.subscribe('t', 's'); print('waiting', flush=True)\n"
        "try:\n    consumer.receive()\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n    client.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.2)
            asked = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - asked < 5
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_a_forked_child_is_told(url):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.send(b"x")
                os.write(writing, b"sent")
            except errors.ForkedClientError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert b"create the client in the process that uses it" in os.read(reading, 1000)
        os.close(reading)
        os.close(writing)
        assert producer.send(b"still here")


def test_use_after_close_is_told(url):
    client = sync.Client(url)
    producer = client.create_producer("t")
    client.close()
    client.close()
    with pytest.raises(errors.AlreadyClosed):
        producer.send(b"x")
    with pytest.raises(errors.AlreadyClosed):
        client.create_producer("t")


def test_a_wrong_url_starts_no_thread():
    before = threading.active_count()
    with pytest.raises(errors.InvalidConfiguration):
        sync.Client("http://localhost")
    assert threading.active_count() == before


def test_a_managed_block_is_what_transaction_returns(url):
    with sync.Client(url) as client:
        assert isinstance(client.transaction(), sync.ManagedTransaction)
        assert isinstance(inner(client.transaction()), AsyncManagedTransaction)


def test_docstrings_of_the_twin_speak_of_nothing_that_threads_have_not():
    for name in set(sync.__all__):
        cls = getattr(sync, name)
        for member in [cls, *(each for each in vars(cls).values() if callable(each) or isinstance(each, property))]:
            text = inspect.getdoc(member) or ""
            where = f"{name}.{getattr(member, '__name__', member)}"
            for word in ("If cancelled", "o cancel", "`async ", "`await ", "; tasks ", "coroutine", "event loop", "loop.time"):
                assert word not in text, where
    assert inspect.getdoc(sync.Client.transaction).startswith("A managed block: `with client.transaction() as txn: …`")
    assert "Single use." in inspect.getdoc(sync.Client.transaction)
    assert inspect.getdoc(sync.Client.create_producer).endswith("ConnectionLost or OperationTimeout.")


def test_a_commit_with_nothing_in_it_is_warned_of_at_the_programs_line(url, caplog):
    with sync.Client(url) as client:
        for _ in range(2):
            with client.transaction():
                pass
        client.begin_transaction(eager=False).commit()
    said = [record.getMessage() for record in caplog.records if "nothing in it" in record.getMessage()]
    assert len(said) == 2
    assert all(f"at {__file__}:" in line for line in said)
