"""What is made of the client takes a coordinator beside stock clusters as well: functions, and Spark's sink."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from our_coordinator import OurCoordinator
from stopping_store import StoppingGroupedStore
from targets import Target

from pulsar_txn.client import Client, InitialPosition
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.inside import act_as, open_for_others, take_over
from pulsar_txn.pipeline.spark.connecting import make_client
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.sink.committer import GroupedCommitter, GroupWork, PublishResult
from pulsar_txn.wire.ids import LANE_BIT, TxnId

pytestmark = [pytest.mark.stock, pytest.mark.timeout(240)]

DIES = """
import os, pathlib, signal, time
from pulsar import Function

class Dies(Function):
    def process(self, input, context):
        mark = pathlib.Path(context.get_user_config_value("marks")) / str(input)
        context.publish(context.get_user_config_value("audit"), input)
        if input == 2 and not mark.exists():
            mark.touch()
            time.sleep(0.2)  # what is published is on its way
            os.kill(os.getpid(), signal.SIGKILL)
        return input
"""


@pytest.fixture
def beside(stock_pulsar: Target) -> Iterator[OurCoordinator]:
    with OurCoordinator({"east": stock_pulsar.service_url}, conf={"transactionClientLeaseInSeconds": "1"}) as beside:
        yield beside


def name() -> str:
    return f"persistent://public/default/pipeline-{uuid.uuid4().hex[:10]}"


def test_a_transactional_function_that_is_killed_has_each_effect_once(
    stock_pulsar: Target, beside: OurCoordinator, tmp_path: Path
) -> None:
    topic = name()
    (tmp_path / "dies.py").write_text(DIES)
    config = tmp_path / "dies.yml"
    config.write_text(
        f"""
        py: {tmp_path}/dies.py
        className: dies.Dies
        inputs: [{topic}]
        output: {topic}-out
        retainOrdering: true
        subscriptionPosition: EARLIEST
        transaction: {{transactionMode: MANAGED}}
        userConfig: {{marks: "{tmp_path}", audit: "{topic}-audit"}}
        """
    )
    command = [sys.executable, "-m", "pulsar_txn.pipeline.functions", "localrun", "--function-config-file", str(config)]
    command += ["--broker-service-url", stock_pulsar.service_url, "--coordinator", beside.service_url, "--cluster", "east"]
    with Client(stock_pulsar.service_url) as client:
        out = client.subscribe(f"{topic}-out", "s", initial_position=InitialPosition.EARLIEST)
        audit = client.subscribe(f"{topic}-audit", "s", initial_position=InitialPosition.EARLIEST)
        source = client.create_producer(topic)
        for number in range(5):
            source.send(b"%d" % number)
        assert subprocess.run(command, timeout=100, check=False).returncode == -signal.SIGKILL
        process = subprocess.Popen(command)
        try:
            found = [(out.receive(timeout=60), audit.receive(timeout=60)) for _ in range(5)]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        expected = [b"%d" % number for number in range(5)]
        assert [first.data for first, _ in found] == [second.data for _, second in found] == expected
        assert out.receive_many(1, max_wait=0.3) == audit.receive_many(1, max_wait=0.3) == []
        assert all(message.txn_id is not None and message.txn_id.most & LANE_BIT for message, _ in found)


async def test_a_micro_batch_of_sparks_sink_becomes_visible_as_a_whole(stock_pulsar: Target, beside: OurCoordinator) -> None:
    """The protocol `grouped`, without Spark: tasks of other processes send, and the driver ends all of them by one record."""
    topic = name()
    options = read_options(
        {
            "service.url": stock_pulsar.service_url,
            "pulsar.client.coordinator": beside.service_url,
            "pulsar.client.cluster": "east",
        }
    )
    async with make_client(options, "spark-sink/s") as driver, make_client(options, "spark-sink/s") as task:
        committer = GroupedCommitter("s", "query")
        store = StoppingGroupedStore(driver, f"{topic}-control", f"{topic}-stage", options)
        epoch = await take_over(driver)
        await act_as(task, epoch)
        assert epoch.ends_groups
        output = await task.create_producer(topic)
        for batch in range(2):
            sent: list[TxnId] = []
            for number in range(3):
                sent.append(await open_for_others(task, 30_000))
                rows = encode_batch([row(b"%d/%d" % (batch, number))])
                await output.send_encoded(rows, txn=task.attach_transaction(sent[-1]))
            work = GroupWork(batch, {topic: 3}, [], [], {}, delivered=[str(each) for each in sent])
            assert await store.carry_out(committer.commit(work), batch, []) is PublishResult.PUBLISHED
        async with await driver.create_reader(topic) as reader:
            found = [(await reader.read_next(20)).data for _ in range(6)]
            assert not await reader.has_message_available()
        assert sorted(found) == [b"%d/%d" % (batch, number) for batch in range(2) for number in range(3)]
