"""The dispatch machine: its table walked whole, and its histories against a model of a log, its consumers and transactions.

In a history consumers come, go, ask for messages, acknowledge (plain and in transactions that commit or abort), give back some
or all, and stop reading; entries are batches, have keys, or have to wait for a time; some are for nobody. What the machine
never does: give one message to two consumers at a time, more than was asked for, what is settled, in a transaction or early, or
(Key_Shared) a key to two consumers or out of order. At the end of every history all consumers take what they can: then each
message was settled, so nothing is lost and nobody waits for ever.
"""

from __future__ import annotations

import os
import random
from typing import Any

import attrs
import pytest

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.dispatch.holders import TRANSITIONS, Event, State
from pulsar_txn.broker.dispatch.key_shared import KeyShared, sticky_slot
from pulsar_txn.broker.dispatch.machine import Dispatch, Rewind, SingleActive
from pulsar_txn.broker.dispatch.shared import Shared
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry, read_header
from pulsar_txn.wire.ids import Position, full_ack_set

HISTORIES = 100_000 if os.environ.get("PULSAR_TXN_SOAK") else 2_000
FIRST = (1, 0)
LATER_MS = 5_000
CELLS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Event]


class Connection:
    """A connection that takes everything."""

    writable = True

    def active_changed(self, consumer: Consumer, active: bool) -> None:
        """Nobody asks."""


def consumer(number: int, permits: int = 0) -> Consumer:
    made = Consumer(Connection(), None, number, f"c{number}")  # type: ignore[arg-type] # the machine asks for neither
    made.grant(permits)
    return made


def entry(key: int = 0, messages: int = 0, deliver_at_ms: int = 0) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=key, publish_time=1, partition_key=f"k{key}")
    if messages:
        metadata.num_messages_in_batch = messages
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    return encode_entry(metadata, b"x")


# ---- the table


class OneEntry:
    """A Key_Shared dispatch with one entry at FIRST, whose slot's owner takes as much as `permits` says."""

    def __init__(self) -> None:
        self.machine = KeyShared(FIRST, BrokerConfig(), sticky=False)
        self.owner = consumer(1)
        self.machine.add(self.owner)
        self.other = consumer(2, 10)
        self.now_ms = 1_000

    def look(self, *, live: int = 1, delayed: bool = False) -> bool:
        """Offer the entry if it is wanted."""
        self.machine.begin(self.now_ms, 1)
        if self.machine.wanted(FIRST) is None:
            return False
        data = entry(deliver_at_ms=LATER_MS if delayed else 0)
        self.machine.offer(FIRST, (1, 1), live, 0, 0, read_header(data), data)
        return True

    def happens(self, event: Event) -> None:
        """Let it happen, if it can."""
        machine = self.machine
        match event:
            case Event.GIVE:
                self.owner.grant(1)
                self.look()
            case Event.WAIT:
                self.look_without_the_owner()
            case Event.DEFER:
                self.owner.grant(1)
                self.look(delayed=True)
            case Event.PASS:
                self.owner.grant(1)
                self.look(live=0)
            case Event.DUE:
                machine.begin(LATER_MS, 1)
            case Event.ACKNOWLEDGE:
                machine.settled(FIRST, 1)
            case Event.PLEDGE:
                machine.pledged(FIRST, 1)
            case Event.RELEASE:
                machine.release(FIRST, 1)
            case Event.RETURN:
                machine.redeliver(self.owner, None)
                machine.begin(self.now_ms, 1)
            case Event.REWIND:
                machine.rewind(FIRST)

    def look_without_the_owner(self) -> None:
        """Another consumer can take something, and has no part of the ring."""
        machine = self.machine
        if self.owner.permits > 0:
            self.owner.take(self.owner.permits)
        machine.consumers.append(self.other)
        self.look()
        machine.consumers.remove(self.other)


def in_state(state: State) -> OneEntry:
    one = OneEntry()
    events = {
        State.AHEAD: (),
        State.WAITING: (Event.WAIT,),
        State.DEFERRED: (Event.DEFER,),
        State.HELD: (Event.GIVE,),
        State.PLEDGED: (Event.GIVE, Event.PLEDGE),
        State.AWAY: (Event.PASS,),
    }
    for event in events[state]:
        one.happens(event)
    assert one.machine.state(FIRST) is state
    return one


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_the_machine_does_what_its_table_says(state: State, event: Event) -> None:
    one = in_state(state)
    one.happens(event)
    assert one.machine.state(FIRST) is TRANSITIONS[state, event].to
    assert one.owner.unacked_count == one.machine.holders.count == (one.machine.state(FIRST) is State.HELD)
    assert (FIRST in one.owner.unacked) == (one.machine.state(FIRST) in (State.HELD, State.PLEDGED))


def test_the_table_is_whole() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


# ---- histories


@attrs.define
class Txn:
    """An open transaction: what it acknowledged, as bits by position."""

    acked: dict[Position, int]


class World:
    """A log, its cursor and open transactions, and consumers around one machine; judges every delivery."""

    def __init__(self, kind: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.limit = self.chance.choice((0, 0, 3))
        config = BrokerConfig(max_unacked_messages_per_consumer=self.limit)
        self.machine: Dispatch
        match kind:
            case "shared":
                self.machine = Shared(FIRST, config)
            case "key_shared":
                self.machine = KeyShared(FIRST, config, sticky=False)
            case _:
                self.machine = SingleActive(FIRST, failover=kind == "failover", partition=-1)
        self.individual = self.machine.individual
        self.log: dict[Position, bytes] = {}
        self.hidden: set[Position] = set()
        self.left: dict[Position, int] = {}  # what is not settled, as bits
        self.txns: list[Txn] = []
        self.with_: dict[tuple[Position, int], Consumer] = {}  # the program of which consumer has which message
        self.made = 0
        self.now_ms = 1_000
        self.expected: Position = FIRST  # on Exclusive and Failover

    # ---- the shell's part

    def start(self) -> Position:
        """The first entry that is not settled."""
        return min(self.left, default=(1, len(self.log)))

    def perform(self, effects: Any) -> None:
        """Read again; consumers hear nothing of the rest."""
        if any(isinstance(each, Rewind) for each in effects):
            self.rewind()

    def rewind(self) -> None:
        """Clients drop what they have when everything comes again; nobody else has anything."""
        self.machine.rewind(self.start())
        self.expected = self.start()
        self.with_.clear()

    def pending(self, position: Position) -> int:
        """What open transactions hold of an entry."""
        found = 0
        for txn in self.txns:
            found |= txn.acked.get(position, 0)
        return found

    def turn(self, most: int) -> int:
        """One turn of the dispatcher, up to so many entries: the number of those that went out."""
        sent = 0
        machine, published = self.machine, (1, len(self.log) - 1)
        machine.begin(self.now_ms, 10)
        for _ in range(most):
            position = machine.wanted(published)
            if position is None:
                break
            data = self.log[position]
            header, live = read_header(data), self.left.get(position, 0)
            pending = self.pending(position) & live
            if position in self.hidden:
                live = pending = 0
                self.left.pop(position, None)
            size = header.num_messages or 0
            delivery = machine.offer(position, (1, position[1] + 1), live & ~pending, size, pending, header, data)
            if delivery is not None:
                sent += 1
                taker, ack_set, _ = delivery
                self.delivered(taker, position, data, full_ack_set(size or 1) if ack_set is None else ack_set)
        machine.end(self.now_ms)
        return sent

    def delivered(self, taker: Consumer, position: Position, data: bytes, bits: int) -> None:
        """Judge a delivery."""
        messages = bits.bit_count()
        assert taker in self.machine.consumers, "somebody who is gone"
        assert taker.permits + messages > 0, "it did not ask for more"
        assert taker.is_writable, "its connection takes nothing"
        assert not bits & ~self.left.get(position, 0), f"{position} is settled"
        assert not bits & self.pending(position), f"{position} is in a transaction"
        assert position not in self.hidden
        if not self.individual:
            assert position >= self.expected, f"{position} is behind {self.expected}"
            skipped = [each for each in self.left if self.expected <= each < position and each not in self.hidden]
            assert all(not self.left[each] & ~self.pending(each) for each in skipped), f"{position} overtakes {skipped}"
            self.expected = (1, position[1] + 1)
            return
        hints = read_header(data).hints
        assert hints is None or hints.deliver_at_ms is None or hints.deliver_at_ms <= self.now_ms, f"{position} is early"
        if self.limit:
            assert taker.unacked_count - messages < self.limit, "it holds as much as it may"
        for index in range(bits.bit_length()):
            if bits >> index & 1:
                assert (position, index) not in self.with_, f"{position} {index} is with {self.with_[position, index].name}"
                self.with_[position, index] = taker
        if self.kind == "key_shared":
            self.judge_key(taker, position, data)

    def judge_key(self, taker: Consumer, position: Position, data: bytes) -> None:
        """One consumer has a key; and nothing of it is passed over that could have gone out, nor is in a transaction."""
        slot = sticky_slot(data)
        for (other, _), holder in self.with_.items():
            assert holder is taker or sticky_slot(self.log[other]) != slot, f"{position}: {holder.name} has {other} of its key"
        held = {each for each, _ in self.with_}
        for earlier, left in self.left.items():
            if earlier < position and left and sticky_slot(self.log[earlier]) == slot and earlier not in self.hidden:
                hints = read_header(self.log[earlier]).hints
                assert earlier in held or hints is not None, f"{position} overtakes {earlier}"

    # ---- what clients do

    def step(self) -> None:
        """One thing happens."""
        chance = self.chance
        self.now_ms += chance.randrange(0, 200)
        doing = chance.choices(
            (
                self.publish,
                self.flow,
                self.settle,
                self.in_txn,
                self.end_txn,
                self.join,
                self.leave,
                self.give_back,
                self.block,
            ),
            (8, 8, 8, 4, 4, 2, 1, 2, 1),
        )[0]
        doing()
        if chance.random() < 0.8:
            self.turn(chance.choice((1, 3, 1000)))

    def publish(self) -> None:
        """Some entries."""
        for _ in range(self.chance.randrange(1, 4)):
            position = (1, self.made)
            size = self.chance.choice((0, 0, 0, 3))
            at_ms = self.now_ms + self.chance.randrange(1, 2000) if self.individual and self.chance.random() < 0.15 else 0
            self.log[position] = entry(self.chance.randrange(4), size, at_ms)
            if self.chance.random() < 0.1:
                self.hidden.add(position)
            self.left[position] = full_ack_set(size or 1)
            self.made += 1

    def one(self) -> Consumer | None:
        """Some consumer."""
        return self.chance.choice(self.machine.consumers) if self.machine.consumers else None

    def flow(self) -> None:
        """Permits for one."""
        if (taker := self.one()) is not None:
            taker.grant(self.chance.randrange(1, 5))

    def join(self) -> None:
        """One comes."""
        if len(self.machine.consumers) < (1 if self.kind == "exclusive" else 4):
            self.perform(self.machine.add(consumer(self.chance.randrange(1000), self.chance.randrange(4))))

    def leave(self) -> None:
        """One goes, and its program with it."""
        if (gone := self.one()) is not None:
            self.perform(self.machine.remove(gone))
            self.with_ = {message: holder for message, holder in self.with_.items() if holder is not gone}

    def block(self) -> None:
        """The connection of one takes nothing, or does again."""
        if (taker := self.one()) is not None:
            taker.set_writable(writable=not taker.is_writable)

    def give_back(self) -> None:
        """One wants all or one again."""
        if (taker := self.one()) is None:
            return
        if not self.individual or self.chance.random() < 0.5:
            self.perform(self.machine.redeliver(taker, None))
            self.with_ = {message: holder for message, holder in self.with_.items() if holder is not taker}
        elif held := sorted({position for (position, _), holder in self.with_.items() if holder is taker}):
            position = self.chance.choice(held)
            self.perform(self.machine.redeliver(taker, iter([position])))
            self.with_ = {
                message: holder for message, holder in self.with_.items() if holder is not taker or message[0] != position
            }

    def somebody_has(self) -> tuple[Position, int] | None:
        """A part of an entry that a program could acknowledge now."""
        if self.individual:
            if not self.with_:
                return None
            position, index = self.chance.choice(sorted(self.with_))
            holder = self.with_[position, index]
            bits = sum(1 << other for (each, other), its in self.with_.items() if each == position and its is holder)
            if self.chance.random() < 0.5:
                bits = 1 << index
        else:
            given = [each for each in self.left if each < self.expected and each not in self.hidden]
            if not given:
                return None
            position = self.chance.choice(given)
            bits = self.left[position]
        bits &= self.left.get(position, 0) & ~self.pending(position)
        return (position, bits) if bits else None

    def settle(self) -> None:
        """A plain acknowledgement."""
        if (found := self.somebody_has()) is not None:
            self.settled(*found)

    def settled(self, position: Position, bits: int) -> None:
        """For good."""
        left = self.left.get(position, 0) & ~bits
        if left:
            self.left[position] = left
        else:
            self.left.pop(position, None)
        if self.individual:
            self.machine.settled(position, bits if left else None)
        self.with_ = {message: it for message, it in self.with_.items() if message[0] != position or not bits >> message[1] & 1}

    def in_txn(self) -> None:
        """An acknowledgement in a transaction."""
        found = self.somebody_has()
        if found is None:
            return
        if not self.txns or self.chance.random() < 0.3:
            self.txns.append(Txn({}))
        position, bits = found
        txn = self.chance.choice(self.txns)
        txn.acked[position] = txn.acked.get(position, 0) | bits
        if self.individual:
            self.machine.pledged(position, bits)

    def end_txn(self) -> None:
        """A transaction commits or aborts."""
        if not self.txns:
            return
        txn = self.txns.pop(self.chance.randrange(len(self.txns)))
        if self.chance.random() < 0.5:
            for position, bits in txn.acked.items():
                self.settled(position, bits)
            return
        given = {position: bits for position, bits in txn.acked.items() if position in self.left}
        if not self.individual:
            if given:
                self.perform(self.machine.release(min(given), None))
            return
        for position, bits in given.items():
            self.machine.release(position, bits)
            self.with_ = {
                message: it for message, it in self.with_.items() if message[0] != position or not bits >> message[1] & 1
            }

    def finish(self) -> None:
        """Everybody takes what there is, until nothing is left."""
        while self.txns:
            self.end_txn()
        if not self.machine.consumers:
            self.join()
        self.now_ms += 10_000
        quiet = 0
        while quiet < 3 and self.left:
            for each in self.machine.consumers:
                each.set_writable(writable=True)
                each.grant(max(0, 5 - each.permits))
            sent = self.turn(1000)
            while (found := self.somebody_has()) is not None:
                self.settled(*found)
                sent += 1
            quiet = 0 if sent else quiet + 1
        assert not self.left, f"nobody gets {sorted(self.left)[:5]} of {len(self.log)}"


@pytest.mark.deeper
@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.parametrize("part", range(4))
def test_nothing_is_lost_doubled_or_out_of_order_in_any_history(kind: str, part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        world = World(kind, seed)
        world.join()
        try:
            for _ in range(random.Random(seed).choice((10, 40, 120))):
                world.step()
            world.finish()
        except AssertionError as error:
            error.add_note(f"{kind}, seed {seed}")
            raise
