"""Key_Shared: entries of one key go to one consumer, in order.

Each consumer owns slots of the key space: by a hash ring of the consumers' names (auto split), or the ranges that it asked
for (sticky). When ownership moves, a slot stays with whoever still holds entries of it unacknowledged; entries that cannot
go out for that reason, or for lack of permits, wait in the replay, and everything of their slot waits behind them.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from pulsar_txn.wire.entries import read_metadata
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.hashing import KEY_SLOTS, key_slot, murmur3_32
from pulsar_txn.wire.ids import DispatchHints, Position

from .consumers import Consumer
from .dispatch import ENTRIES_PER_TURN
from .dispatch_shared import SharedDispatcher

if TYPE_CHECKING:
    from .subscription import Subscription

_POINTS: Final = 100
_LOOK_AHEAD: Final = 2000


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

    def __init__(self, subscription: Subscription, *, sticky: bool) -> None:
        super().__init__(subscription)
        self._sticky = sticky
        self._ring: list[tuple[int, Consumer]] = []
        self._slots: dict[Position, int] = {}
        self._holders: dict[int, tuple[Consumer, int]] = {}

    def add(self, consumer: Consumer) -> None:
        """Refusal ConsumerAssignError when its ranges are missing, or taken by another consumer."""
        if self._sticky:
            self._check_ranges(consumer)
        super().add(consumer)
        self._divide()

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to the others."""
        super().remove(consumer)
        if not self.consumers:
            self._slots.clear()
            self._holders.clear()
        self._divide()

    def rewind(self) -> None:
        """Slots are read again with their entries."""
        super().rewind()
        self._slots.clear()
        self._holders.clear()

    def _check_ranges(self, consumer: Consumer) -> None:
        ranges = consumer.key_ranges or ()
        if not ranges or any(not 0 <= start <= end < KEY_SLOTS for start, end in ranges):
            raise Refusal(ServerError.ConsumerAssignError, f"ranges {ranges}: give some within 0 to {KEY_SLOTS - 1}")
        for other in self.consumers:
            if any(start <= b and a <= end for start, end in ranges for a, b in other.key_ranges or ()):
                raise Refusal(ServerError.ConsumerAssignError, f"a range of {ranges} belongs to consumer {other.name!r}")

    def _divide(self) -> None:
        self._ring = (
            []
            if self._sticky
            else sorted(
                (
                    (murmur3_32(f"{each.name}-{each.consumer_id}-{point}".encode()) % KEY_SLOTS, each)
                    for each in self.consumers
                    for point in range(_POINTS)
                ),
                key=lambda item: (item[0], item[1].name),
            )
        )
        self.wake()

    def _owner(self, slot: int) -> Consumer | None:
        if self._sticky:
            return next((each for each in self.consumers for start, end in each.key_ranges or () if start <= slot <= end), None)
        if not self._ring:
            return None
        place = bisect_left(self._ring, slot, key=lambda item: item[0])
        return self._ring[place % len(self._ring)][1]

    def _taker(self, slot: int) -> Consumer | None:
        """The slot's consumer if it can take something, and nobody else still holds entries of the slot."""
        owner = self._owner(slot)
        if owner is None or not self._can_take(owner):
            return None
        holder = self._holders.get(slot)
        return owner if holder is None or holder[0] is owner else None

    def _dispatch(self) -> None:
        blocked: set[int] = set()
        if not self.consumers or self._is_full():
            return
        for position, indexes in self.replay.in_order():
            slot = self._slots.get(position)
            if slot is not None and (slot in blocked or self._taker(slot) is None):
                blocked.add(slot)
                continue
            if not self._pass_on(position, indexes, blocked):
                return
        entries = ENTRIES_PER_TURN
        while self.read_position <= self._topic.published and len(self.replay) < _LOOK_AHEAD:
            if not any(self._can_take(each) for each in self.consumers):
                return
            if not entries:
                self.wake()
                return
            position = self.read_position
            if not self._pass_on(position, None, blocked):
                return
            self.read_position = self._topic.log.next_position(position)
            entries -= 1

    def _pass_on(self, position: Position, indexes: int | None, blocked: set[int]) -> bool:
        """Send an entry, put it into the replay, or drop it; False when it has to be read first."""
        data = self._entry(position)
        if data is None:
            return False
        delivery = self._prepare(position, data, indexes)
        if delivery is None:
            self.replay.discard(position)
            self._slots.pop(position, None)
            return True
        slot = self._slots.get(position)
        if slot is None:
            slot = self._slots[position] = sticky_slot(data)
        taker = None if slot in blocked else self._taker(slot)
        if taker is None:
            blocked.add(slot)
            self.replay.add(position, indexes)
            return True
        self.replay.discard(position)
        if position not in taker.unacked:
            self._holders[slot] = (taker, self._holders.get(slot, (taker, 0))[1] + 1)
        self._send(taker, position, data, delivery)
        return True

    def _waits_for_its_taker(self, position: Position, hints: DispatchHints, indexes: int | None) -> bool:
        return False  # the chunks of a message have one key, or one sequence id: one slot

    def _left(self, consumer: Consumer, position: Position) -> None:
        if position in consumer.unacked:
            return
        slot = self._slots.get(position)
        holder = None if slot is None else self._holders.get(slot)
        if slot is None or holder is None or holder[0] is not consumer:
            return
        if holder[1] == 1:
            del self._holders[slot]
            self.wake()
        else:
            self._holders[slot] = (consumer, holder[1] - 1)

    def settled(self, position: Position, indexes: int | None) -> None:
        """The slot of an entry that is done with is forgotten."""
        super().settled(position, indexes)
        if self.subscription.cursor.is_deleted(position):
            self._slots.pop(position, None)
