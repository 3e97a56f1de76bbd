"""A Spark of two executors on this machine: master, workers and driver in one Java, each executor in one of its own.

`local-cluster` is Spark's own way to test what happens when executors die: a killed one is replaced, its tasks run again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession
from spark_crash import arm

from pulsar_txn.pipeline.java import find_java

MASTER: Final = "local-cluster[2,1,1024]"
"""Executors, cores of each, MiB of each."""

# These Javas live for a minute: what their optimising compiler would take is never earned back.
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(scratch: Path) -> SparkSession:
    """The session; nothing listens beyond the loopback, and all files are in `scratch`."""
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["SPARK_HOME"] = str(_home(scratch))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)  # executors import from it
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master(MASTER).appName("flights")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.executor.extraJavaOptions": _JAVA,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    arm(spark)
    return spark


def _home(scratch: Path) -> Path:
    """A folder that looks like PySpark's own: the executors' working folders come into it, not into the installed package."""
    package = Path(pyspark.__file__).resolve().parent
    home = scratch / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "python"):
        if not (home / name).is_symlink():
            (home / name).symlink_to(package / name, target_is_directory=True)
    return home
