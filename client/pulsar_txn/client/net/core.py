"""State that all resources of one client share: settings, runtime, connections, lookup, and the counters of ids."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, LocalProtocolError, WrongEventLoop
from pulsar_txn.client.net.failover import AutoClusterFailover, Failover
from pulsar_txn.client.net.lookup import Lookup
from pulsar_txn.client.net.memory_limit import MemoryLimit
from pulsar_txn.client.net.pauses import Backoff
from pulsar_txn.client.net.pool import ConnectionPool
from pulsar_txn.client.net.runtime import Runtime, thread_name
from pulsar_txn.client.net.service_url import parse_service_url
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.stock_defects import DefectWarnings
from pulsar_txn.client.net.tasks import Closable

T = TypeVar("T")


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


async def _nothing() -> None:
    pass


async def _directly(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


class Core:
    """The inside of a client. Producers, consumers and coordinators hold this, never the public object."""

    def __init__(self, service_url: str | AutoClusterFailover, settings: Settings, runtime: Runtime) -> None:
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
        self.lookup = Lookup(self.pool, settings, parse_service_url(self.service_url), self.next_request_id, watch)
        self.drained = False
        """True once all resources are closed with the client; until then they need their connections."""
        self.before_move: Callable[[str], object] = lambda _url: None
        """Called with the URL of another cluster that the client is about to move to."""
        self.before_close: Callable[[], Coroutine[Any, Any, None]] = _nothing
        """Awaited when the client closes, while its resources are there; must not take long."""
        self.memory = MemoryLimit(settings.memory_limit) if settings.memory_limit else None
        self.closed = False
        self.ask: Callable[..., Awaitable[Any]] = _directly
        """`await ask(function, *args)` for what is the program's own; the blocking client does it on a thread for that."""
        self.defect_warnings = DefectWarnings()
        self.new_transaction: Callable[[Any], Any] = _no_transactions
        """`new_transaction(options)` makes a transaction of this client; rooms above this one know the types."""
        self.name = "client"
        """Name in error messages."""
        self.shares_transactions = False
        """True if its transactions belong to a coordinator that other clients use too, and that outlives this one."""
        self.cluster = ""
        """The name of the cluster at a coordinator beside several; empty everywhere else."""
        self._resources: dict[int, Closable] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    def _watch(self, clusters: AutoClusterFailover) -> None:
        self.spawn(Failover(clusters, self.runtime, self.settings, self._move).run())

    def _move(self, url: str) -> None:
        self.before_move(url)
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

    async def close(self) -> None:
        """Close all resources, newest first, then the connections; idempotent. If cancelled, the closing goes on."""
        self.check_here()
        if self._closing is None:
            self.closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.before_close()
        while self._resources:  # what is being made meanwhile comes to it
            _, resource = self._resources.popitem()
            await resource.close()
        self.drained = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.pool.close()


def _no_transactions(_options: Any) -> Any:
    raise LocalProtocolError("this core has no transactions")
