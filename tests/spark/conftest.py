"""What the tests of Spark share; their session is in `tests/conftest.py`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest
from spark_totals import CRASH_FOLDER

sys.path.insert(0, CRASH_FOLDER)  # `spark_crash` is a program of the demo

_HERE = importlib.util.find_spec("pyspark") is not None and importlib.util.find_spec("pyarrow") is not None
collect_ignore_glob = [] if _HERE or "spark" in os.environ.get("PULSAR_TXN_REQUIRE", "") else ["test_s*.py"]


@pytest.fixture(scope="module", autouse=True)
def clients_end_with_their_module() -> Iterator[None]:
    """Those of the source and the sink in this process would look for ended servers until the end of the run."""
    yield
    from pulsar_txn.pipeline.spark.connecting import background  # here, so that tests without Spark can be collected

    here = background()
    here.run(here.close_clients())
