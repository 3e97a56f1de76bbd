"""The machine of a delivery: the table of owners walked whole, and its histories against models of three dispatchers.

In a history the broker reads, delivers, loses connections and aborts when it likes; the program receives, acknowledges, gives
back, and works in units. At the end of every history each message was settled, once where no connection was cut, nothing was
handed out before what had to come first, and nobody waits for ever.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from dispatcher_models import NEW, OLD, OURS, OrderedDispatcher, SharedDispatcher

from pulsar_txn.client.errors import TransactionConflict
from pulsar_txn.client.state import effects as do
from pulsar_txn.client.state.acknowledgements import Request, Share
from pulsar_txn.client.state.delivery import DeliveryMachine, DeliveryOptions
from pulsar_txn.client.state.owners import TRANSITIONS, Act, Event, Hold, Owners, State, indexes
from pulsar_txn.client.state.rewinds import Turn
from pulsar_txn.wire.ids import TxnAction

HISTORIES = 100_000 if os.environ.get("PULSAR_TXN_SOAK") else 10_000
SEEDS = 10
AT = (7, 1)

CELLS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Event]


# --- the table ----------------------------------------------------------------------------------------------------------


def in_state(state: State) -> tuple[Owners, Hold | None]:
    """A table that knows one entry of two messages, the first of them in a state."""
    table = Owners()
    table.give(table.settled, AT, 0b10, 2, (0, 0b11))
    if state is State.FREE:
        return table, None
    if state in (State.SETTLED, State.WANTED):
        hold = table.settled if state is State.SETTLED else table.wanted
        table.give(hold, AT, 0b01, 2, (0, 0b11))
        return table, hold
    hold = Hold(State.HELD if state is State.HELD else State.ASKED, "unit")
    table.give(hold, AT, 0b01, 2, (0, 0b11))
    if state is State.TAKEN:
        table.answer(hold)
    return table, hold


def happens(table: Owners, hold: Hold | None, event: Event) -> None:
    """Let the event happen to the first message."""
    match event:
        case Event.COPY:
            table.new_generation()  # else a copy of what is free or settled is a second one
            table.admit(AT, 0b01, 2)
        case Event.RECEIVE if table.has_free(AT, 0b01):
            table.give(Hold(State.HELD, "other"), AT, 0b01, 2)
        case Event.ACKNOWLEDGE | Event.CLAIM:
            unit = "unit" if event is Event.ACKNOWLEDGE else "other"
            if table.in_the_way(AT, 0b01, 2, unit) is None:
                table.give(Hold(State.ASKED, unit), AT, 0b01, 2)
        case Event.ANSWER if hold is not None:
            table.answer(hold)
        case Event.REFUSE | Event.ABORT if hold is not None and TRANSITIONS[hold.state, event].act is Act.GIVE:
            table.release(hold)
        case Event.SETTLE:
            table.settle_outside([(AT, 0, 2)])
        case Event.LEAVE:
            table.leave(AT, 0b01)
        case Event.WANT:
            table.want(AT, 0b01, 2, (0, 0b11))
        case Event.COMMIT if hold is not None and TRANSITIONS[hold.state, event].act is Act.GIVE:
            table.settle_all(hold)
        case Event.MOVE:
            table.move()


def test_the_table_has_every_cell_and_nothing_else():
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_a_cell_says_what_happens(state, event):
    table, hold = in_state(state)
    happens(table, hold, event)
    owner = table.owner(AT, 0)
    after = State.FREE if owner is None else owner.state
    settled = not table.knows(AT) and event in (Event.SETTLE, Event.COMMIT)  # with the other one all of the entry
    assert (State.SETTLED if settled else after) is TRANSITIONS[state, event].to


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_what_is_done_nothing_about_stays_as_it_is(state, event):
    cell = TRANSITIONS[state, event]
    assert (cell.act in (Act.KEEP, Act.CONFLICT, Act.DROP, Act.NOTE)) <= (cell.to is state)


# --- histories ----------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Work:
    """One unit of the program: what joined it, and how far its end is."""

    share: Share = attrs.field(factory=Share)
    has: list[tuple[int, int]] = attrs.field(factory=list)
    request: Request | None = None
    is_ending: bool = False


OPTIONS = DeliveryOptions(
    keeps_order=True,
    is_failover=False,
    is_durable=True,
    start=None,
    queue_size=6,
    queue_bytes=0,
    ack_group_delay=0.1,
    negative_ack_delay=0.2,
    max_pending_chunked_messages=10,
    max_uncompressed_bytes=1000,
    auto_ack_oldest_chunked_message=False,
    expire_incomplete_chunks=0.0,
)


class World:
    """A machine, its shell, the program, and the frames between them and a dispatcher, in virtual time."""

    def __init__(self, rnd: random.Random, broker: OrderedDispatcher | SharedDispatcher, *, keeps_order: bool) -> None:
        self.rnd = rnd
        self.broker = broker
        self.keeps_order = keeps_order
        self.machine = DeliveryMachine("t", -1, attrs.evolve(OPTIONS, keeps_order=keeps_order))
        self.now = 0.0
        self.queue: deque[tuple[int, int, Any]] = deque()
        self.to_broker: deque[tuple[Any, ...]] = deque()
        self.timers: dict[object, tuple[float, int]] = {}
        self.heap: list[tuple[float, int, object]] = []
        self.numbers = itertools.count()
        self.works: list[Work] = []
        self.done: Counter[tuple[int, int]] = Counter()
        self.put_off: set[tuple[int, int]] = set()
        self.was_cut = False
        self.asked: Counter[int] = Counter()
        """How often an entry is on its way again."""
        self.asked_twice: set[int] = set()
        """What a second copy brings after all of an entry is settled is not known here any more."""
        self.story: list[str] = []
        self.subscribe()

    # the shell

    def subscribe(self) -> None:
        self.machine.subscribes_again(None)
        self.perform()
        self.broker.subscribe(self.machine.redelivery.epoch)
        self.machine.opened()
        self.perform()

    def perform(self) -> None:
        effects = self.machine.effects
        while effects:
            match effects.pop(0):
                case do.SendPermits(permits):
                    self.to_broker.append(("flow", permits))
                case do.SendAcks(individual, cumulative):
                    self.to_broker.append(("ack", individual, cumulative))
                case do.AskForAll(epoch):
                    self.to_broker.append(("all", epoch))
                case do.AskFor(positions):
                    self.to_broker.append(("these", [entry for _, entry in positions]))
                    self.comes_again([entry for _, entry in positions])
                case do.DropQueued():
                    dropped, self.queue = self.queue, deque()
                    self.machine.queue_dropped({(7, entry) for entry, _, _ in dropped}, len(dropped))
                case do.HandOut(messages):
                    self.machine.give_permits_back(-len(messages))
                    self.queue.extend(messages)
                case do.SetTimer(timer, seconds):
                    due, number = self.now + seconds, next(self.numbers)
                    self.timers[timer] = (due, number)
                    heapq.heappush(self.heap, (due, number, timer))
                case do.StopTimer(timer):
                    self.timers.pop(timer, None)

    def comes_again(self, entries: Iterable[int]) -> None:
        self.asked.update(entries)
        self.asked_twice.update(entry for entry in entries if self.asked[entry] > 1)

    def comes(self) -> None:
        """One frame arrives."""
        frame = self.broker.to_client.popleft()
        if frame[0] == "answer":
            self.answered(*frame[1:])
            self.perform()
            return
        entry, live, epoch = frame
        self.asked[entry] = max(0, self.asked[entry] - 1)
        machine, position, size = self.machine, (7, entry), self.broker.sizes[entry]
        count = size or 1
        turn = machine.came(position, live, count, 10, epoch if self.keeps_order else None, self.now)
        if turn is Turn.REWOUND:
            self.perform()
            turn = machine.turn(position, live, count, self.now)
        if turn is Turn.NOW:
            delivery, live = machine.admit(position, size, live)
            messages = [(entry, index, delivery) for index in indexes(live, size)]
            if messages and machine.admits(position, messages[0][1], len(messages)):
                self.queue.extend(messages)
            machine.give_permits_back(count - len(messages))
        self.perform()

    def goes(self) -> None:
        """One frame reaches the broker."""
        match self.to_broker.popleft():
            case ("flow", permits):
                self.broker.permits += permits
            case ("ack", individual, cumulative):
                self.broker.ack(individual, cumulative=False)
                self.broker.ack(cumulative, cumulative=True)
            case ("all", epoch):
                self.broker.redeliver(epoch)  # type: ignore[union-attr]  # a dispatcher that keeps order
            case ("these", entries):
                self.broker.redeliver_these(entries)  # type: ignore[union-attr]  # one that does not
            case ("ack in", work, places):
                self.broker.to_client.append(("answer", work, places, self.broker.ack_in(work, work.request.ids)))
            case ("commit", work):
                self.broker.commit(work)
                self.machine.ended(work.share, TxnAction.COMMIT, self.now)
                self.done.update(work.has)
                self.works.remove(work)
            case ("abort", work):
                self.comes_again(self.broker.abort(work))
                self.machine.ended(work.share, TxnAction.ABORT, self.now)
                self.works.remove(work)
        self.perform()

    def answered(self, work: Work, places: Any, is_taken: bool) -> None:
        assert work.request is not None
        if is_taken:
            self.machine.answered(work.request, places, work.share)
            self.to_broker.append(("commit", work))
        else:
            self.machine.units.refused(work.request, work.share, self.now)
            self.gives_up(work)

    def expires(self) -> bool:
        """The next timer is due; False when there is none."""
        while self.heap:
            due, number, timer = heapq.heappop(self.heap)
            if self.timers.get(timer) == (due, number):
                del self.timers[timer]
                self.now = max(self.now, due)
                self.machine.expire(timer, self.now, has_queued=bool(self.queue))
                self.perform()
                while self.to_broker and getattr(self.broker, "kind", OURS) == NEW:
                    self.goes()  # a read that begins before such a request arrives is lost there, see `rewinds`
                return True
        return False

    def cut(self) -> None:
        """The connection is lost, with all that is on its way."""
        if any(work.is_ending for work in self.works):
            return  # what becomes of an end that is on its way is the transaction's story
        self.was_cut = True
        self.machine.lost()
        self.to_broker.clear()
        self.broker.to_client.clear()
        self.broker.permits = 0
        self.subscribe()

    # the program

    def takes(self) -> tuple[int, int, Any] | None:
        if not self.queue:
            return None
        message = self.queue.popleft()
        if self.keeps_order:
            self.judge_order(message[:2])
        self.put_off.discard(message[:2])
        self.machine.give_permits_back(1)
        self.perform()
        return message

    def judge_order(self, message: tuple[int, int]) -> None:
        """Everything before a message is settled, in a unit, or was put off by the program."""
        elsewhere = {each for work in self.works if not work.share.is_over for each in work.has} | self.put_off
        for entry in range(message[0] + 1):
            for index in indexes((1 << (self.broker.sizes[entry] or 1)) - 1, self.broker.sizes[entry]):
                before = (entry, index)
                assert before >= message or before in self.done or before in elsewhere, (before, message, self.story)

    def acknowledges(self) -> None:
        message = self.takes()
        if message is not None:
            place = ((7, message[0]), message[1], self.broker.sizes[message[0]])
            self.done[message[:2]] += 1
            self.machine.acknowledge([place])
            self.perform()

    def nacks(self) -> None:
        message = self.takes()
        if message is not None:
            entry, index, delivery = message
            self.put_off.add((entry, index))
            self.machine.negatively_acknowledge(((7, entry), index, self.broker.sizes[entry]), delivery, message, 0.2, self.now)
            self.perform()

    def works_on(self) -> None:
        """Receive in a unit, a new one or one that is open."""
        open_ones = [work for work in self.works if not work.is_ending and not work.share.is_over]
        limit = 1 if self.keeps_order else 3
        if len(self.works) < limit and (not open_ones or self.rnd.random() < 0.3):
            self.works.append(Work())
            open_ones.append(self.works[-1])
        if not open_ones:
            return
        work, message = self.rnd.choice(open_ones), self.takes()
        if message is not None:
            entry, index, delivery = message
            if self.machine.units.join(work.share, (7, entry), self.broker.sizes[entry], delivery, {index: message}, None):
                work.has.append((entry, index))

    def ends(self, *, commits: bool) -> None:
        open_ones = [work for work in self.works if not work.is_ending and not work.share.is_over]
        if not open_ones:
            return
        work = self.rnd.choice(open_ones)
        if not commits:
            self.gives_up(work)
            return
        work.is_ending = True
        for places in self.machine.units.rest(work.share):
            try:
                work.request = self.machine.units.claim_rest(work.share, [])
            except TransactionConflict:
                self.gives_up(work)
                return
            self.machine.asks(work.request, places)
            self.machine.flush_acks()
            self.perform()
            self.to_broker.append(("ack in", work, places))
            return
        self.works.remove(work)

    def gives_up(self, work: Work) -> None:
        work.is_ending = True
        self.machine.units.bring_back(work.share, 1.0, self.now, keep=False)
        self.perform()
        self.to_broker.append(("abort", work))

    # the story

    def step(self) -> None:  # noqa: C901 - one case for each kind
        kind = self.rnd.choices(
            ["publish", "read", "come", "go", "ack", "work", "commit", "abort", "nack", "cut", "wait"],
            [4, 8, 8, 8, 5, 6, 2, 1.5, 0.7, 0.2, 1],
        )[0]
        self.story.append(kind)
        match kind:
            case "publish" if self.broker.published < len(self.broker.sizes):
                self.broker.publish()
            case "read":
                self.broker.step()
            case "come" if self.broker.to_client:
                self.comes()
            case "go" if self.to_broker:
                self.goes()
            case "ack":
                self.acknowledges()
            case "work":
                self.works_on()
            case "commit" | "abort":
                self.ends(commits=kind == "commit")
            case "nack":
                self.nacks()
            case "cut":
                self.cut()
            case "wait":
                while self.broker.is_reading:
                    self.broker.step()  # a read takes less time than any timer, and so does a frame
                while self.to_broker or self.broker.to_client:
                    self.goes() if self.to_broker else self.comes()
                self.expires()

    def heal(self) -> None:
        """Nothing goes wrong any more: everything is published, received and acknowledged."""
        while self.broker.published < len(self.broker.sizes):
            self.broker.publish()
        end = self.now + 60
        while self.broker.unacked or self.to_broker:
            if self.to_broker:
                self.goes()
            elif self.broker.step():
                continue
            elif self.broker.to_client:
                self.comes()
            elif self.queue:
                self.acknowledges()
            elif any(not work.is_ending for work in self.works):
                self.ends(commits=True)
            else:
                waits = self.expires()
                assert waits, ("nobody asks any more", self.broker.unacked, self.story)
                assert self.now < end, ("waits for ever", self.broker.unacked, self.story)

    def judge(self) -> None:
        missing = [
            (entry, index)
            for entry, size in enumerate(self.broker.sizes)
            for index in indexes((1 << (size or 1)) - 1, size)
            if not self.done[entry, index]
        ]
        assert missing == [], self.story
        known = set() if self.keeps_order else self.asked_twice
        twice = [message for message, times in self.done.items() if times > 1 and message[0] not in known]
        assert self.was_cut or twice == [], (twice, self.story)


def history(seed: int, kind: str) -> World:
    """One random history against a dispatcher."""
    rnd = random.Random(f"{kind} {seed}")
    sizes = [rnd.choice([0, 0, 3]) for _ in range(rnd.randint(3, 14))]
    broker = SharedDispatcher(sizes) if kind == "shared" else OrderedDispatcher(kind, sizes, rnd)
    world = World(rnd, broker, keeps_order=kind != "shared")
    for _ in range(rnd.randint(20, 150)):
        world.step()
    world.heal()
    world.judge()
    return world


@pytest.mark.parametrize("start", range(SEEDS))
@pytest.mark.parametrize("kind", [OURS, OLD, NEW, "shared"])
def test_nothing_is_lost_doubled_or_overtaken_and_nobody_waits_for_ever(kind, start):
    share = HISTORIES // SEEDS
    for seed in range(start * share, start * share + share):
        history(seed, kind)
