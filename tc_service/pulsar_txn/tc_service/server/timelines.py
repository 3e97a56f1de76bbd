"""Knowledge of the service about its transactions beside their state: their timelines, and the ends to be told once more.

A history lists the events of one transaction in the order in which they happened, as the records of a coordinator say and as
the drivers of ends saw it. Times are milliseconds since the epoch; 0 where a snapshot has taken the place of the records.

Histories are in memory, and bounded: those of open transactions, and of the transactions that ended last. After a restart, or
where another instance leads from now on, they are what the log has from its snapshot on. The times at which participants were
told are not in the log.

The driver repeats each end once, in memory (`cluster.ends`). When the process dies before that, the next one, or the instance
that leads then, finds these ends here: from the records of the log, and from what was stored beside its snapshot. Nothing here
changes a transaction.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pulsar_txn.broker.serving import CoordinatorHost, Histogram, News, Turn
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.protocols import Log
from pulsar_txn.tc.causes import Cause, cause_of
from pulsar_txn.tc.ids import most_of_lane
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.records import (
    ADD_PARTITION,
    ADD_SUBSCRIPTION,
    CHECKED,
    NEW,
    PARKED,
    PREPARED,
    RESUMED,
    UPDATE,
    Entry,
    Record,
)
from pulsar_txn.tc.requests import Coordinator
from pulsar_txn.tc_service.cluster.ends import NO_WATERMARK
from pulsar_txn.tc_service.cluster.participants import decode, encode
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import EARLIEST, LANE_BIT, Participant, Position, TxnAction, TxnId, TxnStatus, coordinator_of

from .clusters import Clusters

if TYPE_CHECKING:
    from .incarnations import FirstCommits

logger = logging.getLogger("pulsar_txn.tc_service")

_FORMAT: Final = 1
_MOST_PARTICIPANTS: Final = 4096
"""Of one coordinator: writing so many beside a snapshot takes a few milliseconds. The oldest are dropped."""

_EVENTS_PER_HISTORY: Final = 16
"""Events that the histories of ended transactions may have, on average: one of a thousand participants is a long one."""
_new: Final = tuple.__new__
"""Makes an event of all its fields: a third of what a call of its class takes, eight times in a transaction."""
_DECISIONS: Final = (TxnStatus.COMMITTING, TxnStatus.ABORTING)
_HOLDS: Final = (TxnStatus.HELD, TxnStatus.OPEN)
FRONT: Final = "front"
"""The name of the coordinators for unchanged clients, beside those that give lanes."""

_MAX_TOUCHED: Final = 10_000


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


History: TypeAlias = list[Event]


_OUTCOME: Final = {
    TxnStatus.COMMITTING: "commit",
    TxnStatus.COMMITTED: "commit",
    TxnStatus.ABORTING: "abort",
    TxnStatus.ABORTED: "abort",
}


_CAUSE_WORD: Final = {
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


def cause_word(cause: int | None) -> str:
    """Word for the cause of a decision: `client`, `timeout`, and so on."""
    known = None if cause is None else cause_of(cause)
    return "unknown" if known is None else _CAUSE_WORD[known]


def outcome_word(status: int) -> str:
    """`commit` or `abort`."""
    return _OUTCOME[TxnStatus(status)]


def owner_of(history: History) -> str | None:
    """The role that owns the transaction; None without authentication."""
    return next((event.owner[0] for event in history if isinstance(event, Begun)), None)


def id_of(history: History) -> TxnId | None:
    """Its id."""
    return next((event.txn_id for event in history if isinstance(event, Begun)), None)


def participants_of(history: History) -> Iterator[tuple[str, str | None]]:
    """Everything that has joined, with its cluster in the topic."""
    for event in history:
        if isinstance(event, Registered):
            yield from event.participants


def as_json(history: History) -> dict[str, Any]:
    """The history as JSON has it, with the duration of each part of it (milliseconds)."""
    begun = next(event for event in history if isinstance(event, Begun))
    principal, identity = begun.owner
    times = _times(history)
    answer: dict[str, Any] = {
        "txnId": f"({begun.txn_id.most},{begun.txn_id.least})",
        "state": _state(history),
        "timeoutMs": begun.timeout_ms,
        "events": list(_events(history)),
        "durationsMs": {
            name: times[last] - times[first]
            for name, first, last in (("open", Begun, Decided), ("ending", Decided, Done), ("whole", Begun, Done))
            if times.get(first) and times.get(last)
        },
        "isWhole": all(event.at_ms for event in history),
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


def _state(history: History) -> str:
    decided = next((event for event in history if isinstance(event, Decided)), None)
    if decided is None:
        held = [event for event in history if isinstance(event, Held)]
        if held and not held[-1].is_over:
            return "HELD"
        waits = next((event for event in reversed(history) if isinstance(event, Prepared | Parked | Resumed)), None)
        return "PREPARED" if isinstance(waits, Prepared) else "PARKED" if isinstance(waits, Parked) else "OPEN"
    is_done = any(isinstance(event, Done) for event in history)
    return {"commit": ("COMMITTING", "COMMITTED"), "abort": ("ABORTING", "ABORTED")}[outcome_word(decided.status)][is_done]


def _times(history: History) -> dict[type, int]:
    return {type(event): event.at_ms for event in reversed(history)}


def _events(history: History) -> Iterator[dict[str, Any]]:
    decided_ms = _times(history).get(Decided, 0)
    for event in history:
        match event:
            case Begun():
                yield {"at": event.at_ms, "event": "begun"}
            case Registered():
                yield {
                    "at": event.at_ms,
                    "event": "registered",
                    "participants": list(map(participant_json, _decoded(event.participants))),
                }
            case Checked():
                yield {"at": event.at_ms, "event": "checked", "count": event.times}
            case Prepared():
                yield {"at": event.at_ms, "event": "prepared"}
            case Held():
                what = "released" if event.is_over else "held"
                yield {"at": event.at_ms, "event": what} | ({} if event.is_over else {"because": cause_word(event.cause)})
            case Parked():
                yield {"at": event.at_ms, "event": "parked"}
            case Resumed():
                yield {"at": event.at_ms, "event": "resumed"}
            case Decided():
                yield {
                    "at": event.at_ms,
                    "event": "decided",
                    "outcome": outcome_word(event.status),
                    "by": cause_word(event.cause),
                }
            case Told():
                where = participant_json((event.cluster, event.participant))
                yield {"at": event.at_ms, "event": "told", **where, "attempts": event.attempts} | (
                    {"afterMs": event.at_ms - decided_ms} if decided_ms else {}
                )
            case Done():
                yield {"at": event.at_ms, "event": "done"}


def _decoded(participants: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, Participant]]:
    return (decode(Participant(topic, subscription)) for topic, subscription in participants)


def participant_json(where: tuple[str, Participant]) -> dict[str, str]:
    """A participant as JSON has it."""
    cluster, participant = where
    named = {"cluster": cluster, "topic": participant.topic}
    return named if participant.subscription is None else named | {"subscription": participant.subscription}


class End(NamedTuple):
    """A transaction that ended. `participants`: topics with their cluster, and subscriptions there."""

    at_ms: int
    txn_id: TxnId
    is_commit: bool
    participants: tuple[tuple[str, str | None], ...]


class RecentEnds:
    """The ends of the last `delay_ms`, by the times of the log. 0: none are kept."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._ends: deque[End] = deque()
        self._participants = 0

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: End) -> None:
        """This transaction has ended last."""
        if not self._delay_ms or not end.participants:
            return
        self._ends.append(end)
        self._participants += len(end.participants)
        until_ms = end.at_ms - self._delay_ms
        while self._ends[0].at_ms <= until_ms or (self._participants > _MOST_PARTICIPANTS and len(self._ends) > 1):
            self._participants -= len(self._ends.popleft().participants)

    def not_repeated(self) -> Iterator[tuple[End, int]]:
        """Ends that may not have been repeated before the log ended, and when each is due: after the time of the log."""
        return ((end, end.at_ms + self._delay_ms) for end in list(self._ends))

    def stored(self) -> bytes:
        """All of them as bytes."""
        ends = [[end.at_ms, *end.txn_id, end.is_commit, end.participants] for end in self._ends]
        return json.dumps({"format": _FORMAT, "ends": ends}, separators=(",", ":")).encode()

    def restore(self, data: bytes) -> None:
        """The inverse of `stored`; snapshots of older versions have nothing. WireError."""
        if not data:
            return
        found = json.loads(data)
        if found["format"] > _FORMAT:
            raise WireError(f"ends beside a snapshot in format {found['format']}; this version reads up to {_FORMAT}")
        for at_ms, most, least, is_commit, participants in found["ends"]:
            names = tuple((topic, subscription) for topic, subscription in participants)
            self.add(End(at_ms, TxnId(most, least), is_commit, names))


_WAITS: Final[dict[int, Callable[[int], Event]]] = {PREPARED: Prepared, PARKED: Parked, RESUMED: Resumed}


class EndedHistories:
    """The histories of the transactions that ended last, of all coordinators. The oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._histories: deque[tuple[dict[int, History], int, int]] = deque()
        self._events = 0

    def add(self, histories: dict[int, History], least: int, size: int) -> None:
        """The transaction `least` of `histories` has ended. `size`: its events and participants."""
        self._histories.append((histories, least, size))
        self._events += size
        while len(self._histories) > self._most or self._events > self._most * _EVENTS_PER_HISTORY:
            oldest, number, size = self._histories.popleft()
            oldest.pop(number, None)
            self._events -= size


class EndRepeats:
    """Repeats of the ends that a process before this one may have told once only."""

    def __init__(self, clusters: Clusters, turn: Turn) -> None:
        self.seconds = turn.runtime.monotonic
        self._clusters = clusters
        self._turn = turn

    def repeat(self, recent: RecentEnds) -> None:
        """Tell those that may not have been repeated once more, when they are due."""
        for end, due_ms in recent.not_repeated():
            action = TxnAction.COMMIT if end.is_commit else TxnAction.ABORT
            seconds = max(0, due_ms - self._turn.clock.now_ms()) / 1000
            for topic, subscription in end.participants:
                effect = TellParticipant(end.txn_id, Participant(topic, subscription), action, NO_WATERMARK)
                self._clusters.repeat(effect, seconds)


class Timeline:
    """The histories of one coordinator's transactions, which follow its records.

    `decisions` counts them by status and cause. `append_seconds`: how long records took until they were durable; a sample.
    """

    def __init__(self, tc_id: int, ended: EndedHistories, recent: RecentEnds, repeats: EndRepeats) -> None:
        self.decisions: Counter[tuple[int, int]] = Counter()
        self.append_seconds = Histogram()
        self.recent = recent
        self._tc_id = tc_id
        self._ended = ended
        self._repeats = repeats
        self._sample: tuple[Position, float] = (EARLIEST, 0.0)
        self.is_sampling = False
        self._histories: dict[int, History] = {}

    def history(self, txn_id: TxnId) -> History | None:
        """The history of a transaction; None where it is not remembered."""
        history = self._histories.get(txn_id.least)
        first = None if not history else history[0]
        return history if isinstance(first, Begun) and first.txn_id == txn_id else None

    def told(self, txn_id: TxnId, cluster: str, participant: Participant, attempts: int, now_ms: int) -> None:
        """A participant holds the outcome."""
        history = self._histories.get(txn_id.least)
        if history is not None and type(begun := history[0]) is Begun and begun.txn_id == txn_id:
            history.append(_new(Told, (now_ms, cluster, participant, attempts)))

    def ends(self) -> list[End]:
        """The transactions that ended last, as far as they are remembered."""
        histories = list(self._histories.values())
        return [end for end in map(end_of, histories) if end is not None]

    # ---- what its host tells

    def restored(self, machine: Any, data: bytes) -> None:
        """Take the state of the machine after its snapshot, beside which `data` was stored."""
        self.recent.restore(data)
        for info in machine.transactions():
            owner = (info.principal, info.identity)
            history: History = [Begun(info.start_time_ms, info.txn_id, owner, info.timeout_ms, None, info.check_group)]
            if info.participants:
                history.append(Registered(0, tuple((each.topic, each.subscription) for each in info.participants)))
            if info.check_count:
                history.append(Checked(0, info.check_count))
            if info.prepared:
                history.append(Prepared(0))
            if info.status is TxnStatus.HELD:
                history.append(Held(0, info.held, is_over=False))
            if info.parked_ms is not None:
                history.append(Parked(info.parked_ms))
            if info.status in _DECISIONS:
                history.append(Decided(0, info.status, None))
            self._histories[info.txn_id.least] = history

    def applied(self, record: Record) -> None:
        """Follow a record that was applied, in recovery or live."""
        if not isinstance(record, Entry):
            return
        operation, least = record.operation, record.least
        if operation == UPDATE:
            self._status_changed(least, record)
            for further in record.group:
                self._status_changed(further, record)
        elif operation == NEW:
            most = self._tc_id if record.lane is None else most_of_lane(self._tc_id, record.lane)
            txn_id, extras = _new(TxnId, (most, least)), record.extras
            group = None if extras is None else extras.group
            begun = (record.modified_ms, txn_id, record.owner, record.timeout_ms, record.incarnation, group)
            opened: History = [_new(Begun, begun)]
            if record.partitions or record.subscriptions:
                opened.append(_registered(record))
            self._histories[least] = opened
        elif operation in (ADD_PARTITION, ADD_SUBSCRIPTION):
            history = self._histories.get(least)
            if history is not None:
                history.append(_registered(record))
        elif operation == CHECKED:
            for each in (least, *record.group):
                self._checked(each, record.modified_ms)
        elif operation in _WAITS:
            self._waits(_WAITS[operation](record.modified_ms), (least, *record.group))

    def _waits(self, event: Event, leasts: tuple[int, ...]) -> None:
        for history in filter(None, map(self._histories.get, leasts)):
            history.append(event)

    def _checked(self, least: int, at_ms: int) -> None:
        """One event for all questions: a prepared transaction may be asked for during months."""
        history = self._histories.get(least)
        if history is None:
            return
        for at, event in enumerate(history):
            if type(event) is Checked:
                history[at] = Checked(at_ms, event.times + 1)
                return
        history.append(Checked(at_ms, 1))

    def _status_changed(self, least: int, record: Entry) -> None:
        history = self._histories.get(least)
        if history is None:
            return
        if record.new_status in _DECISIONS:
            history.append(_new(Decided, (record.modified_ms, record.new_status, record.cause)))
            self.decisions[record.new_status, record.cause] += 1
            return
        if record.new_status in _HOLDS:
            history.append(Held(record.modified_ms, record.cause, is_over=record.new_status != TxnStatus.HELD))
            return
        history.append(_new(Done, (record.modified_ms,)))
        begun = history[0]
        participants = tuple([each for event in history if type(event) is Registered for each in event.participants])
        if type(begun) is Begun:
            self.recent.add(End(record.modified_ms, begun.txn_id, record.new_status == TxnStatus.COMMITTED, participants))
        self._ended.add(self._histories, least, len(history) + len(participants))

    def folded(self) -> None:
        """Note that everything that the log holds is applied."""
        self.decisions.clear()  # they count since the start of this process
        self._repeats.repeat(self.recent)

    def stored(self) -> bytes:
        """Return bytes to store beside a snapshot that is taken now."""
        return self.recent.stored()

    def appended(self, position: Position) -> None:
        """Note that a record was appended at this position."""
        if not self.is_sampling:
            self.is_sampling = True
            self._sample = (position, self._repeats.seconds())

    def confirmed(self, position: Position) -> None:
        """Note that everything up to here is durable."""
        if self.is_sampling and position >= self._sample[0]:
            self.is_sampling = False
            self.append_seconds.note(self._repeats.seconds() - self._sample[1])


def _registered(record: Entry) -> Registered:
    return _new(Registered, (record.modified_ms, (*zip(record.partitions, repeat(None)), *record.subscriptions)))


def end_of(history: History) -> End | None:
    """The end of a transaction; None while it has none."""
    begun, done = history[0], history[-1]
    decided = next((event for event in history if isinstance(event, Decided)), None)
    if not isinstance(begun, Begun) or not isinstance(done, Done) or decided is None:
        return None
    return End(done.at_ms, begun.txn_id, decided.status == TxnStatus.COMMITTING, tuple(participants_of(history)))


class FollowedCoordinatorHost(CoordinatorHost):
    """Host of a coordinator whose records a timeline follows, live and while they are folded."""

    def __init__(self, machine: Coordinator, log: Log, turn: Turn, on_news: News, timeline: Timeline) -> None:
        super().__init__(machine, log, turn, on_news)
        self.timeline = timeline

    def applied(self, log: str, position: Position, record: Any) -> None:
        """Tell the timeline."""
        timeline = self.timeline
        if not timeline.is_sampling:
            timeline.appended(position)
        timeline.applied(record)

    def confirmed(self) -> None:
        """Tell the timeline."""
        if self.timeline.is_sampling:
            self.timeline.confirmed(self.main.confirmed)

    def fold(self, log: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery."""
        record = self.machine.decode(log, data)
        self.machine.apply(log, position, record)
        self.timeline.applied(record)

    def snapshot_extra(self) -> bytes:
        """Bytes that the timeline stores."""
        return self.timeline.stored()

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""
        self.timeline.restored(self.machine, data)

    def folded(self) -> None:
        """See `CoordinatorHost.folded`."""
        super().folded()
        self.timeline.folded()


class Timelines:
    """The timelines of coordinators of one kind. `delay_ms`: see `RecentEnds`."""

    def __init__(self, ended: EndedHistories, delay_ms: int, repeats: EndRepeats) -> None:
        self.of: dict[int, Timeline] = {}
        self._ended = ended
        self._delay_ms = delay_ms
        self._repeats = repeats

    def watch(self, tc_id: int) -> Timeline:
        """A new one for a coordinator that is opened."""
        found = self.of[tc_id] = Timeline(tc_id, self._ended, RecentEnds(self._delay_ms), self._repeats)
        return found

    def history(self, txn_id: TxnId) -> History | None:
        """The history of a transaction; None where it is not remembered."""
        timeline = self.of.get(coordinator_of(txn_id.most))
        return None if timeline is None else timeline.history(txn_id)

    def told(self, txn_id: TxnId, cluster: str, participant: Participant, attempts: int, now_ms: int) -> None:
        """A participant holds the outcome."""
        timeline = self.of.get(coordinator_of(txn_id.most))
        if timeline is not None:
            timeline.told(txn_id, cluster, participant, attempts, now_ms)


class ServiceTimelines:
    """The timelines of all coordinators of a service. `lanes`: those of our clients; `front`: those of unchanged ones.

    `most`: see `EndedHistories`; `repeat_delay_ms`: see `RecentEnds`.
    """

    def __init__(self, clusters: Clusters, turn: Turn, first_commits: FirstCommits, *, most: int, repeat_delay_ms: int) -> None:
        ended, repeats = EndedHistories(most), EndRepeats(clusters, turn)
        self.lanes = Timelines(ended, repeat_delay_ms, repeats)
        self.front = Timelines(ended, repeat_delay_ms, repeats)
        self.touched: OrderedDict[tuple[str, str, str | None], int] = OrderedDict()
        """Participants (cluster, topic, subscription), and when they were told last: the newest are at the end."""
        self._first_commits = first_commits
        self._turn = turn
        clusters.watch(self._told)

    def history(self, txn_id: TxnId) -> History | None:
        """The history of a transaction; None where it is not remembered."""
        return self._of(txn_id).history(txn_id)

    def ended_at(self, cluster: str, participant: Participant) -> list[End]:
        """Transactions that have ended there, of those that are remembered."""
        named = encode(cluster, participant)
        found: list[End] = []
        for _, timeline in self.by_coordinator():
            found += [end for end in timeline.ends() if (named.topic, named.subscription) in end.participants]
        return found

    def by_coordinator(self) -> Iterator[tuple[str, Timeline]]:
        """Each with the number of its coordinator, as metrics name it."""
        for prefix, found in (("", self.lanes), (f"{FRONT}-", self.front)):
            for tc_id, timeline in sorted(found.of.items()):
                yield f"{prefix}{tc_id}", timeline

    def _of(self, txn_id: TxnId) -> Timelines:
        return self.lanes if txn_id.most & LANE_BIT else self.front

    def _told(self, cluster: str, effect: TellParticipant, attempts: int) -> None:
        now_ms, participant, txn_id = self._turn.clock.now_ms(), effect.participant, effect.txn_id
        (self.lanes if txn_id.most & LANE_BIT else self.front).told(txn_id, cluster, participant, attempts, now_ms)
        self._first_commits.told(cluster, effect)
        key = (cluster, participant.topic, participant.subscription)
        self.touched[key] = now_ms
        self.touched.move_to_end(key)
        if len(self.touched) > _MAX_TOUCHED:
            self.touched.popitem(last=False)
