"""A query with a fault in it, in a driver of its own: numbers from files, one file for each micro-batch, to one topic.

`python spark_faults.py JSON` runs it; JSON has the fields of `Numbers`. Faults are in the environment variable
PULSAR_TXN_FAULTS, as JSON, in the driver and in its executors: at `step` (of micro-batch `batch`, if it is given) a fault
happens, once, which the file `once` remembers:

* `kill`: SIGKILL of the nearest Java process above: in a task its executor, in a commit the driver.
* `wait`: stop there until the file `release` is there.
* `exit`: the Python process ends.
* `raise`: an exception, which is the end of this attempt.

Steps are those of `examples/flights/spark_crash.py`, and `rows.middle`: a task has handed a part of its rows to the sink.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import spark_local
from spark_totals import CRASH_FOLDER

from pulsar_txn.pipeline.spark import PulsarDataSource
from pulsar_txn.pipeline.spark.sink.writer import PulsarStreamWriter

SUPPORT_FOLDER = str(Path(__file__).resolve().parent)
FAULTS = "PULSAR_TXN_FAULTS"
TASKS = 2


@attrs.frozen
class Fault:
    """What happens, where."""

    step: str
    how: str
    once: str
    batch: int | None = None
    release: str = ""
    number: int | None = None

    def pid(self) -> int:
        """The process that it has come about in."""
        return int(Path(self.once).read_text())

    def attempt_ended(self) -> str:
        """How the attempt of a task went on that was made to wait; empty while it has not ended."""
        ended = Path(self.once + ".ended")
        return ended.read_text() if ended.exists() else ""

    def happened(self) -> bool:
        """Whether it has come about."""
        return Path(self.once).exists()


def environment(*faults: Fault) -> dict[str, str]:
    """The variable that brings them about."""
    return {FAULTS: json.dumps([attrs.asdict(fault) for fault in faults])} if faults else {}


def watch(step: str, /, **in_flight: Any) -> None:
    """Bring a fault about where it belongs."""
    for fault in json.loads(os.environ.get(FAULTS, "[]")):
        asked = {"step": step, "batch": in_flight.get("batch_id"), "number": in_flight.get("number")}
        if all(fault[name] in (None, found) for name, found in asked.items()):
            _bring_about(Fault(**fault))


def _bring_about(fault: Fault) -> None:
    try:
        with Path(fault.once).open("x", encoding="utf-8") as once:
            once.write(str(os.getpid()))
    except FileExistsError:
        return
    if fault.how == "wait":
        while not Path(fault.release).exists():
            time.sleep(0.1)
    elif fault.how == "raise":
        raise RuntimeError(f"{fault.step} fails once")
    elif fault.how == "kill":
        from spark_crash import java_ancestor

        java = java_ancestor()
        assert java is not None
        os.kill(java, signal.SIGKILL)
        time.sleep(60)  # a worker ends with its Java process
    else:
        os._exit(1)


class FaultyWriter(PulsarStreamWriter):
    """Notes how an attempt ended that a fault made to wait."""

    def write(self, iterator: Iterator[Any]) -> Any:
        """See `PulsarStreamWriter.write`."""
        ended = "delivered"
        try:
            return super().write(iterator)
        except BaseException as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            for fault in (Fault(**each) for each in json.loads(os.environ.get(FAULTS, "[]"))):
                if fault.how == "wait" and fault.happened() and fault.pid() == os.getpid():
                    ending = Path(fault.once + ".ending")
                    ending.write_text(ended)
                    ending.rename(fault.once + ".ended")


class FaultyPulsar(PulsarDataSource):
    """`format("pulsar")` that watches its steps."""

    on_step = staticmethod(watch)

    def streamWriter(self, schema: Any, overwrite: bool) -> PulsarStreamWriter:  # noqa: N802  # Spark's name
        """See `PulsarDataSource.streamWriter`."""
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = FaultyWriter
        return writer


@attrs.frozen
class Numbers:
    """The query: `folder` has the input `in` and the checkpoint; `master` is Spark's.

    A driver goes on after its query while the file `stay` is there.
    """

    service_url: str
    topic: str
    folder: str
    master: str = "local-cluster[2,1,1024]"
    options: dict[str, str] = attrs.field(factory=dict)
    settings: dict[str, str] = attrs.field(factory=dict)
    stay: str = ""

    def fill(self, batches: int, rows: int) -> None:
        """Files with the numbers from 0."""
        folder = Path(self.folder, "in")
        folder.mkdir(parents=True, exist_ok=True)
        for batch in range(batches):
            numbers = range(batch * rows, (batch + 1) * rows)
            file = folder / f"{batch}.txt"
            file.write_text("\n".join(map(str, numbers)) + "\n")
            os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes the oldest first

    def start(self, spark: Any) -> Any:
        """Start it; it ends when all files are read. Each attempt of a task gives its rows in another order."""
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(Path(self.folder, "in"))).repartition(TASKS)
        shuffled = rows.mapInArrow(reordered, "value string")
        options = {
            "service.url": self.service_url,
            "topic": self.topic,
            "checkpointLocation": str(Path(self.folder, "checkpoint")),
            **self.options,
        }
        return shuffled.writeStream.format("pulsar").trigger(availableNow=True).options(**options).start()

    def session(self) -> Any:
        """A session on the master, whose executors know of the fault."""
        os.environ["SPARK_HOME"] = str(spark_home(Path(self.folder, "spark-home")))
        path = os.pathsep.join([SUPPORT_FOLDER, CRASH_FOLDER])
        os.environ["PYTHONPATH"] = path
        settings = {
            "spark.master": self.master,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executorEnv.PYTHONPATH": path,
            "spark.shuffle.io.maxRetries": "0",  # what a dead executor had is computed again at once
        }
        if FAULTS in os.environ:
            settings[f"spark.executorEnv.{FAULTS}"] = os.environ[FAULTS]
        spark = spark_local.session(settings | self.settings)
        spark.dataSource.register(FaultyPulsar)
        return spark


def spark_home(folder: Path) -> Path:
    """Spark's folder for executors of their own, whose files are in `folder`: the installed one has no place for them."""
    import pyspark

    folder.mkdir(exist_ok=True)
    for each in Path(pyspark.__file__).parent.iterdir():
        link = folder / each.name
        if each.name != "work" and not link.exists():
            link.symlink_to(each)
    return folder


def reordered(batches: Any) -> Any:
    """The rows of a task in an order that no two attempts share."""
    import random

    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch_id = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    for number, batch in enumerate(batches):
        if number == 1:
            watch("rows.middle", batch_id=batch_id)
        indices = list(range(batch.num_rows))
        random.shuffle(indices)
        yield batch.take(pa.array(indices))


if __name__ == "__main__":
    spark_local.prepare_environment()
    sys.path[:0] = [SUPPORT_FOLDER, CRASH_FOLDER]
    import spark_faults  # classes of __main__ would travel by value

    numbers = spark_faults.Numbers(**json.loads(sys.argv[1]))
    session = numbers.session()
    numbers.start(session).awaitTermination()
    while Path(numbers.stay or "/nothing").exists():
        time.sleep(0.1)
    session.stop()
