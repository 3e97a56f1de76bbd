"""The rules (rules.md) as column expressions: what Spark makes of a flight. The third coding, beside settle.py and truth.py.

`outputs` is the whole job of a micro-batch: a frame of messages with the columns key, value, event_time and topic, in one pass
over the flights. The sink takes each row's topic from its column, so that one micro-batch goes to three topics at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from settle import NO_ARRIVAL, NO_FLIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from topics import Topics

FLIGHT: Final = (
    "id BIGINT, day STRING, carrier STRING, origin STRING, dest STRING, distance_miles BIGINT, "
    "dep_time BIGINT, arr_time BIGINT, arr_delay_minutes BIGINT"
)
_NEEDED: Final = ("id", "day", "carrier", "origin", "dest", "distance_miles")


def flights(messages: DataFrame) -> DataFrame:
    """The flights in the messages of a topic; `reason` says why a message is refused, and is null for all others."""
    parsed = messages.select(
        f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight"),
        f.col("value").cast("string").alias("text"),
        f.unix_millis("publish_time").alias("event_time"),
    ).select("flight.*", "text", "event_time")
    incomplete = f.lit(False)
    for name in _NEEDED:
        incomplete = incomplete | f.col(name).isNull()
    vanished = f.col("dep_time").isNotNull() & f.col("arr_time").isNull()
    return parsed.withColumn("reason", f.when(incomplete, NO_FLIGHT).when(vanished, NO_ARRIVAL))


def settled(flights: DataFrame) -> DataFrame:
    """The flights with the columns route, fare_cents, penalty_cents, refund_cents and net_cents."""
    miles, delay = f.col("distance_miles"), f.col("arr_delay_minutes")
    fare = 3_900 + 14 * _part(miles, 0, 500) + 11 * _part(miles, 500, 1_500) + 9 * _part(miles, 1_500)
    late = 25 * _part(delay, 15, 60) + 50 * _part(delay, 60, 180) + 100 * _part(delay, 180)
    cancelled, diverted = f.col("dep_time").isNull(), delay.isNull()
    with_fare = flights.withColumn("fare_cents", fare).withColumn("route", f.concat_ws("-", "origin", "dest"))
    half = f.expr("fare_cents div 2")
    penalty = f.when(cancelled, 0).when(diverted, half).otherwise(f.least("fare_cents", late))
    with_all = with_fare.withColumn("penalty_cents", penalty).withColumn(
        "refund_cents", f.when(cancelled, f.col("fare_cents")).otherwise(0)
    )
    return with_all.withColumn("net_cents", f.expr("fare_cents - penalty_cents - refund_cents"))


def _part(amount: Column, low: int, high: int | None = None) -> Column:
    """How much of `amount` is above `low` and not above `high`."""
    above = f.greatest(amount - low, f.lit(0))
    return above if high is None else f.least(above, f.lit(high - low))


def outputs(messages: DataFrame, topics: Topics) -> DataFrame:
    """A settlement and a posting for each flight, or its refusal: the rows for all three topics."""
    settlement = _json("id", "carrier", "route", "day", "fare_cents", "penalty_cents", "refund_cents", "net_cents")
    two = f.array(
        _message(topics.settlements, f.col("carrier"), settlement),
        _message(topics.postings, f.col("carrier"), _json("id", "carrier", "net_cents")),
    )
    text = f.when(f.col("reason") == NO_FLIGHT, f.col("text")).alias("text")
    refusal = f.to_json(f.struct("id", "carrier", "reason", text))
    one = f.array(_message(topics.refused, f.col("carrier"), refusal))
    rows = settled(flights(messages)).select(
        "event_time", f.explode(f.when(f.col("reason").isNull(), two).otherwise(one)).alias("m")
    )
    return rows.select("event_time", "m.*")


def _json(*names: str) -> Column:
    return f.to_json(f.struct(*names))


def _message(topic: str, key: Column, value: Column) -> Column:
    return f.struct(f.lit(topic).alias("topic"), key.alias("key"), value.alias("value"))
