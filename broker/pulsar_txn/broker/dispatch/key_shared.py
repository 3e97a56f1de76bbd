"""Key_Shared: entries of one key go to one consumer, in order.

Each consumer owns slots of the key space: by a hash ring of the consumers' names (auto split), or the ranges that it asked
for (sticky). When ownership moves, a slot stays with whoever still holds entries of it unacknowledged; entries that cannot
go out for that reason, or for lack of permits, wait in the replay, and later entries of their slot wait after them.

An entry that an open transaction acknowledged holds its slot as well: its consumer holds it while it is connected, and the
transaction when it is not. An abort brings it back, and it goes out before what follows it.
"""

from __future__ import annotations

import heapq
from base64 import b64decode
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.wire.entries import read_metadata, usual_key
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.hashing import key_slot
from pulsar_txn.wire.ids import EntryHeader, Position

from .consumers import Consumer
from .holders import Event
from .key_ring import HashRing, SlotOwners, StickyRanges
from .machine import Delivery, Effect
from .shared import Shared
from .waiting import SlotReplay

_LOOK_AHEAD: Final = 2000
_SLOTS_PER_TURN: Final = 2000


def sticky_slot(data: bytes) -> int:
    """The slot of an entry: of its ordering key, its partition key, or where it came from."""
    usual = usual_key(data)
    if usual is not None:
        return _slot_of_short(usual)
    try:
        metadata = read_metadata(data)
    except WireError:  # more is wrong with it than a topic looks at; one such message must not keep the others from going out
        return 0
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        text = metadata.partition_key
        key = _from_base64(text) if metadata.partition_key_b64_encoded else text.encode()
    else:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key_slot(key)


_slot_of_short: Final = lru_cache(4096)(key_slot)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text)
    except ValueError:  # the client's mistake is no reason to stop: any slot will do, if it is always the same
        return text.encode()


class KeyShared(Shared):
    """The dispatch of Shared subscriptions, with one consumer for each slot."""

    replay: SlotReplay

    def __init__(self, start: Position, config: BrokerConfig, *, sticky: bool) -> None:
        super().__init__(start, config)
        self._owners: SlotOwners = StickyRanges() if sticky else HashRing()
        self._slots: dict[Position, int] = {}
        self._slot_holders: dict[int, tuple[Consumer, int]] = {}  # with the number of entries that it holds
        self._undecided: dict[Position, int] = {}  # indexes that open transactions acknowledged, and no consumer holds
        self._draining: dict[int, list[Position]] = {}  # the same by slot, as heaps; what is decided is passed over
        self.replay = SlotReplay(self._slots, self._owners)
        # of the present turn
        self._able: set[Consumer] = set()
        self._regroups = False
        self._candidates: list[tuple[Position, int, Consumer]] | None = None  # a heap: what consumers may take of what waits
        self._looks = 0
        self._taker_of_wanted: Consumer | None = None

    # ---- events

    def add(self, consumer: Consumer) -> Sequence[Effect]:
        """Refusal ConsumerAssignError when its ranges are missing, or taken by another consumer."""
        self._owners.add(consumer)
        effects = super().add(consumer)
        self.replay.owners_changed()
        return effects

    def remove(self, consumer: Consumer) -> Sequence[Effect]:
        """Its slots go to the others."""
        if consumer in self.consumers:
            self._owners.remove(consumer)
            super().remove(consumer)
            self._able.discard(consumer)
            self.replay.owners_changed()
            if not self.consumers:
                self._forget_slots()
        return ()

    def rewind(self, start: Position) -> None:
        """Slots are read again with their entries."""
        super().rewind(start)
        self._forget_slots()

    def _forget_slots(self) -> None:
        self._slots.clear()
        self._slot_holders.clear()
        self._undecided.clear()
        self._draining.clear()

    def release(self, position: Position, indexes: int | None) -> Sequence[Effect]:
        """Release what a transaction gave back: it goes out before what follows it."""
        effects = super().release(position, indexes)
        self._decide(position, indexes)
        return effects

    def settled(self, position: Position, indexes: int | None) -> None:
        """The slot of an entry that is done with is forgotten."""
        super().settled(position, indexes)
        self._decide(position, indexes)
        if indexes is None:
            self._slots.pop(position, None)

    def _tell(
        self, position: Position, event: Event, indexes: int | None, consumer: Consumer | None = None
    ) -> Sequence[Consumer]:
        """Let a slot of which a consumer holds no entry any more go to its owner."""
        gone = self.holders.tell(position, event, indexes, consumer)
        slot = self._slots.get(position) if gone else None
        if slot is not None:
            for each in gone:
                holder = self._slot_holders.get(slot)
                if holder is None or holder[0] is not each:
                    continue
                if holder[1] == 1:
                    del self._slot_holders[slot]
                    self.replay.release(slot)
                else:
                    self._slot_holders[slot] = (each, holder[1] - 1)
        return gone

    # ---- a turn

    def begin(self, now_ms: float, tick_ms: int) -> None:
        """Find who can take something, and tell new owners what waits for them."""
        super().begin(now_ms, tick_ms)
        self._candidates, self._taker_of_wanted, self._looks = None, None, _SLOTS_PER_TURN
        self._able = set() if self._is_full() else {each for each in self.consumers if each.can_take(self._most_unacked)}
        self._regroups = bool(self._able) and self.replay.regroup(_SLOTS_PER_TURN)

    def end(self, now_ms: float) -> float | None:
        """At once as well while slots are told to their owners, or more of them wait than one turn may look at."""
        due_ms = super().end(now_ms)
        return now_ms if self._regroups or (self._able and self._looks <= 0) else due_ms

    def wanted(self, published: Position) -> Position | None:
        """First what was delayed, to learn its slot; then what waits and has a consumer; then the next one of the log."""
        self._taker_of_wanted = None
        if not self._able:
            return None
        fresh = self.replay.first_fresh()
        if fresh is not None:
            return fresh[0]
        waiting = self._first_candidate()
        if waiting is not None or self._looks <= 0:
            return waiting
        return self.read_position if self.read_position <= published and len(self.replay) < _LOOK_AHEAD else None

    def _first_candidate(self) -> Position | None:
        """The earliest entry that waits, and that its consumer can take: whoever's it is."""
        replay = self.replay
        if self._candidates is None:
            self._candidates = []
            for number, consumer in enumerate(self.consumers if replay else ()):
                if consumer in self._able and (found := replay.first_of(consumer)) is not None:
                    self._candidates.append((found[0], number, consumer))
            heapq.heapify(self._candidates)
        candidates = self._candidates
        while candidates and self._looks > 0:
            known, number, consumer = candidates[0]
            found = replay.first_of(consumer) if consumer in self._able else None
            if found is None:
                heapq.heappop(candidates)
                continue
            position, slot = found
            if position != known:
                heapq.heapreplace(candidates, (position, number, consumer))
            elif self._is_free(slot, position, consumer):
                self._taker_of_wanted = consumer
                return position
            else:
                replay.hold(slot)
            self._looks -= 1
        return None

    def _is_free(self, slot: int, position: Position, taker: Consumer | None) -> bool:
        """True if nothing of a slot is with another consumer, and no earlier entry of it in an open transaction."""
        holder = self._slot_holders.get(slot)
        return (holder is None or holder[0] is taker) and not self._drains(slot, position)

    def offer(
        self,
        position: Position,
        following: Position,
        live: int,
        batch_size: int,
        pending: int,
        header: EntryHeader | None,
        data: bytes,
    ) -> Delivery | None:
        """Give what is live to the owner of its slot, or let it wait for that one."""
        replay, indexes, taker = self.replay, None, self._taker_of_wanted
        if position == self.read_position:
            self.read_position = following
        elif position in replay:
            indexes = replay.waiting[position]
            if indexes is not None:
                live &= indexes
            if taker is None:
                replay.take_fresh()
        if live and header is not None and header.hints is not None and self._is_early(position, header.hints):
            live = 0  # the chunks of a message have one key, or one sequence id: one slot
        slot = self._slots.get(position)
        if not live:
            self._drop(position, slot, pending, data)
            return None
        if slot is None:
            slot = sticky_slot(data)
        if taker is None:
            taker = self._owners.owner(slot)
            if taker is None or taker not in self._able or not self._is_free(slot, position, taker) or replay.is_waiting(slot):
                self._wait(position, slot, indexes)
                return None
        return self._send(taker, slot, position, live, batch_size, pending)

    def _wait(self, position: Position, slot: int, indexes: int | None) -> None:
        self._slots[position] = slot
        if position in self.replay:
            self.replay.wait(position, slot)
        else:
            self.replay.add(position, indexes)

    def _send(self, taker: Consumer, slot: int, position: Position, live: int, batch_size: int, pending: int) -> Delivery:
        self._drain(slot, position, pending)
        self.replay.discard(position)
        self._slots[position] = slot
        if position not in taker.unacked:
            self._slot_holders[slot] = (taker, self._slot_holders.get(slot, (taker, 0))[1] + 1)
        delivery = self._give(taker, position, live, batch_size)
        if not taker.can_take(self._most_unacked):
            self._able.discard(taker)
        if self._is_full():
            self._able.clear()
        return delivery

    def _drop(self, position: Position, slot: int | None, pending: int, data: bytes) -> None:
        self.replay.discard(position)
        if not pending or not self._drain(sticky_slot(data) if slot is None else slot, position, pending):
            self._slots.pop(position, None)

    # ---- slots of open transactions

    def _drains(self, slot: int, position: Position) -> bool:
        """True if an open transaction has an earlier entry of this slot that no consumer holds."""
        earliest = self._draining.get(slot)
        if earliest is None:
            return False
        while earliest and earliest[0] not in self._undecided:
            heapq.heappop(earliest)
        if not earliest:
            del self._draining[slot]
        return bool(earliest) and earliest[0] < position

    def _drain(self, slot: int, position: Position, pending: int) -> bool:
        """Let what follows this entry wait; True if an open transaction acknowledged (a part of) it that no consumer holds."""
        for each in self.holders.of(position):
            pending &= ~each.unacked[position]
        if not pending:
            return False
        self._slots[position] = slot
        if position not in self._undecided:
            heapq.heappush(self._draining.setdefault(slot, []), position)
        self._undecided[position] = pending
        return True

    def _decide(self, position: Position, indexes: int | None) -> None:
        """These are in no transaction any more. The rest of their entry may be."""
        undecided = self._undecided.get(position, 0)
        left = 0 if indexes is None else undecided & ~indexes
        if left:
            self._undecided[position] = left
        elif undecided:
            del self._undecided[position]
            self.replay.release(self._slots[position])
