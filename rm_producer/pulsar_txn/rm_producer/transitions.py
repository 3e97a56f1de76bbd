"""What a transaction can be for one topic, and what each event makes of it.

Four states are enough. A transaction is ONGOING from its first entry to its first marker, and ABORTED as long as an
entry of it may still be read. It is OVER when it is neither, and its coordinator's low watermark has passed it.
Everything else is UNKNOWN: nothing of it was ever written here, or it was committed.

That a committed transaction needs no memory is the point of the design. Its entries are hidden by nothing, so there
is nothing to remember for readers; and a late entry of it is refused by the one who does remember, the coordinator:
UNKNOWN means *ask* (VerifyRegistered), and only an open transaction with this topic registered is let in. The host
lets other requests of the transaction, its end included, wait behind the question, so no answer is overtaken by an end.

From this follows what an end does. *A marker is written exactly when the transaction is ONGOING*; every other end finds
nothing to do and is answered like the first one, once the log's tail is durable:

* UNKNOWN, commit: either a repeat (the entries are visible already) or nothing was ever written here (a registered
  topic to which no send got through). Both leave nothing to show and nothing to hide. Stock Pulsar writes another
  marker in either case; here a repeat costs no entry, without a memory of finished ids.
* UNKNOWN, abort: the same. An abort of what was committed here cannot be told from it; it changes nothing, and no
  coordinator asks for both, because the decision in its log is the only truth about an outcome.
* ABORTED, commit: known to contradict what readers were told, therefore refused with InvalidTxnStatus.
* OVER: the coordinator itself said that it is finished with this id; the end is a belated repeat.

The order of events in the fold is the order of the log, and *the first marker wins*: a second marker, equal or not, is
skipped, so any number of markers reads like one. Data of an ABORTED transaction (in a log written by somebody who does
not refuse) stays hidden. Data of an UNKNOWN or OVER one opens it, as nothing in the log says otherwise; the next
watermark ends it.

WATERMARK stands for the end of *another* transaction of the same coordinator whose low watermark covers this one. What
is still ONGOING then was never registered, or its end is lost: it is aborted here, with a marker of our own, wherever it
stands, and never the one that is being ended. Their markers go in front of the ending one, which carries the watermark. Some
hundreds are aborted so in one Step; when there are more, the others follow in Steps of their own, due at once (`expire`), also
after a crash. Until then nothing more is written in them; their own end, should it still come, counts. An end that writes no
marker leaves no watermark behind; what is late is then refused by asking.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class TxnState(enum.Enum):
    """What a transaction is for one topic."""

    UNKNOWN = "unknown"
    ONGOING = "ongoing"
    ABORTED = "aborted"
    OVER = "over"


class Event(enum.Enum):
    """What can happen to it: requests, answers, and entries met in the log."""

    PUBLISH = "publish"
    VERIFIED = "verified"
    NOT_VERIFIED = "not verified"
    END_COMMIT = "end: commit"
    END_ABORT = "end: abort"
    WATERMARK = "watermark"
    DATA_READ = "data in the log"
    COMMIT_READ = "commit marker in the log"
    ABORT_READ = "abort marker in the log"


class Action(enum.Enum):
    """What the buffer does about it."""

    APPEND = "append the entry"
    ASK = "ask the coordinator"
    REFUSE = "NotAllowedError"
    CONTRADICT = "InvalidTxnStatus"
    MARK = "append the marker"
    ABORT_HERE = "append an abort marker of our own"
    ANSWER = "answer, write nothing"
    FOLD = "fold"
    SKIP = "skip"


_U, _O, _A, _X = TxnState.UNKNOWN, TxnState.ONGOING, TxnState.ABORTED, TxnState.OVER

TRANSITIONS: Final[Mapping[tuple[TxnState, Event], tuple[Action, TxnState]]] = MappingProxyType(
    {
        (_U, Event.PUBLISH): (Action.ASK, _U),
        (_U, Event.VERIFIED): (Action.APPEND, _O),
        (_U, Event.NOT_VERIFIED): (Action.REFUSE, _U),
        (_U, Event.END_COMMIT): (Action.ANSWER, _U),
        (_U, Event.END_ABORT): (Action.ANSWER, _U),
        (_U, Event.WATERMARK): (Action.SKIP, _X),
        (_U, Event.DATA_READ): (Action.FOLD, _O),
        (_U, Event.COMMIT_READ): (Action.SKIP, _U),
        (_U, Event.ABORT_READ): (Action.SKIP, _U),
        (_O, Event.PUBLISH): (Action.APPEND, _O),
        (_O, Event.VERIFIED): (Action.APPEND, _O),
        (_O, Event.NOT_VERIFIED): (Action.REFUSE, _O),
        (_O, Event.END_COMMIT): (Action.MARK, _U),
        (_O, Event.END_ABORT): (Action.MARK, _A),
        (_O, Event.WATERMARK): (Action.ABORT_HERE, _A),
        (_O, Event.DATA_READ): (Action.FOLD, _O),
        (_O, Event.COMMIT_READ): (Action.FOLD, _U),
        (_O, Event.ABORT_READ): (Action.FOLD, _A),
        (_A, Event.PUBLISH): (Action.REFUSE, _A),
        (_A, Event.VERIFIED): (Action.REFUSE, _A),
        (_A, Event.NOT_VERIFIED): (Action.REFUSE, _A),
        (_A, Event.END_COMMIT): (Action.CONTRADICT, _A),
        (_A, Event.END_ABORT): (Action.ANSWER, _A),
        (_A, Event.WATERMARK): (Action.SKIP, _A),
        (_A, Event.DATA_READ): (Action.FOLD, _A),
        (_A, Event.COMMIT_READ): (Action.SKIP, _A),
        (_A, Event.ABORT_READ): (Action.SKIP, _A),
        (_X, Event.PUBLISH): (Action.REFUSE, _X),
        (_X, Event.VERIFIED): (Action.REFUSE, _X),
        (_X, Event.NOT_VERIFIED): (Action.REFUSE, _X),
        (_X, Event.END_COMMIT): (Action.ANSWER, _X),
        (_X, Event.END_ABORT): (Action.ANSWER, _X),
        (_X, Event.WATERMARK): (Action.SKIP, _X),
        (_X, Event.DATA_READ): (Action.FOLD, _O),
        (_X, Event.COMMIT_READ): (Action.SKIP, _X),
        (_X, Event.ABORT_READ): (Action.SKIP, _X),
    }
)
"""(state, event) -> (action, state after it), every pair. The two states of the whole buffer are simpler: until
`recovered` it refuses every request with ServiceNotReady, and its max_read_position is EARLIEST."""
