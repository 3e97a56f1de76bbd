"""One connection to a broker: handshake, keep-alive, requests by id, frames to the producers and consumers they are for.

Everything happens in callbacks of the event loop; nothing here waits except `handshake`. What is written within one turn
of the loop leaves in one write. A request is a future in a table (`_requests`); who gets what comes in says `_sides`.
When the connection ends, for whatever reason, every request fails with the same typed error and every listener is told
once; nothing is ever sent or received after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from pulsar_txn.client.errors import (
    ConnectionLost,
    OperationTimeout,
    OutOfOrderSequence,
    PulsarError,
    RemoteProtocolError,
    UnknownError,
    UnsupportedVersionError,
)
from pulsar_txn.client.net.authentication import Authentication, current_data
from pulsar_txn.client.net.requests import Requests, Waiter
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.sides import ConnectionListener, ConsumerSide, ProducerSide
from pulsar_txn.wire import hot, hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import FRAME_PADDING, MAX_MESSAGE_SIZE, NAMES, FrameReader, command, decode_command, frame_type
from pulsar_txn.wire.ids import TxnId, coordinator_of, signed64

logger = logging.getLogger("pulsar_txn.client.connection")

CLIENT_VERSION: Final = "pulsar-txn-python-0.1.0"
PROTOCOL_VERSION: Final = 21
MIN_PROTOCOL_VERSION: Final = 17
"""Acknowledgement receipts: without them no acknowledgement can be known to have happened."""

LARGE_BUFFER: Final = 32 * 1024
"""Bytes from which a buffer is written by itself where a transport would copy all buffers into one."""

MAX_FRAME_SIZE: Final = 128 * 1024 * 1024
"""Bytes of a frame that are waited for at most, whatever maximum a broker announces."""

_NO_REQUEST: Final = 2**64 - 1
_FIELD_OF_TYPE: Final = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.name != "type"}
_SEND_RECEIPT: Final = 7
_MESSAGE: Final = 9
_ACK_RESPONSE: Final = 38
_NOT_PULSAR: Final = "is this the binary port (6650, or 6651 with pulsar+ssl://) of a Pulsar broker or proxy?"


def _all_classes(cls: type[PulsarError]) -> list[type[PulsarError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _all_classes(sub))]


_BY_CODE: Final[dict[int, type[PulsarError]]] = {
    int(cls.__dict__["code"]): cls for cls in _all_classes(PulsarError) if cls.__dict__.get("code") is not None
}


def from_server(
    code: int, message: str, *, endpoint: str | None = None, txn_id: TxnId | None = None, maybe_processed: bool = False
) -> PulsarError:
    """The error that a ServerError code of an answer represents; a code newer than this client becomes UnknownError."""
    cls = _BY_CODE.get(code, UnknownError)
    return cls(message, endpoint=endpoint, txn_id=txn_id, maybe_processed=maybe_processed)


def from_send_error(body: Any, endpoint: str) -> PulsarError:
    """The error of a SEND_ERROR."""
    if not body.HasField("expected_sequence_id"):
        return from_server(body.error, body.message, endpoint=endpoint)
    return OutOfOrderSequence(body.message, endpoint=endpoint, expected_sequence_id=signed64(body.expected_sequence_id))


class Connection(asyncio.Protocol):
    """A connection that is usable after `handshake()` and until `closed`."""

    def __init__(self, runtime: Runtime, settings: Settings, endpoint: str, *, proxy_to: str | None = None) -> None:
        self.endpoint = endpoint
        self.max_message_size = MAX_MESSAGE_SIZE
        self.protocol_version = 0
        self.server_version = ""
        self.features = pb.FeatureFlags()
        self.closed = False
        self.error: PulsarError | None = None
        self.producers: dict[int, ProducerSide] = {}
        self.consumers: dict[int, ConsumerSide] = {}
        self._listeners: dict[ConnectionListener, None] = {}
        self._topic_watchers: dict[int, Callable[[], object]] = {}
        self._groups: dict[tuple[int, str], tuple[Callable[[Any], object], Callable[[Any], object]]] = {}
        self._runtime = runtime
        self._settings = settings
        self._proxy_to = proxy_to
        self._client_version = f"{CLIENT_VERSION}-{settings.description}" if settings.description else CLIENT_VERSION
        self._transport: asyncio.Transport | None = None
        self._joins = False
        self._reader = FrameReader(MAX_MESSAGE_SIZE + FRAME_PADDING)
        self._requests = Requests(runtime, endpoint)
        self._waiting_for_exclusive: set[int] = set()
        """Requests of producers that wait for their turn, as long as it takes."""
        self._out: list[bytes] = []
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._heard = True
        self._keep_alive: asyncio.Handle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._handlers: dict[str, Callable[[Any], None]] = {
            "connected": self._on_connected,
            "authChallenge": self._on_auth_challenge,
            "error": self._on_error,
            "send_error": self._on_send_error,
            "close_producer": self._on_close_producer,
            "close_consumer": self._on_close_consumer,
            "active_consumer_change": self._on_active_change,
            "reachedEndOfTopic": self._on_end_of_topic,
            "producer_success": self._on_producer_success,
            "ping": self._on_ping,
            "pong": self._on_pong,
            "watchTopicUpdate": self._on_topic_update,
            "txnCheck": self._on_txn_check,
            "txnCheckDecided": self._on_txn_check_decided,
        }

    # --- life ---------------------------------------------------------------------------------------------------

    async def handshake(self) -> None:
        """Send CONNECT and wait for CONNECTED. The connection is closed when this raises or is cancelled.

        Raises AuthenticationError and other BrokerErrors, UnsupportedVersionError, RemoteProtocolError (not a Pulsar
        server), ConnectionLost, OperationTimeout.
        """
        authentication = self._settings.authentication
        fields: dict[str, Any] = {
            "client_version": self._client_version,
            "protocol_version": PROTOCOL_VERSION,
            "feature_flags": {
                "supports_auth_refresh": True,
                "supports_broker_entry_metadata": True,
                "supports_topic_watchers": True,
                "supports_checks": True,
            },
        }
        if authentication is not None:
            fields |= {"auth_method_name": authentication.method_name, "auth_data": await self._auth_data(authentication)}
        if self._proxy_to is not None:
            fields["proxy_to_broker_url"] = self._proxy_to
        self.write([command("connect", **fields)])
        try:
            async with asyncio.timeout(self._settings.connection_timeout):
                await self._connected
        except TimeoutError:
            seconds = self._settings.connection_timeout
            error = OperationTimeout(f"no answer to CONNECT within {seconds:g} s", endpoint=self.endpoint, hint=_NOT_PULSAR)
            self.close(error)
            raise error from None
        except BaseException as reason:
            self.close(reason if isinstance(reason, PulsarError) else None)
            raise
        self._keep_alive = self._runtime.call_later(self._settings.keep_alive_interval, self._tick)

    async def _auth_data(self, authentication: Authentication) -> bytes:
        """The credentials; if absent in time, the connection is closed and the reason raised."""
        try:
            async with asyncio.timeout(self._settings.connection_timeout):
                return await current_data(authentication)
        except PulsarError as error:
            self.close(error)
            raise
        except TimeoutError:
            seconds = self._settings.connection_timeout
            failure = OperationTimeout(f"no credentials within {seconds:g} s", endpoint=self.endpoint)
            self.close(failure)
            raise failure from None
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self, error: PulsarError | None = None) -> None:
        """End the connection now: requests fail with `error` (ConnectionLost without one), listeners are told."""
        if self.closed:
            return
        if error is None and self._transport is not None:
            self._flush()
        self.closed = True
        self.error = error or ConnectionLost("the connection was closed", endpoint=self.endpoint)
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self._answering is not None and self._answering is not asyncio.current_task():
            self._answering.cancel()
        if self._transport is not None:
            self._transport.close()
        self._fail_everything(self.error)

    def _fail_everything(self, error: PulsarError) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # looked at: nobody may be waiting for the handshake any more
        self._requests.fail_all(error)
        self._out.clear()
        self.producers.clear()
        self.consumers.clear()
        self._topic_watchers.clear()
        self._groups.clear()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners:
            listener.on_connection_lost(self, error)

    def listen(self, listener: ConnectionListener) -> None:
        """Tell this listener of the end of the connection."""
        self._listeners[listener] = None

    def forget(self, listener: ConnectionListener) -> None:
        """Tell this listener nothing any more."""
        self._listeners.pop(listener, None)

    def add_producer(self, producer_id: int, producer: ProducerSide) -> None:
        """Tell a producer of what comes for it."""
        self.producers[producer_id] = producer

    def drop_producer(self, producer_id: int) -> bool:
        """Tell a producer nothing any more. True if the broker still had it."""
        return self.producers.pop(producer_id, None) is not None

    def add_consumer(self, consumer_id: int, consumer: ConsumerSide) -> None:
        """Tell a consumer of what comes for it."""
        self.consumers[consumer_id] = consumer

    def drop_consumer(self, consumer_id: int) -> bool:
        """Tell a consumer nothing any more. True if the broker still had it."""
        return self.consumers.pop(consumer_id, None) is not None

    def wait_for_exclusive(self, request_id: int) -> None:
        """Give a request to create a producer as long as it takes, once the broker says that it waits for its turn."""
        self._waiting_for_exclusive.add(request_id)

    def end_wait(self, request_id: int) -> None:
        """End what `wait_for_exclusive` began, once the request has ended."""
        self._waiting_for_exclusive.discard(request_id)

    def watch_topics(self, watcher_id: int, changed: Callable[[], object]) -> None:
        """Call `changed` when topics of a namespace have come or gone."""
        self._topic_watchers[watcher_id] = changed

    def unwatch_topics(self, watcher_id: int) -> None:
        """End what `watch_topics` began."""
        self._topic_watchers.pop(watcher_id, None)

    def hear_group(self, group: tuple[int, str], asked: Callable[[Any], object], decided: Callable[[Any], object]) -> None:
        """Call `asked` for each TXN_CHECK of a coordinator to a group, and `decided` for each TXN_CHECK_DECIDED."""
        self._groups[group] = asked, decided

    def leave_group(self, group: tuple[int, str]) -> None:
        """End what `hear_group` began."""
        self._groups.pop(group, None)

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The byte stream is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._joins = type(transport).writelines is asyncio.WriteTransport.writelines  # type: ignore[attr-defined]  # a transport has it
        if self._out:
            self._schedule_flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The byte stream is gone."""
        if not self._connected.done():
            hint = _NOT_PULSAR
            text = f"the peer closed the connection during the handshake{f' ({exc})' if exc else ''}"
        else:
            hint = None
            text = f"the connection broke ({exc})" if exc else "the broker closed the connection"
        self.close(ConnectionLost(text, endpoint=self.endpoint, hint=hint))

    def data_received(self, data: bytes) -> None:
        """Bytes came in: split them into frames and hand those on."""
        self._heard = True
        receipt = None if self._reader.buffered else hot.lone_send_receipt(data)
        if receipt is not None:
            self._on_receipt(receipt)
            return
        try:
            for frame in self._reader.feed(data):
                self._on_frame(frame)
        except WireError as error:
            if self._connected.done():
                text, hint = f"the broker sent what this client cannot read: {error}", None
            else:
                text, hint = f"the peer does not speak Pulsar's protocol: {error}", _NOT_PULSAR
            self.close(RemoteProtocolError(text, endpoint=self.endpoint, hint=hint, retriable=self._connected.done()))

    def _on_frame(self, frame: bytes) -> None:
        kind = frame_type(frame)
        if kind == _SEND_RECEIPT:
            self._on_receipt(hot.decode_send_receipt(frame))
        elif kind == _MESSAGE:
            message = hot.decode_message(frame)
            consumer = self.consumers.get(message[0])
            if consumer is not None:
                consumer.on_message(message)
        elif kind == _ACK_RESPONSE:
            _, request_id, txn_id, code, text = hot.decode_ack_response(frame)
            if request_id is not None:
                error = None if code is None else from_server(code, text or "", endpoint=self.endpoint, txn_id=txn_id)
                self._requests.finish(request_id, None, error, "ackResponse")
        elif kind in hot_txn.RESPONSES:
            request_id, txn_id, code, text = hot_txn.decode_response(frame, kind)
            error = None if code is None else from_server(code, text or "", endpoint=self.endpoint)
            self._requests.finish(request_id, txn_id, error, NAMES[kind])
        elif kind in hot_txn.END_RESPONSES:
            request_id, code, text = hot_txn.decode_end_response(frame, kind)
            error = None if code is None else from_server(code, text or "", endpoint=self.endpoint)
            self._requests.finish(request_id, None, error, NAMES[kind])
        else:
            self._on_command(decode_command(frame))

    def _on_receipt(self, receipt: hot.SendReceipt) -> None:
        producer = self.producers.get(receipt[0])
        if producer is not None:
            producer.on_receipt(receipt[1], receipt[2], receipt[3])

    def _on_command(self, cmd: pb.BaseCommand) -> None:
        name = _FIELD_OF_TYPE[int(cmd.type)]
        body = getattr(cmd, name)
        handler = self._handlers.get(name)
        if handler is not None:
            handler(body)
        elif "request_id" in body.DESCRIPTOR.fields_by_name:
            self._on_answer(body, name)
        else:
            logger.debug("%s: %s ignored", self.endpoint, name)

    # --- frames that are not answers --------------------------------------------------------------------------------

    def _on_connected(self, body: Any) -> None:
        self.protocol_version = body.protocol_version
        self.server_version = body.server_version
        self.features = body.feature_flags
        if body.HasField("max_message_size") and body.max_message_size > 0:
            self.max_message_size = body.max_message_size
            if self.max_message_size > MAX_MESSAGE_SIZE and not self._reader.buffered:
                # Nothing can be on its way yet: the broker speaks only when asked, until the first request.
                self._reader = FrameReader(min(self.max_message_size, MAX_FRAME_SIZE) + FRAME_PADDING)
        if self._connected.done():
            return
        if self.protocol_version < MIN_PROTOCOL_VERSION:
            text = f"{self.server_version} speaks protocol version {self.protocol_version}, {MIN_PROTOCOL_VERSION} is needed"
            self._connected.set_exception(UnsupportedVersionError(text, endpoint=self.endpoint))
        else:
            self._connected.set_result(None)

    def _on_auth_challenge(self, body: Any) -> None:
        authentication = self._settings.authentication
        if authentication is None:
            self.close(
                from_server(3, "the broker asks who we are, and the client has no authentication", endpoint=self.endpoint)
            )
            return
        if self._answering is None or self._answering.done():
            self._answering = self._loop.create_task(self._answer_challenge(authentication))

    async def _answer_challenge(self, authentication: Authentication) -> None:
        try:
            data = await self._auth_data(authentication)
        except PulsarError as error:
            logger.warning("%s: the broker asked for fresh credentials, there are none: %s", self.endpoint, error)
            return
        response = {"auth_method_name": authentication.method_name, "auth_data": data}
        fields = {"client_version": self._client_version, "response": response, "protocol_version": PROTOCOL_VERSION}
        self.write([command("authResponse", **fields)])

    def _on_error(self, body: Any) -> None:
        error = from_server(body.error, body.message, endpoint=self.endpoint)
        if not self._connected.done():
            self.close(error)
        elif body.request_id == _NO_REQUEST:
            logger.warning("the broker at %s reports an error that belongs to no request: %s", self.endpoint, error)
        else:
            self._requests.finish(body.request_id, None, error)

    def _on_send_error(self, body: Any) -> None:
        producer = self.producers.get(body.producer_id)
        if producer is not None:
            producer.on_send_error(body.sequence_id, from_send_error(body, self.endpoint))

    def _on_close_producer(self, body: Any) -> None:
        producer = self.producers.pop(body.producer_id, None)
        if producer is not None:
            producer.on_closed_by_broker()

    def _on_close_consumer(self, body: Any) -> None:
        consumer = self.consumers.pop(body.consumer_id, None)
        if consumer is not None:
            consumer.on_closed_by_broker()
        closed = ConnectionLost("the broker closed the consumer", endpoint=self.endpoint)
        self._requests.consumer_closed(body.consumer_id, closed)

    def _on_active_change(self, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.on_active_change(body.is_active)

    def _on_end_of_topic(self, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_topic_update(self, body: Any) -> None:
        changed = self._topic_watchers.get(body.watcher_id)
        if changed is not None:
            changed()

    def _on_txn_check(self, body: Any) -> None:
        heard = self._groups.get((coordinator_of(body.txnid_most_bits), body.group))
        if heard is None:
            logger.debug("%s: a question for group %r, which nobody has joined here", self.endpoint, body.group)
        else:
            heard[0](body)

    def _on_txn_check_decided(self, body: Any) -> None:
        heard = self._groups.get((coordinator_of(body.txnid_most_bits), body.group))
        if heard is not None:
            heard[1](body)

    def _on_ping(self, _body: Any) -> None:
        self.write([_PONG])

    def _on_pong(self, _body: Any) -> None:
        """Any sign of life counts, and this one was counted when its bytes came in."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, name: str, request_id: int, *, timeout: float | None = None, **fields: Any) -> asyncio.Future[Any]:
        """Send a command and return a future of its answer's message.

        The future fails with the answer's typed error, with ConnectionLost (`maybe_processed`), or with OperationTimeout
        after `timeout` seconds (the client's operation timeout by default; `math.inf` waits for ever).
        """
        frame = command(name, request_id=request_id, **fields)
        return self.request_frames(name, request_id, [frame], timeout=timeout, consumer_id=fields.get("consumer_id"))

    def request_frames(
        self,
        name: str,
        request_id: int,
        buffers: Iterable[bytes],
        *,
        timeout: float | None = None,
        consumer_id: int | None = None,
    ) -> asyncio.Future[Any]:
        """As `request`, with the frame encoded by the caller; `name` is for the text of errors.

        A request of a consumer (`consumer_id`) fails with ConnectionLost (`maybe_processed`) when the broker closes it.
        """
        if self.closed:
            refused: asyncio.Future[Any] = self._loop.create_future()
            refused.set_exception(ConnectionLost(self.error.message if self.error else "closed", endpoint=self.endpoint))
            return refused
        seconds = self._settings.operation_timeout if timeout is None else timeout
        future = self._requests.add(request_id, name, seconds, consumer_id)
        self.write(buffers)
        return future

    def ask(
        self,
        waiter: Waiter,
        name: str,
        request_id: int,
        frame: bytes,
        timeout: float,
        *,
        consumer_id: int | None = None,
    ) -> None:
        """As `request_frames`, for somebody who waits already, and is told in place of a future."""
        if self.closed:
            waiter.set_exception(ConnectionLost(self.error.message if self.error else "closed", endpoint=self.endpoint))
            return
        self._requests.await_by(waiter, request_id, name, timeout, consumer_id)
        self._out.append(frame)
        if not self._flush_scheduled:
            self._schedule_flush()

    def _on_answer(self, body: Any, name: str) -> None:
        error = None
        fields = body.DESCRIPTOR.fields_by_name
        if "error" in fields and body.HasField("error"):
            error = from_server(body.error, body.message, endpoint=self.endpoint)
        elif "error_code" in fields and body.HasField("error_code"):
            error = from_server(body.error_code, body.error_message, endpoint=self.endpoint)
        self._requests.finish(body.request_id, body, error, name)

    def _on_producer_success(self, body: Any) -> None:
        if body.producer_ready:
            self._requests.finish(body.request_id, body, None, "producer_success")
        elif body.request_id in self._requests and self._waits_for_exclusive(body.request_id):
            # WaitForExclusive: the broker has put us in the queue and answers again when it is our turn.
            self._requests.lift_deadline(body.request_id)

    def _waits_for_exclusive(self, request_id: int) -> bool:
        """True if it is the request of a producer that wants to wait; nothing else waits without a limit."""
        return request_id in self._waiting_for_exclusive

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, buffers: Iterable[bytes]) -> None:
        """Queue bytes; everything queued in this turn of the loop leaves in one write. Dropped when closed."""
        if self.closed:
            return
        self._out.extend(buffers)
        self._schedule_flush()

    def write_now(self, buffers: Sequence[bytes]) -> None:
        """The same with no wait for the end of the turn, which a program may put off: what peers wait for to go on."""
        if len(buffers) == 1 and not self._out and self._transport is not None and not self.closed:
            self._transport.write(buffers[0])
            return
        self._out.extend(buffers)
        self._flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._transport is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._out or self.closed or self._transport is None:
            return
        out, self._out = self._out, []
        if not self._joins or max(map(len, out)) < LARGE_BUFFER:
            self._transport.writelines(out)
            return
        small: list[bytes] = []
        for buffer in out:
            if len(buffer) >= LARGE_BUFFER:
                self._transport.write(b"".join(small))
                self._transport.write(buffer)
                small.clear()
            else:
                small.append(buffer)
        self._transport.write(b"".join(small))

    def _tick(self) -> None:
        if not self._heard:
            seconds = self._settings.keep_alive_interval
            self.close(ConnectionLost(f"no sign of life from the broker for {seconds:g} s", endpoint=self.endpoint))
            return
        self._heard = False
        self.write([_PING])
        self._keep_alive = self._runtime.call_later(self._settings.keep_alive_interval, self._tick)


_PING: Final = command("ping")
_PONG: Final = command("pong")
