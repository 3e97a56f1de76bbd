"""The fixture `pulsar_broker` for pytest: a broker in memory per test, in a thread with a loop of its own.

Importing this must never raise, whatever is not installed: pytest loads it for everybody who installed the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pulsar_txn.broker.server import Standalone


@pytest.fixture
def pulsar_broker() -> Iterator[Standalone]:
    """A running broker; everything is kept in memory. `pulsar_broker.service_url` is its address."""
    from pulsar_txn.broker.base.platforms import why_not_here

    if (sentence := why_not_here()) is not None:
        pytest.fail(f"pulsar_broker: {sentence}", pytrace=False)
    from pulsar_txn.broker.base.runtime import LoopThread
    from pulsar_txn.broker.server import Standalone

    thread = LoopThread(lambda: Standalone(None, port=0))
    yield thread.start()
    thread.stop()
