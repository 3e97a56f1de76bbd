"""The thread that works for the blocking client: a loop of its own, and how other threads hand things over to it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from pulsar_txn.client._tracebacks import shortened
from pulsar_txn.client.errors import AlreadyClosed, ForkedClientError, PulsarError, UsageError
from pulsar_txn.client.net.runtime import Cancelled, Condition, Future, Lock, Thread, new_loop, thread_id
from pulsar_txn.client.net.thread_futures import ThreadFuture, ThreadResult, copy_result

T = TypeVar("T")
logger = logging.getLogger("pulsar_txn.client")
_Call: TypeAlias = (
    "tuple[ThreadFuture[Any] | ThreadResult[Any] | None, Callable[..., object], Callable[[Exception], object] | None]"
)

LOOK_SECONDS: Final = 0.001
"""Interval at which the loop thread looks for further calls, unless a caller waits for it."""

MAX_INBOX: Final = 1000
"""Calls that wait for the loop thread; more wait with their caller."""

UNWIND_SECONDS: Final = 0.5
"""Time for tasks that were cancelled at the end of a client."""

STOP_SECONDS: Final = 2.0
"""Time that the end of a client waits for its thread."""

CLOSED: Final = "the client was closed before it was done"


class LoopThread:
    """A private event loop in a daemon thread: where the blocking client's work goes on while its caller computes.

    Keep-alive, receipts and receiving need it; nothing of the program's runs there. Threads may share it. Loop and thread
    begin with the first use; from then on it belongs to that process: it is dead in a forked child, and says so.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: Thread
        self._thread_id: int | None = None
        self._starting = Lock()
        self._inbox: deque[_Call] = deque()
        self._inbox_lock = Lock()
        self._settled = Condition()
        self._in_hand = 0
        self._looks = False
        self._nobodys = contextvars.Context()  # of what is called for several threads
        self.stopped = False

    def _start(self) -> None:
        with self._starting:
            if self._pid is None and not self.stopped:
                self._loop = new_loop()
                self._thread = Thread(target=self._loop.run_forever, name="pulsar-txn-client", daemon=True)
                self._thread.start()
                self._thread_id = self._thread.ident
                atexit.register(self._at_exit)
                self._pid = os.getpid()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `await work()` on the loop and wait for it; its exception is raised here.

        When the wait is interrupted (KeyboardInterrupt) the work is cancelled, and the interruption is raised at once.
        Raises ForkedClientError in a forked child, AlreadyClosed after `stop`.
        """
        return self.wait(self.start(work))

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run `await work()` on the loop; does not wait. Raises as `run`."""
        self.check()
        started = self._started(work)
        try:
            future = asyncio.run_coroutine_threadsafe(started, self._loop)
        except RuntimeError:
            started.close()
            if not self.stopped:
                raise
            raise AlreadyClosed(CLOSED) from None
        if self.stopped:  # the loop may end before it looks
            self._thread.join(STOP_SECONDS)
            future.cancel()
            if inspect.getcoroutinestate(started) == inspect.CORO_CREATED:
                started.close()
        return future

    def wait(self, future: Future[T]) -> T:
        """Wait for what `start` returned, as `run` does."""
        try:
            return future.result()
        except Cancelled:
            if not self.stopped:
                raise
            raise AlreadyClosed(CLOSED) from None
        except PulsarError as error:
            raise shortened(error) from error.__cause__
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait, on the loop; as `run`."""

        async def called() -> T:
            return function()

        return self.run(called)

    def call_here_or_there(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait: on the loop, or here while it has not started. Raises as `run`."""
        with self._starting:
            if self._pid is None and not self.stopped:
                return function()
        return self.call(function)

    def submit(self, function: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Call a function that returns a future of the loop; a future for threads represents it."""
        outer = self.new_future()

        async def started() -> None:
            self.link(outer, function())

        self.run(started)
        return outer

    def ask(self, function: Callable[[ThreadResult[T]], object]) -> T:
        """Have `function(answer)` called on the loop, as `submit_soon` does, and wait until the answer is settled there.

        Half the way of `run`, for what does not wait by itself. What `function` raises is raised here. When the wait is
        interrupted before the call, it is not made. Raises as `run`.
        """
        self.check()
        answer: ThreadResult[T] = ThreadResult()
        try:
            self._inbox.append((answer, function, None))
            self._wake(self._empty_inbox)
            return answer.wait()
        except BaseException:
            answer.give_up()
            raise

    def submit_soon(
        self,
        function: Callable[[Future[T]], object],
        admits: Callable[[int], bool],
        *,
        on_error: Callable[[Exception], object] | None = None,
    ) -> Future[T] | None:
        """A future for threads; `function(future)` is called on the loop, before whatever is started later, and settles it.

        It cannot be cancelled any more then; what `function` raises goes to `on_error`, there, and to the future. None, and
        nothing was done, when `admits(calls)` says no; it is given how many calls wait for the loop.
        """
        self.check()
        inbox = self._inbox
        with self._inbox_lock:
            if len(inbox) >= MAX_INBOX or not admits(self.waiting):
                return None
            outer = self.new_future()
            inbox.append((outer, function, on_error))
        self._have_it_looked_at()
        return outer

    def do_soon(self, function: Callable[[], object]) -> bool:
        """Have it called on the loop, before whatever is started later; nobody is told how it ends. False: no room now.

        Raises as `run`.
        """
        self.check()
        if len(self._inbox) >= MAX_INBOX:
            return False
        self._inbox.append((None, function, None))
        self._have_it_looked_at()
        return True

    @property
    def waiting(self) -> int:
        """The number of calls that wait for the loop, the one that it is at included: its effects may not be seen yet."""
        return len(self._inbox) + self._in_hand

    def _have_it_looked_at(self) -> None:
        if self._looks and not self.stopped:
            return
        try:  # an interruption may come after each of these
            self._looks = True
            self._wake(self._look)
        except BaseException:
            self._looks = False
            raise

    def _wake(self, function: Callable[[], object]) -> None:
        """Have the loop call it, in nobody's context; fails what is in the inbox when that is over."""
        try:
            self._loop.call_soon_threadsafe(function, context=self._nobodys)
        except RuntimeError:
            if not self.stopped:
                raise
            self._fail_inbox()
            raise AlreadyClosed(CLOSED) from None
        if self.stopped:  # it may end before it looks
            self._fail_inbox()
            raise AlreadyClosed(CLOSED)

    def _look(self) -> None:
        """Again in a moment while something comes: a wake-up for each would cost more than all the rest."""
        if self._empty_inbox():
            self._loop.call_later(LOOK_SECONDS, self._look)
        else:
            self._looks = False
            self._empty_inbox()  # what came before it was said that nobody looks

    def _empty_inbox(self) -> bool:
        found = False
        self._in_hand = 1  # before a call leaves the inbox: others would take it for done
        while (call := self._next_call()) is not None:
            found = True
            outer, function, on_error = call
            if outer is None:
                try:
                    function()
                except Exception:
                    logger.exception("%r failed on the client's thread", function)
            elif outer.set_running_or_notify_cancel():
                try:
                    function(outer)
                except Exception as error:  # noqa: BLE001 - it goes to who holds the future
                    if on_error is not None:
                        on_error(error)
                    if not outer.done():
                        outer.set_exception(error)
        self._in_hand = 0
        return found

    def _next_call(self) -> _Call | None:
        try:
            return self._inbox.popleft()
        except IndexError:  # another thread may fail it at the same time
            return None

    def link(self, outer: Future[T], inner: asyncio.Future[T]) -> None:
        """On the loop: have a future for threads settled as `inner` is, and `inner` cancelled with it."""
        inner.add_done_callback(functools.partial(copy_result, outer))
        if isinstance(outer, ThreadFuture):
            outer.when_cancelled(self._loop, inner)

    async def _started(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._nobodys.run(self._empty_inbox)  # not in the context of who called this
        return await work()

    def new_future(self) -> ThreadFuture[Any]:
        """Make what `submit` returns."""
        return ThreadFuture(self._settled, lambda function, future: function(future))

    def post(self, function: Callable[[], object]) -> None:
        """Have a function called on the loop, soon; does not wait. Raises as `run`."""
        self.check()
        self._wake(function)

    @property
    def started(self) -> bool:
        """True if it was used."""
        return self._pid is not None

    @property
    def is_ours(self) -> bool:
        """True if no other process has used it."""
        return self._pid is None or os.getpid() == self._pid

    def stop(self) -> None:
        """Cancel what still runs, end the loop and its thread. Idempotent."""
        if self.stopped or not self.is_ours:
            return
        with self._starting:
            self.stopped = True
        if self.started:
            atexit.unregister(self._at_exit)
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join(STOP_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()
        self._fail_inbox()

    def _fail_inbox(self) -> None:
        """Fail what is in it, because nobody is going to call it."""
        while (call := self._next_call()) is not None:
            outer = call[0]
            if outer is not None and outer.set_running_or_notify_cancel():
                outer.set_exception(AlreadyClosed(CLOSED))

    async def _end(self) -> None:
        try:
            await self.last()
        except Exception:
            logger.exception("closing the client failed")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=UNWIND_SECONDS)
        for task in left:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("cancelled at the end of its client, a task failed: %r", error)
        self._loop.stop()

    async def last(self) -> None:
        """On the loop, before it ends: settle what somebody may wait for. Must not take long."""

    def leave(self) -> None:
        """At the end of the program, before `stop`: what is to be done when nobody has stopped it. Must not take long."""

    def _at_exit(self) -> None:
        if self.is_ours and not self.stopped:
            try:
                self.leave()
            finally:
                self.stop()

    def check(self) -> None:
        """Raises what `run` raises before it does anything; starts the thread."""
        if os.getpid() != self._pid or self.stopped or thread_id() == self._thread_id:
            self._check_each()

    def _check_each(self) -> None:
        if not self.is_ours:
            raise ForkedClientError("this client was used before a fork, and its connections belong to the parent process")
        if self._pid is None:
            self._start()
        if self.stopped:
            raise AlreadyClosed("the client is closed")
        if thread_id() == self._thread_id:
            raise UsageError("the sync client was called on its own thread; it would hang")
