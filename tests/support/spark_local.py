"""A small local Spark for tests: one JVM per test session, and the same settings for drivers of their own processes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import spark_python
from targets import lacking

from pulsar_txn.pipeline.java import JavaNotFoundError, find_java


def prepare_environment() -> None:
    """Set what PySpark reads from the environment when it starts the JVM. Skips the test where Spark cannot run."""
    try:
        os.environ["JAVA_HOME"] = str(find_java())
    except JavaNotFoundError as error:
        lacking("spark", str(error))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LAUNCHER_OPTS"] = _QUICK_JAVA  # of the Java that puts the command of the driver's Java together
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(_workers_python())


@cache
def _workers_python() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return spark_python.executable_in(folder)


# Its Java lives for seconds: what the optimising compiler would take is never earned back.
_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_LIVED: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": _QUICK_JAVA,
    "spark.sql.shuffle.partitions": "2",
}


def defaults_in(folder: Path) -> Path:
    """`folder`, made, as `SPARK_CONF_DIR` of a program that starts Spark by itself."""
    folder.mkdir()
    lines = [f"{name} {value}\n" for name, value in SHORT_LIVED.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return folder


def session(settings: Mapping[str, str] | None = None) -> Any:
    """The session: two slots, four attempts per task, small Arrow batches so that failures fall between them."""
    from pyspark.sql import SparkSession  # here, so that tests without Spark can be collected

    builder: Any = SparkSession.builder
    builder = builder.master("local[2,4]").appName("pulsar-txn-tests")
    fixed = {
        **SHORT_LIVED,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**fixed, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


GIVEN_UP: Final = ("Python worker failed to connect back", "Timed out while waiting for the Python worker to connect back")
"""What Spark says of a Python worker that took more than ten seconds to begin: of a task, and of a Connect server's."""


def ended(start: Callable[[], Any]) -> None:
    """Start a query and wait for its end; again when Spark gave up a Python worker that took more than ten seconds to begin.

    Spark has no setting for these ten seconds, and the machine has other work. What the query has committed stays so.
    """
    for _ in range(2):
        try:
            start().awaitTermination()
        except Exception as error:
            if not any(words in str(error) for words in GIVEN_UP):
                raise
        else:
            return
    start().awaitTermination()
