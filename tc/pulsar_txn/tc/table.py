"""What may happen to a transaction, and what must always hold: prose, the table, the invariants.

A transaction is UNKNOWN until a NEW record gives it its id, and again when the window of outcomes has passed it.
NEW_TXN always takes a fresh id, so UNKNOWN -> OPEN is the only way in, and a NEW record for an id that was given
before changes nothing (an id is given once).

OPEN is the only state in which participants are added. It is left by the first of END_TXN(COMMIT), END_TXN(ABORT)
and the deadline that gets its record into the log: that UPDATE record *is* the decision, there is no second
check and no timer that could overrule it. Whoever comes later with the other wish is told InvalidTxnStatus.

COMMITTING and ABORTING mean: decided, participants are being told. A repeat of the same END_TXN joins, its token is
answered with the first one. Deadlines mean nothing any more. They are left only when the host reports that every
participant holds the outcome (ParticipantsDone), or at once when there is none to be told.

COMMITTED and ABORTED take no room of their own: two bits and an owner in the window of outcomes answer a repeat of
END_TXN. When the window has passed, the transaction is UNKNOWN and every request gets TransactionNotFound, as it
does for everybody but its owner all along.

Timeouts: the deadline is `start_time + timeout_ms`, the same after recovery. A timeout of 0, or a field that was
absent, is due at once: the client gets its id and finds the transaction aborted, as on stock Pulsar. No value
means "never".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnStatus

UNKNOWN: Final = None
"""The state of an id that was never given, or whose outcome is forgotten."""


class Event(enum.IntEnum):
    """What may happen to a transaction."""

    NEW = 0
    ADD = 1
    COMMIT = 2
    ABORT = 3
    TIMEOUT = 4
    DONE = 5
    QUERY = 6


class Stay(enum.Enum):
    """The state stays, nothing is written: the request is answered, or joins an end under way, or is over with."""

    REPLY = "reply"
    JOIN = "join"
    NOTHING = "nothing"


@attrs.frozen
class Go:
    """A record is written that brings the transaction to `to`."""

    to: TxnStatus


@attrs.frozen
class Refuse:
    """The request is refused with `code`; nothing is written."""

    code: ServerError


Cell: TypeAlias = Go | Stay | Refuse

_NOT_FOUND: Final = Refuse(ServerError.TransactionNotFound)
_INVALID: Final = Refuse(ServerError.InvalidTxnStatus)

TRANSITIONS: Final[Mapping[tuple[TxnStatus | None, Event], Cell]] = {
    (UNKNOWN, Event.NEW): Go(TxnStatus.OPEN),
    (UNKNOWN, Event.ADD): _NOT_FOUND,
    (UNKNOWN, Event.COMMIT): _NOT_FOUND,
    (UNKNOWN, Event.ABORT): _NOT_FOUND,
    (UNKNOWN, Event.TIMEOUT): Stay.NOTHING,
    (UNKNOWN, Event.DONE): Stay.NOTHING,
    (UNKNOWN, Event.QUERY): Stay.REPLY,
    #
    (TxnStatus.OPEN, Event.NEW): Stay.NOTHING,
    (TxnStatus.OPEN, Event.ADD): Go(TxnStatus.OPEN),
    (TxnStatus.OPEN, Event.COMMIT): Go(TxnStatus.COMMITTING),
    (TxnStatus.OPEN, Event.ABORT): Go(TxnStatus.ABORTING),
    (TxnStatus.OPEN, Event.TIMEOUT): Go(TxnStatus.ABORTING),
    (TxnStatus.OPEN, Event.DONE): _INVALID,
    (TxnStatus.OPEN, Event.QUERY): Stay.REPLY,
    #
    (TxnStatus.COMMITTING, Event.NEW): Stay.NOTHING,
    (TxnStatus.COMMITTING, Event.ADD): _INVALID,
    (TxnStatus.COMMITTING, Event.COMMIT): Stay.JOIN,
    (TxnStatus.COMMITTING, Event.ABORT): _INVALID,
    (TxnStatus.COMMITTING, Event.TIMEOUT): Stay.NOTHING,
    (TxnStatus.COMMITTING, Event.DONE): Go(TxnStatus.COMMITTED),
    (TxnStatus.COMMITTING, Event.QUERY): Stay.REPLY,
    #
    (TxnStatus.COMMITTED, Event.NEW): Stay.NOTHING,
    (TxnStatus.COMMITTED, Event.ADD): _INVALID,
    (TxnStatus.COMMITTED, Event.COMMIT): Stay.REPLY,
    (TxnStatus.COMMITTED, Event.ABORT): _INVALID,
    (TxnStatus.COMMITTED, Event.TIMEOUT): Stay.NOTHING,
    (TxnStatus.COMMITTED, Event.DONE): Stay.NOTHING,
    (TxnStatus.COMMITTED, Event.QUERY): Stay.REPLY,
    #
    (TxnStatus.ABORTING, Event.NEW): Stay.NOTHING,
    (TxnStatus.ABORTING, Event.ADD): _INVALID,
    (TxnStatus.ABORTING, Event.COMMIT): _INVALID,
    (TxnStatus.ABORTING, Event.ABORT): Stay.JOIN,
    (TxnStatus.ABORTING, Event.TIMEOUT): Stay.NOTHING,
    (TxnStatus.ABORTING, Event.DONE): Go(TxnStatus.ABORTED),
    (TxnStatus.ABORTING, Event.QUERY): Stay.REPLY,
    #
    (TxnStatus.ABORTED, Event.NEW): Stay.NOTHING,
    (TxnStatus.ABORTED, Event.ADD): _INVALID,
    (TxnStatus.ABORTED, Event.COMMIT): _INVALID,
    (TxnStatus.ABORTED, Event.ABORT): Stay.REPLY,
    (TxnStatus.ABORTED, Event.TIMEOUT): Stay.NOTHING,
    (TxnStatus.ABORTED, Event.DONE): Stay.NOTHING,
    (TxnStatus.ABORTED, Event.QUERY): Stay.REPLY,
}
"""(state, event) -> what happens. Every pair has a cell; `decide` and `apply` both read it."""

EDGES: Final[frozenset[tuple[int, int]]] = frozenset(
    (int(state), int(cell.to))
    for (state, _), cell in TRANSITIONS.items()
    if state is not UNKNOWN and isinstance(cell, Go) and cell.to != state
)
"""The (expected_status, new_status) pairs that an UPDATE record may carry; `apply` passes over any other."""

END_EVENT: Final[Mapping[TxnAction, Event]] = {TxnAction.COMMIT: Event.COMMIT, TxnAction.ABORT: Event.ABORT}
ACTION_OF: Final[Mapping[TxnStatus, TxnAction]] = {
    TxnStatus.COMMITTING: TxnAction.COMMIT,
    TxnStatus.COMMITTED: TxnAction.COMMIT,
    TxnStatus.ABORTING: TxnAction.ABORT,
    TxnStatus.ABORTED: TxnAction.ABORT,
}
"""The decision that a state stands for; OPEN stands for none."""

INVARIANTS: Final[Mapping[str, str]] = {
    "S2": "a transaction that takes room is OPEN, COMMITTING or ABORTING: what ended is only in the window of outcomes",
    "S18": "ids were given in ascending order and lie below the next id, so none is given twice",
    "S16": "the window calls exactly those of its ids open that take room, with the same owner",
    "L1": "every OPEN transaction's deadline is waited for",
    "L7": "deadlines that mean nothing any more take at most as much room as those that do, and a little more",
}
"""What `check_invariants` checks, by the ids of the reliability page."""
