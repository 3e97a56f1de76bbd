"""Futures and results for threads of a program while the loop's thread, or another, works for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pulsar_txn.client._tracebacks import shortened
from pulsar_txn.client.errors import UsageError
from pulsar_txn.client.net.runtime import Condition, Future, Lock

T = TypeVar("T")


class ThreadResult(Generic[T]):
    """Answer that one thread waits for, settled once, on the loop: as much of a future as who settles it needs."""

    __slots__ = ("_error", "_gate", "_is_done", "_result")

    def __init__(self) -> None:
        self._gate = Lock()
        self._gate.acquire()
        self._is_done = False
        self._result: T
        self._error: BaseException | None = None

    def wait(self) -> T:
        """Wait, and return what it is settled with."""
        self._gate.acquire()
        if self._error is not None:
            raise shortened(self._error)
        return self._result

    def give_up(self) -> None:
        """Give it up, because nobody waits any more: nothing needs to be done for it, nor to settle it."""
        self._is_done = True

    def done(self) -> bool:
        """True if nobody needs to settle it any more."""
        return self._is_done

    def set_running_or_notify_cancel(self) -> bool:
        """True if somebody waits for it."""
        return not self._is_done

    def set_result(self, result: T) -> None:
        """Settle it."""
        self._result = result
        self._is_done = True
        self._gate.release()

    def set_exception(self, error: BaseException) -> None:
        """Settle it; `error` is raised where somebody waits."""
        self._error = error
        self._is_done = True
        self._gate.release()

    def exception(self) -> BaseException | None:
        """The error that it failed with."""
        return self._error


class ThreadFuture(Future[T]):
    """A future whose callbacks are not called by the thread that settles it, but handed to `hand_over(function, future)`.

    All of one client share a condition, because one for each costs more than everything else about a message.
    """

    def __init__(self, settled: Condition, hand_over: Callable[[Callable[[Any], object], Any], object]) -> None:
        # What Future.__init__ sets, except for a condition of its own.
        self._condition = settled
        self._state = "PENDING"
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._hand_over = hand_over
        self._behind: tuple[asyncio.AbstractEventLoop, asyncio.Future[T]] | None = None
        self._gates: tuple[Lock, ...] = ()

    def add_done_callback(self, function: Callable[[Future[T]], object]) -> None:
        """Have `function(future)` called once it is done."""
        super().add_done_callback(functools.partial(self._hand_over, function))

    def result(self, timeout: float | None = None) -> T:
        """As Future's."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future's."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Until it is done, or the time is over: at a lock of its own, since the condition wakes waiters for others."""
        gate = Lock()
        gate.acquire()
        with self._condition:
            if self.done():
                return
            self._gates += (gate,)
        gate.acquire(timeout=-1 if timeout is None else max(timeout, 0))

    def _invoke_callbacks(self) -> None:
        for gate in self._gates:
            gate.release()
        super()._invoke_callbacks()  # type: ignore[misc]  # Future's, called after each of its ends

    def when_cancelled(self, loop: asyncio.AbstractEventLoop, inner: asyncio.Future[T]) -> None:
        """For who settles it, on the loop: what is to be cancelled with it."""
        self._behind = (loop, inner)
        if self.cancelled():
            inner.cancel()

    def cancel(self) -> bool:
        """Give it up, unless it is done."""
        cancelled = super().cancel()
        if cancelled and self._behind is not None:
            loop, inner = self._behind
            loop.call_soon_threadsafe(inner.cancel)
        return cancelled


def copy_result(outer: Future[T], inner: asyncio.Future[T]) -> None:
    """Settle a future for threads as one of the loop was."""
    if inner.cancelled():
        outer.cancel()
        return
    if not outer.running() and not outer.set_running_or_notify_cancel():
        return
    error = inner.exception()
    if error is None:
        outer.set_result(inner.result())
    else:
        outer.set_exception(error)


def answer(future: Future[T], function: Callable[..., T], args: tuple[Any, ...], *, only: bool = False) -> None:
    """Settle the future with what the function returns or raises.

    What is not an Exception (KeyboardInterrupt, SystemExit) must not get to a loop: the future fails with a UsageError,
    and it is raised here as well, unless the future is the `only` one to hear of it.
    """
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001 - it goes to who waits
        future.set_exception(error)
    except BaseException as error:
        future.set_exception(UsageError(f"{type(error).__name__} in the program's own code"))
        if not only:
            raise
    else:
        future.set_result(result)
