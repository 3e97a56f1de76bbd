"""The machine of an outgoing partition: its table walked whole, and its histories against small models of brokers.

The model of a broker keeps what it stored, by sequence ids. One that looks for duplicates drops what is not higher than its
highest id; one that does not stores whatever comes. Connections break at any frame: what was written may have come or not, and
receipts may be lost. At the end of every history each message has had exactly one answer, and the answers are true.
"""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from pulsar_txn.client.errors import NotAllowedError, PulsarError, TransactionAborted
from pulsar_txn.client.state import outgoing
from pulsar_txn.client.state.outgoing import (
    TRANSITIONS,
    Act,
    Batch,
    Cell,
    Effect,
    Event,
    Group,
    Outgoing,
    State,
    Todo,
    UnitSends,
    Way,
)
from pulsar_txn.wire.ids import TxnId

CELLS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Event]


# --- the table ----------------------------------------------------------------------------------------------------------


def test_the_table_has_every_cell_and_nothing_else():
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_a_cell_moves_forward_or_does_nothing(state, event):
    cell = TRANSITIONS[state, event]
    assert (cell.act is Act.SKIP) <= (cell.to is state)
    assert (cell.act is Act.FAIL) <= (cell.to is State.ENDED)
    assert cell.to >= state or (state, cell) == (State.DOUBTFUL, Cell(Act.REPEAT, State.WRITTEN))


def test_every_state_is_reached_from_open_and_reaches_the_end():
    def reached(start):
        found, todo = {start}, [start]
        while todo:
            state = todo.pop()
            for event in Event:
                if (to := TRANSITIONS[state, event].to) not in found:
                    found.add(to)
                    todo.append(to)
        return found

    assert reached(State.OPEN) == set(State)
    assert all(State.ENDED in reached(state) for state in State)


@pytest.mark.parametrize("event", Event)
def test_what_has_ended_stays_as_it_is(event):
    assert TRANSITIONS[State.ENDED, event] == Cell(Act.SKIP, State.ENDED)


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_the_machine_does_what_the_cell_says(state, event):
    """An error is told with FAIL, a second write with REPEAT, a question with ASK, and nothing else is done."""
    machine = made()
    unit = UnitSends()
    unit.txn_id = TxnId(0, 1)
    batch = Batch(Group(unit, unit, None), state, [], ["ticket"], 1, 1)
    batch.group.in_flight = 1
    batch.buffers = [b"frame"]
    machine._happens(event, batch, PulsarError("why"))
    kinds = [effect[0] for effect in machine.taken()]
    cell = TRANSITIONS[state, event]
    assert batch.state is cell.to
    assert kinds == {
        Act.WRITE: [Effect.WRITE],
        Act.REPEAT: [Effect.AGAIN, Effect.WRITE],
        Act.FAIL: [Effect.ENDED],
        Act.ASK: [Effect.ASK],
    }.get(cell.act, [])


# --- histories ----------------------------------------------------------------------------------------------------------


def made(**options):
    settings = {
        "max_messages": 3,
        "max_bytes": 60,
        "delay": 1.0,
        "send_timeout": None,
        "keyed": False,
        "first_sequence_id": None,
    }
    return Outgoing("t", **(settings | options))


class Broker:
    """A topic: what it stored, in order, as (sequence id, payloads, transaction)."""

    def __init__(self, *, deduplicates):
        self.deduplicates = deduplicates
        self.stored = []
        self.highest = -1

    def take(self, sequence_id, highest, payloads, txn_id):
        """The SEND_RECEIPT of one SEND: (sequence id, ledger id, entry id)."""
        if self.deduplicates and sequence_id <= self.highest:
            return sequence_id, -1, -1
        self.highest = max(self.highest, highest)
        self.stored.append((sequence_id, payloads, txn_id))
        return sequence_id, 1, len(self.stored) - 1


class World:
    """The machine, a shell that performs its effects, and the wire to the broker."""

    def __init__(self, seed, *, deduplicates, keyed=False, send_timeout=None, given=False):
        self.chance = random.Random(seed)
        self.machine = made(keyed=keyed, send_timeout=send_timeout, max_messages=self.chance.choice([1, 3, 10]))
        self.broker = Broker(deduplicates=deduplicates)
        self.now, self.number, self.due, self.turn = 0.0, 0, None, False
        self.connected = False
        self.given = given
        self.wire, self.receipts = deque(), deque()
        self.units = {}
        self.queued = {}  # ticket: (payload, unit, the order of its group)
        self.answers = {}  # ticket: error or the entry
        self.counted = Counter()
        self.asked = []
        self.again = set()
        self.stopped = False

    # the shell

    def perform(self):
        while self.machine.effects:
            for effect in self.machine.taken():
                self.do(*effect)

    def do(self, kind, about=None, *more):
        if kind is Effect.WRITE and self.connected:
            self.wire.append(about[0])
        elif kind is Effect.ENDED:
            self.ended(about, more[0])
        elif kind is Effect.LEAVE:
            self.seal_all(about)
        elif kind is Effect.AT:
            self.due = about if self.due is None else min(self.due, about)
        else:
            self.do_rarely(kind, about, *more)

    def do_rarely(self, kind, about, *more):
        if kind is Effect.COUNT:
            self.counted[about.unit] += more[0]
        elif kind is Effect.AGAIN:
            self.again.add(about.unit)
        elif kind is Effect.ASK:
            self.asked.append((about, more[0]))
        elif kind is Effect.RECONNECT:
            self.cut()
        elif kind is Effect.STOP:
            self.machine.fail(about)

    def ended(self, batch, answer):
        assert batch.state is State.ENDED
        for future in batch.futures if batch.messages else []:
            assert future not in self.answers, "answered twice"
            self.answers[future] = answer

    def seal_all(self, group):
        while (batch := self.machine.seal(group)) is not None:
            self.seal(batch)

    def seal(self, batch):
        unit = batch.group.unit
        payloads = tuple(outgoing.row_payload(row) for row in batch.rows)
        frame = (batch.sequence_id, batch.highest, payloads, unit and unit.txn_id)
        if self.machine.leaves(batch, [frame], self.now) is not Way.KEEP:
            assert self.connected
            self.wire.append(frame)

    # what happens

    def add(self):
        unit = self.chance.choice([None, *self.units.values()])
        if unit is not None and unit.over is not None:
            return
        future = self.number
        self.number += 1
        key = self.chance.choice([None, "a", "b"]) if self.machine._keyed else None
        payload = b"%08d" % future
        row = payload
        if self.given:
            row = (payload, None, None, 0, future, None, False)
        elif key is not None:
            row = (payload, key, None, 0, None, None, False)
        if isinstance(row, tuple):
            self.machine.check(row, unit)
            self.perform()
        group = self.machine.group(row, unit)
        self.queued[future] = (payload, unit, key)
        if self.machine.max_messages == 1 and unit is None and row is payload:
            self.seal(self.machine.lone(row, 8, future))
            self.perform()
            return
        if not self.machine.has_room(group, 8):
            self.seal_all(group)
            self.perform()
            group = self.machine.group(row, unit)
        if unit is not None and group.batch is None:
            self.counted[unit] += 1
        todo = self.machine.add(group, row, 8, future)
        if todo is Todo.LEAVE:
            self.seal_all(group)
        elif todo is Todo.LATER:
            self.machine.collects(group, self.now)
        elif todo is Todo.TURN:
            assert not self.turn
            self.turn = True
        self.perform()

    def begin(self):
        if len(self.units) < 6:
            self.units[len(self.units)] = UnitSends()

    def register(self):
        waiting = [(number, unit) for number, unit in self.units.items() if unit.txn_id is None]
        if waiting:
            number, unit = self.chance.choice(waiting)
            if self.chance.random() < 0.1:
                unit.over = PulsarError("refused")
                self.machine.unregistered(unit, unit.over)
            else:
                self.machine.registered(unit, TxnId(0, number))
            self.perform()

    def end_unit(self):
        if self.units and self.chance.random() < 0.2:
            self.machine.over(self.chance.choice(list(self.units.values())), TransactionAborted("over"))

    def end_turn(self):
        if self.turn:
            self.turn = False
            for group in self.machine.turn_ends():
                self.seal_all(group)
            self.perform()

    def flush(self):
        self.machine.flush()
        self.perform()

    def wait(self):
        self.now += self.chance.choice([0.1, 1.0])
        if self.due is not None and self.due <= self.now:
            self.due = None
            self.machine.expire(self.now)
            self.perform()

    def connect(self):
        if not self.connected:
            self.connected = True
            self.machine.opened(self.broker.highest, 60, deduplicates=self.broker.deduplicates)
            self.perform()

    def cut(self):
        """Some of what is on its way comes, the rest is lost."""
        for _ in range(self.chance.randint(0, len(self.wire))):
            self.deliver()
        self.wire.clear()
        self.receipts.clear()
        if self.connected:
            self.connected = False
            self.machine.lost()

    def deliver(self):
        if self.wire:
            self.receipts.append(self.broker.take(*self.wire.popleft()))

    def answer(self):
        if self.receipts:
            sequence_id, *entry = self.receipts.popleft()
            batch = self.machine.receipt(sequence_id)
            if batch is not None:
                self.ended(batch, tuple(entry))
            self.perform()

    def refuse(self):
        """The broker does not allow what is first on the wire."""
        if self.wire and not self.receipts and self.chance.random() < 0.3:
            sequence_id = self.wire.popleft()[0]
            self.machine.refused(sequence_id, NotAllowedError("no"), self.now)
            self.perform()

    def tell(self):
        if self.asked:
            batch, error = self.asked.pop()
            self.machine.told(batch, error)
            self.perform()

    def drain(self):
        """Everything that was begun comes to its end."""
        for unit in self.units.values():
            if unit.txn_id is None and unit.over is None:
                self.machine.registered(unit, TxnId(0, 99))
            elif unit.txn_id is None:
                self.machine.unregistered(unit, unit.over)
        self.perform()
        for _ in range(1000):
            self.connect()
            self.flush()
            self.end_turn()
            self.deliver()
            self.answer()
            self.tell()
            self.wait()
            if len(self.answers) == len(self.queued):
                return
        pytest.fail(f"{set(self.queued) - set(self.answers)} have no answer")

    STEPS = (
        *["add"] * 10,
        *("begin", "register", "end_unit", "end_turn", "flush", "wait", "tell"),
        *("connect", "deliver", "answer") * 2,
    )

    def run(self, steps, *, rude):
        names = [*self.STEPS, *["cut", "refuse"] * rude]
        for _ in range(steps):
            getattr(self, self.chance.choice(names))()
        self.drain()

    # what must be true

    def judge(self):
        stored = [(payload, txn_id, at) for at, (_, payloads, txn_id) in enumerate(self.broker.stored) for payload in payloads]
        copies = Counter(payload for payload, _, _ in stored)
        units = {payload: unit for payload, unit, _ in self.queued.values()}
        for payload, txn_id, _ in stored:
            unit = units[payload]
            assert (txn_id is None) == (unit is None), "stored outside of its transaction"
            assert unit is None or txn_id == unit.txn_id
        for future, answer in self.answers.items():
            payload, unit, _ = self.queued[future]
            if not isinstance(answer, Exception):
                assert copies[payload] >= 1, "a receipt for what is not stored"
                if answer != (-1, -1):
                    assert payload in self.broker.stored[answer[1]][1], "the receipt of something else"
            if unit is None:
                assert not isinstance(answer, TransactionAborted)
        if self.broker.deduplicates:
            assert not copies or max(copies.values()) == 1, "stored twice"
        for unit in self.units.values():  # what a transaction would commit is there once
            answers = [self.answers[future] for future, (_, of, _) in self.queued.items() if of is unit]
            if not any(isinstance(each, Exception) for each in answers):
                mine = [payload for payload, of, _ in self.queued.values() if of is unit]
                assert all(copies[payload] == 1 for payload in mine), "a whole transaction has something twice"
            assert self.counted[unit] <= len(answers)
        for fate in {(unit, key) for _, unit, key in self.queued.values()}:
            mine = [payload for payload, *of in self.queued.values() if tuple(of) == fate]
            first = list(dict.fromkeys(payload for payload, _, _ in stored if payload in set(mine)))
            assert first == [payload for payload in mine if payload in set(first)], "out of order"
        sequence_ids = [sequence_id for sequence_id, _, _ in self.broker.stored]
        if self.broker.deduplicates:
            assert sequence_ids == sorted(set(sequence_ids))
        assert not self.machine._in_flight
        assert not any(group.in_flight or group.full or group.batch for group in self.machine._groups.values())


SEEDS = range(60)


@pytest.mark.parametrize("deduplicates", [True, False])
@pytest.mark.parametrize("keyed", [False, True])
def test_every_message_has_one_true_answer_over_cuts_and_refusals(deduplicates, keyed):
    for seed in SEEDS:
        world = World(seed, deduplicates=deduplicates, keyed=keyed)
        world.run(250, rude=True)
        world.judge()


@pytest.mark.parametrize("deduplicates", [True, False])
def test_without_cuts_everything_is_stored_once_whatever_the_broker_does(deduplicates):
    for seed in SEEDS:
        world = World(seed, deduplicates=deduplicates)
        world.run(250, rude=False)
        world.judge()
        wrong = [answer for answer in world.answers.values() if isinstance(answer, Exception)]
        assert all(isinstance(answer, TransactionAborted) or str(answer) == "refused" for answer in wrong)
        assert world.again == set()


def test_sequence_ids_of_the_program_are_kept_and_nothing_is_dropped_for_its_id():
    """Ids are given in the order of the sends: a broker that looks for duplicates takes all of them, as long as none waits."""
    for seed in SEEDS:
        world = World(seed, deduplicates=True, given=True)
        world.begin = world.register = lambda: None
        world.run(250, rude=False)
        world.judge()
        assert all(answer != (-1, -1) and not isinstance(answer, Exception) for answer in world.answers.values())


def test_a_receipt_after_the_timeout_changes_nothing():
    for seed in SEEDS:
        world = World(seed, deduplicates=True, send_timeout=2.0)
        world.run(250, rude=True)
        world.judge()
