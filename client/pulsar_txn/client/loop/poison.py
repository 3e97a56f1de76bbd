"""Treatment of a poison message by a pipeline: a dead letter, leaving it out, or its error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.loop.options import PipelineOptions, Poison
from pulsar_txn.client.loop.suspects import FIRST_MESSAGES, Suspects
from pulsar_txn.client.receive.batch import AsyncTransactionalBatch
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.dead_letters import check_letters, check_topic, letter_topic, note_initial
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.send.producer import AsyncProducer

T = TypeVar("T")
Work: TypeAlias = Callable[[AsyncTransactionalBatch[T]], Awaitable[object]]
"""Handling of a batch in its transaction."""

ERROR_CHARACTERS: Final = 1000
"""Largest part of an error's text that travels with a dead letter."""


class Remedy(Generic[T]):
    """Puts poison messages aside; has the producers of dead letters."""

    def __init__(
        self,
        consumer: AsyncConsumer[T],
        options: PipelineOptions,
        suspects: Suspects,
        create_producer: Callable[..., Awaitable[AsyncProducer[bytes]]],
    ) -> None:
        if options.on_poison is Poison.DEAD_LETTER and options.dead_letter_topic is None:
            check_letters(consumer.subscription, topics=consumer.topics)  # now, and not when the first letter is due
        if options.dead_letter_topic is not None:
            check_topic(options.dead_letter_topic)
        self._consumer = consumer
        self._options = options
        self._suspects = suspects
        self._create_producer = create_producer
        self._producers: dict[str, asyncio.Future[AsyncProducer[bytes]]] = {}

    def against(self, group: Sequence[Message[T]], error: Exception) -> Work[T]:
        """Decide what to do in a transaction with the one message of the group.

        Raises the error with Poison.RAISE, and whatever the policy is when the first messages all failed.
        """
        message = group[0]
        if self._suspects.first.all_fail(message):
            error.add_note(f"the first {FIRST_MESSAGES} messages all failed, so the handler is at fault")
            raise error
        if self._options.on_poison is Poison.RAISE:
            error.add_note(f"message {message.message_id} of {message.topic} failed {self._suspects.aborts(message)} times")
            raise error
        if self._options.on_poison is Poison.SKIP:
            return _nothing
        return lambda batch: self._send_dead_letter(batch, error)

    async def _send_dead_letter(self, batch: AsyncTransactionalBatch[T], error: Exception) -> None:
        message = batch[0]
        producer = await self._producer(message.topic)
        await producer.send(
            None if message.is_tombstone else message.data,
            txn=batch.txn,
            key=message.key,
            ordering_key=message.ordering_key,
            event_time_ms=message.event_time_ms,
            properties={
                **message.properties,
                "REAL_TOPIC": message.topic,
                "REAL_SUBSCRIPTION": self._consumer.subscription,
                "ORIGIN_MESSAGE_ID": str(message.message_id),
                "EXCEPTION": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
                "ABORTS": str(self._suspects.aborts(message)),
            },
        )

    async def _producer(self, topic: str) -> AsyncProducer[bytes]:
        name = self._options.dead_letter_topic or letter_topic(topic, self._consumer.subscription)
        task = self._producers.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._producers[name] = asyncio.ensure_future(self._make(name))
        return await asyncio.shield(task)

    async def _make(self, topic: str) -> AsyncProducer[bytes]:
        initial = self._options.initial_subscription
        try:  # in chunks, because what came in chunks, or compressed, may be too large for one entry
            return await self._create_producer(topic, chunking=True, initial_subscription=initial)
        except PulsarError as error:
            note_initial(error, topic, initial)
            raise

    async def close(self) -> None:
        """Close the producers of dead letters."""
        for task in self._producers.values():
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().close()


async def _nothing(_batch: AsyncTransactionalBatch[Any]) -> None:
    """To acknowledge is enough."""
