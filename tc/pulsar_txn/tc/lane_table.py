"""Life of a lane: prose, the table, the invariants.

A lane is a value of a transaction's upper id bits. A participant keeps one low watermark for each of these values, refuses
late messages of everything up to it, and aborts what is still open below it. So a lane has one transaction at a time, and the
next one begins after all participants hold the outcome of the one before. Then the watermark that goes with an end is the
transaction's own number, and participants fence exactly.

A lane is UNKNOWN until a NEW record names it. It belongs to one incarnation of one client, and under
one epoch of a transactional id where the client has one. Only this holder's next transaction may take it while it is IDLE.

The reason is a weakness of Pulsar's participants: they forget watermarks when a topic is loaded again. Then a client that was
believed dead may write once more for a transaction that was committed, and a later end in the same lane aborts that
transaction once more, with everything in it. So a lane whose client may still be writing is never used again:

* VANISHED: the lease of the incarnation is over, or a newer epoch of its transactional id has begun. An idle lane is RETIRED;
  a lane with a transaction is RETIRING, and RETIRED after the end. So a new epoch never gets a lane of an older one, not even
  out of the pool.
* GOODBYE: the client has ended in order, so it writes nothing any more, and its lanes are POOLED for other clients. The lane
  of a transaction that the goodbye finds open, or that is being aborted, is retired all the same, because its messages may
  still be on their way.
* ONCE: a transaction of a client that names no incarnation has a new lane, which is RETIRING from its first day.

A lane with a PREPARED transaction is out of use until that has ended, however long it takes. While its client lives the lane is
PREPARED, and goes the way of any other afterwards. When its client is gone or has a successor the lane is PARKED, and RETIRED
after the end. A successor waits for neither: the transaction waits for whoever decides it, and is fenced in its lane.

A lane with an OPEN transaction that becomes HELD is HELD, and still its client's: RELEASE gives it back. When its client is
gone or has a successor the lane is PARKED, and what would be released is aborted instead. A lane without a living client is
PARKED from the beginning, and so is that of a HELD transaction that was not OPEN.

LAST is DONE of a lane that an older incarnation of the log gave (see `log_incarnations`): such lanes are only ended. Idle and
pooled ones are retired when the next incarnation begins.

RETIRED takes no room: a lane that an incarnation has given, or could have given, is RETIRED when nothing is kept about it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import SKIP, WRITE, Cell, Table


class Lane(enum.IntEnum):
    """The states of a lane that was given. The numbers are stored in snapshots."""

    IDLE = 1
    OPEN = 2
    COMMITTING = 3
    ABORTING = 4
    LEAVING = 5
    RETIRING = 6
    POOLED = 7
    RETIRED = 8
    PREPARED = 9
    PARKED = 10
    HELD = 11


LaneState: TypeAlias = Lane | None

UNKNOWN: Final = None
"""The state of a lane that was never given."""


class LaneEvent(enum.IntEnum):
    """Event that may happen to a lane."""

    NEW = 0
    ONCE = 1
    COMMIT = 2
    ABORT = 3
    DONE = 4
    GOODBYE = 5
    VANISHED = 6
    PREPARE = 7
    LAST = 8
    HOLD = 9
    RELEASE = 10


_MOVES: Final[Mapping[tuple[LaneState, LaneEvent], Lane]] = {
    (UNKNOWN, LaneEvent.NEW): Lane.OPEN,
    (UNKNOWN, LaneEvent.ONCE): Lane.RETIRING,
    #
    (Lane.IDLE, LaneEvent.NEW): Lane.OPEN,
    (Lane.IDLE, LaneEvent.GOODBYE): Lane.POOLED,
    (Lane.IDLE, LaneEvent.VANISHED): Lane.RETIRED,
    #
    (Lane.OPEN, LaneEvent.COMMIT): Lane.COMMITTING,
    (Lane.OPEN, LaneEvent.ABORT): Lane.ABORTING,
    (Lane.OPEN, LaneEvent.GOODBYE): Lane.RETIRING,
    (Lane.OPEN, LaneEvent.VANISHED): Lane.RETIRING,
    (Lane.OPEN, LaneEvent.PREPARE): Lane.PREPARED,
    (Lane.OPEN, LaneEvent.HOLD): Lane.HELD,
    #
    (Lane.HELD, LaneEvent.COMMIT): Lane.RETIRING,
    (Lane.HELD, LaneEvent.ABORT): Lane.RETIRING,
    (Lane.HELD, LaneEvent.GOODBYE): Lane.PARKED,
    (Lane.HELD, LaneEvent.VANISHED): Lane.PARKED,
    (Lane.HELD, LaneEvent.RELEASE): Lane.OPEN,
    #
    (Lane.PREPARED, LaneEvent.COMMIT): Lane.COMMITTING,
    (Lane.PREPARED, LaneEvent.ABORT): Lane.ABORTING,
    (Lane.PREPARED, LaneEvent.GOODBYE): Lane.PARKED,
    (Lane.PREPARED, LaneEvent.VANISHED): Lane.PARKED,
    (Lane.PREPARED, LaneEvent.HOLD): Lane.PARKED,
    #
    (Lane.PARKED, LaneEvent.COMMIT): Lane.RETIRING,
    (Lane.PARKED, LaneEvent.ABORT): Lane.RETIRING,
    (Lane.PARKED, LaneEvent.RELEASE): Lane.RETIRING,
    #
    (Lane.COMMITTING, LaneEvent.DONE): Lane.IDLE,
    (Lane.COMMITTING, LaneEvent.LAST): Lane.RETIRED,
    (Lane.COMMITTING, LaneEvent.HOLD): Lane.PARKED,
    (Lane.COMMITTING, LaneEvent.GOODBYE): Lane.LEAVING,
    (Lane.COMMITTING, LaneEvent.VANISHED): Lane.RETIRING,
    #
    (Lane.ABORTING, LaneEvent.DONE): Lane.IDLE,
    (Lane.ABORTING, LaneEvent.LAST): Lane.RETIRED,
    (Lane.ABORTING, LaneEvent.HOLD): Lane.PARKED,
    (Lane.ABORTING, LaneEvent.GOODBYE): Lane.RETIRING,
    (Lane.ABORTING, LaneEvent.VANISHED): Lane.RETIRING,
    #
    (Lane.LEAVING, LaneEvent.DONE): Lane.POOLED,
    (Lane.LEAVING, LaneEvent.LAST): Lane.RETIRED,
    (Lane.LEAVING, LaneEvent.HOLD): Lane.PARKED,
    (Lane.LEAVING, LaneEvent.VANISHED): Lane.RETIRING,
    #
    (Lane.RETIRING, LaneEvent.DONE): Lane.RETIRED,
    (Lane.RETIRING, LaneEvent.LAST): Lane.RETIRED,
    (Lane.RETIRING, LaneEvent.HOLD): Lane.PARKED,
    (Lane.RETIRING, LaneEvent.PREPARE): Lane.PARKED,
    #
    (Lane.POOLED, LaneEvent.NEW): Lane.OPEN,
    (Lane.POOLED, LaneEvent.VANISHED): Lane.RETIRED,
}

LANE_TRANSITIONS: Final[Table[LaneState, LaneEvent]] = {
    (state, event): Cell(WRITE, _MOVES[state, event]) if (state, event) in _MOVES else Cell(SKIP, state)
    for state in (UNKNOWN, *Lane)
    for event in LaneEvent
}
"""(state, event) -> what happens; complete. A NEW record whose cell says SKIP opens no transaction."""

LANE_INVARIANTS: Final[Mapping[str, str]] = {
    "LANE1": "a lane has at most one open or ending transaction, and knows it",
    "LANE2": "an incarnation gives lanes in ascending order, and keeps none that is RETIRED: that one is never used again",
    "LANE3": "no transaction is open or ending below another one of its lane, so no watermark covers it",
    "LANE4": "what is known of an incarnation, of the pool and of a transactional id is what the lanes say",
}
"""Invariants in addition to `table.INVARIANTS`, where the coordinator gives lanes."""
