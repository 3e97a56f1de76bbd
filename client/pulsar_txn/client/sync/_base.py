"""What the generated twins stand on: an asyncio object, and the loop thread that it lives on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from pulsar_txn.client import client as asyncio_client
from pulsar_txn.client._transactional import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, Attempts, Pauses
from pulsar_txn.client.errors import CommitOutcomeUnknown
from pulsar_txn.client.runtime import LoopThread

if TYPE_CHECKING:
    from pulsar_txn.client.sync._twins import Client, Transaction

logger = logging.getLogger("pulsar_txn.client.sync")

I = TypeVar("I")  # noqa: E741 - the inner class
M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")


class SyncLoop(LoopThread):
    """The loop thread of a sync client: errors that offer to ask again do so without await."""

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `LoopThread.run`."""
        try:
            return super().run(work)
        except CommitOutcomeUnknown as error:
            error.sync_resolver = functools.partial(self.run, error.resolver)
            raise


class Twin(Generic[I]):
    """A sync object over an asyncio one. Made by other twins, not by programs."""

    def __init__(self, loop: SyncLoop, inner_object: I) -> None:
        self._loop = loop
        self._inner = inner_object

    def __repr__(self) -> str:
        return repr(self._inner)


class GenericTwin(Twin[I], Generic[I, T]):
    """A twin of a class with a value type."""

    def _next(self, work: Callable[[], Coroutine[Any, Any, M]]) -> M:
        try:
            return self._loop.run(work)
        except StopAsyncIteration:
            raise StopIteration from None


class ClientBase(Twin[asyncio_client.Client]):
    """The parts of the sync client that are written by hand."""

    def __init__(self, service_url: str, **options: Any) -> None:
        """Arguments as the asyncio client's. Starts a thread; raises InvalidConfiguration."""
        loop = SyncLoop()
        try:
            inner_client = loop.call(lambda: asyncio_client.Client(service_url, **options))
        except BaseException:
            loop.stop()
            raise
        super().__init__(loop, inner_client)

    def check_open(self) -> None:
        """AlreadyClosed when the client is closed, ForkedClientError in a forked child."""
        self._loop.call(lambda: None)

    def close(self) -> None:
        """Close producers, consumers, readers, connections and the thread. Idempotent."""
        if not self._loop.stopped:
            self._loop.run(self._inner.close)
            self._loop.stop()

    def run_transaction(
        self,
        work: Callable[[Transaction], T],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        backoff: Pauses | None = None,
        retry_unknown: bool = False,
    ) -> T:
        """Run `work(txn)`, here in the caller's thread, as the asyncio client's `run_transaction` does."""
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=backoff or self._inner.new_pauses())
        while True:
            result: Any = None
            block = self._as_client().transaction(timeout=timeout, name=name)
            try:
                with block as txn:
                    result = work(txn)
            except Exception as error:  # noqa: BLE001 - judged by `Attempts`, which raises what is final
                pause = self._loop.run(lambda error=error: left.judge(error))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                if pause is None:
                    return result  # type: ignore[no-any-return]  # what `work` returned
                self._loop.run(lambda pause=pause: left.wait(pause))  # type: ignore[misc]  # as above
            else:
                return result  # type: ignore[no-any-return]  # what `work` returned

    def _as_client(self) -> Client:
        return self  # type: ignore[return-value]  # the generated class is the only one that derives from this


def inner(twin: Any) -> Any:
    """The asyncio object behind a sync one; None for None."""
    return None if twin is None else twin._inner  # noqa: SLF001 - its own other half


def transactional(work: Callable[P, T] | None = None, *, client_arg: str = "client", **options: Any) -> Callable[..., Any]:
    """Decorate `def work(client, …, txn)`, as `pulsar_txn.client.transactional` does with `async def`."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> T:
            client = kwargs[client_arg] if client_arg in kwargs else args[0]
            return client.run_transaction(lambda txn: function(*args, **kwargs, txn=txn), **options)  # type: ignore[no-any-return]  # the client's type is the caller's

        return run

    return decorate if work is None else decorate(work)
