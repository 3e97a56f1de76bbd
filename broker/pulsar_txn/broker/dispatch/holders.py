"""Holders of the entries of a Shared or Key_Shared subscription: one table, keyed by entry and index.

`TRANSITIONS` says what an event does to a message in each of its states, as the dispatch of its subscription sees it:

* AHEAD: not read yet, since the subscription was last read from its mark-delete position.
* WAITING: read, and to go out as soon as a consumer may have it (`waiting.Replay`).
* DEFERRED: waits for its time, or for the consumer that takes the chunks of its message.
* HELD: a consumer was sent it, and it counts against what that consumer may hold.
* PLEDGED: an open transaction has acknowledged it. Its consumer has it for its key, and has room for another one.
* AWAY: no business of the dispatch until somebody gives it back: settled, for nobody (markers, aborted data), or acknowledged
  in an open transaction with no consumer that holds it.

Two of them are kept here; where the others are is known from the place in which a message waits, and from how far the log was
read. A message of a batch is one bit (bit i is index i; an entry that is one message has bit 0), and messages of an entry that
are in one state move together. Parts of an entry may be with several consumers: a part comes again by itself after an abort.

Nothing is told of entries on Exclusive and Failover: one consumer gets everything in order, and the cursor says it all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pulsar_txn.wire.ids import Position

from .consumers import Consumer


class State(enum.IntEnum):
    """State of one message."""

    AHEAD = 0
    WAITING = 1
    DEFERRED = 2
    HELD = 3
    PLEDGED = 4
    AWAY = 5


class Event(enum.IntEnum):
    """Something that happens to a message."""

    GIVE = 0
    """Reading it, with a consumer that takes it."""
    WAIT = 1
    """Reading it, while the consumer that it is for cannot take it."""
    DEFER = 2
    """Reading it before its time, or while the consumer of its chunks cannot take it."""
    PASS = 3
    """Reading it, when nobody is to have it."""
    DUE = 4
    """End of what it was deferred for."""
    ACKNOWLEDGE = 5
    """Acknowledgement for good: by a plain ACK, or by a commit."""
    PLEDGE = 6
    """Acknowledgement in an open transaction."""
    RELEASE = 7
    """Abort of the transaction that acknowledged it."""
    RETURN = 8
    """Refusal by its consumer (negative acknowledgement), or the end of that consumer."""
    REWIND = 9
    """New reading of the subscription from its mark-delete position."""


class Act(enum.Enum):
    """The table's answer to an event."""

    SEND = "send it"
    QUEUE = "let it wait for a consumer"
    DEFER = "let it wait for what it needs"
    FORGET = "forget it"
    FREE = "give its consumer room for another one"
    TAKE = "take it from its consumer"
    KEEP = "do nothing"


class Cell(NamedTuple):
    """An act, and the state after it."""

    act: Act
    to: State


_AHEAD, _WAITING, _DEFERRED, _HELD, _PLEDGED, _AWAY = State


def _row(event: Event, *cells: tuple[Act, State]) -> dict[tuple[State, Event], Cell]:
    return {(state, event): Cell(*cell) for state, cell in zip(State, cells, strict=True)}


def _keeps(*states: State) -> tuple[tuple[Act, State], ...]:
    return tuple((Act.KEEP, state) for state in states)


_NOT_LOOKED_AT: Final = _keeps(_DEFERRED, _HELD, _PLEDGED, _AWAY)
"""A message that is with a consumer, waits for something else or is nobody's is not looked at; others of its entry may be."""

TRANSITIONS: Final[Mapping[tuple[State, Event], Cell]] = {
    **_row(Event.GIVE, *[(Act.SEND, _HELD)] * 2, *_NOT_LOOKED_AT),
    **_row(Event.WAIT, *[(Act.QUEUE, _WAITING)] * 2, *_NOT_LOOKED_AT),
    **_row(Event.DEFER, *[(Act.DEFER, _DEFERRED)] * 2, *_NOT_LOOKED_AT),
    **_row(Event.PASS, *[(Act.FORGET, _AWAY)] * 2, *_NOT_LOOKED_AT),
    **_row(Event.DUE, *_keeps(_AHEAD, _WAITING), (Act.QUEUE, _WAITING), *_keeps(_HELD, _PLEDGED, _AWAY)),
    # What waits and is acknowledged meanwhile is passed over when its turn comes.
    **_row(Event.ACKNOWLEDGE, *_keeps(_AHEAD, _WAITING, _DEFERRED), *[(Act.TAKE, _AWAY)] * 2, *_keeps(_AWAY)),
    **_row(Event.PLEDGE, *_keeps(_AHEAD, _WAITING, _DEFERRED), (Act.FREE, _PLEDGED), *_keeps(_PLEDGED, _AWAY)),
    **_row(Event.RELEASE, *_keeps(_AHEAD), *[(Act.QUEUE, _WAITING)] * 5),
    **_row(Event.RETURN, *_keeps(_AHEAD, _WAITING, _DEFERRED), *[(Act.QUEUE, _WAITING)] * 2, *_keeps(_AWAY)),
    **_row(Event.REWIND, (Act.KEEP, _AHEAD), *[(Act.FORGET, _AHEAD)] * 5),
}

_AFTER: Final = [(TRANSITIONS[_HELD, event].to, TRANSITIONS[_PLEDGED, event].to) for event in Event]
"""By event: the states after it of what a consumer holds, and of what it holds for its key only."""

_NOBODY: Final[Sequence[Consumer]] = ()


class Holders:
    """The table. `count`: the messages that consumers hold, without those that are pledged.

    The bits are with the consumers (`Consumer.unacked`, and those of them that are pledged in `Consumer.pledged`), so that an
    entry of one consumer takes no object of its own here.
    """

    __slots__ = ("_of", "count")

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[Position, Consumer | list[Consumer]] = {}

    def __contains__(self, position: Position) -> bool:
        return position in self._of

    def of(self, position: Position) -> Sequence[Consumer]:
        """Consumers that have something of an entry."""
        known = self._of.get(position)
        if known is None:
            return _NOBODY
        return tuple(known) if isinstance(known, list) else (known,)

    def state(self, position: Position, index: int) -> State | None:
        """HELD or PLEDGED; None when no consumer has this message."""
        for each in self.of(position):
            if each.unacked[position] >> index & 1:
                return State.PLEDGED if each.pledged.get(position, 0) >> index & 1 else State.HELD
        return None

    def give(self, position: Position, consumer: Consumer, indexes: int) -> None:
        """Event GIVE of messages that no consumer has."""
        messages = indexes.bit_count()
        known = self._of.get(position)
        if known is None:
            self._of[position] = consumer
            consumer.hold(position, indexes, messages)
        else:
            if isinstance(known, list):
                if consumer not in known:
                    known.append(consumer)
            elif known is not consumer:
                self._of[position] = [known, consumer]
            consumer.hold(position, consumer.unacked.get(position, 0) | indexes, messages)
        self.count += messages

    def tell(
        self, position: Position, event: Event, indexes: int | None = None, consumer: Consumer | None = None
    ) -> Sequence[Consumer]:
        """An event of messages of an entry (None: of all of it) with their consumers, or with one of them.

        Returns the consumers that have nothing of the entry any more.
        """
        known = self._of.get(position)
        if known is None:
            return _NOBODY
        after_held, after_pledged = _AFTER[event]
        gone: list[Consumer] = []
        for each in tuple(known) if isinstance(known, list) else (known,):
            if consumer is not None and each is not consumer:
                continue
            bits = each.unacked[position]
            pledged = each.pledged.get(position, 0) if each.pledged else 0
            named = bits if indexes is None else bits & indexes
            moved = 0 if after_held is _HELD else named & ~pledged
            left = bits if after_held is _PLEDGED else bits & ~moved
            if after_held is _PLEDGED:
                pledged |= moved
            elif after_pledged is not _PLEDGED:
                left &= ~(named & pledged)
                pledged &= ~named
            messages = moved.bit_count()
            self.count -= messages
            if left:
                each.keep(position, left, pledged, messages)
            else:
                each.let_go(position, messages)
                gone.append(each)
        if gone:
            if isinstance(known, list) and len(gone) < len(known):
                known[:] = [each for each in known if each not in gone]
            else:
                del self._of[position]
        return gone

    def clear(self) -> None:
        """Event REWIND of everything."""
        for position in list(self._of):
            self.tell(position, Event.REWIND)
