"""The protocol `grouped` against a simulated cluster, at the grain of single calls of tasks and driver.

The cluster has what the protocol rests on: transactions of a transactional id (a newer epoch aborts those of older ones), one
record that commits several of them or none, read committed that shows nothing behind an open transaction, a fenced
producer. A micro-batch has two tasks; each sends a row to `a` and one to `b`. A row says which attempt computed it, so a mix
of two computations shows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

import attrs
import pytest

from pulsar_txn.pipeline.spark.errors import CommitUndecided, GroupRefused, SinkError, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.sink.committer import GroupedCommitter, GroupWork, PublishResult, Steps, Work
from pulsar_txn.pipeline.spark.sink.control import (
    EndGroup,
    EndReply,
    EndTxn,
    Fence,
    Marker,
    NewTxn,
    Pause,
    ReadRecords,
    Sweep,
    WriteRecord,
)

SINK = "query/0"
TOPICS = ("a", "b")
PAUSES = 15


@attrs.frozen
class Kind:
    """How a cluster behaves: how many calls later a topic hears of an end, and whether the coordinator forgets ends."""

    late: int = 0
    remembers: bool = True
    # what a broken one does
    fences: bool = True
    groups: bool = True


class Cluster:
    """Topics are lists of (value, transaction or None)."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.now = 0
        self.topics: dict[str, list[tuple[Any, str | None]]] = {"a": [], "b": [], "control": []}
        self.status: dict[str, str] = {}
        self.epoch_of: dict[str, int] = {}
        self.decided_at: dict[str, int] = {}
        self.given = self.newest = self.producer = 0
        self.half_seen = False
        self.looks: set[int] = set()  # when what readers see may have changed

    def tick(self) -> None:
        self.now += 1
        if self.now not in self.looks:
            return
        batches = [{value[0] for value in self.visible(topic)} for topic in TOPICS]
        self.half_seen |= batches[0] != batches[1]
        for topic in TOPICS:
            seen = Counter(value[:2] for value in self.visible(topic))
            self.half_seen |= any(len([key for key in seen if key[0] == batch]) != 2 for batch in batches[0])

    def take_over(self) -> int:
        self.given += 1
        return self.given

    def check_epoch(self, epoch: int) -> None:
        if self.kind.fences and epoch < self.newest:
            raise SinkFenced("a newer epoch")

    def new_txn(self, epoch: int) -> str:
        self.check_epoch(epoch)
        if epoch > self.newest:
            self.newest = epoch
            for txn, of in self.epoch_of.items():
                if self.kind.fences and of < epoch and self.status[txn] == "open":
                    self.decide(txn, "aborted")
        txn = f"(0,{len(self.status)})"
        self.status[txn], self.epoch_of[txn] = "open", epoch
        return txn

    def send(self, topic: str, value: Any, txn: str | None) -> None:
        if txn is not None and self.status[txn] != "open":
            raise StoreFailed("the transaction is over")
        self.topics[topic].append((value, txn))

    def decide(self, txn: str, goal: str) -> None:
        self.status[txn], self.decided_at[txn] = goal, self.now
        self.looks |= {self.now + 1, self.now + self.kind.late, self.now + self.kind.late + 1}

    def reached(self, txn: str) -> bool:
        return self.now >= self.decided_at[txn] + self.kind.late

    def visible(self, topic: str) -> list[Any]:
        values = []
        for value, txn in self.topics[topic]:
            if txn is not None and (self.status[txn] == "open" or not self.reached(txn)):
                break
            if txn is None or self.status[txn] == "committed":
                values.append(value)
        return values

    def end(self, epoch: int, txns: list[str], goal: str, *, alone: bool = False) -> EndReply:
        """END_TXN of a group by a client of `epoch`."""
        found = {self.status[txn] for txn in txns}
        if found == {"open"} or not self.kind.groups:
            self.check_epoch(epoch)
            for txn in txns:
                if self.status[txn] == "open":
                    self.decide(txn, goal)
            for txn, of in self.epoch_of.items():
                if alone and of == epoch and self.status[txn] == "open":
                    self.decide(txn, "aborted")
        elif found != {goal}:
            return EndReply.BUSY if self.kind.remembers else EndReply.OVER
        elif not self.kind.remembers and all(map(self.reached, txns)):
            return EndReply.OVER
        return EndReply.DONE if all(map(self.reached, txns)) else EndReply.UNKNOWN

    def time_out(self) -> None:
        for txn, state in self.status.items():
            if state == "open":
                self.decide(txn, "aborted")


Plan: TypeAlias = Callable[[int], list[str]]
"""What becomes of the attempts of a task (partition): "truncated", "died", "twin", and at last "good"."""


class Run:
    """One run of the query."""

    def __init__(self, cluster: Cluster, make: Callable[[], GroupedCommitter]) -> None:
        self.cluster = cluster
        self.committer = make()
        self.epoch = 0
        self.producer = -1
        self.read = 0
        self.pauses = 0
        self.late: list[tuple[str, str, Any]] = []
        self.gate = ""

    def batch(self, number: int, plan: Plan) -> Generator[Any, None, PublishResult]:
        """A micro-batch with a stop before every call."""
        yield "take over"
        self.epoch = self.epoch or self.cluster.take_over()
        yield "gate"
        self.cluster.tick()
        self.gate = self.cluster.new_txn(self.epoch)
        delivered: list[str] = []
        for partition in (0, 1):
            for attempt, fate in enumerate(plan(partition)):
                txn = yield from self.attempt(number, partition, attempt, fate, self.gate)
                if fate == "good":
                    delivered.append(txn)
        self.pauses = 0
        work = GroupWork(number, {"a": 2, "b": 2}, [], [], {}, delivered=delivered)
        outcome: PublishResult = yield from self._drive(self.committer.commit(work))
        return outcome

    def attempt(self, number: int, partition: int, attempt: int, fate: str, gate: str) -> Generator[Any, None, str]:
        """An attempt of a task: it opens its transaction, and sends only if the micro-batch is not over then."""
        cluster = self.cluster
        yield "new_txn"
        cluster.tick()
        txn = cluster.new_txn(self.epoch)
        yield "is the gate open"
        cluster.tick()
        if not self.may_send(gate):
            cluster.end(self.epoch, [txn], "aborted")
            raise StoreFailed("the micro-batch is over")
        value = (number, partition, f"{self.epoch}/{attempt}")
        for topic in TOPICS[: 1 if fate in ("truncated", "died") else 2]:
            if fate == "twin" and topic == "b":
                self.late.append((topic, txn, value))  # it goes on while its twin is committed
                continue
            yield "send"
            cluster.tick()
            cluster.send(topic, value, txn)
        return txn

    def _drive(self, work: Steps) -> Generator[Any, None, Any]:
        reply: Any = None
        error: SinkError | None = None
        while True:
            try:
                request = work.send(reply) if error is None else work.throw(error)
            except StopIteration as done:
                return done.value
            answer = yield request
            try:
                reply, error = self.perform(request), None
            except SinkError as refused:
                error = refused
            if answer == "lost":
                reply, error = (
                    (EndReply.UNKNOWN, None) if isinstance(request, EndGroup | EndTxn) else (None, StoreFailed("lost"))
                )
            yield request

    def perform(self, request: Any) -> Any:
        cluster = self.cluster
        cluster.tick()
        match request:
            case Fence():
                cluster.decide(cluster.new_txn(self.epoch), "aborted")
                self.producer = cluster.producer = cluster.producer + 1
                self.read = 0
                return self.producer
            case WriteRecord(record, txn_id):
                if self.producer != cluster.producer:
                    raise SinkFenced("a newer producer")
                return cluster.send("control", record, txn_id)
            case ReadRecords():
                records = cluster.visible("control")
                fresh, self.read = records[self.read :], len(records)
                return fresh
            case NewTxn():
                return cluster.new_txn(self.epoch)
            case EndGroup(txn_id, delivered):
                return cluster.end(self.epoch, [txn_id, *delivered], "committed", alone=True)
            case EndTxn(txn_id, commit):
                return cluster.end(self.epoch, [txn_id], "committed" if commit else "aborted")
            case Sweep():
                cluster.end(self.epoch, [cluster.new_txn(self.epoch)], "aborted", alone=True)
                return None
            case Pause():
                self.pauses += 1
                return self.pauses < PAUSES
        raise AssertionError(request)

    def may_send(self, gate: str) -> bool:
        """Asked after the transaction is open: then the commit has not ended what is open yet, and will end it."""
        self.cluster.check_epoch(self.epoch)
        return self.cluster.status[gate] == "open"

    def twins_go_on(self) -> None:
        """Attempts that lost go on sending after the commit."""
        late, self.late = self.late, []
        for topic, txn, value in late:
            try:
                self.cluster.send(topic, value, txn)
            except StoreFailed:
                continue


Committer: TypeAlias = Callable[[], GroupedCommitter]
KINDS = [Kind(), Kind(late=24), Kind(late=6, remembers=False)]
ENDS = (SinkFenced, StoreFailed, CommitUndecided, GroupRefused)
"""How a run may end; Spark starts the query again."""


def plain() -> GroupedCommitter:
    return GroupedCommitter(SINK, "query")


def good(_partition: int) -> list[str]:
    return ["good"]


def advance(work: Iterator[Any], count: int) -> bool:
    """So many steps; False when it ended before."""
    for _ in range(count):
        try:
            next(work)
        except (StopIteration, *ENDS):
            return False
    return True


def ended_well(work: Iterator[Any]) -> bool:
    """Carry it on to its end; whether Spark takes the batch for done."""
    try:
        for _ in work:
            pass
    except ENDS:
        return False
    return True


def losing(work: Generator[Any, Any, Any], at: int) -> Iterator[Any]:
    """The same steps; the answer to the request at step `at` is lost."""
    answer = None
    for number in itertools.count(1):
        try:
            step = work.send(answer)
        except StopIteration:
            return
        answer = "lost" if number == at and not isinstance(step, str) else None
        yield step


def finish(run: Run, number: int, plan: Plan = good) -> bool:
    """Whether the batch ended well."""
    if not ended_well(run.batch(number, plan)):
        return False
    run.twins_go_on()
    return True


def replay(cluster: Cluster, make: Committer, number: int, plan: Plan = good) -> Run:
    """Spark's restarts: new runs until the batch ends well."""
    for _ in range(4):
        run = Run(cluster, make)
        if finish(run, number, plan):
            return run
    raise AssertionError("the batch never ended")


def check(cluster: Cluster, batches: int) -> None:
    """Every row once, of one attempt in both topics; batches at once; a marker each; nothing is left open."""
    for _ in range(cluster.kind.late):
        cluster.tick()
    rows = {topic: cluster.visible(topic) for topic in TOPICS}
    expected = Counter((batch, partition) for batch in range(batches) for partition in (0, 1))
    for topic in TOPICS:
        assert Counter(value[:2] for value in rows[topic]) == expected, topic
    assert set(rows["a"]) == set(rows["b"]), "a mix of two computations"
    assert not cluster.half_seen
    assert "open" not in cluster.status.values()
    markers = [record for record in cluster.visible("control") if isinstance(record, Marker)]
    assert [marker.batch_id for marker in markers] == list(range(batches))


# --- the explorer ---------------------------------------------------------------------------------------------------


def explore_crashes(make: Committer, kinds: list[Kind] = KINDS) -> int:
    """Killed at every call of batch 1, away for long or not, killed again at every call; then batch 2. Returns cases."""
    cases = 0
    for kind, away, first in itertools.product(kinds, (False, True), range(60)):
        for second in (None, *range(0, 60, 2)):
            cluster = Cluster(kind)
            replay(cluster, make, 0)
            ended = not advance(Run(cluster, make).batch(1, good), first)
            if away:
                cluster.time_out()
            again = second is None or not advance(Run(cluster, make).batch(1, good), second)
            replay(cluster, make, 1)
            check(cluster, 2)
            replay(cluster, make, 2)
            check(cluster, 3)
            cases += 1
            if ended or (again and second is not None):
                break
        if ended:
            continue
    return cases


def explore_zombies(make: Committer, kinds: list[Kind] = KINDS) -> int:
    """A run is paused before every call of batch 1; a newer one gets so far before every call of its own; both go on."""
    cases = 0
    for kind, first in itertools.product(kinds, range(60)):
        for second in range(60):
            cluster = Cluster(kind)
            replay(cluster, make, 0)
            zombie = Run(cluster, make)
            sleeping = zombie.batch(1, good)
            if not advance(sleeping, first):
                break
            newer = Run(cluster, make)
            work = newer.batch(1, good)
            busy = advance(work, second)
            woken = advance(sleeping, 200)
            assert not woken, "the zombie never ends"
            if busy and advance(work, 200):
                raise AssertionError("the newer run never ends")
            last = replay(cluster, make, 1)
            finish(zombie, 2)  # the zombie plans its next batch as well
            if not finish(last, 2):
                replay(cluster, make, 2)
            check(cluster, 3)
            cases += 1
            if not busy:
                break
    return cases


def explore_lost_answers(make: Committer, kinds: list[Kind] = KINDS) -> int:
    """The answer of every request of a commit is lost, after the request was carried out."""
    cases = 0
    for kind, at in itertools.product(kinds, range(1, 60)):
        cluster = Cluster(kind)
        run = replay(cluster, make, 0)
        work = run.batch(1, good)
        if not ended_well(losing(work, at)):
            run = replay(cluster, make, 1)
        if not finish(run, 2):
            replay(cluster, make, 2)
        check(cluster, 3)
        cases += 1
    return cases


def explore_attempts(make: Committer, kinds: list[Kind] = KINDS) -> int:
    """Attempts that are truncated, die, or lose against a twin that goes on; with a crash at every call besides."""
    cases = 0
    for kind, fate, hit, crash in itertools.product(kinds, ("truncated", "died", "twin"), (0, 1), (None, *range(0, 40, 3))):
        cluster = Cluster(kind)
        replay(cluster, make, 0)

        def plan(partition: int, fate: str = fate, hit: int = hit) -> list[str]:
            return [fate, "good"] if partition == hit else ["good"]

        if crash is not None:
            run = Run(cluster, make)
            advance(run.batch(1, plan), crash)
            run.twins_go_on()
        replay(cluster, make, 1, plan)
        replay(cluster, make, 2)
        check(cluster, 3)
        cases += 1
    return cases


def explore_time_outs(make: Committer, kinds: list[Kind] = KINDS) -> int:
    """All transactions time out before every call; the same run goes on, and Spark believes what it says."""
    cases = 0
    for kind, at in itertools.product(kinds, range(60)):
        cluster = Cluster(kind)
        run = replay(cluster, make, 0)
        work = run.batch(1, good)
        if not advance(work, at):
            continue
        cluster.time_out()
        if not ended_well(work):
            run = replay(cluster, make, 1)
        assert finish(run, 2)
        check(cluster, 3)
        cases += 1
    return cases


def explore_late_attempts(make: Committer, kinds: list[Kind] = KINDS, run_of: type[Run] = Run) -> int:
    """A twin that lost begins before every call of the last commit, and goes on before every later one, or after its end."""
    cases = 0
    for kind, begins, goes_on in itertools.product(kinds, range(60), range(5)):
        cluster = Cluster(kind)
        replay(cluster, make, 0)
        run = run_of(cluster, make)
        work = run.batch(1, good)
        if not advance(work, 3 + begins):
            continue
        late = run.attempt(1, 0, 1, "good", run.gate)
        busy = advance(late, 1 + goes_on // 2)
        if goes_on % 2:
            advance(work, 1)
        assert ended_well(work)
        if busy:
            advance(late, 60)
        check(cluster, 2)
        cases += 1
    return cases


EXPLORERS = [explore_crashes, explore_zombies, explore_lost_answers, explore_attempts, explore_late_attempts, explore_time_outs]


@pytest.mark.parametrize("explore", EXPLORERS, ids=lambda explore: str(explore.__name__))
def test_every_row_once_and_batches_at_once_whatever_happens(explore: Callable[[Committer], int]) -> None:
    assert explore(plain) > 60


def test_a_run_takes_over_once_and_needs_four_requests_for_a_batch() -> None:
    cluster = Cluster(Kind())
    run = Run(cluster, plain)
    seen: list[Any] = []
    for number in range(3):
        requests = [each for each in run.batch(number, good) if not isinstance(each, str)]
        seen.append([type(each) for each in requests[::2]])
    assert seen[0].count(Fence) == 1
    assert seen[1] == seen[2] == [NewTxn, WriteRecord, EndGroup]
    check(cluster, 3)


def test_a_batch_that_is_published_is_skipped_and_what_was_sent_again_is_aborted() -> None:
    cluster = Cluster(Kind())
    replay(cluster, plain, 0)
    replay(cluster, plain, 0)
    check(cluster, 1)


def test_a_task_that_took_longer_than_the_timeout_ends_the_query_with_a_reason() -> None:
    cluster = Cluster(Kind())
    work = Run(cluster, plain).batch(0, good)
    for step in work:
        if isinstance(step, EndGroup):
            cluster.time_out()
            break
    with pytest.raises(GroupRefused, match="transactionTimeoutMs"):
        for _ in work:
            pass
    replay(cluster, plain, 0)
    check(cluster, 1)


def test_a_batch_without_rows_leaves_its_marker() -> None:
    cluster = Cluster(Kind())
    run = Run(cluster, plain)
    for _ in run.batch(0, lambda _: []):
        pass
    assert [type(record).__name__ for record in cluster.visible("control")][-1] == "Marker"


# --- mutants: each wrong protocol is found by an explorer -----------------------------------------------------------------


class OneByOne(GroupedCommitter):
    """Commits the transactions one after the other, the marker's last."""

    def _attempt(self, work: Any, epoch: int) -> Any:
        for txn in work.delivered:
            yield EndTxn(txn, commit=True)
        yield from super()._attempt(attrs.evolve(work, delivered=[]), epoch)


class MarkerOutside(GroupedCommitter):
    def _attempt(self, work: Any, epoch: int) -> Any:
        txn_id = yield NewTxn()
        yield WriteRecord(Marker(self.sink_id, work.batch_id, epoch, txn_id, {}, self.query_id))
        if (yield EndGroup(txn_id, work.delivered)) is not EndReply.DONE:
            yield from self._read_up_to_now(epoch)


class MarkerUnchecked(GroupedCommitter):
    def _is_published(self, work: Work) -> bool:
        return self._last is not None and self._last.epoch == self._epoch


class NothingDelivered(GroupedCommitter):
    def _attempt(self, work: Any, epoch: int) -> Any:
        yield from super()._attempt(attrs.evolve(work, delivered=[]), epoch)


class RefusedIsSuccess(GroupedCommitter):
    def _attempt(self, work: Any, epoch: int) -> Any:
        txn_id = yield NewTxn()
        marker = Marker(self.sink_id, work.batch_id, epoch, txn_id, dict(work.rows), self.query_id)
        yield WriteRecord(marker, txn_id=txn_id)
        yield EndGroup(txn_id, work.delivered)
        self._note(marker)


class NoSweepAfterASkip(GroupedCommitter):
    def commit(self, work: Any) -> Any:
        return (yield from super(GroupedCommitter, self).commit(work))


class NoBarrier(GroupedCommitter):
    def _read_up_to_now(self, epoch: int) -> Any:
        for record in (yield ReadRecords()):
            self._note(record)


MUTANTS = [
    OneByOne,
    MarkerOutside,
    MarkerUnchecked,
    NothingDelivered,
    RefusedIsSuccess,
    NoSweepAfterASkip,
    NoBarrier,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_explorer_finds_what_is_wrong_with(mutant: type[GroupedCommitter]) -> None:
    with pytest.raises((AssertionError, SinkError)):
        for explore in EXPLORERS[::-1]:
            explore(lambda: mutant(SINK, "query"))


class NeverAsks(Run):
    """Its attempts send whenever they begin."""

    def may_send(self, gate: str) -> bool:
        del gate
        return True


def test_an_explorer_finds_an_attempt_that_begins_after_its_commit_and_does_not_ask() -> None:
    with pytest.raises(AssertionError):
        explore_late_attempts(plain, run_of=NeverAsks)


@pytest.mark.parametrize("broken", [{"fences": False}, {"groups": False}])
def test_an_explorer_finds_a_broker_that_does_not_keep_its_word(broken: dict[str, bool]) -> None:
    kinds = [attrs.evolve(kind, **broken) for kind in KINDS]
    with pytest.raises((AssertionError, SinkError)):
        for explore in EXPLORERS[::-1]:
            explore(plain, kinds)
