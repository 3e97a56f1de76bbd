"""The example of the outbox: a worker that is killed at each of its points, judged by SQL and the official client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from our_coordinator import OurCoordinator
from targets import Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(320)]
ORDERS = Path(__file__).parents[2] / "examples" / "orders"
AGREE = "every order has its event, every event its order"


def killed_at_each_point(*arguments: str) -> None:
    """Run the example. It ends well only when orders and events agree."""
    command = [sys.executable, ORDERS, *arguments, "--idle", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed at") == 6
    assert AGREE in done.stdout


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_orders_of_a_file_and_events_agree_after_a_kill_at_each_point(pulsar: Target, tmp_path: Path) -> None:
    killed_at_each_point("--pulsar-url", pulsar.service_url, "--database", str(tmp_path / "orders.db"))


@pytest.mark.parametrize("pulsar", [pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)
def test_orders_of_postgres_and_events_of_stock_agree_after_a_kill_at_each_point(pulsar: Target, empty_postgres: str) -> None:
    with OurCoordinator({"stock": pulsar.service_url}) as beside:
        where = ["--pulsar-url", pulsar.service_url, "--coordinator", beside.service_url]
        killed_at_each_point(*where, "--database", empty_postgres)
