"""Place of the subscription of one topic partition, and its moves.

A subscription without memory that was moved to a time is moved there again when it has to subscribe again before its first
message was handed out: the broker has forgotten the place, and a time is no place that SUBSCRIBE could name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.receive.committed import CommittedPosition, ask_committed
from pulsar_txn.client.receive.line import Line
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Source
from pulsar_txn.client.receive.options import InitialPosition
from pulsar_txn.client.receive.owners import Place
from pulsar_txn.client.receive.subscribe_fields import Start, message_id_of, order_of, seek_field
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import MessageId, Position, full_ack_set


class Seeking:
    """Knows the place of one partition's subscription, and moves it.

    `begin(after)` is where the chunks begin of messages that end after a position, if that is before it.
    `start_over()` drops what is queued; `forget()` forgets what is known of acknowledgements; `skip(places)` acknowledges
    messages that nobody asked for.
    """

    def __init__(
        self,
        line: Line,
        of: Source,
        *,
        begin: Callable[[Position], Position | None],
        start_over: Callable[[], None],
        forget: Callable[[], None],
        skip: Callable[[Sequence[Place]], None],
    ) -> None:
        options = line.options
        first = None if options.durable else options.start_message_id
        if first is None and not options.durable and options.initial_position is InitialPosition.EARLIEST:
            first = EARLIEST_ID
        self.start = None if first is None else Start(first, options.start_message_id_inclusive)
        """Where a subscription without memory begins, or one with memory was just moved to."""
        self.passed: Start | None = None
        """What was handed out last, when the subscription starts before it for the sake of chunks."""
        self.last_position: Position | None = None
        """The position that the broker has delivered last, since it started over."""
        self.seeking: asyncio.Future[None] | None = None
        """Done when the subscription was moved."""
        self._line = line
        self._of = of
        self._begin = begin
        self._start_over = start_over
        self._forget = forget
        self._skip = skip
        self._sought_ms: int | None = None

    def start_field(self) -> dict[str, Any] | None:
        """The place where a subscription without memory begins, for SUBSCRIBE."""
        return None if self._line.options.durable else (self.start or Start(LATEST_ID)).field()

    def subscribes_again(self) -> None:
        """All that is queued will come again; without memory the subscription goes on after what was handed out."""
        if not self._line.options.durable and self._of.last is not None:
            self._go_on_after(self._of.last.message_id)
        self.last_position = None

    def _go_on_after(self, last: MessageId) -> None:
        """Chunks that were here are not here any more: those of messages that end after `last` must come again."""
        begin = self._begin(last.position)
        if begin is not None:
            self.start, self.passed = Start(MessageId(*begin), inclusive=True), Start(last)
        elif self.passed is None or self.passed.message_id != last:  # else the connection broke before they had come again
            self.start, self.passed = Start(last), None

    async def seek(
        self, *, message_id: MessageId | None = None, publish_time_ms: int | None = None, inclusive: bool = False
    ) -> None:
        """Move the subscription. See `Consumer.seek`."""
        connection = await self._line.connected("seek")
        request_id = self._line.core.next_request_id()
        fields: dict[str, Any] = {"consumer_id": self._line.id, "request_id": request_id}
        try:  # before anything is dropped
            if message_id is not None:
                fields["message_id"] = seek_field(message_id, inclusive=inclusive)
            else:
                fields["message_publish_time"] = publish_time_ms
            frame = command("seek", **fields)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"{message_id} is no message's place: {error}") from error
        if self.seeking is not None:
            raise InvalidConfiguration(
                f"{self._line.topic} is being moved already", hint="wait until the first seek has returned"
            )
        self.seeking = asyncio.get_running_loop().create_future()
        self._start_over()  # first: from then on no other thread can take what sets `last`
        before = self.start, self.passed, self._of.last, self._sought_ms
        self.passed = None
        self.start = Start(EARLIEST_ID if message_id is None else message_id, inclusive)
        self._sought_ms = publish_time_ms if message_id is None else None
        self._of.last = None
        self._forget()
        try:
            await connection.request_frames("seek", request_id, [frame])
        except PulsarError:
            self.start, self.passed, self._of.last, self._sought_ms = before
            raise
        finally:
            self._sought()

    def _sought(self) -> None:
        self.last_position = None
        if self.seeking is not None:
            self.seeking.set_result(None)
            self.seeking = None

    async def return_to_time(self, connection: Connection) -> None:
        """After a new SUBSCRIBE: go back to the time that was sought, if nothing was handed out since."""
        if self._sought_ms is None or self._line.options.durable or self._of.last is not None:
            return
        self.seeking = asyncio.get_running_loop().create_future()
        try:
            time = {"consumer_id": self._line.id, "message_publish_time": self._sought_ms}
            await connection.request("seek", self._line.core.next_request_id(), **time)
        finally:
            self._sought()

    def wanted(self, position: Position, batch_size: int) -> int:
        """The messages of an entry that are not before the start, as bits.

        On a subscription with memory the broker counts the start itself as unread, so what is skipped of it is
        acknowledged. That is done once, because whatever comes later was moved by others.
        """
        start, whole = self.passed or self.start, full_ack_set(max(batch_size, 1))
        if self.passed is not None and position < self.passed.position:
            wanted = 0
        elif start is None or start.position != position:
            wanted = whole
        elif batch_size:
            wanted = start.wanted(batch_size)
        else:
            wanted = whole if start.inclusive else 0
        if self._line.options.durable:
            self.start = None
            if wanted != whole:
                self._acknowledge_skipped(position, batch_size, whole & ~wanted)
        return wanted

    def _acknowledge_skipped(self, position: Position, batch_size: int, skipped: int) -> None:
        if skipped == full_ack_set(max(batch_size, 1)):
            self._skip([(position, -1, batch_size)])
        else:
            self._skip([(position, index, batch_size) for index in range(batch_size) if skipped >> index & 1])

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The id of the last message that can be read now, and the subscription's mark-delete position if told."""
        answer = await self._line.ask_until_answered("get_last_message_id", "getLastMessageId")
        last = message_id_of(answer.last_message_id, self._line.partition)
        if not answer.HasField("consumer_mark_delete_position"):
            return last, None
        return last, message_id_of(answer.consumer_mark_delete_position, self._line.partition)

    async def committed(self, *, require_stable: bool) -> CommittedPosition:
        """The subscription's committed position here; see `Consumer.committed`."""
        return await ask_committed(self._line, require_stable=require_stable)

    async def has_more(self) -> bool:
        """True if there is a message after what was handed out, or after the start."""
        start = self.start  # of now, because the answer knows of no acknowledgement that leaves after the request
        last, mark_delete = await self.last_message_id()
        if last.entry_id < 0:
            return False
        if self._of.last is not None:
            return order_of(last) > order_of(self._of.last.message_id)
        if start is None or start.message_id == LATEST_ID or (self._sought_ms is not None and mark_delete is not None):
            return mark_delete is not None and last.position > mark_delete.position
        first = order_of(start.message_id)
        return order_of(last) >= first if start.inclusive else order_of(last) > first
