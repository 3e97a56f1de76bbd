"""What the tests of the client share.

The broker and the official package are imported by the fixtures that need them: `make quick` has neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from fake_broker import FakeBroker

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.sync.loop_thread import LoopThread
from pulsar_txn.wire.topics import ASSIGN_TOPIC

if TYPE_CHECKING:
    from compat_official import Official


def _our_broker() -> Iterator[str]:
    """Our broker, in memory, on a loop of its own."""
    from pulsar_txn.broker.server import Standalone

    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    yield broker.service_url
    thread.run(lambda: broker.__aexit__(None, None, None))
    thread.stop()


url = pytest.fixture(_our_broker, name="url")
module_url = pytest.fixture(_our_broker, name="module_url", scope="module")


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    """A client of our broker, which is in memory."""
    from pulsar_txn.broker.server import Standalone

    async with Standalone(None) as broker, AsyncClient(broker.service_url) as connected:
        yield connected


@pytest.fixture
def broker() -> FakeBroker:
    """A broker of scripted answers, with one coordinator."""
    made = FakeBroker()
    made.partitions[ASSIGN_TOPIC] = 1
    return made


@pytest.fixture(scope="module")
def official_says() -> Iterator[Official]:
    """What programs say with the official package."""
    from compat_official import Official

    with contextlib.closing(Official()) as official:
        yield official
