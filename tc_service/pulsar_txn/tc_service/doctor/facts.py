"""Facts that the doctor has seen of a cluster: values, without IO."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from pulsar_txn.wire.ids import MarkerType, Position, TxnId
from pulsar_txn.wire.values import value


class Status(enum.Enum):
    """Status that the coordinator of a transaction says of it."""

    OPEN = "open"
    COMMITTING = "being committed"
    ABORTING = "being aborted"
    NOT_KNOWN = "not known"
    AWAY = "its coordinator is not ready"


@value
class KnownTxn:
    """A transaction that its coordinator has. `acked`: pairs of topic and subscription."""

    txn_id: TxnId
    status: Status
    opened_ms: int
    timeout_ms: int
    produced: frozenset[str]
    acked: frozenset[tuple[str, str]]


@value
class CoordinatorFacts:
    """One coordinator. `last_id`: the newest id that it gave out."""

    number: int
    state: str
    last_id: int
    ongoing: int


@value
class EntryFacts:
    """Facts that an entry of a topic says of itself."""

    position: Position
    txn_id: TxnId | None
    marker: int | None
    published_ms: int

    @property
    def outcome(self) -> str | None:
        """`commit` or `abort` for a marker of a transaction."""
        if self.marker == MarkerType.TXN_COMMIT:
            return "commit"
        return "abort" if self.marker == MarkerType.TXN_ABORT else None


@value
class BufferFacts:
    """The transaction buffer of a topic. `recovering_since_ms`: 0 once it has recovered."""

    topic: str
    state: str
    max_read_position: Position
    ongoing: int
    recovering_since_ms: int


@value
class PendingAckFacts:
    """The pending acknowledgements of a subscription."""

    topic: str
    subscription: str
    state: str
    ongoing: int
    unacknowledged: int
    recovering_since_ms: int


class Ledgers:
    """The ledgers of a topic in order, with their numbers of entries: steps from entry to entry."""

    def __init__(self, ledgers: Sequence[tuple[int, int]]) -> None:
        self._ids = [ledger_id for ledger_id, entries in ledgers if entries]
        self._entries = [entries for _, entries in ledgers if entries]

    @classmethod
    def of(cls, internal_stats: Mapping[str, object]) -> Ledgers:
        """From the answer of `internalStats`, where the newest ledger has its count beside the others."""
        listed: list[dict[str, int]] = internal_stats["ledgers"]  # type: ignore[assignment]  # as the broker writes it
        found = [(int(each["ledgerId"]), int(each["entries"])) for each in listed]
        newest, last = position_of(str(internal_stats["lastConfirmedEntry"]))
        return cls([(ledger_id, last + 1 if ledger_id == newest else entries) for ledger_id, entries in found])

    def after(self, position: Position) -> Position | None:
        """The next entry; None after the last one."""
        place = bisect_left(self._ids, position[0])
        if place < len(self._ids) and self._ids[place] == position[0]:
            if position[1] + 1 < self._entries[place]:
                return position[0], position[1] + 1
            place += 1
        return (self._ids[place], 0) if place < len(self._ids) else None

    def before(self, position: Position) -> Position | None:
        """The entry before; None before the first one."""
        place = bisect_left(self._ids, position[0])
        if place < len(self._ids) and self._ids[place] == position[0] and position[1] > 0:
            return position[0], min(position[1], self._entries[place]) - 1
        return (self._ids[place - 1], self._entries[place - 1] - 1) if place else None

    def count_after(self, position: Position) -> int:
        """Return how many entries come after a position."""
        place = bisect_left(self._ids, position[0])
        if place == len(self._ids):
            return 0
        here = self._entries[place] - position[1] - 1 if self._ids[place] == position[0] else self._entries[place]
        return max(here, 0) + sum(self._entries[place + 1 :])


def position_of(text: str) -> Position:
    """`ledger:entry`."""
    ledger_id, _, entry_id = text.partition(":")
    return int(ledger_id), int(entry_id)
