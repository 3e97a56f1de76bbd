"""Care that is taken again and again: keep-alive, looks at slow clients, trimming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .runtime import Runtime


class Repeating:
    """The repeated tasks of one server, until `close`. A round begins so many seconds after the one before it has ended."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def every(self, seconds: float, care: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `care` in `seconds`, and again in `seconds` after each of its ends. It handles its own errors."""
        self._runtime.call_later(seconds, self._begin, seconds, care)

    async def close(self) -> None:
        """Cancel what runs, and begin nothing more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, seconds: float, care: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._closed:
            task = asyncio.get_running_loop().create_task(care())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self.every(seconds, care))
