"""One client connection: bytes to frames, frames to method calls, and answers collected into one write per loop turn.

SEND, ACK and FLOW are handled here without a task or a future; everything else is in the tables of `commands`. Nothing is
taken from a client while the ledger has too much in flight, while too many sends or requests of this connection are not
answered yet, or while the client does not read what it is sent (see `intake`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.broker.dispatch.consumers import MAX_ACK_IDS, MAX_BATCH_SIZE, Consumer
from pulsar_txn.broker.topics.producers import Producer
from pulsar_txn.ledger.protocols import EntryTooLarge, LedgerError, NameRefused
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.frames import FRAME_PADDING, command, decode_command, frame_type
from pulsar_txn.wire.hot import decode_ack, decode_flow, decode_send, encode_ack_response, encode_send_receipt
from pulsar_txn.wire.ids import Position, TxnId, unsigned64
from pulsar_txn.wire.topics import InvalidName

from .intake import COLLECTED, DRAINING, LEDGER, OUTBOUND, REQUESTS, SENDS, Intake
from .opened import OpenedTransactions
from .request_checks import check_request

if TYPE_CHECKING:
    from pulsar_txn.broker.broker import Broker
    from pulsar_txn.tc.requests import Identity

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
_MAX_REQUEST_BYTES: Final = 8 << 20
"""Of a connection's requests that are under way, but for the last one."""
_NO_REQUEST: Final = unsigned64(-1)


class Connection(asyncio.Protocol):
    """State of one connection.

    `principal`: who the client is (None without authentication); `identity`: its transactional id, if it named one.
    """

    def __init__(self, broker: Broker, handlers: dict[int, tuple[str, Handler]]) -> None:
        self.broker = broker
        self.principal: str | None = None
        self.identity: Identity | None = None
        self.opened = OpenedTransactions()
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
        self._intake = Intake(
            self._frame,
            self._broken,
            broker.config.max_message_size + FRAME_PADDING,
            broker.limits,
            broker.turn.runtime.call_soon,
        )
        self._transport: asyncio.Transport | None = None
        self._address: str | None = None  # once it was let in
        self._out: list[bytes] = []
        self._out_size = 0
        self._dirty = False
        self._pending_sends = 0
        self._max_pending_sends = broker.config.max_pending_publish_requests_per_connection
        self._requests = 0
        self._max_requests = broker.config.max_concurrent_requests_per_connection
        self._request_bytes = 0
        self._list_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: deque[int] = deque(maxlen=64)
        self._heard = True
        self._stuck_since: float | None = None
        self._stuck_bytes = 0  # that waited for the client then
        self._asked: asyncio.Future[bool] | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer)
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        reached = self.broker.limits.enter(address)
        if reached is not None:
            _logger.info("connection from %s is refused: %s", self.peer, reached)
            self.write_command("error", request_id=_NO_REQUEST, error=int(reached.code), message=reached.message)
            self.close()
            return
        self._address = address
        self.broker.connections[self] = None
        self._intake.attach(self._transport)
        if self.broker.under_pressure:
            self._intake.hold(LEDGER, hold=True)

    def data_received(self, data: bytes) -> None:
        """Cut into frames and carry them out."""
        if self.closed:
            return
        self._heard = True
        if self._asked is not None:
            self._asked.set_result(True)
            self._asked = None
        try:
            self._intake.feed(data)
        except WireError as error:
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        if isinstance(error, WireError):
            _logger.warning("connection from %s is closed: %s", self.peer, error)
        else:
            _logger.error("connection from %s is closed", self.peer, exc_info=error)
        self.close()

    def pause_writing(self) -> None:
        """The client does not read: send and accept nothing more."""
        self.writable = False
        self._be_stuck()
        self._intake.hold(OUTBOUND, hold=True)

    def _be_stuck(self) -> None:
        if self._transport is not None:
            self._stuck_since = self.broker.turn.runtime.monotonic()
            self._stuck_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck_since = None
        self._settle_lists()
        self._intake.hold(OUTBOUND, hold=False)
        self._be_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it its producers and consumers. Its transactions stay open until their timeout."""
        self.closed = True
        self._intake.close()
        if self._asked is not None:
            self._asked.set_result(False)
            self._asked = None
        if self._address is not None:
            self.broker.limits.leave(self._address)
            self._address = None
        self._settle_lists()
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
            self._intake.cold()
            body = getattr(decode_command(frame), name)
            try:
                check_request(body)
                coroutine = function(self, body)
            except (Refusal, InvalidName) as error:
                self.refuse(body, error)
                return
            if coroutine is not None:
                self._spawn(coroutine, body, len(frame))

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
            self._intake.hold(SENDS, hold=True)
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
        if len(ids) > MAX_ACK_IDS:
            raise WireError(f"ACK of {len(ids)} messages; {MAX_ACK_IDS} are the most in one")
        if request_id is not None:
            consumer.pending_acks += 1
            self.begin_request()
        subscription = consumer.subscription
        if any(not 0 <= each[3] <= MAX_BATCH_SIZE for each in ids):
            raise WireError(f"ACK of a batch with more than {MAX_BATCH_SIZE} messages, or less than none")
        answer = None if request_id is None else partial(self._acknowledged, consumer, request_id, txn_id)
        if txn_id is None:
            subscription.acknowledge(consumer, ids, answer, cumulative=cumulative)
        else:
            subscription.acknowledge_in(consumer, txn_id, ids, answer or _unheard, cumulative=cumulative)

    def _acknowledged(
        self,
        consumer: Consumer,
        request_id: int,
        txn_id: TxnId | None,
        value: Any,
        error: ServerError | None,
        message: str,
    ) -> None:
        if consumer.pending_acks:  # 0: the consumer was closed meanwhile, and with it all that it had pending
            consumer.pending_acks -= 1
            self.end_request()
        if error is None:
            self.write(encode_ack_response(consumer.consumer_id, request_id, txn=txn_id))
        else:
            self.write(encode_ack_response(consumer.consumer_id, request_id, txn=txn_id, error=error, message=message))

    # ---- tasks of cold commands

    def _spawn(self, coroutine: Coroutine[Any, Any, None], body: Any, size: int) -> None:
        try:
            self.broker.limits.begin_request(size)
        except LimitReached as reached:
            coroutine.close()
            self.refuse(body, reached)
            return
        self._request_bytes += size
        if self._request_bytes >= _MAX_REQUEST_BYTES:
            self._intake.hold(REQUESTS, hold=True)
        self.begin_request()
        task = asyncio.get_running_loop().create_task(self._run(coroutine, body))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, coroutine, size))

    def _ended(self, coroutine: Coroutine[Any, Any, None], size: int, task: asyncio.Task[None]) -> None:
        coroutine.close()  # it may have been cancelled before its first step
        self._tasks.discard(task)
        self._request_bytes -= size
        self.broker.limits.end_request(size)
        self.end_request()

    def begin_request(self) -> None:
        """A request is under way; `end_request` follows."""
        self._requests += 1
        if self._requests == self._max_requests:
            self._intake.hold(REQUESTS, hold=True)

    def end_request(self) -> None:
        """It is answered."""
        self._requests -= 1
        if self._intake.reasons and self._requests <= self._max_requests // 2 and self._request_bytes < _MAX_REQUEST_BYTES:
            self._intake.hold(REQUESTS, hold=False)

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
        """Answer a request with ERROR; one that has no answer closes the connection."""
        if not hasattr(body, "request_id"):
            self._broken(WireError(str(error)))
            return
        code = error.code if isinstance(error, Refusal) else ServerError.InvalidTopicName
        if isinstance(error, LimitReached):
            self.broker.limits.reached[error.key] += 1
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
            raise LimitReached(f"max{kind.capitalize()}PerConnection", f"this connection has {limit} {kind}")

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
        """Send a command at the end of this turn; no request is taken while very much is collected."""
        data = command(name, **fields)
        self._out_size += len(data)
        if self._out_size > _MAX_COLLECTED:
            self._intake.hold(COLLECTED, hold=True)
        self.write(data)

    def write_list(self, name: str, **fields: Any) -> None:
        """As `write_command`, for an answer that may be long; inside `Broker.list_turn`."""
        before = self._out_size
        self.write_command(name, **fields)
        self._list_bytes += self._out_size - before
        self.broker.limits.list_bytes += self._out_size - before

    def _settle_lists(self) -> None:
        """The client took them, or is gone."""
        self.broker.limits.list_bytes -= self._list_bytes
        self._list_bytes = 0

    async def drained(self) -> None:
        """Return when the client has taken, but for a little, what it was sent. If the connection ends: cancelled."""
        while not self.writable:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

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
        if self._intake.reasons:
            self._intake.hold(COLLECTED, hold=False)
        if self._list_bytes and not self._transport.get_write_buffer_size():
            self._settle_lists()
        if not self.writable and self._stuck_since is None:
            self._be_writable()

    def _be_writable(self) -> None:
        self.writable = True
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        for consumer in self.consumers.values():
            consumer.subscription.dispatcher.wake()

    def know(self, client_version: str) -> None:
        """The client has said CONNECT."""
        self.connected = True
        self.client_version = client_version
        self._intake.know()

    def pressure(self, *, high: bool) -> None:
        """The ledger has too much in flight, or not any more."""
        self._intake.hold(LEDGER, hold=high)

    def drain(self) -> None:
        """Take no further request; what was taken goes on."""
        self._intake.hold(DRAINING, hold=True)

    @property
    def is_busy(self) -> bool:
        """Whether a publish or a request of this connection is not answered yet."""
        return self._pending_sends > 0 or self._requests > 0

    def close(self) -> None:
        """Write what is collected and close."""
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._intake.close()
            self._transport.close()

    def look(self) -> None:
        """From time to time: away with a client that does not say CONNECT, or does not finish what it began to say."""
        if self._transport is None or self.closed:
            return
        if self._list_bytes and not self._transport.get_write_buffer_size():
            self._settle_lists()
        if self._intake.is_overdue(connected=self.connected):
            what = "a frame is not completed" if self.connected else "it does not say CONNECT"
            _logger.info("connection from %s is closed: %s", self.peer, what)
            self._transport.abort()

    def tick(self) -> None:
        """Keep-alive, every half minute: PING, and away with a client that was silent or does not read at all."""
        transport = self._transport
        if self._stuck_since is not None and transport is not None and transport.get_write_buffer_size() < self._stuck_bytes:
            self._be_stuck()  # slow, but it reads
        monotonic = self.broker.turn.runtime.monotonic
        stuck = self._stuck_since is not None and monotonic() - self._stuck_since > _STUCK_SECONDS
        if stuck or (not self._heard and not self._intake.reasons):
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
        if self._intake.reasons:
            return True
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self.write_command("ping")
            seconds = self.broker.config.connection_liveness_check_timeout_millis / 1000
            self.broker.turn.runtime.call_later(seconds, partial(self._be_silent, self._asked))
        return await asyncio.shield(self._asked)

    def _be_silent(self, asked: asyncio.Future[bool]) -> None:
        if asked.done() or self._transport is None:
            return
        if self._intake.reasons:  # it may have answered: we do not listen
            asked.set_result(True)
            self._asked = None
        else:
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
                self._intake.hold(SENDS, hold=False)

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
            self._intake.hold(SENDS, hold=False)

    def consumer_closed(self, consumer: Consumer) -> None:
        """The broker closed the consumer: the client is to look its topic up again."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            self.forget_consumer(consumer)
            self.write_command("close_consumer", consumer_id=consumer.consumer_id, request_id=unsigned64(-1))

    def forget_consumer(self, consumer: Consumer) -> None:
        """It is closed; what it acknowledged may be answered later, or never."""
        del self.consumers[consumer.consumer_id]
        for _ in range(consumer.pending_acks):
            self.end_request()
        consumer.pending_acks = 0

    def active_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell a Failover consumer; behind the answer to its SUBSCRIBE."""
        self.broker.turn.defer(
            partial(self.write_command, "active_consumer_change", consumer_id=consumer.consumer_id, is_active=active)
        )


def _unheard(value: Any, error: ServerError | None, message: str) -> None:
    """The answer of a request whose client asked for none."""
