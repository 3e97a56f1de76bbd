"""A batch job with delivery=grouped on our broker, without Spark: the tasks' steps and the driver's, in any order."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import Counter

import attrs
import pyarrow as pa
import pytest
from targets import Target
from visible import is_blocked, read_all

from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import GroupRefused, OptionError, StoreFailed
from pulsar_txn.pipeline.spark.options import Query, read_options
from pulsar_txn.pipeline.spark.sink import writer
from pulsar_txn.pipeline.spark.sink.tasks import Sent
from pulsar_txn.pipeline.spark.sink.writer import PulsarBatchWriter

pytestmark = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)


@attrs.frozen
class Context:
    """What a task asks Spark for."""

    number: int

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        return self.number


class Job:
    """Its driver, and what its tasks do."""

    def __init__(self, service_url: str, topic: str, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.service_url = service_url
        self.topic = topic
        self._monkeypatch = monkeypatch
        given = {"service.url": service_url, "topic": topic, "delivery": "grouped", **options}
        self.driver = PulsarBatchWriter(read_options(given, Query.BATCH_WRITE))
        self.pickled = pickle.dumps(self.driver)

    def task(self, number: int, *values: str) -> Sent:
        """An attempt of a task, as a worker runs it."""
        self._monkeypatch.setattr(writer, "task_context", lambda: Context(number))
        rows = pa.record_batch([pa.array(values, pa.string())], names=["value"])
        done = pickle.loads(self.pickled).write(iter([rows]))
        assert isinstance(done, Sent)
        return done

    def commit(self, *sent: Sent) -> None:
        pickle.loads(self.pickled).commit(list(sent))

    def abort(self, *sent: Sent) -> None:
        pickle.loads(self.pickled).abort(list(sent))

    def check(self, *values: str) -> None:
        """These are there once each, and nobody is kept waiting."""
        assert Counter(asyncio.run(read_all(self.service_url, self.topic))) == Counter(value.encode() for value in values)
        assert not asyncio.run(is_blocked(self.service_url, self.topic))


@pytest.fixture
def job(pulsar: Target, topic: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(pulsar.service_url, topic, monkeypatch)


def test_exactly_the_attempts_that_spark_delivers_become_visible_together(job: Job) -> None:
    lost = job.task(0, "lost against a twin")
    delivered = [job.task(0, "a", "b"), job.task(1, "c"), job.task(2)]
    assert delivered[2].txn_id is None
    assert lost.txn_id != delivered[0].txn_id
    assert asyncio.run(read_all(job.service_url, job.topic)) == []
    job.commit(*delivered)
    job.check("a", "b", "c")


def test_an_attempt_that_comes_after_the_commit_sends_nothing_and_keeps_no_reader_waiting(job: Job) -> None:
    job.commit(job.task(0, "a"))
    with pytest.raises(StoreFailed, match="is over, so this attempt sends nothing"):
        job.task(0, "late")
    job.check("a")


def test_what_a_failed_job_has_sent_is_aborted_and_the_next_job_writes_all(
    job: Job, pulsar: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.abort(job.task(0, "a"))
    assert asyncio.run(read_all(job.service_url, job.topic)) == []
    again = Job(pulsar.service_url, job.topic, monkeypatch)
    again.commit(again.task(0, "a"))
    job.check("a")


def test_spark_calls_abort_after_a_commit_that_failed_and_what_was_committed_stays(job: Job) -> None:
    sent = job.task(0, "a")
    job.commit(sent)
    job.abort(sent)
    job.check("a")


def test_jobs_at_the_same_time_do_not_end_each_other(job: Job, pulsar: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Job(pulsar.service_url, job.topic, monkeypatch)
    mine, theirs = job.task(0, "mine"), other.task(0, "theirs")
    job.commit(mine)
    other.commit(theirs)
    job.check("mine", "theirs")


def test_a_job_slower_than_its_timeout_publishes_nothing_and_says_what_to_do(
    pulsar: Target, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Job(pulsar.service_url, topic, monkeypatch, transactionTimeoutMs="1")
    sent = slow.task(0)
    assert sent.txn_id is None
    with pytest.raises((StoreFailed, GroupRefused), match=r"timeout|transaction"):
        sent = slow.task(0, "a")
        time.sleep(0.5)  # the timeout of a millisecond is over
        slow.commit(sent)
    slow.abort()
    slow.check()


def test_a_job_with_a_version_goes_through_the_driver(pulsar: Target, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = {"txnAppId": "nightly", "txnVersion": "1"}
    with pytest.raises(OptionError, match="a job with txnAppId and txnVersion goes through the driver; use delivery=staged"):
        Job(pulsar.service_url, topic, monkeypatch, **version)
    Job(pulsar.service_url, topic, monkeypatch, **version, delivery="auto")


def test_no_client_of_a_job_outlives_it(job: Job) -> None:
    sent = job.task(0, "a")
    job.commit(sent)
    assert not [key for key in background()._clients if str(key[-1]).startswith("spark-job/")]
