"""The only place of the client that touches clocks, randomness and sockets.

Everything else gets a `Runtime`. Timers are those of the running event loop (`call_later`, `asyncio.timeout`): a loop
with virtual time moves them together with `monotonic`. A runtime that connects in-memory pipes and counts its own
time makes the whole client deterministic.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import functools
import importlib
import json
import logging
import os
import queue
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pulsar_txn.client._memory import keep_freed_blocks
from pulsar_txn.client.errors import AlreadyClosed, ForkedClientError, InvalidConfiguration, UsageError

P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")
logger = logging.getLogger("pulsar_txn.client")
_Call: TypeAlias = "tuple[Ticket[Any] | Answer[Any] | None, Callable[..., object], Callable[[Exception], object] | None]"
Guard = threading.RLock
"""What the loop's thread and those of a program take in turn: `with guard:`."""
Future = concurrent.futures.Future
"""What the sync client's `send_nowait` returns: a future for threads."""


class Runtime(Protocol):
    """What the client asks of the world."""

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, ssl_context: ssl.SSLContext | None, server_hostname: str | None
    ) -> P:
        """Open a byte stream and attach `factory()` to it; OSError (also ssl.SSLError) when that fails. Safe to cancel."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; the clock of `call_later`."""
        ...

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """Run `callback` on the loop in `delay` seconds."""
        ...


class AsyncioRuntime:
    """The real world: TCP and TLS by the running asyncio (or uvloop) loop, the system's clocks and random source.

    One per client: it keeps the clock of the loop in which it was first asked for the time.
    """

    def __init__(self) -> None:
        self._clock: Callable[[], float] | None = None
        keep_freed_blocks()

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, ssl_context: ssl.SSLContext | None, server_hostname: str | None
    ) -> P:
        """Open a TCP connection, with TLS when a context is given."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(
            factory, host, port, ssl=ssl_context, server_hostname=server_hostname if ssl_context else None
        )
        return protocol

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """The loop's own clock, so that it agrees with its timers."""
        clock = self._clock
        if clock is None:
            clock = self._clock = asyncio.get_running_loop().time
        return clock()

    def random(self) -> float:
        """A float in [0, 1) from the process-wide source."""
        return random.random()  # noqa: S311 - jitter of retries and a routing start, nothing secret

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """A timer of the running loop; of less than a millisecond, uvloop's handle is no timer and has no `when()`."""
        return asyncio.get_running_loop().call_later(delay, callback, *args)


def monotonic_seconds() -> float:
    """Seconds on a clock that never goes back, for what belongs to no client: a token's life."""
    return time.monotonic()


def secret_bytes(count: int) -> bytes:
    """Random bytes that are fit for keys and nonces."""
    return os.urandom(count)


class JsonHttp:
    """Small HTTP requests with JSON answers, by aiohttp; InvalidConfiguration where that is not installed."""

    def __init__(self, *, timeout: float, tls_context: ssl.SSLContext | None = None) -> None:
        try:
            self._aiohttp = importlib.import_module("aiohttp")
        except ImportError as error:
            raise InvalidConfiguration("aiohttp is needed", hint="pip install 'pulsar-txn[oauth2]'") from error
        self._timeout = timeout
        self._tls: ssl.SSLContext | bool = tls_context or True

    async def request(self, method: str, url: str, form: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and parsed body (None when it is not JSON); redirects are not followed, proxies of the environment are used.

        Raises OSError (TimeoutError within that), ValueError for a bad URL.
        """
        aiohttp = self._aiohttp
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout), trust_env=True) as session,
                session.request(method, url, data=form, ssl=self._tls, allow_redirects=False) as answer,
            ):
                body = await answer.read()
                status: int = answer.status
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error
        try:
            return status, json.loads(body)
        except ValueError:
            return status, None


class LoopThread:
    """A private event loop in a daemon thread: where the sync client's work goes on while its caller computes.

    Keep-alive, receipts and receiving need it; nothing of the program's runs there. Threads may share it. Loop and thread
    begin with the first use; from then on it belongs to that process: it is dead in a forked child, and says so.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._thread_id: int | None = None
        self._starting = threading.Lock()
        self._inbox: deque[_Call] = deque()
        self._inbox_lock = threading.Lock()
        self._settled = threading.Condition()
        self._looks = False
        self._nobodys = contextvars.Context()  # of what is called for several threads
        self.stopped = False

    def _start(self) -> None:
        with self._starting:
            if self._pid is None and not self.stopped:
                self._loop = _new_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="pulsar-txn-client", daemon=True)
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
        return asyncio.run_coroutine_threadsafe(self._started(work), self._loop)

    def wait(self, future: Future[T]) -> T:
        """Wait for what `start` returned, as `run` does."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if not self.stopped:
                raise
            raise AlreadyClosed("the client was closed before it was done") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait, on the loop; as `run`."""

        async def called() -> T:
            return function()

        return self.run(called)

    def submit(self, function: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Call a function that returns a future of the loop; a future for threads stands in for it."""
        outer = self.new_future()

        async def started() -> None:
            self.link(outer, function())

        self.run(started)
        return outer

    def ask(self, function: Callable[[Answer[T]], object]) -> T:
        """Have `function(answer)` called on the loop, as `submit_soon` does, and wait until the answer is settled there.

        Half the way of `run`, for what does not wait by itself. What `function` raises is raised here. When the wait is
        interrupted before the call, it is not made. Raises as `run`.
        """
        self.check()
        answer: Answer[T] = Answer()
        self._inbox.append((answer, function, None))
        try:
            self._loop.call_soon_threadsafe(self._empty_inbox, context=self._nobodys)
        except RuntimeError:  # it was closed meanwhile
            self._fail_inbox()
        if self.stopped:
            self._fail_inbox()
        return answer.wait()

    def submit_soon(
        self,
        function: Callable[[Future[T]], object],
        admits: Callable[[int], bool],
        *,
        on_error: Callable[[Exception], object] | None = None,
    ) -> Future[T] | None:
        """A future for threads; `function(future)` is called on the loop, before whatever is started later, and settles it.

        It cannot be cancelled any more then; what `function` raises goes to `on_error`, there, and to the future. None, and
        nothing was done, when `admits(calls)` says no; it is given how many calls wait for the loop. `at_once`: somebody is
        going to wait for it.
        """
        self.check()
        inbox = self._inbox
        with self._inbox_lock:
            if len(inbox) >= MAX_INBOX or not admits(len(inbox)):
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

    def _have_it_looked_at(self) -> None:
        if not self._looks:
            self._looks = True
            self._loop.call_soon_threadsafe(self._look, context=self._nobodys)

    def _look(self) -> None:
        """Again in a moment while something comes: a wake-up for each would cost more than all the rest."""
        if self._empty_inbox():
            self._loop.call_later(LOOK_SECONDS, self._look)
        else:
            self._looks = False
            self._empty_inbox()  # what came before it was said that nobody looks

    def _empty_inbox(self) -> bool:
        inbox = self._inbox
        if not inbox:
            return False
        while inbox:
            outer, function, on_error = inbox.popleft()
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
                    outer.set_exception(error)
        return True

    def link(self, outer: Future[T], inner: asyncio.Future[T]) -> None:
        """On the loop: have a future for threads settled as `inner` is, and `inner` cancelled with it."""
        inner.add_done_callback(functools.partial(_hand_on, outer))
        if isinstance(outer, Ticket):
            outer.when_cancelled(self._loop, inner)

    async def _started(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._empty_inbox()
        return await work()

    def new_future(self) -> Ticket[Any]:
        """What `submit` returns."""
        return Ticket(self._settled, lambda function, future: function(future))

    def post(self, function: Callable[[], object]) -> None:
        """Have a function called on the loop, soon; does not wait. Raises as `run`."""
        self.check()
        self._loop.call_soon_threadsafe(function, context=self._nobodys)

    @property
    def started(self) -> bool:
        """Whether it was used."""
        return self._pid is not None

    @property
    def is_ours(self) -> bool:
        """Whether no other process has used it."""
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
        """Nobody is going to call what is in it."""
        while self._inbox:
            outer = self._inbox.popleft()[0]
            if outer is not None:
                outer.set_exception(AlreadyClosed("the client was closed before it was done"))

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=UNWIND_SECONDS)
        for task in left:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("cancelled at the end of its client, a task failed: %r", error)
        self._loop.stop()

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
        if os.getpid() != self._pid or self.stopped or threading.get_ident() == self._thread_id:
            self._check_each()

    def _check_each(self) -> None:
        if not self.is_ours:
            raise ForkedClientError("this client was used before a fork, and its connections belong to the parent process")
        if self._pid is None:
            self._start()
        if self.stopped:
            raise AlreadyClosed("the client is closed")
        if threading.get_ident() == self._thread_id:
            raise UsageError("the sync client was called on its own thread; it would hang")


def _new_loop() -> asyncio.AbstractEventLoop:
    """Of uvloop where there is one: threads hand things over to it, and it to them, at two thirds of the cost."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    return loop


class Answer(Generic[T]):
    """What one thread waits for, settled once, on the loop: as much of a future as who settles it needs."""

    __slots__ = ("_error", "_gate", "_is_done", "_result")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_done = False
        self._result: T
        self._error: BaseException | None = None

    def wait(self) -> T:
        """What it was settled with; when this is interrupted it is settled for who comes later."""
        try:
            self._gate.acquire()
        except BaseException:
            self._is_done = True
            raise
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether nobody needs to settle it any more."""
        return self._is_done

    def set_running_or_notify_cancel(self) -> bool:
        """Whether somebody waits for it."""
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
        """What it failed with."""
        return self._error


class Ticket(Future[T]):
    """A future whose callbacks are not called by the thread that settles it, but handed to `hand_over(function, future)`.

    All of one client share a condition, because one for each costs more than everything else about a message.
    """

    def __init__(self, settled: threading.Condition, hand_over: Callable[[Callable[[Any], object], Any], object]) -> None:
        # What Future.__init__ sets, but for a condition of its own.
        self._condition = settled
        self._state = "PENDING"
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._hand_over = hand_over
        self._behind: tuple[asyncio.AbstractEventLoop, asyncio.Future[T]] | None = None
        self._gates: tuple[threading.Lock, ...] = ()

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
        """Until it is done, or the time is over: at a lock of its own, since the condition wakes whoever waits for others."""
        gate = threading.Lock()
        gate.acquire()
        with self._condition:
            if self.done():
                return
            self._gates += (gate,)
        gate.acquire(timeout=-1 if timeout is None else max(timeout, 0))

    def _invoke_callbacks(self) -> None:
        for gate in self._gates:
            gate.release()
        super()._invoke_callbacks()  # type: ignore[misc]  # Future's, called behind each of its ends

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


def _hand_on(outer: Future[T], inner: asyncio.Future[T]) -> None:
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


class WorkerThread:
    """A daemon thread that calls what it is given, in order: a program's callbacks, which must not run on the IO thread.

    What a call raises is logged and does no harm. The thread starts with the first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Have it called. From any thread."""
        if self._thread is None:
            self._start()
        self._calls.put((function, args))

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._calls.qsize()

    def drain(self, timeout: float | None = None) -> None:
        """Wait until everything submitted before has been called, or for `timeout` s; at once on the thread itself."""
        if self._thread is not None and self._thread is not threading.current_thread():
            done = threading.Event()
            self.submit(done.set)
            done.wait(timeout)

    def stop(self) -> None:
        """End behind what was submitted before; does not wait."""
        self._calls.put(None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call[0](*call[1])
            except Exception:
                logger.exception("a callback of the program failed")


def answer(future: Future[T], function: Callable[..., T], args: tuple[Any, ...], *, only: bool = False) -> None:
    """Settle the future with what the function returns or raises.

    What is not an Exception (KeyboardInterrupt, SystemExit) must not get to a loop: the future fails with a UsageError,
    and it is raised here, too, unless the future is the `only` one to hear of it.
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


class Gate:
    """Open or closed; threads wait at it while it is closed: `open()`, `close()`, `wait()`."""

    def __init__(self) -> None:
        event = threading.Event()
        event.set()
        self.open, self.close, self.wait = event.set, event.clear, event.wait


class Slots:
    """So many threads, or things in flight, at once: `take()` waits for a free one, `give_back()` is for any thread."""

    def __init__(self, count: int) -> None:
        semaphore = threading.Semaphore(count)
        self.take, self.give_back = semaphore.acquire, semaphore.release


LOOK_SECONDS = 0.001
"""How soon the loop thread looks for further calls, unless somebody waits for it."""

MAX_INBOX = 1000
"""Calls that wait for the loop thread; more wait with their caller."""

UNWIND_SECONDS = 0.5
"""How long tasks that were cancelled at the end of a client are waited for."""

STOP_SECONDS = 2.0
"""How long the end of a client waits for its thread."""
