"""The admin interface of a server, as tests ask it: JSON over HTTP, with the answer's status when it is an error."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from targets import Target

PATIENCE: Final = 20.0
"""Seconds to wait for an answer, and for what a server does by itself."""

TRANSACTIONS: Final = "/admin/v3/transactions"


class AdminError(Exception):
    """The server refused: its HTTP `status`, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


async def get_json(pulsar: Target, path: str) -> Any:
    """GET of a path such as `/admin/v2/clusters`. Raises AdminError."""
    return await _ask(pulsar, "GET", path, None)


async def put(pulsar: Target, path: str, body: Any = None) -> Any:
    """PUT with a body in JSON. Raises AdminError."""
    return await _ask(pulsar, "PUT", path, body)


async def post(pulsar: Target, path: str, body: Any = None) -> Any:
    """POST with a body in JSON. Raises AdminError."""
    return await _ask(pulsar, "POST", path, body)


async def delete(pulsar: Target, path: str) -> Any:
    """DELETE. Raises AdminError."""
    return await _ask(pulsar, "DELETE", path, None)


def topic_path(topic: str) -> str:
    """Where the admin interface keeps a topic, given by its full name."""
    return f"/admin/v2/{topic.replace('://', '/')}"


def of_topic(topic: str) -> str:
    """How paths below `TRANSACTIONS` name a topic, given by its full name: tenant, namespace, topic."""
    return topic.partition("://")[2]


async def topic_stats(pulsar: Target, topic: str) -> dict[str, Any]:
    """The stats of a topic that has no partitions. Raises AdminError."""
    found: dict[str, Any] = await get_json(pulsar, f"{topic_path(topic)}/stats")
    return found


async def buffer_stats(pulsar: Target, topic: str) -> dict[str, Any]:
    """The stats of a topic's transaction buffer. Raises AdminError."""
    found: dict[str, Any] = await get_json(pulsar, f"{TRANSACTIONS}/transactionBufferStats/{of_topic(topic)}")
    return found


async def eventually(ask: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    """The first answer of `ask` that `condition` holds for; the last one when none does within a while."""
    answer = await ask()
    for _ in range(int(PATIENCE / 0.1)):
        if condition(answer):
            break
        await asyncio.sleep(0.1)
        answer = await ask()
    return answer


async def _ask(pulsar: Target, method: str, path: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        pulsar.admin_url + path, data, {"Content-Type": "application/json", "Accept": "*/*"}, method=method
    )

    def answer() -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(error.code, error.read(1000).decode(errors="replace")) from None

    content = await asyncio.to_thread(answer)
    return json.loads(content) if content else None
