"""Acknowledgements that leave together: collected for a moment, merged per entry, as the ids of ACK.

Ack sets are ints: bit i is set while index i of a batch is *not* acknowledged.

Sources: CommandAck; ack sets (PIP-54).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pulsar_txn.client.state.owners import MessagePosition
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import Position, full_ack_set

PARTIAL_LIMIT: Final = 100_000
"""Entries of which part is acknowledged that are remembered; beyond it the oldest are forgotten (the broker knows them)."""


class AckGroup:
    """Acknowledgements outside of transactions that wait to be sent together.

    They are only collected while they come, and merged by entry when they are taken: many neighbours in a batch cost
    hardly more than one message then.
    """

    def __init__(self) -> None:
        self.positions: list[MessagePosition] = []
        """Waiting acknowledgements that are not merged yet."""
        self._individual: dict[Position, tuple[int | None, int]] = {}
        self._left: dict[Position, int] = {}
        self._cumulative: MessagePosition | None = None

    def __len__(self) -> int:
        return len(self.positions) + len(self._individual) + (self._cumulative is not None)

    def add(self, positions: Iterable[MessagePosition]) -> None:
        """Messages were acknowledged. The last index of an entry makes it an acknowledgement of the whole entry."""
        self.positions.extend(positions)

    def _merge(self) -> None:
        positions, self.positions = self.positions, []
        at: Position | None = None
        first = following = size = 0
        for position, index, size_here in positions:
            if index == following and (position is at or position == at):
                following += 1
                continue
            if at is not None:
                self._merge_bits(at, None if first < 0 else (1 << following) - (1 << first), size)
            at, first, following, size = position, index, index + 1 if index >= 0 else -2, size_here
        if at is not None:
            self._merge_bits(at, None if first < 0 else (1 << following) - (1 << first), size)

    def _merge_bits(self, position: Position, bits: int | None, size: int) -> None:
        """Indexes of an entry were acknowledged; None means all of it."""
        waiting = self._individual.get(position)
        if bits is None or (waiting is not None and waiting[0] is None):
            self._individual[position] = (None, size)
            return
        known = self._left.get(position)
        left = (full_ack_set(size) if known is None else known) & ~bits
        if left:
            if known is None and len(self._left) >= PARTIAL_LIMIT:
                del self._left[next(iter(self._left))]
            self._left[position] = left
            self._individual[position] = (left, size)
        else:
            self._left.pop(position, None)
            self._individual[position] = (None, size)

    def add_cumulative(self, at: MessagePosition) -> None:
        """Everything up to and with this message was acknowledged."""
        if self._cumulative is None or at[:2] > self._cumulative[:2]:
            self._cumulative = at

    def take(self) -> tuple[list[AckId], list[AckId]]:
        """Take what waits, as `(individual, cumulative)` ids for `wire.hot.encode_ack`; nothing waits afterwards."""
        self._merge()
        cumulative = [] if self._cumulative is None else [cumulative_id(self._cumulative)]
        individual = [(*position, left, size) for position, (left, size) in self._individual.items()]
        self._individual, self._cumulative = {}, None
        return individual, cumulative

    def clear(self) -> None:
        """Forget everything: the subscription was moved."""
        self.positions = []
        self._individual, self._cumulative = {}, None
        self._left.clear()

    def forget_partial(self) -> None:
        """Forget which entries are partly acknowledged: the broker says it again with the next delivery."""
        self._merge()
        self._left.clear()


def cumulative_id(at: MessagePosition) -> AckId:
    """The id of a cumulative acknowledgement: up to and with an index of a batch, or the whole entry."""
    (ledger_id, entry_id), index, size = at
    if index < 0 or index >= size - 1:
        return (ledger_id, entry_id, None, size)
    return (ledger_id, entry_id, full_ack_set(size) & ~full_ack_set(index + 1), size)


def named_ids(entries: Mapping[Position, tuple[int, int]]) -> list[AckId]:
    """Individual acknowledgements of one request in a transaction, from `(bits, batch size)` by entry: all indexes are named.

    A batch is never acknowledged as a whole, also when all its indexes are here: "the whole entry" does not say which
    messages are meant, so stock brokers take it when another transaction has committed some of them, and both commit.
    """
    return [(*position, full_ack_set(size) & ~bits if size else None, size) for position, (bits, size) in entries.items()]
