"""Redelivery of messages: after a negative acknowledgement, or when it was not acknowledged in time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from pulsar_txn.client._checks import as_seconds, number
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.net.timer import NearestTimer
from pulsar_txn.client.receive.message import Message, Source
from pulsar_txn.client.receive.owners import UNKNOWN, Delivery, Place, bit_of
from pulsar_txn.wire.ids import Position

SLACK = 0.01
"""Seconds that a negative acknowledgement may be early, so that a burst of them needs one timer."""


@attrs.frozen
class RedeliveryBackoff:
    """Delays that grow with each delivery: `min_delay` at first, times `multiplier`, at most `max_delay`.

    Raises InvalidConfiguration for delays that cannot grow. Brokers count deliveries on Shared and Key_Shared only.
    """

    min_delay: float = attrs.field(default=1.0, converter=as_seconds, validator=number)
    max_delay: float = attrs.field(default=600.0, converter=as_seconds, validator=number)
    multiplier: float = attrs.field(default=2.0, validator=number)

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.min_delay <= self.max_delay or self.multiplier < 1:
            raise InvalidConfiguration(
                f"delays from {self.min_delay} to {self.max_delay} s by {self.multiplier} are impossible",
                hint="0 <= min_delay <= max_delay, and multiplier at least 1",
            )

    def delay(self, redelivery_count: int) -> float:
        """Seconds until the next delivery of what was redelivered so often before."""
        try:
            return float(min(self.min_delay * self.multiplier**redelivery_count, self.max_delay))
        except OverflowError:
            return self.max_delay


class NackTracker:
    """Asks for redelivery when the delay of a message is over; what is due at about the same time goes together.

    One timer serves all partitions of a consumer.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heap: list[tuple[float, int, Position]] = []
        self._waiting: dict[tuple[int, Position], tuple[Source, tuple[int, int, Delivery], list[Message[Any]]]] = {}
        """By partition and entry: where it comes from, which messages of it are wanted, and copies of them."""
        self._timer = NearestTimer(runtime, self._on_due)

    def add(
        self,
        source: Source,
        position: Position,
        bits: tuple[int, int, Delivery],
        delay: float,
        copies: Sequence[Message[Any]] = (),
    ) -> None:
        """Have messages of an entry again in `delay` seconds: `(bits, batch size, delivery)`, where bits 0 are all of it.

        `copies` are as in `Recall.these`. When others of the entry wait already, these come with them.
        """
        key = source.id, position
        waiting = self._waiting.get(key)
        if waiting is not None:
            both = bits[0] | waiting[1][0] if bits[0] and waiting[1][0] else 0
            self._waiting[key] = (source, (both, bits[1], bits[2]), [*waiting[2], *copies])
            return
        self._waiting[key] = (source, bits, list(copies))
        heapq.heappush(self._heap, (self._runtime.monotonic() + delay, *key))
        self._timer.set(self._heap[0][0])

    def close(self) -> None:
        """Forget everything: closing the consumer brings all of it back at once."""
        self._timer.cancel()
        self._heap.clear()
        self._waiting.clear()

    def _on_due(self, now: float) -> None:
        until = now + SLACK
        due: dict[Source, tuple[dict[Position, tuple[int, int, Delivery]], list[Message[Any]]]] = {}
        while self._heap and self._heap[0][0] <= until:
            _, part_id, position = heapq.heappop(self._heap)
            source, bits, known = self._waiting.pop((part_id, position))
            entries, copies = due.setdefault(source, ({}, []))
            entries[position] = bits
            copies += known
        for source, (entries, copies) in due.items():
            source.deliver_again(entries, copies)
        if self._heap:
            self._timer.set(self._heap[0][0])


class AckTimeouts:
    """Asks for redelivery of what a program has received and not acknowledged in time. One timer for a consumer.

    A message that is acknowledged in a transaction is forgotten here as well, after the broker has said yes: if the
    transaction aborts, it comes again anyway. What the broker refuses would not.
    """

    SLACK = 0.05
    """Seconds that a message may be early, so that those received together need one timer."""

    def __init__(self, runtime: Runtime, timeout: float, backoff: RedeliveryBackoff | None) -> None:
        self._runtime = runtime
        self._timeout = timeout
        self._backoff = backoff
        self._heap: list[tuple[float, int, Position, int]] = []
        self._waiting: dict[tuple[int, Position, int], tuple[float, Message[Any]]] = {}
        self._timer = NearestTimer(runtime, self._on_due)

    def __len__(self) -> int:
        return len(self._waiting)

    def received(self, messages: Iterable[Message[Any]]) -> None:
        """The program has these messages now."""
        now = self._runtime.monotonic()
        for message in messages:
            entry = message.entry
            seconds = self._timeout if self._backoff is None else self._backoff.delay(entry.redelivery_count)
            due = now + seconds
            self._waiting[entry.consumer.id, entry.position, message.index] = (due, message)
            heapq.heappush(self._heap, (due, entry.consumer.id, entry.position, message.index))
        self._set_timer()

    def settled(self, part_id: int, places: Iterable[Place], *, cumulative: bool) -> None:
        """These are acknowledged, or will come again for another reason."""
        if cumulative:
            last = max(place[:2] if place[1] >= 0 else (place[0], 1 << 31) for place in places)
            for key in [key for key in self._waiting if key[0] == part_id and key[1:] <= last]:
                del self._waiting[key]
            return
        for position, index, _ in places:
            self._waiting.pop((part_id, position, index), None)

    def forget(self, part_id: int) -> None:
        """All of this partition consumer comes again."""
        for key in [key for key in self._waiting if key[0] == part_id]:
            del self._waiting[key]

    def close(self) -> None:
        """Forget everything."""
        self._timer.cancel()
        self._heap.clear()
        self._waiting.clear()

    def _set_timer(self) -> None:
        if self._heap:
            self._timer.set(self._heap[0][0])

    def _on_due(self, now: float) -> None:
        until = now + self.SLACK
        late: dict[Source, tuple[dict[Position, tuple[int, int, Delivery]], list[Message[Any]]]] = {}
        while self._heap and self._heap[0][0] <= until:
            due, part_id, position, index = heapq.heappop(self._heap)
            known = self._waiting.get((part_id, position, index))
            if known is not None and known[0] == due:
                del self._waiting[part_id, position, index]
                entry = known[1].entry
                those, copies = late.setdefault(entry.consumer, ({}, []))
                bits = those.get(position, (0, 0, UNKNOWN))[0] | bit_of(index)
                those[position] = (bits, entry.batch_size, entry.delivery)
                copies.append(known[1])
        for source, (entries, copies) in late.items():
            source.deliver_again(entries, copies)
        self._set_timer()
