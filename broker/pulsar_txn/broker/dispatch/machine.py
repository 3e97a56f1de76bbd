"""Dispatch of a subscription: which entry goes to which consumer, and when. A machine without IO, clock or log.

There are three kinds: `SingleActive` here (Exclusive and Failover), `shared.Shared` and `key_shared.KeyShared`. The shell
around them (`topics.dispatcher`) knows the log, the cursor and what transactions hold; it tells events, and performs the
effects that they return. Then it works once at the end of the loop turn:

    begin(now_ms)              what is given back, or due, is taken
    wanted(published)          the next position to look at; None when no consumer can take anything, or nothing is there
    offer(position, …)         the shell has read that entry and says what of it may be delivered; the answer says who gets it
    end(now_ms)                when to come back without being woken

An entry that is wanted and not offered (it has to be read first, the turn is over) is wanted again. So the order of what is
sent is decided in one place, and a turn may end between any two entries.

Where a message is, and what an event does to it, is in the table of `holders`; on Exclusive and Failover everything is either
ahead of `read_position` or with the active consumer, and whatever comes again comes with all that follows it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import attrs

from pulsar_txn.wire.ids import EntryHeader, Position, full_ack_set

from .consumers import Consumer, by_priority

Delivery: TypeAlias = tuple[Consumer, int | None, int]
"""An entry goes out: `(consumer, ack_set, redeliveries)`; `ack_set` is None for all of it."""


@attrs.frozen
class Rewind:
    """Read again from after the mark-delete position, and tell the machine where that is (`Dispatch.rewind`)."""


@attrs.frozen
class Activate:
    """This consumer gets everything from now on: from the compacted copy if it reads that. A `Rewind` follows."""

    consumer: Consumer | None


@attrs.frozen
class TellActive:
    """Tell a Failover consumer whether it is the active one."""

    consumer: Consumer
    is_active: bool


Effect: TypeAlias = Rewind | Activate | TellActive

REWIND: Final[Sequence[Effect]] = (Rewind(),)
NOTHING: Final[Sequence[Effect]] = ()


def ack_set_of(live: int, batch_size: int) -> int | None:
    """The ack set of a delivery of these indexes: None for all of an entry. `batch_size` is 0 for an entry that is no batch."""
    return None if not batch_size or live == full_ack_set(batch_size) else live


class Dispatch(abc.ABC):
    """Events and turns that all kinds have in common."""

    individual: bool = False
    """True if consumers settle entries one by one (Shared, Key_Shared)."""

    active: Consumer | None = None
    """The consumer that gets everything; None when they share, or nobody is there."""

    must_look: bool = False
    """True if delayed entries have to be looked up in the log again (`begin_look`)."""

    def __init__(self, start: Position) -> None:
        self.consumers: list[Consumer] = []
        self.read_position = start

    @property
    def delayed_count(self) -> int:
        """Entries that wait for their time."""
        return 0

    # ---- events

    @abc.abstractmethod
    def add(self, consumer: Consumer) -> Sequence[Effect]:
        """A consumer came; Refusal when there is no place for it."""

    @abc.abstractmethod
    def remove(self, consumer: Consumer) -> Sequence[Effect]:
        """A consumer went; what it held is delivered again."""

    @abc.abstractmethod
    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> Sequence[Effect]:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES; None means all."""

    @abc.abstractmethod
    def release(self, position: Position, indexes: int | None) -> Sequence[Effect]:
        """A transaction gave an acknowledgement back: deliver that again (None: the whole entry)."""

    @abc.abstractmethod
    def settled(self, position: Position, indexes: int | None) -> None:
        """Indexes of an entry (None: all that is left of it) are acknowledged. Told when `individual`."""

    @abc.abstractmethod
    def pledged(self, position: Position, indexes: int | None) -> None:
        """An open transaction acknowledged indexes of an entry (None: all). Told when `individual`."""

    @abc.abstractmethod
    def acknowledged_by(self, consumer: Consumer, first: Position) -> None:
        """A consumer acknowledged something, `first` at the earliest. Told unless `individual`."""

    def rewind(self, start: Position) -> None:
        """Read again from `start` on."""
        self.read_position = start

    def trimmed(self, position: Position, first: Position) -> None:
        """The entry at `position` is not there any more; the first one after it is at `first`."""
        if self.read_position == position:
            self.read_position = first

    # ---- a turn

    @abc.abstractmethod
    def begin(self, now_ms: float, tick_ms: int) -> None:
        """A turn begins. `tick_ms`: delayed entries that are due in one tick go out together."""

    @abc.abstractmethod
    def wanted(self, published: Position) -> Position | None:
        """The next position to look at, up to `published`; None when nothing can go out now."""

    @abc.abstractmethod
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
        """Offer the entry that is `wanted`. None: it goes to nobody now.

        `following`: the position after it. `live`: the indexes that are neither settled nor in a transaction, nor hidden from
        readers; `pending`: those that open transactions hold. `batch_size` is 0 for an entry that is one message. `header` is
        None when nothing of it is live.
        """

    @abc.abstractmethod
    def end(self, now_ms: float) -> float | None:
        """End a turn. Returns when the next one has to come by itself, in milliseconds: `now_ms` or earlier for at once."""

    # ---- delayed entries that are looked up in the log

    @abc.abstractmethod
    def begin_look(self) -> None:
        """The log is read from the mark-delete position to `read_position`; what is delayed there is told by `delay`."""

    @abc.abstractmethod
    def has(self, position: Position) -> bool:
        """True if an entry is with a consumer, or waits for one."""

    @abc.abstractmethod
    def delay(self, position: Position, deliver_at_ms: int) -> None:
        """This entry waits for its time."""

    @abc.abstractmethod
    def end_look(self) -> None:
        """All that is delayed is told."""

    @abc.abstractmethod
    def close(self) -> None:
        """Nothing goes out any more."""


class SingleActive(Dispatch):
    """Exclusive and Failover: one consumer gets everything, in order. `partition`: which of the best consumers is active."""

    def __init__(self, start: Position, *, failover: bool, partition: int) -> None:
        super().__init__(start)
        self._failover = failover
        self._partition = partition

    def add(self, consumer: Consumer) -> Sequence[Effect]:
        """Failover: the first by (priority, name) becomes active. Exclusive has one place (see `Subscription.add`)."""
        self.consumers = by_priority([*self.consumers, consumer])
        return self._choose(newcomer=consumer)

    def remove(self, consumer: Consumer) -> Sequence[Effect]:
        """The next one takes over from the mark-delete position."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        return self._choose(newcomer=None)

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> Sequence[Effect]:
        """Everything that is not acknowledged comes again; only the active consumer may ask."""
        return REWIND if consumer is self.active else NOTHING

    def release(self, position: Position, indexes: int | None) -> Sequence[Effect]:
        """Everything unacknowledged comes again, not only this entry: otherwise later entries would come before it.

        Clients know this from stock brokers and drop what they have queued.
        """
        return REWIND if position < self.read_position else NOTHING

    def settled(self, position: Position, indexes: int | None) -> None:
        """Do nothing: nobody holds anything here, and the cursor says it all."""

    def pledged(self, position: Position, indexes: int | None) -> None:
        """Do nothing."""

    def acknowledged_by(self, consumer: Consumer, first: Position) -> None:
        """One that lost its place may still acknowledge."""
        for each in self.consumers:
            if each is not consumer:
                each.settled_by_another(first)

    def rewind(self, start: Position) -> None:
        """The active consumer gets everything again that is not settled."""
        super().rewind(start)
        if self.active is not None:
            self.active.given_all_again()

    def _choose(self, newcomer: Consumer | None) -> Sequence[Effect]:
        chosen: Consumer | None = None
        if self.consumers:
            top = [each for each in self.consumers if each.priority == self.consumers[0].priority]
            chosen = top[self._partition % len(top)] if self._partition >= 0 else top[0]
        if chosen is self.active:
            if newcomer is not None and self._failover:
                return (TellActive(newcomer, newcomer is chosen),)
            return NOTHING
        self.active = chosen
        told = [TellActive(each, each is chosen) for each in self.consumers] if self._failover else []
        return (Activate(chosen), *REWIND, *told)

    def begin(self, now_ms: float, tick_ms: int) -> None:
        """Do nothing: nothing is given back in part, and nothing waits for its time."""

    def end(self, now_ms: float) -> float | None:
        """None: it is woken."""
        return None

    def wanted(self, published: Position) -> Position | None:
        """The next entry of the log, as long as the active consumer has permits."""
        active = self.active
        if active is None or not active.can_take(0) or self.read_position > published:
            return None
        return self.read_position

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
        """Give what is live to the active consumer."""
        self.read_position = following
        active = self.active
        if not live or active is None:
            return None
        active.take(live.bit_count())
        return active, ack_set_of(live, batch_size) if batch_size else None, 0

    def begin_look(self) -> None:
        """Do nothing: `must_look` is never true."""

    def has(self, position: Position) -> bool:
        """False: nobody keeps books."""
        return False

    def delay(self, position: Position, deliver_at_ms: int) -> None:
        """Do nothing: in order means at once."""

    def end_look(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
