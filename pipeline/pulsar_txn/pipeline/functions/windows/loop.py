"""Takes the messages of one consumer into windows, and each window through the function in a transaction.

The transaction of a window has the output, the state with the progress of the windows, and the acknowledgement of the messages
that leave. When it fails before anything is acknowledged, the window is tried again. When it fails later, or nobody knows its
outcome, the loop begins again as after a crash: it takes its state over again, which shows what was committed, and subscribes
again, so that everything comes again that was not acknowledged.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client import Message
from pulsar_txn.client.errors import PulsarError, SchemaMismatch
from pulsar_txn.client.inside import (
    ERROR_CHARACTERS,
    FIRST_MESSAGES,
    LETTERS_SUBSCRIPTION,
    ErrorKinds,
    FirstMessages,
    growing_pauses,
    is_fatal,
)
from pulsar_txn.pipeline.functions._guarantees import Note, pause_or_stop
from pulsar_txn.pipeline.functions._instance import Instance
from pulsar_txn.pipeline.functions._loading import extractor_of
from pulsar_txn.pipeline.functions.windows.assign import CountWindows, Place, TimeWindows, Window, Windows
from pulsar_txn.pipeline.functions.windows.config import WindowConfig

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncConsumer, AsyncTransaction

logger = logging.getLogger("pulsar_txn.pipeline.functions")

Subscribe: TypeAlias = Callable[[], "Awaitable[AsyncConsumer[bytes]]"]

AT_ONCE: Final = 1000
PROGRESS_KEY: Final = "\x00window"


class _AgainError(Exception):
    """The loop has to begin again, as after a crash."""


class WindowLoop:
    """The windows of an instance, until `stop` is set."""

    def __init__(
        self,
        instance: Instance,
        subscribe: Subscribe,
        pattern: str | None,
        stop: asyncio.Event,
        note: Note,
    ) -> None:
        self._instance = instance
        self._config = instance.config
        self._window: WindowConfig = instance.config.windows
        self._subscribe = subscribe
        self._pattern = pattern
        self._stop = stop
        self._note = note
        self._first = FirstMessages()
        self._kinds = ErrorKinds()
        self._pauses = functools.partial(growing_pauses, instance.client)
        self._extract = extractor_of(self._window.timestamp_extractor, instance.config.py)
        self._consumer: AsyncConsumer[bytes]
        self._windows: Windows[Message[bytes]]

    async def run(self) -> None:
        """Run until `stop`. Messages in a window come again in the next run. Raises errors that no further attempt mends."""
        pauses, attempt = self._pauses(), 0
        while not self._stop.is_set():
            try:
                await self._begin()
                try:
                    await self._work()
                finally:
                    await self._consumer.close()
            except _AgainError as again:
                logger.info("%s: the windows begin again: %s", self._config.fqfn, again.__cause__)
            attempt += 1
            await pause_or_stop(pauses(min(attempt, 3)), self._stop)

    async def _begin(self) -> None:
        states = self._instance.states
        await states.reset()
        stored = await states.read_own(PROGRESS_KEY)
        progress = None if stored is None else json.loads(stored)
        self._consumer = await self._subscribe()
        told = self._window
        if told.length_count is not None:
            self._windows = CountWindows(told.length, told.slide, progress)
        else:
            self._windows = TimeWindows(
                told.length,
                told.slide,
                max_lag_ms=told.max_lag_ms,
                by_clock=self._extract is None,
                sources=await self._partitions(),
                progress=progress,
            )

    async def _partitions(self) -> list[str]:
        parts = [await self._instance.client.get_topic_partitions(topic) for topic in self._config.topics]
        return [each for part in parts for each in part]

    async def _work(self) -> None:
        while not self._stop.is_set():
            received = await self._receive()
            late, refused = self._sorted_in(received)
            if late:
                await self._put_late_aside(late)
            for message, error in refused:
                await self._put_refused_aside(message, error)
            now_ms = None if received else self._instance.wall_ms()
            while (window := self._windows.due(now_ms)) is not None and not self._stop.is_set():
                await self._fire(window)

    async def _receive(self) -> Sequence[Message[bytes]]:
        receiving = asyncio.ensure_future(self._consumer.receive_many(AT_ONCE))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            seconds = self._window.emit_interval_ms / 1000
            await asyncio.wait({receiving, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()
            stopping.cancel()
        return receiving.result() if receiving.done() and not receiving.cancelled() else ()

    def _sorted_in(
        self, received: Sequence[Message[bytes]]
    ) -> tuple[list[Message[bytes]], list[tuple[Message[bytes], Exception]]]:
        """Put messages into their windows; returns those that are too late, and those that have no value or no time."""
        late, refused = [], []
        for message in received:
            try:
                time_ms = self._time_of(message)
            except Exception as error:
                if self._ends_the_run(message, error):
                    raise
                refused.append((message, error))
                continue
            self._first.worked()
            if not self._add(message, time_ms):
                late.append(message)
        return late, refused

    def _ends_the_run(self, message: Message[bytes], error: Exception) -> bool:
        """True if no further message is to be tried: the error is final, or the first messages were all refused."""
        if is_fatal(error) or self._instance.is_closed:
            return True
        if not self._first.all_fail(message):
            return False
        error.add_note(f"the first {FIRST_MESSAGES} messages all failed, so the function is at fault")
        return True

    def _add(self, message: Message[bytes], time_ms: int) -> bool:
        found = message.message_id
        return self._windows.add(
            message, Place(message.topic, (found.ledger_id, found.entry_id, max(found.batch_index, 0))), time_ms
        )

    def _time_of(self, message: Message[bytes]) -> int:
        """Its time, by the extractor if there is one. Raises what that and deserializing raise, before a window has it."""
        value = self._instance.value_of(message, self._pattern)
        if self._extract is None:
            return message.publish_time_ms
        time_ms = self._extract(value, message)
        if not isinstance(time_ms, int):
            raise SchemaMismatch(f"the extractor gave {time_ms!r} for {message.message_id}, not milliseconds as a whole number")
        return time_ms

    async def _fire(self, window: Window[Message[bytes]]) -> None:
        messages = [item.message for item in window.items]
        leaving = [item.message for item in window.leaving]
        pauses, attempt = self._pauses(), 0
        while True:
            try:
                await self._in_transaction(messages, leaving, functools.partial(self._call, window))
            except _AgainError:
                raise
            except Exception as error:
                self._note("failed", tuple(messages), error)
                if is_fatal(error) or self._instance.is_closed:
                    raise
                attempt += 1
                await pause_or_stop(pauses(attempt), self._stop)
                if self._stop.is_set():
                    return
            else:
                break
        self._windows.fired(window)
        self._note("processed", tuple(messages), None)

    async def _call(self, window: Window[Message[bytes]], txn: AsyncTransaction) -> None:
        context = await self._instance.invoke_window(window, self._pattern, txn)
        try:
            for handed in context.handed:
                await handed  # in the transaction now; the commit waits for the receipts
            self._instance.states.set_own(PROGRESS_KEY, json.dumps(window.progress).encode())
            await self._instance.states.write(txn)
        finally:
            context.end()

    async def _in_transaction(
        self,
        messages: Sequence[Message[bytes]],
        leaving: Sequence[Message[bytes]],
        work: Callable[[AsyncTransaction], Awaitable[None]],
    ) -> None:
        acknowledges = False
        try:
            async with self._instance.client.transaction(
                timeout=self._config.transaction.timeout_ms / 1000, name=f"window of {self._config.fqfn}"
            ) as txn:
                await self._instance.states.begin(txn, messages[-1:])
                await work(txn)
                acknowledges = True
                if leaving:
                    await self._consumer.acknowledge(list(leaving), txn=txn)
        except Exception as error:
            if not acknowledges or is_fatal(error):
                raise
            self._note("failed", tuple(messages), error)
            raise _AgainError from error  # part of it may be acknowledged, and the outcome may be unknown

    async def _put_late_aside(self, late: Sequence[Message[bytes]]) -> None:
        """Messages whose windows are over: to the topic for them, if there is one, and acknowledged."""
        topic = self._window.late_data_topic
        fate = f"sent to {topic}" if topic else "left out; lateDataTopic would keep them"
        logger.warning("%s: %d messages came after their last window, and are %s", self._config.fqfn, len(late), fate)

        async def send(txn: AsyncTransaction) -> None:
            for message in late if topic is not None else ():
                await self._send_aside(message, str(topic), txn)

        await self._remove(late, send)
        self._note("late", tuple(late), None)

    async def _put_refused_aside(self, message: Message[bytes], error: Exception) -> None:
        """A message that can be in no window: to the dead letters, or the topic of late messages, and acknowledged."""
        topic = self._config.refused_topic
        keeper = None if topic == self._window.late_data_topic else LETTERS_SUBSCRIPTION
        said = {"EXCEPTION": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}
        what = f"{self._config.fqfn}: message {message.message_id} of {message.topic} can be in no window and goes to {topic}"
        self._kinds.tell(logger, what, error)

        async def send(txn: AsyncTransaction) -> None:
            await self._send_aside(message, topic, txn, said, keeper)

        await self._remove([message], send)
        self._note("dead_letter", (message,), error)

    async def _send_aside(
        self,
        message: Message[bytes],
        topic: str,
        txn: AsyncTransaction,
        said: Mapping[str, str] | None = None,
        keeper: str | None = None,
    ) -> None:
        properties = {**message.properties, "REAL_TOPIC": message.topic, "ORIGIN_MESSAGE_ID": str(message.message_id)}
        properties |= said or {}
        payload = None if message.is_tombstone else message.data
        options: dict[str, Any] = {"properties": properties, "key": message.key, "txn": txn}
        await self._instance.outlets.send(topic, payload, options, keeper=keeper)

    async def _remove(self, messages: Sequence[Message[bytes]], send: Callable[[AsyncTransaction], Awaitable[None]]) -> None:
        try:
            await self._in_transaction(messages, messages, send)
        except PulsarError as error:
            if is_fatal(error):
                raise
            raise _AgainError from error
