"""The three ways of rows to their topics beside each other: staged, grouped (our broker) and `write_batch`.

Not of the usual run: `--only ways`, with `--server stock` on a stock Pulsar (ADR 66).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from gates import Gate, Place, json_row

from pulsar_txn.pipeline.spark import write_batch

TOPIC: Final = "persistent://public/default/bench-ways"
FILES: Final = 8
_micro_batches: Final = itertools.count()


def gates(place: Place) -> Iterator[Gate]:
    """Rows a second of each way beside `staged`."""
    text = place.folder / "ways"
    text.mkdir()
    for number in range(FILES):
        with (text / f"{number}.txt").open("wb") as file:
            file.writelines(json_row(row) + b"\n" for row in range(number, place.rows, FILES))
    rows = place.spark.read.text(str(text))

    def save(delivery: str) -> None:
        options = {"service.url": place.url, "topic": TOPIC, "delivery": delivery}
        rows.write.format("pulsar").options(**options).mode("append").save()

    def publish() -> None:
        write_batch(rows, next(_micro_batches), serviceUrl=place.url, topic=TOPIC, sinkId="ways")

    ways: dict[str, Callable[[], None]] = {"staged": partial(save, "staged"), "write_batch": publish}
    if place.is_ours:
        ways["grouped"] = partial(save, "grouped")
    seconds = dict(zip(ways, place.seconds(*ways.values()), strict=True))
    for name in list(ways)[1:]:
        yield Gate(f"a job, {name} beside staged", place.rows / seconds[name], place.rows / seconds["staged"], 0.0, "rows/s")
