"""The newest value of every key of a topic, kept up to date."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

from pulsar_txn.client._validation import number_of_seconds
from pulsar_txn.client.errors import AlreadyClosed, PulsarError, SchemaMismatch
from pulsar_txn.client.net.bounded import bounded
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.wire.ids import MessageId

logger = logging.getLogger("pulsar_txn.client.table_view")

T = TypeVar("T")
Action: TypeAlias = Callable[[str, T | None], object]
"""`action(key, value)`, or a coroutine function."""

ReadValues: TypeAlias = Callable[[list[Message[Any]]], Awaitable[list[Any]]]
"""Calls `values_of`, where schemas of the program may run."""

_POLL: Final = 0.2
"""Seconds after which the end of the topic is looked up again while catching up."""


class AsyncTableView(Generic[T]):
    """Key and newest value of a topic's committed messages. Made by `Client.create_table_view`; an async context manager.

    Messages without a key are left out, a tombstone takes its key away. Looking up never waits; it raises the error that
    ended the reading, or AlreadyClosed. A key whose newest value cannot be decoded has none: `get` raises SchemaMismatch
    for it, until a newer one can be read, and it is logged.
    """

    def __init__(self, core: Core, reader: AsyncReader[T], caught_up: asyncio.Future[None], read_values: ReadValues) -> None:
        """`caught_up` is done when everything that the topic holds has been read."""
        self._read_values = read_values
        self._reader = reader
        self._values: dict[str, T] = {}
        self._unreadable: dict[str, str] = {}
        self._seen: dict[str, MessageId] = {}
        self._failure: PulsarError | None = None
        self._changed = asyncio.Event()
        self._listeners: list[_Listener[T]] = []
        self._caught_up = caught_up
        self._task = core.spawn(self._follow())

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._reader.topic

    @property
    def size(self) -> int:
        """The number of keys that have a value."""
        return len(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str) -> T | None:
        """The newest value of a key; None without one."""
        self._check()
        if key in self._unreadable:
            raise SchemaMismatch(self._unreadable[key], hint="send a value that the view's schema can read, or a tombstone")
        return self._values.get(key)

    def keys(self) -> list[str]:
        """The keys that have a value at this moment."""
        self._check()
        return list(self._values)

    def snapshot(self) -> dict[str, T]:
        """All keys and values at this moment, as a new dict."""
        self._check()
        return dict(self._values)

    async def for_each(self, action: Action[T]) -> None:
        """Call `action(key, value)` for every key by now, one after another; what it raises is raised here.

        It may be a coroutine function. If cancelled, the remaining calls are not made.
        """
        for key, value in self.snapshot().items():
            await _done(action, key, value)

    async def for_each_and_listen(self, action: Action[T]) -> None:
        """As `for_each`, and then, as long as the view is open, for every change, in order; value None: the key has gone.

        The view waits while `action` is busy. Its exceptions on changes are logged. If cancelled, it is called no
        more.
        """
        listener: _Listener[T] = _Listener(action)
        self._check()
        self._listeners.append(listener)
        try:
            async with listener.turn:  # changes wait until what is there has been told
                await self.for_each(action)
        except BaseException:
            self._listeners.remove(listener)
            raise

    async def refresh(self, timeout: float | timedelta = 30.0) -> None:
        """Wait until everything that is stored and committed at this moment is here; OperationTimeout after `timeout`.

        Raises the broker's error, ConnectionLost, and what ended the reading. If cancelled, only the waiting ends.
        """
        self._check()
        seconds = number_of_seconds(timeout, "timeout")
        async with bounded(seconds, f"the view of {self.topic} is not up to date within {seconds:g} s"):
            last = await self._reader.get_last_message_ids()
            while any(self._is_ahead(topic, message_id) for topic, message_id in last.items()):
                self._check()  # it may have ended since this was called
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        """Stop reading; idempotent. If cancelled, it is closed."""
        self._failure = self._failure or AlreadyClosed(f"the table view of {self.topic} is closed")
        self._changed.set()
        self._task.cancel()
        await self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it grows with each

    def _is_ahead(self, topic: str, last: MessageId) -> bool:
        seen = self._seen.get(topic)
        if last.entry_id < 0:
            return False
        return seen is None or (seen.position, seen.batch_index) < (last.position, last.batch_index)

    async def _follow(self) -> None:
        try:
            while await self._reader.has_message_available():
                await self._take(await self._reader.read_many(max_wait=_POLL))
            self._caught_up.set_result(None)
            while True:
                await self._take(await self._reader.read_many())
        except PulsarError as error:
            self._end(error)
        except Exception as error:
            logger.exception("the table view of %s has failed; create a new one", self.topic)
            self._end(PulsarError(f"the table view of {self.topic} has ended: {error!r}", hint="create a new one"))

    def _end(self, error: PulsarError) -> None:
        self._failure = self._failure or error
        self._changed.set()
        if not self._caught_up.done():
            self._caught_up.set_exception(error)

    async def _take(self, messages: list[Message[T]]) -> None:
        values = await self._read_values(messages)
        listeners = list(self._listeners)  # those that come later see these messages in what is there
        self._apply(messages, values)
        for listener in listeners:
            await listener.tell(messages, values)

    def _apply(self, messages: list[Message[T]], values: list[Any]) -> None:
        for message, value in zip(messages, values, strict=True):
            self._seen[message.topic] = message.message_id
            key = message.key
            if key is None:
                continue
            self._unreadable.pop(key, None)
            if isinstance(value, _Unreadable):
                self._unreadable[key] = value.why
            if message.is_tombstone or isinstance(value, _Unreadable):
                self._values.pop(key, None)
            else:
                self._values[key] = value
        self._changed.set()


async def open_table_view(core: Core, reader: AsyncReader[T], read_values: ReadValues | None = None) -> AsyncTableView[T]:
    """A view that has read everything that the topic holds. Raises what ends its reading.

    `read_values` calls `values_of` where schemas of the program may run; on the loop by default.
    """
    caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    view = AsyncTableView(core, reader, caught_up, read_values or _at_once)
    try:
        await asyncio.shield(caught_up)
    except BaseException:
        await view.close()
        raise
    return view


class _Listener(Generic[T]):
    """The listeners for changes."""

    def __init__(self, action: Action[T]) -> None:
        self.turn = asyncio.Lock()
        self._action = action

    async def tell(self, messages: list[Message[T]], values: list[Any]) -> None:
        async with self.turn:
            for message, value in zip(messages, values, strict=True):
                if message.key is not None and not isinstance(value, _Unreadable):
                    try:
                        await _done(self._action, message.key, value)
                    except Exception:  # who listens must not end the view
                        logger.exception("the listener %r failed", self._action)


async def _done(action: Action[T], key: str, value: T | None) -> None:
    result = action(key, value)
    if inspect.isawaitable(result):
        await result


class _Unreadable:
    """In place of a value that cannot be decoded."""

    def __init__(self, why: str) -> None:
        self.why = why


async def _at_once(messages: list[Message[Any]]) -> list[Any]:
    return values_of(messages)


def values_of(messages: list[Message[Any]]) -> list[Any]:
    """The values of those with a key; a mark where one cannot be decoded."""
    return [None if message.key is None or message.is_tombstone else _value_of(message) for message in messages]


def _value_of(message: Message[Any]) -> Any:
    try:
        return message.value
    except SchemaMismatch as error:
        logger.error("%s of %s cannot be decoded and is left out: %s", message.message_id, message.topic, error)  # noqa: TRY400 - no trace
        return _Unreadable(f"{message.message_id} of {message.topic} cannot be decoded: {error}")
    except Exception as error:  # a schema of the program's own may raise anything
        logger.exception("%s of %s cannot be decoded and is left out", message.message_id, message.topic)
        return _Unreadable(f"{message.message_id} of {message.topic} cannot be decoded: {error!r}")
