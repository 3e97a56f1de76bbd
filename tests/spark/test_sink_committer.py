"""The sink's protocol against a simulated store: stopped before and after every request, with zombies and lost answers.

The store has what the protocol rests on: read committed that shows nothing behind an open transaction, a producer with
fencing epochs, END_TXN that forgets a transaction once it is over, reaches the topics one after the other, and goes to one of
several coordinators. Rows go to two topics, with the tasks' messages or over the staging topic; `batch` is Spark's batch id.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final

import attrs
import pytest

from pulsar_txn.client.encoded import encode_batch
from pulsar_txn.pipeline.spark.errors import (
    CheckpointOlderThanSink,
    CommitUndecided,
    ForeignCheckpoint,
    RowsMissing,
    SinkError,
    SinkFenced,
    SinkStateLost,
    SkipRefused,
    StoreFailed,
)
from pulsar_txn.pipeline.spark.sink.committer import ANY_TOPIC, PublishResult, SinkCommitter, Work, fill
from pulsar_txn.pipeline.spark.sink.control import (
    Barrier,
    EndReply,
    EndTxn,
    Fence,
    Forward,
    Intent,
    Marker,
    NewTxn,
    OpenStaging,
    Pause,
    Place,
    Publish,
    ReadRecords,
    ReadStaging,
    Receipts,
    ReleaseStaging,
    WriteRecord,
    decode_record,
    encode_record,
)
from pulsar_txn.pipeline.spark.sink.staged import Carrier, Payload

SINK = "query/0"
ROWS = {"a": 2, "b": 1}
PAUSES = 5
CARRIERS = ["inline", "topic"]


@attrs.frozen
class Kind:
    """How a cluster behaves: how late each topic hears of an end, and what its coordinators do."""

    delays: dict[str, int] = attrs.field(factory=dict)
    """Requests until an END_TXN has reached a topic."""
    remembers: tuple[bool, ...] = (False,)
    """For each coordinator, whether it knows transactions that are over."""
    away: int = 0
    """How many END_TXN a coordinator leaves without answer, and does not carry out, before it is well."""

    @property
    def is_instant(self) -> bool:
        return len({self.delays.get(topic, 0) for topic in ("a", "b")}) == 1


def late(requests: int, *topics: str) -> dict[str, int]:
    return dict.fromkeys(topics or ("a", "b", "control"), requests)


KINDS = [
    Kind(),
    Kind(remembers=(True,)),
    Kind(late(7)),
    Kind(late(7), remembers=(True,)),
    Kind(late(6, "a")),
    Kind(late(6, "control"), remembers=(True,)),
    Kind(late(2, "b"), remembers=(False, True), away=2),
]


class Store:
    """A cluster: topics `a`, `b` and `control`, each a list of [value, txn id or None]; transactions by id.

    The staging topic loses at once whatever its subscription need not keep any more.
    """

    def __init__(self, kind: Kind | None = None) -> None:
        self.kind = kind or Kind()
        self.slowest = max(self.kind.delays.values(), default=0)
        self.topics: dict[str, list[tuple[Any, str | None]]] = {"a": [], "b": [], "control": []}
        self.decided: dict[str, tuple[str, int] | None] = {}
        self.now = 0
        self.epoch = 0
        self.away = [self.kind.away] * len(self.kind.remembers)
        self.half_seen = False
        self.changes_until = 0
        self.staging: dict[Place, Payload] = {}
        self.staged = 0
        self.kept = False

    def tick(self) -> None:
        self.now += 1
        if self.kind.is_instant and self.now <= self.changes_until:
            batches = [{batch for batch, _ in self.visible(topic)} for topic in ("a", "b")]
            self.half_seen |= batches[0] != batches[1]

    def state(self, txn: str, topic: str) -> str:
        """As a topic knows it."""
        decision = self.decided[txn]
        if decision is None or self.now < decision[1] + self.kind.delays.get(topic, 0):
            return "open"
        return decision[0]

    def visible(self, topic: str) -> list[Any]:
        values = []
        for value, txn in self.topics[topic]:
            state = "committed" if txn is None else self.state(txn, topic)
            if state == "open":
                break
            if state == "committed":
                values.append(value)
        return values

    def begin(self) -> str:
        number = len(self.decided)
        txn = f"({number % len(self.kind.remembers)},{number})"
        self.decided[txn] = None
        return txn

    def end(self, txn: str, *, commit: bool) -> EndReply:
        goal = "committed" if commit else "aborted"
        coordinator = int(txn[1 : txn.index(",")])
        if self.away[coordinator]:
            self.away[coordinator] -= 1
            return EndReply.UNKNOWN
        decision = self.decided[txn]
        if decision is None:
            decision = self._decide(txn, goal)
        elif self.is_over(txn):
            if not self.kind.remembers[coordinator]:
                return EndReply.OVER
            return EndReply.DONE if decision[0] == goal else EndReply.BUSY
        if decision[0] != goal:
            return EndReply.BUSY
        return EndReply.DONE if self.is_over(txn) else EndReply.UNKNOWN

    def is_over(self, txn: str) -> bool:
        decision = self.decided[txn]
        return decision is not None and self.now >= decision[1] + self.slowest

    def time_out(self) -> None:
        for txn, decision in self.decided.items():
            if decision is None:
                self._decide(txn, "aborted")

    def _decide(self, txn: str, goal: str) -> tuple[str, int]:
        self.decided[txn] = decision = (goal, self.now)
        self.changes_until = self.now + self.slowest + 1
        return decision

    def stage(self, payload: Payload) -> Place:
        self.staged += 1
        if self.kept:
            self.staging[1, self.staged] = payload
        return 1, self.staged


class StagingOf:
    """The staging topic of a store, as the tasks' part of the sink sees it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sent: list[Place] = []
        store.kept = True

    def send(self, payload: Payload) -> None:
        self.sent.append(self.store.stage(payload))

    def places(self) -> list[Place]:
        return self.sent


ROW: Final = encode_batch([b"row"])


def attempt(store: Store, carrier: str, topic: str, rows: int) -> Carrier:
    """An attempt of the task that has the rows of a topic: a payload for each, until its input ends (perhaps too early)."""
    work = Carrier(0 if carrier == "topic" else 10**6, lambda: StagingOf(store))
    for _ in range(rows):
        work.put(Payload(topic, -1, ROW))
    return work


class Run:
    """One run of the query: its tasks, and what it knows of its producer and of what it has read, as the real adapter does.

    Of each task a truncated attempt runs first, and a twin stages its rows while the driver commits; Spark drops both.
    """

    def __init__(self, store: Store, carrier: str = "inline", rows: dict[str, int] | None = None, fenced: bool = True) -> None:
        self.store = store
        self.carrier = carrier
        self.rows = ROWS if rows is None else rows
        self.fenced = fenced
        self.epoch = -1
        self.read = 0
        self.pauses = 0
        self.batch = -1
        self.staging_at: Place = (0, 0)
        self.forwarded: list[str] = []
        self.inline: list[str] = []
        self.at_hand: dict[Place, Payload] = {}
        self.requests = 0

    def deliver(self, batch: int, handed_over: dict[str, int] | None = None) -> Work:
        """The tasks of a micro-batch; what Spark gives to the commit."""
        self.batch, self.pauses, self.requests = batch, 0, 0
        self.inline, places = [], []
        for topic, rows in self.rows.items():
            attempt(self.store, self.carrier, topic, max(rows - 1, 1)).parked()
            work = attempt(self.store, self.carrier, topic, rows)
            self.inline += [payload.topic for payload in work.payloads]
            places += [each.place for each in work.parked()]
        return Work(batch, self.rows if handed_over is None else handed_over, places, ["end"])

    def perform(self, request: Any) -> Any:
        store = self.store
        store.tick()
        self.requests += 1
        if self.requests == 4:
            for topic, rows in self.rows.items():
                attempt(store, self.carrier, topic, rows)  # the late twin
        match request:
            case Fence():
                self.epoch = store.epoch = store.epoch + 1
                self.read = 0
                return self.epoch
            case WriteRecord(record, txn_id):
                if self.fenced and self.epoch != store.epoch:
                    raise SinkFenced("a newer run")
                self._send("control", record, txn_id)
                return None
            case ReadRecords():
                records = store.visible("control")
                fresh, self.read = records[self.read :], len(records)
                return fresh
            case NewTxn():
                return store.begin()
            case EndTxn(txn_id, commit):
                return store.end(txn_id, commit=commit)
            case Pause():
                self.pauses += 1
                return self.pauses < PAUSES
        return self._perform_rows(request)

    def _perform_rows(self, request: Any) -> Any:
        match request:
            case Publish(txn_id):
                self._send_rows(self.inline, txn_id)
                return dict(Counter(self.inline))
            case OpenStaging(first):
                self.staging_at, self.forwarded = (first[0], first[1] - 1), []
            case ReadStaging():
                found = sorted(place for place in self.store.staging if place > self.staging_at)[:2]
                self.staging_at = found[-1] if found else self.staging_at
                self.at_hand = {place: self.store.staging[place] for place in found}
                return found
            case Forward(txn_id, place):
                self._send_rows([self.at_hand[place].topic], txn_id)
                self.forwarded.append(self.at_hand[place].topic)
            case Receipts():
                return dict(Counter(self.forwarded))
            case ReleaseStaging(last):
                self.store.staging = {place: payload for place, payload in self.store.staging.items() if place > last}
            case _:
                raise AssertionError(request)
        return None

    def _send_rows(self, topics: list[str], txn: str) -> None:
        for topic in topics:
            self._send(topic, (self.batch, 0), txn)

    def _send(self, topic: str, value: Any, txn: str | None) -> None:
        if txn is not None and self.store.decided[txn] is not None:
            raise StoreFailed("the transaction is over")
        self.store.topics[topic].append((value, txn))


class Crash(BaseException):
    """The process is gone."""


Committer = Callable[[], SinkCommitter]


def steps(
    committer: SinkCommitter, run: Run, batch: int, rows: dict[str, int] | None = None
) -> Generator[Any, None, PublishResult]:
    """Carry out a commit, giving control away before and after every request; what is sent in replaces the reply."""
    work = committer.commit(run.deliver(batch, rows))
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            request = work.throw(error) if error is not None else work.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Outcome
        error = None
        yield ("before", request)
        try:
            reply = run.perform(request)
        except SinkError as refused:
            error = refused
        yield ("after", request)


def finish(work: Generator[Any, None, PublishResult]) -> PublishResult:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Outcome


@attrs.frozen
class Query:
    """What all runs of a query have in common."""

    make: Committer
    carrier: str = "inline"
    fenced: bool = True

    def run(self, store: Store) -> Run:
        return Run(store, self.carrier, fenced=self.fenced)


def commit(query: Query, store: Store, batch: int, *, crash_at: int | None = None) -> PublishResult | None:
    """One new run that commits one batch; None when it was killed before the request `crash_at`, or gave up."""
    work = steps(query.make(), query.run(store), batch)
    for request in itertools.count():
        if request == crash_at:
            return None
        try:
            next(work)
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Outcome
        except CommitUndecided:
            return None
    raise AssertionError


def plain() -> SinkCommitter:
    return SinkCommitter(SINK, "query")


PLAIN = Query(plain)
both = pytest.mark.parametrize("query", [Query(plain, carrier) for carrier in CARRIERS], ids=CARRIERS)


def check(store: Store, batches: int) -> None:
    """Every row of every batch once, batches at once, nothing left open, one marker per batch and in order."""
    for _ in range(10):
        store.tick()  # until every topic has heard
    for topic, count in ROWS.items():
        expected = Counter({(batch, 0): count for batch in range(batches)})
        assert Counter(store.visible(topic)) == expected, topic
    assert not store.half_seen
    used = {txn for entries in store.topics.values() for _, txn in entries}
    assert not [txn for txn in used if txn is not None and store.decided[txn] is None]  # a reader would wait for it
    markers = [record for record in store.visible("control") if isinstance(record, Marker)]
    assert [marker.batch_id for marker in markers] == list(range(batches))


def replay(query: Query, store: Store, batch: int) -> None:
    """Spark's restart: the same batch until it ends well."""
    for _ in range(4):
        if commit(query, store, batch) is not None:
            return
    raise AssertionError("the batch never ended")


# --- the explorer ---------------------------------------------------------------------------------------------------


def explore_crashes(query: Query, *, away: bool) -> int:
    """Killed at every step of batch 1, restarted, killed again at every step, restarted; then batch 2. Returns cases."""
    cases = 0
    for kind in KINDS:
        for first in itertools.count():
            for second in (None, *range(60)):
                store = Store(kind)
                replay(query, store, 0)
                done = commit(query, store, 1, crash_at=first) is not None
                if away:
                    store.time_out()
                again = second is not None and commit(query, store, 1, crash_at=second) is not None
                replay(query, store, 1)
                replay(query, store, 2)
                check(store, 3)
                cases += 1
                if done or again:
                    break
            if done:
                break
    return cases


def explore_zombies(query: Query) -> int:
    """A run is paused at every step of batch 1; a new one goes on with batches 1 and 2, the zombie between any two steps."""
    cases = 0
    for kind in KINDS:
        for first in itertools.count(1):
            reached = False
            for second in itertools.count():
                store = Store(kind)
                replay(query, store, 0)
                zombie = steps(query.make(), query.run(store), 1)
                reached |= _advance(zombie, first)
                newer = steps(query.make(), query.run(store), 1)
                woken = not _advance(newer, second)
                _run_zombie(zombie)
                if not woken:
                    _finish_or_replay(newer, query, store, 1)
                replay(query, store, 2)
                check(store, 3)
                cases += 1
                if woken:
                    break
            if not reached:
                break
    return cases


def explore_late_zombies(query: Query) -> int:
    """A zombie of batch 1 goes on when the new run's tasks have staged batch 2 already."""
    cases = 0
    for kind in KINDS:
        for first in itertools.count(1):
            store = Store(kind)
            replay(query, store, 0)
            zombie = steps(query.make(), query.run(store), 1)
            reached = _advance(zombie, first)
            replay(query, store, 1)
            newer = steps(query.make(), query.run(store), 2)
            next(newer)  # its tasks have ended
            _run_zombie(zombie)
            _finish_or_replay(newer, query, store, 2)
            check(store, 3)
            cases += 1
            if not reached:
                break
    return cases


def explore_lost_replies(query: Query) -> int:
    """The answer of every request of batch 1 is lost, whether it was carried out or not; the run goes on, or is replayed."""
    cases = 0
    for kind, carried_out in itertools.product(KINDS, [False, True]):
        for at in itertools.count():
            store = Store(kind)
            replay(query, store, 0)
            run, requests = query.run(store), itertools.count()

            def perform(request: Any, run: Run = run, requests: Any = requests, at: int = at, done: bool = carried_out) -> Any:
                if next(requests) != at:
                    return run.perform(request)
                if done:
                    run.perform(request)
                return _no_answer(request)

            try:
                _drive(query.make().commit(run.deliver(1)), perform)
            except (StoreFailed, CommitUndecided):
                replay(query, store, 1)
            replay(query, store, 2)
            check(store, 3)
            cases += 1
            if next(requests) <= at:
                break
    return cases


def _no_answer(request: Any) -> Any:
    """What the adapter makes of it."""
    if isinstance(request, EndTxn):
        return EndReply.UNKNOWN
    if isinstance(request, ReleaseStaging):
        return None
    if isinstance(request, Pause):
        return True
    raise StoreFailed("no answer")


def _drive(work: Generator[Any, Any, Any], perform: Callable[[Any], Any]) -> Any:
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            request = work.throw(error) if error is not None else work.send(reply)
        except StopIteration as done:
            return done.value
        try:
            reply, error = perform(request), None
        except SinkError as refused:
            error = refused


def _advance(work: Generator[Any, None, PublishResult], count: int) -> bool:
    """So many requests; False when it ended before."""
    for _ in range(2 * count):
        try:
            next(work)
        except (StopIteration, CommitUndecided):
            return False
    return True


def _run_zombie(zombie: Generator[Any, None, PublishResult]) -> None:
    try:
        finish(zombie)
    except (SinkFenced, CommitUndecided, StoreFailed, CheckpointOlderThanSink, RowsMissing):
        return


def _finish_or_replay(work: Generator[Any, None, PublishResult], query: Query, store: Store, batch: int) -> None:
    try:
        finish(work)
    except (CommitUndecided, StoreFailed, SinkFenced):
        replay(query, store, batch)


# --- promises -------------------------------------------------------------------------------------------------------


@both
def test_a_run_publishes_its_batches_one_after_the_other_and_takes_over_once(query: Query) -> None:
    store, committer = Store(), plain()
    run = query.run(store)
    requests = []
    for batch in range(3):
        work = steps(committer, run, batch)
        for when, request in work:
            if when == "before":
                requests.append(type(request))
    check(store, 3)
    assert requests.count(Fence) == 1
    assert requests.count(ReadRecords) == 1
    assert requests.count(Forward) == (9 if query.carrier == "topic" else 0)


@both
@pytest.mark.parametrize("away", [False, True])
def test_killed_at_any_step_once_or_twice_every_batch_is_published_once(query: Query, away: bool) -> None:
    assert explore_crashes(query, away=away) > 300


@both
def test_a_zombie_that_goes_on_at_any_step_changes_nothing(query: Query) -> None:
    assert explore_zombies(query) > 300
    assert explore_late_zombies(query) > 80


@both
def test_a_lost_answer_of_any_request_leads_to_the_truth(query: Query) -> None:
    assert explore_lost_replies(query) > 100


@both
def test_a_batch_that_is_published_already_is_skipped(query: Query) -> None:
    store = Store()
    assert commit(query, store, 0) is PublishResult.PUBLISHED
    run = query.run(store)
    work = run.deliver(0)
    assert _drive(query.make().commit(work), run.perform) is PublishResult.SKIPPED
    assert not set(work.places) & set(store.staging), "what the replay has staged is released with it"
    check(store, 1)


@pytest.mark.parametrize(
    ("first", "again", "why"),
    [
        ({"offsets": "1f"}, {"offsets": "2e"}, "planned other offsets under that number: it was copied, or restored"),
        ({"target": "persistent://public/default/a"}, {"target": ANY_TOPIC}, "writes to the topics of its column topic"),
        ({"target": "persistent://public/default/c"}, {"target": "persistent://public/default/d"}, "went to .*/c, while"),
        ({}, {"target": "persistent://public/default/a"}, "went to persistent://public/default/a, persistent://.*/b, while"),
    ],
)
def test_a_number_that_comes_again_with_other_work_is_not_skipped(
    first: dict[str, str], again: dict[str, str], why: str
) -> None:
    def given(store: Store, proof: dict[str, str], *, adopt: bool = False) -> PublishResult:
        run = Run(store)
        committer = SinkCommitter(SINK, "query", adopt=adopt)
        return _drive(committer.commit(attrs.evolve(run.deliver(0), **proof)), run.perform)  # type: ignore[no-any-return]

    store = Store()
    assert given(store, first) is PublishResult.PUBLISHED
    with pytest.raises(SkipRefused, match=f"has published micro-batch 0, and .*{why}"):
        given(store, again)
    assert given(store, first) is PublishResult.SKIPPED
    check(store, 1)
    assert given(store, again, adopt=True) is PublishResult.PUBLISHED, "the user has said so"
    assert given(store, again, adopt=True) is PublishResult.SKIPPED, "also when the option stays"


@pytest.mark.parametrize(("offsets", "mine"), [("", False), ("1f", False), ("", True)])
def test_a_batch_that_another_run_has_published_is_not_ours_without_proof(offsets: str, mine: bool) -> None:
    store, kept = Store(), plain()
    run = Run(store)
    work = attrs.evolve(run.deliver(0), offsets=offsets)
    _drive((kept if mine else plain()).commit(work), run.perform)
    anew, later = plain(), Run(store)
    anew.replaces(kept)
    steps_of_it = anew.commit(attrs.evolve(later.deliver(0), offsets=offsets))
    if mine or offsets:
        assert _drive(steps_of_it, later.perform) is PublishResult.SKIPPED
        return
    with pytest.raises(SinkFenced, match="another run of sink query/0 has published micro-batch 0 meanwhile"):
        _drive(steps_of_it, later.perform)


def test_what_is_staged_is_released_when_its_batch_is_published_and_not_before() -> None:
    store, query = Store(), Query(plain, "topic")
    work = steps(query.make(), query.run(store), 0)
    for when, request in work:
        assert bool(store.staging) or isinstance(request, ReleaseStaging)
        if when == "before" and isinstance(request, EndTxn):
            assert len(store.staging) >= sum(ROWS.values())
    check(store, 1)


def test_staged_entries_that_somebody_deleted_abort_the_batch_and_the_replay_stages_them_again() -> None:
    store, query = Store(), Query(plain, "topic")
    run = query.run(store)
    work = query.make().commit(run.deliver(0))
    store.staging.popitem()
    with pytest.raises(RowsMissing, match="1 of 3 staged entries are gone"):
        _drive(work, run.perform)
    assert [decision and decision[0] for decision in store.decided.values()] == ["aborted"]
    replay(query, store, 0)
    check(store, 1)


def test_an_empty_batch_leaves_its_marker_too() -> None:
    store = Store()
    committer, run = plain(), Run(store, rows={})
    finish(steps(committer, run, 0))
    run.rows = ROWS
    assert finish(steps(committer, run, 1)) is PublishResult.PUBLISHED
    assert committer.last_marker is not None
    assert committer.last_marker.rows == ROWS


def test_an_older_checkpoint_is_refused_since_skipping_would_lose_rows() -> None:
    store = Store()
    for batch in range(3):
        replay(PLAIN, store, batch)
    with pytest.raises(CheckpointOlderThanSink, match="has published micro-batch 2"):
        commit(PLAIN, store, 1)
    check(store, 3)


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_a_new_checkpoint_of_an_old_sink_is_refused_and_loses_nothing(batch: int) -> None:
    store, other = Store(), Query(lambda: SinkCommitter(SINK, "another query"))
    for earlier in range(2):
        replay(PLAIN, store, earlier)
    with pytest.raises(ForeignCheckpoint, match=r"query query, which published micro-batch 1 last.*startingOffsets=end,"):
        commit(other, store, batch)
    check(store, 2)


def test_an_adopted_sink_goes_on_after_its_marker_with_the_numbers_of_the_new_query_and_is_its_own() -> None:
    store, other = Store(), Query(lambda: SinkCommitter(SINK, "another query"))
    for batch in range(2):
        replay(PLAIN, store, batch)
    assert commit(Query(lambda: SinkCommitter(SINK, "another query", adopt=True)), store, 0) is PublishResult.PUBLISHED
    assert commit(other, store, 0) is PublishResult.SKIPPED
    assert commit(other, store, 1) is PublishResult.PUBLISHED
    markers = [record for record in store.visible("control") if isinstance(record, Marker)]
    assert [(marker.query_id, marker.batch_id) for marker in markers[-2:]] == [("another query", 0), ("another query", 1)]
    assert Counter(store.visible("a")) == {(0, 0): 4, (1, 0): 4}
    with pytest.raises(ForeignCheckpoint, match="query another query"):
        commit(PLAIN, store, 2)


def test_a_crash_at_any_step_of_an_adoption_publishes_the_batch_once() -> None:
    adopting = Query(lambda: SinkCommitter(SINK, "another query", adopt=True))
    for crash_at in itertools.count():
        store = Store()
        replay(PLAIN, store, 0)
        done = commit(adopting, store, 0, crash_at=crash_at) is not None
        replay(adopting, store, 0)
        assert Counter(store.visible("a")) == {(0, 0): 4}
        if done:
            break


def test_a_marker_of_an_older_version_is_of_any_query() -> None:
    store = Store()
    replay(Query(lambda: SinkCommitter(SINK)), store, 0)
    assert commit(PLAIN, store, 0) is PublishResult.SKIPPED
    assert commit(PLAIN, store, 1) is PublishResult.PUBLISHED
    check(store, 2)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_missing_marker_is_refused_and_may_be_adopted(batch: int) -> None:
    store = Store()
    with pytest.raises(SinkStateLost, match="missing"):
        commit(PLAIN, store, batch)
    assert commit(Query(lambda: SinkCommitter(SINK, "query", adopt=True)), store, batch) is PublishResult.PUBLISHED
    assert commit(PLAIN, store, batch + 1) is PublishResult.PUBLISHED


def test_a_gap_behind_the_last_marker_is_refused() -> None:
    store = Store()
    replay(PLAIN, store, 0)
    with pytest.raises(SinkStateLost, match="that of 0"):
        commit(PLAIN, store, 2)


def test_a_control_topic_of_another_sink_is_refused() -> None:
    store = Store()
    replay(Query(lambda: SinkCommitter("other/0")), store, 0)
    with pytest.raises(SinkStateLost, match="belongs to sink 'other/0'"):
        commit(PLAIN, store, 0)


@both
def test_rows_that_were_not_sent_abort_the_batch(query: Query) -> None:
    store = Store()
    with pytest.raises(RowsMissing):
        finish(steps(plain(), query.run(store), 0, {"a": 3, "b": 1}))
    assert [decision and decision[0] for decision in store.decided.values()] == ["aborted"]
    replay(query, store, 0)
    check(store, 1)


@both
def test_a_transaction_that_timed_out_under_the_commit_is_published_by_another(query: Query) -> None:
    store = Store()
    work = steps(plain(), query.run(store), 0)
    for when, request in work:
        if when == "before" and isinstance(request, EndTxn) and request.commit:
            store.time_out()
            break
    assert finish(work) is PublishResult.PUBLISHED
    check(store, 1)


def test_a_foreign_open_transaction_on_the_control_topic_ends_the_commit_undecided() -> None:
    store = Store()
    store.decided["foreign"] = None
    store.topics["control"].append((Barrier(SINK, 0, 0), "foreign"))
    with pytest.raises(CommitUndecided, match="of others"):
        finish(steps(plain(), Run(store), 0))


@pytest.mark.parametrize(
    "record",
    [
        Intent("s", 3, "(1,2)"),
        Barrier("s", 4, 5),
        Marker("s", 3, 4, "(1,2)", {"t": 7}, "query", ['{"v":1}']),
        Marker("s", 3, 4, "(1,2)", {"t": 7}, "query", [], "*", "1f", {"2": "t"}),
    ],
)
def test_records_survive_their_encoding(record: Intent | Barrier | Marker) -> None:
    assert decode_record(encode_record(record)) == record


def test_a_marker_without_query_is_read_as_one_of_an_older_version() -> None:
    text = b'{"v":1,"kind":"marker","sink_id":"s","batch_id":3,"epoch":4,"txn_id":"(1,2)","rows":{"t":7}}'
    assert decode_record(text) == Marker("s", 3, 4, "(1,2)", {"t": 7})
    assert b"target" not in encode_record(decode_record(text)), "older versions can read what has no proof"
    assert decode_record(text[:-1] + b',"new":1}') == decode_record(text), "a later version may write more"


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"v":2,"kind":"intent"}', b'{"v":1,"kind":"x"}', b'{"v":1,"kind":"intent"}']
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(SinkStateLost, match="controlTopic of its own"):
        decode_record(data)


# --- mutants: each wrong protocol is found by the explorer --------------------------------------------------------------


class MarkerOutside(SinkCommitter):
    def _fill(self, marker: Marker, places: Any) -> Any:
        yield from fill("", marker.txn_id, marker.rows, places)
        yield WriteRecord(marker)


class MarkerUnchecked(SinkCommitter):
    def _is_published(self, work: Work) -> bool:
        return False


class NoSettle(SinkCommitter):
    def _settle(self) -> Any:
        yield from ()
        return []


class SettledIntentsForgotten(SinkCommitter):
    """Does not read up to a barrier, only what is visible at once."""

    def _read_up_to_now(self, epoch: int) -> Any:
        for record in (yield ReadRecords()):
            self._note(record)


class NotFoundIsSuccess(SinkCommitter):
    def _attempt(self, work: Work, epoch: int) -> Any:
        txn_id = yield NewTxn()
        marker = Marker(self.sink_id, work.batch_id, epoch, txn_id, dict(work.rows))
        yield WriteRecord(Intent(self.sink_id, work.batch_id, txn_id))
        yield from self._fill(marker, work.places)
        if (yield EndTxn(txn_id, commit=True)) in (EndReply.DONE, EndReply.OVER):
            self._note(marker)
        else:
            yield from self._read_up_to_now(epoch)


class SkipsWhenLater(SinkCommitter):
    def _is_published(self, work: Work) -> bool:
        return self._last is not None and self._last.batch_id >= work.batch_id


class SkipsByNumberAlone(SinkCommitter):
    """Takes the marker of another query for its own."""

    def _note(self, record: Any) -> Any:
        noted = super()._note(record)
        self._last = self._last and attrs.evolve(self._last, query_id=self.query_id)
        return noted


class NoMarker(SinkCommitter):
    """Counts on its memory alone."""

    def _fill(self, marker: Marker, places: Any) -> Any:
        yield from fill("", marker.txn_id, marker.rows, places)


class IntentBehindRows(SinkCommitter):
    def _attempt(self, work: Work, epoch: int) -> Any:
        txn_id = yield NewTxn()
        marker = Marker(self.sink_id, work.batch_id, epoch, txn_id, dict(work.rows), self.query_id)
        yield from self._fill(marker, work.places)
        yield WriteRecord(Intent(self.sink_id, work.batch_id, txn_id))
        if (yield EndTxn(txn_id, commit=True)) is EndReply.DONE:
            self._note(marker)
        else:
            yield from self._read_up_to_now(epoch)


class _OwnForwarding(SinkCommitter):
    """Forwards by itself, and counts nothing."""

    def _fill(self, marker: Marker, places: Any) -> Any:
        yield Publish(marker.txn_id)
        if places:
            yield OpenStaging(min(places))
            while found := (yield ReadStaging()):
                for place in found:
                    if self._takes(place, places):
                        yield Forward(marker.txn_id, place)
            yield Receipts()
        yield WriteRecord(marker, txn_id=marker.txn_id)

    def _takes(self, place: Place, places: Any) -> bool:
        return place in places


class ForwardsWhatIsThere(_OwnForwarding):
    """What dropped attempts have staged, too."""

    def _takes(self, place: Place, places: Any) -> bool:
        return True


class ForwardsUpToTheLast(_OwnForwarding):
    """What dropped attempts have staged before the last entry of the delivered ones."""

    def _takes(self, place: Place, places: Any) -> bool:
        return place <= max(places)


class MissesWhatIsGone(_OwnForwarding):
    """Takes the staged entries that are there for all that there were."""


class ReleasesBeforeItsEnd(SinkCommitter):
    def _fill(self, marker: Marker, places: Any) -> Any:
        yield from super()._fill(marker, places)
        if places:
            yield ReleaseStaging(max(places))


class ReleasesEverything(SinkCommitter):
    def commit(self, work: Work) -> Any:
        outcome = yield from super().commit(work)
        yield ReleaseStaging((2**62, 0))
        return outcome


def explore_all(query: Query) -> None:
    """All there is to try for a committer, as one promise that may fail; what is quick comes first."""
    explore_the_rest(query)
    explore_lost_replies(query)
    explore_late_zombies(query)
    explore_zombies(query)
    for away in (False, True):
        explore_crashes(query, away=away)


def explore_the_rest(query: Query) -> None:
    explore_time_outs(query)
    explore_older_checkpoint(query)
    explore_new_checkpoint(query)
    if query.carrier == "topic":
        explore_lost_staging(query)


def explore_time_outs(query: Query) -> None:
    """The transaction times out before END_TXN, at every step."""
    for at in itertools.count():
        store = Store()
        work = steps(query.make(), query.run(store), 0)
        if not _advance(work, at):
            break
        store.time_out()
        _finish_or_replay(work, query, store, 0)
        check(store, 1)


def explore_older_checkpoint(query: Query) -> None:
    store = Store()
    for batch in range(3):
        replay(query, store, batch)
    with pytest.raises(CheckpointOlderThanSink):
        commit(query, store, 1)


def explore_new_checkpoint(query: Query) -> None:
    store = Store()
    replay(Query(lambda: SinkCommitter(SINK, "an earlier query"), query.carrier), store, 0)
    with pytest.raises(ForeignCheckpoint):
        commit(query, store, 0)


def explore_lost_staging(query: Query) -> None:
    """Somebody deletes staged entries before the commit; the batch may fail then, and must not be published in part."""
    for lost in range(sum(ROWS.values())):
        store = Store()
        run = query.run(store)
        work = run.deliver(0)
        del store.staging[work.places[lost]]
        try:
            _drive(query.make().commit(work), run.perform)
        except RowsMissing:
            replay(query, store, 0)
        check(store, 1)


@both
def test_time_outs_checkpoints_and_lost_staging_change_nothing(query: Query) -> None:
    explore_the_rest(query)


@pytest.mark.parametrize(
    ("mutant", "carrier"),
    [
        (MarkerOutside, "inline"),
        (MarkerOutside, "topic"),
        (MarkerUnchecked, "inline"),
        (MarkerUnchecked, "topic"),
        (NoSettle, "inline"),
        (NoSettle, "topic"),
        (SettledIntentsForgotten, "inline"),
        (SettledIntentsForgotten, "topic"),
        (NotFoundIsSuccess, "inline"),
        (NotFoundIsSuccess, "topic"),
        (SkipsWhenLater, "inline"),
        (SkipsByNumberAlone, "inline"),
        (NoMarker, "inline"),
        (NoMarker, "topic"),
        (IntentBehindRows, "inline"),
        (IntentBehindRows, "topic"),
        (ForwardsWhatIsThere, "topic"),
        (ForwardsUpToTheLast, "topic"),
        (MissesWhatIsGone, "topic"),
        (ReleasesBeforeItsEnd, "topic"),
        (ReleasesEverything, "topic"),
    ],
)
def test_the_explorer_finds_what_is_wrong_with(mutant: type[SinkCommitter], carrier: str) -> None:
    with pytest.raises((AssertionError, SinkError, pytest.fail.Exception)):
        explore_all(Query(lambda: mutant(SINK, "query"), carrier))


@both
def test_the_explorer_finds_a_producer_that_is_not_fenced(query: Query) -> None:
    with pytest.raises((AssertionError, SinkError)):
        explore_all(attrs.evolve(query, fenced=False))


def test_the_explorer_finds_staged_rows_that_no_subscription_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "kept", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises((AssertionError, SinkError)):
        explore_all(Query(plain, "topic"))


def test_records_are_values() -> None:
    assert attrs.evolve(Marker("s", 1, 2, "t"), batch_id=2) != Marker("s", 1, 2, "t")
