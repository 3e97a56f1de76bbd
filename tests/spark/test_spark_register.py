"""`register(spark)`: the workers of a local session run the Python of the program, unless somebody has said otherwise."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spark_local
from targets import Target

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark import PulsarDataSource, PulsarTxnDataSource, register


class Session:
    """What `register` asks of a session."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self.master, self.settings = master, settings
        self.pythonExec = "python3"
        self.registered: list[Any] = []
        self.sparkContext = self.dataSource = self

    def getConf(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        return self.settings

    def register(self, source: Any) -> None:
        self.registered.append(source)


@pytest.mark.parametrize(
    ("master", "settings", "variable", "python"),
    [
        ("local[2]", {}, None, sys.executable),
        ("local[2]", {}, "/opt/python", "python3"),
        ("local[2]", {"spark.pyspark.python": "/opt/python"}, None, "python3"),
        ("spark://host:7077", {}, None, "python3"),
    ],
)
def test_registering_lets_a_local_session_run_the_python_of_the_program(
    master: str, settings: dict[str, str], variable: str | None, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", variable or "")
    if variable is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    session = Session(master, settings)
    register(session)
    assert session.pythonExec == python
    assert os.environ.get("PYSPARK_PYTHON") == (sys.executable if python == sys.executable else variable)
    assert session.registered == [PulsarDataSource, PulsarTxnDataSource]


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pulsar_txn.pipeline.spark import register

spark = SparkSession.builder.master("local[1]").getOrCreate()
register(spark)
given = {"service.url": sys.argv[1], "topic": sys.argv[2]}
assert spark.read.format("pulsar").options(**given).load().count() == 3
stream = spark.readStream.format("pulsar").options(**given, startingOffsets="earliest").load()
out = stream.writeStream.format("pulsar").option("service.url", sys.argv[1]).option("topic", sys.argv[2] + "-out")
out.option("checkpointLocation", sys.argv[3]).trigger(availableNow=True).start().awaitTermination()
given["topic"] += "-out"
assert spark.read.format("pulsar").options(**given).load().count() == 3
print("all read")
"""


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_a_program_of_an_environment_that_is_not_active_reads_after_registering(
    pulsar: Target, topic: str, tmp_path: Path
) -> None:
    async def fill() -> None:
        async with AsyncClient(pulsar.service_url) as client, await client.create_producer(topic) as producer:
            for number in range(3):
                await producer.send(b"%d" % number)
            await (await client.subscribe(f"{topic}-out", "keeps")).close()

    spark_local.prepare_environment()
    asyncio.run(fill())
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python3").write_text("#!/bin/sh\necho 'another Python, without pulsar-txn' >&2\nexit 1\n")
    (other / "python3").chmod(0o755)
    environment = os.environ | {"SPARK_CONF_DIR": str(spark_local.defaults_in(tmp_path / "conf"))}
    environment["PATH"] = f"{other}:/usr/bin:/bin"
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"):
        environment.pop(name, None)
    command = [sys.executable, "-c", PROGRAM, pulsar.service_url, topic, str(tmp_path / "checkpoint")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert "all read" in done.stdout, done.stderr[-3000:]
