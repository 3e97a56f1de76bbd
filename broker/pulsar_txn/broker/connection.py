"""One client connection: bytes to frames, frames to method calls, and answers collected into one write per loop turn.

SEND, ACK and FLOW are handled here without a task or a future; everything else is in the tables of `commands_*`. Nothing is
read from a socket while the ledger has too much in flight, while too many sends of this connection are not durable yet, or
while the client does not read what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pulsar_txn.ledger.protocols import EntryTooLarge, LedgerError, NameRefused
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.frames import FRAME_PADDING, FrameReader, command, decode_command, frame_type
from pulsar_txn.wire.hot import decode_ack, decode_flow, decode_send, encode_ack_response, encode_send_receipt
from pulsar_txn.wire.ids import Position, TxnId, unsigned64
from pulsar_txn.wire.topics import InvalidName

from .consumers import MAX_BATCH_SIZE, Consumer
from .producers import Producer

if TYPE_CHECKING:
    from pulsar_txn.tc.requests import Identity

    from .broker import Broker

_logger = logging.getLogger(__name__)

Handler: TypeAlias = "Callable[[Connection, Any], Coroutine[Any, Any, None] | None]"
"""Takes a command's body; a coroutine is run as a task of the connection, its Refusal is answered with ERROR.

The tables name the BaseCommand field of the body; an empty name stands for a handler that takes the frame.
"""

CONNECT: Final = 2
PONG: Final = 19
_SEND, _ACK, _FLOW = 6, 10, 11

_HIGH_WATER: Final = 1 << 20
_LOW_WATER: Final = 1 << 18
_MAX_COLLECTED: Final = 4 << 20
_STUCK_SECONDS: Final = 60.0

_LEDGER, _OUTBOUND, _SENDS, _DRAINING = 1, 2, 4, 8
"""Reasons not to read."""


class Connection(asyncio.Protocol):
    """State of one connection.

    `principal`: who the client is (None without authentication); `identity`: its transactional id, if it named one.
    """

    def __init__(self, broker: Broker, handlers: dict[int, tuple[str, Handler]]) -> None:
        self.broker = broker
        self.principal: str | None = None
        self.identity: Identity | None = None
        self.connected = False
        self.writable = True
        self.closed = False
        self.producers: dict[int, Producer] = {}
        self.waiting_producers: dict[int, Producer] = {}
        self.opening_producers: dict[int, asyncio.Task[None]] = {}
        self.consumers: dict[int, Consumer] = {}
        self.opening_consumers: dict[int, asyncio.Task[None]] = {}
        self.client_version = ""
        self.peer = ""
        self._handlers = handlers
        self._reader = FrameReader(broker.config.max_message_size + FRAME_PADDING)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_size = 0
        self._dirty = False
        self._not_reading = 0
        self._pending_sends = 0
        self._max_pending_sends = broker.config.max_pending_publish_requests_per_connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: deque[int] = deque(maxlen=64)
        self._heard = True
        self._stuck_since: float | None = None
        self._asked: asyncio.Future[bool] | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        self.peer = str(transport.get_extra_info("peername"))
        self.broker.connections[self] = None
        if self.broker.under_pressure:
            self.hold_reading(_LEDGER, hold=True)

    def data_received(self, data: bytes) -> None:
        """Cut into frames and carry them out."""
        self._heard = True
        if self._asked is not None:
            self._asked.set_result(True)
            self._asked = None
        try:
            for frame in self._reader.feed(data):
                self._frame(frame)
                if self.closed:
                    return
        except WireError as error:
            _logger.warning("connection from %s is closed: %s", self.peer, error)
            self.close()

    def pause_writing(self) -> None:
        """The client does not read: send and accept nothing more."""
        self.writable = False
        self._stuck_since = self.broker.turn.runtime.monotonic()
        self.hold_reading(_OUTBOUND, hold=True)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck_since = None
        self.hold_reading(_OUTBOUND, hold=False)
        self._be_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it its producers and consumers. Its transactions stay open until their timeout."""
        self.closed = True
        if self._asked is not None:
            self._asked.set_result(False)
            self._asked = None
        self.broker.connections.pop(self, None)
        self.broker.topic_lists.gone(self)
        for task in list(self._tasks):
            task.cancel()
        for producer in [*self.waiting_producers.values(), *self.producers.values()]:
            self.broker.remove_producer(producer)
        for consumer in list(self.consumers.values()):
            consumer.subscription.remove(consumer)
        self.waiting_producers.clear()
        self.producers.clear()
        self.consumers.clear()

    # ---- frames

    def _frame(self, frame: bytes) -> None:
        kind = frame_type(frame)
        if not self.connected and kind != CONNECT:
            raise WireError(f"the first command must be CONNECT, not {kind}")
        if kind == _SEND:
            self._on_send(frame)
        elif kind == _ACK:
            self._on_ack(frame)
        elif kind == _FLOW:
            self._on_flow(frame)
        else:
            handler = self._handlers.get(kind)
            if handler is None:
                raise WireError(f"command {kind} is nothing that a client sends, or not known here")
            name, function = handler
            if not name:  # decodes the frame itself
                function(self, frame)
                return
            body = getattr(decode_command(frame), name)
            try:
                coroutine = function(self, body)
            except (Refusal, InvalidName) as error:
                self.refuse(body, error)
                return
            if coroutine is not None:
                self._spawn(coroutine, body)

    def _on_send(self, frame: bytes) -> None:
        producer_id, sequence_id, _, txn_id, highest, is_chunk, _, entry = decode_send(frame)
        producer = self.producers.get(producer_id)
        if producer is None:
            if producer_id not in self._gone:  # closed a moment ago: its last sends are dropped
                raise WireError(f"SEND for producer {producer_id}, which is not open on this connection")
            return
        producer.pending += 1
        self._pending_sends += 1
        if self._pending_sends == self._max_pending_sends:
            self.hold_reading(_SENDS, hold=True)
        producer.topic.publish(producer, sequence_id, highest, is_chunk, txn_id, entry)

    def _on_flow(self, frame: bytes) -> None:
        consumer_id, permits = decode_flow(frame)
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            consumer.permits += permits
            consumer.subscription.dispatcher.wake()

    def _on_ack(self, frame: bytes) -> None:
        consumer_id, cumulative, ids, txn_id, request_id = decode_ack(frame)
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            return
        subscription = consumer.subscription
        if any(not 0 <= each[3] <= MAX_BATCH_SIZE for each in ids):
            raise WireError(f"ACK of a batch with more than {MAX_BATCH_SIZE} messages, or less than none")
        if txn_id is not None:
            answer = partial(self._acknowledged, consumer_id, request_id, txn_id)
            subscription.acknowledge_in(consumer, txn_id, ids, answer, cumulative=cumulative)
            return
        try:
            ticket = subscription.acknowledge(consumer, ids, cumulative=cumulative)
        except Refusal as refusal:
            self._acknowledged(consumer_id, request_id, None, None, refusal.code, refusal.message)
        except LedgerError as error:
            self._acknowledged(consumer_id, request_id, None, None, ServerError.ServiceNotReady, f"{error}; retry")
        else:
            if request_id is not None:
                subscription.when_stored(ticket, partial(self._acknowledged, consumer_id, request_id, None, None, None, ""))

    def _acknowledged(
        self,
        consumer_id: int,
        request_id: int | None,
        txn_id: TxnId | None,
        value: Any,
        error: ServerError | None,
        message: str,
    ) -> None:
        if request_id is None:
            return
        if error is None:
            self.write(encode_ack_response(consumer_id, request_id, txn=txn_id))
        else:
            self.write(encode_ack_response(consumer_id, request_id, txn=txn_id, error=error, message=message))

    # ---- tasks of cold commands

    def _spawn(self, coroutine: Coroutine[Any, Any, None], body: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._run(coroutine, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: coroutine.close())  # it may be cancelled before its first step

    async def _run(self, coroutine: Coroutine[Any, Any, None], body: Any) -> None:
        try:
            await self.broker.turn.budget.enter()
            await coroutine
        except (Refusal, InvalidName) as error:
            self.refuse(body, error)
        except (EntryTooLarge, NameRefused) as error:
            self.refuse(body, Refusal(ServerError.NotAllowedError, str(error)))
        except LedgerError as error:
            _logger.warning("a request of %s failed: %s", self.peer, error)
            self.refuse(body, Refusal(ServerError.ServiceNotReady, f"{error}; retry"))
        except Exception as error:
            _logger.exception("a request of %s failed", self.peer)
            self.refuse(body, Refusal(ServerError.UnknownError, f"{type(error).__name__}: {error}"))

    def refuse(self, body: Any, error: Refusal | InvalidName) -> None:
        """Answer a request with ERROR."""
        code = error.code if isinstance(error, Refusal) else ServerError.InvalidTopicName
        self.write_command("error", request_id=body.request_id, error=int(code), message=str(error))

    def check_room_for_producer(self, producer_id: int) -> None:
        """Refusal when this connection has too many producers, those included that wait or are being created."""
        held = (self.producers, self.waiting_producers, self.opening_producers)
        self._check_room("producers", producer_id, held, self.broker.config.max_producers_per_connection)

    def check_room_for_consumer(self, consumer_id: int) -> None:
        """Refusal when this connection has too many consumers, those included that are being created."""
        held = (self.consumers, self.opening_consumers)
        self._check_room("consumers", consumer_id, held, self.broker.config.max_consumers_per_connection)

    @staticmethod
    def _check_room(kind: str, channel_id: int, held: Sequence[Collection[int]], limit: int) -> None:
        if limit and sum(len(each) for each in held) >= limit and not any(channel_id in each for each in held):
            text = f"this connection has {limit} {kind}, as many as it may (max{kind.capitalize()}PerConnection)"
            raise Refusal(ServerError.TooManyRequests, f"{text}; close some, open another connection, or raise that key")

    # ---- writing

    def write(self, data: bytes) -> None:
        """Send at the end of this turn."""
        self._out.append(data)
        if not self._dirty:
            self._become_dirty()

    def write_many(self, buffers: Sequence[bytes]) -> None:
        """Send at the end of this turn; dispatchers stop when very much is collected."""
        self._out += buffers
        self._out_size += len(buffers[-1])
        if self._out_size > _MAX_COLLECTED:
            self.writable = False
        if not self._dirty:
            self._become_dirty()

    def write_command(self, name: str, **fields: Any) -> None:
        """Send a command at the end of this turn."""
        self.write(command(name, **fields))

    def _become_dirty(self) -> None:
        self._dirty = True
        self.broker.turn.flush_later(self)

    def flush(self) -> None:
        """One write for everything that was collected."""
        self._dirty = False
        out, self._out, self._out_size = self._out, [], 0
        if self._transport is None or self.closed:
            return
        self._transport.writelines(out)
        if not self.writable and self._stuck_since is None:
            self._be_writable()

    def _be_writable(self) -> None:
        self.writable = True
        for consumer in self.consumers.values():
            consumer.subscription.dispatcher.wake()

    def hold_reading(self, reason: int, *, hold: bool) -> None:
        """Read from the socket only while there is no reason against it."""
        before = self._not_reading
        self._not_reading = before | reason if hold else before & ~reason
        if self._transport is None or self.closed or self._transport.is_closing():
            return
        if self._not_reading and not before:
            self._transport.pause_reading()
        elif before and not self._not_reading:
            self._transport.resume_reading()

    def pressure(self, *, high: bool) -> None:
        """The ledger has too much in flight, or not any more."""
        self.hold_reading(_LEDGER, hold=high)

    def drain(self) -> None:
        """Take no further request; what was taken goes on."""
        self.hold_reading(_DRAINING, hold=True)

    @property
    def is_busy(self) -> bool:
        """Whether a publish or a request of this connection is not answered yet."""
        return self._pending_sends > 0 or bool(self._tasks)

    def close(self) -> None:
        """Write what is collected and close."""
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()

    def tick(self) -> None:
        """Keep-alive, every half minute: PING, and away with a client that was silent or does not read."""
        monotonic = self.broker.turn.runtime.monotonic
        stuck = self._stuck_since is not None and monotonic() - self._stuck_since > _STUCK_SECONDS
        if stuck or (not self._heard and not self._not_reading):
            _logger.info("connection from %s is closed: %s", self.peer, "it does not read" if stuck else "nothing was heard")
            if self._transport is not None:
                self._transport.abort()
            return
        self._heard = False
        if self.connected:
            self.write_command("ping")

    async def is_alive(self) -> bool:
        """PING, and whether anything comes back in time. If not, the connection is gone, and what it held is free.

        For a client that wants a place which an earlier connection holds, maybe one of its own that nobody has ended.
        """
        if self.closed or self._transport is None:
            return False
        if self._not_reading:
            return True
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self.write_command("ping")
            seconds = self.broker.config.connection_liveness_check_timeout_millis / 1000
            self.broker.turn.runtime.call_later(seconds, partial(self._be_silent, self._asked))
        return await asyncio.shield(self._asked)

    def _be_silent(self, asked: asyncio.Future[bool]) -> None:
        if not asked.done() and self._transport is not None:
            _logger.info("connection from %s is closed: its place is wanted, and it does not answer", self.peer)
            self._transport.abort()

    # ---- owner of producers and consumers

    def producer_receipt(self, producer: Producer, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A publish is durable."""
        self._send_settled(producer)
        self.write(
            encode_send_receipt(
                producer.producer_id, sequence_id, position[0], position[1], highest_sequence_id=highest_sequence_id
            )
        )

    def producer_refused(self, producer: Producer, sequence_id: int, error: ServerError, message: str) -> None:
        """A publish was refused."""
        self._send_settled(producer)
        self.write_command(
            "send_error",
            producer_id=producer.producer_id,
            sequence_id=unsigned64(sequence_id),
            error=int(error),
            message=message,
        )

    def _send_settled(self, producer: Producer) -> None:
        if producer.pending:  # 0: the producer was closed meanwhile, and with it all that it had pending
            producer.pending -= 1
            self._pending_sends -= 1
            if self._pending_sends == self._max_pending_sends // 2:
                self.hold_reading(_SENDS, hold=False)

    def producer_closed(self, producer: Producer) -> None:
        """The broker closed the producer: the client is to look its topic up again."""
        if self.producers.get(producer.producer_id) is producer:
            self.forget_producer(producer)
            self.write_command("close_producer", producer_id=producer.producer_id, request_id=unsigned64(-1))

    def forget_producer(self, producer: Producer) -> None:
        """Its last sends may still be on their way."""
        del self.producers[producer.producer_id]
        self._gone.append(producer.producer_id)
        producer.held.clear()
        self._pending_sends -= producer.pending
        producer.pending = 0
        if self._pending_sends <= self._max_pending_sends // 2:
            self.hold_reading(_SENDS, hold=False)

    def consumer_closed(self, consumer: Consumer) -> None:
        """The broker closed the consumer: the client is to look its topic up again."""
        if self.consumers.pop(consumer.consumer_id, None) is not None:
            self.write_command("close_consumer", consumer_id=consumer.consumer_id, request_id=unsigned64(-1))

    def active_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell a Failover consumer; behind the answer to its SUBSCRIBE."""
        self.broker.turn.defer(
            partial(self.write_command, "active_consumer_change", consumer_id=consumer.consumer_id, is_active=active)
        )
