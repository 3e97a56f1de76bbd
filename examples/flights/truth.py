"""The truth, by columns, straight from the input (rules.md). Shares no code with settle.py or settle_spark.py, by purpose."""

from __future__ import annotations

import pandas as pd
from data import MONTHS, SMALL_ROWS, flights_file


def flights_frame(selection: str = "jan") -> pd.DataFrame:
    """The selected flights with their amounts, indexed by id; `refused` says which of them nobody can settle."""
    frame = pd.read_csv(flights_file(), keep_default_na=True)
    if selection == "small":
        frame = frame[frame["month"] == 1].head(SMALL_ROWS)
    elif selection != "all":
        frame = frame[frame["month"] == MONTHS.index(selection) + 1]
    miles = frame["distance"].astype("int64")
    frame["fare_cents"] = (
        3_900 + 14 * miles.clip(upper=500) + 11 * (miles - 500).clip(0, 1_000) + 9 * (miles - 1_500).clip(lower=0)
    )
    cancelled = frame["dep_time"].isna()
    diverted = frame["arr_delay"].isna() & ~cancelled
    delay = frame["arr_delay"].fillna(0).astype("int64")
    late = 25 * (delay - 15).clip(0, 45) + 50 * (delay - 60).clip(0, 120) + 100 * (delay - 180).clip(lower=0)
    late = late.where(late < frame["fare_cents"], frame["fare_cents"])
    frame["penalty_cents"] = late.mask(diverted, frame["fare_cents"] // 2).mask(cancelled, 0).astype("int64")
    frame["refund_cents"] = frame["fare_cents"].where(cancelled, 0).astype("int64")
    frame["net_cents"] = frame["fare_cents"] - frame["penalty_cents"] - frame["refund_cents"]
    frame["refused"] = frame["arr_time"].isna() & ~cancelled
    frame["route"] = frame["origin"] + "-" + frame["dest"]
    return frame


def totals(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    """(dimension, key) -> (flights, net_cents), for the dimensions carrier and route; refused flights count nowhere."""
    frame = frame[~frame["refused"]]
    result: dict[tuple[str, str], tuple[int, int]] = {}
    for dimension in ("carrier", "route"):
        grouped = frame.groupby(dimension)["net_cents"].agg(["count", "sum"])
        for key, row in grouped.iterrows():
            result[dimension, str(key)] = (int(row["count"]), int(row["sum"]))
    return result
