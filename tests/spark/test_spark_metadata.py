"""Messages' metadata as columns: times beyond the calendar, numbers of 64 bits, binary keys, times without a zone."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import stock_install
from other_languages import java_program
from pyspark.sql.types import BinaryType
from targets import Target
from typed_rows import read, struct, write

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import OpenedEntry
from pulsar_txn.pipeline.spark import OptionError, UndecodableValue
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.sink.columns import Grouping
from pulsar_txn.pipeline.spark.source.columns import Rows
from pulsar_txn.pipeline.spark.source.layout import SCHEMA, Layout
from pulsar_txn.wire import pulsar_pb2 as pb

NANOSECONDS = 1_700_000_000_000_000_000
MICROSECONDS = 1_700_000_000_000_000
LAST_MS = 253_402_300_799_999
EXTREMES = [0, 1, LAST_MS, LAST_MS + 1, 2**63 // 1000, 2**63 // 1000 + 1, 2**63 - 1, 2**63, 2**64 - 1]


async def _send(url: str, topic: str, *times_ms: int) -> None:
    async with AsyncClient(url) as client, await client.create_producer(topic) as producer:
        for time_ms in times_ms:
            producer.send_nowait(b"%d" % time_ms, event_time_ms=time_ms)
        await producer.flush()


def test_a_time_in_nanoseconds_does_not_fit_and_ends_only_a_query_that_asks_for_it(
    pulsar: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(_send(pulsar.service_url, topic, 1_700_000_000_123, NANOSECONDS, MICROSECONDS))
    wrong = rf"event_time is {NANOSECONDS} ms, which is not between 1970 and 9999; it looks like nanoseconds .*mode=PERMISSIVE"
    with pytest.raises(UndecodableValue, match=wrong):
        read(pulsar.service_url, topic)
    values = read(pulsar.service_url, topic, struct(value=BinaryType()))
    assert [row["value"] for row in values] == [b"1700000000123", b"%d" % NANOSECONDS, b"%d" % MICROSECONDS]
    kept = read(pulsar.service_url, topic, mode="PERMISSIVE", columnNameOfCorruptRecord="bad")
    assert [row["event_time"] and row["event_time"].year for row in kept] == [2023, None, None]
    assert [row["value"] for row in kept] == [row["value"] for row in values], "what can be read is read"
    assert [row["bad"] for row in kept] == [None, *(row["value"] for row in values[1:])]
    with caplog.at_level(logging.WARNING):
        assert len(read(pulsar.service_url, topic, mode="DROPMALFORMED")) == 1
    assert "2 messages of this range do not fit the query's columns, and were left out" in caplog.text


@pytest.mark.parametrize("in_a_batch", [True, False])
@pytest.mark.parametrize("field", ["event_time", "publish_time", "sequence_id", "entry_sequence_id"])
def test_every_number_of_64_bits_has_a_row(field: str, in_a_batch: bool) -> None:
    for number, mode in itertools.product(EXTREMES, ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]):
        rows = Rows("t", 3, Layout(SCHEMA, tuple(SCHEMA.names), mode))
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=7)
        single = pb.SingleMessageMetadata(payload_size=1)
        own = metadata if field in ("publish_time", "entry_sequence_id") or not in_a_batch else single
        setattr(own, field.removeprefix("entry_"), number)
        payload = b"v"
        if in_a_batch:
            head = single.SerializeToString()
            payload = (len(head).to_bytes(4, "big") + head + b"v") * 2
        rows.add((1, 2), OpenedEntry(metadata, payload, 2 if in_a_batch else 0))
        is_wrong = field.endswith("_time") and number > LAST_MS
        if is_wrong and mode == "FAILFAST":
            with pytest.raises(UndecodableValue, match=rf"{field} is -?\d+ ms, which is not between"):
                rows.batch()
            continue
        found = rows.batch().to_pylist()  # in Python's calendar
        assert len(found) == (0 if is_wrong and mode == "DROPMALFORMED" else 1 + in_a_batch)
        for row in found:
            assert (row[field.removeprefix("entry_")] is None) == (is_wrong or (field == "event_time" and not number))
            assert row["value"] == b"v"


@pytest.mark.parametrize("given", [str(10**18), '{"t": 1000000000000000000}', str(LAST_MS + 1), '{"t": true}', "-1"])
@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_start_in_nanoseconds_gets_a_sentence(option: str, given: str) -> None:
    with pytest.raises(OptionError, match=rf"{option}: .* is not a time from 1970 to 9999: milliseconds \(not micro-"):
        read_options({"service.url": "pulsar://h", option: given})
    read_options({"service.url": "pulsar://h", option: str(LAST_MS)})


@pytest.mark.parametrize("place", [[2**63, 0], [0, 2**70], [-2, 0], [True, 1]])
def test_an_offset_beyond_64_bits_gets_a_sentence(place: list[int], pulsar: Target, topic: str) -> None:
    asyncio.run(_send(pulsar.service_url, topic, 1))
    text = str({topic: place}).replace("'", '"').replace("True", "true")
    with pytest.raises(OptionError, match=r"it should be \[ledger id, entry id\]"):
        read(pulsar.service_url, topic, startingOffsets=text)


# --- what the sink writes ----------------------------------------------------------------------------------------------------


def grouped(time_zone: str | None = None, **columns: Any) -> list[Any]:
    options = read_options({"service.url": "pulsar://h", "topic": "t"})
    batch = pa.RecordBatch.from_pydict({"value": [b""] * len(next(iter(columns.values()))), **columns})
    return list(Grouping(options, lambda topic: 0, {}, time_zone=time_zone).groups(batch))


@pytest.mark.parametrize("time", [LAST_MS + 1, MICROSECONDS, NANOSECONDS, 2**63 - 1, None])
def test_the_sink_refuses_a_time_that_the_source_could_not_read(time: int | None) -> None:
    column = pa.array([None, time]) if time is not None else pa.array([None, 2**62], pa.timestamp("us", tz="UTC"))
    with pytest.raises(OptionError, match=r"row 1, column 'event_time': \d+ ms is after the year 9999"):
        grouped(event_time=column)
    assert grouped(event_time=pa.array([None, LAST_MS]))


def test_a_time_just_before_1970_is_refused_as_well() -> None:
    with pytest.raises(OptionError, match="row 0, column 'event_time': before 1970"):
        grouped(event_time=pa.array([-1], pa.timestamp("us", tz="UTC")))


@pytest.mark.parametrize(
    ("zone", "local", "instant"),
    [
        ("UTC", "2026-01-02T03:04:05", "2026-01-02T03:04:05"),
        ("America/New_York", "2026-01-02T03:04:05", "2026-01-02T08:04:05"),
        ("+05:30", "2026-01-02T05:30:00", "2026-01-02T00:00:00"),
        ("Europe/Berlin", "2026-10-25T02:30:00", "2026-10-25T00:30:00"),  # twice on the clock: the first
        ("Europe/Berlin", "2026-03-29T02:30:00", "2026-03-29T01:30:00"),  # never on the clock: moved on by the gap
    ],
)
def test_times_without_a_zone_are_in_that_of_the_session(zone: str, local: str, instant: str) -> None:
    given = pa.array([dt.datetime.fromisoformat(local), None], pa.timestamp("us"))
    wanted = pa.array([dt.datetime.fromisoformat(instant), None], pa.timestamp("us", tz="UTC"))
    assert grouped(zone, event_time=given) == grouped(zone, event_time=wanted)


@pytest.mark.parametrize("zone", [None, "Nowhere/Town"])
def test_a_time_without_a_zone_is_refused_where_the_session_has_none(zone: str | None) -> None:
    with pytest.raises(OptionError, match="cast it to timestamp"):
        grouped(zone, event_time=pa.array([10**15], pa.timestamp("us")))


KEYS = [b"\xff\x00\xfe", b"text", None, b"", bytes(range(256))]


def test_keys_of_any_bytes_come_back(pulsar: Target, topic: str) -> None:
    rows = [{"key": key, "value": b"%d" % number} for number, key in enumerate(KEYS)]
    write(pulsar.service_url, topic, struct(key=BinaryType(), value=BinaryType()), rows)
    assert [row["key"] for row in read(pulsar.service_url, topic)] == KEYS


@pytest.mark.timeout(180)
def test_binary_keys_are_those_of_javas_client(pulsar: Target, topic: str) -> None:
    url, columns = pulsar.service_url, struct(key=BinaryType(), value=BinaryType())
    rows = [{"key": key, "value": b"v"} for key in (b"\xff\x00\xfe", b"text", bytes(range(256)))]
    write(url, f"{topic}-ours", columns, rows)
    pairs = {"schema": "bytes", "keySchema": "bytes", "keyValueEncoding": "SEPARATED"}
    write(url, f"{topic}-our-pairs", columns, rows[:1], **pairs)
    probe = Path(__file__).parents[1] / "support" / "BinaryKeyProbe.java"
    command = [*java_program(probe, stock_install.VERSIONS[-1]), url]
    topics = [f"{topic}-{name}" for name in ("java", "java-pairs", "ours", "our-pairs")]
    said = subprocess.run([*command, *topics], check=True, capture_output=True, text=True).stdout
    keys = ["true ff00fe", f"false {b'text'.hex()}", f"true {bytes(range(256)).hex()}", "true ff00fe"]
    assert [line.removeprefix("key ") for line in said.splitlines() if line.startswith("key ")] == keys
    assert [row["key"] for row in read(url, f"{topic}-java")] == [b"\xff\x00\xfe", b"text"]
    for options in ({}, {"schema": "topic"}):
        (row,) = read(url, f"{topic}-java-pairs", **options)
        assert (row["key"], row["value"]) == (b"\xff\x00\xfe", b"\x07")
