"""A client of the server that the test runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from targets import Target

from pulsar_txn.client import AsyncClient


@pytest.fixture
async def client(pulsar: Target) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(pulsar.service_url) as client:
        yield client
