"""Requirements of the Spark source and sink, checked after an import has failed: the error says what to install."""

from __future__ import annotations

import importlib
from typing import Final

OLDEST_PYSPARK: Final = (4, 2)
"""The first with limits and AvailableNow for sources in Python, and with Arrow for streaming sinks."""


def why_not() -> str | None:
    """Requirement that `format("pulsar")` lacks, with the remedy; None when all is there."""
    try:
        installed = str(importlib.import_module("pyspark").__version__)
    except ImportError:
        return 'PySpark is not installed: pip install "pyspark>=4.2,<5" pyarrow numpy'
    if _numbers(installed) < OLDEST_PYSPARK:
        return f'format("pulsar") needs PySpark 4.2 or newer, and {installed} is installed: pip install "pyspark>=4.2,<5"'
    lacking = [name for name in ("pyarrow", "numpy") if not _is_there(name)]
    return f'format("pulsar") needs {" and ".join(lacking)}: pip install {" ".join(lacking)}' if lacking else None


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor number; nothing for a version that nobody can read."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
