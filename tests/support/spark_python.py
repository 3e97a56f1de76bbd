"""Python of Spark's workers in tests: what those of tasks import is imported once, before they are forked, and no pandas.

    PYSPARK_PYTHON=a file that runs `spark_python.py` with the arguments that Spark gives to a Python

Spark forks the workers of tasks from one daemon, bare: each of them would import PyArrow and the client again. That takes
seconds on a busy machine, and Spark gives a worker ten. PyArrow imports pandas where it is installed; the extra `spark` does
not bring it, so most workers here have none, as those of its users. Spark Connect cannot do without. `executable_in` writes
the file. Planners and sources are started with PYSPARK_DRIVER_PYTHON, where that is set.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

_DAEMON_OF_TASKS: Final = ["pyspark.daemon", "pyspark.worker"]
WITH_PANDAS: Final = "PULSAR_TXN_TESTS_WITH_PANDAS"


def executable_in(folder: Path) -> Path:
    """Write the program that Spark takes for Python, into a folder that is there."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


class _NoPandas(MetaPathFinder):
    """Finder that says of pandas that it is not installed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)
        return None


def _import_once() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that is forked has no other threads
    import pulsar_txn.pipeline.spark  # noqa: F401  # with PyArrow


def _main() -> None:
    if sys.argv[1] != "-m":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    sys.path[0] = ""  # as `python -m` has it
    del sys.argv[:2]
    if not os.environ.get(WITH_PANDAS):
        sys.meta_path.insert(0, _NoPandas())
    if sys.argv[:2] == _DAEMON_OF_TASKS:
        _import_once()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
