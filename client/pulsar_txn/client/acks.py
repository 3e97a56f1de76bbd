"""Which messages are acknowledged: collected for a moment, merged per entry, and known while a transaction is open.

Ack sets are ints: bit i is set while index i of a batch is *not* acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import Position, full_ack_set

Place: TypeAlias = tuple[Position, int, int]
"""`(position, batch_index, batch_size)`; index -1 is an entry that is one message."""

PARTIAL_LIMIT: Final = 100_000
"""Entries of which part is acknowledged that are remembered; beyond it the oldest are forgotten (the broker knows them)."""


class AckTracker:
    """Acknowledgements outside transactions that wait to be sent together."""

    def __init__(self) -> None:
        self._individual: dict[Position, tuple[int | None, int]] = {}
        self._left: dict[Position, int] = {}
        self._cumulative: Place | None = None

    def __len__(self) -> int:
        return len(self._individual) + (self._cumulative is not None)

    def add(self, place: Place) -> None:
        """One message was acknowledged. The last index of an entry makes it an acknowledgement of the whole entry."""
        position, index, size = place
        if index < 0:
            self._individual[position] = (None, 0)
            return
        left = self._left.get(position, full_ack_set(size)) & ~(1 << index)
        if left:
            if len(self._left) >= PARTIAL_LIMIT:
                del self._left[next(iter(self._left))]
            self._left[position] = left
            self._individual[position] = (left, size)
        else:
            self._left.pop(position, None)
            self._individual[position] = (None, size)

    def add_cumulative(self, place: Place) -> None:
        """Everything up to and with this message was acknowledged."""
        if self._cumulative is None or place[:2] > self._cumulative[:2]:
            self._cumulative = place

    def take(self) -> tuple[list[AckId], list[AckId]]:
        """What waits, as `(individual, cumulative)` ids for `wire.hot.encode_ack`; nothing waits afterwards."""
        cumulative = [] if self._cumulative is None else [cumulative_id(self._cumulative)]
        individual = [(*position, left, size) for position, (left, size) in self._individual.items()]
        self._individual, self._cumulative = {}, None
        return individual, cumulative

    def clear(self) -> None:
        """Forget everything: the subscription was moved."""
        self._individual, self._cumulative = {}, None
        self._left.clear()

    def forget_partial(self) -> None:
        """Forget which entries are partly acknowledged: the broker says it anew with the next delivery."""
        self._left.clear()


def cumulative_id(place: Place) -> AckId:
    """The id of a cumulative acknowledgement: up to and with an index of a batch, or the whole entry."""
    (ledger_id, entry_id), index, size = place
    if index < 0 or index >= size - 1:
        return (ledger_id, entry_id, None, size)
    return (ledger_id, entry_id, full_ack_set(size) & ~full_ack_set(index + 1), size)


def merged_ids(places: Iterable[Place]) -> list[AckId]:
    """Individual acknowledgements of one request: the indexes of one entry merged, a complete entry as a whole."""
    left: dict[Position, tuple[int | None, int]] = {}
    for position, index, size in places:
        if index < 0:
            left[position] = (None, 0)
        else:
            before = left.get(position, (full_ack_set(size), size))[0]
            left[position] = ((before or 0) & ~(1 << index), size)
    return [(*position, mask or None, size) for position, (mask, size) in left.items()]


class OpenTransactionAcks:
    """Which messages are acknowledged in transactions that are still open: nobody may acknowledge them a second time.

    Stock brokers let that happen once a whole batch is pending, so it is refused here. Value: bits of indexes, -1 for all.
    """

    def __init__(self) -> None:
        self._acked: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._acked)

    def holds(self, place: Place) -> bool:
        """Whether this message is acknowledged in an open transaction."""
        position, index, _ = place
        acked = self._acked.get(position)
        return acked is not None and (acked == -1 or index < 0 or bool(acked >> index & 1))

    def bits(self, position: Position) -> int:
        """The indexes of an entry that are; -1 for all of it, 0 for none."""
        return self._acked.get(position, 0)

    def add(self, places: Iterable[Place]) -> None:
        """These are now."""
        for position, index, _ in places:
            self._acked[position] = -1 if index < 0 else self._acked.get(position, 0) | 1 << index

    def remove(self, places: Iterable[Place]) -> None:
        """Their transaction has ended."""
        for position, index, _ in places:
            acked = self._acked.get(position, 0)
            left = 0 if index < 0 or acked == -1 else acked & ~(1 << index)
            if left:
                self._acked[position] = left
            else:
                self._acked.pop(position, None)
