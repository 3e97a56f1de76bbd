"""The front as a part of a service: its ports, its coordinators, and the connections of its clients.

Each client has one connection here, and one to a broker that belongs to it. Bytes go on in both directions as they come;
`commands` takes out the frames that the front has to see. What the front answers by itself goes to the client between two
frames of the broker. Each direction is read only while the other side takes what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from pulsar_txn.broker.serving import (
    Authentication,
    BrokerConfig,
    Coordinators,
    Limits,
    Ports,
    Runtime,
    TakeOvers,
    TransactionalIds,
    Turn,
    reachable,
)
from pulsar_txn.client.inside import Runtime as ClientRuntime
from pulsar_txn.tc import TransactionCoordinator
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.server.clusters import Clusters
from pulsar_txn.tc_service.server.commands import Services, Sessions
from pulsar_txn.tc_service.server.leaders import Address, Leaders
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError, WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, unsigned64

from .commands import FROM_BROKER, FROM_CLIENT, PASS_THROUGH, ClientCommands, FrameSplitter, FrontBrokers, with_size

_logger = logging.getLogger("pulsar_txn.tc_service.front")

_HIGH_WATER: Final = 1 << 18
_LOW_WATER: Final = 1 << 16
_NO_REQUEST: Final = unsigned64(-1)
_CONNECT: Final = int(pb.BaseCommand.CONNECT)
_LOOKS: Final = 4
_SILENT_TICKS: Final = 2
_CONNECTING, _BROKER, _OUTBOUND, _REQUESTS, _LEDGER, _DRAINING = (1 << bit for bit in range(6))
"""Reasons not to read the client."""


class Upstream(asyncio.Protocol):
    """The connection to a broker, for one client."""

    def __init__(self, client: FrontConnection) -> None:
        self._client = client
        self.transport: asyncio.Transport | None = None
        self.reads = True
        """True while the broker reads what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)

    def data_received(self, data: bytes) -> None:
        """Pass data on to the client."""
        self._client.from_broker(data)

    def pause_writing(self) -> None:
        """The broker does not read."""
        self.reads = False
        self._client.hold(_BROKER, hold=True)

    def resume_writing(self) -> None:
        """Go on: it reads again."""
        self.reads = True
        self._client.hold(_BROKER, hold=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End for the client what the broker ends."""
        self._client.close()

    def close(self) -> None:
        """Close it. What was taken from the client still goes to a broker that reads. Idempotent."""
        if self.transport is not None and not self.transport.is_closing():
            if self.reads:
                self.transport.close()
            else:
                self.transport.abort()


class FrontConnection(asyncio.Protocol):
    """One client of the front. Implements the broker's protocols `Answering` and `Client`."""

    def __init__(self, front: ClientsFront) -> None:
        self.connected = False
        self.peer = ""
        self._front = front
        self._brokers: FrontBrokers = front.brokers
        self._commands = ClientCommands(front, self)
        self._transport: asyncio.Transport | None = None
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._from_client = FrameSplitter(FROM_CLIENT, strict=True)
        self._from_broker = FrameSplitter(FROM_BROKER, strict=False)
        self._address: str | None = None
        self._out: list[bytes] = []
        self._dirty = False
        self._reasons = 0
        self._requests = 0
        self._writable = True
        self._closed = False
        self._looks = 0
        self._silent_ticks = 0
        self._unsent_bytes: dict[str, int] = {}

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here. With its broker it takes two places of `brokerMaxConnections`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer)
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        limits = self._front.limits
        reached = limits.enter(address)
        if reached is None and (reached := limits.enter("")) is not None:
            limits.leave(address)
        if reached is not None:
            self._refuse(Refusal(reached.code, reached.message))
            return
        self._address = address
        self._front.connections[self] = None
        if self._front.under_pressure:
            self.hold(_LEDGER, hold=True)

    def data_received(self, data: bytes) -> None:
        """Take data from the client."""
        if self._closed:
            return
        self._silent_ticks = 0
        try:
            pieces = self._from_client.feed(data)
            if self._upstream is None and pieces:
                pieces = self._on_first_frame(pieces)
            self._commands.on_client_frames(pieces)
        except WireError as error:
            self._broken(error)

    def from_broker(self, data: bytes) -> None:
        """Pass data of the broker on to the client, with answers of ours between two frames."""
        if self._closed or self._transport is None:
            return
        try:
            out = [
                piece if kind == PASS_THROUGH else self._commands.on_broker_frame(kind, piece)
                for kind, piece in self._from_broker.feed(data)
            ]
        except WireError as error:
            self._broken(error)
            return
        self._transport.writelines(out)
        if self._out:
            self.flush()

    def pause_writing(self) -> None:
        """The client does not read: nothing more is read for it, nor from it."""
        self._writable = False
        self.hold(_OUTBOUND, hold=True)
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable = True
        self.hold(_OUTBOUND, hold=False)
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and its broker need not wait for it."""
        self._closed = True
        if self._address is not None:
            self._front.limits.leave(self._address)
            self._front.limits.leave("")
            self._address = None
        self._front.connections.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.close()
        self._commands.ended()
        self._out.clear()

    # ---- the broker

    def _on_first_frame(self, pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Take CONNECT, and connect to a broker; the client has nothing more to say until that has answered."""
        if self._connecting is not None or pieces[0][0] != _CONNECT or len(pieces) > 1:
            raise MalformedFrame("the first command must be CONNECT, and the next one comes after its answer")
        frame = pieces[0][1]
        try:
            target = self._commands.on_connect(frame)
        except Refusal as refusal:
            self._refuse(refusal)
            return []
        self.hold(_CONNECTING, hold=True)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(frame, target))
        return []

    async def _connect(self, frame: bytes, target: Any) -> None:
        try:
            upstream = await self._brokers.connect(lambda: Upstream(self), target)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        finally:
            self._connecting = None
        self._upstream = upstream
        if self._closed or upstream.transport is None:
            upstream.close()
            return
        upstream.transport.write(with_size(frame))
        if not self._writable:
            upstream.transport.pause_reading()
        self.hold(_CONNECTING, hold=False)

    def forward(self, data: list[bytes]) -> None:
        """Forward to the broker."""
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.writelines(data)

    # ---- Answering

    @property
    def writable(self) -> bool:
        """True if the client takes what it is sent."""
        return self._writable

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The broker would not see it, so it proves nothing here."""
        return None

    def know(self, client_version: str) -> None:
        """The broker has let the client in."""
        self.connected = True

    def begin_request(self) -> None:
        """A request is taken; `answer` or `respond` follows."""
        self._requests += 1
        if self._requests == self._front.config.max_concurrent_requests_per_connection:
            self.hold(_REQUESTS, hold=True)

    def end_request(self) -> None:
        """Note that it is answered."""
        self._requests -= 1
        if self._reasons & _REQUESTS and self._requests <= self._front.config.max_concurrent_requests_per_connection // 2:
            self.hold(_REQUESTS, hold=False)

    def write(self, data: bytes) -> None:
        """Send at the end of this turn, or of the broker's frame that is on its way."""
        self._out.append(data)
        if not self._dirty:
            self._dirty = True
            self._front.turn.flush_later(self)

    def write_command(self, name: str, **fields: Any) -> None:
        """Write a command; see `write`."""
        self.write(command(name, **fields))

    def answer(self, data: bytes) -> None:
        """Answer a request."""
        self.end_request()
        self.write(data)

    def respond(self, done: bytes, refused: Any, about: bytes, value: Any, error: ServerError | None, message: str) -> None:
        """See `broker.net.connection.Connection.respond`."""
        self.answer(done if error is None else refused(about, error, message))

    def flush(self) -> None:
        """Write what was collected, unless the broker is amid a frame."""
        self._dirty = False
        if self._out and self._from_broker.is_between and self._transport is not None and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.writelines(out)

    def close(self) -> None:
        """Write what is collected, and end both connections."""
        if self._closed or self._transport is None:
            return
        self.flush()
        self._closed = True
        if self._writable:
            self._transport.close()
        else:
            self._transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        _logger.info("connection from %s is closed: %s", self.peer, refusal.message)
        self.write_command("error", request_id=_NO_REQUEST, error=int(refusal.code), message=refusal.message)
        self.close()

    def _broken(self, error: WireError) -> None:
        _logger.warning("connection from %s is closed, because it does not speak Pulsar's protocol: %s", self.peer, error)
        self.close()

    # ---- when the client is read

    def hold(self, reason: int, *, hold: bool) -> None:
        """Read the client only while there is no reason against it."""
        before = self._reasons
        self._reasons = before | reason if hold else before & ~reason
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._reasons and not before:
            transport.pause_reading()
        elif before and not self._reasons:
            transport.resume_reading()

    # ---- Client, as `broker.net.clients` looks after it

    @property
    def is_busy(self) -> bool:
        """True if something that this client asked for is not answered yet."""
        return self._requests > 0

    def pressure(self, *, high: bool) -> None:
        """The store has too much in flight, or has room again."""
        self.hold(_LEDGER, hold=high)

    def drain(self) -> None:
        """Take nothing more from the client."""
        self.hold(_DRAINING, hold=True)

    def look(self) -> None:
        """Close clients that were not admitted in time, because they do not say CONNECT for example."""
        self._looks = self._looks + 1 if not self.connected else 0
        if self._looks >= _LOOKS:
            self._abort("it does not say CONNECT, or the broker does not answer")

    def tick(self) -> None:
        """Every half minute. Client and broker ask each other whether they live; here is seen who takes nothing any more."""
        self._silent_ticks = self._silent_ticks + 1 if not self._reasons else 0
        if self._silent_ticks > _SILENT_TICKS:
            self._abort("nothing was heard")
        elif self._is_stuck("client", self._transport, reads=self._writable):
            self._abort("it does not read")
        elif self._upstream is not None and self._is_stuck("broker", self._upstream.transport, reads=self._upstream.reads):
            self._abort("its broker does not read")

    def _is_stuck(self, who: str, transport: asyncio.Transport | None, *, reads: bool) -> bool:
        """True if as much waits for somebody as two looks ago, or more."""
        before = self._unsent_bytes.pop(who, None)
        if reads or transport is None:
            return False
        waiting = transport.get_write_buffer_size()
        if before is not None and waiting >= before:
            return True
        self._unsent_bytes[who] = waiting
        return False

    def _abort(self, why: str) -> None:
        _logger.info("connection from %s is closed: %s", self.peer, why)
        if self._transport is not None:
            self._transport.abort()


@attrs.define
class FrontServices:
    """Services that the commands of an unchanged client ask of the server; implements `server.commands.Services`."""

    coordinators: Coordinators
    config: BrokerConfig
    turn: Turn
    clusters: Clusters
    authentication: Authentication
    limits: Limits
    is_shared: bool = False
    leaders: Leaders = attrs.field(init=False)
    transactional_ids: TransactionalIds | None = None
    take_overs: TakeOvers | None = None
    service_url: str = ""
    service_url_tls: str = ""
    sessions: Sessions = attrs.field(factory=Sessions)
    ends_groups: bool = TransactionCoordinator.ends_groups
    checks: bool = False  # nobody there could be asked

    def __attrs_post_init__(self) -> None:
        self.leaders = Leaders(self, is_shared=self.is_shared, of_fronts=True)

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """See `server.commands.Services`."""
        return decode(participant)


class ClientsFront:
    """The front of a service that was started: `start()`, and `close()` before the service is closed.

    The service looks after its connections as after all others, and sends them away when it ends.
    """

    def __init__(
        self,
        service: CoordinatorService,
        config: CoordinatorConfig,
        clusters: Mapping[str, ClusterConfig],
        runtime: Runtime,
        client_runtime: ClientRuntime,
    ) -> None:
        name = config.front_cluster or next(iter(clusters))
        coordinators = service.front_coordinators
        assert coordinators is not None  # noqa: S101 - the same configuration has made them
        self.brokers = FrontBrokers(name, clusters[name], client_runtime)
        self.services: Services = FrontServices(
            coordinators,
            service.config,
            service.turn,
            service.clusters.seen_from(name),
            service.authentication,
            service.limits,
            service.leaders.is_shared,
        )
        self.config = service.config
        self.turn = service.turn
        self.limits = service.limits
        self.connections = service.connections
        self.keeps_proxy_through = config.front_keeps_proxy_through_service_url
        self._service = service
        self._keys = config
        self._ports = Ports("frontServicePort", config, runtime, service.limits)

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight, so that no client is read."""
        return self._service.under_pressure

    @property
    def address(self) -> Address:
        """The service URLs for clients, as other instances are told them; empty before the start."""
        return Address(self.services.service_url, self.services.service_url_tls)

    @property
    def addresses(self) -> list[str]:
        """The service URLs for clients, without and with TLS."""
        return [url for url in (self.services.service_url, self.services.service_url_tls) if url]

    def connection(self) -> FrontConnection:
        """A protocol for a new client."""
        return FrontConnection(self)

    async def start(self) -> None:
        """Listen, before the service leads a coordinator: other instances lead clients here then. Raises CannotListen."""
        keys, services, ports = self._keys, self.services, self._ports
        await ports.open(keys.bind_address, keys.front_service_port, keys.front_service_port_tls, self.connection)
        services.service_url, services.service_url_tls = ports.urls(reachable(keys.bind_address, keys.advertised_address))

    async def close(self) -> None:
        """Accept nobody more. Idempotent."""
        await self._ports.close()
