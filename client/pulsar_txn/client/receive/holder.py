"""Holder of what a loop over units has received: it keeps the messages while unit after unit tries to acknowledge them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from pulsar_txn.client.receive.joined import Joined
from pulsar_txn.client.receive.message import Message, bits_of, runs
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.client.state.owners import Hold, State, bit_of, indexes
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import Position

T = TypeVar("T")
Key: TypeAlias = tuple[str, Position, int]
"""Topic, position and index of a message: their order is that of a topic."""


class Holder(Generic[T]):
    """One per loop. A copy of what it holds is dropped when it comes in."""

    def __init__(self, reception: Reception[T]) -> None:
        self._reception = reception
        self._holds: dict[PartitionConsumer, Hold] = {}

    async def take(self, max_messages: int, max_wait: float | timedelta | None) -> list[Message[T]]:
        """As `receive_many`, entries as a whole where `max_messages` allows it. They are held from now on."""
        reception = self._reception
        reception.check_open()
        await reception.ready(max_messages, max_wait)
        with reception.inbox.guard:
            queued = reception.inbox.take_whole(max_messages)
            reception.hand_out(queued)
            taken = self._held(queued)
        if reception.is_observed and taken:
            reception.observe(taken)
        return taken

    def _held(self, messages: Sequence[Message[T]]) -> list[Message[T]]:
        held: list[Message[T]] = []
        for run in runs(messages):
            part = self._reception.partitions.of_message(run[0])
            if part is None:
                continue
            free = part.hold(self._holds.setdefault(part, Hold(State.HELD, self)), run, bits_of(run))
            for message in run:
                bit = bit_of(message.index)
                if free & bit:
                    free &= ~bit
                    held.append(message)
        return held

    def join(self, messages: Sequence[Message[T]], unit: Unit) -> Joined:
        """Let them join a unit.

        When it aborts before it has acknowledged anything, they are held again. Raises as its `join`.
        """
        joined = self._reception.inputs.of(unit)
        unit.join(self._reception.core, joined)
        joined.add(messages, self._holds)
        return joined

    def give_back(self, messages: Sequence[Message[T]]) -> None:
        """Have these delivered again, to whoever gets them; on Exclusive and Failover before all others."""
        for part, entries in self._reception.acknowledger.entries(messages).items():
            part.machine.leave_units({position: bits for position, (bits, _, _) in entries.items()})
            part.deliver_again(
                entries, [message for message in messages if self._reception.partitions.of_message(message) is part]
            )
            if self._reception.options.consumer_type.is_single:
                part.keep_back_until(min((m.entry.position, m.index) for m in messages if m.entry.consumer is part))

    def expect(self, messages: Sequence[Message[T]], lost: Callable[[list[Key]], None]) -> None:
        """After an abort these come again: ask for them until they do. `lost` is called, later, with those that do not."""
        of = self._reception.partitions.of_message
        left = [key_of(message) for message in messages if of(message) is None]
        if left:
            self._reception.core.runtime.call_later(0, lost, left)
        for part, entries in self._reception.acknowledger.entries(messages).items():

            def say(rest: Mapping[Position, int], topic: str = part.topic, sizes: Any = entries) -> None:
                lost([(topic, at, index) for at, bits in rest.items() for index in indexes(bits, sizes[at][1])])

            part.expect(entries, say)

    def take_queued(self, matches: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Those that wait in the queue and match, which are not in it any more; to be given back."""
        taken = self._reception.inbox.take_matching(matches)
        for message in taken:
            message.entry.consumer.give_permits_back(1)
        return taken


def key_of(message: Message[Any]) -> Key:
    """The key that tells a message from all others."""
    return message.topic, message.entry.position, message.index
