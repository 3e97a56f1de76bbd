"""What happens to a transaction at a subscription: the states, the events, and the table of both.

A subscription knows a transaction from its first acknowledgement here until the low watermark of its coordinator passes
it. An ack of a transaction that is UNKNOWN is not taken on trust: its coordinator is asked whether the transaction is
open and has this subscription as a participant (VERIFY), and only the positive answer lets the ack in. From then on the
transaction is OPEN here: each ack is checked against the cursor, against what every other transaction holds, and against
the cumulative slot, *before* anything is written. So the log holds only acks that count, and replay needs no checks; an
ack that conflicts leaves no trace and changes no state. An ack of what the transaction itself holds already is a repeat,
sent again because its answer was lost: it has the same answer and writes nothing.

The coordinator's word ends it, with one record. COMMITTED means that the acks are decided and on their way to the cursor
but a crash could still lose what the cursor has not stored; the handle keeps them, names them to the dispatcher as
pending, and moves the cursor again after a recovery. COVERED means that the cursor's durable state has them and only the
id is remembered. ABORTED means that exactly what the transaction held is free again. An end of a transaction that never
came here is written too: an ack of it may still be under way, with the coordinator's yes from before the end in its hand
(VERIFIED after COMMIT), and must find a closed door, also after a restart. A repeat of an end answers without a record.
The opposite end is refused: the coordinator decides once, so one of the two messages is wrong, and guessing would tear
the transaction apart.

The low watermark of a coordinator, which travels with every end, says that all its transactions up to there are over.
Ids at or below it need no memory: they are PAST and whatever they ask is refused, or for an end, answered. A transaction
that is still OPEN below a new watermark is stale (its ack came too late for the end) and is aborted in the same record as
the end that brought the watermark: all of them, and never the transaction that is just ending, which ends as it was told.

Acknowledgements outside transactions take what they touch out of the transactions that hold it; the transaction stays
open with the rest. A reset of the cursor drops what lies at or behind the new place, and forgets commits that wait for
the cursor: a seek back must give their messages again, and a seek forward has passed them.

Individual and cumulative acks of one transaction live side by side and end together. One transaction at a time may hold
a cumulative ack. Stricter than Pulsar, an individual ack at or before the cumulative ack of another transaction conflicts,
and so does a cumulative ack over anything that another transaction holds individually: both would acknowledge the same
message, and if one commits and the other aborts there is no answer that keeps both promises. Programs that ack each
message in one transaction at a time never meet this; nor does a cumulative ack over what was committed before.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class State(enum.Enum):
    """What a subscription knows of a transaction."""

    UNKNOWN = "unknown"
    OPEN = "open"
    COMMITTED = "committed"
    COVERED = "covered"
    ABORTED = "aborted"
    PAST = "past"


class Event(enum.Enum):
    """What can happen to a transaction at a subscription.

    Acks are such that conflict with nothing; a repeated one names what the transaction holds already. Acks outside
    transactions and resets touch everything the transaction holds.
    """

    ACK_INDIVIDUAL = "ack individual"
    ACK_CUMULATIVE = "ack cumulative"
    ACK_REPEATED = "ack repeated"
    VERIFIED = "verified"
    NOT_VERIFIED = "not verified"
    COMMIT = "commit"
    ABORT = "abort"
    WATERMARK = "watermark"
    PLAIN_ACKED = "plain acked"
    CURSOR_STORED = "cursor stored"
    CURSOR_RESET = "cursor reset"


class Outcome(enum.Enum):
    """What the handle does with it."""

    WRITE = "write a record"
    VERIFY = "ask the coordinator"
    ANSWER = "answer without a record"
    REFUSE = "refuse"
    IGNORE = "nothing to do"


class Transition(NamedTuple):
    """What is done in a state at an event, and the state after it."""

    outcome: Outcome
    state: State


def _same(state: State, outcome: Outcome, *events: Event) -> dict[tuple[State, Event], Transition]:
    return {(state, event): Transition(outcome, state) for event in events}


_ACKS: Final = (Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.ACK_REPEATED, Event.VERIFIED, Event.NOT_VERIFIED)
_OTHERS: Final = (Event.PLAIN_ACKED, Event.CURSOR_STORED, Event.CURSOR_RESET)

TRANSITIONS: Final[Mapping[tuple[State, Event], Transition]] = MappingProxyType(
    {
        **_same(State.UNKNOWN, Outcome.VERIFY, Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.ACK_REPEATED),
        (State.UNKNOWN, Event.VERIFIED): Transition(Outcome.WRITE, State.OPEN),
        (State.UNKNOWN, Event.NOT_VERIFIED): Transition(Outcome.REFUSE, State.UNKNOWN),
        (State.UNKNOWN, Event.COMMIT): Transition(Outcome.WRITE, State.COVERED),
        (State.UNKNOWN, Event.ABORT): Transition(Outcome.WRITE, State.ABORTED),
        (State.UNKNOWN, Event.WATERMARK): Transition(Outcome.WRITE, State.PAST),
        **_same(State.UNKNOWN, Outcome.IGNORE, *_OTHERS),
        **_same(State.OPEN, Outcome.WRITE, Event.ACK_INDIVIDUAL, Event.ACK_CUMULATIVE, Event.VERIFIED),
        **_same(State.OPEN, Outcome.ANSWER, Event.ACK_REPEATED),
        (State.OPEN, Event.NOT_VERIFIED): Transition(Outcome.REFUSE, State.OPEN),
        (State.OPEN, Event.COMMIT): Transition(Outcome.WRITE, State.COMMITTED),
        (State.OPEN, Event.ABORT): Transition(Outcome.WRITE, State.ABORTED),
        (State.OPEN, Event.WATERMARK): Transition(Outcome.WRITE, State.PAST),
        **_same(State.OPEN, Outcome.WRITE, Event.PLAIN_ACKED, Event.CURSOR_RESET),
        **_same(State.OPEN, Outcome.IGNORE, Event.CURSOR_STORED),
        **_same(State.COMMITTED, Outcome.REFUSE, *_ACKS, Event.ABORT),
        **_same(State.COMMITTED, Outcome.ANSWER, Event.COMMIT),
        (State.COMMITTED, Event.WATERMARK): Transition(Outcome.WRITE, State.PAST),
        **_same(State.COMMITTED, Outcome.IGNORE, Event.PLAIN_ACKED),
        (State.COMMITTED, Event.CURSOR_STORED): Transition(Outcome.WRITE, State.COVERED),
        (State.COMMITTED, Event.CURSOR_RESET): Transition(Outcome.WRITE, State.COVERED),
        **_same(State.COVERED, Outcome.REFUSE, *_ACKS, Event.ABORT),
        **_same(State.COVERED, Outcome.ANSWER, Event.COMMIT),
        (State.COVERED, Event.WATERMARK): Transition(Outcome.WRITE, State.PAST),
        **_same(State.COVERED, Outcome.IGNORE, *_OTHERS),
        **_same(State.ABORTED, Outcome.REFUSE, *_ACKS, Event.COMMIT),
        **_same(State.ABORTED, Outcome.ANSWER, Event.ABORT),
        (State.ABORTED, Event.WATERMARK): Transition(Outcome.WRITE, State.PAST),
        **_same(State.ABORTED, Outcome.IGNORE, *_OTHERS),
        **_same(State.PAST, Outcome.REFUSE, *_ACKS),
        **_same(State.PAST, Outcome.ANSWER, Event.COMMIT, Event.ABORT),
        **_same(State.PAST, Outcome.WRITE, Event.WATERMARK),
        **_same(State.PAST, Outcome.IGNORE, *_OTHERS),
    }
)
"""(state, event) -> what is done and the state after it; complete. WATERMARK is the end of a transaction that never came
here, with a low watermark at or above this one; it writes its own record in every state."""
