"""Speech of the front itself: the commands of transactions, and the way to the coordinators. All else passes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any, Final, Protocol

from pulsar_txn.broker.serving import Answering, BrokerConfig, Limits, Turn
from pulsar_txn.client.inside import Address
from pulsar_txn.tc_service.server.commands import COMMANDS, REQUESTS, assign_partition, on_tc_connect
from pulsar_txn.tc_service.server.session import Services, Session
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.frames import decode_command, encode_command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

from .brokers import FrontBrokers
from .cutting import PASSES, whole

_logger = logging.getLogger("pulsar_txn.tc_service.front")

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
"""What is put together, and seen."""

_ASSIGN: Final = ASSIGN_TOPIC.rpartition("/")[2].encode()
_TLS_ONLY: Final = (
    "a client cannot show its certificate to a broker through the front; authenticate by token, or give the client the service "
    "URL of its cluster"
)


class Front(Protocol):
    """State that all connections of the front share."""

    brokers: FrontBrokers
    services: Services
    config: BrokerConfig
    turn: Turn
    limits: Limits
    keeps_proxy_through: bool

    @property
    def connections(self) -> MutableMapping[Any, None]:
        """Those that were let in."""

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight."""


class Link(Answering, Protocol):
    """A client's connection with that of its broker."""

    def pass_on(self, data: list[bytes]) -> None:
        """To the broker."""

    def begin_request(self) -> None:
        """A request is taken."""

    def end_request(self) -> None:
        """Note that it is answered."""


class Speaker:
    """One client of the front."""

    def __init__(self, front: Front, link: Link) -> None:
        self._front = front
        self._link = link
        self._session = Session(front.services, COMMANDS, REQUESTS, link)
        self._challenges = 0
        """Those of the broker that the client has not answered. Ours are answered to us alone."""

    def ended(self) -> None:
        """The client is gone. Its transactions stay open until their timeout."""
        self._session.ended()

    def introduce(self, frame: bytes) -> Address | None:
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

    def heard(self, pieces: list[tuple[int, bytes]]) -> None:
        """Answer what is ours, and pass on what is not. Raises WireError."""
        on: list[bytes] = []
        for kind, piece in pieces:
            if not self._link.connected and kind != _RESPONSE:
                raise MalformedFrame("only after CONNECTED a client may go on")
            if kind == PASSES:
                on.append(piece)
            elif (take := self._session.requests.get(kind)) is not None:
                self._link.begin_request()
                take(piece)
            elif not self._is_ours(kind, piece):
                on.append(whole(piece))
        if on:
            self._link.pass_on(on)

    def _is_ours(self, kind: int, frame: bytes) -> bool:
        """Answer a command that is for us; False for one that is for the broker."""
        if kind in (_LOOKUP, _METADATA):
            return _ASSIGN in frame and self._is_answered(kind, decode_command(frame))
        if kind == _TC_CONNECT:
            self._tc_connect(decode_command(frame).tcClientConnectRequest)
            return True
        if kind == _RESPONSE:
            return self._respond(decode_command(frame).authResponse)
        raise MalformedFrame("CONNECT came a second time")

    def _is_answered(self, kind: int, said: pb.BaseCommand) -> bool:
        write = self._link.write_command
        if kind == _METADATA and said.partitionMetadata.topic == ASSIGN_TOPIC:
            count = len(self._front.services.coordinators)
            done = pb.CommandPartitionedTopicMetadataResponse.Success
            write("partitionMetadataResponse", request_id=said.partitionMetadata.request_id, partitions=count, response=done)
            return True
        if kind == _LOOKUP and (tc_id := assign_partition(said.lookupTopic.topic)) is not None:
            write("lookupTopicResponse", request_id=said.lookupTopic.request_id, **self._where(tc_id))
            return True
        return False

    def _where(self, tc_id: int) -> dict[str, Any]:
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

    def _tc_connect(self, body: Any) -> None:
        self._link.begin_request()
        task = asyncio.get_running_loop().create_task(on_tc_connect(self._session, body))
        self._session.keep(task)
        task.add_done_callback(self._is_connected)

    def _is_connected(self, task: asyncio.Task[None]) -> None:
        self._link.end_request()
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a request of %s failed", self._link.peer, exc_info=error)
            self._link.close()

    def _respond(self, body: Any) -> bool:
        """AUTH_RESPONSE: fresh credentials are looked at here too; whether the broker has not asked for them."""
        if self._front.services.authentication.enabled and not self._session.introduction.renew(body):
            return True
        if not self._challenges:
            return True
        self._challenges -= 1
        return False

    # ---- from the broker

    def told(self, kind: int, frame: bytes) -> bytes:
        """Return what goes on to the client in place of this frame. Raises WireError."""
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
        return whole(frame)
