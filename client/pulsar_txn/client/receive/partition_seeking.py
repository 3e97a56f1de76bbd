"""Where the subscription of one topic partition is, and how it is moved.

A subscription without memory that was moved to a time is moved there again when it has to subscribe anew before its first
message was handed out: the broker has forgotten the place, and a time is no place that SUBSCRIBE could name.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Any

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.receive.acks import PartlyAcknowledged
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Message
from pulsar_txn.client.receive.partition_chunks import PartitionChunks
from pulsar_txn.client.receive.subscribe_fields import Start, message_id_of, order_of, seek_field
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import MessageId, Position, full_ack_set


class PartitionSeeking(PartitionChunks):
    """The part of `PartitionConsumer` that knows its place. The attributes are set there."""

    last_dequeued: Message[Any] | None
    _last_position: Position | None
    _start: Start | None
    _sought_ms: int | None
    _seeking: asyncio.Future[None] | None

    @abc.abstractmethod
    def end_recall(self) -> None:
        """Hand out what comes."""

    @abc.abstractmethod
    def _drop_queued(self) -> None:
        """All that is queued will come again, or is not wanted any more."""

    async def seek(
        self, *, message_id: MessageId | None = None, publish_time_ms: int | None = None, inclusive: bool = False
    ) -> None:
        """Move the subscription. See `Consumer.seek`."""
        connection = await self._attachment.connected("seek")
        request_id = self._core.next_request_id()
        fields: dict[str, Any] = {"consumer_id": self.id, "request_id": request_id}
        try:  # before anything is dropped
            if message_id is not None:
                fields["message_id"] = seek_field(message_id, inclusive=inclusive)
            else:
                fields["message_publish_time"] = publish_time_ms
            frame = command("seek", **fields)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"{message_id} is no message's place: {error}") from error
        if self._seeking is not None:
            raise InvalidConfiguration(f"{self.topic} is being moved already", hint="wait until the first seek has returned")
        self._seeking = asyncio.get_running_loop().create_future()
        self.end_recall()
        self._drop_queued()  # first: from then on no other thread can take what sets `last_dequeued`
        before = self._start, self.last_dequeued, self._sought_ms
        self._start = Start(EARLIEST_ID if message_id is None else message_id, inclusive)
        self._sought_ms = publish_time_ms if message_id is None else None
        self.last_dequeued = None
        self._acks.clear()
        self.partly_acked = PartlyAcknowledged()
        try:
            await connection.request_frames("seek", request_id, [frame])
        except PulsarError:
            self._start, self.last_dequeued, self._sought_ms = before
            raise
        finally:
            self._sought()

    def _sought(self) -> None:
        self._last_position = None
        if self._seeking is not None:
            self._seeking.set_result(None)
            self._seeking = None

    async def _return_to_time(self, connection: Connection) -> None:
        """Having subscribed anew: go back to the time that was sought, if nothing was handed out since."""
        if self._sought_ms is None or self._options.durable or self.last_dequeued is not None:
            return
        self._seeking = asyncio.get_running_loop().create_future()
        try:
            time = {"consumer_id": self.id, "message_publish_time": self._sought_ms}
            await connection.request("seek", self._core.next_request_id(), **time)
        finally:
            self._sought()

    def _wanted(self, position: Position, batch_size: int) -> int:
        """The messages of an entry that are not in front of the start, as bits.

        On a subscription with memory the broker counts the start itself as unread, so what is skipped of it is
        acknowledged; and that is the end of it, for whatever comes later was moved by others.
        """
        start, whole = self._start, full_ack_set(max(batch_size, 1))
        if start is None or start.position != position:
            wanted = whole
        elif batch_size:
            wanted = start.wanted(batch_size)
        else:
            wanted = whole if start.inclusive else 0
        if self._options.durable:
            self._start = None
            if wanted != whole:
                self._acknowledge_skipped(position, batch_size, whole & ~wanted)
        return wanted

    def _acknowledge_skipped(self, position: Position, batch_size: int, skipped: int) -> None:
        if skipped == full_ack_set(max(batch_size, 1)):
            self.ack_soon((position, -1, batch_size))
        else:
            self.ack_all_soon([(position, index, batch_size) for index in range(batch_size) if skipped >> index & 1])
        self.flush_acks()

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The id of the last message that can be read now, and the subscription's mark-delete position if told."""
        connection = await self._attachment.connected("get_last_message_id")
        answer = await connection.request("getLastMessageId", self._core.next_request_id(), consumer_id=self.id)
        last = message_id_of(answer.last_message_id, self.partition)
        if not answer.HasField("consumer_mark_delete_position"):
            return last, None
        return last, message_id_of(answer.consumer_mark_delete_position, self.partition)

    async def has_more(self) -> bool:
        """Whether there is a message behind what was handed out, or behind the start."""
        start = self._start  # of now, because the answer knows of no acknowledgement that leaves behind the request
        last, mark_delete = await self.last_message_id()
        if last.entry_id < 0:
            return False
        if self.last_dequeued is not None:
            return order_of(last) > order_of(self.last_dequeued.message_id)
        if start is None or start.message_id == LATEST_ID or (self._sought_ms is not None and mark_delete is not None):
            return mark_delete is not None and last.position > mark_delete.position
        first = order_of(start.message_id)
        return order_of(last) >= first if start.inclusive else order_of(last) > first
