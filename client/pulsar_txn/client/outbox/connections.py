"""Connections of the outbox's own, for checks and trims: one for each use, made by the program's `connect`.

A check must not share the program's connection: it writes a transaction of its own, and may wait there for the program's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.runtime import Future, WorkerThread
from pulsar_txn.client.net.tickets import answer
from pulsar_txn.client.outbox.door import Door, at_once, had
from pulsar_txn.client.outbox.doors import door_of

T = TypeVar("T")


class Connections:
    """Makes them, and closes them (or gives them back to their pool)."""

    def __init__(self, connect: Any, paramstyle: str | None) -> None:
        given, connect = (
            connect,
            connect if callable(connect) else getattr(connect, "connect", None),
        )  # of an engine of SQLAlchemy
        if not callable(connect):
            needed = "a function that returns a new database connection, or an engine of SQLAlchemy"
            kind = type(given).__name__  # not what was given: the address of a database has its password
            raise InvalidConfiguration(f"connect must be {needed}, not a value of type {kind}")
        self._connect: Callable[[], Any] = connect
        self._paramstyle = paramstyle
        self._thread: WorkerThread | None = None

    async def use(self, work: Callable[[Door], Awaitable[T]]) -> T:
        """What `work` returns, with a connection; in the thread that calls."""
        async with self._opened() as door:
            return await work(door)

    async def use_beside_loop(self, work: Callable[[Door], Awaitable[T]]) -> T:
        """The same for an event loop: with a blocking driver in a thread of its own, because a check may wait for a lock."""
        if self._thread is None:
            async with self._opened() as door:
                if not door.blocking:
                    return await work(door)
            self._thread = WorkerThread("pulsar-txn-outbox")
        reply: Future[T] = Future()
        self._thread.submit(functools.partial(answer, only=True), reply, lambda: at_once(self.use(work)), ())
        return await asyncio.wrap_future(reply)

    def close(self) -> None:
        """End the thread after what it was given."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Door]:
        made = self._connect()
        if not (hasattr(made, "execute") or hasattr(made, "cursor")):
            if hasattr(made, "__aenter__"):  # of an asynchronous pool
                async with made as connection:
                    yield door_of(connection, self._paramstyle)
                return
            if hasattr(made, "__enter__"):
                with made as connection:
                    yield door_of(connection, self._paramstyle)
                return
        connection = await had(made) if inspect.isawaitable(made) else made
        door = door_of(connection, self._paramstyle)
        try:
            yield door
        finally:
            await door.close()
