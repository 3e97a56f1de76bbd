"""Servers of their own for stories of checks and prepared transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import targets
from asking_servers import AskingServer


def _stock() -> list[str]:
    return targets.stock_names()[-1:]


@pytest.fixture(
    scope="module", params=["ours", *[pytest.param(f"beside-{name}", marks=pytest.mark.stock) for name in _stock()]]
)
def asking(request: pytest.FixtureRequest) -> Iterator[AskingServer]:
    """Our broker, and our coordinator beside a stock cluster. Each test leaves it running."""
    name = str(request.param).removeprefix("beside-")
    stock = None if name == "ours" else request.getfixturevalue("shared_server")(name)
    server = AskingServer(stock)
    with server.process:
        yield server
