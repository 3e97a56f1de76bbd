"""What this process keeps of its sinks between commits, because Spark makes a new writer for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar


class _Store(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C")
S = TypeVar("S", bound=_Store)


class KeptSinks(Generic[C, S]):
    """Committers with their stores, by process and key. Use it on the client's loop."""

    def __init__(self) -> None:
        self._sinks: dict[tuple[Any, ...], tuple[C, S]] = {}

    @asynccontextmanager
    async def use(self, *key: Any, make: Callable[[], Awaitable[tuple[C, S]]]) -> AsyncIterator[tuple[C, S]]:
        """The sink with this key, for one commit. It is closed and forgotten when the commit fails."""
        mine = (os.getpid(), *key)
        found = self._sinks.pop(mine, None) or await make()
        try:
            yield found
        except BaseException:
            await found[1].close()
            raise
        self._sinks[mine] = found

    async def close(self) -> None:
        """Close all."""
        while self._sinks:
            _, (_, store) = self._sinks.popitem()
            await store.close()
