"""What a task makes of its rows: batches of one target each, in order, with what the columns say."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.options import HashingScheme
from pulsar_txn.client.send.routing import key_partition
from pulsar_txn.pipeline.spark.errors import OptionError, PartitionsGrew
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.sink.control import Place
from pulsar_txn.pipeline.spark.sink.staged import (
    MAX_MESSAGE_BYTES,
    Carrier,
    Payload,
    Staged,
    Stager,
    check_partitions,
    handed_over,
    rows_by_topic,
)
from pulsar_txn.pipeline.spark.sink.tasks import Encoding


class Task:
    """A stager, and what it has handed on."""

    def __init__(self, partitions: int, options: dict[str, str], properties: dict[str, str], spread: int) -> None:
        self.payloads: list[Payload] = []
        given = read_options({"service.url": "pulsar://h", **options})
        count = lambda topic: partitions  # noqa: E731
        self.stager = Stager(given, count, properties=properties, spread=spread, where="micro-batch 7, task 3, ")

    def add(self, batch: pa.RecordBatch) -> None:
        self.payloads += self.stager.add(batch)

    def finish(self) -> list[Payload]:
        self.payloads += self.stager.finish()
        return self.payloads


def stager(partitions: int = 0, *, properties: dict[str, str] | None = None, spread: int = 0, **options: str) -> Task:
    return Task(partitions, options, properties or {}, spread)


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
    ("given", "shown"),
    [({}, {b"__batch_id", b"2024"}), ({"batchIdProperty": "micro"}, {b"micro", b"2024"}), ({"batchIdProperty": ""}, set())],
)
def test_the_property_with_the_batch_id_has_the_name_that_an_option_gives_it(given: dict[str, str], shown: set[bytes]) -> None:
    payloads: list[Payload] = []
    options = read_options({"service.url": "pulsar://h", "topic": "t", **given})
    Encoding(options, 0, {"t": 0}, batch_id="2024").encode([table(value=["a"])], payloads.append)
    (only,) = payloads
    assert {text for text in (b"__batch_id", b"micro", b"2024") if text in only.batch.payload} == shown


KEYS = [None, "k", "ключ", "k" * 200]
VALUES = [b"", b"v" * 7, None, b"w" * 200]


@pytest.mark.parametrize("constant", [{}, {"__batch_id": "12"}])
@pytest.mark.parametrize("names", [(), ("key",), ("event_time",), ("properties",), ("ordering_key",), "all"])
def test_columns_are_encoded_as_the_client_encodes_messages(names: Any, constant: dict[str, str]) -> None:
    rows = 64
    columns = {
        "value": [VALUES[number % 4] for number in range(rows)],
        "key": [KEYS[number // 4 % 4] for number in range(rows)],
        "event_time": [None if number % 5 == 0 else 10**12 + number * 10**6 for number in range(rows)],
        "properties": [None if number % 3 == 0 else [(f"p{n}", "q" * n) for n in range(number % 4)] for number in range(rows)],
        "ordering_key": [None if number % 2 else b"o" * (number + 1) for number in range(rows)],
    }
    columns["properties"][7] = [("a", "b"), ("__batch_id", "the sink's own wins"), ("c", "d")]
    kept = {
        name: values if name == "value" or name in names or names == "all" else [None] * rows
        for name, values in columns.items()
    }
    expected = encode_batch(
        row(
            value or b"",
            key,
            {name: text for name, text in properties or () if name not in constant} | constant,
            event_time or 0,
            None,
            ordering_key,
            value is None,
        )
        for value, key, event_time, properties, ordering_key in zip(*kept.values(), strict=True)
    )
    types = [pa.binary(), pa.string(), pa.int64(), pa.map_(pa.string(), pa.string()), pa.binary()]
    arrays = [pa.array(values, kind) for values, kind in zip(kept.values(), types, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, names=list(kept))
    padding = pa.RecordBatch.from_arrays([array.slice(0, 5) for array in arrays], names=list(kept))
    sliced = pa.Table.from_batches([padding, whole]).combine_chunks().to_batches()[0].slice(5)
    for batch in (whole, sliced):
        work = stager(topic="t", properties=constant)
        work.add(batch)
        (payload,) = work.finish()
        assert payload.batch == expected


def test_a_hundred_record_batches_fill_batches_over_their_borders() -> None:
    work = stager(topic="t", batchingMaxMessages="7")
    for number in range(100):
        work.add(table(value=[f"{number}.{part}" for part in range(3)]))
    payloads = work.finish()
    assert [payload.batch.num_messages for payload in payloads] == [7] * 42 + [6]
    expected = [f"{number}.{part}".encode() for number in range(100) for part in range(3)]
    assert b"".join(payload.batch.payload for payload in payloads) == encode_batch(expected).payload


def test_rows_of_many_targets_keep_their_order_in_each() -> None:
    rows, keys = 3_000, 50
    work = stager(3, batchingMaxMessages="5")
    topics = [f"t{number * 7 % 40}" for number in range(rows)]
    work.add(table(value=[b"%d" % number for number in range(rows)], topic=topics, key=[f"k{n % keys}" for n in range(rows)]))
    found: dict[tuple[str, int], bytes] = {}
    for payload in work.finish():
        target = (payload.topic, payload.partition)
        found[target] = found.get(target, b"") + payload.batch.payload
    expected: dict[tuple[str, int], list[Any]] = {}
    for number, topic in enumerate(topics):
        key = f"k{number % keys}"
        place = (topic, key_partition(HashingScheme.JAVA_STRING, key, 3))
        expected.setdefault(place, []).append(row(b"%d" % number, key))
    assert found == {place: encode_batch(each).payload for place, each in expected.items()}


def test_the_option_topic_wins_over_the_column() -> None:
    work = stager(topic="option")
    work.add(table(value=["a", "b"], topic=pa.array(["column", None])))
    assert places(work.finish()) == [("option", -1, 2)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": ["a"], "topic": pa.array([None], pa.string())}, "row 2, column 'topic': null, and there is no option topic"),
        ({"value": ["a", "b"], "topic": ["t", "t"], "event_time": [None, -1]}, "row 3, column 'event_time': before 1970"),
        ({"value": ["a", "b" * 6_000_000], "topic": ["t", "t"]}, "row 3, column 'value': .*600.* bytes.*5242880.*compression"),
    ],
)
def test_rows_that_cannot_be_sent_are_named_by_batch_task_row_and_column(columns: dict[str, Any], message: str) -> None:
    work = stager()
    work.add(table(value=["fine", "too"], topic=["t", "t"]))
    with pytest.raises(OptionError, match=f"^micro-batch 7, task 3, {message}"):
        work.add(table(**columns))
        work.finish()


def test_a_large_row_is_alone_and_takes_no_other_with_it() -> None:
    work = stager(topic="t")
    work.add(table(value=[b"a" * 100_000, b"b" * 5_200_000, b"c"]))
    assert [(payload.batch.num_messages, len(payload.batch.payload) < MAX_MESSAGE_BYTES) for payload in work.finish()] == [
        (1, True),
        (1, True),
        (1, True),
    ]


class Parking:
    """A staging topic of a test."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def send(self, payload: Payload) -> None:
        self.entries.append(payload.batch.payload)

    def places(self) -> list[Place]:
        return [(1, number) for number in range(len(self.entries))]


def test_a_few_payloads_travel_with_the_message_and_many_over_the_staging_topic() -> None:
    work = stager(topic="t", batchingMaxMessages="10", compression="lz4")
    work.add(table(value=[str(number) * 20 for number in range(100)]))
    payloads = work.finish()
    size = sum(len(payload.batch.payload) for payload in payloads)
    few, opened = Carrier(size, lambda: pytest.fail("not needed")), []
    many = Carrier(size - 1, lambda: opened.append(Parking()) or opened[0])  # type: ignore[func-returns-value]
    for payload in payloads:
        few.put(payload)
        many.put(payload)
    assert (few.payloads, few.parked()) == (payloads, [])
    parked = many.parked()
    assert many.payloads == []
    assert [each.unparked(opened[0].entries[each.place[1]]) for each in parked] == payloads, "in order, none left inline"
    assert rows_by_topic((), parked) == rows_by_topic(payloads) == {"t": 100}
    assert len(pickle.dumps(Staged("query", 0, [], parked))) < size / 2, "only places travel"


def test_a_topic_that_grows_while_its_tasks_run_fails_the_batch_instead_of_sending_a_key_to_two_partitions() -> None:
    tasks = []
    for number, count in enumerate([4, 4, 8]):
        work = stager(count, topic="t")
        work.add(table(value=["v"], key=["k"]))
        work.finish()
        tasks.append(Staged("query", number, work.payloads, [], work.stager.partitions))
    check_partitions(tasks[:2])
    with pytest.raises(PartitionsGrew, match="t has 8 partitions now and had 4"):
        check_partitions(tasks)


def test_messages_of_tasks_survive_pickling_and_come_in_the_order_of_partitions() -> None:
    staged = []
    for partition in (2, 0, 1):
        work = stager(topic=f"t{partition}")
        work.add(table(value=["v"]))
        staged.append(pickle.loads(pickle.dumps(Staged("query", partition, work.finish()))))  # our own
    assert [payload.topic for payload in handed_over(staged)[0]] == ["t0", "t1", "t2"]
