"""Crash points fire where and when they are asked to, once, and leave a line that says what was in flight."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType
from spark_crash import CrashingPulsar, crash_point, is_armed, java_ancestor
from spark_totals import CRASH_FOLDER

from pulsar_txn.pipeline import spark
from pulsar_txn.pipeline.spark import PulsarDataSource
from pulsar_txn.pipeline.spark.source.layout import SCHEMA

_PROGRAM = """
from spark_crash import crash_point
crash_point("other.point", batch_id=1)
crash_point("a.point", batch_id=0, txn_id="(1,2)")
crash_point("a.point", batch_id=1, txn_id="(3,4)")
print("alive")
"""


def run(log: Path, program: str = _PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"PULSAR_TXN_CRASH_LOG": str(log), "PYTHONPATH": CRASH_FOLDER, **environment}
    return subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_happens_without_the_environment_variable(tmp_path: Path) -> None:
    assert run(tmp_path / "log").stdout == "alive\n"
    assert not (tmp_path / "log").exists()


def test_a_point_kills_at_its_batch_and_not_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    armed = {"PULSAR_TXN_CRASH_POINT": "a.point", "PULSAR_TXN_CRASH_BATCH": "1"}
    first = run(log, **armed)
    assert (first.returncode, first.stdout) == (-9, "")
    (line,) = log.read_text().splitlines()
    noted = json.loads(line)
    assert {name: noted[name] for name in ("point", "batch_id", "txn_id")} == {
        "point": "a.point",
        "batch_id": 1,
        "txn_id": "(3,4)",
    }
    assert run(log, **armed).stdout == "alive\n"


def test_a_point_that_is_not_the_chosen_one_is_not_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_TXN_CRASH_POINT", "a.point")
    assert is_armed("a.point", 3)
    assert not is_armed("b.point", 3)


def test_the_java_process_above_is_killed_too(tmp_path: Path) -> None:
    java = tmp_path / "java"
    shutil.copy(os.path.realpath("/bin/sh"), java)  # a process named java, which waits for its child
    program = tmp_path / "program.py"
    program.write_text("from spark_crash import crash_point\ncrash_point('a.point', batch_id=1)\n")
    log = tmp_path / "log"
    environment = os.environ | {
        "PULSAR_TXN_CRASH_POINT": "a.point",
        "PULSAR_TXN_CRASH_LOG": str(log),
        "PYTHONPATH": CRASH_FOLDER,
    }
    script = f"{sys.executable} {program}; exit 7"
    jvm = subprocess.Popen([java, "-c", script], env=environment)
    assert jvm.wait(60) == -9
    assert json.loads(log.read_text())["jvm_pid"] == jvm.pid


def test_no_java_is_found_above_a_process_without_one() -> None:
    assert java_ancestor() is None


def test_nobody_is_told_of_steps_unless_a_subclass_asks_for_it() -> None:
    options = {"service.url": "pulsar://h", "topic": "t"}
    schema = StructType().add("value", "string")
    plain, watched = PulsarDataSource(options), CrashingPulsar(options)
    assert plain.streamWriter(schema, False)._on_step is None
    assert plain.streamReader(SCHEMA)._on_step is None
    for part in (watched.streamWriter(schema, False), watched.streamReader(SCHEMA)):
        assert cloudpickle.loads(cloudpickle.dumps(part._on_step)) is crash_point


def test_the_wheel_has_no_switch_that_kills_a_driver() -> None:
    package = Path(spark.__file__).parent
    told = [path.name for path in package.rglob("*.py") if "CRASH" in path.read_text() or "SIGKILL" in path.read_text()]
    assert told == []
