"""How a blocking client ends: interrupted in a commit, left open by the program, made before a fork."""

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime

from pulsar_txn import compat
from pulsar_txn.client import TransactionState, errors, sync

SUPPORT = Path(__file__).parents[1] / "support"

HEAD = """
import asyncio, atexit, os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from fake_broker import SILENCE, FakeBroker, FakeRuntime
from pulsar_txn.client import errors, sync
from pulsar_txn.wire.topics import ASSIGN_TOPIC

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
broker = FakeBroker()
broker.partitions[ASSIGN_TOPIC] = 1

def new_client(**options):
    runtime = FakeRuntime({"broker:6650": broker})
    return sync.Client("pulsar://broker:6650", runtime=runtime, **{"operation_timeout": 5} | options)

def interrupt_in(seconds):
    asked.append(time.monotonic() + seconds)
    threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT]).start()

def since():
    return time.monotonic() - asked[0]

asked = []
"""


def run(program):
    """What it prints, and what it says on the other stream; it must come to its end by itself."""
    script = HEAD + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", script, str(SUPPORT)], capture_output=True, text=True, timeout=30)
    assert "Traceback" not in done.stderr, done.stderr
    assert "destroyed" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


INTERRUPTED = """
try:
    with new_client() as client:
        try:
            with client.transaction(eager=True) as txn:
                interrupt_in(0.3)
        except KeyboardInterrupt:
            print(since() < 0.1, txn.state.value)
            raise
except KeyboardInterrupt:
    print(txn.state.value, round(since()), len(broker.all("endTxn")))
"""
SILENT = "broker.on['endTxn'] = lambda pipe, body: SILENCE"


def test_an_interrupted_commit_is_seen_to_its_end_before_the_client_closes():
    slowly = """
def slowly(pipe, body):
    asyncio.get_running_loop().call_later(1.0, pipe.send, broker._endTxn(pipe, body))
    return SILENCE
broker.on["endTxn"] = slowly
"""
    said, _ = run(slowly + INTERRUPTED)
    assert said == ["True", "COMMITTING", "COMMITTED", "1", "1"]


def test_an_interrupted_commit_without_an_answer_delays_closing_for_two_seconds_and_ends_as_unknown():
    said, _ = run(SILENT + INTERRUPTED)
    assert said == ["True", "COMMITTING", "UNKNOWN", "2", "1"]


def test_a_second_interrupt_ends_the_wait_for_a_commit():
    twice = INTERRUPTED.replace("raise", "interrupt_in(0.3)\n            raise").replace("round(since())", "since() < 1.0")
    said, _ = run(SILENT + twice)
    assert said[:2] == ["True", "COMMITTING"]
    assert said[3:] == ["True", "1"]


def test_closing_waits_for_an_abort_that_another_thread_has_begun():
    broker = FakeBroker()
    broker.partitions["persistent://pulsar/system/transaction_coordinator_assign"] = 1
    begun = threading.Event()

    def slowly(pipe, body):
        begun.set()
        pipe._loop.call_later(0.5, pipe.send, broker._endTxn(pipe, body))
        return SILENCE

    broker.on["endTxn"] = slowly
    client = sync.Client("pulsar://broker:6650", runtime=FakeRuntime({"broker:6650": broker}))
    txn = client.begin_transaction()
    aborting = threading.Thread(target=txn.abort)
    aborting.start()
    assert begun.wait(5)
    client.close()
    aborting.join(5)
    assert txn.state is TransactionState.ABORTED


# --- left open ------------------------------------------------------------------------------------------------------------

LEFT_OPEN = """
    started = []
    def told():
        print(len(broker.all("send")), len(broker.all("close_producer")), len(broker.all("endTxn")))
        print(time.monotonic() - started[0] < 3.5, threading.active_count())
    atexit.register(told)  # called behind the client's own
    client = new_client()
    producer = client.create_producer("t", batching=False)
    txn = client.begin_transaction()
    tickets = [producer.send_nowait(b"x") for _ in range(50)]
    started.append(time.monotonic())
"""


def test_what_was_sent_nowait_is_not_lost_when_the_program_ends_without_close():
    said, errors_said = run(LEFT_OPEN)
    assert said == ["50", "1", "1", "True", "1"]  # its transaction is aborted
    assert errors_said.count("was not closed before the end of the program") == 1


def test_callbacks_of_receipts_are_called_when_the_program_ends_without_close():
    said, _ = run(LEFT_OPEN + "    tickets[-1].add_done_callback(lambda done: print('told', done.exception()))\n")
    assert said[:2] == ["told", "None"]


def test_a_program_that_ends_without_close_does_not_wait_long_for_a_broker_that_is_silent():
    silent = "    for name in ('send', 'close_producer'):\n        broker.on[name] = lambda pipe, body: SILENCE\n"
    said, errors_said = run(LEFT_OPEN.replace("    started = []", silent + "    started = []"))
    assert said[:4] == ["50", "1", "1", "True"]
    assert "50 messages have no receipt at the end of the program" in errors_said


def test_a_program_that_ends_without_close_while_nobody_is_reached_ends_quietly():
    said, errors_said = run(
        """
    client = sync.Client("pulsar://localhost:1", initial_backoff=0.01, max_backoff=0.02)
    def create():
        try:
            client.create_producer("t")
        except (errors.AlreadyClosed, RuntimeError) as error:  # RuntimeError: the interpreter looks up no names any more
            print("told", flush=True)
    threading.Thread(target=create, daemon=True).start()
    time.sleep(0.3)
    atexit.register(time.sleep, 0.2)
    """
    )
    assert said in ([], ["told"])
    assert "was not closed" in errors_said


def test_a_program_that_ends_without_close_after_its_broker_went_away_ends_soon_and_quietly():
    said, errors_said = run(
        """
    from pulsar_txn.broker.server import Standalone
    from pulsar_txn.client.sync.loop_thread import LoopThread
    atexit.register(lambda: print(time.monotonic() - started < 3.5, type(ticket.exception()).__name__))
    thread, server = LoopThread(), Standalone(None)
    thread.run(server.__aenter__)
    client = sync.Client(server.service_url, initial_backoff=0.01, max_backoff=0.02)
    producer, consumer = client.create_producer("t"), client.subscribe("t", "s")
    producer.send(b"x")
    thread.run(lambda: server.__aexit__(None, None, None))
    thread.stop()
    time.sleep(0.2)
    ticket = producer.send_nowait(b"y")
    started = time.monotonic()
    """
    )
    assert said == ["True", "AlreadyClosed"]
    assert "was not closed" in errors_said


def test_a_program_that_closed_its_client_or_never_used_it_is_told_nothing_at_its_end():
    said, errors_said = run(
        """
    unused, used = new_client(), new_client()
    with used:
        used.create_producer("t")
    print("end")
    """
    )
    assert (said, errors_said) == (["end"], "")


def test_the_end_of_a_forked_child_does_nothing_to_the_clients_of_its_parent():
    said, errors_said = run(
        """
    import warnings
    # Python 3.12 and later warns of every fork of a process with threads, and the client has one.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    client = new_client()
    producer = client.create_producer("t")
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        client.close()
        print("parent", len(broker.all("close_producer")))
    else:
        sys.exit(0)  # with its exit functions
    """
    )
    assert (said, errors_said) == (["parent", "1"], "")


# --- made before a fork -----------------------------------------------------------------------------------------------------


def test_a_client_that_was_made_before_a_fork_and_never_used_works_in_the_child():
    said, _ = run(
        """
    class Observer:
        def txn_ended(self, txn):
            print("ended", txn.state.value, flush=True)

    client = new_client()
    client.add_observer(Observer())
    print("threads", threading.active_count(), flush=True)
    child = os.fork()
    if not child:
        with client:
            producer = client.create_producer("t")
            with client.transaction() as txn:
                producer.send(b"x", txn=txn)
    else:
        os.waitpid(child, 0)
        with client:
            print("parent", client.create_producer("t").send(b"x").entry_id, flush=True)
    """
    )
    assert said == ["threads", "1", "ended", "COMMITTED", "parent", "0"]


def test_a_client_that_was_used_before_a_fork_is_refused_in_the_child():
    said, _ = run(
        """
    with new_client() as client:
        client.add_observer(object())
        child = os.fork()
        if not child:
            try:
                client.create_producer("t")
            except errors.ForkedClientError:
                print("refused", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    )
    assert said == ["refused"]


def test_the_constructor_starts_no_thread_and_still_raises_what_is_wrong_with_its_arguments():
    before = threading.active_count()
    for wrong in ({"operation_timeout": 0}, {"description": "x" * 100}, {"fencing": "?"}, {"tls_key_file": "/none"}):
        with pytest.raises(errors.InvalidConfiguration):
            sync.Client("pulsar+ssl://localhost:6651", **wrong)
    client = sync.Client("pulsar://localhost:6650")
    assert (client.service_url, repr(client)) == ("pulsar://localhost:6650", "<Client pulsar://localhost:6650 open>")
    assert threading.active_count() == before
    client.close()
    client.close()
    assert repr(client).endswith("closed>")
    with pytest.raises(errors.AlreadyClosed):
        client.begin_transaction()
    assert threading.active_count() == before


def test_threads_that_use_a_client_first_at_the_same_time_share_one_loop():
    broker, names = FakeBroker(), []
    client = sync.Client("pulsar://broker:6650", runtime=FakeRuntime({"broker:6650": broker}))
    gate = threading.Barrier(8)

    def work(number):
        gate.wait()
        names.append(client.create_producer(f"t{number}").producer_name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(names)) == 8
    assert len(broker.pipes) == 1
    client.close()


def test_an_observer_that_takes_its_time_may_still_ask_the_client_that_is_being_closed(url):
    told = []

    class Observer:
        def txn_ended(self, txn):
            time.sleep(0.2)
            told.append(txn.stats().state)

    with sync.Client(url) as client:
        client.add_observer(Observer())
        with client.transaction(eager=True):
            pass
    assert told == [TransactionState.COMMITTED]


def test_compat_waits_for_callbacks_when_it_closes(url):
    told = []

    def callback(result, _message_id):
        time.sleep(0.2)
        told.append(result)

    client = compat.Client(url)
    client.create_producer("t").send_async(b"x", callback)
    client.close()
    assert told == [compat.Result.Ok]
