"""Transaction at a subscription: the states, the events, and the table of both.

A subscription knows a transaction from its first acknowledgement here until the low watermark of its coordinator passes
it. An ack of a transaction that is UNKNOWN is not taken on trust: its coordinator is asked whether the transaction is
open and has this subscription as a participant (VERIFY), and only the positive answer lets the ack in. From then on the
transaction is OPEN here: each ack is checked against the cursor, against what every other transaction holds, and against
the cumulative slot, *before* anything is written. So the log holds only acks that count, and replay needs no checks; an
ack that conflicts leaves no trace and changes no state. A message that the transaction itself holds already is a conflict too:
the program worked on two copies of it, and both would be committed. ACK_REPEATED is a request that says by its key that it is
one which the transaction took: it has the same answer and writes nothing.

The coordinator's word ends it, with one record. COMMITTED means that the acks are decided and on their way to the cursor,
but a crash could still lose what the cursor has not stored: the handle keeps them, names them to the dispatcher as
pending, and moves the cursor again after a recovery. COVERED means that the cursor's durable state has them and only the
id is remembered. ABORTED means that exactly what the transaction held is free again. An end of a transaction that never
came here is also written: an ack of it may still be under way, with the coordinator's yes from before the end
(VERIFIED after COMMIT), and must be refused, also after a restart. A repeat of an end is answered without a record.
The opposite end is refused: the coordinator decides once, so one of the two messages is wrong, and guessing would tear
the transaction apart.

The low watermark of a coordinator, which travels with every end, says that all its transactions up to there are over.
Ids at or below it need no memory: they are PAST and whatever they ask is refused, or for an end, answered. A transaction
that is still OPEN below a new watermark is stale (its ack came too late for the end) and is aborted in the same record as
the end that brought the watermark: all of them, and never the transaction that is just ending, which ends as it was told.

Acknowledgements outside transactions take what they touch out of the transactions that hold it; the transaction stays
open with the rest. A reset of the cursor drops what is at or after the new place, and forgets commits that wait for
the cursor: a seek back must give their messages again, and a seek forward has passed them.

Individual and cumulative acks of one transaction live side by side and end together. One transaction at a time may hold
a cumulative ack. Stricter than Pulsar, an individual ack at or before the cumulative ack of another transaction conflicts,
and so does a cumulative ack over anything that another transaction holds individually: both would acknowledge the same
message, and if one commits and the other aborts, no answer keeps both promises. Programs that ack each
message in one transaction at a time never meet this; nor does a cumulative ack over what was committed before.

The records of the log are events too, and meet `apply` (ACK_READ, COMMIT_READ, ABORT_READ). The first end wins; an ack after
an end (in a log written by a broker that takes one) counts for nothing. Watermarks, acknowledgements outside transactions
and resets of the cursor are about many transactions at once: `decide` and `apply` find the OPEN ones that they touch in the
indexes of the state, and each of these goes the way of its cell.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import ANSWER, ASK, FOLD, REFUSE, SKIP, WRITE, Act, Table
from pulsar_txn.ledger.machine import Cell as CellOf
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction


class State(enum.IntEnum):
    """State of a transaction at a subscription."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTED = 2
    COVERED = 3
    ABORTED = 4
    PAST = 5


class Event(enum.IntEnum):
    """Event of a transaction: requests and answers for `decide`, and records of the log for `apply`."""

    ACK_INDIVIDUAL = 0
    ACK_CUMULATIVE = 1
    ACK_REPEATED = 2
    VERIFIED = 3
    NOT_VERIFIED = 4
    COMMIT = 5
    ABORT = 6
    WATERMARK = 7
    PLAIN_ACKED = 8
    CURSOR_STORED = 9
    CURSOR_RESET = 10
    ACK_READ = 11
    COMMIT_READ = 12
    ABORT_READ = 13


Cell: TypeAlias = CellOf[State]

UNKNOWN: Final = State.UNKNOWN
OPEN: Final = State.OPEN
COMMITTED: Final = State.COMMITTED
COVERED: Final = State.COVERED
ABORTED: Final = State.ABORTED
PAST: Final = State.PAST


def _same(state: State, act: Act, *events: Event, code: ServerError | None = None) -> dict[tuple[State, Event], Cell]:
    return {(state, event): Cell(act, state, code) for event in events}


_ACKS: Final = (Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.ACK_REPEATED, Event.VERIFIED, Event.NOT_VERIFIED)
_OTHERS: Final = (Event.PLAIN_ACKED, Event.CURSOR_STORED, Event.CURSOR_RESET)
_READ: Final = (Event.ACK_READ, Event.COMMIT_READ, Event.ABORT_READ)
_OVER: Final = ServerError.NotAllowedError
_OPPOSITE: Final = ServerError.InvalidTxnStatus

TRANSITIONS: Final[Table[State, Event]] = {
    **_same(UNKNOWN, ASK, Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.ACK_REPEATED),
    (UNKNOWN, Event.VERIFIED): Cell(WRITE, OPEN),
    (UNKNOWN, Event.NOT_VERIFIED): Cell(REFUSE, UNKNOWN, _OVER),
    (UNKNOWN, Event.COMMIT): Cell(WRITE, COVERED),
    (UNKNOWN, Event.ABORT): Cell(WRITE, ABORTED),
    (UNKNOWN, Event.WATERMARK): Cell(WRITE, PAST),
    **_same(UNKNOWN, SKIP, *_OTHERS),
    (UNKNOWN, Event.ACK_READ): Cell(FOLD, OPEN),
    (UNKNOWN, Event.COMMIT_READ): Cell(FOLD, COVERED),
    (UNKNOWN, Event.ABORT_READ): Cell(FOLD, ABORTED),
    #
    **_same(OPEN, WRITE, Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.VERIFIED),
    **_same(OPEN, ANSWER, Event.ACK_REPEATED),
    (OPEN, Event.NOT_VERIFIED): Cell(REFUSE, OPEN, _OVER),
    (OPEN, Event.COMMIT): Cell(WRITE, COMMITTED),
    (OPEN, Event.ABORT): Cell(WRITE, ABORTED),
    (OPEN, Event.WATERMARK): Cell(WRITE, PAST),
    **_same(OPEN, WRITE, Event.PLAIN_ACKED, Event.CURSOR_RESET),
    **_same(OPEN, SKIP, Event.CURSOR_STORED),
    (OPEN, Event.ACK_READ): Cell(FOLD, OPEN),
    (OPEN, Event.COMMIT_READ): Cell(FOLD, COMMITTED),
    (OPEN, Event.ABORT_READ): Cell(FOLD, ABORTED),
    #
    **_same(COMMITTED, REFUSE, *_ACKS, code=_OVER),
    **_same(COMMITTED, ANSWER, Event.COMMIT),
    **_same(COMMITTED, REFUSE, Event.ABORT, code=_OPPOSITE),
    (COMMITTED, Event.WATERMARK): Cell(WRITE, PAST),
    **_same(COMMITTED, SKIP, Event.PLAIN_ACKED),
    (COMMITTED, Event.CURSOR_STORED): Cell(WRITE, COVERED),
    (COMMITTED, Event.CURSOR_RESET): Cell(WRITE, COVERED),
    **_same(COMMITTED, SKIP, *_READ),
    #
    **_same(COVERED, REFUSE, *_ACKS, code=_OVER),
    **_same(COVERED, ANSWER, Event.COMMIT),
    **_same(COVERED, REFUSE, Event.ABORT, code=_OPPOSITE),
    (COVERED, Event.WATERMARK): Cell(WRITE, PAST),
    **_same(COVERED, SKIP, *_OTHERS, *_READ),
    #
    **_same(ABORTED, REFUSE, *_ACKS, code=_OVER),
    **_same(ABORTED, REFUSE, Event.COMMIT, code=_OPPOSITE),
    **_same(ABORTED, ANSWER, Event.ABORT),
    (ABORTED, Event.WATERMARK): Cell(WRITE, PAST),
    **_same(ABORTED, SKIP, *_OTHERS, *_READ),
    #
    **_same(PAST, REFUSE, *_ACKS, code=_OVER),
    **_same(PAST, ANSWER, Event.COMMIT, Event.ABORT),
    **_same(PAST, WRITE, Event.WATERMARK),
    **_same(PAST, SKIP, *_OTHERS, *_READ),
}
"""(state, event) -> what happens; complete. WATERMARK is the end of a transaction that never came here, with a low watermark at
or above this one; it writes its own record in every state."""

END_EVENT: Final[Mapping[TxnAction, Event]] = MappingProxyType({TxnAction.COMMIT: Event.COMMIT, TxnAction.ABORT: Event.ABORT})
