"""What the tests of the client share."""

from collections.abc import Iterator

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client.runtime import LoopThread


@pytest.fixture
def url() -> Iterator[str]:
    """Our broker, in memory, on a loop of its own."""
    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    yield broker.service_url
    thread.run(lambda: broker.__aexit__(None, None, None))
    thread.stop()
