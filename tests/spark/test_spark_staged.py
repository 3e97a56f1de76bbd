"""What a task makes of its rows: batches of one target each, in order, with what the columns say."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn.client import HashingScheme
from pulsar_txn.client.send.routing import key_partition
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.sink.staged import Payload, Staged, Stager, ordered, rows_by_topic


def stager(partitions: int = 0, *, properties: dict[str, str] | None = None, spread: int = 0, **options: str) -> Stager:
    given = read_options({"service.url": "pulsar://h", **options})
    return Stager(given, lambda topic: partitions, properties=properties or {}, spread=spread)


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def places(payloads: list[Payload]) -> list[tuple[str, int, int]]:
    return [(payload.topic, payload.partition, payload.batch.num_messages) for payload in payloads]


def test_batches_never_mix_targets_and_keep_the_order_of_rows() -> None:
    work = stager()
    work.add(table(value=["1", "2", "3"], topic=["a", "b", "a"]))
    work.add(table(value=["4"], topic=["a"]))
    payloads = work.finish()
    assert sorted(places(payloads)) == [("a", -1, 3), ("b", -1, 1)]
    assert rows_by_topic(payloads) == {"a": 3, "b": 1}
    (of_a,) = [payload for payload in payloads if payload.topic == "a"]
    text = of_a.batch.payload
    assert text.index(b"1") < text.index(b"3") < text.index(b"4")


@pytest.mark.parametrize(("option", "value"), [("batchingMaxMessages", "4"), ("batchingMaxBytes", "40")])
def test_batches_end_at_their_bounds(option: str, value: str) -> None:
    work = stager(topic="t", **{option: value})
    work.add(table(value=["x" * 10] * 10))
    assert [count for _, _, count in places(work.finish())] == [4, 4, 2]


def test_keys_choose_the_partition_and_rows_without_keys_go_round() -> None:
    work = stager(4, topic="t", spread=3, batchingMaxMessages="2")
    keys = [f"key-{number}" for number in range(20)]
    work.add(table(value=["v"] * 20, key=keys))
    assert {partition for _, partition, _ in places(work.finish())} == {
        key_partition(HashingScheme.JAVA_STRING, key, 4) for key in keys
    }
    keyless = stager(4, topic="t", spread=3, batchingMaxMessages="2")
    keyless.add(table(value=["v"] * 8))
    assert [partition for _, partition, _ in places(keyless.finish())] == [3, 0, 1, 2]


def test_values_may_be_binary_or_text_and_a_null_is_a_tombstone() -> None:
    binary, text = stager(topic="t"), stager(topic="t")
    binary.add(table(value=[b"a", None], key=[b"k", b"l"]))
    text.add(table(value=["a", None], key=["k", "l"]))
    assert binary.finish() == text.finish()


def test_event_times_are_instants_whatever_their_zone_and_precision() -> None:
    moment = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
    milliseconds = int(moment.timestamp() * 1000)
    zoned, plain = stager(topic="t"), stager(topic="t")
    zoned.add(table(value=["a"], event_time=pa.array([moment], pa.timestamp("us", tz="America/New_York"))))
    plain.add(table(value=["a"], event_time=pa.array([milliseconds], pa.int64())))
    assert zoned.finish() == plain.finish()


def test_the_batch_id_is_added_to_the_properties_of_each_row() -> None:
    work = stager(topic="t", properties={"__batch_id": "7"})
    properties = pa.array([[("p", "q")], None], pa.map_(pa.string(), pa.string()))
    work.add(pa.RecordBatch.from_arrays([pa.array(["a", "b"]), properties], names=["value", "properties"]))
    text = work.finish()[0].batch.payload
    assert text.count(b"__batch_id") == 2
    assert text.count(b"q") == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": ["a"], "topic": pa.array([None], pa.string())}, "a row has no topic"),
        ({"value": ["a"], "topic": ["t"], "key": [b"\xff"]}, "no UTF-8 text"),
    ],
)
def test_rows_that_cannot_be_sent_say_why(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        stager().add(table(**columns))


def test_more_than_the_driver_should_carry_is_refused_with_what_to_do() -> None:
    work = stager(topic="t", inlineMaxBytes="1000", batchingMaxBytes="400")
    with pytest.raises(OptionError, match=r"inlineMaxBytes=1000.*use more partitions"):
        work.add(table(value=["x" * 100] * 20))


def test_messages_of_tasks_survive_pickling_and_come_in_the_order_of_partitions() -> None:
    staged = []
    for partition in (2, 0, 1):
        work = stager(topic=f"t{partition}")
        work.add(table(value=["v"]))
        staged.append(pickle.loads(pickle.dumps(Staged("query", partition, work.finish()))))  # our own
    assert [payload.topic for payload in ordered([*staged, None])] == ["t0", "t1", "t2"]
