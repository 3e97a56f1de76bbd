"""The sink's protocol against a simulated store: stopped before and after every request, with zombies and lost answers.

The store has what the protocol rests on: read committed that shows nothing behind an open transaction, a producer with
fencing epochs, END_TXN that forgets a transaction once it is over. Rows go to two topics; `batch` is Spark's batch id.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest

from pulsar_txn.pipeline.spark.errors import (
    CheckpointOlderThanSink,
    CommitUndecided,
    RowsMissing,
    SinkError,
    SinkFenced,
    SinkStateLost,
    StoreFailed,
)
from pulsar_txn.pipeline.spark.sink.committer import Outcome, SinkCommitter
from pulsar_txn.pipeline.spark.sink.control import (
    Barrier,
    EndReply,
    EndTxn,
    Fence,
    Intent,
    Marker,
    NewTxn,
    Pause,
    Publish,
    ReadRecords,
    WriteRecord,
    decode_record,
    encode_record,
)

SINK = "query/0"
ROWS = {"a": 2, "b": 1}
PAUSES = 5


class Store:
    """A cluster: topics `a`, `b` and `control`, each a list of [value, txn id or None]; transactions by id."""

    def __init__(self, *, slow_end: int = 0, remembers: bool = False) -> None:
        self.topics: dict[str, list[tuple[Any, str | None]]] = {"a": [], "b": [], "control": []}
        self.status: dict[str, str] = {}
        self.ending: dict[str, tuple[str, int]] = {}
        self.epoch = 0
        self.slow_end = slow_end  # requests until an END_TXN has reached the topics
        self.remembers = remembers  # whether the coordinator knows transactions that are over
        self.half_seen = False

    def tick(self) -> None:
        for txn, (goal, left) in list(self.ending.items()):
            if left <= 1:
                self.status[txn] = goal
                del self.ending[txn]
            else:
                self.ending[txn] = (goal, left - 1)
        seen = [set(self.visible(topic)) for topic in ("a", "b")]
        batches = [{value[0] for value in values} for values in seen]
        self.half_seen |= batches[0] != batches[1]

    def visible(self, topic: str) -> list[Any]:
        values = []
        for value, txn in self.topics[topic]:
            state = "committed" if txn is None else self.status[txn]
            if state == "open":
                break
            if state == "committed":
                values.append(value)
        return values

    def end(self, txn: str, *, commit: bool) -> EndReply:
        goal = "committed" if commit else "aborted"
        if txn in self.ending:
            return EndReply.BUSY if self.ending[txn][0] != goal else EndReply.UNKNOWN
        state = self.status[txn]
        if state != "open":
            if not self.remembers:
                return EndReply.OVER
            return EndReply.DONE if state == goal else EndReply.BUSY
        if self.slow_end:
            self.ending[txn] = (goal, self.slow_end)
            return EndReply.UNKNOWN
        self.status[txn] = goal
        return EndReply.DONE

    def time_out(self) -> None:
        for txn, state in self.status.items():
            if state == "open" and txn not in self.ending:
                self.status[txn] = "aborted"


class Run:
    """One run of the query: what it knows of its producer and of what it has read, as the real adapter does."""

    def __init__(self, store: Store, rows: dict[str, int] | None = None, fenced: bool = True) -> None:
        self.store = store
        self.rows = ROWS if rows is None else rows
        self.fenced = fenced
        self.epoch = -1
        self.read = 0
        self.pauses = 0
        self.batch = -1

    def perform(self, request: Any) -> Any:
        store = self.store
        store.tick()
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
                txn = f"({len(store.status)},0)"
                store.status[txn] = "open"
                return txn
            case Publish(txn_id):
                for topic, count in self.rows.items():
                    for number in range(count):
                        self._send(topic, (self.batch, number), txn_id)
                return dict(self.rows)
            case EndTxn(txn_id, commit):
                return store.end(txn_id, commit=commit)
            case Pause():
                self.pauses += 1
                return self.pauses < PAUSES
        raise AssertionError(request)

    def _send(self, topic: str, value: Any, txn: str | None) -> None:
        if txn is not None and (self.store.status[txn] != "open" or txn in self.store.ending):
            raise StoreFailed("the transaction is over")
        self.store.topics[topic].append((value, txn))


class Crash(BaseException):
    """The process is gone."""


Committer = Callable[[], SinkCommitter]


def steps(committer: SinkCommitter, run: Run, batch: int, rows: dict[str, int] | None = None) -> Generator[Any, None, Outcome]:
    """Carry out a commit, giving control away before and after every request; what is sent in replaces the reply."""
    run.batch = batch
    run.pauses = 0
    work = committer.commit(batch, ROWS if rows is None else rows)
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


def finish(work: Generator[Any, None, Outcome]) -> Outcome:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Outcome


def commit(make: Committer, store: Store, batch: int, *, crash_at: int | None = None, fenced: bool = True) -> Outcome | None:
    """One new run that commits one batch; None when it was killed at the step `crash_at`, or gave up."""
    work = steps(make(), Run(store, fenced=fenced), batch)
    for step in itertools.count():
        if step == crash_at:
            return None
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Outcome
        except CommitUndecided:
            return None
    raise AssertionError


def plain() -> SinkCommitter:
    return SinkCommitter(SINK)


def check(store: Store, batches: int) -> None:
    """Every row of every batch once, batches at once, nothing left open, one marker per batch and in order."""
    for topic, count in ROWS.items():
        expected = Counter((batch, number) for batch in range(batches) for number in range(count))
        assert Counter(store.visible(topic)) == expected, topic
    assert not store.half_seen
    used = {txn for entries in store.topics.values() for _, txn in entries}
    assert not [txn for txn in used if txn is not None and store.status[txn] == "open"]  # a reader would wait for it
    markers = [record for record in store.visible("control") if isinstance(record, Marker)]
    assert [marker.batch_id for marker in markers] == list(range(batches))


def replay(make: Committer, store: Store, batch: int, fenced: bool = True) -> None:
    """Spark's restart: the same batch until it ends well."""
    for _ in range(4):
        if commit(make, store, batch, fenced=fenced) is not None:
            return
    raise AssertionError("the batch never ended")


# --- the explorer ---------------------------------------------------------------------------------------------------


STORES = [(0, False), (0, True), (7, False), (7, True)]


def explore_crashes(make: Committer, *, away: bool, fenced: bool = True) -> int:
    """Killed at every step of batch 1, restarted, killed again at every step, restarted; then batch 2. Returns cases."""
    cases = 0
    for slow, remembers in STORES:
        for first in itertools.count():
            for second in (None, *range(0, 40, 1)):
                store = Store(slow_end=slow, remembers=remembers)
                replay(make, store, 0, fenced)
                done = commit(make, store, 1, crash_at=first, fenced=fenced) is not None
                if away:
                    store.time_out()
                again = second is not None and commit(make, store, 1, crash_at=second, fenced=fenced) is not None
                replay(make, store, 1, fenced)
                replay(make, store, 2, fenced)
                check(store, 3)
                cases += 1
                if done or again:
                    break
            if done:
                break
    return cases


def explore_zombies(make: Committer, *, fenced: bool = True) -> int:
    """A run is paused at every step of batch 1; a new one goes on with batches 1 and 2, the zombie between any two steps."""
    cases = 0
    for slow, remembers in STORES:
        for first in itertools.count():
            reached = False
            for second in itertools.count():
                store = Store(slow_end=slow, remembers=remembers)
                replay(make, store, 0, fenced)
                zombie = steps(make(), Run(store, fenced=fenced), 1)
                paused = _advance(zombie, first)
                reached |= paused
                newer_run, newer = Run(store, fenced=fenced), make()
                works = [steps(newer, newer_run, 1)]
                woken = not _advance(works[0], second)
                _run_zombie(zombie)
                if not woken:
                    _finish_or_replay(works[0], make, store, 1, fenced)
                replay(make, store, 2, fenced)
                check(store, 3)
                cases += 1
                if woken:
                    break
            if not reached:
                break
    return cases


def _advance(work: Generator[Any, None, Outcome], count: int) -> bool:
    """So many steps; False when it ended before."""
    for _ in range(count):
        try:
            next(work)
        except (StopIteration, CommitUndecided):
            return False
    return True


def _run_zombie(zombie: Generator[Any, None, Outcome]) -> None:
    try:
        finish(zombie)
    except (SinkFenced, CommitUndecided, StoreFailed, CheckpointOlderThanSink):
        return


def _finish_or_replay(work: Generator[Any, None, Outcome], make: Committer, store: Store, batch: int, fenced: bool) -> None:
    try:
        finish(work)
    except (CommitUndecided, StoreFailed, SinkFenced):
        replay(make, store, batch, fenced)


# --- promises -------------------------------------------------------------------------------------------------------


def test_a_run_publishes_its_batches_one_after_the_other_and_takes_over_once() -> None:
    store, committer = Store(), plain()
    run = Run(store)
    requests = []
    for batch in range(3):
        work = steps(committer, run, batch)
        for when, request in work:
            if when == "before":
                requests.append(type(request))
    check(store, 3)
    assert requests.count(Fence) == 1
    assert requests.count(ReadRecords) == 1


@pytest.mark.parametrize("away", [False, True])
def test_killed_at_any_step_once_or_twice_every_batch_is_published_once(away: bool) -> None:
    assert explore_crashes(plain, away=away) > 300


def test_a_zombie_that_goes_on_at_any_step_changes_nothing() -> None:
    assert explore_zombies(plain) > 300


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("at", range(14))
def test_a_lost_answer_of_any_request_leads_to_the_truth(at: int, remembers: bool, carried_out: bool) -> None:
    store = Store(remembers=remembers)
    replay(plain, store, 0)
    committer, run = plain(), Run(store)
    run.batch = 1
    lose = at

    def perform(request: Any) -> Any:
        nonlocal lose
        lose -= 1
        if lose != -1:
            return run.perform(request)
        if carried_out:
            run.perform(request)
        if isinstance(request, EndTxn):
            return EndReply.UNKNOWN
        raise StoreFailed("no answer")

    try:
        outcome = _drive(committer.commit(1, ROWS), perform)
    except StoreFailed:
        outcome = None
    if outcome is None:
        replay(plain, store, 1)
    check(store, 2)


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


def test_a_batch_that_is_published_already_is_skipped() -> None:
    store = Store()
    assert commit(plain, store, 0) is Outcome.PUBLISHED
    assert commit(plain, store, 0) is Outcome.SKIPPED
    check(store, 1)


def test_an_empty_batch_leaves_its_marker_too() -> None:
    store = Store()
    committer, run = plain(), Run(store, rows={})
    finish(steps(committer, run, 0, {}))
    run.rows = ROWS
    assert finish(steps(committer, run, 1)) is Outcome.PUBLISHED
    assert committer.last_marker is not None
    assert committer.last_marker.rows == ROWS


def test_an_older_checkpoint_is_refused_since_skipping_would_lose_rows() -> None:
    store = Store()
    for batch in range(3):
        replay(plain, store, batch)
    with pytest.raises(CheckpointOlderThanSink, match="has published micro-batch 2"):
        commit(plain, store, 1)
    check(store, 3)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_missing_marker_is_refused_and_may_be_adopted(batch: int) -> None:
    store = Store()
    with pytest.raises(SinkStateLost, match="missing"):
        commit(plain, store, batch)
    assert commit(lambda: SinkCommitter(SINK, adopt=True), store, batch) is Outcome.PUBLISHED
    assert commit(plain, store, batch + 1) is Outcome.PUBLISHED


def test_a_gap_behind_the_last_marker_is_refused() -> None:
    store = Store()
    replay(plain, store, 0)
    with pytest.raises(SinkStateLost, match="that of 0"):
        commit(plain, store, 2)


def test_a_control_topic_of_another_sink_is_refused() -> None:
    store = Store()
    replay(lambda: SinkCommitter("other/0"), store, 0)
    with pytest.raises(SinkStateLost, match="belongs to sink 'other/0'"):
        commit(plain, store, 0)


def test_rows_that_were_not_sent_abort_the_batch() -> None:
    store = Store()
    run = Run(store, rows={"a": 1, "b": 1})
    with pytest.raises(RowsMissing):
        finish(steps(plain(), run, 0))
    assert set(store.status.values()) == {"aborted"}
    replay(plain, store, 0)
    check(store, 1)


def test_a_transaction_that_timed_out_under_the_commit_is_published_by_another() -> None:
    store = Store()
    work = steps(plain(), Run(store), 0)
    for when, request in work:
        if when == "before" and isinstance(request, EndTxn) and request.commit:
            store.time_out()
            break
    assert finish(work) is Outcome.PUBLISHED
    check(store, 1)


def test_a_foreign_open_transaction_on_the_control_topic_ends_the_commit_undecided() -> None:
    store = Store()
    store.status["foreign"] = "open"
    store.topics["control"].append((Barrier(SINK, 0, 0), "foreign"))
    with pytest.raises(CommitUndecided, match="of others"):
        finish(steps(plain(), Run(store), 0))


@pytest.mark.parametrize("record", [Intent("s", 3, "(1,2)"), Barrier("s", 4, 5), Marker("s", 3, 4, "(1,2)", {"t": 7})])
def test_records_survive_their_encoding(record: Intent | Barrier | Marker) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"v":2,"kind":"intent"}', b'{"v":1,"kind":"x"}', b'{"v":1,"kind":"intent"}']
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(SinkStateLost, match="controlTopic of its own"):
        decode_record(data)


# --- mutants: each wrong protocol is found by the explorer --------------------------------------------------------------


class MarkerOutside(SinkCommitter):
    def _fill(self, marker: Marker) -> Any:
        yield Publish(marker.txn_id)
        yield WriteRecord(marker)


class MarkerUnchecked(SinkCommitter):
    def _is_published(self, batch_id: int) -> bool:
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
    def _attempt(self, batch_id: int, epoch: int, rows: Any) -> Any:
        txn_id = yield NewTxn()
        marker = Marker(self.sink_id, batch_id, epoch, txn_id, dict(rows))
        yield WriteRecord(Intent(self.sink_id, batch_id, txn_id))
        yield from self._fill(marker)
        if (yield EndTxn(txn_id, commit=True)) in (EndReply.DONE, EndReply.OVER):
            self._note(marker)
        else:
            yield from self._read_up_to_now(epoch)


class SkipsWhenLater(SinkCommitter):
    def _is_published(self, batch_id: int) -> bool:
        return self._last is not None and self._last.batch_id >= batch_id


class NoMarker(SinkCommitter):
    """Counts on its memory alone."""

    def _fill(self, marker: Marker) -> Any:
        yield Publish(marker.txn_id)


class IntentBehindRows(SinkCommitter):
    def _attempt(self, batch_id: int, epoch: int, rows: Any) -> Any:
        txn_id = yield NewTxn()
        marker = Marker(self.sink_id, batch_id, epoch, txn_id, dict(rows))
        yield from self._fill(marker)
        yield WriteRecord(Intent(self.sink_id, batch_id, txn_id))
        if (yield EndTxn(txn_id, commit=True)) is EndReply.DONE:
            self._note(marker)
        else:
            yield from self._read_up_to_now(epoch)


def explore_all(make: Committer, *, fenced: bool = True) -> None:
    """All there is to try for a committer, as one promise that may fail."""
    for away in (False, True):
        explore_crashes(make, away=away, fenced=fenced)
    explore_zombies(make, fenced=fenced)
    explore_time_outs(make)
    explore_older_checkpoint(make)


def explore_time_outs(make: Committer) -> None:
    """The transaction times out before END_TXN, at every step."""
    for at in itertools.count():
        store = Store()
        work = steps(make(), Run(store), 0)
        if not _advance(work, at):
            break
        store.time_out()
        _finish_or_replay(work, make, store, 0, True)
        check(store, 1)


def explore_older_checkpoint(make: Committer) -> None:
    store = Store()
    for batch in range(3):
        replay(make, store, batch)
    with pytest.raises(CheckpointOlderThanSink):
        commit(make, store, 1)


def test_the_explorer_is_content_with_the_protocol_itself() -> None:
    explore_all(plain)


@pytest.mark.parametrize(
    "mutant",
    [
        MarkerOutside,
        MarkerUnchecked,
        NoSettle,
        SettledIntentsForgotten,
        NotFoundIsSuccess,
        SkipsWhenLater,
        NoMarker,
        IntentBehindRows,
    ],
)
def test_the_explorer_finds_what_is_wrong_with(mutant: type[SinkCommitter]) -> None:
    with pytest.raises((AssertionError, SinkError, pytest.fail.Exception)):
        explore_all(lambda: mutant(SINK))


def test_the_explorer_finds_a_producer_that_is_not_fenced() -> None:
    with pytest.raises((AssertionError, SinkError)):
        explore_all(plain, fenced=False)


def test_records_are_values() -> None:
    assert attrs.evolve(Marker("s", 1, 2, "t"), batch_id=2) != Marker("s", 1, 2, "t")
