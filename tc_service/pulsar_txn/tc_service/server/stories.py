"""Timelines of transactions, as their records say and as the drivers of ends saw it. Values, without IO.

A story is a list of events in the order in which they happened. Times are milliseconds since the epoch; 0 where a snapshot has
taken the place of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from pulsar_txn.tc.causes import Cause, cause_of
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus


class Begun(NamedTuple):
    """The transaction has its id. `incarnation`: None where a snapshot does not say it, or the client has none."""

    at_ms: int
    txn_id: TxnId
    owner: Owner
    timeout_ms: int
    incarnation: str | None
    check_group: str | None = None


class Registered(NamedTuple):
    """Participants have joined. The topics are as the coordinator's machine knows them, with their cluster."""

    at_ms: int
    participants: tuple[tuple[str, str | None], ...]


class Checked(NamedTuple):
    """Members of its check group have begun so many questions in all; the time is that of the last one."""

    at_ms: int
    times: int


class Prepared(NamedTuple):
    """Event: it waits for its end as long as it takes."""

    at_ms: int


class Held(NamedTuple):
    """Event: it waits for an administrator, because nobody here can know its outcome; or no longer.

    `cause`: a number of `Cause`.
    """

    at_ms: int
    cause: int
    is_over: bool


class Parked(NamedTuple):
    """Its check group did not know: it waits for an operator."""

    at_ms: int


class Resumed(NamedTuple):
    """An operator has its check group asked again."""

    at_ms: int


class Decided(NamedTuple):
    """COMMITTING or ABORTING. `cause`: a number of `Cause`; None where a snapshot does not say it."""

    at_ms: int
    status: int
    cause: int | None


class Told(NamedTuple):
    """One participant holds the outcome, after so many attempts."""

    at_ms: int
    cluster: str
    participant: Participant
    attempts: int


class Done(NamedTuple):
    """All participants hold the outcome."""

    at_ms: int


Event: TypeAlias = Begun | Registered | Checked | Prepared | Held | Parked | Resumed | Decided | Told | Done
Story: TypeAlias = list[Event]

_OUTCOME: Final = {
    TxnStatus.COMMITTING: "commit",
    TxnStatus.COMMITTED: "commit",
    TxnStatus.ABORTING: "abort",
    TxnStatus.ABORTED: "abort",
}
_BY: Final = {
    Cause.CLIENT: "client",
    Cause.TIMEOUT: "timeout",
    Cause.LEASE: "lease",
    Cause.GOODBYE: "goodbye",
    Cause.FENCED: "fence",
    Cause.OPERATOR: "operator",
    Cause.CHECKED: "check",
    Cause.DISCONNECTED: "disconnect",
    Cause.UNANSWERED: "unanswered checks",
    Cause.RESTORED: "restored log",
    Cause.DOUBT: "cluster that was not claimed",
}


def by(cause: int | None) -> str:
    """Return who decided, in a word."""
    known = None if cause is None else cause_of(cause)
    return "unknown" if known is None else _BY[known]


def outcome_word(status: int) -> str:
    """`commit` or `abort`."""
    return _OUTCOME[TxnStatus(status)]


def owner_of(story: Story) -> str | None:
    """The role that owns the transaction; None without authentication."""
    return next((event.owner[0] for event in story if isinstance(event, Begun)), None)


def id_of(story: Story) -> TxnId | None:
    """Its id."""
    return next((event.txn_id for event in story if isinstance(event, Begun)), None)


def participants_of(story: Story) -> Iterator[tuple[str, str | None]]:
    """Everything that has joined, with its cluster in the topic."""
    for event in story:
        if isinstance(event, Registered):
            yield from event.participants


def shown(story: Story) -> dict[str, Any]:
    """The story as JSON has it, with how long each part of it took (milliseconds)."""
    begun = next(event for event in story if isinstance(event, Begun))
    principal, identity = begun.owner
    times = _times(story)
    answer: dict[str, Any] = {
        "txnId": f"({begun.txn_id.most},{begun.txn_id.least})",
        "state": _state(story),
        "timeoutMs": begun.timeout_ms,
        "events": list(_events(story)),
        "durationsMs": {
            name: times[last] - times[first]
            for name, first, last in (("open", Begun, Decided), ("ending", Decided, Done), ("whole", Begun, Done))
            if times.get(first) and times.get(last)
        },
        "isWhole": all(event.at_ms for event in story),
    }
    if principal is not None:
        answer["owner"] = principal
    if identity is not None:
        answer |= {"transactionalId": identity[0], "epoch": identity[1]}
    if begun.incarnation is not None:
        answer["incarnation"] = begun.incarnation
    if begun.check_group is not None:
        answer["checkGroup"] = begun.check_group
    return answer


def _state(story: Story) -> str:
    decided = next((event for event in story if isinstance(event, Decided)), None)
    if decided is None:
        held = [event for event in story if isinstance(event, Held)]
        if held and not held[-1].is_over:
            return "HELD"
        waits = next((event for event in reversed(story) if isinstance(event, Prepared | Parked | Resumed)), None)
        return "PREPARED" if isinstance(waits, Prepared) else "PARKED" if isinstance(waits, Parked) else "OPEN"
    is_done = any(isinstance(event, Done) for event in story)
    return {"commit": ("COMMITTING", "COMMITTED"), "abort": ("ABORTING", "ABORTED")}[outcome_word(decided.status)][is_done]


def _times(story: Story) -> dict[type, int]:
    return {type(event): event.at_ms for event in reversed(story)}


def _events(story: Story) -> Iterator[dict[str, Any]]:
    decided_ms = _times(story).get(Decided, 0)
    for event in story:
        match event:
            case Begun():
                yield {"at": event.at_ms, "event": "begun"}
            case Registered():
                yield {"at": event.at_ms, "event": "registered", "participants": list(map(place, _named(event.participants)))}
            case Checked():
                yield {"at": event.at_ms, "event": "checked", "count": event.times}
            case Prepared():
                yield {"at": event.at_ms, "event": "prepared"}
            case Held():
                what = "released" if event.is_over else "held"
                yield {"at": event.at_ms, "event": what} | ({} if event.is_over else {"because": by(event.cause)})
            case Parked():
                yield {"at": event.at_ms, "event": "parked"}
            case Resumed():
                yield {"at": event.at_ms, "event": "resumed"}
            case Decided():
                yield {
                    "at": event.at_ms,
                    "event": "decided",
                    "outcome": outcome_word(event.status),
                    "by": by(event.cause),
                }
            case Told():
                where = place((event.cluster, event.participant))
                yield {"at": event.at_ms, "event": "told", **where, "attempts": event.attempts} | (
                    {"afterMs": event.at_ms - decided_ms} if decided_ms else {}
                )
            case Done():
                yield {"at": event.at_ms, "event": "done"}


def _named(participants: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, Participant]]:
    return (decode(Participant(topic, subscription)) for topic, subscription in participants)


def place(where: tuple[str, Participant]) -> dict[str, str]:
    """A participant as JSON has it."""
    cluster, participant = where
    named = {"cluster": cluster, "topic": participant.topic}
    return named if participant.subscription is None else named | {"subscription": participant.subscription}
