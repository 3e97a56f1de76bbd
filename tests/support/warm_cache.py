"""Make the byte code of the tests before several workers need it: `python tests/support/warm_cache.py`.

pytest rewrites the asserts of each test file and keeps the result. Without it every worker does that for all files at the same
time. Two processes do it here, each for half of the files; nothing happens where it is done already.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
WORTH_IT: Final = 50
"""Fewer files than this are left to the workers."""


def is_cold(path: Path) -> bool:
    """True if pytest has not rewritten this file since it was changed."""
    name = f"{path.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    kept = Path(importlib.util.cache_from_source(str(path))).with_name(name)
    return not kept.exists() or kept.stat().st_mtime < path.stat().st_mtime


def main() -> None:
    """Collect the cold files in two processes, the largest first. What cannot be collected is the workers' to report."""
    files = sorted(
        (each for each in TESTS.rglob("test_*.py") if "mutants" not in each.parts), key=lambda each: -each.stat().st_size
    )
    cold = [str(each) for each in files if is_cold(each)]
    if sys.dont_write_bytecode or len(cold) < WORTH_IT:
        return
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    halves = [
        subprocess.Popen([*collect, *half], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for half in (cold[::2], cold[1::2])
    ]
    for half in halves:
        half.wait()


if __name__ == "__main__":
    main()
