"""Transaction at one topic: the states, the events, and the table of both.

A transaction is ONGOING from its first entry to its first marker. It is ABORTED as long as an entry of it may still be read.
It is OVER when it is neither, and its coordinator's low watermark has passed it. It is STALE when it is still ongoing although
the low watermark has passed it. Everything else is UNKNOWN: nothing of it was ever written here, or it was committed.

That a committed transaction needs no memory is the point of the design. Its entries are hidden by nothing, so there
is nothing to remember for readers; and a late entry of it is refused by the one who does remember, the coordinator:
UNKNOWN means *ask* (VerifyRegistered), and only an open transaction with this topic registered is let in. The host
lets other requests of the transaction, its end included, wait for the answer, so no answer is overtaken by an end.

From this follows what an end does. *A marker is written exactly when the transaction is ongoing*; every other end finds
nothing to do and is answered like the first one, once the log's tail is durable:

* UNKNOWN, commit: either a repeat (the entries are visible already) or nothing was ever written here (a registered
  topic to which no send got through). Both leave nothing to show and nothing to hide. Stock Pulsar writes another
  marker in either case; here a repeat costs no entry, without a memory of finished ids.
* UNKNOWN, abort: the same. An abort of what was committed here cannot be told from it; it changes nothing, and no
  coordinator asks for both, because the decision in its log is the only truth about an outcome.
* ABORTED, commit: known to contradict what readers were told, therefore refused with InvalidTxnStatus.
* OVER: the coordinator itself said that it is finished with this id; the end is a belated repeat.

The order of events in the fold is the order of the log, and *the first marker wins*: a second marker, equal or not, is
skipped, so any number of markers reads like one. Data of an ABORTED transaction (in a log written by a broker that does
not refuse it) stays hidden. Data of an UNKNOWN or OVER one opens it, as nothing in the log says otherwise; the next
watermark ends it.

WATERMARK is the end of *another* transaction of the same coordinator whose low watermark covers this one. A transaction
that is ongoing then was never registered, or its end is lost: it is aborted here, with a marker of our own, wherever it
lies, and never the one that is being ended. These markers come before the marker of the ending one, which carries the
watermark (WATERMARK_READ). One Step aborts some hundreds. When there are more, the others are STALE after it: nothing more is
written in them, and they are aborted in Steps of their own, due at once (DUE), also after a crash. Their own end, should it
still come, counts. An end that writes no marker leaves no watermark in the log; a late write is then refused by asking.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import ANSWER, ASK, FOLD, REFUSE, SKIP, WRITE, Table
from pulsar_txn.ledger.machine import Cell as CellOf
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import MarkerType, TxnAction


class TxnState(enum.IntEnum):
    """State of a transaction at one topic."""

    UNKNOWN = 0
    ONGOING = 1
    STALE = 2
    ABORTED = 3
    OVER = 4


class Event(enum.IntEnum):
    """Event of a transaction: requests, answers and deadlines for `decide`, and entries of the log for `apply`."""

    PUBLISH = 0
    VERIFIED = 1
    NOT_VERIFIED = 2
    END_COMMIT = 3
    END_ABORT = 4
    WATERMARK = 5
    DUE = 6
    DATA_READ = 7
    COMMIT_READ = 8
    ABORT_READ = 9
    WATERMARK_READ = 10


Cell: TypeAlias = CellOf[TxnState]

UNKNOWN: Final = TxnState.UNKNOWN
ONGOING: Final = TxnState.ONGOING
STALE: Final = TxnState.STALE
ABORTED: Final = TxnState.ABORTED
OVER: Final = TxnState.OVER

_ENDED: Final = ServerError.NotAllowedError
_CONTRADICTS: Final = ServerError.InvalidTxnStatus

TRANSITIONS: Final[Table[TxnState, Event]] = {
    (UNKNOWN, Event.PUBLISH): Cell(ASK, UNKNOWN),
    (UNKNOWN, Event.VERIFIED): Cell(WRITE, ONGOING),
    (UNKNOWN, Event.NOT_VERIFIED): Cell(REFUSE, UNKNOWN, _ENDED),
    (UNKNOWN, Event.END_COMMIT): Cell(ANSWER, UNKNOWN),
    (UNKNOWN, Event.END_ABORT): Cell(ANSWER, UNKNOWN),
    (UNKNOWN, Event.WATERMARK): Cell(SKIP, OVER),
    (UNKNOWN, Event.DUE): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.DATA_READ): Cell(FOLD, ONGOING),
    (UNKNOWN, Event.COMMIT_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.ABORT_READ): Cell(SKIP, UNKNOWN),
    (UNKNOWN, Event.WATERMARK_READ): Cell(FOLD, OVER),
    #
    (ONGOING, Event.PUBLISH): Cell(WRITE, ONGOING),
    (ONGOING, Event.VERIFIED): Cell(WRITE, ONGOING),
    (ONGOING, Event.NOT_VERIFIED): Cell(REFUSE, ONGOING, _ENDED),
    (ONGOING, Event.END_COMMIT): Cell(WRITE, UNKNOWN),
    (ONGOING, Event.END_ABORT): Cell(WRITE, ABORTED),
    (ONGOING, Event.WATERMARK): Cell(WRITE, ABORTED),
    (ONGOING, Event.DUE): Cell(SKIP, ONGOING),
    (ONGOING, Event.DATA_READ): Cell(FOLD, ONGOING),
    (ONGOING, Event.COMMIT_READ): Cell(FOLD, UNKNOWN),
    (ONGOING, Event.ABORT_READ): Cell(FOLD, ABORTED),
    (ONGOING, Event.WATERMARK_READ): Cell(FOLD, STALE),
    #
    (STALE, Event.PUBLISH): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.VERIFIED): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.NOT_VERIFIED): Cell(REFUSE, STALE, _ENDED),
    (STALE, Event.END_COMMIT): Cell(WRITE, OVER),
    (STALE, Event.END_ABORT): Cell(WRITE, ABORTED),
    (STALE, Event.WATERMARK): Cell(WRITE, ABORTED),
    (STALE, Event.DUE): Cell(WRITE, ABORTED),
    (STALE, Event.DATA_READ): Cell(FOLD, STALE),
    (STALE, Event.COMMIT_READ): Cell(FOLD, OVER),
    (STALE, Event.ABORT_READ): Cell(FOLD, ABORTED),
    (STALE, Event.WATERMARK_READ): Cell(FOLD, STALE),
    #
    (ABORTED, Event.PUBLISH): Cell(REFUSE, ABORTED, _ENDED),
    (ABORTED, Event.VERIFIED): Cell(REFUSE, ABORTED, _ENDED),
    (ABORTED, Event.NOT_VERIFIED): Cell(REFUSE, ABORTED, _ENDED),
    (ABORTED, Event.END_COMMIT): Cell(REFUSE, ABORTED, _CONTRADICTS),
    (ABORTED, Event.END_ABORT): Cell(ANSWER, ABORTED),
    (ABORTED, Event.WATERMARK): Cell(SKIP, ABORTED),
    (ABORTED, Event.DUE): Cell(SKIP, ABORTED),
    (ABORTED, Event.DATA_READ): Cell(FOLD, ABORTED),
    (ABORTED, Event.COMMIT_READ): Cell(SKIP, ABORTED),
    (ABORTED, Event.ABORT_READ): Cell(SKIP, ABORTED),
    (ABORTED, Event.WATERMARK_READ): Cell(FOLD, ABORTED),
    #
    (OVER, Event.PUBLISH): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.VERIFIED): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.NOT_VERIFIED): Cell(REFUSE, OVER, _ENDED),
    (OVER, Event.END_COMMIT): Cell(ANSWER, OVER),
    (OVER, Event.END_ABORT): Cell(ANSWER, OVER),
    (OVER, Event.WATERMARK): Cell(SKIP, OVER),
    (OVER, Event.DUE): Cell(SKIP, OVER),
    (OVER, Event.DATA_READ): Cell(FOLD, STALE),
    (OVER, Event.COMMIT_READ): Cell(SKIP, OVER),
    (OVER, Event.ABORT_READ): Cell(SKIP, OVER),
    (OVER, Event.WATERMARK_READ): Cell(FOLD, OVER),
}
"""(state, event) -> what happens; complete. The two states of the whole buffer are simpler: until `recovered` it refuses every
request with ServiceNotReady, and its max_read_position is EARLIEST."""

END_EVENT: Final[Mapping[TxnAction, Event]] = MappingProxyType(
    {TxnAction.COMMIT: Event.END_COMMIT, TxnAction.ABORT: Event.END_ABORT}
)
MARKER_EVENT: Final[Mapping[int, Event]] = MappingProxyType(
    {int(MarkerType.TXN_COMMIT): Event.COMMIT_READ, int(MarkerType.TXN_ABORT): Event.ABORT_READ}
)
