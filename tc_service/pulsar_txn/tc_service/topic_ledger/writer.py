"""The producer that holds the lease of a log: it becomes the only one, and sends frames in order.

The lease is the producer's exclusive access to the topic, and its epoch the topic's. Mode 2 (WaitForExclusive) waits in the
broker's queue until the leader's connection has gone; mode 3 (ExclusiveWithFencing) sends the leader away. After an unload or
a lost connection the producer comes back in mode 1 (Exclusive) with its epoch, which the broker takes only if nobody led in
between. Then everything without a receipt is sent again, in the same order; readers know a frame that came twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsar_txn.client.errors import AuthorizationError, PulsarError, TopicTerminatedError, UsageError
from pulsar_txn.client.inside import Connection
from pulsar_txn.ledger.protocols import LeaseLost
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Position
from pulsar_txn.wire.lone import LoneSends

from .line import Line

SHARED: Final = 0
EXCLUSIVE: Final = 1
WAIT_FOR_EXCLUSIVE: Final = 2
EXCLUSIVE_WITH_FENCING: Final = 3
"""Access modes of the protocol."""


class Writer:
    """A producer of one topic, with a name of its own.

    Its owner sets `when_written`, called for each payload, in order, with its number from 0 on and its place (None: the broker
    knew it already). A payload that was sent again may have an earlier place as well, of which no receipt came. And it sets
    `when_lost`, called once when somebody else writes, or may do so: nothing is sent after that.
    """

    def __init__(self, brokers: Brokers, topic: str, name: str) -> None:
        self.name = name
        self.when_written: Callable[[int, Position | None], None] = lambda _number, _where: None
        self.when_lost: Callable[[LeaseLost], None] = lambda _: None
        self.epoch = -1
        self.max_message_size = 0
        self.lost: LeaseLost | None = None
        self.refusal = ""
        """What the broker said last when it refused a message."""
        self._brokers = brokers
        self._topic = topic
        self._mode = WAIT_FOR_EXCLUSIVE
        self._id = -1
        self._sends: LoneSends
        self._next = 0
        self._pending: deque[tuple[int, bytes]] = deque()
        self._left: Connection | None = None
        self._refusals = 0
        self._line = Line(
            brokers, topic, open_on=self._open_on, on_lost=self._tie_lost, on_failed=self._failed, is_final=self._is_final
        )

    @property
    def is_attached(self) -> bool:
        """True if the broker knows this producer at this moment, as far as we know."""
        return self._line.connection is not None

    async def attach(self, mode: int) -> None:
        """Become a producer in this mode; WAIT_FOR_EXCLUSIVE waits for its turn, however long. Raises PulsarError.

        If cancelled: the broker is told that nobody waits any more.
        """
        self._mode = mode
        await self._line.attach()
        if mode != SHARED:
            self._mode = EXCLUSIVE

    def send(self, payload: bytes) -> None:
        """Send it after those before it."""
        number, self._next = self._next, self._next + 1
        self._pending.append((number, payload))
        connection = self._line.connection
        if connection is not None:
            self._write(connection, (self._pending[-1],))

    async def close(self) -> None:
        """Leave the broker, which gives the lease to the next one. Idempotent; sends nothing more."""
        connection = self._line.connection
        await self._line.close()
        self._pending.clear()
        if connection is not None:
            await self._leave(connection)

    # ---- the tie

    async def _open_on(self, connection: Connection) -> None:
        left, self._left = self._left, None
        if left is connection and not left.closed:
            await self._leave(connection)  # else the broker would refuse us because of ourselves
        self._id = number = self._brokers.next_id()
        connection.producers[number] = self
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
            connection.waiting_for_exclusive.add(request_id)
        try:
            answer = await connection.request("producer", request_id, **fields)
        except BaseException:
            connection.producers.pop(number, None)
            connection.write([command("close_producer", producer_id=number, request_id=self._brokers.next_id())])
            raise
        finally:
            connection.waiting_for_exclusive.discard(request_id)
        self._opened(connection, answer)

    def _opened(self, connection: Connection, answer: Any) -> None:
        if answer.HasField("topic_epoch") and self._mode != SHARED:
            self.epoch = answer.topic_epoch
        self.max_message_size = connection.max_message_size
        self._sends = LoneSends(self._id, self.name, answer.schema_version)
        self._write(connection, self._pending)

    def _write(self, connection: Connection, messages: Iterable[tuple[int, bytes]]) -> None:
        now_ms = self._brokers.runtime.wall_ms()
        connection.write([self._sends.encode(number, now_ms, payload) for number, payload in messages])

    async def _leave(self, connection: Connection) -> None:
        """Say goodbye, and wait until it is heard; whatever the answer is, the producer is gone, or its connection."""
        connection.producers.pop(self._id, None)
        await asyncio.wait([connection.request("close_producer", self._brokers.next_id(), producer_id=self._id)])

    def _tie_lost(self) -> None:
        """A new one is being made."""

    def _failed(self, error: PulsarError) -> None:
        self._lose(f"somebody else leads it ({error})")

    def _is_final(self, error: PulsarError) -> bool:
        if self._mode == SHARED:
            return isinstance(error, AuthorizationError | TopicTerminatedError)
        return isinstance(error, UsageError) or not error.retriable

    def give_up(self, why: str) -> None:
        """The lease is of no use any more."""
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = LeaseLost(f"{self._topic}: {why}; what was not confirmed may be in the log or not")
            self.when_lost(self.lost)

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
        self.when_written(sequence_id, (ledger_id, entry_id) if entry_id >= 0 else None)

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR: whether the topic moves, or we were sent away, the next attempt to attach tells."""
        if self.is_attached:
            self._refusals += 1
            self.refusal = str(error)
            self._again()

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the topic moves."""
        self._line.detach()

    def _again(self) -> None:
        connection = self._line.connection
        if connection is not None:
            self._left = connection
            self._line.detach(self._refusals)
