"""The durable subscription of a log's topic: what is acknowledged on it is not needed, and the broker may delete it.

It is made before the first message, so nothing is lost. It never asks for messages: readers have cursors of their own. It is
open only while something is asked of it, and several instances may ask at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pulsar_txn.client.errors import TopicNotFound
from pulsar_txn.client.inside import Connection
from pulsar_txn.tc_service.cluster.brokers import Brokers, LookupFailed
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import EARLIEST, Position, signed64

from .errors import LogTopicRefused
from .line import as_pulsar_error

SUBSCRIPTION: Final = "pulsar-txn"
_FAILOVER: Final = 2


class Place:
    """The subscription of one topic."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic

    async def make(self) -> Position:
        """Make topic and subscription if they are not there; the last message that nobody needs. Raises PulsarError.

        LogTopicRefused for a topic with partitions: its log would be split.
        """
        try:
            count = await self._brokers.partitions(self._topic)
        except TopicNotFound:
            count = 0
        if count:
            raise LogTopicRefused(
                f"{self._topic} has {count} partitions, and a log needs a topic without; delete it, and set"
                " allowAutoTopicCreationType=non-partitioned for its namespace"
            )
        async with self._subscribed() as (connection, number):
            answer = await connection.request("getLastMessageId", self._brokers.next_id(), consumer_id=number)
            return _mark_delete(answer)

    async def drop_until(self, where: Position) -> None:
        """Everything up to this message is not needed any more. Raises PulsarError."""
        async with self._subscribed() as (connection, number):
            request_id = self._brokers.next_id()
            ack = hot.encode_ack(number, True, [(where[0], where[1], None, 0)], request_id=request_id)
            await connection.request_frames("ack", request_id, [ack], consumer_id=number)

    async def remove(self) -> None:
        """Give up the subscription: nothing of the topic is needed. Raises PulsarError."""
        async with self._subscribed() as (connection, number):
            await connection.request("unsubscribe", self._brokers.next_id(), consumer_id=number)

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[tuple[Connection, int]]:
        try:
            connection = await self._brokers.owner(self._topic)
        except LookupFailed as error:
            raise as_pulsar_error(error) from None
        number = self._brokers.next_id()
        side = _Silent()
        connection.consumers[number] = side
        fields: dict[str, Any] = {
            "topic": self._topic,
            "subscription": SUBSCRIPTION,
            "consumer_id": number,
            "subType": _FAILOVER,
            "durable": True,
            "initialPosition": 1,
        }
        try:
            try:
                await connection.request("subscribe", self._brokers.next_id(), **fields)
            except TopicNotFound as error:
                raise LogTopicRefused(
                    f"{self._topic} is not there, and the brokers do not make it ({error.message}): pulsar-admin topics create"
                    f" {self._topic}, or allow topics to be created in its namespace"
                ) from None
            yield connection, number
        finally:
            if connection.consumers.pop(number, None) is not None:
                connection.write([command("close_consumer", consumer_id=number, request_id=self._brokers.next_id())])


class _Silent:
    """A consumer that takes no messages: requests that are under way when it is closed fail by themselves."""

    def on_message(self, frame: hot.Message) -> None:
        """None comes without a permit."""

    def on_closed_by_broker(self) -> None:
        """The topic moves."""

    def on_active_change(self, is_active: bool) -> None:
        """Do nothing: it makes no difference here."""

    def on_end_of_topic(self) -> None:
        """Do nothing: it makes no difference here."""


def _mark_delete(answer: Any) -> Position:
    """Brokers that do not say it are read from the first message that they have."""
    if not answer.HasField("consumer_mark_delete_position"):
        return EARLIEST
    mark = answer.consumer_mark_delete_position
    return signed64(mark.ledgerId), signed64(mark.entryId)
