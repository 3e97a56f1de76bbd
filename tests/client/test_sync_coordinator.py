"""Blocking clients of several clusters share a coordinator: one loop thread for all of them, which the last one ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime
from sync_sides import loop_of

from pulsar_txn.client import Client, Coordinator, errors
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

SUPPORT = Path(__file__).parents[1] / "support"
EAST, WEST, BESIDE = "pulsar://east:6650", "pulsar://west:6650", "pulsar://beside:6653"


def connected(_pipe: Any, _body: Any) -> bytes:
    """The answer of a coordinator beside clusters to CONNECT."""
    flags = {"supports_clusters": True}
    return command("connected", server_version="Fake", protocol_version=21, max_message_size=2**20, feature_flags=flags)


class World:
    """Two clusters and a coordinator beside them."""

    def __init__(self) -> None:
        self.east, self.west, self.beside = (FakeBroker(address) for address in ("east:6650", "west:6650", "beside:6653"))
        self.beside.on["connect"] = connected
        self.beside.partitions[ASSIGN_TOPIC] = 1
        runtime: Any = FakeRuntime({each.address: each for each in (self.east, self.west, self.beside)})
        self.runtime: Runtime = runtime

    def coordinator(self, **options: Any) -> Coordinator:
        return Coordinator(BESIDE, runtime=self.runtime, operation_timeout=2, **options)

    def client(self, url: str, coordinator: Coordinator | str, cluster: str) -> Client:
        return Client(url, runtime=self.runtime, operation_timeout=2, coordinator=coordinator, cluster=cluster)

    def registered(self) -> set[tuple[str, str]]:
        """What took part: cluster and topic."""
        added, opened = self.beside.all("addPartitionToTxn"), self.beside.all("newTxn")
        later = {(body.cluster, topic) for body in added for topic in body.partitions}
        return later | {(each.cluster, each.topic) for body in opened for each in body.participants}

    def goodbyes(self) -> int:
        return sum(body.goodbye for body in self.beside.all("tcClientConnectRequest"))


@pytest.fixture
def world() -> Iterator[World]:
    before = set(threading.enumerate())
    yield World()
    left = [each for each in threading.enumerate() if each not in before and each.name.startswith("pulsar-txn-client")]
    for each in left:
        each.join(5)
    assert not any(each.is_alive() for each in left), "a loop thread outlived what it works for"


def test_one_transaction_of_two_clusters_whoever_begins_it(world: World) -> None:
    with (
        world.coordinator() as coordinator,
        world.client(EAST, coordinator, "east") as east,
        world.client(WEST, coordinator, "west") as west,
    ):
        first, second = east.create_producer("t"), west.create_producer("t")
        for begins in (coordinator, east, west):
            with begins.transaction() as txn:
                first.send(b"x", txn=txn)
                second.send_nowait(b"y", txn=txn)
            assert txn.state.value == "COMMITTED"
        assert coordinator.run_transaction(lambda txn: first.send(b"z", txn=txn)) is not None
        assert world.registered() == {(name, "persistent://public/default/t") for name in ("east", "west")}
        assert coordinator.transactions() == ()
    assert world.goodbyes() == 1


def test_all_of_them_live_on_one_thread_and_threads_may_share_them(world: World) -> None:
    with (
        world.coordinator() as coordinator,
        world.client(EAST, coordinator, "east") as east,
        world.client(WEST, coordinator, "west") as west,
        ThreadPoolExecutor(4) as pool,
    ):
        assert loop_of(coordinator) is loop_of(east) is loop_of(west)
        first, second = east.create_producer("t"), west.create_producer("t")

        def unit(number: int) -> str:
            with coordinator.transaction() as txn:
                first.send(b"%d" % number, txn=txn)
                second.send(b"%d" % number, txn=txn)
            return str(txn.state.value)

        assert set(pool.map(unit, range(100))) == {"COMMITTED"}
    assert len(world.beside.all("newTxn")) == len(world.beside.all("endTxn")) == 100


def test_clients_come_and_go_while_the_coordinator_stays(world: World) -> None:
    with world.coordinator() as coordinator:
        txn = coordinator.begin_transaction()
        for number in range(20):
            with world.client(EAST, coordinator, "east") as east:
                east.create_producer("t").send(b"%d" % number, txn=txn)
        with pytest.raises(errors.AlreadyClosed, match="the client is closed"):
            east.create_producer("t")
        txn.commit()
        assert txn.state.value == "COMMITTED"


def test_clients_go_on_without_transactions_when_the_coordinator_was_closed_before_them(world: World) -> None:
    coordinator = world.coordinator()
    with world.client(EAST, coordinator, "east") as east:
        producer = east.create_producer("t")
        open_unit = coordinator.begin_transaction()
        coordinator.close()
        coordinator.close()
        assert open_unit.state.value == "ABORTED"
        assert producer.send(b"without a transaction")
        with pytest.raises(errors.AlreadyClosed, match="the coordinator is closed"):
            east.begin_transaction()
        world.client(WEST, coordinator, "west").close()  # the thread is still there
    with pytest.raises(errors.AlreadyClosed, match="the coordinator is closed"):
        world.client(WEST, coordinator, "west")
    with pytest.raises(errors.AlreadyClosed):
        coordinator.begin_transaction()


def test_what_was_never_used_is_closed_without_a_thread(world: World) -> None:
    coordinator = world.coordinator()
    east = world.client(EAST, coordinator, "east")
    coordinator.close()
    assert not loop_of(east).stopped
    east.close()
    assert loop_of(east).stopped
    assert not loop_of(east).started


def test_an_observer_hears_of_the_transactions_of_all_clients(world: World) -> None:
    class Heard:
        def __init__(self) -> None:
            self.outcomes: list[str] = []

        def txn_ended(self, txn: Any, *_: Any) -> None:
            self.outcomes.append(txn.name)

    heard = Heard()
    coordinator = world.coordinator()
    coordinator.add_observer(heard)
    with coordinator, world.client(EAST, coordinator, "east") as east:
        producer = east.create_producer("t")
        for begins in (coordinator, east):
            with begins.transaction(name=type(begins).__name__) as txn:
                producer.send(b"x", txn=txn)
    assert heard.outcomes == ["Coordinator", "Client"]


def test_a_client_that_is_closed_does_not_wait_for_the_commit_of_another(world: World) -> None:
    asked = threading.Event()

    def silent(_pipe: Any, _body: Any) -> Any:
        asked.set()
        return SILENCE

    world.beside.on["endTxn"] = silent
    with world.coordinator() as coordinator, ThreadPoolExecutor(1) as pool:
        east, west = (world.client(url, coordinator, name) for url, name in ((EAST, "east"), (WEST, "west")))
        txn = coordinator.begin_transaction()
        west.create_producer("t").send(b"x", txn=txn)
        commit = pool.submit(txn.commit, timeout=30)
        assert asked.wait(10)
        east.create_producer("t").close()
        east.close()
        assert not commit.done()
        del world.beside.on["endTxn"]
        world.beside.pipe.cut()
        commit.result(20)
        west.close()


def test_what_has_a_thread_cannot_be_pickled_and_a_url_can(world: World) -> None:
    with (
        world.coordinator() as coordinator,
        pytest.raises(errors.UsageError, match="a Coordinator cannot go to another process"),
    ):
        pickle.dumps(coordinator)
    url = pickle.loads(pickle.dumps(BESIDE))  # what a Spark executor is given
    with world.client(EAST, url, "east") as client:
        producer = client.create_producer("t")
        with client.transaction() as txn:
            producer.send(b"x", txn=txn)
    assert world.registered() == {("east", "persistent://public/default/t")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
def test_in_a_forked_child_all_are_dead_and_say_so() -> None:
    program = """
import os, sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])
from test_sync_coordinator import EAST, WEST, World
from pulsar_txn.client import errors
world = World()
with world.coordinator() as coordinator, world.client(EAST, coordinator, "east") as east:
    coordinator.begin_transaction().abort()
    if os.fork() == 0:
        for use in (coordinator.begin_transaction, east.begin_transaction, lambda: world.client(WEST, coordinator, "west")):
            try:
                use()
            except errors.ForkedClientError:
                print("dead", flush=True)
        east.close(), coordinator.close()
        os._exit(0)
    os.wait()
    coordinator.begin_transaction().commit()
    print("alive")
"""
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, str(SUPPORT), here], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["dead"] * 3 + ["alive"], done.stderr


def test_a_program_that_closes_nothing_aborts_its_transaction_and_ends_in_time() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])
import atexit
from test_sync_coordinator import EAST, World
world = World()
atexit.register(lambda: print([body.txn_action for body in world.beside.all("endTxn")], world.goodbyes()))
coordinator = world.coordinator()
east = world.client(EAST, coordinator, "east")
txn = coordinator.begin_transaction()  # one that nobody has any more is ended by the goodbye alone
east.create_producer("t").send(b"x", txn=txn)
"""
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, str(SUPPORT), here], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[1] 1", done.stderr
    assert done.stderr.count("was not closed before the end of the program") == 2


async def test_a_blocking_coordinator_is_of_no_use_on_its_own_thread(world: World) -> None:
    def called() -> None:
        with pytest.raises(errors.UsageError, match="on its own thread"):
            coordinator.begin_transaction()

    coordinator = world.coordinator()
    with coordinator:
        await asyncio.to_thread(loop_of(coordinator).call, called)


def test_clients_of_many_threads_come_and_go_while_the_coordinator_is_closed(world: World) -> None:
    """Each one works, or is told that something is closed; nobody hangs, and the thread ends with the last of them."""
    coordinator = world.coordinator()
    done, told, closing = 0, 0, threading.Event()

    def units(number: int) -> tuple[int, int]:
        worked = refused = 0
        for _ in range(25):
            try:
                with world.client(EAST, coordinator, "east") as client, client.transaction() as txn:
                    client.create_producer(f"t{number}").send(b"x", txn=txn)
                worked += 1
            except errors.PulsarError:
                refused += closing.is_set()
            if worked == 10:
                closing.set()
        return worked, refused

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(units, number) for number in range(8)]
        assert closing.wait(30)
        coordinator.close()
        for each in running:
            worked, refused = each.result(60)
            done, told = done + worked, told + refused
    assert done + told == 200
    assert done >= 10
    assert told > 0
    assert loop_of(coordinator).stopped


def test_an_interrupted_close_of_the_coordinator_leaves_its_clients_alive(world: World) -> None:
    world.beside.on["endTxn"] = lambda _pipe, _body: SILENCE
    coordinator = world.coordinator()
    with world.client(EAST, coordinator, "east") as east:
        producer = east.create_producer("t")
        producer.send(b"x", txn=coordinator.begin_transaction())
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                coordinator.close()
        finally:
            signal.signal(signal.SIGINT, before)
        assert producer.send(b"goes on")
