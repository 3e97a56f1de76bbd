"""Where a coordinator service says that it listens, and what is left of one that cannot listen."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from pulsar_txn.broker.serving import reachable
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.server.listening import CoordinatorServer

AWAY = {"east": ClusterConfig(service_url="pulsar://127.0.0.1:1")}
"""A cluster that is not there: its ends wait, and the service serves."""


@pytest.mark.parametrize(
    ("bind_address", "advertised", "host"),
    [
        ("0.0.0.0", None, "127.0.0.1"),
        ("::", None, "127.0.0.1"),
        ("", None, "127.0.0.1"),
        ("::1", None, "[::1]"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("0.0.0.0", "tc.example.com", "tc.example.com"),
    ],
)
def test_the_address_that_is_announced_can_be_reached(bind_address: str, advertised: str | None, host: str) -> None:
    assert reachable(bind_address, advertised) == host


async def test_a_coordinator_that_listens_everywhere_announces_an_address() -> None:
    everywhere = CoordinatorConfig(bind_address="0.0.0.0", broker_service_port=0)
    async with CoordinatorServer(everywhere, AWAY) as server:
        assert server.service_url.startswith("pulsar://127.0.0.1:")


async def test_a_coordinator_whose_port_is_taken_leaves_nothing_behind(caplog: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = CoordinatorConfig(broker_service_port=taken.getsockname()[1], number_of_transaction_coordinators=2)
        server = CoordinatorServer(config, AWAY)
        before = asyncio.all_tasks()
        with pytest.raises(OSError, match="address already in use"):
            await server.start()
    await asyncio.sleep(0)
    gc.collect()
    assert asyncio.all_tasks() == before
    assert server.service.coordinators.ready(0) is None
    assert "never retrieved" not in caplog.text
