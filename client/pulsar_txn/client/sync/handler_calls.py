"""Calls of the program's handlers of a pipeline: in the thread that asked for it, and others beside it."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any, TypeVar

from pulsar_txn.client._validation import validate_whole
from pulsar_txn.client.net.runtime import Future, WorkerThread
from pulsar_txn.client.net.thread_futures import answer

T = TypeVar("T")


class HandlerCalls:
    """Calls that a loop wants made, and threads that make them: the one that serves, and `threads - 1` beside it."""

    def __init__(self, threads: int) -> None:
        validate_whole("concurrency", threads)
        self._threads = max(1, threads)
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._raised: BaseException | None = None

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """On the loop: what it returns or raises, called by one of the threads."""
        answer: Future[T] = Future()
        self._calls.put((answer, function, args))
        return await asyncio.wrap_future(answer)

    def serve(self) -> None:
        """Make the calls, here and in the threads beside, until `end`.

        What is not an Exception (SystemExit, KeyboardInterrupt) ends it and is raised here, whichever thread it came up in.
        """
        for number in range(1, self._threads):
            thread = WorkerThread(f"pulsar-txn-handler-{number}")
            thread.submit(self._serve_in_thread)
            thread.stop()
        while (call := self._calls.get()) is not None:
            try:
                answer(*call)
            except BaseException:
                self.end()
                raise
        if self._raised is not None:
            raise self._raised

    def end(self) -> None:
        """Have the threads stop after the call that they are at. Idempotent."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _serve_in_thread(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                answer(*call)
            except BaseException as error:  # noqa: BLE001 - the thread that serves raises it
                self._raised = error
                self.end()
                return
