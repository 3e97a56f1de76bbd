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
from typing import Final

from pulsar_txn.wire.entries import read_metadata
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.hashing import key_slot
from pulsar_txn.wire.ids import DispatchHints, Position

from .consumers import Consumer
from .dispatcher import ENTRIES_PER_TURN
from .key_ring import HashRing, SlotOwners, StickyRanges
from .shared import RETURNED_PER_TURN, SharedDispatcher
from .slot_replay import SlotReplay
from .view import SubscriptionView

_LOOK_AHEAD: Final = 2000
_SLOTS_PER_TURN: Final = 2000


def sticky_slot(data: bytes) -> int:
    """The slot of an entry: of its ordering key, its partition key, or where it came from."""
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


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text)
    except ValueError:  # the client's mistake is no reason to stop: any slot will do, if it is always the same
        return text.encode()


class KeySharedDispatcher(SharedDispatcher):
    """The Shared dispatcher with a fixed consumer per slot."""

    replay: SlotReplay

    def __init__(self, subscription: SubscriptionView, *, sticky: bool) -> None:
        super().__init__(subscription)
        self._owners: SlotOwners = StickyRanges() if sticky else HashRing()
        self._slots: dict[Position, int] = {}
        self._holders: dict[int, tuple[Consumer, int]] = {}
        self._undecided: set[Position] = set()  # acknowledged in open transactions, and with no consumer
        self._draining: dict[int, list[Position]] = {}  # the same by slot, as heaps; what is decided is passed over
        self._able: set[Consumer] = set()
        self.replay = SlotReplay(self._slots, self._owners.owner)

    def add(self, consumer: Consumer) -> None:
        """Refusal ConsumerAssignError when its ranges are missing, or taken by another consumer."""
        self._owners.add(consumer)
        super().add(consumer)
        self.replay.owners_changed()

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to the others."""
        if consumer not in self.consumers:
            return
        self._owners.remove(consumer)
        super().remove(consumer)
        self.replay.owners_changed()
        if not self.consumers:
            self._forget()

    def rewind(self) -> None:
        """Slots are read again with their entries."""
        super().rewind()
        self._forget()

    def _forget(self) -> None:
        self._slots.clear()
        self._holders.clear()
        self._undecided.clear()
        self._draining.clear()

    def _dispatch(self) -> None:
        if self._returning:
            self._take_back(RETURNED_PER_TURN)
        if not self.consumers or self._is_full():
            return
        self._able = {each for each in self.consumers if self._can_take(each)}
        more = self.replay.regroup(_SLOTS_PER_TURN)
        left = self._replay_fresh(ENTRIES_PER_TURN)
        left = self._replay_by_owner(left)
        left = self._read_on(left)
        if more or not left:
            self.wake()

    def _replay_fresh(self, left: int) -> int:
        """Learn the slots of what was delayed. Like the next two: takes and returns how many entries this turn may look at,
        negative when one has to be read first."""
        while left > 0 and self._able and (first := self.replay.first_fresh()) is not None:
            left -= 1
            position, indexes = first
            data = self._entry(position)
            if data is None:
                return -1
            self.replay.take_fresh()
            self._pass_on(position, data, indexes)
        return left

    def _replay_by_owner(self, left: int) -> int:
        """Send what waits and has a consumer that can take it: the earliest entries first, whoever's they are."""
        replay, holders = self.replay, self._holders
        offers: list[tuple[Position, int, Consumer]] = []
        for number, consumer in enumerate(self.consumers if left > 0 and replay else ()):
            if consumer in self._able and (found := replay.first_of(consumer)) is not None:
                offers.append((found[0], number, consumer))
        heapq.heapify(offers)
        while offers and left > 0:
            left -= 1
            _, number, consumer = offers[0]
            found = replay.first_of(consumer) if self._can_take(consumer) else None
            if found is not None:
                position, slot = found
                holder = holders.get(slot)
                if (holder is not None and holder[0] is not consumer) or self._drains(slot, position):
                    replay.hold(slot)
                else:
                    data = self._entry(position)
                    if data is None:
                        return -1
                    self._send_or_drop(consumer, slot, position, data, replay.indexes_of(position))
                found = replay.first_of(consumer) if consumer in self._able else None
            if found is None:
                heapq.heappop(offers)
            else:
                heapq.heapreplace(offers, (found[0], number, consumer))
        return left

    def _read_on(self, left: int) -> int:
        """Read entries that nobody was offered yet; what cannot go out now waits in the replay."""
        published, following = self._topic.published, self._topic.log.next_position
        while left > 0 and self._able and self.read_position <= published and len(self.replay) < _LOOK_AHEAD:
            left -= 1
            position = self.read_position
            data = self._entry(position)
            if data is None:
                return -1
            self.read_position = following(position)
            self._pass_on(position, data, None)
        return left

    def _pass_on(self, position: Position, data: bytes, indexes: int | None) -> None:
        """Send an entry whose slot is not known yet, let it wait for its consumer, or drop it."""
        slot = self._slots.get(position)
        if slot is None:
            slot = sticky_slot(data)
        taker = self._owners.owner(slot)
        holder = self._holders.get(slot)
        is_free = (holder is None or holder[0] is taker) and not self._drains(slot, position)
        if taker is not None and taker in self._able and self._can_take(taker) and is_free and not self.replay.is_waiting(slot):
            self._send_or_drop(taker, slot, position, data, indexes)
        elif self._prepare(position, data, indexes) is None:
            self._drop(position, slot)
        else:
            self._slots[position] = slot
            if position in self.replay:
                self.replay.wait(position, slot)
            else:
                self.replay.add(position, indexes)

    def _send_or_drop(self, taker: Consumer, slot: int, position: Position, data: bytes, indexes: int | None) -> None:
        delivery = self._prepare(position, data, indexes)
        if delivery is None:
            self._drop(position, slot)
            return
        self._drain(slot, position)
        self.replay.discard(position)
        self._slots[position] = slot
        if position not in taker.unacked:
            self._holders[slot] = (taker, self._holders.get(slot, (taker, 0))[1] + 1)
        self._send(taker, position, data, delivery)
        if not self._can_take(taker):
            self._able.discard(taker)
        if self._is_full():
            self._able.clear()

    def _drop(self, position: Position, slot: int) -> None:
        self.replay.discard(position)
        if not self._drain(slot, position):
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

    def _drain(self, slot: int, position: Position) -> bool:
        """Let what follows this entry wait; True if an open transaction acknowledged (a part of) it that no consumer holds."""
        handle, cursor = self.subscription.pending_ack, self.subscription.cursor
        pending = 0 if handle is None or cursor.is_deleted(position) else handle.pending(position)
        left = cursor.ack_set(position) if pending else None
        if left is not None:
            pending &= left  # what is committed stays pending until the cursor's move is durable
        if not pending or any(pending & each.unacked.get(position, 0) for each in self.consumers):
            return False
        self._slots[position] = slot
        if position not in self._undecided:
            self._undecided.add(position)
            heapq.heappush(self._draining.setdefault(slot, []), position)
        return True

    def _decided(self, position: Position) -> None:
        """The transaction has ended."""
        if position in self._undecided:
            self._undecided.discard(position)
            self.replay.release(self._slots[position])
            self.wake()

    def release(self, position: Position, indexes: int | None) -> None:
        """Release what a transaction gave back: it goes out before what follows it."""
        super().release(position, indexes)
        self._decided(position)

    def _waits_for_its_taker(self, position: Position, hints: DispatchHints, indexes: int | None) -> bool:
        return False  # the chunks of a message have one key, or one sequence id: one slot

    def _settle(self, consumer: Consumer, position: Position, indexes: int | None) -> None:
        held = position in consumer.unacked
        super()._settle(consumer, position, indexes)
        if held and position not in consumer.unacked:
            self._left(consumer, position)

    def _left(self, consumer: Consumer, position: Position) -> None:
        """A consumer has settled an entry: when it was the last one of its slot, the slot goes to its owner."""
        slot = self._slots.get(position)
        holder = None if slot is None else self._holders.get(slot)
        if slot is None or holder is None or holder[0] is not consumer:
            return
        if holder[1] == 1:
            del self._holders[slot]
            self.replay.release(slot)
            self.wake()
        else:
            self._holders[slot] = (consumer, holder[1] - 1)

    def settled(self, position: Position, indexes: int | None) -> None:
        """The slot of an entry that is done with is forgotten."""
        super().settled(position, indexes)
        self._decided(position)
        if self.subscription.cursor.is_deleted(position):
            self._slots.pop(position, None)
