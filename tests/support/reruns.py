"""Which tests are run again when they fail: those on stock servers, and no others.

A stock server has races of its own (docs/stock-pulsar.md), so its tests get two more runs, and the summary names each test
that was run again. A test on our broker that fails once has found a bug, in the code or in the test.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

STOCK_RERUNS = 2


def allow_on_stock(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark the tests on stock servers as those that may fail and be run again; nothing without pytest-rerunfailures."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("stock") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=STOCK_RERUNS, reruns_delay=1))
