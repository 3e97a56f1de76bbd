"""State that all resources of one client share: settings, runtime, connections, lookup, and the counters of ids."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import logging
import re
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, WrongEventLoop
from pulsar_txn.client.net.failover import AutoClusterFailover, Failover
from pulsar_txn.client.net.lookup import Lookup
from pulsar_txn.client.net.memory_limit import MemoryLimit
from pulsar_txn.client.net.pauses import Backoff
from pulsar_txn.client.net.pool import ConnectionPool
from pulsar_txn.client.net.runtime import Runtime, thread_name
from pulsar_txn.client.net.service_url import parse_service_url
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.tasks import Closable


class LoopGuard:
    """The event loop of a client, and a check that a call is made there: 150 ns on Python 3.11."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ""

    def check(self) -> None:
        """Raise WrongEventLoop unless the running loop is the client's; the first one that is seen becomes the client's."""
        here = _get_running_loop()
        if here is not self._loop:
            self._look(here)

    def _look(self, here: asyncio.AbstractEventLoop | None) -> None:
        loop, thread = self._loop, thread_name()
        if loop is None:
            self._loop, self._thread = here, thread
        elif loop.is_closed():
            raise WrongEventLoop("this client was used in an event loop that has ended, an earlier asyncio.run() for instance")
        elif thread != self._thread:
            raise WrongEventLoop(
                f"this client lives on the event loop of the thread {self._thread!r}, and was called from {thread!r}",
                hint="use the blocking Client, which threads share; or hand the call over with run_coroutine_threadsafe()",
            )
        else:
            raise WrongEventLoop("this client lives on another event loop, which does not run at this moment")


logger = logging.getLogger("pulsar_txn.client.consumer")

_STOCK_VERSION: Final = re.compile(r"Pulsar Server[- ]?(\d+)\.(\d+)\.(\d+)")
_SEEN: Final = (((4, 0, 0), (4, 0, 8)), ((4, 1, 0), (4, 2, 4)))
"""First and last version, each included, of the releases that have these defects."""


def is_defective(server_version: str) -> bool:
    """True if a server that calls itself this is known to have them."""
    match = _STOCK_VERSION.match(server_version)
    if match is None:
        return False
    version = (int(match[1]), int(match[2]), int(match[3]))
    return any(first <= version <= last for first, last in _SEEN)


class DefectWarnings:
    """Says each once for a client."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def _first(self, what: str, server_version: str) -> bool:
        if what in self._said or not is_defective(server_version):
            return False
        self._said.add(what)
        return True

    def on_abort(self, server_version: str, topic: str, subscription: str) -> None:
        """A transaction that had acknowledged messages of a Shared or Key_Shared subscription one by one was aborted."""
        if not self._first("deadlock", server_version):
            return
        logger.warning(
            "%s can deadlock when a transaction with acknowledgements on a Shared or Key_Shared subscription is aborted and "
            "the topic was written by transactions (subscription %r of %s): use Exclusive or Failover for such inputs; see "
            "docs/stock-pulsar.md",
            server_version,
            subscription,
            topic,
        )

    def on_cumulative_in_batch(self, server_version: str, topic: str, subscription: str) -> None:
        """A transaction is about to acknowledge cumulatively up to a message that is not the last one of its batch."""
        if not self._first("cumulative", server_version):
            return
        logger.warning(
            "%s loses the rest of a batch when a cumulative acknowledgement inside of it was committed and the topic is loaded "
            "again (subscription %r of %s): acknowledge a list, or up to the last message of a batch; see docs/stock-pulsar.md",
            server_version,
            subscription,
            topic,
        )


class Core:
    """The inside of a client. Producers, consumers and coordinators hold this, never the public object.

    `name` is for error messages. `cluster` is the name of the cluster at a coordinator beside several; empty everywhere else.
    `before_move` is called with the URL of another cluster that the client is about to move to.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover,
        settings: Settings,
        runtime: Runtime,
        *,
        name: str = "client",
        cluster: str = "",
        before_move: Callable[[str], object] | None = None,
    ) -> None:
        self.settings = settings
        self.check_here = LoopGuard().check
        """Raises WrongEventLoop outside of the event loop that the client lives on."""
        self.runtime = runtime
        self._request_ids = itertools.count()
        self._resource_ids = itertools.count()
        self.pool = ConnectionPool(runtime, settings)
        self.service_url = service_url.primary if isinstance(service_url, AutoClusterFailover) else service_url
        self.may_move = isinstance(service_url, AutoClusterFailover)
        """True if another cluster may take over."""
        watch = functools.partial(self._watch, service_url) if isinstance(service_url, AutoClusterFailover) else None
        self.lookup = Lookup(self.pool, settings, parse_service_url(self.service_url), self._request_ids, watch)
        self.drained = False
        """True once all resources are closed with the client; until then they need their connections."""
        self._before_move = before_move
        self.memory = MemoryLimit(settings.memory_limit) if settings.memory_limit else None
        self.closed = False
        self.defect_warnings = DefectWarnings()
        self.name = name
        self.cluster = cluster
        self._resources: dict[int, Closable] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def _watch(self, clusters: AutoClusterFailover) -> None:
        self.spawn(Failover(clusters, self.runtime, self.settings, self._move).run())

    def _move(self, url: str) -> None:
        if self._before_move is not None:
            self._before_move(url)
        self.service_url = url
        self.lookup.move(parse_service_url(url))
        self.pool.start_over(ConnectionLost(f"the client moves to {url}"))

    def next_request_id(self) -> int:
        """A request id, unique in this client."""
        return next(self._request_ids)

    def next_resource_id(self) -> int:
        """A producer or consumer id, unique in this client."""
        return next(self._resource_ids)

    def target(self, topic: str) -> str:
        """Name a topic partition as transactions do: topics of two clusters may have the same name."""
        return f"{self.cluster}|{topic}" if self.cluster else topic

    def backoff(self) -> Backoff:
        """A fresh backoff with the client's bounds."""
        return Backoff(self.runtime, self.settings.initial_backoff, self.settings.max_backoff)

    async def rest(self, seconds: float) -> None:
        """A pause before another attempt: so long, or until the client has got a new connection. Safe to cancel."""
        if await self.pool.signs_of_life.wait(seconds):
            await asyncio.sleep(self.backoff().spread())

    def check_open(self) -> None:
        """AlreadyClosed when the client is closed, WrongEventLoop in another loop than its own."""
        if self.closed:
            raise AlreadyClosed(f"the {self.name} is closed")
        self.check_here()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine that handles its own errors; it is cancelled when the client closes.

        It runs in a context of its own: what is around the code that started it, as an ambient transaction, is not its.
        """
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def register(self, resource_id: int, resource: Closable) -> None:
        """Have the resource closed with the client; at once when the client is closed already."""
        self._resources[resource_id] = resource
        if self.drained:
            self.spawn(resource.close())

    def resources(self) -> list[Closable]:
        """The resources to be closed with the client."""
        return list(self._resources.values())

    def unregister(self, resource_id: int) -> None:
        """The resource was closed by itself."""
        self._resources.pop(resource_id, None)

    def shut(self) -> None:
        """Refuse what is begun from now on."""
        self.closed = True

    async def close(self) -> None:
        """Close all resources, newest first, then the connections."""
        self.closed = True
        while self._resources:  # what is being made meanwhile comes to it
            _, resource = self._resources.popitem()
            await resource.close()
        self.drained = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.pool.close()
