"""Work on several parts of a resource, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol


class Closable(Protocol):
    """A resource that the client closes when it is closed itself."""

    async def close(self) -> None:
        """Close; idempotent."""
        ...


async def run_all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all, and raise the first error once all are done."""
    if len(work) == 1:
        await work[0]
        return
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def close_all(parts: Iterable[Closable]) -> None:
    """Close all side by side; the first error, once all are done. If cancelled: each has begun, and is cancelled as well.

    `gather` would also cancel those that have not begun, which then never begin: nothing of them would be closed.
    """
    tasks = [asyncio.ensure_future(part.close()) for part in parts]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for task in tasks:
        task.result()
