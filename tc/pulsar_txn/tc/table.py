"""Life of a transaction, and what must always hold: prose, the table, the invariants.

A transaction is UNKNOWN until a NEW record gives it its id, and again after the window of outcomes has passed it.
NEW_TXN always takes a fresh id, so UNKNOWN -> OPEN is the only way in. A NEW record for an id that was given before changes
nothing, because an id is given once.

OPEN is the only state in which participants are added. Four events decide about it: END_TXN(COMMIT), END_TXN(ABORT), the
deadline, and ABANDON: its client is gone, was fenced by a successor, or nobody of its group knew the outcome. The first of them
whose UPDATE record reaches the log decides: that record *is* the decision, and no second check and no timer can overrule it. A
later request for the other outcome is refused with InvalidTxnStatus.

PREPARED means that the client has promised to say the outcome later, and that nobody may decide without it: no deadline, no
lease, no successor and no goodbye ends the transaction. Only END_TXN does, by its owner, by a successor of that, by a
superuser, or by whoever shows the token that came with PREPARE. A repeat of PREPARE with the same token is answered, one with
another token is refused. Nothing is added to a PREPARED transaction.

HELD means that nobody here can know the outcome: the log was restored, rolled back or copied, and the incarnation that is lost
may have decided the transaction, which an ABORT would hide after a COMMIT. What is decided in this log is held as well: a
process that has lost its claims, and does not know it yet, writes decisions that nobody is told of. No deadline, lease,
successor, goodbye, check or client ends a HELD one; its client is answered as if the coordinator were not ready. A superuser
decides by END_TXN. RELEASE lets it go on as OPEN, when it turns out that nothing was lost. HOLD comes when an incarnation of
the log begins (see `log_incarnations`).

CHECK means that a member of the transaction's check group begins to find out the outcome. It changes no status: its record
counts the question, before the member goes on. An answer of COMMIT or ABORT is an END_TXN by the group. While a member of its
group lives, TIMEOUT does not happen to an OPEN transaction before the last question about it. A transaction that was parked
after that is OPEN; TIMEOUT, CHECK and ABANDON do not happen to it.

COMMITTING and ABORTING mean that the outcome is decided and the participants are being told. A repeat of the same END_TXN
joins: its token is answered together with the first one. Deadlines mean nothing any more. A transaction leaves these states
when the host reports that every participant holds the outcome (ParticipantsDone), or at once when it has no participant.

END_TXN may name several transactions of one coordinator: a group. Each one's cell is looked up; one UPDATE record decides
all of them when all are OPEN. A group that was decided this way before is joined or answered like a repeat. Every other mixture
is refused and changes nothing, so a group never ends in part.

COMMITTED and ABORTED take no room of their own: two bits and an owner in the window of outcomes answer a repeat of
END_TXN. After the window has passed, the transaction is UNKNOWN and every request gets TransactionNotFound. Everybody but
the owner gets that answer in all states.

Timeouts: the deadline is `start_time + timeout_ms`, the same after recovery. A timeout of 0, or a field that was
absent, is due at once: the client gets its id and finds the transaction aborted, as on stock Pulsar. No value
means "never".

The records of the log are the same events: `apply` takes a record as NEW, ADD, COMMIT, ABORT, DONE, PREPARE or CHECK and folds
it in where the cell says WRITE. It passes over every other record (a stock log has some).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import ANSWER, JOIN, REFUSE, SKIP, WRITE, Table
from pulsar_txn.ledger.machine import Cell as CellOf
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnStatus

State: TypeAlias = TxnStatus | None
Cell: TypeAlias = CellOf[State]

UNKNOWN: Final = None
"""The state of an id that was never given, or whose outcome is forgotten."""
OPEN: Final = TxnStatus.OPEN
COMMITTING: Final = TxnStatus.COMMITTING
COMMITTED: Final = TxnStatus.COMMITTED
ABORTING: Final = TxnStatus.ABORTING
ABORTED: Final = TxnStatus.ABORTED
PREPARED: Final = TxnStatus.PREPARED
HELD: Final = TxnStatus.HELD


class Event(enum.IntEnum):
    """Event that may happen to a transaction."""

    NEW = 0
    ADD = 1
    COMMIT = 2
    ABORT = 3
    TIMEOUT = 4
    DONE = 5
    QUERY = 6
    PREPARE = 7
    CHECK = 8
    ABANDON = 9
    HOLD = 10
    RELEASE = 11


_NOT_FOUND: Final[Cell] = Cell(REFUSE, UNKNOWN, ServerError.TransactionNotFound)
_INVALID: Final = ServerError.InvalidTxnStatus

TRANSITIONS: Final[Table[State, Event]] = {
    (UNKNOWN, Event.NEW): Cell(WRITE, OPEN),
    (UNKNOWN, Event.ADD): _NOT_FOUND,
    (UNKNOWN, Event.COMMIT): _NOT_FOUND,
    (UNKNOWN, Event.ABORT): _NOT_FOUND,
    (UNKNOWN, Event.TIMEOUT): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.DONE): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.QUERY): Cell(ANSWER, UNKNOWN),
    (UNKNOWN, Event.PREPARE): _NOT_FOUND,
    (UNKNOWN, Event.CHECK): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.ABANDON): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.HOLD): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.RELEASE): Cell(SKIP, UNKNOWN),
    #
    (OPEN, Event.NEW): Cell(SKIP, OPEN),
    (OPEN, Event.ADD): Cell(WRITE, OPEN),
    (OPEN, Event.COMMIT): Cell(WRITE, COMMITTING),
    (OPEN, Event.ABORT): Cell(WRITE, ABORTING),
    (OPEN, Event.TIMEOUT): Cell(WRITE, ABORTING),
    (OPEN, Event.DONE): Cell(REFUSE, OPEN, _INVALID),
    (OPEN, Event.QUERY): Cell(ANSWER, OPEN),
    (OPEN, Event.PREPARE): Cell(WRITE, PREPARED),
    (OPEN, Event.CHECK): Cell(WRITE, OPEN),
    (OPEN, Event.ABANDON): Cell(WRITE, ABORTING),
    (OPEN, Event.HOLD): Cell(WRITE, HELD),
    (OPEN, Event.RELEASE): Cell(SKIP, OPEN),
    #
    (PREPARED, Event.NEW): Cell(SKIP, PREPARED),
    (PREPARED, Event.ADD): Cell(REFUSE, PREPARED, _INVALID),
    (PREPARED, Event.COMMIT): Cell(WRITE, COMMITTING),
    (PREPARED, Event.ABORT): Cell(WRITE, ABORTING),
    (PREPARED, Event.TIMEOUT): Cell(SKIP, PREPARED),
    (PREPARED, Event.DONE): Cell(REFUSE, PREPARED, _INVALID),
    (PREPARED, Event.QUERY): Cell(ANSWER, PREPARED),
    (PREPARED, Event.PREPARE): Cell(ANSWER, PREPARED),
    (PREPARED, Event.CHECK): Cell(WRITE, PREPARED),
    (PREPARED, Event.ABANDON): Cell(SKIP, PREPARED),
    (PREPARED, Event.HOLD): Cell(WRITE, HELD),
    (PREPARED, Event.RELEASE): Cell(SKIP, PREPARED),
    #
    (HELD, Event.NEW): Cell(SKIP, HELD),
    (HELD, Event.ADD): Cell(REFUSE, HELD, _INVALID),
    (HELD, Event.COMMIT): Cell(WRITE, COMMITTING),
    (HELD, Event.ABORT): Cell(WRITE, ABORTING),
    (HELD, Event.TIMEOUT): Cell(SKIP, HELD),
    (HELD, Event.DONE): Cell(REFUSE, HELD, _INVALID),
    (HELD, Event.QUERY): Cell(ANSWER, HELD),
    (HELD, Event.PREPARE): Cell(REFUSE, HELD, _INVALID),
    (HELD, Event.CHECK): Cell(SKIP, HELD),
    (HELD, Event.ABANDON): Cell(SKIP, HELD),
    (HELD, Event.HOLD): Cell(WRITE, HELD),
    (HELD, Event.RELEASE): Cell(WRITE, OPEN),
    #
    (COMMITTING, Event.NEW): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.ADD): Cell(REFUSE, COMMITTING, _INVALID),
    (COMMITTING, Event.COMMIT): Cell(JOIN, COMMITTING),
    (COMMITTING, Event.ABORT): Cell(REFUSE, COMMITTING, _INVALID),
    (COMMITTING, Event.TIMEOUT): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.DONE): Cell(WRITE, COMMITTED),
    (COMMITTING, Event.QUERY): Cell(ANSWER, COMMITTING),
    (COMMITTING, Event.PREPARE): Cell(REFUSE, COMMITTING, _INVALID),
    (COMMITTING, Event.CHECK): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.ABANDON): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.HOLD): Cell(WRITE, HELD),
    (COMMITTING, Event.RELEASE): Cell(SKIP, COMMITTING),
    #
    (COMMITTED, Event.NEW): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.ADD): Cell(REFUSE, COMMITTED, _INVALID),
    (COMMITTED, Event.COMMIT): Cell(ANSWER, COMMITTED),
    (COMMITTED, Event.ABORT): Cell(REFUSE, COMMITTED, _INVALID),
    (COMMITTED, Event.TIMEOUT): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.DONE): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.QUERY): Cell(ANSWER, COMMITTED),
    (COMMITTED, Event.PREPARE): Cell(REFUSE, COMMITTED, _INVALID),
    (COMMITTED, Event.CHECK): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.ABANDON): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.HOLD): Cell(SKIP, COMMITTED),
    (COMMITTED, Event.RELEASE): Cell(SKIP, COMMITTED),
    #
    (ABORTING, Event.NEW): Cell(SKIP, ABORTING),
    (ABORTING, Event.ADD): Cell(REFUSE, ABORTING, _INVALID),
    (ABORTING, Event.COMMIT): Cell(REFUSE, ABORTING, _INVALID),
    (ABORTING, Event.ABORT): Cell(JOIN, ABORTING),
    (ABORTING, Event.TIMEOUT): Cell(SKIP, ABORTING),
    (ABORTING, Event.DONE): Cell(WRITE, ABORTED),
    (ABORTING, Event.QUERY): Cell(ANSWER, ABORTING),
    (ABORTING, Event.PREPARE): Cell(REFUSE, ABORTING, _INVALID),
    (ABORTING, Event.CHECK): Cell(SKIP, ABORTING),
    (ABORTING, Event.ABANDON): Cell(SKIP, ABORTING),
    (ABORTING, Event.HOLD): Cell(WRITE, HELD),
    (ABORTING, Event.RELEASE): Cell(SKIP, ABORTING),
    #
    (ABORTED, Event.NEW): Cell(SKIP, ABORTED),
    (ABORTED, Event.ADD): Cell(REFUSE, ABORTED, _INVALID),
    (ABORTED, Event.COMMIT): Cell(REFUSE, ABORTED, _INVALID),
    (ABORTED, Event.ABORT): Cell(ANSWER, ABORTED),
    (ABORTED, Event.TIMEOUT): Cell(SKIP, ABORTED),
    (ABORTED, Event.DONE): Cell(SKIP, ABORTED),
    (ABORTED, Event.QUERY): Cell(ANSWER, ABORTED),
    (ABORTED, Event.PREPARE): Cell(REFUSE, ABORTED, _INVALID),
    (ABORTED, Event.CHECK): Cell(SKIP, ABORTED),
    (ABORTED, Event.ABANDON): Cell(SKIP, ABORTED),
    (ABORTED, Event.HOLD): Cell(SKIP, ABORTED),
    (ABORTED, Event.RELEASE): Cell(SKIP, ABORTED),
}
"""(state, event) -> what happens; complete."""

EVENT_OF: Final[Mapping[int, Event]] = {
    COMMITTING: Event.COMMIT,
    ABORTING: Event.ABORT,
    COMMITTED: Event.DONE,
    ABORTED: Event.DONE,
    HELD: Event.HOLD,
    OPEN: Event.RELEASE,
}
"""The event that an UPDATE record with this `new_status` is."""

END_EVENT: Final[Mapping[TxnAction, Event]] = {TxnAction.COMMIT: Event.COMMIT, TxnAction.ABORT: Event.ABORT}
ACTION_OF: Final[Mapping[State, TxnAction]] = {
    COMMITTING: TxnAction.COMMIT,
    COMMITTED: TxnAction.COMMIT,
    ABORTING: TxnAction.ABORT,
    ABORTED: TxnAction.ABORT,
}
"""The outcome that a state represents."""

INVARIANTS: Final[Mapping[str, str]] = {
    "S2": "what takes room is OPEN, PREPARED (with a token), HELD, COMMITTING or ABORTING: what ended is in the window",
    "S18": "ids were given in ascending order and lie below the next id, so none is given twice",
    "S16": "the window calls exactly those of its ids open that take room, with the same owner; known nonces are theirs",
    "L1": "every OPEN transaction's deadline is waited for, and its next question, or the policy, where it has a check group,"
    " unless it is parked",
    "L7": "deadlines that mean nothing any more take at most as much room as those that do, and a little more",
}
"""Invariants of `check_invariants`, by their ids."""
