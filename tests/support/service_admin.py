"""The HTTP side of a coordinator service in the test's own loop: answers as Python values."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from pulsar_txn.tc_service.admin.routes import make_app
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.ids import TxnId


class ServiceAdmin:
    """`await admin("GET", path)` is `(status, body)`."""

    def __init__(self, client: TestClient[Any, Any]) -> None:
        self._client = client

    async def __call__(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        async with self._client.request(method, path, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path: str) -> Any:
        """A body below `/admin/v3/transactions`; the status is 200."""
        status, body = await self("GET", f"/admin/v3/transactions{path}")
        assert status == 200, body
        return body

    async def timeline(self, txn: TxnId) -> Any:
        return await self.get(f"/timeline/{txn.most}/{txn.least}")

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels."""
        _, text = await self("GET", "/metrics")
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


@asynccontextmanager
async def admin_of(service: CoordinatorService) -> AsyncIterator[ServiceAdmin]:
    """The HTTP side of a service."""
    async with TestClient(TestServer(make_app(service))) as client:
        yield ServiceAdmin(client)
