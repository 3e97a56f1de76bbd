"""The administration of a broker in the test's own loop: requests through aiohttp's test client, answers as Python values."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from loop_blocks import work_of_the_test

from pulsar_txn.broker.admin.routes import make_app


class Admin:
    """`await admin("GET", path)` is `(status, body)`; the body of a request is sent as JSON."""

    def __init__(self, broker: Any, client: TestClient[Any, Any]) -> None:
        self.broker = broker
        self._client = client

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._client.request(method, path, data=None if body is None else json.dumps(body)) as answer:
            found = await answer.read()
            with work_of_the_test():
                text = found.decode(answer.get_encoding())
                return answer.status, json.loads(text) if answer.content_type == "application/json" else text


@asynccontextmanager
async def admin_of(bench: Any) -> AsyncIterator[Admin]:
    """The administration of the bench's present broker."""
    async with TestClient(TestServer(make_app(bench.broker))) as client:
        yield Admin(bench.broker, client)
