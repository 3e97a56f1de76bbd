"""Work that a blocking client repeats or drives for the program: run_transaction and the pipeline."""

from __future__ import annotations

import asyncio
import functools
import queue
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from pulsar_txn.client._callables import check_takes_one, not_awaitable
from pulsar_txn.client._validation import validate_methods, validate_whole
from pulsar_txn.client.loop.options import PipelineResult
from pulsar_txn.client.net.runtime import Future, WorkerThread
from pulsar_txn.client.net.thread_futures import answer
from pulsar_txn.client.sync.blocking import SyncLoop
from pulsar_txn.client.txn.transaction import unit_of, within
from pulsar_txn.client.txn.transactions import Attempts

T = TypeVar("T")

STOP_POLL_SECONDS: Final = 0.05
"""Interval at which a pipeline looks for a request to stop."""


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


class Stop(Protocol):
    """Stop of a pipeline: an Event of `threading` or `multiprocessing`, or anything else that can be asked."""

    def is_set(self) -> bool:
        """True if it is to end."""
        ...


def run_transaction(
    loop: SyncLoop, block_of: Callable[[], AbstractContextManager[Any]], work: Callable[[Any], T], attempts: Attempts
) -> T:
    """Run `work(txn)` in the caller's thread, in a new block for each attempt."""
    check_takes_one(work, "work")
    while True:
        result: Any = None
        block = block_of()
        try:
            with block as txn:
                result = not_awaitable(work(txn), work)
        except Exception as error:  # noqa: BLE001 - judged by `Attempts`, which raises what is final
            if not loop.run(functools.partial(attempts.judge, error)):
                return result  # type: ignore[no-any-return]  # what `work` returned
            loop.run(functools.partial(asyncio.sleep, attempts.pause()))
        else:
            return result  # type: ignore[no-any-return]  # what `work` returned


def run_pipeline(
    loop: SyncLoop,
    run: Callable[..., Any],
    handler: Callable[[Any], object],
    batch_of: Callable[[Any], Any],
    stop: Stop | None,
    concurrency: int,
    *,
    ambient: bool,
) -> PipelineResult:
    """Run the asyncio pipeline `run(handle, stop=…)` with a plain function as its handler.

    The thread that calls makes the handler's calls, and with `concurrency` as many others less one; `batch_of` makes the
    blocking form of a batch.
    """
    check_takes_one(handler, "the handler")
    if stop is not None:
        validate_methods("stop", stop, ["is_set"], "an Event")
    handler_calls = HandlerCalls(concurrency)

    async def handle(batch: Any) -> None:
        handled = functools.partial(within, unit_of(batch.txn), ambient, handler)
        not_awaitable(await handler_calls.call(handled, batch_of(batch)), handler)

    async def work() -> PipelineResult:
        stopping = asyncio.Event()
        watch = asyncio.create_task(_set_with(stopping, stop))
        try:
            result: PipelineResult = await run(handle, stop=stopping)
            return result
        finally:
            watch.cancel()
            handler_calls.end()

    running = loop.start(work)
    try:
        handler_calls.serve()
    except BaseException:
        running.cancel()
        raise
    return loop.wait(running)


async def _set_with(event: asyncio.Event, stop: Stop | None) -> None:
    while stop is not None:
        if stop.is_set():
            event.set()
            return
        await asyncio.sleep(STOP_POLL_SECONDS)
