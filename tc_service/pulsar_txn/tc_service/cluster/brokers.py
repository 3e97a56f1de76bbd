"""The brokers of one cluster: connections, the walk to the owner of a topic, and the two commands that end a transaction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import attrs

from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, NotAllowedError, PulsarError, RemoteProtocolError
from pulsar_txn.client.inside import Address, Connection, ConnectionPool, Runtime, Settings, Waiter, parse_service_url
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.topics import ASSIGN_TOPIC, partition_name

MAX_HOPS: Final = 10
_MOST_KNOWN: Final = 64
_LONGEST_WAIT_SECONDS: Final = 1.0
_SECONDS_PER_CREDENTIALS: Final = 5.0


class LookupFailed(Exception):  # noqa: N818 - named by what happened
    """The owner of a topic was not found; the cause says why."""


class Brokers:
    """Brokers of one cluster. `name` is for logs and errors."""

    def __init__(self, name: str, service_url: str, settings: Settings, runtime: Runtime) -> None:
        self.name = name
        self.runtime = runtime
        self._hosts = parse_service_url(service_url)
        self._learned: dict[Address, None] = {}
        """Brokers that lookups named: asked as well when a host of the service URL is gone."""
        # Lookups name a dead broker for a while. Longer waits before it are of no use: its topics come back at another one.
        self._pool = ConnectionPool(
            runtime, attrs.evolve(settings, max_backoff=min(settings.max_backoff, _LONGEST_WAIT_SECONDS))
        )
        self._request_ids = itertools.count(1)
        self._first = 0
        self._shown_at = runtime.monotonic() - _SECONDS_PER_CREDENTIALS

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    def show_credentials_again(self) -> None:
        """Our role was refused: make all connections anew, for the credentials may be others now. Not more often than needed.

        A token file is read for each connection, and a connection keeps the role that it began with.
        """
        now = self.runtime.monotonic()
        if now - self._shown_at >= _SECONDS_PER_CREDENTIALS:
            self._shown_at = now
            self._pool.start_over(ConnectionLost("the role was refused, so the credentials are shown again"))

    def next_id(self) -> int:
        """A number for a request, a producer or a consumer; unique among these connections."""
        return next(self._request_ids)

    async def any_connection(self) -> tuple[Connection, Address]:
        """A connection to some broker. Raises the last error when there is none."""
        failure: PulsarError = InvalidConfiguration("the service URL names no host")
        for address in self._in_turn():
            try:
                return await self._pool.get(address), address
            except PulsarError as error:
                failure = error
                self._ask_another()
        raise failure

    def _in_turn(self) -> Iterator[Address]:
        known = list(dict.fromkeys([*self._hosts, *self._learned]))
        for step in range(len(known)):
            yield known[(self._first + step) % len(known)]

    def _ask_another(self) -> None:
        self._first += 1

    async def request(self, command: str, **fields: Any) -> Any:
        """The answer of some broker to a command. Raises PulsarError."""
        connection, _ = await self.any_connection()
        return await connection.request(command, next(self._request_ids), **fields)

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic; 0 for one that is not partitioned. Raises PulsarError; TopicNotFound."""
        answer = await self.request("partitionMetadata", topic=topic, metadata_auto_creation_enabled=False)
        return int(answer.partitions)

    async def owner(self, topic: str) -> Connection:
        """A connection to the broker that serves `topic`, a full partition name. Raises LookupFailed.

        A survivor goes on naming a dead broker until that one's session has expired. So when a broker that is named cannot
        be reached, the next walk begins at another one.
        """
        try:
            return await self._walk(topic)
        except PulsarError as error:
            self._ask_another()
            raise LookupFailed(topic) from error

    async def _walk(self, topic: str) -> Connection:
        connection, asked = await self.any_connection()
        authoritative = False
        for _ in range(MAX_HOPS):
            answer = await connection.request("lookupTopic", next(self._request_ids), topic=topic, authoritative=authoritative)
            target = self._target(answer)
            through = asked if answer.proxy_through_service_url else target
            connection = await self._pool.get(through, target)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                if through is target:
                    self._learn(target)
                return connection
            authoritative, asked = answer.authoritative, through
        raise RemoteProtocolError(f"{topic} was redirected {MAX_HOPS} times", hint="the brokers do not agree who serves it")

    def _target(self, answer: Any) -> Address:
        tls = self._hosts[0].tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not url:
            kind = "TLS" if tls else "plain"
            raise RemoteProtocolError(f"the lookup's answer names no {kind} address", hint="check the listeners of the brokers")
        try:
            return parse_service_url(url)[0]
        except InvalidConfiguration as error:
            raise RemoteProtocolError(f"the lookup's answer names no broker: {error.message}") from None

    def _learn(self, address: Address) -> None:
        self._learned.pop(address, None)
        self._learned[address] = None
        if len(self._learned) > _MOST_KNOWN:
            del self._learned[next(iter(self._learned))]

    async def has_transactions(self) -> bool:
        """True if some broker has transactions on. Raises ConnectionLost, OperationTimeout.

        Brokers that have them off take the end of a transaction on a topic that is not there, and answer "ok". What they
        refuse is a client of their coordinators; one that has them on refuses it in other words, or not.
        """
        try:
            await self.request("tcClientConnectRequest", tc_id=0)
        except NotAllowedError:
            return False
        except PulsarError as error:
            if error.code is None:
                raise
        return True

    async def load_coordinator(self, number: int) -> None:
        """Introduce us to a coordinator of the cluster, whose broker loads it then. Raises PulsarError, LookupFailed."""
        connection = await self.owner(partition_name(ASSIGN_TOPIC, number))
        await connection.request("tcClientConnectRequest", next(self._request_ids), tc_id=number)

    def end(self, waiter: Waiter, connection: Connection, effect: TellParticipant, seconds: float) -> None:
        """END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION. `waiter` is told the answer, or the PulsarError.

        The low watermark is always sent, -1 for none: stock 4.0.8 closes the connection without it.
        """
        number, participant = next(self._request_ids), effect.participant
        topic, subscription = participant.topic, participant.subscription
        frame = hot_txn.encode_end_at(number, effect.txn_id, topic, subscription, effect.action, effect.low_watermark)
        connection.ask(waiter, "endTxnOnPartition" if subscription is None else "endTxnOnSubscription", number, frame, seconds)
