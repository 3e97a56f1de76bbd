"""One client connection: bytes to frames, frames to commands, and answers collected into one write per loop turn.

What the commands mean is the business of a `Session`; this file knows no topic and no transaction, so another server of the
same protocol can use it. Nothing is taken from a client while the ledger has too much in flight, while too many sends or
requests of this connection are not answered yet, or while the client does not read what it is sent (see `intake`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, cast

from google.protobuf.message import Message

from pulsar_txn.broker.base.limits import MAX_ACK_IDS, LimitReached, Limits
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import EntryTooLarge, LedgerError, NameRefused
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.frames import FRAME_PADDING, NAMES, command, decode_command, frame_type
from pulsar_txn.wire.ids import unsigned64
from pulsar_txn.wire.topics import InvalidName

from .clients import Client
from .intake import COLLECTED, DRAINING, FRAMES_PER_TURN, LEDGER, OUTBOUND, REQUESTS, Intake

_logger = logging.getLogger(__name__)

Command: TypeAlias = "Callable[[Any, Any], Coroutine[Any, Any, None] | None]"
"""Takes the session and a command's body; a coroutine is run as a task, and its Refusal is answered with ERROR."""

Refused: TypeAlias = "Callable[[bytes, ServerError, str], bytes]"
"""Makes the answer to a request that was refused, from what it needs to know of the request."""


MAX_TEXT_LENGTH: Final = 65_536
MAX_PROPERTIES: Final = 100
MAX_ITEMS: Final = 1000
_MOST: Final = {"KeyValue": MAX_PROPERTIES, "MessageIdData": MAX_ACK_IDS}
"""Of a repeated field, by the type of its items; else MAX_ITEMS."""
_NAMES: Final = frozenset({"topic", "subscription", "namespace", "initial_subscription_name"})
"""The parsers of these refuse long ones, with a code and a text of their own."""


def validate_request(body: Message) -> None:
    """Refusal NotAllowedError for a body, or a message in it, with a text or a list that is too long."""
    for field, value in body.ListFields():
        if isinstance(value, str):
            if len(value) > MAX_TEXT_LENGTH and field.name not in _NAMES:
                raise _refused(field.name, f"has {len(value)} characters, and {MAX_TEXT_LENGTH} are the most")
        elif isinstance(value, Message):
            validate_request(value)
        elif not isinstance(value, (bytes, int, float)):
            _validate_list(field, value)


def _validate_list(field: Any, values: Any) -> None:
    kind = field.message_type.name if field.message_type is not None else ""
    most = _MOST.get(kind, MAX_ITEMS)
    if len(values) > most:
        raise _refused(field.name, f"has {len(values)} items, and {most} are the most")
    if kind == "KeyValue" and any(len(each.key) + len(each.value) > MAX_TEXT_LENGTH for each in values):
        raise _refused(field.name, f"has a property of more than {MAX_TEXT_LENGTH} characters")


def _refused(name: str, what: str) -> Refusal:
    return Refusal(ServerError.NotAllowedError, f"{name} {what}; send less of it")


class Server(Protocol):
    """State that all connections of one server share."""

    config: BrokerConfig
    turn: Turn
    limits: Limits

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight."""

    @property
    def connections(self) -> MutableMapping[Client, None]:
        """Those that were let in, in the order in which they came."""


class Session(Protocol):
    """Session that a server keeps for one client, which takes the client's commands, by their type.

    `frames` and `requests` take whole frames, `commands` the body of the command.
    """

    @property
    def frames(self) -> Mapping[int, Callable[[bytes], None]]:
        """Commands that decode their frame themselves."""

    @property
    def requests(self) -> Mapping[int, Callable[[bytes], None]]:
        """As `frames`, but the connection counts each one as a request until `Connection.answer`."""

    @property
    def commands(self) -> Mapping[int, Command]:
        """Commands that protobuf decodes."""

    @property
    def is_busy(self) -> bool:
        """True if something is not answered yet that the connection does not count as a request."""

    def writable_changed(self, *, writable: bool) -> None:
        """The client reads what it is sent, or does not."""

    def ended(self) -> None:
        """The client is gone."""


class _NoSession:
    """The session of a connection that has ended: a circle less, so the connection is freed at once."""

    frames: Mapping[int, Callable[[bytes], None]] = {}
    requests: Mapping[int, Callable[[bytes], None]] = {}
    commands: Mapping[int, Command] = {}
    is_busy = False

    def writable_changed(self, *, writable: bool) -> None:
        """Do nothing: nobody waits."""

    def ended(self) -> None:
        """Do nothing: the connection has ended."""


CONNECT: Final = int(pb.BaseCommand.CONNECT)

_HIGH_WATER: Final = 1 << 20
_LOW_WATER: Final = 1 << 18
_MAX_COLLECTED: Final = 4 << 20
_STUCK_SECONDS: Final = 60.0
_MAX_REQUEST_BYTES: Final = 8 << 20
"""The requests of a connection that are under way, except the last one."""
_NO_REQUEST: Final = unsigned64(-1)
_TYPE_TAG: Final = 8
_SHORTEST_USUAL: Final = 7
_NOTHING: Final[Mapping[int, Callable[[bytes], None]]] = {}
"""Commands that are handed on at once of a client that has not said CONNECT."""


class Connection(asyncio.Protocol):
    """State of one connection. `serve` comes before the first byte."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connected = False
        self.writable = True
        self.closed = False
        self.client_version = ""
        self.peer = ""
        max_frame_bytes = server.config.max_message_size + FRAME_PADDING
        self._intake = Intake(self._go_on, max_frame_bytes, server.limits, server.turn.runtime)
        self._requests = 0  # that are taken and not answered
        self._max_requests = server.config.max_concurrent_requests_per_connection
        self._transport: asyncio.Transport | None = None
        self._address: str | None = None  # once it was let in
        self._out: list[bytes] = []
        self._out_size = 0
        self._dirty = False
        self._request_bytes = 0
        self._list_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = True
        self._stuck_since: float | None = None
        self._stuck_bytes = 0  # that waited for the client then
        self._asked: asyncio.Future[bool] | None = None
        self.session: Session = _NoSession()

    def serve(self, session: Session) -> None:
        """Hand what the client sends to this session, which the server keeps for it."""
        self.session = session

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer)
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        reached = self.server.limits.enter(address)
        if reached is not None:
            _logger.info("connection from %s is refused: %s", self.peer, reached)
            self.write_command("error", request_id=_NO_REQUEST, error=int(reached.code), message=reached.message)
            self.close()
            return
        self._address = address
        self.server.connections[self] = None
        self._intake.attach(self._transport)
        if self.server.under_pressure:
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
            frames = self._intake.feed(data)
            if len(frames) == 1:
                self._frame(frames[0])
            elif frames:
                self._take(frames)
        except WireError as error:
            self._broken(error)

    def _go_on(self) -> None:
        """The loop says that frames which waited may be taken."""
        frames = self._intake.released()
        if frames:
            try:
                self._take(frames)
            except Exception as error:  # noqa: BLE001 - a mistake closes its own connection
                self._broken(error)
                return
        self._intake.read_on()

    def _broken(self, error: Exception) -> None:
        if isinstance(error, WireError):
            _logger.warning("connection from %s is closed: %s", self.peer, error)
        else:
            _logger.error("connection from %s is closed", self.peer, exc_info=error)
        self.close()

    def pause_writing(self) -> None:
        """The client does not read: send and accept nothing more."""
        self._be_unwritable()
        self._be_stuck()
        self._intake.hold(OUTBOUND, hold=True)

    def _be_stuck(self) -> None:
        if self._transport is not None:
            self._stuck_since = self.server.turn.runtime.monotonic()
            self._stuck_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck_since = None
        self._settle_lists()
        self._intake.hold(OUTBOUND, hold=False)
        self._be_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it all that its session has."""
        self.closed = True
        self._intake.close()
        if self._asked is not None:
            self._asked.set_result(False)
            self._asked = None
        if self._address is not None:
            self.server.limits.leave(self._address)
            self._address = None
        self._settle_lists()
        self.server.connections.pop(self, None)
        for task in list(self._tasks):
            task.cancel()
        session, self.session = self.session, _NoSession()
        session.ended()

    # ---- frames

    def _take(self, frames: list[bytes]) -> None:
        """Carry out frames, as many as one client may have in a turn, and only while there is no reason against it."""
        intake, source = self._intake, iter(frames)
        takes, counted = (self.session.frames, self.session.requests) if self.connected else (_NOTHING, _NOTHING)
        for frame in islice(source, FRAMES_PER_TURN):
            # All known peers write the type first, and sizes that agree.
            kind = frame[5] if len(frame) > _SHORTEST_USUAL and frame[4] == _TYPE_TAG else -1
            if (take := takes.get(kind)) is not None:
                take(frame)
            elif (take := counted.get(kind)) is not None:
                self._requests += 1
                if self._requests == self._max_requests:
                    intake.hold(REQUESTS, hold=True)
                take(frame)
            else:
                self._frame(frame)
            if intake.reasons:
                break
        intake.keep(source)

    def _frame(self, frame: bytes) -> None:
        # All known peers write the type first and a size that agrees: then no call is needed to find it.
        kind = frame[5] if len(frame) > _SHORTEST_USUAL and frame[4] == _TYPE_TAG and frame[5] < 128 else frame_type(frame)
        if not self.connected and kind != CONNECT:
            raise WireError(f"the first command must be CONNECT, not {kind}")
        session = self.session
        take = session.frames.get(kind)
        if take is None:
            take = session.requests.get(kind)
            if take is None:
                self._command(kind, frame)
                return
            self.begin_request()
        take(frame)

    def _command(self, kind: int, frame: bytes) -> None:
        handler = self.session.commands.get(kind)
        if handler is None:
            raise WireError(f"command {kind} is nothing that a client sends, or not known here")
        self._intake.cold()
        body = getattr(decode_command(frame), NAMES[kind])
        try:
            validate_request(body)
            coroutine = handler(self.session, body)
        except (Refusal, InvalidName) as error:
            self.refuse(body, error)
            return
        if coroutine is not None:
            self._spawn(coroutine, body, len(frame))

    # ---- tasks of cold commands

    def _spawn(self, coroutine: Coroutine[Any, Any, None], body: Any, size: int) -> None:
        try:
            self.server.limits.begin_request(size)
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
        self.server.limits.end_request(size)
        self.end_request()

    def begin_request(self) -> None:
        """A request is under way; `end_request` follows."""
        self._requests += 1
        if self._requests == self._max_requests:
            self._intake.hold(REQUESTS, hold=True)

    def end_request(self) -> None:
        """Note that it is answered."""
        self._requests -= 1
        if self._intake.reasons:
            self._fewer_requests()

    def _fewer_requests(self) -> None:
        if self._requests <= self._max_requests // 2 and self._request_bytes < _MAX_REQUEST_BYTES:
            self._intake.hold(REQUESTS, hold=False)

    def answer(self, data: bytes) -> None:
        """A request is answered: send it at the end of this turn."""
        self._requests -= 1
        if self._intake.reasons:
            self._fewer_requests()
        self._out.append(data)
        if not self._dirty:
            self._become_dirty()

    def respond(self, done: bytes, refused: Refused, about: bytes, value: Any, error: ServerError | None, message: str) -> None:
        """As `answer`, for a request whose answer is known beforehand: `done`, or after an error `refused(about, …)`.

        With its first three arguments it is an Answer (see `ledger.hosting`).
        """
        self._requests -= 1
        if self._intake.reasons:
            self._fewer_requests()
        self._out.append(done if error is None else refused(about, error, message))
        if not self._dirty:
            self._become_dirty()

    async def _run(self, coroutine: Coroutine[Any, Any, None], body: Any) -> None:
        try:
            await self.server.turn.budget.enter()
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
            self.server.limits.note_reached(error.key)
        self.write_command("error", request_id=body.request_id, error=int(code), message=str(error))

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
        if self._out_size > _MAX_COLLECTED and self.writable:
            self._be_unwritable()
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
        self.server.limits.list_written(self._out_size - before)

    def _settle_lists(self) -> None:
        """The client took them, or is gone."""
        self.server.limits.list_taken(self._list_bytes)
        self._list_bytes = 0

    async def drained(self) -> None:
        """Wait until the client has taken nearly everything that it was sent. If the connection ends: cancelled."""
        while not self.writable:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _become_dirty(self) -> None:
        self._dirty = True
        self.server.turn.flush_later(self)

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

    def _be_unwritable(self) -> None:
        self.writable = False
        self.session.writable_changed(writable=False)

    def _be_writable(self) -> None:
        self.writable = True
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        self.session.writable_changed(writable=True)

    def know(self, client_version: str) -> None:
        """The client has said CONNECT."""
        self.connected = True
        self.client_version = client_version
        self._intake.know()

    def pressure(self, *, high: bool) -> None:
        """The ledger has too much in flight, or has room again."""
        self._intake.hold(LEDGER, hold=high)

    def drain(self) -> None:
        """Take no further request; what was taken goes on."""
        self._intake.hold(DRAINING, hold=True)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate that the client showed, and TLS has checked; None for none."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    @property
    def is_busy(self) -> bool:
        """True if something that this client asked for is not answered yet."""
        return self._requests > 0 or self.session.is_busy

    def hold(self, reason: int, *, hold: bool) -> None:
        """Take commands only while there is no reason against it; reasons are those of `intake`."""
        self._intake.hold(reason, hold=hold)

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
        monotonic = self.server.turn.runtime.monotonic
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
            seconds = self.server.config.connection_liveness_check_timeout_millis / 1000
            self.server.turn.runtime.call_later(seconds, partial(self._be_silent, self._asked))
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
