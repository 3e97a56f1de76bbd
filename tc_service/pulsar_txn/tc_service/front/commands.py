"""Commands that the front answers itself: it takes their frames out of a client's stream. Also the brokers that it may lead to.

Only the commands of transactions, and those on the way to the coordinators, are seen. All else passes on: what nobody wants is
never put together, and its bytes go on as they come, in runs as long as their segment, whatever the frames in it are. So a
message of any size costs a look at its first ten bytes, and no memory.

A client is led to the brokers of the front's cluster alone: those of its service URL, and those that lookups have named.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.inside import Address, Runtime, Settings, TlsFiles, parse_service_url
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.tc_service.server.commands import REQUESTS, Session, assign_partition, on_tc_connect
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import FrameTooLarge, MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.frames import decode_command, encode_command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

if TYPE_CHECKING:
    from .front import ClientsFront, FrontConnection

_logger = logging.getLogger("pulsar_txn.tc_service.front")

P = TypeVar("P", bound=asyncio.BaseProtocol)

PASS_THROUGH: Final = -1
"""In place of a frame's type: bytes that go on."""
MAX_WANTED_BYTES: Final = 1 << 17
"""Of a frame that is put together. What is wanted are requests with names in them, and credentials."""
_START_BYTES: Final = 10
"""Total size, command size, and a type of one byte with its tag: no command is shorter."""
_LEAST_SIZE: Final = _START_BYTES - 4
_TYPE_TAG: Final = 8
_MAX_LEARNED: Final = 1024
_CONNECT_SECONDS: Final = 5.0
_CONNECT: Final = int(pb.BaseCommand.CONNECT)
_CONNECTED: Final = int(pb.BaseCommand.CONNECTED)
_LOOKUP: Final = int(pb.BaseCommand.LOOKUP)
_LOOKUP_RESPONSE: Final = int(pb.BaseCommand.LOOKUP_RESPONSE)
_METADATA: Final = int(pb.BaseCommand.PARTITIONED_METADATA)
_TC_CONNECT: Final = int(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST)
_CHALLENGE: Final = int(pb.BaseCommand.AUTH_CHALLENGE)
_RESPONSE: Final = int(pb.BaseCommand.AUTH_RESPONSE)
FROM_CLIENT: Final = frozenset({_CONNECT, _LOOKUP, _METADATA, _TC_CONNECT, _RESPONSE, *REQUESTS})
FROM_BROKER: Final = frozenset({_CONNECTED, _LOOKUP_RESPONSE, _CHALLENGE})
"""Types of the frames that are put together, and seen."""
_ASSIGN: Final = ASSIGN_TOPIC.rpartition("/")[2].encode()
_TLS_ONLY: Final = (
    "a client cannot show its certificate to a broker through the front; authenticate by token, or give the client the service "
    "URL of its cluster"
)


class FrameSplitter:
    """One direction of a connection. `wanted`: the types that `feed` gives as whole frames.

    `strict`: every frame has to begin with its type, as those of all known peers do; a client cannot hide a command otherwise.
    """

    __slots__ = ("_held", "_left", "_needed", "_strict", "wanted")

    def __init__(self, wanted: Collection[int], *, strict: bool) -> None:
        self.wanted = wanted
        self._strict = strict
        self._held = bytearray()
        self._needed = _START_BYTES
        self._left = 0

    @property
    def is_between(self) -> bool:
        """True if all bytes that were given so far end with a frame."""
        return not self._left

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._held)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The next segment: (PASSES, bytes) and (type, whole frame without its total size), in their order.

        MalformedFrame, FrameTooLarge: close the connection.
        """
        left, end = self._left, len(data)
        if left >= end:
            self._left = left - end
            return [(PASS_THROUGH, data)] if data else []
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
            end = len(data)
        return self._split(data, left, end)

    def _split(self, data: bytes, at: int, end: int) -> list[tuple[int, bytes]]:
        pieces: list[tuple[int, bytes]] = []
        start, wanted = 0, self.wanted
        self._left, self._needed = 0, _START_BYTES
        while end - at >= _START_BYTES:
            size = int.from_bytes(data[at : at + 4])
            kind = data[at + 9]
            if size < _LEAST_SIZE or data[at + 8] != _TYPE_TAG or kind > 127:
                self._check(size)
                kind = PASS_THROUGH
            stop = at + 4 + size
            if kind in wanted:
                if size > MAX_WANTED_BYTES:
                    raise FrameTooLarge(f"a command {kind} of {size} bytes is announced, {MAX_WANTED_BYTES} are allowed")
                if stop > end:
                    self._needed = 4 + size
                    break
                if at > start:
                    pieces.append((PASS_THROUGH, data[start:at]))
                pieces.append((kind, data[at + 4 : stop]))
                start = at = stop
            elif stop > end:
                self._left = stop - end
                at = end
            else:
                at = stop
        if at > start:
            pieces.append((PASS_THROUGH, data[start:at] if at - start < end else data))
        if at < end:
            self._held += data[at:]
        return pieces

    def _check(self, size: int) -> None:
        if size < _LEAST_SIZE:
            raise MalformedFrame(f"a frame of {size} bytes has no room for a command; is the peer a Pulsar client or broker?")
        if self._strict:
            raise MalformedFrame("a command does not begin with its type, or has one that no client sends")


def with_size(frame: bytes) -> bytes:
    """A frame that was cut out, with its total size again."""
    return len(frame).to_bytes(4) + frame


class FrontBrokers:
    """The brokers of one cluster: those of its service URL, and those that lookups through the front have named."""

    def __init__(self, name: str, config: ClusterConfig, runtime: Runtime) -> None:
        self.name = name
        self._hosts = parse_service_url(config.service_url)
        self._runtime = runtime
        self._context = _context(config)
        self._known: dict[str, Address] = {str(each): each for each in self._hosts}
        self._learned: dict[str, None] = {}
        self._next_host = 0

    def learn(self, *urls: str) -> None:
        """A broker of the cluster has named these; the oldest of very many are forgotten."""
        for url in filter(None, urls):
            try:
                address = parse_service_url(url)[0]
            except InvalidConfiguration:
                continue  # the client will complain
            name = str(address)
            if name in self._known and name not in self._learned:
                continue  # of the configuration
            self._learned.pop(name, None)
            self._learned[name] = None
            self._known[name] = address
            if len(self._learned) > _MAX_LEARNED:
                oldest = next(iter(self._learned))
                del self._learned[oldest], self._known[oldest]

    def named(self, broker: str) -> Address:
        """The broker that a client wants to be led to. Refusal NotAllowedError for what is none of this cluster."""
        address = self._known.get(broker.rpartition("://")[2])
        if address is None:
            raise Refusal(
                ServerError.NotAllowedError,
                f"{broker[:80]!r} is not known as a broker of the cluster {self.name}; look the topic up again",
            )
        return address

    async def connect(self, factory: Callable[[], P], to: Address | None) -> P:
        """A connection to this broker, or to some one: the next when one does not answer. Refusal ServiceNotReady."""
        failure: Exception | None = None
        for address in self._addresses_in_turn() if to is None else [to]:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await self._connect(factory, address)
            except (OSError, TimeoutError) as error:
                failure = error
                self._next_host += 1
        raise Refusal(
            ServerError.ServiceNotReady, f"no broker of the cluster {self.name} can be reached ({failure}); retry"
        ) from failure

    def _addresses_in_turn(self) -> list[Address]:
        first = self._next_host % len(self._hosts)
        return [*self._hosts[first:], *self._hosts[:first]]

    async def _connect(self, factory: Callable[[], P], address: Address) -> P:
        return await self._runtime.connect(
            factory,
            address.host,
            address.port,
            ssl_context=self._context if address.tls else None,
            server_hostname=address.host,
        )


def _context(config: ClusterConfig) -> ssl.SSLContext:
    """TLS without the coordinator's certificate: with it, the broker would take every client for the coordinator."""
    files = TlsFiles(
        trust_certs_file=config.tls_trust_certs_file_path,
        validate_hostname=config.tls_enable_hostname_verification,
        allow_insecure_connection=config.tls_allow_insecure_connection,
    )
    return Settings(tls=files).ssl_context()


class ClientCommands:
    """Commands of one client of the front, and the broker's answers to it."""

    def __init__(self, front: ClientsFront, link: FrontConnection) -> None:
        self._front = front
        self._link = link
        self._session = Session(front.services, link)
        self._challenges = 0
        """Requests of the broker that the client has not answered. Ours are answered to us alone."""

    def ended(self) -> None:
        """The client is gone. Its transactions stay open until their timeout."""
        self._session.ended()

    def on_connect(self, frame: bytes) -> Address | None:
        """CONNECT: who the client is, as far as we are to know, and the broker that it wants to go to. Raises Refusal."""
        body = decode_command(frame).connect
        session, authentication = self._session, self._front.services.authentication
        if authentication.enabled:
            if body.auth_method_name == "tls":
                raise Refusal(ServerError.AuthenticationError, _TLS_ONLY)
            shown = pb.CommandConnect()
            shown.CopyFrom(body)
            shown.ClearField("proxy_to_broker_url")
            session.introduction.admit(session, shown)
        return self._front.brokers.named(body.proxy_to_broker_url) if body.proxy_to_broker_url else None

    # ---- from the client

    def on_client_frames(self, pieces: list[tuple[int, bytes]]) -> None:
        """Answer what is ours, and pass on what is not. Raises WireError."""
        on: list[bytes] = []
        for kind, piece in pieces:
            if not self._link.connected and kind != _RESPONSE:
                raise MalformedFrame("only after CONNECTED a client may go on")
            if kind == PASS_THROUGH:
                on.append(piece)
            elif (take := self._session.requests.get(kind)) is not None:
                self._link.begin_request()
                take(piece)
            elif not self._answer_if_ours(kind, piece):
                on.append(with_size(piece))
        if on:
            self._link.forward(on)

    def _answer_if_ours(self, kind: int, frame: bytes) -> bool:
        """Answer a command that is for us; False for one that is for the broker."""
        if kind in (_LOOKUP, _METADATA):
            return _ASSIGN in frame and self._answer_lookup(kind, decode_command(frame))
        if kind == _TC_CONNECT:
            self._on_tc_connect(decode_command(frame).tcClientConnectRequest)
            return True
        if kind == _RESPONSE:
            return self._on_auth_response(decode_command(frame).authResponse)
        raise MalformedFrame("CONNECT came a second time")

    def _answer_lookup(self, kind: int, said: pb.BaseCommand) -> bool:
        write = self._link.write_command
        if kind == _METADATA and said.partitionMetadata.topic == ASSIGN_TOPIC:
            count = len(self._front.services.coordinators)
            done = pb.CommandPartitionedTopicMetadataResponse.Success
            write("partitionMetadataResponse", request_id=said.partitionMetadata.request_id, partitions=count, response=done)
            return True
        if kind == _LOOKUP and (tc_id := assign_partition(said.lookupTopic.topic)) is not None:
            write("lookupTopicResponse", request_id=said.lookupTopic.request_id, **self._leader_address(tc_id))
            return True
        return False

    def _leader_address(self, tc_id: int) -> dict[str, Any]:
        """The front of the instance that leads a coordinator."""
        leader = self._front.services.leaders.find(tc_id)
        if leader is None:
            return {
                "response": pb.CommandLookupTopicResponse.Failed,
                "error": int(ServerError.ServiceNotReady),
                "message": f"no instance with a front is known to lead coordinator {tc_id} at this moment; retry",
            }
        connect = pb.CommandLookupTopicResponse.Connect
        return {"brokerServiceUrl": leader.plain, "brokerServiceUrlTls": leader.tls, "response": connect, "authoritative": True}

    def _on_tc_connect(self, body: Any) -> None:
        self._link.begin_request()
        task = asyncio.get_running_loop().create_task(on_tc_connect(self._session, body))
        self._session.keep(task)
        task.add_done_callback(self._tc_connect_done)

    def _tc_connect_done(self, task: asyncio.Task[None]) -> None:
        self._link.end_request()
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a request of %s failed, and its connection is closed", self._link.peer, exc_info=error)
            self._link.close()

    def _on_auth_response(self, body: Any) -> bool:
        """AUTH_RESPONSE: fresh credentials are looked at here too; whether the broker has not asked for them."""
        if self._front.services.authentication.enabled and not self._session.introduction.renew(body):
            return True
        if not self._challenges:
            return True
        self._challenges -= 1
        return False

    # ---- from the broker

    def on_broker_frame(self, kind: int, frame: bytes) -> bytes:
        """Frame for the client in place of this one of its broker. Raises WireError."""
        if kind == _CONNECTED:
            self._link.know("")
        elif kind == _CHALLENGE:
            self._challenges += 1
        else:
            said = decode_command(frame)
            answer = said.lookupTopicResponse
            self._front.brokers.learn(answer.brokerServiceUrl, answer.brokerServiceUrlTls)
            if answer.proxy_through_service_url and not self._front.keeps_proxy_through:
                answer.proxy_through_service_url = False
                return encode_command(said)
        return with_size(frame)
