"""What the tests of the client share."""

import contextlib
from collections.abc import Iterator

import pytest
from compat_official import Official

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client.sync._loop_thread import LoopThread


def _our_broker() -> Iterator[str]:
    """Our broker, in memory, on a loop of its own."""
    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    yield broker.service_url
    thread.run(lambda: broker.__aexit__(None, None, None))
    thread.stop()


url = pytest.fixture(_our_broker, name="url")
module_url = pytest.fixture(_our_broker, name="module_url", scope="module")


@pytest.fixture(scope="module")
def official_says() -> Iterator[Official]:
    """What programs say with the official package."""
    with contextlib.closing(Official()) as official:
        yield official
