"""Work of the event loop that has to be done by the thread that waits for it.

Spark keeps a job's properties (its group, its description, the query) with the thread that starts it. So a job is started
by the thread in which the program called us, while the loop in the background waits for it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from pulsar_txn.pipeline.spark.background import Background

T = TypeVar("T")

Hand: TypeAlias = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""`await hand(function)`, on the loop: call it in the waiting thread; its result, or its exception."""

_OVER: Final = None


def run_with_hands(background: Background, work: Callable[[Hand], Coroutine[Any, Any, T]]) -> T:
    """Run `work(hand)` on the loop, and meanwhile call in this thread what it hands over."""
    handed: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def hand(function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, done, None, error)
                if not isinstance(error, Exception):
                    raise  # an interrupt belongs to this thread
            else:
                loop.call_soon_threadsafe(_settle, done, result, None)

        handed.put(call)
        return await done

    future = background.start(work(hand))
    future.add_done_callback(lambda _done: handed.put(_OVER))
    try:
        while (call := handed.get()) is not None:
            call()
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error if isinstance(error, Exception) else RuntimeError(f"interrupted: {error!r}"))
