"""Loops around `process`, by guarantee: what is done with a message before and after it; one `Loop` per consumer.

| | acknowledged | when `process` or a send fails |
|---|---|---|
| ATMOST_ONCE | before `process`, answered | logged; the message is gone |
| ATLEAST_ONCE | when all that was sent is stored | acknowledged negatively; with retainOrdering tried again in place |
| EFFECTIVELY_ONCE | the same, cumulatively, one by one | tried again in place, with the same sequence id |
| MANUAL | by `context.ack` | acknowledged negatively |
| MANAGED | in the transaction | the transaction is aborted; see `pulsar_txn.client.loop.pipeline` |

When the first ten messages of a run are all given up (gone with ATMOST_ONCE, dead letters with maxMessageRetries), the run ends
with the error of the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.client import Message, Poison
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.events import PipelineEvent
from pulsar_txn.client.inside import FIRST_MESSAGES, ErrorKinds, FirstMessages, growing_pauses, is_fatal
from pulsar_txn.client.pipelines import AsyncTransactionalBatch
from pulsar_txn.pipeline.functions._instance import Instance
from pulsar_txn.pipeline.functions.context import Context
from pulsar_txn.pipeline.functions.errors import StateMoved
from pulsar_txn.pipeline.functions.sections import ProcessingGuarantees

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncConsumer

logger = logging.getLogger("pulsar_txn.pipeline.functions")

AT_ONCE: Final = 100
"""Messages taken from the consumer's queue together."""
LEAST_QUIET: Final = 0.01
FOR_EVER: Final = 2**31
_KINDS: Final = {"committed": "processed", "aborted": "failed", "dead_letter": "dead_letter", "skipped": "skipped"}


@attrs.frozen
class FunctionEvent:
    """Event that an observer is called with. `kind`: processed, failed, dead_letter or late; `error` is why, if so.

    With transactions `messages` are those of one; a message that failed may come again. Dead letters without a
    transaction are sent by the consumer, which does not tell.
    """

    kind: str
    messages: tuple[Message[Any], ...]
    error: BaseException | None = None


class Loop:
    """Loop that takes one consumer's messages through an instance until `stop` is set."""

    def __init__(
        self,
        instance: Instance,
        consumer: AsyncConsumer[bytes],
        pattern: str | None,
        stop: asyncio.Event,
        note: Note,
    ) -> None:
        self._instance = instance
        self._config = instance.config
        self._consumer = consumer
        self._pattern = pattern
        self._stop = stop
        self._note = note
        self._first = FirstMessages()
        self._finishing: set[asyncio.Task[None]] = set()
        self._pauses = functools.partial(growing_pauses, instance.client)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run until `stop`, and finish what was taken. Raises errors that no further attempt mends."""
        if self._config.is_managed:
            await self._run_pipeline()
            return
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._ends():
                await self._handle_all(await self._next(stopping))
            if self._finishing:
                await asyncio.wait(self._finishing)
        finally:
            stopping.cancel()
            for task in self._finishing:
                task.cancel()
        if self._broken.done():
            self._broken.result()

    def _ends(self) -> bool:
        return self._stop.is_set() or self._broken.done()

    async def _next(self, stopping: asyncio.Task[Any]) -> Sequence[Message[bytes]]:
        if found := self._consumer.receive_nowait(AT_ONCE):
            return found
        receiving = asyncio.create_task(self._consumer.receive_many(AT_ONCE))
        try:
            await asyncio.wait({receiving, stopping, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()
        return await receiving if receiving.done() else ()

    # --- transactions -------------------------------------------------------------------------------------------------

    async def _run_pipeline(self) -> None:
        told = self._config.transaction
        retries = self._config.max_message_retries
        await self._instance.client.pipeline(
            self._consumer,
            self._in_transaction,
            max_messages=max(told.batching_max_entries, 1),
            max_wait=max(told.batching_quiet_period_ms / 1000, LEAST_QUIET),
            timeout=told.timeout_ms / 1000,
            on_poison=Poison.RAISE if retries is None else Poison.DEAD_LETTER,
            max_aborts=FOR_EVER if retries is None else retries + 1,
            dead_letter_topic=self._config.dead_letter_topic,
            stop=self._stop,
            observer=self._on_pipeline_event,
        )

    async def _in_transaction(self, batch: AsyncTransactionalBatch[bytes]) -> None:
        contexts: list[Context] = []
        states = self._instance.states
        try:
            await states.begin(batch.txn, batch, self._consumer)
            for message in batch:
                context = await self._instance.invoke(self._consumer, message, self._pattern, batch.txn)
                contexts.append(context)
            for handed in [each for context in contexts for each in context.handed]:
                await handed  # in the transaction now; the commit waits for the receipts
            await states.write(batch.txn)
        except StateMoved:
            batch.redeliver()  # to whoever receives it now; kept here it would take the state back
            raise
        finally:
            for context in contexts:
                context.end()

    def _on_pipeline_event(self, event: PipelineEvent) -> None:
        self._note(_KINDS[event.kind], event.messages, event.error)

    # --- the others ---------------------------------------------------------------------------------------------------

    async def _handle_all(self, messages: Sequence[Message[bytes]]) -> None:
        """One after the other. When the state of a partition has moved, its other messages here are left to their receiver."""
        moved: set[str] = set()
        for message in messages:
            if self._ends():
                return
            if message.topic in moved:
                continue
            try:
                await self._handle(message)
            except StateMoved:
                moved.add(message.topic)
                self._consumer.give_back([message])  # and all that follows it
        if moved:
            await pause_or_stop(self._pauses()(1), self._stop)

    async def _handle(self, message: Message[bytes]) -> None:
        guarantee = self._config.processing_guarantees
        if guarantee is ProcessingGuarantees.ATMOST_ONCE and not await self._acknowledged_first(message):
            return
        if guarantee is not ProcessingGuarantees.MANUAL and self._consumer.consumer_type.is_single:
            await self._handle_in_order(message)
            return
        try:
            context = await self._instance.invoke(self._consumer, message, self._pattern)
        except Exception as error:
            self._failed(message, error)
            if self._ends_the_run(message, error):
                raise
            return
        if context.handed:
            await self._room()
            task = asyncio.create_task(self._finish(message, context))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
        else:
            await self._finish(message, context)

    async def _acknowledged_first(self, message: Message[bytes]) -> bool:
        try:
            await self._consumer.acknowledge(message, receipt=True)
        except PulsarError as error:
            self._note("failed", (message,), error)
            if self._is_final(error):
                raise
            return False
        return True

    async def _room(self) -> None:
        while len(self._finishing) >= self._config.max_pending_async_requests:
            await asyncio.wait(self._finishing, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self, message: Message[bytes], context: Context) -> None:
        try:
            await _stored(context)
            if self._config.processing_guarantees is ProcessingGuarantees.ATLEAST_ONCE:
                await self._consumer.acknowledge(message)
        except Exception as error:  # noqa: BLE001 - judged: the message comes again, or the run ends
            self._failed(message, error)
            if self._ends_the_run(message, error) and not self._broken.done():
                self._broken.set_exception(error)
        else:
            self._processed(message)

    async def _handle_in_order(self, message: Message[bytes]) -> None:
        """Again and again, so that nothing overtakes it; given back when the run stops first."""
        pauses, attempt = self._pauses(), 0
        while True:
            try:
                await _stored(await self._instance.invoke(self._consumer, message, self._pattern))
            except Exception as error:
                self._note("failed", (message,), error)
                if self._ends_the_run(message, error) or isinstance(error, StateMoved):
                    raise
                if self._config.processing_guarantees is ProcessingGuarantees.ATMOST_ONCE or self._stop.is_set():
                    return
            else:
                break
            attempt += 1
            await pause_or_stop(pauses(attempt), self._stop)
        if self._config.is_effectively_once:
            await self._consumer.acknowledge_cumulative(message)
        elif self._config.processing_guarantees is ProcessingGuarantees.ATLEAST_ONCE:
            await self._consumer.acknowledge(message)
        self._processed(message)

    def _processed(self, message: Message[bytes]) -> None:
        self._first.worked()
        self._note("processed", (message,), None)

    def _ends_the_run(self, message: Message[bytes], error: Exception) -> bool:
        """True if no further message is to be tried: the error is final, or the first messages were all given up."""
        if self._is_final(error):
            return True
        if not self._is_given_up(message, error) or not self._first.all_fail(message):
            return False
        error.add_note(f"the first {FIRST_MESSAGES} messages all failed, so the function is at fault")
        return True

    def _is_given_up(self, message: Message[bytes], error: Exception) -> bool:
        """True if this was the last attempt with the message."""
        if isinstance(error, StateMoved):
            return False
        retries = self._config.max_message_retries
        at_most_once = self._config.processing_guarantees is ProcessingGuarantees.ATMOST_ONCE
        return at_most_once or (retries is not None and message.redelivery_count >= retries)

    def _is_final(self, error: BaseException) -> bool:
        return is_fatal(error) or self._instance.is_closed

    def _failed(self, message: Message[bytes], error: Exception) -> None:
        self._note("failed", (message,), error)
        if self._config.processing_guarantees is not ProcessingGuarantees.ATMOST_ONCE:
            self._instance.forget(message)
            self._consumer.negative_acknowledge(message)


class Note:
    """Notes of a run: counts of processed, failed and given-up messages, and events for the observer."""

    def __init__(self, instance: Instance, observer: Callable[[FunctionEvent], object] | None) -> None:
        self._instance = instance
        self._observer = observer
        self._kinds = ErrorKinds()

    def __call__(self, kind: str, messages: tuple[Message[Any], ...], error: BaseException | None) -> None:
        """One event."""
        instance = self._instance
        if kind == "processed":
            instance.counts.processed(len(messages))
        elif kind == "failed":
            name = instance.config.fqfn
            moved = isinstance(error, StateMoved)  # the partition is another instance's now, which is nobody's fault
            what = f"{name}: {len(messages)} messages from {messages[0].message_id} on failed"
            if moved or error is instance.raised:  # the instance has told of what its function raised
                logger.info("%s: %r", what, error)
            elif error is not None and not is_fatal(error):  # the run ends with a fatal one, and tells it
                self._kinds.tell(logger, what, error)
            if error is not instance.raised and not moved:
                instance.counts.failed()
        if self._observer is not None:
            try:
                self._observer(FunctionEvent(kind, messages, error))
            except Exception:  # an observer must not break what it observes
                logger.exception("the observer %r failed", self._observer)


async def pause_or_stop(seconds: float, stop: asyncio.Event) -> None:
    """Wait for so long, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def _stored(context: Context) -> None:
    """All that the call has sent has its receipt."""
    for handed in list(context.handed):
        await (await handed)
