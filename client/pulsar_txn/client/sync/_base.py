"""What the generated twins stand on: an asyncio object, and the loop thread that it lives on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar

import attrs

from pulsar_txn.client import client as asyncio_client
from pulsar_txn.client._callables import check_takes_one, not_awaitable
from pulsar_txn.client._checks import check_methods, no_transaction, refused
from pulsar_txn.client._transactional import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, Attempts, Pauses, client_of
from pulsar_txn.client.errors import CommitOutcomeUnknown, PulsarError, UsageError
from pulsar_txn.client.loop.pipeline import PipelineEvent, PipelineResult, Poison
from pulsar_txn.client.net.failover import AutoClusterFailover
from pulsar_txn.client.net.runtime import Future
from pulsar_txn.client.net.tickets import Ticket
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.sync._callbacks import (
    DRAIN_SECONDS,
    AskedKeys,
    Callbacks,
    ToldInterceptor,
    ToldObserver,
    asked_authentication,
    asked_keys,
)
from pulsar_txn.client.sync._closing import close_at_exit, close_hastily, close_in_order
from pulsar_txn.client.sync._desk import Desk
from pulsar_txn.client.sync._loop_thread import LoopThread

if TYPE_CHECKING:
    from pulsar_txn.client.loop import transactional_batch
    from pulsar_txn.client.sync._batches import TransactionalBatch
    from pulsar_txn.client.sync._twins import Client, Consumer, Producer, Reader, TableView, Transaction

logger = logging.getLogger("pulsar_txn.client.sync")

I = TypeVar("I")  # noqa: E741 - the inner class
P = ParamSpec("P")
T = TypeVar("T")


STOP_POLL_SECONDS: Final = 0.05
"""How often a pipeline looks whether it is to stop."""

AT_EXIT_SECONDS: Final = 2.2
"""How long the end of the program waits for a client that nobody has closed."""

LAST_CALLS_SECONDS: Final = 0.3
"""How long it waits then for callbacks; so does closing that was interrupted."""


class SyncLoop(LoopThread):
    """The loop thread of a sync client, and its threads for the program's own code (`_callbacks`).

    Errors that offer to ask again do so without await.
    """

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = Callbacks()
        self.client: asyncio_client.AsyncClient | None = None
        """The asyncio client that lives on it."""

    def new_future(self) -> Ticket[Any]:
        """As `LoopThread.new_future`; what is to be called when it is done is told."""
        return Ticket(self._settled, self.callbacks.settle)

    def wait(self, future: Future[T]) -> T:
        """As `LoopThread.wait`."""
        try:
            return super().wait(future)
        except CommitOutcomeUnknown as error:
            error.sync_resolver = functools.partial(self.run, error.resolver)
            raise

    async def last(self) -> None:
        """Fail what is left when closing was interrupted before it began."""
        client = self.client
        if client is not None and not client._core.drained:  # noqa: SLF001 - its own other half
            await close_hastily(client)

    def leave(self) -> None:
        """Close a client that the program has left open, within a bounded time, and say so in the log."""
        client = self.client
        if client is not None and not client._core.closed:  # noqa: SLF001 - its own other half
            logger.warning("%r was not closed before the end of the program: close() it, or use it with `with`", client)
            try:
                self.start(lambda: close_at_exit(client)).result(AT_EXIT_SECONDS)
            except (PulsarError, TimeoutError) as error:
                logger.warning("%r could not be closed in time: %r", client, error)
            self.callbacks.close(LAST_CALLS_SECONDS)


class Twin(Generic[I]):
    """A sync object over an asyncio one. Made by other twins, not by programs."""

    def __init__(self, loop: SyncLoop, inner_object: I) -> None:
        self._loop = loop
        self._inner = inner_object

    def __repr__(self) -> str:
        return repr(self._inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other._inner is self._inner

    def __hash__(self) -> int:
        return id(self._inner)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} cannot go to another process: its connections and thread stay here",
            hint="create the client in the process that uses it, for example in the function that Spark runs",
        )


class GenericTwin(Twin[I], Generic[I, T]):
    """A twin of a class with a value type."""


class ClientBase(Twin[asyncio_client.AsyncClient]):
    """The parts of the sync client that are written by hand."""

    def __init__(self, service_url: str | AutoClusterFailover, **options: Any) -> None:
        """Arguments as the asyncio client's; raises InvalidConfiguration. Its thread starts with the first use.

        So a client that was made before a fork works in a child where it is used first.
        """
        loop = SyncLoop()
        if options.get("authentication") is not None:
            options["authentication"] = asked_authentication(loop.callbacks, options["authentication"])
        loop.client = asyncio_client.AsyncClient(service_url, **options)
        loop.client._core.ask = loop.callbacks.ask  # noqa: SLF001 - its own other half
        super().__init__(loop, loop.client)

    def check_open(self) -> None:
        """AlreadyClosed when the client is closed, ForkedClientError in a forked child."""
        self._loop.call(lambda: None)

    def close(self) -> None:
        """Close producers, consumers, readers, connections and the threads. Idempotent; no effect in a forked child.

        Commits and aborts that are under way are waited for, for two seconds at most; so is what observers, interceptors
        and callbacks are to be told before. KeyboardInterrupt ends the waiting: it is closed at once, and that is raised.
        """
        loop = self._loop
        if not loop.is_ours or loop.stopped:
            return
        if not loop.started:
            self._inner._core.closed = True  # noqa: SLF001 - its own other half; there is nothing to close
            loop.stop()
            return
        seconds = DRAIN_SECONDS
        try:
            loop.run(lambda: close_in_order(self._inner))
        except BaseException:
            seconds = LAST_CALLS_SECONDS
            loop.run(lambda: close_hastily(self._inner))
            raise
        finally:
            loop.callbacks.drain(seconds)  # while they can still ask the client
            loop.stop()
            loop.callbacks.close(LAST_CALLS_SECONDS)

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
        check_takes_one(work, "work")
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=backoff or self._inner.new_pauses())
        while True:
            result: Any = None
            block = self._as_client().transaction(timeout=timeout, name=name)
            try:
                with block as txn:
                    result = not_awaitable(work(txn), work)
            except Exception as error:  # noqa: BLE001 - judged by `Attempts`, which raises what is final
                if not self._loop.run(functools.partial(left.judge, error)):
                    return result  # type: ignore[no-any-return]  # what `work` returned
                self._loop.run(functools.partial(asyncio.sleep, left.pause()))
            else:
                return result  # type: ignore[no-any-return]  # what `work` returned

    def pipeline(
        self,
        consumer: Consumer[T],
        handler: Callable[[TransactionalBatch[T]], object],
        *,
        max_messages: int = 500,
        max_wait: float | timedelta = 0.2,
        timeout: float | timedelta = 30.0,
        concurrency: int = 1,
        on_poison: Poison = Poison.DEAD_LETTER,
        max_aborts: int = 3,
        dead_letter_topic: str | None = None,
        stop: Stop | None = None,
        observer: Callable[[PipelineEvent], object] | None = None,
    ) -> PipelineResult:
        """Consume, process, produce, until `stop` (a `threading.Event`) is set: `handler(batch)` in one transaction per batch.

        As the asyncio client's `pipeline`, with a handler that is a plain function. It is called in this thread, with
        `concurrency` also in as many threads less one beside it; messages, receipts and keep-alive go on meanwhile.
        The observer is called on the client's thread for callbacks. KeyboardInterrupt ends it at once, wherever it is: open
        transactions are aborted, their messages come again.
        """
        from pulsar_txn.client.sync._batches import TransactionalBatch  # it imports this module

        check_takes_one(handler, "the handler")
        if not isinstance(consumer, Twin):
            raise refused("consumer", consumer, "a consumer of this client")
        if stop is not None:
            check_methods("stop", stop, ["is_set"], "an Event")
        desk = Desk(concurrency)

        async def handle(batch: transactional_batch.AsyncTransactionalBatch[T]) -> None:
            not_awaitable(await desk.call(handler, TransactionalBatch(self._loop, batch)), handler)

        async def work() -> PipelineResult:
            stopping = asyncio.Event()
            watch = asyncio.create_task(_set_with(stopping, stop))
            try:
                return await self._inner.pipeline(
                    consumer._inner,  # noqa: SLF001 - its own other half
                    handle,
                    max_messages=max_messages,
                    max_wait=max_wait,
                    timeout=timeout,
                    concurrency=concurrency,
                    on_poison=on_poison,
                    max_aborts=max_aborts,
                    dead_letter_topic=dead_letter_topic,
                    stop=stopping,
                    observer=None if observer is None else functools.partial(self._loop.callbacks.tell, observer),
                )
            finally:
                watch.cancel()
                desk.end()

        running = self._loop.start(work)
        try:
            desk.serve()
        except BaseException:
            running.cancel()
            raise
        return self._loop.wait(running)

    def _create_producer(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> Producer[Any]:
        from pulsar_txn.client.sync._sending import EncodedBefore, OwnCode  # it imports this module

        known = self._loop.run(lambda: self._inner._schema_for(topic, schema))  # noqa: SLF001 - its other half
        own = OwnCode(schema=known, interceptors=tuple(options.pop("interceptors", ())))
        if callable(options.get("routing")):
            own = attrs.evolve(own, router=options.pop("routing"))
        self._ask_for_keys(options)
        if isinstance(options.get("crypto_keys"), AskedKeys):
            options["crypto_keys"].fetch(options.get("encryption_keys", ()))
        given = EncodedBefore(own.schema)
        producer = self._loop.run(lambda: self._inner.create_producer(topic, schema=given, **options))
        twin: Producer[Any] = self._twins().Producer(self._loop, producer, own)
        return twin

    def _subscribe(self, topic: Any, subscription: str, schema: Schema[Any] | None, options: dict[str, Any]) -> Consumer[Any]:
        told = [ToldInterceptor(self._loop.callbacks, each) for each in options.get("interceptors", ())]
        if told:
            options["interceptors"] = told
        self._ask_for_keys(options)
        consumer = self._loop.run(lambda: self._inner.subscribe(topic, subscription, schema=schema, **options))
        twin: Consumer[Any] = self._twins().Consumer(self._loop, consumer)
        for each in told:
            each.consumer = twin
        return twin

    def _create_reader(
        self, topic: str, start: Any, schema: Schema[Any] | None, options: dict[str, Any], inclusive: bool, name: str | None
    ) -> Reader[Any]:
        self._ask_for_keys(options)
        given = options | {"start_inclusive": inclusive, "reader_name": name, "schema": schema}
        reader = self._loop.run(lambda: self._inner.create_reader(topic, start, **given))
        twin: Reader[Any] = self._twins().Reader(self._loop, reader)
        return twin

    def _create_table_view(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> TableView[Any]:
        self._ask_for_keys(options)
        view = self._loop.run(lambda: self._inner.create_table_view(topic, schema=schema, **options))
        twin: TableView[Any] = self._twins().TableView(self._loop, view)
        return twin

    def _ask_for_keys(self, options: dict[str, Any]) -> None:
        if options.get("crypto_keys") is not None:
            options["crypto_keys"] = asked_keys(self._loop.callbacks, options["crypto_keys"])

    def _observe(self, change: Callable[[object], None], observer: object) -> None:
        """Here before the thread starts: a program that forks later may have observers."""
        told = self._observer(observer)
        if self._loop.started or self._loop.stopped:
            self._loop.call(lambda: change(told))
        else:
            change(told)

    def _observer(self, observer: object) -> ToldObserver:
        transaction = self._twins().Transaction
        return ToldObserver(self._loop.callbacks, functools.partial(transaction, self._loop), observer)

    @staticmethod
    def _twins() -> Any:
        from pulsar_txn.client.sync import _twins  # it imports this module

        return _twins

    def _as_client(self) -> Client:
        return self  # type: ignore[return-value]  # the generated class is the only one that derives from this


class Stop(Protocol):
    """What ends a pipeline: an Event of `threading` or `multiprocessing`, or anything else that can be asked."""

    def is_set(self) -> bool:
        """Whether it is to end."""
        ...


async def _set_with(event: asyncio.Event, stop: Stop | None) -> None:
    while stop is not None:
        if stop.is_set():
            event.set()
            return
        await asyncio.sleep(STOP_POLL_SECONDS)


def inner(txn: Any) -> Any:
    """The asyncio transaction behind a sync one; None for None. UsageError for what is none."""
    if txn is None:
        return None
    try:
        return txn._inner  # noqa: SLF001 - its own other half
    except AttributeError as error:
        raise no_transaction(txn) from error


def transactional(work: Callable[P, T] | None = None, *, client_arg: str = "client", **options: Any) -> Callable[..., Any]:
    """Decorate `def work(client, …, txn)`, as `pulsar_txn.client.transactional` does with `async def`.

    The client is the argument of the parameter `client_arg`, wherever it stands, or else the first one.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> T:
            client = client_of(function, client_arg, args, kwargs)
            return client.run_transaction(lambda txn: function(*args, **kwargs, txn=txn), **options)  # type: ignore[no-any-return]  # the client's type is the caller's

        return run

    return decorate if work is None else decorate(work)
