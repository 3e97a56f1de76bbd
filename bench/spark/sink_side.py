"""The sink beside Spark's JSON files, its rate source into nothing, and a sink in Python that does nothing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from gates import Gate, Place, json_row
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

TOPIC = "persistent://public/default/bench-sink"
FILES = 8
_numbers: Final = itertools.count()
FILES_PER_BATCH = 2
SLOTS = 2


def gates(place: Place) -> Iterator[Gate]:
    """Every gate of the sink."""
    text = place.folder / "text"
    text.mkdir()
    for number in range(FILES):
        with (text / f"{number}.txt").open("wb") as file:
            file.writelines(json_row(row) + b"\n" for row in range(number, place.rows, FILES))
    yield from _batch(place, str(text))
    yield from _stream(place, str(text))
    yield from _overhead(place)


def _to_topic(place: Place, writer: Any, **options: str) -> Any:
    return writer.format("pulsar").option("service.url", place.url).options(**{"topic": TOPIC, **options})


def _batch(place: Place, text: str) -> Iterator[Gate]:
    rows = place.spark.read.text(text)

    def theirs() -> None:
        rows.write.mode("overwrite").json(str(place.folder / "json-out"))

    def ours(delivery: str) -> None:
        _to_topic(place, rows.write, delivery=delivery).mode("append").save()

    sink, json, staged = place.seconds(partial(ours, "grouped"), theirs, partial(ours, "staged"))
    yield Gate(
        "text -> sink, text -> JSON files", place.rows / sink, place.rows / json, 0.5, "rows/s", note=_also(place, staged)
    )


def _stream(place: Place, text: str) -> Iterator[Gate]:
    rows = place.spark.readStream.option("maxFilesPerTrigger", str(FILES_PER_BATCH)).text(text)

    def run(writer: Any) -> None:
        query = writer.option("checkpointLocation", _unused(place)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(each.numInputRows for each in query.recentProgress) == place.rows

    def theirs() -> None:
        run(rows.writeStream.format("json").option("path", _unused(place)))

    def ours(delivery: str) -> None:
        run(_to_topic(place, rows.writeStream, delivery=delivery))

    sink, json, staged = place.seconds(partial(ours, "grouped"), theirs, partial(ours, "staged"))
    name = f"stream of {FILES // FILES_PER_BATCH} micro-batches, text -> sink, text -> JSON files"
    yield Gate(name, place.rows / sink, place.rows / json, 0.5, "rows/s", note=_also(place, staged))


def _also(place: Place, seconds: float) -> str:
    return f"ours is delivery=grouped; {place.rows / seconds:,.0f} rows/s with delivery=staged, which copies all rows"


def _overhead(place: Place) -> Iterator[Gate]:
    place.spark.dataSource.register(Nothing)
    rate = place.spark.readStream.format("rate").option("rowsPerSecond", "50").option("numPartitions", str(SLOTS)).load()
    rows = rate.selectExpr("cast(value as string) as value")
    writers = {
        "noop": rows.writeStream.format("noop"),
        "floor": rows.writeStream.format("bench_nothing"),
        "ours": _to_topic(place, rows.writeStream),
    }
    medians = {name: _median_ms(place, writer) for name, writer in writers.items()}
    note = "what Spark takes for any sink in Python"
    yield Gate(
        "micro-batch, a Python sink that does nothing", medians["ours"], medians["floor"], 1.3, "ms", at_least=False, note=note
    )
    yield Gate("micro-batch, rate -> noop", medians["ours"], medians["noop"], 1.3, "ms", at_least=False)


def _median_ms(place: Place, writer: Any, batches: int = 30) -> float:
    """Of a micro-batch with rows, without those that start Spark's workers."""
    query = writer.option("checkpointLocation", _unused(place)).trigger(processingTime="0 seconds").start()
    try:
        while len(query.recentProgress) < batches:
            query.awaitTermination(0.2)
        durations = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
        return statistics.median(durations[3:])
    finally:
        query.stop()


def _unused(place: Place) -> str:
    """A folder that nobody has used."""
    return str(place.folder / f"used-{next(_numbers)}")


class NothingWriter(DataSourceStreamArrowWriter):
    """Looks at the rows, and forgets them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """A task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """The end of a micro-batch."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """A failure."""


class Nothing(DataSource):
    """A sink in Python that does nothing, for what Spark itself takes for one."""

    @classmethod
    def name(cls) -> str:
        """For `format(…)`."""
        return "bench_nothing"

    def streamWriter(self, schema: Any, overwrite: bool) -> NothingWriter:  # noqa: N802  # Spark's name
        """For `df.writeStream`."""
        return NothingWriter()
