"""A topic as storage: attached to the broker that serves it, with a durable subscription, a reader and a producer.

The subscription is made before the first message, so nothing is lost. What is acknowledged on it is not needed, and the broker
may delete it. It never asks for messages: readers have cursors of their own. It is open only while something is asked of it,
and several instances may ask at once. `Tail` reads the topic from a place on, to its end and beyond: frames come in as they are
written. A payload is never looked at here.

`Tail` and `Writer` call nobody. They keep what has come in, set the event that they were given, and are asked.

`Writer` is the producer that holds the lease of a log: it becomes the only one, and sends frames in order. The lease is the
producer's exclusive access to the topic, and its epoch the topic's. Mode 2 (WaitForExclusive) waits in the broker's queue until
the leader's connection has gone; mode 3 (ExclusiveWithFencing) sends the leader away. After an unload or a lost connection the
producer comes back in mode 1 (Exclusive) with its epoch, which the broker takes only if nobody led in between. Then everything
without a receipt is sent again, in the same order; readers know a frame that came twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from pulsar_txn.client.errors import (
    AuthorizationError,
    ConnectionLost,
    PulsarError,
    TopicNotFound,
    TopicTerminatedError,
    UsageError,
)
from pulsar_txn.client.inside import Connection
from pulsar_txn.ledger.protocols import LeaseLost, LedgerError, StoreUnsupported
from pulsar_txn.tc_service.cluster.brokers import Brokers, LookupFailed
from pulsar_txn.wire import entries, hot
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import EARLIEST, Position, signed64, unsigned64
from pulsar_txn.wire.lone import LoneSends

logger = logging.getLogger("pulsar_txn.tc_service")

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LAST: Final = len(_PAUSES) - 1
_NEWS: Final = frozenset(5 << doubling for doubling in range(20))
SUBSCRIPTION: Final = "pulsar-txn"
_FAILOVER: Final = 2

_PERMITS: Final = 64
"""Messages on their way at most; one may have as many bytes as the broker takes."""

SHARED: Final = 0
EXCLUSIVE: Final = 1
WAIT_FOR_EXCLUSIVE: Final = 2
EXCLUSIVE_WITH_FENCING: Final = 3
"""Access modes of the protocol."""


class LogTopicRefused(StoreUnsupported):
    """A topic that would lose or split the log, or that cannot be made; the message says what to change."""


def pause_seconds(failures: int) -> float:
    """Pause (seconds) after so many failures in a row."""
    return _PAUSES[min(failures, _LAST)]


def level_of(failures: int) -> int:
    """Log level for one more failure in a row: the sixth, the eleventh and the twenty-first… are news."""
    return logging.WARNING if failures in _NEWS else logging.DEBUG


def as_pulsar_error(error: LookupFailed) -> PulsarError:
    """Translate a lookup that failed to the PulsarError behind it."""
    cause = error.__cause__
    return cause if isinstance(cause, PulsarError) else ConnectionLost(f"the broker of {error} was not found")


class Attachment:
    """The attachment of a reader or producer to the broker that owns `topic`.

    Its owner makes it in a block of `opening()`, and makes it again whenever `attempts()` says that it is time.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self.topic = topic
        self.connection: Connection | None = None
        self._brokers = brokers
        self._broken = False
        self._detached = asyncio.Event()
        self._useless = 0
        self._closed = False

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Connection]:
        """Block in which the owner introduces itself; attached when it ends without an error. Raises PulsarError."""
        try:
            connection = await self._brokers.owner(self.topic)
        except LookupFailed as error:
            raise as_pulsar_error(error) from None
        self._broken = False
        connection.listen(self)
        try:
            yield connection
        except BaseException:
            connection.forget(self)
            raise
        if self._broken or connection.closed or self._closed:
            connection.forget(self)
            raise ConnectionLost(f"the connection for {self.topic} broke while it opened", endpoint=connection.endpoint)
        self.connection = connection
        self._detached.clear()

    async def attempts(self) -> AsyncIterator[None]:
        """Each time that an attempt is due: while nothing is attached, with longer and longer pauses. Without an end."""
        failures = 0
        while True:
            if self.connection is not None:
                await self._detached.wait()
                failures = self._useless
                if failures:
                    await asyncio.sleep(pause_seconds(failures - 1))
            yield
            if self.connection is None:
                await asyncio.sleep(pause_seconds(failures))
                failures += 1

    def on_connection_lost(self, connection: Connection, _error: PulsarError) -> None:
        """The connection's call: it is gone."""
        if connection is self.connection:
            self.detach()
        else:
            self._broken = True

    def detach(self, useless: int = 0) -> None:
        """Attach again, whatever the connection is. `useless`: attachments in a row that were of no use."""
        self._broken = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self)
            self._useless = useless
            self._detached.set()

    def close(self) -> Connection | None:
        """Attach no more; the connection that it had. Idempotent."""
        self._closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self)
        return connection


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """Return once the task has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


class LogSubscription:
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
        connection.add_consumer(number, side)
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
            if connection.drop_consumer(number):
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


class Message(NamedTuple):
    """A message of the topic: where it is, its producer's name, and its payload."""

    where: Position
    producer: str
    payload: memoryview


class Tail:
    """A reader without a durable cursor. `after` is the message that the first one comes after.

    `news` is set when a message has come, which `next_message` returns, or when the tail has failed. `last` is the last message
    that was returned, or skipped. `attachments` counts how often the tail was attached. `failure` is what ended it for good.
    """

    def __init__(self, brokers: Brokers, topic: str, after: Position, news: asyncio.Event) -> None:
        self.attachments = 0
        self.last = after
        self.failure: LedgerError | None = None
        self._brokers = brokers
        self._topic = topic
        self._news = news
        self._arrived: deque[tuple[Message, int]] = deque()
        self._name = f"pulsar-txn-tail-{int(brokers.runtime.random() * 2**48):012x}"
        self._id = -1
        self._permits = 0
        self._attachment = Attachment(brokers, topic)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_attached(self) -> bool:
        """True if messages can come in at this moment."""
        return self._attachment.connection is not None

    def start(self) -> None:
        """Begin to read, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._stay_attached())

    def next_message(self) -> Message | None:
        """The next message that has come; None when there is none."""
        while self._arrived and self.failure is None:
            message, permits = self._arrived.popleft()
            self._used(permits)
            if message.where > self.last:
                self.last = message.where
                return message
        return None

    def skip(self, where: Position) -> None:
        """Go on after this message: its content is known."""
        self.last = where

    async def close(self) -> None:
        """Leave the broker."""
        connection = self._attachment.close()
        await _cancelled(self._task)
        if connection is not None:
            self._leave(connection)

    async def _stay_attached(self) -> None:
        async for _ in self._attachment.attempts():
            try:
                await self._attach()
            except (AuthorizationError, TopicTerminatedError) as error:
                self._fail(f"cannot be read: {error}")
                return
            except PulsarError as error:
                logger.debug("%s: attached not yet: %s", self._topic, error)

    async def _attach(self) -> None:
        async with self._attachment.opening() as connection:
            self._id = number = self._brokers.next_id()
            self._arrived.clear()  # they come again: they are after `last`
            connection.add_consumer(number, self)
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
            self.attachments += 1
            connection.write([hot.encode_flow(number, _PERMITS)])

    def _leave(self, connection: Connection) -> None:
        connection.drop_consumer(self._id)
        connection.write([command("close_consumer", consumer_id=self._id, request_id=self._brokers.next_id())])

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure = LogTopicRefused(f"{self._topic} {why}")
            self._news.set()

    def _used(self, permits: int) -> None:
        """Give the broker as many permits again."""
        self._permits -= permits
        if self._permits <= _PERMITS // 2 and self._attachment.connection is not None:
            self._attachment.connection.write([hot.encode_flow(self._id, _PERMITS - self._permits)])
            self._permits = _PERMITS

    # ---- what a connection tells

    def on_message(self, frame: hot.Message) -> None:
        """MESSAGE."""
        consumer_id, ledger_id, entry_id, _, _, _, _, data = frame
        if consumer_id != self._id or self.failure is not None:
            return
        where = (ledger_id, entry_id)
        if where <= self.last:
            self._used(1)
            return
        producer, payload, permits = _read(data)
        self._arrived.append((Message(where, producer, payload), permits))
        self._news.set()

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves."""
        self._attachment.detach()

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE: this reader is alone."""

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: the topic was terminated."""
        self._fail("was terminated; nobody can write to it any more: choose another ledgerTopicPrefix")


def _read(data: bytes) -> tuple[str, memoryview, int]:
    """The name of the producer, the payload, and the permits that it took; bytes that are no message are nobody's."""
    try:
        metadata = entries.read_metadata(data)
        _, payload = entries.split_entry(data)
    except WireError:
        return "", memoryview(b""), 1
    return metadata.producer_name, payload, max(1, metadata.num_messages_in_batch)


class Receipt(NamedTuple):
    """A payload that was written: its number, from 0 on, and its place (None: the broker knew it already).

    A payload that was sent again may have an earlier place as well, of which no receipt came.
    """

    number: int
    where: Position | None


class Writer:
    """A producer of one topic, with a name of its own.

    `news` is set when a payload was written, which `next_receipt` tells, and when the writer is `lost`: somebody else writes,
    or may do so. Nothing is sent after that.
    """

    def __init__(self, brokers: Brokers, topic: str, name: str, news: asyncio.Event) -> None:
        self.name = name
        self.epoch = -1
        self.max_message_size = 0
        self.lost: LeaseLost | None = None
        self.refusal = ""
        """The broker's last refusal of a message."""
        self._brokers = brokers
        self._topic = topic
        self._mode = WAIT_FOR_EXCLUSIVE
        self._id = -1
        self._sends: LoneSends
        self._next = 0
        self._pending: deque[tuple[int, bytes]] = deque()
        self._receipts: deque[Receipt] = deque()
        self._news = news
        self._left: Connection | None = None
        self._refusals = 0
        self._attachment = Attachment(brokers, topic)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_attached(self) -> bool:
        """True if the broker knows this producer at this moment, as far as we know."""
        return self._attachment.connection is not None

    async def attach(self, mode: int) -> None:
        """Become a producer in this mode; WAIT_FOR_EXCLUSIVE waits for its turn, however long. Raises PulsarError.

        If cancelled: the broker is told that nobody waits any more.
        """
        self._mode = mode
        await self._attach()
        if mode != SHARED:
            self._mode = EXCLUSIVE
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay_attached())

    def send(self, payload: bytes) -> None:
        """Send it after those before it."""
        number, self._next = self._next, self._next + 1
        self._pending.append((number, payload))
        connection = self._attachment.connection
        if connection is not None:
            self._write(connection, (self._pending[-1],))

    async def close(self) -> None:
        """Leave the broker, which gives the lease to the next one. Idempotent; sends nothing more."""
        connection = self._attachment.close()
        await _cancelled(self._task)
        self._pending.clear()
        if connection is not None:
            await self._leave(connection)

    def next_receipt(self) -> Receipt | None:
        """The receipt of the next payload, in the order of sending; None when it has not come."""
        return self._receipts.popleft() if self._receipts else None

    # ---- the attachment

    async def _stay_attached(self) -> None:
        async for _ in self._attachment.attempts():
            try:
                await self._attach()
            except PulsarError as error:
                if self._is_final(error):
                    self.give_up(f"somebody else leads it ({error})")
                    return
                logger.debug("%s: attached not yet: %s", self._topic, error)

    async def _attach(self) -> None:
        async with self._attachment.opening() as connection:
            await self._open_on(connection)

    async def _open_on(self, connection: Connection) -> None:
        left, self._left = self._left, None
        if left is connection and not left.closed:
            await self._leave(connection)  # else the broker would refuse us because of ourselves
        self._id = number = self._brokers.next_id()
        connection.add_producer(number, self)
        request_id = self._brokers.next_id()
        fields: dict[str, Any] = {
            "topic": self._topic,
            "producer_id": number,
            "producer_name": self.name,
            "user_provided_producer_name": True,
            "producer_access_mode": self._mode,
        }
        if self.epoch >= 0:
            fields["topic_epoch"] = self.epoch
        if self._mode == WAIT_FOR_EXCLUSIVE:
            connection.wait_for_exclusive(request_id)
        try:
            answer = await connection.request("producer", request_id, **fields)
        except BaseException:
            connection.drop_producer(number)
            connection.write([command("close_producer", producer_id=number, request_id=self._brokers.next_id())])
            raise
        finally:
            connection.end_wait(request_id)
        self._opened(connection, answer)

    def _opened(self, connection: Connection, answer: Any) -> None:
        if answer.HasField("topic_epoch") and self._mode != SHARED:
            self.epoch = answer.topic_epoch
        self.max_message_size = connection.max_message_size
        self._sends = LoneSends(self._id, self.name, answer.schema_version)
        self._write(connection, self._pending)

    def _write(self, connection: Connection, messages: Iterable[tuple[int, bytes]]) -> None:
        if self.lost is not None:
            return
        now_ms = self._brokers.runtime.wall_ms()
        connection.write([self._sends.encode(number, now_ms, payload) for number, payload in messages])

    async def _leave(self, connection: Connection) -> None:
        """Say goodbye, and wait until it is heard; whatever the answer is, the producer is gone, or its connection."""
        connection.drop_producer(self._id)
        await asyncio.wait([connection.request("close_producer", self._brokers.next_id(), producer_id=self._id)])

    def _is_final(self, error: PulsarError) -> bool:
        if self._mode == SHARED:
            return isinstance(error, AuthorizationError | TopicTerminatedError)
        return isinstance(error, UsageError) or not error.retriable

    def give_up(self, why: str) -> None:
        """The lease is of no use any more."""
        if self.lost is None:
            self.lost = LeaseLost(f"{self._topic}: {why}; what was not confirmed may be in the log or not")
            self._news.set()

    # ---- what a connection tells

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """SEND_RECEIPT: of the oldest; receipts come in order."""
        if not self._pending or sequence_id < self._pending[0][0] or self.lost is not None:
            return
        if sequence_id != self._pending[0][0]:
            self._again()  # a receipt was skipped: only sending again can tell what the broker has
            return
        self._pending.popleft()
        self._refusals = 0
        self._receipts.append(Receipt(sequence_id, (ledger_id, entry_id) if entry_id >= 0 else None))
        self._news.set()

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR: whether the topic moves, or we were sent away, the next attempt to attach tells."""
        if self.is_attached:
            self._refusals += 1
            self.refusal = str(error)
            self._again()

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the topic moves."""
        self._attachment.detach()

    def _again(self) -> None:
        connection = self._attachment.connection
        if connection is not None:
            self._left = connection
            self._attachment.detach(self._refusals)
