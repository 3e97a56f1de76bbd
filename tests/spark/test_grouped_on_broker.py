"""The protocol `grouped` on our broker, without Spark: runs that are stopped at any request, zombies, timeouts, choices."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial

import pytest
from stopping_store import Stopped, StoppingGroupedStore, StoppingStore
from targets import Target
from visible import comes_last

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.inside import Epoch, act_as, open_for_others, take_over
from pulsar_txn.pipeline.spark.errors import GroupRefused, OptionError, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.options import Options, read_options
from pulsar_txn.pipeline.spark.sink import writer
from pulsar_txn.pipeline.spark.sink.committer import GroupedCommitter, GroupWork, PublishResult
from pulsar_txn.pipeline.spark.sink.control import Marker, decode_record
from pulsar_txn.pipeline.spark.sink.delivery import epoch_of, open_gate, transactional_id
from pulsar_txn.pipeline.spark.sink.staged import Payload, Staged
from pulsar_txn.pipeline.spark.sink.tasks import TaskSending, rows_sent
from pulsar_txn.pipeline.spark.sink.writer import PulsarStreamWriter

on_ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
pytestmark = on_ours


class Run:
    """One run of a query with two tasks; each sends three rows to each of two topics."""

    def __init__(self, service_url: str, topic: str, stop_at: int = -1, **options: str) -> None:
        self.options: Options = read_options({"service.url": service_url, "transactionTimeoutMs": "60000", **options})
        self.topic = topic
        self.name = topic.rpartition("/")[2]
        self.targets = (f"{topic}-a", f"{topic}-b")
        self.client = AsyncClient(service_url, transactional_id=transactional_id(self.name), operation_timeout=10)
        self.committer = GroupedCommitter(self.name, "query")
        self.store = StoppingGroupedStore(self.client, f"{topic}-control", f"{topic}-stage", self.options)
        self.store.stop_at = stop_at
        self.epoch: Epoch | None = None

    async def send(self, batch: int, task: int, attempt: str = "", *, whole: bool = True) -> str:
        """An attempt of a task; the id of its transaction."""
        if self.epoch is None:
            self.epoch = await take_over(self.client)
        await act_as(self.client, self.epoch)
        txn_id = await open_for_others(self.client, self.options.transaction_timeout_ms)
        txn = self.client.attach_transaction(txn_id)
        for target in self.targets[: 2 if whole else 1]:
            async with await self.client.create_producer(target) as producer:
                rows = [row(f"{batch}/{task}/{number}{attempt}".encode()) for number in range(3)]
                await producer.send_encoded(encode_batch(rows), txn=txn)
        return str(txn_id)

    async def commit(self, batch: int, delivered: list[str] | None = None) -> PublishResult:
        """The commit of a micro-batch whose tasks have sent (without `delivered`: they do that first)."""
        if delivered is None:
            delivered = [await self.send(batch, task) for task in (0, 1)]
        work = GroupWork(batch, dict.fromkeys(self.targets, 6), [], [], {}, delivered=delivered)
        outcome: PublishResult = await self.store.carry_out(self.committer.commit(work), batch, [])
        return outcome

    async def read(self, topic: str) -> list[bytes]:
        """What everybody sees."""
        found = []
        async with await self.client.create_reader(topic) as reader:
            while await reader.has_message_available():
                found.append((await reader.read_next(10)).data)
        return found

    async def check(self, batches: int) -> None:
        """Every row once, a marker for each batch, and no reader waits for a transaction."""
        expected = sorted(f"{batch}/{task}/{row}".encode() for batch in range(batches) for task in (0, 1) for row in range(3))
        for target in self.targets:
            assert sorted(await self.read(target)) == expected
            async with await self.client.create_producer(target) as producer:
                await producer.send(b"plain")
            assert await comes_last(b"plain", partial(self.read, target)), "a transaction was left open"
        records = [decode_record(data) for data in await self.read(f"{self.topic}-control")]
        assert [record.batch_id for record in records if isinstance(record, Marker)] == list(range(batches))


class Runs:
    """Makes runs of one sink."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.made: list[Run] = []
        self._service_url = service_url
        self._topic = topic

    def start(self, stop_at: int = -1, **options: str) -> Run:
        """Another run."""
        self.made.append(Run(self._service_url, self._topic, stop_at, **options))
        return self.made[-1]


@pytest.fixture
async def runs(pulsar: Target, topic: str) -> AsyncIterator[Runs]:
    runs = Runs(pulsar.service_url, topic)
    yield runs
    for run in runs.made:
        await run.client.close()


async def test_batches_are_published_one_after_the_other_and_a_replay_is_skipped(runs: Runs) -> None:
    run = runs.start()
    assert [await run.commit(batch) for batch in range(3)] == [PublishResult.PUBLISHED] * 3
    again = runs.start()
    assert await again.commit(2) is PublishResult.SKIPPED
    await again.check(3)


async def test_a_run_that_ends_at_any_request_is_completed_once_by_the_next(runs: Runs) -> None:
    done = 0
    for stop_at in itertools.count():
        first = runs.start(stop_at)
        try:
            await first.commit(done)
        except Stopped:
            # Its client is not closed: that would abort what the run has open.
            assert await runs.start().commit(done) in PublishResult
            done += 1
        else:
            break
    assert done > 8
    await runs.start().check(done + 1)


@pytest.mark.parametrize("stop_at", range(0, 14, 3))
async def test_a_zombie_that_goes_on_after_its_successor_changes_nothing(runs: Runs, stop_at: int) -> None:
    zombie = runs.start(stop_at)
    zombie.store.woken, zombie.store.sleeps = asyncio.Event(), asyncio.Event()
    sleeping = asyncio.ensure_future(zombie.commit(0))
    await asyncio.wait([sleeping, asyncio.ensure_future(zombie.store.sleeps.wait())], return_when=asyncio.FIRST_COMPLETED)
    newer = runs.start()
    await newer.commit(0)
    zombie.store.woken.set()
    ended = (await asyncio.gather(sleeping, return_exceptions=True))[0]
    assert isinstance(ended, PublishResult | SinkFenced | GroupRefused), ended
    await newer.commit(1)
    await newer.check(2)


async def test_only_delivered_attempts_are_published_and_late_sends_are_refused(runs: Runs) -> None:
    run = runs.start()
    truncated = await run.send(0, 0, " truncated", whole=False)
    delivered = [await run.send(0, task) for task in (0, 1)]
    twin = await run.send(0, 1, " of a twin")
    await run.commit(0, delivered)
    for txn_id in (truncated, twin, delivered[0]):
        async with await run.client.create_producer(run.targets[0]) as producer:
            with pytest.raises(Exception, match=r"(?i)transaction"):
                await producer.send(b"late", txn=run.client.attach_transaction(txn_id))
    await run.check(1)


async def test_tasks_that_took_longer_than_the_timeout_publish_nothing_and_the_replay_all(runs: Runs) -> None:
    slow = runs.start(transactionTimeoutMs="300")
    delivered = [await slow.send(0, task) for task in (0, 1)]
    await asyncio.sleep(0.6)  # longer than the timeout: that is what happens here
    with pytest.raises(GroupRefused, match="nothing was published"):
        await slow.commit(0, delivered)
    run = runs.start()
    await run.commit(0)
    await run.check(1)


async def test_a_task_sends_in_a_transaction_that_stays_open_for_the_driver(runs: Runs, pulsar: Target) -> None:
    run = runs.start()
    run.epoch = await take_over(run.client)

    def task() -> TaskSending:
        assert run.epoch is not None
        sending = TaskSending(run.options, run.epoch)
        for target in run.targets:
            sending.put(Payload(target, -1, encode_batch([row(b"0/0/%d" % number) for number in range(3)])))
        sending.finish()
        sending.close()
        return sending

    given_up = await asyncio.to_thread(task)
    await asyncio.to_thread(given_up.give_up)
    sent = await asyncio.to_thread(task)
    assert sent.rows == dict.fromkeys(run.targets, 3)
    assert await run.read(run.targets[0]) == []
    other = await run.send(0, 1)
    await run.commit(0, [str(sent.txn_id), other])
    await run.check(1)
    assert rows_sent([]) == {}


async def test_an_attempt_that_begins_after_its_commit_sends_nothing_and_keeps_no_reader_waiting(runs: Runs) -> None:
    run = runs.start()
    run.epoch = await take_over(run.client)
    gate = await asyncio.to_thread(open_gate, run.options, run.epoch)

    def task() -> TaskSending:
        sending = TaskSending(run.options, run.epoch, gate)
        for target in run.targets:
            sending.put(Payload(target, -1, encode_batch([row(b"0/0/%d" % number) for number in range(3)])))
        sending.finish()
        return sending

    sent = await asyncio.to_thread(task)
    await run.commit(0, [str(sent.txn_id), await run.send(0, 1)])
    with pytest.raises(StoreFailed, match="this micro-batch is over"):
        await asyncio.to_thread(task)
    await run.check(1)


async def test_a_micro_batch_that_an_older_run_plans_is_refused_before_its_tasks_run(runs: Runs) -> None:
    older, newer = runs.start(), runs.start()
    older.epoch = await take_over(older.client)
    await newer.commit(0)
    with pytest.raises(SinkFenced, match="newer run"):
        await asyncio.to_thread(open_gate, older.options, older.epoch)
    await newer.commit(1)
    await newer.check(2)


@pytest.mark.parametrize("stop_at", range(1, 12, 2))
async def test_a_staged_run_need_not_wait_for_what_a_dead_grouped_run_has_open(runs: Runs, stop_at: int) -> None:
    dead = runs.start(stop_at)
    with pytest.raises(Stopped):
        await dead.commit(0)
    staged = staged_writer(dead)
    for batch in (0, 1):
        await asyncio.to_thread(staged.commit, staged_rows(dead, batch), batch)
    await dead.check(2)


@pytest.mark.parametrize("stop_at", range(1, 16, 2))
async def test_a_grouped_run_need_not_wait_for_what_a_dead_staged_run_has_open(
    runs: Runs, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.start()
    monkeypatch.setattr(StoppingStore, "stop_at", stop_at)
    monkeypatch.setattr(writer, "PulsarSinkStore", StoppingStore)
    dead = staged_writer(run)
    with pytest.raises(Stopped):
        await asyncio.to_thread(dead.commit, staged_rows(run, 0), 0)
    await run.commit(0)
    await run.commit(1)
    await run.check(2)


def staged_writer(run: Run) -> PulsarStreamWriter:
    """The same sink with delivery=staged. Nobody is rescued by a timeout."""
    given = {"sinkId": run.name, "controlTopic": f"{run.topic}-control", "commitTimeoutMs": "5000"}
    return PulsarStreamWriter(read_options({"service.url": run.options.service_url, **given}))


def staged_rows(run: Run, batch: int) -> list[Staged]:
    """What the two tasks of a micro-batch hand to the commit."""
    return [
        Staged(
            "query",
            task,
            [
                Payload(target, -1, encode_batch([row(f"{batch}/{task}/{number}".encode()) for number in range(3)]))
                for target in run.targets
            ],
        )
        for task in (0, 1)
    ]


async def test_grouped_needs_a_name_that_is_known_before_the_tasks_run(pulsar: Target, topic: str) -> None:
    given = {"service.url": pulsar.service_url}
    named = {**given, "sinkId": topic.rpartition("/")[2]}
    with pytest.raises(OptionError, match="needs a sinkId"):
        epoch_of(read_options({**given, "delivery": "grouped"}), None)
    assert epoch_of(read_options({**given, "delivery": "auto"}), None) is None
    assert epoch_of(read_options({**named, "delivery": "staged"}), None) is None
    epoch = await asyncio.to_thread(epoch_of, read_options({**named, "delivery": "auto"}), None)
    assert epoch is not None
    assert epoch == await asyncio.to_thread(epoch_of, read_options({**named, "delivery": "grouped"}), None), "one for a run"
