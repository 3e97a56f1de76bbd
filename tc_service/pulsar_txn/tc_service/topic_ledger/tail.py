"""Reads a topic from a place on, to its end and beyond: frames come in as they are written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client.errors import AuthorizationError, PulsarError, TopicTerminatedError
from pulsar_txn.client.inside import Connection
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire import entries, hot
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Position, unsigned64

from .errors import LogTopicRefused
from .line import Line

logger = logging.getLogger("pulsar_txn.tc_service")

_PERMITS: Final = 64
"""Messages on their way at most; one may have as many bytes as the broker takes."""

Take = Callable[[Position, str, memoryview], bool]
"""Takes a message: where it is, its producer's name, its payload. Whether it is new and of the log. Raises LedgerError."""


class Tail:
    """A reader without a durable cursor. `after` is the message that the first one comes after.

    `last` is the last message that is known; whoever knows that more are its own may move it forth. `take` may be another one
    from some message on. `heard` counts the messages that it has called new, `ties` how often the tail was attached.
    `failure` is what ended it for good; `when_failed` is called with it.
    """

    def __init__(self, brokers: Brokers, topic: str, after: Position, take: Take) -> None:
        self.heard = 0
        self.ties = 0
        self.last = after
        self.failure: LedgerError | None = None
        self._brokers = brokers
        self._topic = topic
        self.take = take
        self.when_failed: Callable[[LedgerError], None] = lambda _: None
        self._name = f"pulsar-txn-tail-{int(brokers.runtime.random() * 2**48):012x}"
        self._id = -1
        self._permits = 0
        self._news = asyncio.Event()
        self._line = Line(
            brokers, topic, open_on=self._open_on, on_lost=lambda: None, on_failed=self._failed, is_final=_is_final
        )

    @property
    def is_attached(self) -> bool:
        """True if messages can come in at this moment."""
        return self._line.connection is not None

    def start(self) -> None:
        """Begin to read, in the background."""
        self._line.keep_trying()

    async def until(self, seen: Callable[[], bool]) -> None:
        """Return when `seen` is true, which is asked after messages have come in. Raises what ended the tail."""
        while not seen():
            if self.failure is not None:
                raise self.failure
            self._news.clear()
            await self._news.wait()

    def wake(self) -> None:
        """Have everybody look again who waits in `until`."""
        self._news.set()

    async def close(self) -> None:
        """Leave the broker."""
        connection = self._line.connection
        await self._line.close()
        if connection is not None:
            self._leave(connection)

    async def _open_on(self, connection: Connection) -> None:
        self._id = number = self._brokers.next_id()
        connection.consumers[number] = self
        ledger_id, entry_id = self.last
        fields: dict[str, Any] = {
            "topic": self._topic,
            "subscription": self._name,
            "consumer_name": self._name,
            "consumer_id": number,
            "subType": 0,
            "durable": False,
            "start_message_id": {"ledgerId": unsigned64(ledger_id), "entryId": unsigned64(entry_id)},
        }
        try:
            await connection.request("subscribe", self._brokers.next_id(), **fields)
        except BaseException:
            self._leave(connection)
            raise
        self._permits = _PERMITS
        self.ties += 1
        self._news.set()
        connection.write([hot.encode_flow(number, _PERMITS)])

    def _leave(self, connection: Connection) -> None:
        connection.consumers.pop(self._id, None)
        connection.write([command("close_consumer", consumer_id=self._id, request_id=self._brokers.next_id())])

    def _failed(self, error: Exception) -> None:
        if self.failure is None:
            if not isinstance(error, LedgerError):
                error = LogTopicRefused(f"{self._topic} cannot be read: {error}")
            self.failure = error
            self._news.set()
            self.when_failed(error)

    # ---- what a connection tells

    def on_message(self, frame: hot.Message) -> None:
        """MESSAGE."""
        consumer_id, ledger_id, entry_id, _, _, _, _, data = frame
        if consumer_id != self._id or self.failure is not None:
            return
        where, permits = (ledger_id, entry_id), 1
        if where > self.last:
            producer, payload, permits = _read(data)
            self._one(where, producer, payload)
        self._permits -= permits
        if self._permits <= _PERMITS // 2 and self._line.connection is not None:
            self._line.connection.write([hot.encode_flow(self._id, _PERMITS - self._permits)])
            self._permits = _PERMITS

    def _one(self, where: Position, producer: str, payload: memoryview) -> None:
        try:
            is_new = self.take(where, producer, payload)
        except LedgerError as error:
            self._failed(error)
            return
        self.last = where
        self.heard += is_new
        self._news.set()

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves."""
        self._line.detach()

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE: this reader is alone."""

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: the topic was terminated."""
        self._failed(
            LogTopicRefused(f"{self._topic} was terminated; nobody can write to it any more: choose another ledgerTopicPrefix")
        )


def _read(data: bytes) -> tuple[str, memoryview, int]:
    """The name of the producer, the payload, and the permits that it took; bytes that are no message are nobody's."""
    try:
        metadata = entries.read_metadata(data)
        _, payload = entries.split_entry(data)
    except WireError:
        return "", memoryview(b""), 1
    return metadata.producer_name, payload, max(1, metadata.num_messages_in_batch)


def _is_final(error: PulsarError) -> bool:
    return isinstance(error, AuthorizationError | TopicTerminatedError)
