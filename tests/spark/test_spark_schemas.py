"""Schemas in Spark's terms, without a server: forms of JSON that Java writes, primitive bytes at their bounds, and casts."""

from __future__ import annotations

import json
import struct as bytes_of
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType
from typed_rows import struct

from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.pipeline.spark import OptionError
from pulsar_txn.pipeline.spark.schemas.definitions import definition_of, parsed, type_of
from pulsar_txn.pipeline.spark.schemas.parts import part_of
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES, UnfitValueError, cast_column
from pulsar_txn.pipeline.spark.schemas.values import PartReader, PartWriter

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TIMED = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "f", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
}
MICROS = int(AT.timestamp()) * 1_000_000 + AT.microsecond


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def read_json(kind: Any, text: str) -> Any:
    """The value of a field of this type, or what is wrong with it."""
    definition = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", kind]}]}
    reader = PartReader("t", part_of("t", SchemaInfo(2, json.dumps(definition).encode(), "JSON")), lambda _: None)
    column, unfit = reader.column([f'{{"f":{text}}}'.encode()], [(1, b"")])
    return unfit[0] if unfit else column.to_pylist()[0]["f"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (logical("long", "timestamp-millis"), str(MICROS // 1000), AT.replace(microsecond=678000)),
        (logical("long", "timestamp-micros"), str(MICROS), AT),
        (logical("long", "timestamp-millis"), f"{MICROS // 10**6}.678901000", AT),  # Jackson writes an Instant in seconds
        (logical("long", "timestamp-millis"), '"2026-01-02T03:04:05.678901Z"', AT),
        (logical("long", "local-timestamp-micros"), "[2026,1,2,3,4,5,678901000]", AT.replace(tzinfo=None)),
        (logical("int", "date"), "[2026,1,2]", date(2026, 1, 2)),
        (logical("int", "date"), "20455", date(2026, 1, 2)),
        (logical("int", "date"), "-719162", date.min),
        (logical("int", "date"), "2932896", date.max),
        (logical("long", "timestamp-micros"), "253402300799999999", datetime.max.replace(tzinfo=UTC)),
        (logical("long", "local-timestamp-micros"), "-62135596800000000", datetime.min),  # noqa: DTZ901 - it has no zone
        (logical("int", "time-millis"), "[3,4,5]", time(3, 4, 5)),
        (logical("int", "time-millis"), "1000", time(0, 0, 1)),
        (logical("bytes", "decimal", precision=20, scale=10), "1234567890.0123456789", Decimal("1234567890.0123456789")),
        (logical("bytes", "decimal", precision=20, scale=2), '"0.10"', Decimal("0.10")),
        (logical("string", "uuid"), '"x"', "x"),
        ("bytes", '"/wA="', b"\xff\x00"),
        ("double", "1", 1.0),
        ("long", "2.0", 2),
    ],
)
def test_json_is_read_as_javas_client_and_ours_write_it(kind: Any, text: str, expected: Any) -> None:
    assert read_json(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (logical("long", "timestamp-millis"), '"2026-01-02T03:04:05"'),  # of which time zone?
        (logical("long", "timestamp-millis"), "true"),
        (logical("int", "time-millis"), "86400000"),
        (logical("bytes", "decimal", precision=4, scale=1), "0.15"),
        ("bytes", '"no base64"'),
        ("int", "2147483648"),
        ("int", "1.5"),
        ("long", "true"),
        ("boolean", "1"),
        ("double", "true"),
        ("double", '"1"'),
        ({"type": "array", "items": "bytes"}, '"no array"'),
        ({"type": "map", "values": "bytes"}, "[]"),
        ("string", "5"),
        # Arrow takes these, and the query that collects them would end with a bare OverflowError.
        (logical("long", "timestamp-millis"), "1700000000000000"),
        (logical("long", "timestamp-millis"), "1700000000000.5"),
        (logical("long", "timestamp-micros"), "1700000000000000000"),
        (logical("long", "timestamp-micros"), "-9000000000000000000"),
        (logical("long", "local-timestamp-millis"), "253402300800000"),
        (logical("long", "local-timestamp-micros"), "-62135596800000001"),
        (logical("int", "date"), "2147483647"),
        (logical("int", "date"), "-719163"),
    ],
)
def test_json_that_would_lose_something_does_not_fit(kind: Any, text: str) -> None:
    assert isinstance(read_json(kind, text), Exception)


@pytest.mark.parametrize(
    ("number", "payload"),
    [
        (12, bytes_of.pack(">q", 2**63 - 1)),
        (14, bytes_of.pack(">q", -(2**63))),
        (16, bytes_of.pack(">qi", 2**62, 0)),
        (16, bytes_of.pack(">qi", 0, 10**9)),
        (17, bytes_of.pack(">q", -(2**63))),
        (18, bytes_of.pack(">q", 86_400 * 10**9)),
        (19, bytes_of.pack(">qq", 0, -1)),
        (9, b"short"),
        (14, bytes_of.pack(">q", 1_700_000_000_000_000)),
        (12, bytes_of.pack(">q", -62_135_596_800_001)),
        (16, bytes_of.pack(">qi", 253_402_300_800, 0)),
        (17, bytes_of.pack(">q", 2_932_897)),
        (19, bytes_of.pack(">qq", -719_163, 0)),
    ],
)
def test_bytes_beyond_what_spark_can_express_do_not_fit(number: int, payload: bytes) -> None:
    column, bad = PRIMITIVES[number].column([payload, None])
    assert (column.to_pylist(), bad) == ([None, None], [0])


@pytest.mark.parametrize("number", [12, 14, 16, 17, 19])
def test_the_ends_of_the_calendar_come_back_as_they_were_written(number: int) -> None:
    primitive = PRIMITIVES[number]
    days = primitive.name == "LOCAL_DATE"
    ends = [-719_162, 2_932_896] if days else [-62_135_596_800_000_000, 253_402_300_799_999_000]
    kind = to_arrow_type(primitive.kind, timezone="UTC")
    column = pa.array([ends[0], None, ends[1]], pa.int32() if days else pa.int64()).view(kind)
    found, bad = primitive.column(primitive.payloads(column).to_pylist())
    assert (found.to_pylist(), bad) == (column.to_pylist(), [])


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        (SchemaInfo(14, b"", "TIMESTAMP"), pa.timestamp("us", "UTC")),
        (SchemaInfo(16, b"", "INSTANT"), pa.timestamp("us", "UTC")),
        (SchemaInfo(19, b"", "LOCAL_DATE_TIME"), pa.timestamp("us")),
        *(
            (SchemaInfo(number, json.dumps(TIMED).encode(), name), pa.struct([("f", pa.timestamp("us", "UTC"))]))
            for number, name in ((2, "JSON"), (4, "AVRO"))
        ),
    ],
)
def test_a_time_that_no_query_could_read_is_not_written(info: SchemaInfo, kind: Any) -> None:
    values = pa.array([0, 253_402_300_800_000_000, 1], pa.int64())
    in_record = pa.types.is_struct(kind)
    column = pa.StructArray.from_arrays([values.view(kind[0].type)], ["f"]) if in_record else values.view(kind)
    with pytest.raises(UnfitValueError, match="no query could read it") as caught:
        PartWriter("t", part_of("t", info)).payloads(column)
    assert caught.value.number == 1


def test_one_value_that_does_not_fit_costs_only_its_row() -> None:
    column, unfit = cast_column(pa.array([1, 2**40, None, 4]), pa.int32())
    assert (column.to_pylist(), list(unfit)) == ([1, None, None, 4], [1])
    nested = pa.array([[{"x": 1, "y": 2}], None])
    column, unfit = cast_column(nested.slice(0, 2), pa.list_(pa.struct([("y", pa.int64())])))
    assert (column.to_pylist(), unfit) == ([[{"y": 2}], None], {})


def test_no_value_inside_of_lists_and_maps_is_cut() -> None:
    pairs = pa.map_(pa.string(), pa.float64())
    column = pa.array(
        [[], [{"x": 1.0, "m": [("a", 2.0)]}, None], None, [{"x": 1.5, "m": None}]],
        pa.list_(pa.struct([("x", pa.float64()), ("m", pairs)])),
    )
    kind = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("x", pa.int32())]))
    found, unfit = cast_column(column.slice(1), kind)
    assert found.to_pylist() == [[{"m": [("a", 2)], "x": 1}, None], None, None]
    assert list(unfit) == [2]


def test_a_definition_made_of_a_struct_gives_the_struct_again() -> None:
    kind = struct(a=LongType(), inner=struct(a=LongType(), inner=struct(b=LongType())))
    assert type_of(parsed("t", json.dumps(definition_of(kind)))) == kind, "names of nested records are distinct"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("no json", "is no JSON"),
        ('{"type":"record","name":"R"}', "is no Avro definition"),
        ('{"type":"bytes","logicalType":"decimal","precision":50}', "a decimal of 50 digits; Spark has 38"),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(definition: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parsed("t", definition)


@pytest.mark.parametrize("number", [3, 21])
def test_kinds_that_are_not_read_are_named_with_what_to_do(number: int) -> None:
    with pytest.raises(OptionError, match=r"schema of the kind .*from_protobuf"):
        part_of("t", SchemaInfo(number, b"", "X"))
