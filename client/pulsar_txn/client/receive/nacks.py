"""Negative acknowledgements: which entries are to come again, and when. One timer for a consumer."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.net.timer import NearestTimer
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.client.receive.partition_consumer import PartitionConsumer


class NackTracker:
    """Asks for redelivery when the delay of an entry is over; entries that are due at about the same time go together."""

    SLACK = 0.01
    """Seconds that an entry may be early, so that a burst of them needs one timer."""

    def __init__(self, runtime: Runtime, consumer_type: ConsumerType) -> None:
        self._runtime = runtime
        self._single = consumer_type.is_single
        self._heap: list[tuple[float, int, Position, PartitionConsumer]] = []
        self._waiting: set[tuple[int, Position]] = set()
        self._timer = NearestTimer(runtime, self._on_due)

    def add(self, part: PartitionConsumer, position: Position, delay: float) -> None:
        """Have this entry again in `delay` seconds; a second call for a waiting entry changes nothing."""
        if (part.id, position) in self._waiting:
            return
        self._waiting.add((part.id, position))
        heapq.heappush(self._heap, (self._runtime.monotonic() + delay, part.id, position, part))
        self._timer.set(self._heap[0][0])

    def close(self) -> None:
        """Forget everything: closing the consumer brings all of it back at once."""
        self._timer.cancel()
        self._heap.clear()

    def _on_due(self, now: float) -> None:
        until = now + self.SLACK
        due: dict[PartitionConsumer, list[Position]] = {}
        while self._heap and self._heap[0][0] <= until:
            _, part_id, position, part = heapq.heappop(self._heap)
            self._waiting.discard((part_id, position))
            due.setdefault(part, []).append(position)
        for part, positions in due.items():
            part.redeliver(positions)
        if self._heap:
            self._timer.set(self._heap[0][0])
