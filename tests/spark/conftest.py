"""The one Spark session of the tests, and what they share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import spark_local
from targets import lacking


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    try:
        importlib.import_module("pyspark")
        importlib.import_module("pyarrow")
    except ImportError as error:
        lacking("spark", f"{error}; pip install 'pulsar-txn[spark]'")
    spark_local.prepare_environment()
    session = spark_local.session()
    yield session
    session.stop()
