"""Effects of the delivery machine: what its shell has to do, in this order.

Flat values; the parts of the machine append them to one list, and the shell takes them out after each event.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import Position


class Timer(enum.Enum):
    """Timers of one partition; `Redelivery.expect` has one more for each call."""

    ACKS = "send the acknowledgements that were collected"
    REWIND = "look whether what is due has come"
    COPIES = "forget what was acknowledged since everything was asked for"
    ORDER = "ask for what has to come first"
    NEGATIVE_ACKS = "ask for what was acknowledged negatively"
    ACK_TIMEOUTS = "ask for what was not acknowledged in time"
    INCOMPLETE_CHUNKS = "acknowledge messages in chunks that stay incomplete"
    EVICTED_CHUNKS = "ask for messages in chunks that had no room"


class SendPermits(NamedTuple):
    """FLOW, at once."""

    permits: int


class SendAcks(NamedTuple):
    """ACK of messages that nobody waits for: individual ids and cumulative ones."""

    individual: Sequence[AckId]
    cumulative: Sequence[AckId]


class AskForAll(NamedTuple):
    """REDELIVER_UNACKNOWLEDGED_MESSAGES of everything; with the new consumer epoch where there is one (PIP-84)."""

    epoch: int | None


class AskFor(NamedTuple):
    """REDELIVER_UNACKNOWLEDGED_MESSAGES of some entries."""

    positions: Sequence[Position]


class DropQueued(NamedTuple):
    """Drop what is queued or held, because it comes again; then call `DeliveryMachine.queue_dropped`."""


class HandOut(NamedTuple):
    """Hand messages of one entry out again, in this order: one delivery more."""

    messages: Sequence[Any]


class Missing(NamedTuple):
    """Tell `token`, in the next turn of the loop, that these do not come again: bits by entry."""

    token: Any
    entries: Mapping[Position, int]


class SetTimer(NamedTuple):
    """Call `DeliveryMachine.expire(timer)` in so many seconds, and at no other time any more."""

    timer: object
    seconds: float


class StopTimer(NamedTuple):
    """Do not call."""

    timer: object


class Log(NamedTuple):
    """A line of the log."""

    level: Literal["info", "warning", "error"]
    text: str
    values: tuple[object, ...]


Effect: TypeAlias = SendPermits | SendAcks | AskForAll | AskFor | DropQueued | HandOut | Missing | SetTimer | StopTimer | Log
Effects: TypeAlias = list[Effect]
