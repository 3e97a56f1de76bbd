"""Views of dispatchers of a subscription and its topic. They see no more of them than this."""

from __future__ import annotations

from typing import Protocol

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.policies import TopicRules
from pulsar_txn.ledger.protocols import Cursor
from pulsar_txn.wire.ids import EntryHeader, Position
from pulsar_txn.wire.topics import TopicName


class Source(Protocol):
    """Source that a dispatcher reads: the topic's log, or its compacted copy followed by the rest of the log."""

    def next_position(self, position: Position) -> Position:
        """The position to be read after this one."""

    def read_cached(self, position: Position) -> bytes | None:
        """The entry, if it is at hand without waiting."""

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Entries from `start` on, or from the next one that is there."""


class CompactedCopy(Protocol):
    """The compacted copy of a topic."""

    @property
    def source(self) -> Source:
        """The copy, followed by what the log has after it."""


class HiddenEntries(Protocol):
    """Knowledge of a topic's transaction buffer about its entries."""

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        """True if readers must not see an entry: a marker, or data of a transaction that was aborted."""


class PendingEntries(Protocol):
    """Knowledge of a subscription's pending-ack handle about its entries."""

    def pending(self, position: Position) -> int:
        """The batch indexes of an entry that transactions hold, as a bit set: 0 for nothing, WHOLE_ENTRY for all of them."""


class SkippedEntries(Protocol):
    """Entries that go to no consumer, and are acknowledged on its behalf."""

    @property
    def hidden(self) -> SkippedSet:
        """Those that are not acknowledged yet."""

    def hide(self, position: Position) -> None:
        """Hide this entry: nobody gets it."""


class SkippedSet(Protocol):
    """A set that can be emptied."""

    def clear(self) -> None:
        """Forget all."""


class TopicView(Protocol):
    """Topic, as far as a dispatcher reads it. `published`: the last position that readers may see."""

    @property
    def name(self) -> TopicName:
        """Its name."""

    @property
    def config(self) -> BrokerConfig:
        """The broker's configuration."""

    @property
    def turn(self) -> Turn:
        """The loop turns of the broker."""

    @property
    def rules(self) -> TopicRules:
        """Return what its namespace asks of it."""

    @property
    def serving(self) -> bool:
        """True if it is open."""

    @property
    def log(self) -> Source:
        """Its log."""

    @property
    def compaction(self) -> CompactedCopy:
        """Its compacted copy."""

    @property
    def buffer(self) -> HiddenEntries:
        """Its transaction buffer."""

    @property
    def published(self) -> Position:
        """The last position that readers may see."""


class SubscriptionView(Protocol):
    """Subscription, as far as its dispatcher reads it, and how it says that it cannot go on."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def topic(self) -> TopicView:
        """Its topic."""

    @property
    def cursor(self) -> Cursor:
        """Its cursor."""

    @property
    def moves(self) -> SkippedEntries:
        """Return what moves its cursor."""

    @property
    def pending_ack(self) -> PendingEntries | None:
        """The handle of its pending acknowledgements, if it has one."""

    def fail(self, error: Exception) -> None:
        """An entry cannot be delivered: consumers are closed, and new ones hear why."""
