"""A coordinator with lanes beside stock participants: nothing committed is hidden, nothing aborted is shown, nothing hangs.

Clients work, are paused, are given up and wake up; topics are loaded again; ends come twice and late; the coordinator dies. A
client sends nothing for a transaction after it has asked for its end, as long as it lives. One that was given up may send
anything for any of its transactions once these have ended.

The same walks with the numbers of a broker's coordinator show the faults that lanes are for, so the model can see them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from beside_stock import ABORT, COMMIT, SUBSCRIPTION, TOPICS, Client, StockWorld, Work
from stock_participants import StockSubscription, StockTopic

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import LaneIds, PulsarIds
from pulsar_txn.wire.ids import Participant, TxnId


def own(tell: TellParticipant) -> int:
    """A watermark that covers exactly what ends, if nothing lower is open."""
    return tell.txn_id.least


# ---------------------------------------------------------------------------------------------------- walks


class Walk:
    """One random walk. `repeats_with_mark`: what a driver must not do."""

    def __init__(self, seed: int, world: StockWorld, *, repeats_with_mark: bool = False) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.repeats_with_mark = repeats_with_mark
        self.names = itertools.count()
        self.epochs = {"x": 0, "y": 0}
        self.actions: list[Callable[[], None]] = [
            *[self.begin] * 6,
            *[self.send] * 8,
            *[self.ack] * 2,
            *[self.end] * 6,
            *[self.deliver] * 8,
            *[self.late_send] * 4,
            self.start_client,
            self.succeed,
            self.goodbye,
            self.lease_is_over,
            self.time_out,
            *[self.reload] * 2,
            self.crash,
            self.repeat,
        ]
        self.start_client()

    def run(self, steps: int) -> list[str]:
        """The faults after so many steps, and after everything came to rest."""
        for _ in range(steps):
            self.rng.choice(self.actions)()
        self.world.settle()
        return self.world.faults()

    def living(self) -> Client | None:
        here = [client for client in self.world.clients if not client.has_left]
        return self.rng.choice(here) if here else None

    def work(self) -> tuple[Client, Work] | None:
        """A transaction that a client believes to be open; the client may be a zombie."""
        open_ = [(client, work) for client in self.world.clients if not client.has_left for work in client.unasked()]
        return self.rng.choice(open_) if open_ else None

    def start_client(self) -> None:
        self.world.client(self.rng.choice([None, f"i{next(self.names)}", f"i{next(self.names)}"]))

    def succeed(self) -> None:
        name = self.rng.choice("xy")
        self.epochs[name] += 1
        self.world.take_over(self.world.client(f"i{next(self.names)}", (name, self.epochs[name])))

    def begin(self) -> None:
        client = self.living()
        if client is not None and not client.is_given_up:
            self.world.begin(client)

    def send(self) -> None:
        found = self.work()
        if found is not None:
            self.world.send(*found, self.rng.choice(TOPICS))

    def ack(self) -> None:
        found = self.work()
        if found is not None:
            self.world.ack(*found, self.rng.randrange(12))

    def end(self) -> None:
        found = self.work()
        if found is not None:
            self.world.end(*found, self.rng.choice([COMMIT, COMMIT, ABORT]), confirm=self.rng.random() < 0.8)

    def late_send(self) -> None:
        """A zombie, all of whose transactions have ended, sends for one of them; a topic knows it already."""
        world = self.world
        busy = {info.txn_id for info in world.machine.transactions()}
        for client in self.rng.sample(world.clients, len(world.clients)):
            idle = not any(work.txn_id in busy for work in client.works)
            if (client.is_given_up or client.incarnation is None) and not client.has_left and idle and client.works:
                work = self.rng.choice(client.works)
                for topic in sorted({participant.topic for participant in work.registered - {SUBSCRIPTION}}):
                    if self.rng.random() < 0.7:
                        world.topics[topic].reload()
                    world.topics[topic].send(work.txn_id, "late")
                return

    def goodbye(self) -> None:
        client = self.living()
        if client is not None:
            self.world.goodbye(client)

    def lease_is_over(self) -> None:
        client = self.living()
        if client is not None:
            self.world.lease_is_over(client)

    def time_out(self) -> None:
        found = self.work()
        if found is not None:
            self.world.time_out(found[1])

    def deliver(self) -> None:
        if self.world.telegrams:
            self.world.deliver(self.rng.choice(list(self.world.telegrams)), answered=self.rng.random() < 0.8)

    def reload(self) -> None:
        self.rng.choice([*self.world.topics.values(), self.world.subscription]).reload()

    def crash(self) -> None:
        self.world.crash(self.rng.randint(self.world.confirmed, len(self.world.log)))

    def repeat(self) -> None:
        if self.world.given:
            self.world.repeat(self.rng.choice(list(self.world.given)), with_mark=self.repeats_with_mark)


def walks(count: int, **more: Any) -> Iterator[tuple[int, list[str]]]:
    """Walks with faults, by their seeds."""
    policy, mark = more.pop("ids", LaneIds()), more.pop("mark", None)
    for seed in range(count):
        world = StockWorld(policy) if mark is None else StockWorld(policy, mark=mark)
        faults = Walk(seed, world, **more).run(30 + seed % 120)
        if faults:
            yield seed, faults


@pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_no_walk_beside_stock_participants_hides_shows_or_holds_back_what_it_should_not(count: int) -> None:
    assert next(walks(count), None) is None


@pytest.mark.parametrize("mark", [None, own])
def test_the_same_walks_with_the_numbers_of_a_broker_s_coordinator_hide_what_was_committed(mark: Any) -> None:
    found = [faults for _, faults in itertools.islice(walks(150, ids=PulsarIds(), mark=mark), 5)]
    assert any(fault.startswith("committed and hidden") for faults in found for fault in faults)


def test_an_end_that_is_repeated_with_a_watermark_can_hide_what_was_committed_before_it() -> None:
    world = StockWorld()
    client = world.client("i")
    works = []
    for _ in range(2):
        work = world.begin(client)
        assert work is not None
        world.send(client, work, "a")
        world.end(client, work, COMMIT)
        world.deliver((work.txn_id, Participant("a")))
        works.append(work)
    world.lease_is_over(client)
    world.topics["a"].reload()
    assert world.topics["a"].send(works[0].txn_id, "late")
    world.repeat(works[1].txn_id)
    world.settle()
    assert world.faults() == []
    world.topics["a"].reload()
    assert world.topics["a"].send(works[0].txn_id, "late")
    world.repeat(works[1].txn_id, with_mark=True)
    world.settle()
    assert [fault.partition(":")[0] for fault in world.faults()] == ["committed and hidden"]


# ---------------------------------------------------------------------------------------------------- all interleavings


def interleavings(*actors: list[str]) -> Iterator[list[str]]:
    """Every order of the actors' steps that keeps the order of each."""
    if not any(actors):
        yield []
    for at, steps in enumerate(actors):
        if steps:
            for rest in interleavings(*actors[:at], steps[1:], *actors[at + 1 :]):
                yield [steps[0], *rest]


class Story:
    """Two transactions of a client, one of its successor, and what may come between any two steps."""

    def __init__(self, ids: LaneIds | PulsarIds, successor: str, **more: Any) -> None:
        self.world = world = StockWorld(ids, **more)
        self.successor = successor
        self.old = world.client("old", ("x", 1) if successor == "epoch" else None)
        self.new = world.client("new", ("x", 2) if successor == "epoch" else None)
        self.works: dict[str, Work | None] = {}

    def step(self, name: str) -> None:
        """Carry out one step; a client that is given up, or fenced, carries on with what it has."""
        world, (what, _, which) = self.world, name.partition(" ")
        client = self.new if which == "C" else self.old
        work = self.works.get(which)
        if what == "begin":
            self.works[which] = world.begin(client) if not client.has_left else None
        elif what == "send" and work is not None and not client.has_left:
            world.send(client, work, "a")
        elif what == "commit" and work is not None and not client.has_left:
            world.end(client, work, COMMIT)
        elif what == "late" and work is not None and self.old.is_given_up:
            busy = {info.txn_id for info in world.machine.transactions()}
            if not busy & {each.txn_id for each in self.old.works} and work.registered:
                world.topics["a"].send(work.txn_id, "late")
        elif what == "gone":
            {"epoch": lambda: world.take_over(self.new), "lease": lambda: world.lease_is_over(self.old)}[self.successor]()
        elif what == "reload":
            world.topics["a"].reload()
        elif what == "deliver":
            for key in list(world.telegrams):
                world.deliver(key)
        elif what == "crash":
            world.crash(world.confirmed)


OLD = ["begin A", "send A", "commit A", "deliver", "begin B", "send B"]
NEW = ["gone", "deliver", "begin C", "send C", "commit C"]


def stories(ids: LaneIds | PulsarIds, successor: str, **more: Any) -> Iterator[tuple[int, list[str], list[str]]]:
    """(number, steps, faults) of every interleaving."""
    ways = interleavings(OLD, NEW, ["reload", "late A"])
    for number, steps in enumerate(way for way in ways if way.index("gone") > 1 and way.index("late A") > way.index("gone")):
        story = Story(ids, successor, **more)
        for name in steps:
            story.step(name)
        story.world.settle()
        yield number, steps, story.world.faults()


@pytest.mark.parametrize("successor", ["epoch", "lease"])
def test_in_every_order_of_a_client_its_successor_a_reload_and_a_late_message_committed_data_are_seen(successor: str) -> None:
    cases = 0
    for _, steps, faults in stories(LaneIds(), successor):
        assert faults == [], steps
        cases += 1
    assert cases > 3_000


@pytest.mark.parametrize("successor", ["epoch", "lease"])
def test_with_the_numbers_of_a_broker_s_coordinator_some_orders_hide_committed_data(successor: str) -> None:
    found = (fault for _, _, faults in stories(PulsarIds(), successor, mark=own) for fault in faults)
    assert any(fault.startswith("committed and hidden") for fault in found)


# ---------------------------------------------------------------------------------------------------- the model itself


def test_the_model_does_what_was_seen_on_stock_brokers() -> None:
    topic, x, y, other = StockTopic(), TxnId(9, 5), TxnId(9, 6), TxnId(8, 1)
    assert topic.send(x, "1")
    assert topic.is_hanging
    topic.end(x, COMMIT, 5)
    assert topic.visible() == [(x, "1")]
    assert not topic.send(x, "2"), "NotAllowed: has been ended"
    topic.reload()
    assert topic.send(x, "2"), "marks are in memory only"
    assert topic.is_hanging, "for everybody"
    topic.end(other, COMMIT, 1)
    assert topic.is_hanging, "under another most nothing is swept"
    topic.end(x, COMMIT, -1)
    assert topic.visible() == [(x, "1"), (x, "2")], "a repeat with the same action cures"
    topic.send(x, "3")
    topic.end(y, COMMIT, 6)
    assert topic.visible() == [], "the sweep hides what was committed long ago"
    topic.reload()
    topic.send(x, "4")
    assert not topic.is_hanging, "a late message after an abort never hangs"


def test_the_model_of_pending_acks_does_what_was_seen_on_stock_brokers() -> None:
    subscription, x, y = StockSubscription(), TxnId(9, 5), TxnId(9, 6)
    assert subscription.ack(x, 1)
    assert not subscription.ack(y, 1), "a conflict"
    subscription.end(x, COMMIT, 5)
    assert not subscription.ack(y, 1), "it is consumed"
    assert subscription.ack(x, 2), "the watermark refuses no acknowledgement"
    subscription.end(y, COMMIT, 6)
    assert not subscription.is_hanging, "the next watermark gives it back"
    assert subscription.acked == {1: x}
