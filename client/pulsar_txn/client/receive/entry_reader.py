"""A reader of whole entries as the broker stores them, for programs that decode many messages at once.

It keeps its place over reconnects, and its queue is bounded by bytes: by permits as long as messages are of similar size, and
by leaving the broker for a while when a jump in size makes more come than was meant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, TypeAlias

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, OperationTimeout, PulsarError, UnsupportedVersionError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.receive.channel import Channel
from pulsar_txn.client.receive.entry_verification import permits_of
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.subscribe_fields import message_id_of, start_field, subscribe_fields
from pulsar_txn.client.state.delivery import Start
from pulsar_txn.client.state.permits import Permits
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import EARLIEST, MessageId, Position

_MOST_MESSAGES: Final = 200_000
_PER_ENTRY: Final = 200
"""Bytes that an entry in the queue costs beside its own."""


OnGap: TypeAlias = Callable[[Position, Position], None]
"""Told of two entries that came one after the other, and whose positions do not follow each other."""


class RawEntry(NamedTuple):
    """An entry as it is stored; `open_entry` decodes it. `num_messages` is 1 for one that is not a batch."""

    ledger_id: int
    entry_id: int
    num_messages: int
    data: bytes

    @property
    def position(self) -> Position:
        """`(ledger id, entry id)`."""
        return (self.ledger_id, self.entry_id)


class HalfMessageEnds(NamedTuple):
    """Half messages that wait beside a topic: the last entry, and the first of the oldest transaction."""

    last: Position
    first: Position | None


class Ends(NamedTuple):
    """Answer of the broker on the ends of a partition and of a reader's place in it.

    `last`: the last entry that can be read now. `passed`: everything up to here was acknowledged by the reader, or is nothing
    that readers see; a fresh reader that began at the end has the partition's physical end there, whoever may read up to it.
    """

    last: Position
    passed: Position
    half_messages: HalfMessageEnds | None = None
    """None where open transactions are in the topic itself, as on every stock broker."""


class AsyncEntryReader:
    """Reads the entries of one topic partition that are visible under read committed; made by `open_entry_reader`.

    Begins with the entry `start`, or with the first visible one after it.
    """

    def __init__(
        self,
        core: Core,
        topic: str,
        partition: int,
        start: MessageId,
        *,
        queue_bytes: int,
        may_create: bool,
        most: int = 0,
        on_gap: OnGap | None = None,
    ) -> None:
        number = int(core.runtime.random() * 2**48)
        self._start = start
        self._queue_bytes = queue_bytes
        self._may_create = may_create
        self._permits = Permits(most or _MOST_MESSAGES, queue_bytes)
        self._queue: deque[RawEntry] = deque()
        self._bytes = 0
        self._last: Position | None = None
        self._on_gap = on_gap
        self._away_since: float | None = None
        self._away_seconds = 0.0  # until it is known whether its place was still there when it came back
        self._missed_seconds = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._failure: PulsarError | None = None
        self._leaving: asyncio.Future[Any] | None = None
        self._options = ConsumerOptions(durable=False)
        self.trouble: PulsarError | None = None
        """Error of the last attempt to attach; None while it is attached."""
        self.paused = 0
        """Number of times that it has left the broker because too many bytes had come."""
        self._channel = Channel(
            core,
            topic,
            partition,
            f"reader-{number:012x}",
            self._options,
            self,
        )

    @property
    def topic(self) -> str:
        """The full name of the topic partition."""
        return self._channel.topic

    @property
    def is_connected(self) -> bool:
        """True if the broker knows this reader at this moment."""
        return self._channel.connection is not None

    @property
    def unsure_seconds(self) -> float:
        """Seconds for which it was away from the broker at most when its place was gone afterwards, as far as is known.

        In such a time other entries may have come and gone. It is 0 when the last entry, or the very next one, came after it.
        """
        return max(self._away_seconds, self._missed_seconds)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Attach; raises the last error when the operation timeout is over."""
        try:
            await self._attach(Retries(self._channel.core, f"opening {self.topic}"))
        except BaseException:
            self._channel.close()
            raise
        self._channel.core.register(self._channel.id, self)

    async def close(self) -> None:
        """Leave the broker; idempotent."""
        channel = self._channel
        channel.core.unregister(channel.id)
        connection = channel.close()
        self._queue.clear()
        self._failure = self._failure or AlreadyClosed(f"the reader of {channel.topic} is closed")
        self._wake()
        if connection is not None and connection.drop_consumer(channel.id):
            request = connection.request("close_consumer", channel.core.next_request_id(), consumer_id=channel.id)
            await asyncio.wait([request])
            if not request.cancelled():
                request.exception()  # whatever it says: the reader is gone, or its connection is

    async def _attach(self, attempts: AbstractAsyncContextManager[None, bool]) -> None:
        while self._channel.is_wanted:
            async with attempts:
                async with self._channel.opening() as connection:
                    await self._subscribe(connection)
                if self._channel.connection is connection:
                    self._opened(connection)
                return

    async def _attach_again(self) -> None:
        try:
            await self._attach(self._channel.attempts())
        except PulsarError as error:
            if self._channel.fail(error):
                self._failure = error
                self._wake()

    async def _subscribe(self, connection: Connection) -> None:
        if self._leaving is not None:
            leaving, self._leaving = self._leaving, None
            await asyncio.wait([leaving])
            leaving.cancelled() or leaving.exception()
        channel = self._channel
        connection.add_consumer(channel.id, self)
        try:
            await connection.request("subscribe", channel.core.next_request_id(), **self._subscribe_fields())
        except BaseException as error:
            connection.drop_consumer(channel.id)
            if isinstance(error, PulsarError):
                self.trouble = error
            if isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                connection.write([command("close_consumer", consumer_id=channel.id, request_id=channel.core.next_request_id())])
            raise
        if connection.closed or connection.consumers.get(channel.id) is not self:
            raise ConnectionLost("the reader was closed while it opened", endpoint=connection.endpoint)

    def _opened(self, connection: Connection) -> None:
        self.trouble = None
        self._has_come_back()
        self._may_create = False  # a topic that is deleted from now on stays so
        waiting = sum(entry.num_messages for entry in self._queue)
        self._give_permits(connection, self._permits.start_over(waiting) or (0 if waiting else 1))

    def _subscribe_fields(self) -> dict[str, Any]:
        channel = self._channel
        start = self._start if self._last is None else MessageId(*self._last)
        fields = subscribe_fields(self._options, None, start_field(Start(start, inclusive=True)))
        names = {"topic": channel.topic, "subscription": channel.subscription, "consumer_name": channel.subscription}
        return names | {"consumer_id": channel.id, "force_topic_creation": self._may_create} | fields

    def _has_come_back(self) -> None:
        since, self._away_since = self._away_since, None
        if since is not None and self._last is not None:
            self._away_seconds = max(self._away_seconds, self._channel.core.runtime.monotonic() - since)

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection has ended."""
        if self._channel.lost(connection):
            self._lost(error)

    def _lost(self, error: PulsarError) -> None:
        if self._away_since is None:
            self._away_since = self._channel.core.runtime.monotonic()
        self.trouble = error
        self._channel.run(self._attach_again())

    # --- what a connection tells --------------------------------------------------------------------------------------

    def on_message(self, frame: hot.Message) -> None:
        """MESSAGE: queue the entry."""
        _, ledger_id, entry_id, _, _, _, _, data = frame
        count = _messages_in(data)
        size = len(data) + _PER_ENTRY
        self._permits.arrived(count, size)
        if self._last is not None and not self._is_new(self._last, (ledger_id, entry_id)):
            self._let_go(count)
            return
        self._last = (ledger_id, entry_id)
        self._queue.append(RawEntry(ledger_id, entry_id, count, data))
        self._bytes += size
        self._wake()
        if self._bytes > 2 * self._queue_bytes and len(self._queue) > 1:
            self._pause()

    def _is_new(self, last: Position, position: Position) -> bool:
        """True if this entry has not come before: after a reconnect the last one comes again, unless it is gone."""
        if position < last:
            return False
        if position in (last, (last[0], last[1] + 1)):
            self._away_seconds = 0.0
        else:
            self._missed_seconds = max(self._missed_seconds, self._away_seconds)
            self._away_seconds = 0.0
            if self._on_gap is not None:
                self._on_gap(last, position)
        return position > last

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves; subscribe again."""
        if self._channel.leave():
            self._lost(ConnectionLost("the broker closed the reader"))

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE: readers are alone."""

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: nothing more comes, which `last_message_id` says as well."""

    # --- taking -------------------------------------------------------------------------------------------------------

    async def take(self, most_bytes: int, timeout: float) -> list[RawEntry]:
        """The entries that are there, at least one and up to about so many bytes; waits up to `timeout` seconds.

        Empty when nothing came in time. Raises what ended the reader for ever. One call at a time; safe to cancel.
        """
        if not self._queue:
            await self.wait(timeout)
        taken: list[RawEntry] = []
        size = 0
        while self._queue and (not taken or size < most_bytes):
            entry = self._queue.popleft()
            size += len(entry.data) + _PER_ENTRY
            taken.append(entry)
        self._bytes -= size
        if taken:
            self._let_go(sum(entry.num_messages for entry in taken))
        return taken

    async def wait(self, timeout: float) -> bool:
        """Until an entry is there, at most so many seconds; whether one is. Raises as `take`."""
        if not self._queue and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._waiter], timeout=timeout)
            self._waiter = None
        if not self._queue and self._failure is not None:
            raise self._failure.with_traceback(None)
        return bool(self._queue)

    def waiting(self) -> tuple[RawEntry, ...]:
        """The entries in the queue."""
        return tuple(self._queue)

    async def last_message_id(self) -> MessageId:
        """The last message that is visible under read committed; entry id -1 for none. Raises the broker's error."""
        connection = await self._channel.connected("last_message_id")
        answer = await self._channel.ask(connection, "getLastMessageId")
        return message_id_of(answer.last_message_id, self._channel.partition)

    async def ends(self, read: Position = EARLIEST) -> Ends:
        """Acknowledge all entries up to `read`, and ask how far the partition and this reader are.

        The acknowledgements are what lets the broker count on: entries that readers do not see (markers, and messages
        of aborted transactions) it acknowledges itself when it comes past them. Raises the broker's error, ConnectionLost,
        OperationTimeout; UnsupportedVersionError when the broker does not tell. Safe to cancel.
        """
        connection = await self._channel.connected("ends")
        if read != EARLIEST:
            place = {"ledgerId": read[0], "entryId": read[1]}
            acknowledged = {"ack_type": pb.CommandAck.Cumulative, "message_id": [place]}
            connection.write([command("ack", consumer_id=self._channel.id, **acknowledged)])
        asks = {"with_halves": True} if connection.features.tells_halves else {}
        answer = await self._channel.ask(connection, "getLastMessageId", **asks)
        if not answer.HasField("consumer_mark_delete_position"):
            raise UnsupportedVersionError("the broker does not tell how far a reader is", endpoint=connection.endpoint)
        last, passed = _position(answer.last_message_id), _position(answer.consumer_mark_delete_position)
        if not answer.HasField("last_half"):
            return Ends(last, passed)
        first = _position(answer.first_waiting_half) if answer.HasField("first_waiting_half") else None
        return Ends(last, passed, HalfMessageEnds(_position(answer.last_half), first))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _let_go(self, messages: int) -> None:
        self._permits.left(messages)
        if self._leaving is not None:
            if self._bytes <= self._queue_bytes // 2 and self._channel.leave(planned=True):
                self._lost(ConnectionLost("the reader goes on"))
        elif self._channel.connection is not None:
            self._give_permits(self._channel.connection, self._permits.due())

    def _give_permits(self, connection: Connection, count: int) -> None:
        if count:
            connection.write_now([hot.encode_flow(self._channel.id, count)])

    def _pause(self) -> None:
        """Messages have become much larger: leave the broker until the queue is short; it goes on after the last one here."""
        connection = self._channel.connection
        if connection is None or not connection.drop_consumer(self._channel.id):
            return
        self.paused += 1
        request_id = self._channel.core.next_request_id()
        self._leaving = connection.request("close_consumer", request_id, consumer_id=self._channel.id)


def _position(place: Any) -> Position:
    return message_id_of(place, -1).position


def _messages_in(data: bytes) -> int:
    try:
        return max(read_header(data).num_messages or 1, 1)
    except WireError:
        return permits_of(data)
