"""Back-checks and half messages of a blocking client: the program's own code never runs on the loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_txn.client._callables import check_takes_one, not_awaitable
from pulsar_txn.client.client import AsyncClient, half_messages_of
from pulsar_txn.client.errors import InvalidConfiguration, ProducerQueueFull
from pulsar_txn.client.net.runtime import Future, WorkerThread
from pulsar_txn.client.net.thread_futures import answer
from pulsar_txn.client.send.half_messages import (
    AsyncTransactionalProducer,
    HalfMessage,
    HalfMessageSender,
    HalfSent,
    HalfTerms,
    validated_half_messages,
)
from pulsar_txn.client.sync.blocking import Blocking, SyncLoop, inner
from pulsar_txn.client.txn.check_groups import ClosedWithGroup, LocalOutcome
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.wire.ids import MessageId

_PLAIN: Final = "write it as plain `def`, or use the asyncio client"


class CheckThreads(ClosedWithGroup):
    """A program's `check`, or `on_decided`, for the asyncio client: called in a thread, so many at once as are asked for.

    Threads begin when they are needed, and stay for further questions. They are daemons: a check that hangs does not keep
    the program from ending.
    """

    def __init__(self, check: Callable[[Any], Any], what: str = "check") -> None:
        _check_plain(check, what)
        self._check = check
        self._idle: list[WorkerThread] = []
        self._made = 0
        self._closed = False

    async def __call__(self, asked: Any) -> Any:
        """On the loop: what the program answers."""
        thread = self._idle.pop() if self._idle else self._new()
        reply: Future[Any] = Future()
        thread.submit(functools.partial(answer, only=True), reply, self._answer, (asked,))
        try:
            return await asyncio.wrap_future(reply)
        finally:
            if reply.done() and not self._closed:
                self._idle.append(thread)
            else:
                thread.stop()  # after the call that it is at

    def _answer(self, asked: Any) -> Any:
        return not_awaitable(self._check(asked), self._check)

    def _new(self) -> WorkerThread:
        self._made += 1
        return WorkerThread(f"pulsar-txn-check-{self._made}")

    def close(self) -> None:
        """End the threads, each after the call that it is at."""
        self._closed = True
        idle, self._idle = self._idle, []
        for thread in idle:
            thread.stop()


def threaded(check: Any) -> Any:
    """A check of a program's as the asyncio client takes it: its function in threads, or the asyncio object of a group."""
    return inner(check) if isinstance(check, Blocking) else CheckThreads(check)


def threaded_hearing(on_decided: Any) -> Any:
    """A program's `on_decided` as the asyncio client takes it; None for none."""
    return None if on_decided is None else CheckThreads(on_decided, "on_decided")


def transactional_over(
    loop: SyncLoop, client: AsyncClient, terms: Callable[[Any], HalfTerms], check: Any, open_producer: Callable[[], Any]
) -> tuple[AsyncTransactionalProducer[Any], HalfMessageSender, Any]:
    """An asyncio producer of half messages, its sender of them, and the blocking producer that sends for it."""
    agreed = terms(threaded(check))
    producer = open_producer()
    half_messages = loop.run(lambda: half_messages_of(client, inner(producer), agreed))
    return AsyncTransactionalProducer(inner(producer), half_messages), half_messages, producer


class HalfSending:
    """Sending of a blocking producer of half messages: `execute` runs in the thread that calls.

    `kind` is the class of blocking producers, `blocking_of` makes a blocking transaction.
    """

    def __init__(
        self,
        loop: SyncLoop,
        half_messages: HalfMessageSender,
        producer: Any,
        kind: type[Any],
        blocking_of: Callable[[AsyncTransaction], Any],
    ) -> None:
        self._loop = loop
        self._half_messages = half_messages
        self._producer = producer
        self._kind = kind
        self._blocking_of = blocking_of

    def send(
        self, first: HalfMessage, also: Sequence[HalfMessage], data: bytes | None, execute: Callable[[HalfSent], LocalOutcome]
    ) -> LocalOutcome:
        """As `AsyncTransactionalProducer.send_in_transaction`."""
        _check_plain(execute, "execute")
        messages = validated_half_messages(first, also, self._kind)
        what = self._half_messages.data_of(first, data)
        txn = self._loop.call(lambda: self._half_messages.begin(what))
        blocking = self._blocking_of(txn)
        try:
            message_ids = self._send_all(messages, blocking)
            token = blocking.prepare() if self._half_messages.prepares else None
        except BaseException as error:
            raised = error
            self._loop.run(lambda: self._half_messages.give_back(txn, raised))
            raise
        try:
            outcome = not_awaitable(execute(HalfSent(blocking, message_ids, what, token)), execute)
        except BaseException as error:
            raised = error
            self._loop.run(lambda: self._half_messages.leave(txn, raised))
            raise
        return self._loop.run(lambda: self._half_messages.end(txn, outcome))

    def _send_all(self, messages: Sequence[HalfMessage], txn: Any) -> tuple[MessageId, ...]:
        """Side by side, as far as the producers have room."""
        if len(messages) == 1:
            return (self._producer.send(messages[0].value, txn=txn, **messages[0].options()),)
        futures: list[Future[MessageId] | MessageId] = []
        for each in messages:
            producer, options = each.producer or self._producer, each.options()
            try:
                futures.append(producer.send_nowait(each.value, txn=txn, **options))
            except ProducerQueueFull:
                futures.append(producer.send(each.value, txn=txn, **options))
        return tuple(each if isinstance(each, MessageId) else each.result() for each in futures)


def _check_plain(function: object, what: str) -> None:
    check_takes_one(function, what)
    if inspect.iscoroutinefunction(function):
        raise InvalidConfiguration(f"{what} is asynchronous: nobody would run it here", hint=_PLAIN)
