"""Transaction at a topic with half messages: the states, the events, and the table of both.

A transaction is OPEN from its first half (an entry in log `half`) to its outcome (an op, a record in log `op`). After the
op of a commit it is COMMITTING until the last of its halves is copied into the topic. Everything else is UNKNOWN:
nothing of it was ever written here, or all of it has been done. Three states say the same of a transaction that
the low watermark of its coordinator has passed: STALE when it is open all the same, FINISHING when it is committing, and OVER
when nothing of it is left to be done.

Neither outcome needs memory. What was aborted never came into the topic, so there is nothing to hide; what was
committed is there as if it had been sent outside transactions. A late half is refused by the one who remembers, the
coordinator: UNKNOWN means *ask* (VerifyRegistered).

The buffer decides no outcome. It carries out what the coordinator decided, so the two can never differ; a back-check is the
coordinator's, too. Its only own decision is the one that every buffer has: a transaction that is open although its coordinator
says that it has ended (WATERMARK) is aborted, at once or, when there are many, in steps that are due (DUE).

RocketMQ shows the message first and writes the op after it, so a crash in between shows the message twice. Here the op
comes first: it is the decision, and the copies follow from it. A restart finds the op and as many copies as there are in
the topic (COPY_READ, LAST_COPY_READ), and goes on after them. So nothing is lost, doubled or torn, and an outcome is
answered when the last copy is durable.

An end of UNKNOWN or OVER finds nothing to do and is answered like the first one. An end with the other outcome while the copies
are under way contradicts the op, and is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import ANSWER, ASK, FOLD, JOIN, REFUSE, SKIP, WRITE, Table
from pulsar_txn.ledger.machine import Cell as CellOf
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import MarkerType, TxnAction


class TxnState(enum.IntEnum):
    """State of a transaction at one topic."""

    UNKNOWN = 0
    OPEN = 1
    STALE = 2
    COMMITTING = 3
    FINISHING = 4
    OVER = 5


class Event(enum.IntEnum):
    """Event of a transaction: requests, answers, copies and deadlines for `decide`, records of the logs for `apply`."""

    PUBLISH = 0
    VERIFIED = 1
    NOT_VERIFIED = 2
    END_COMMIT = 3
    END_ABORT = 4
    COPIED = 5
    WATERMARK = 6
    DUE = 7
    HALF_READ = 8
    COMMIT_READ = 9
    ABORT_READ = 10
    COPY_READ = 11
    LAST_COPY_READ = 12
    WATERMARK_READ = 13


Cell: TypeAlias = CellOf[TxnState]

UNKNOWN: Final = TxnState.UNKNOWN
OPEN: Final = TxnState.OPEN
STALE: Final = TxnState.STALE
COMMITTING: Final = TxnState.COMMITTING
FINISHING: Final = TxnState.FINISHING
OVER: Final = TxnState.OVER

_ENDED: Final = ServerError.NotAllowedError
_CONTRADICTS: Final = ServerError.InvalidTxnStatus

TRANSITIONS: Final[Table[TxnState, Event]] = {
    (UNKNOWN, Event.PUBLISH): Cell(ASK, UNKNOWN),
    (UNKNOWN, Event.VERIFIED): Cell(WRITE, OPEN),
    (UNKNOWN, Event.NOT_VERIFIED): Cell(REFUSE, UNKNOWN, _ENDED),
    (UNKNOWN, Event.END_COMMIT): Cell(ANSWER, UNKNOWN),
    (UNKNOWN, Event.END_ABORT): Cell(ANSWER, UNKNOWN),
    (UNKNOWN, Event.COPIED): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.WATERMARK): Cell(SKIP, OVER),
    (UNKNOWN, Event.DUE): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.HALF_READ): Cell(FOLD, OPEN),
    (UNKNOWN, Event.COMMIT_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.ABORT_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.COPY_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.LAST_COPY_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.WATERMARK_READ): Cell(FOLD, OVER),
    #
    (OPEN, Event.PUBLISH): Cell(WRITE, OPEN),
    (OPEN, Event.VERIFIED): Cell(WRITE, OPEN),
    (OPEN, Event.NOT_VERIFIED): Cell(REFUSE, OPEN, _ENDED),
    (OPEN, Event.END_COMMIT): Cell(WRITE, COMMITTING),
    (OPEN, Event.END_ABORT): Cell(WRITE, UNKNOWN),
    (OPEN, Event.COPIED): Cell(SKIP, OPEN),
    (OPEN, Event.WATERMARK): Cell(WRITE, OVER),
    (OPEN, Event.DUE): Cell(SKIP, OPEN),
    (OPEN, Event.HALF_READ): Cell(FOLD, OPEN),
    (OPEN, Event.COMMIT_READ): Cell(FOLD, COMMITTING),
    (OPEN, Event.ABORT_READ): Cell(FOLD, UNKNOWN),
    (OPEN, Event.COPY_READ): Cell(SKIP, OPEN),
    (OPEN, Event.LAST_COPY_READ): Cell(SKIP, OPEN),
    (OPEN, Event.WATERMARK_READ): Cell(FOLD, STALE),
    #
    (STALE, Event.PUBLISH): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.VERIFIED): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.NOT_VERIFIED): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.END_COMMIT): Cell(WRITE, FINISHING),
    (STALE, Event.END_ABORT): Cell(WRITE, OVER),
    (STALE, Event.COPIED): Cell(SKIP, STALE),
    (STALE, Event.WATERMARK): Cell(WRITE, OVER),
    (STALE, Event.DUE): Cell(WRITE, OVER),
    (STALE, Event.HALF_READ): Cell(FOLD, STALE),
    (STALE, Event.COMMIT_READ): Cell(FOLD, FINISHING),
    (STALE, Event.ABORT_READ): Cell(FOLD, OVER),
    (STALE, Event.COPY_READ): Cell(SKIP, STALE),
    (STALE, Event.LAST_COPY_READ): Cell(SKIP, STALE),
    (STALE, Event.WATERMARK_READ): Cell(FOLD, STALE),
    #
    (COMMITTING, Event.PUBLISH): Cell(REFUSE, COMMITTING, _ENDED),
    (COMMITTING, Event.VERIFIED): Cell(REFUSE, COMMITTING, _ENDED),
    (COMMITTING, Event.NOT_VERIFIED): Cell(REFUSE, COMMITTING, _ENDED),
    (COMMITTING, Event.END_COMMIT): Cell(JOIN, COMMITTING),
    (COMMITTING, Event.END_ABORT): Cell(REFUSE, COMMITTING, _CONTRADICTS),
    (COMMITTING, Event.COPIED): Cell(WRITE, COMMITTING),
    (COMMITTING, Event.WATERMARK): Cell(SKIP, FINISHING),
    (COMMITTING, Event.DUE): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.HALF_READ): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.COMMIT_READ): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.ABORT_READ): Cell(SKIP, COMMITTING),
    (COMMITTING, Event.COPY_READ): Cell(FOLD, COMMITTING),
    (COMMITTING, Event.LAST_COPY_READ): Cell(FOLD, UNKNOWN),
    (COMMITTING, Event.WATERMARK_READ): Cell(FOLD, FINISHING),
    #
    (FINISHING, Event.PUBLISH): Cell(REFUSE, FINISHING, _ENDED),
    (FINISHING, Event.VERIFIED): Cell(REFUSE, FINISHING, _ENDED),
    (FINISHING, Event.NOT_VERIFIED): Cell(REFUSE, FINISHING, _ENDED),
    (FINISHING, Event.END_COMMIT): Cell(JOIN, FINISHING),
    (FINISHING, Event.END_ABORT): Cell(REFUSE, FINISHING, _CONTRADICTS),
    (FINISHING, Event.COPIED): Cell(WRITE, FINISHING),
    (FINISHING, Event.WATERMARK): Cell(SKIP, FINISHING),
    (FINISHING, Event.DUE): Cell(SKIP, FINISHING),
    (FINISHING, Event.HALF_READ): Cell(SKIP, FINISHING),
    (FINISHING, Event.COMMIT_READ): Cell(SKIP, FINISHING),
    (FINISHING, Event.ABORT_READ): Cell(SKIP, FINISHING),
    (FINISHING, Event.COPY_READ): Cell(FOLD, FINISHING),
    (FINISHING, Event.LAST_COPY_READ): Cell(FOLD, OVER),
    (FINISHING, Event.WATERMARK_READ): Cell(FOLD, FINISHING),
    #
    (OVER, Event.PUBLISH): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.VERIFIED): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.NOT_VERIFIED): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.END_COMMIT): Cell(ANSWER, OVER),
    (OVER, Event.END_ABORT): Cell(ANSWER, OVER),
    (OVER, Event.COPIED): Cell(SKIP, OVER),
    (OVER, Event.WATERMARK): Cell(SKIP, OVER),
    (OVER, Event.DUE): Cell(SKIP, OVER),
    (OVER, Event.HALF_READ): Cell(FOLD, STALE),
    (OVER, Event.COMMIT_READ): Cell(SKIP, OVER),
    (OVER, Event.ABORT_READ): Cell(SKIP, OVER),
    (OVER, Event.COPY_READ): Cell(SKIP, OVER),
    (OVER, Event.LAST_COPY_READ): Cell(SKIP, OVER),
    (OVER, Event.WATERMARK_READ): Cell(FOLD, OVER),
}
"""(state, event) -> what happens; complete. Until `recovered` every request is refused with ServiceNotReady."""

END_EVENT: Final[Mapping[TxnAction, Event]] = MappingProxyType(
    {TxnAction.COMMIT: Event.END_COMMIT, TxnAction.ABORT: Event.END_ABORT}
)
OP_EVENT: Final[Mapping[int, Event]] = MappingProxyType(
    {int(MarkerType.TXN_COMMIT): Event.COMMIT_READ, int(MarkerType.TXN_ABORT): Event.ABORT_READ}
)
