"""Messages that cannot be processed: to a retry topic for later, and to a dead-letter topic in the end.

Names and properties are those of the other Pulsar clients, so that their consumers and tools understand them:
REAL_TOPIC and ORIGIN_MESSAGE_ID say where a message comes from, RECONSUMETIMES how often it was put off, DELAY_TIME
(milliseconds) for how long. A dead letter is stored before its original is acknowledged: after a crash in between
there are two of it, never none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from pulsar_txn.client._validation import flag, validate_subscription_name, validate_text, whole
from pulsar_txn.client.errors import AuthorizationError, InvalidConfiguration, InvalidTopicName, NotAllowedError, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import count_partitions
from pulsar_txn.client.receive.message import Message, Source, bits_of
from pulsar_txn.client.schema.base import EncodedPair, Schema, SchemaInfo, WrittenSchema
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.client.send.producer import AsyncProducer, open_producer
from pulsar_txn.client.state.owners import MessagePosition
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.wire.ids import Position
from pulsar_txn.wire.topics import InvalidName, TopicName

Acknowledge: TypeAlias = Callable[[Sequence[MessagePosition]], Awaitable[None]]
"""Acknowledges messages of one partition, and returns when the broker has answered."""

logger = logging.getLogger("pulsar_txn.client.consumer")

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
RETRY_AFTER_FAILURE: Final = 1.0
"""Seconds until a message comes again that could not be stored as a dead letter."""
LETTERS_SUBSCRIPTION: Final = "dead-letters"
"""The subscription that keeps dead letters, unless the program names another one."""
MAX_PRODUCERS: Final = 100
"""Producers that are kept, for as many topics; a pattern's topics come and go, and each may have one."""


def letter_topic(topic: str, subscription: str, kind: str = "DLQ") -> str:
    """The name that Pulsar's clients use: of the whole topic, not of its partition. Raises as `check_letters`."""
    check_letters(subscription, kind, (topic,))
    return _letter_topic(topic, subscription, kind)


def _letter_topic(topic: str, subscription: str, kind: str) -> str:
    return f"{TopicName.parse(topic).base}-{subscription}-{kind}"


def check_topic(topic: str, what: str = "dead_letter_topic") -> None:
    """InvalidTopicName for what is not the name of a topic."""
    validate_text(what, topic)
    try:
        TopicName.parse(topic)
    except InvalidName as error:
        raise InvalidTopicName(str(error), hint="") from error


def check_initial(_options: object, field: attrs.Attribute[Any], subscription: object) -> None:
    """Validate the name of the subscription that keeps letters; None and "" are none."""
    if subscription is not None and subscription != "":
        validate_subscription_name(field.name, subscription)


def note_initial(error: PulsarError, topic: str, initial: str | None) -> None:
    """Tell what to do when the broker does not make the subscription that keeps letters."""
    if initial and isinstance(error, NotAllowedError | AuthorizationError):
        error.with_details(
            hint=f"the subscription {initial!r} of {topic} keeps the dead letters: create it, or let this client create and "
            "consume it; initial_subscription=None keeps none"
        )


def check_letters(subscription: str, kind: str = "DLQ", topics: Sequence[str] = ()) -> None:
    """InvalidConfiguration where the subscription's name cannot be part of a topic's, or not after those of `topics`."""
    hint = "name the topic: dead_letter_topic=" if kind == "DLQ" else "name the topic: retry_letter_topic="
    if "/" in subscription:
        raise InvalidConfiguration(
            f"there can be no topic <topic>-<subscription>-{kind} for the subscription {subscription!r}: it has a slash",
            hint=hint,
        )
    for topic in topics:
        try:
            TopicName.parse(_letter_topic(topic, subscription, kind))
        except InvalidName as error:
            raise InvalidConfiguration(f"there can be no topic <topic>-<subscription>-{kind}: {error}", hint=hint) from error


@attrs.frozen(kw_only=True)
class DeadLetterPolicy:
    """Fate of messages that fail again and again, on Shared and Key_Shared subscriptions.

    A message is handed out `max_redeliver_count` times after its first delivery; instead of once more it is sent to
    `dead_letter_topic` (`<topic>-<subscription>-DLQ` without it) and acknowledged. The subscription `initial_subscription`
    is created there and keeps the letters; with None they stay only as long as somebody else keeps them. With `retry` (or a
    `retry_letter_topic`, else `<topic>-<subscription>-RETRY`) the consumer receives from that topic as well, and has
    `reconsume_later`; a consumer of a pattern needs the name.
    InvalidConfiguration below 1, InvalidTopicName for other names.
    """

    max_redeliver_count: int = attrs.field(validator=whole(1))
    dead_letter_topic: str | None = None
    retry: bool = attrs.field(default=False, validator=flag)
    retry_letter_topic: str | None = None
    initial_subscription: str | None = attrs.field(default=LETTERS_SUBSCRIPTION, validator=check_initial)

    def __attrs_post_init__(self) -> None:
        if self.dead_letter_topic is not None:
            check_topic(self.dead_letter_topic)
        if self.retry_letter_topic is not None:
            check_topic(self.retry_letter_topic, "retry_letter_topic")

    @property
    def has_retry_topic(self) -> bool:
        """True if messages can be put off."""
        return self.retry or self.retry_letter_topic is not None

    def retry_topic(self, topic: str, subscription: str) -> str:
        """The retry topic of a consumer whose first topic is `topic`."""
        return self.retry_letter_topic or letter_topic(topic, subscription, "RETRY")

    def dead_topic(self, topic: str, subscription: str) -> str:
        """The dead-letter topic of a consumer whose first topic is `topic`."""
        return self.dead_letter_topic or letter_topic(topic, subscription)


@attrs.frozen
class _AsReceived:
    """Sends payloads and keys as they were received, under the consumer's schema."""

    info: SchemaInfo | None

    def encode(self, value: EncodedPair) -> bytes:
        return value.payload

    def decode(self, payload: bytes) -> EncodedPair:
        return EncodedPair(payload, None, False)

    def encode_pair(self, value: EncodedPair) -> EncodedPair:
        return value

    def decode_pair(self, key: bytes | None, payload: bytes | None, writer: SchemaInfo | None) -> EncodedPair:
        del key, writer
        return self.decode(payload or b"")


class DeadLetters:
    """Sends for one consumer; its producers are made when they are needed."""

    def __init__(self, core: Core, topic: str, subscription: str, schema: Schema[Any], policy: DeadLetterPolicy) -> None:
        if policy.dead_letter_topic is None:
            check_letters(subscription)  # now, and not when the first letter is due
        self.policy = policy
        self.limit = policy.max_redeliver_count
        self._core = core
        self._subscription = subscription
        self._first_topic = topic
        # What was written with another version of a schema must not be labelled with this one.
        self._schema: Schema[EncodedPair] = _AsReceived(None if isinstance(schema, WrittenSchema) else schema.info)
        self._producers: dict[str, asyncio.Task[AsyncProducer[EncodedPair]]] = {}
        self._burying: set[tuple[int, Position, int]] = set()
        self._is_closed = False

    def bury_soon(self, source: Source, position: Position, messages: Sequence[Message[Any]], acknowledge: Acknowledge) -> None:
        """Send an entry's messages to the dead-letter topic and acknowledge them, in the background."""
        new = [message for message in messages if (source.id, position, message.index) not in self._burying]
        if new:
            self._burying.update((source.id, position, message.index) for message in new)
            self._core.spawn(self._bury(source, position, new, acknowledge))

    def _dead_topic(self, message: Message[Any]) -> str:
        """Those of a consumer with a retry topic go together; those of a pattern by the topic that they came from first."""
        topic = message.topic
        if self.policy.has_retry_topic:
            topic = self._first_topic or self._origin(message)
        return self.policy.dead_topic(topic, self._subscription)

    def _origin(self, message: Message[Any]) -> str:
        """The topic that a pattern's message came from first.

        Only what was put off says so itself, for there it was said here; elsewhere its sender would choose the dead letters'
        topic.
        """
        said = message.properties.get(REAL_TOPIC)
        if said is None or not self._was_put_off(message):
            return message.topic
        try:
            return str(TopicName.parse(said))
        except InvalidName:
            return message.topic

    def _was_put_off(self, message: Message[Any]) -> bool:
        retry = TopicName.parse(self.policy.retry_topic(self._first_topic, self._subscription))
        return TopicName.parse(message.topic).base == retry.base

    async def _bury(
        self, source: Source, position: Position, messages: Sequence[Message[Any]], acknowledge: Acknowledge
    ) -> None:
        topic = "its dead letters' topic"
        try:
            topic = self._dead_topic(messages[0])
            producer = await self._producer(topic, dead=True)
            await asyncio.gather(
                *(self._send(producer, message, self._properties(message), None, None) for message in messages)
            )
            await acknowledge([(position, each.index, each.entry.batch_size) for each in messages])
            logger.info("%s %s went to %s", source.topic, position, topic)
        except (PulsarError, InvalidName) as error:
            text = "message %s %s was not sent to the dead letter topic %s; it is tried again: %s"
            logger.warning(text, source.topic, position, topic, error)
            entry = messages[0].entry
            again = {position: (bits_of(messages), entry.batch_size, entry.delivery)}
            self._core.runtime.call_later(RETRY_AFTER_FAILURE, source.deliver_again, again, messages)
        finally:
            self._burying.difference_update((source.id, position, message.index) for message in messages)

    async def put_off(
        self, message: Message[Any], delay: float, properties: Mapping[str, str] | None, txn: AsyncTransaction | None
    ) -> None:
        """Send to the retry topic, or to the dead-letter topic when that was done often enough."""
        if not self.policy.has_retry_topic:
            raise InvalidConfiguration("the consumer has no retry topic", hint="give its DeadLetterPolicy retry=True")
        before = message.properties.get(RECONSUME_TIMES, "0")
        times = (int(before) if before.isdecimal() else 0) + 1
        said = self._properties(message) | dict(properties or {})
        said |= {RECONSUME_TIMES: str(times), DELAY_TIME: str(int(delay * 1000))}
        if not self._first_topic:
            said[REAL_TOPIC] = self._origin(message)
        over = times > self.limit
        retry_topic = self.policy.retry_topic(self._first_topic, self._subscription)
        producer = await self._producer(self._dead_topic(message) if over else retry_topic, dead=over)
        await self._send(producer, message, said, None if over or not delay else delay, txn)

    def _properties(self, message: Message[Any]) -> dict[str, str]:
        first = {
            REAL_TOPIC: message.topic,
            REAL_SUBSCRIPTION: self._subscription,
            ORIGIN_MESSAGE_ID: str(message.message_id),
        }
        return first | dict(message.properties)

    @staticmethod
    async def _send(
        producer: AsyncProducer[EncodedPair],
        message: Message[Any],
        properties: Mapping[str, str],
        delay: float | None,
        txn: AsyncTransaction | None,
    ) -> None:
        await producer.send(
            message.as_pair(),
            txn=txn,
            ordering_key=message.ordering_key,
            properties=properties,
            event_time_ms=message.event_time_ms,
            deliver_after=delay,
        )

    async def _producer(self, topic: str, *, dead: bool) -> AsyncProducer[EncodedPair]:
        task = self._producers.pop(topic, None)
        if task is None or _has_failed(task):
            task = self._core.spawn(self._make(topic, self.policy.initial_subscription if dead else None))
        self._producers[topic] = task
        if len(self._producers) > MAX_PRODUCERS:
            oldest = self._producers.pop(next(iter(self._producers)))
            self._core.spawn(_closed(oldest))
        return await asyncio.shield(task)

    async def _make(self, topic: str, initial: str | None) -> AsyncProducer[EncodedPair]:
        # In chunks, because what came in chunks, or compressed, may be too large for one entry.
        options = ProducerOptions(initial_subscription=initial, chunking=True)
        name = TopicName.parse(topic)
        count = await count_partitions(self._core, name)
        try:
            producer = await open_producer(self._core, name, count, self._schema, options)
        except PulsarError as error:
            note_initial(error, topic, initial)
            raise
        if self._is_closed:
            await producer.close()
        return producer

    async def close(self) -> None:
        """Close the producers; one that is still being made closes as soon as it is there."""
        self._is_closed = True
        for task in [task for task in self._producers.values() if task.done()]:
            await _closed(task)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _closed(task: asyncio.Task[AsyncProducer[EncodedPair]]) -> None:
    """Close what a task has made, or will have."""
    await asyncio.wait([task])
    if not _has_failed(task):
        await task.result().close()
