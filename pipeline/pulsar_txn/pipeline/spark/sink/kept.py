"""The sinks that this process keeps between commits, because Spark makes a new writer for each.

Spark hands the commits of all queries of a session to a pool of processes, in any order. So the next commit of a query may
be done elsewhere, and what is kept here is out of date when one comes here again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from pulsar_txn.pipeline.spark.errors import SinkFenced, SinkStateLost
from pulsar_txn.pipeline.spark.sink.committer import SinkCommitter

logger = logging.getLogger(__name__)


class _Store(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=SinkCommitter)
S = TypeVar("S", bound=_Store)
T = TypeVar("T")

_OUT_OF_DATE: Final = (SinkFenced, SinkStateLost)


class KeptSinks(Generic[C, S]):
    """Committers with their stores, by process and key. Use it on the client's loop."""

    def __init__(self) -> None:
        self._sinks: dict[tuple[Any, ...], tuple[C, S]] = {}

    async def commit(self, *key: Any, make: Callable[[], Awaitable[tuple[C, S]]], work: Callable[[C, S], Awaitable[T]]) -> T:
        """Do `work` with the sink of this key. A kept one that is fenced or sees a gap is replaced by a new one, once.

        A sink is closed and forgotten when its commit fails.
        """
        mine = (os.getpid(), *key)
        kept = self._sinks.pop(mine, None)
        if kept is None:
            return await self._use(mine, await make(), work)
        try:
            return await self._use(mine, kept, work)
        except _OUT_OF_DATE as error:
            logger.info("this process reads the state of the sink %s again: %s", kept[0].sink_id, error)
        anew = await make()
        anew[0].replaces(kept[0])
        return await self._use(mine, anew, work)

    async def _use(self, mine: tuple[Any, ...], sink: tuple[C, S], work: Callable[[C, S], Awaitable[T]]) -> T:
        try:
            done = await work(*sink)
        except BaseException:
            await sink[1].close()
            raise
        self._sinks[mine] = sink
        return done

    async def close(self) -> None:
        """Close all."""
        while self._sinks:
            _, (_, store) = self._sinks.popitem()
            await store.close()
