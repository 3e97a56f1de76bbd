"""The client inside Spark's Python workers: one event loop in a thread per process, and its clients.

Spark calls data sources from plain threads of processes that it forks, keeps and re-uses. A loop that runs between
the calls keeps connections alive. Everything is keyed by the process id: what a parent made is useless in its fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.connecting import connection_of, make_client
from pulsar_txn.pipeline.spark.options import Options

T = TypeVar("T")

_by_pid: dict[int, Background] = {}
_lock = threading.Lock()


class Background:
    """The loop and the clients of this process; get it from `background()`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: dict[tuple[Any, ...], AsyncClient] = {}
        threading.Thread(target=self._loop.run_forever, name="pulsar-txn", daemon=True).start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result or error. When this is interrupted, it is cancelled."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def client(self, options: Options, transactional_id: str | None = None) -> AsyncClient:
        """The client of a cluster, made at its first use; another one for each transactional id. Call it on the loop."""
        key = (*connection_of(options), transactional_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = make_client(options, transactional_id)
        return client

    def client_of(self, options: Options) -> AsyncClient:
        """The same from another thread, which waits for the loop only when the client must be made."""
        found = self._clients.get((*connection_of(options), None))
        return self.run(self.client(options)) if found is None else found

    async def close_client(self, options: Options, transactional_id: str) -> None:
        """Close the client of a transactional id that nobody uses any more. Call it on the loop."""
        client = self._clients.pop((*connection_of(options), transactional_id), None)
        if client is not None:
            await client.close()

    async def close_clients(self) -> None:
        """Close the clients, which else last as long as the process; the next use makes new ones. Call it on the loop."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def background() -> Background:
    """The one of this process."""
    with _lock:
        found = _by_pid.get(os.getpid())
        if found is None:
            _by_pid.clear()
            found = _by_pid[os.getpid()] = Background()
        return found
