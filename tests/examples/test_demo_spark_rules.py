"""The rules as Spark's column expressions, beside the truth of pandas; and messages that hold no flight."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import settle_spark
import truth
from data import read_flights
from settle import NO_ARRIVAL, NO_FLIGHT
from topics import Topics

PUBLISHED = datetime(2013, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
AMOUNTS = ["carrier", "route", "fare_cents", "penalty_cents", "refund_cents", "net_cents"]

pytestmark = pytest.mark.timeout(300)


def outputs(spark: Any, values: list[bytes]) -> dict[str, list[Any]]:
    """The rows that Spark makes of messages, by topic."""
    frame = spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary()), "publish_time": [PUBLISHED] * len(values)}))
    found: dict[str, list[Any]] = {topic: [] for topic in Topics().settled}
    for row in settle_spark.outputs(frame, Topics()).collect():
        found[row.topic].append(row)
    return found


def test_sparks_rules_agree_with_the_truth_on_every_flight_of_january_to_the_cent(spark: Any) -> None:
    found = outputs(spark, [json.dumps(attrs.asdict(flight)).encode() for flight in read_flights("jan")])
    frame = truth.flights_frame("jan")
    settled = frame[~frame["refused"]]
    expected = dict(zip(settled.index.tolist(), zip(*(settled[name].tolist() for name in AMOUNTS), strict=True), strict=True))
    settlements = [json.loads(row.value) for row in found["settlements"]]
    assert len(settlements) == len(expected) == 26_989
    assert {each["id"]: tuple(each[name] for name in AMOUNTS) for each in settlements} == expected
    postings = [json.loads(row.value) for row in found["postings"]]
    assert len(postings) == len(expected)
    assert {each["id"]: (each["carrier"], each["net_cents"]) for each in postings} == {
        number: (known[0], known[-1]) for number, known in expected.items()
    }
    assert all(row.key == json.loads(row.value)["carrier"] for row in found["postings"])
    refused = [json.loads(row.value) for row in found["refused"]]
    assert sorted(each["id"] for each in refused) == frame.index[frame["refused"]].tolist()
    assert {each["reason"] for each in refused} == {NO_ARRIVAL}


def test_a_message_that_is_no_flight_is_refused_with_its_text_and_ends_nothing(spark: Any) -> None:
    flight = attrs.asdict(next(iter(read_flights("jan"))))
    broken = [b"", b"no json", b"[1, 2]", b"{}", json.dumps(flight | {"distance_miles": "far"}).encode(), b"\xff\xfe"]
    found = outputs(spark, [*broken, json.dumps(flight).encode()])
    refused = [json.loads(row.value) for row in found["refused"]]
    assert [each["reason"] for each in refused] == [NO_FLIGHT] * len(broken)
    assert [each["text"] for each in refused][1:4] == ["no json", "[1, 2]", "{}"]
    assert len(found["settlements"]) == len(found["postings"]) == 1


def test_rows_keep_the_time_of_publication(spark: Any) -> None:
    flight = json.dumps(attrs.asdict(next(iter(read_flights("jan"))))).encode()
    rows = [row for those in outputs(spark, [flight, b"{}"]).values() for row in those]
    assert [row.event_time for row in rows] == [int(PUBLISHED.timestamp() * 1000)] * 3
