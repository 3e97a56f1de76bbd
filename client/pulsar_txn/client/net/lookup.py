"""Lookup of the broker that serves a topic, and of the number of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from pulsar_txn.client.errors import (
    ConnectionLost,
    InvalidConfiguration,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TopicNotFound,
)
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.pool import ConnectionPool
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.wire import pulsar_pb2 as pb

MAX_PARTITIONS: Final = 100_000
"""Largest number of redirects for a topic; a broker that asks for more is broken."""


class Lookup:
    """Asks the hosts of the service URL, moving on to the next one when a host cannot be reached."""

    def __init__(
        self,
        pool: ConnectionPool,
        settings: Settings,
        addresses: list[Address],
        request_ids: Iterator[int],
        on_first_use: Callable[[], object] | None = None,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._addresses = addresses
        self._current = 0
        self._asked: tuple[int, Connection] | None = None
        self._request_ids = request_ids
        self._on_first_use = on_first_use

    def move(self, addresses: list[Address]) -> None:
        """Ask these hosts from now on."""
        self._addresses, self._current, self._asked = addresses, 0, None

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Count the partitions of `topic`; 0 when it is not partitioned. `create`: the broker may create it by its rules.

        Raises a BrokerError, ConnectionLost or OperationTimeout.
        """
        connection = await self.any_connection()
        answer = await self._request(connection, "partitionMetadata", topic=topic, metadata_auto_creation_enabled=create)
        if answer.partitions > MAX_PARTITIONS:
            raise RemoteProtocolError(f"{topic} is said to have {answer.partitions} partitions", endpoint=connection.endpoint)
        return int(answer.partitions)

    async def topics(self, namespace: str, mode: int) -> list[str]:
        """The topics of `tenant/namespace`, partitions one by one; `mode` 0 persistent, 1 non-persistent, 2 both.

        Raises as `partitions`.
        """
        connection = await self.any_connection()
        answer = await self._request(connection, "getTopicsOfNamespace", namespace=namespace, mode=mode)
        return list(answer.topics)

    async def schema(self, topic: str, version: bytes = b"") -> pb.Schema | None:
        """The newest schema of `topic` (without its partition), or a version of it; None if absent. Raises as `partitions`."""
        connection = await self.any_connection()
        try:
            fields = {"schema_version": version} if version else {}
            answer = await self._request(connection, "getSchema", topic=topic, **fields)
        except TopicNotFound:
            return None
        found: pb.Schema = answer.schema
        return found

    async def connection_for(self, topic: str) -> Connection:
        """A connection to the broker that serves `topic` (a partition's full name), following redirects.

        Raises a BrokerError, ConnectionLost, OperationTimeout, or RemoteProtocolError after too many redirects.
        """
        connection = await self.any_connection()
        authoritative = False
        for _ in range(self._settings.max_lookup_redirects + 1):
            answer = await self._ask(connection, topic, authoritative=authoritative)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return await self._pool.get(*self._target(answer))
            authoritative = answer.authoritative
            connection = await self._pool.get(*self._target(answer))
        raise RemoteProtocolError(
            f"{topic} was redirected more than {self._settings.max_lookup_redirects} times",
            endpoint=connection.endpoint,
            hint="the brokers do not agree who serves it; look at the load balancer of the cluster",
        )

    async def _ask(self, connection: Connection, topic: str, *, authoritative: bool) -> Any:
        fields: dict[str, Any] = {"topic": topic, "authoritative": authoritative}
        if self._settings.listener_name is not None:
            fields["advertised_listener_name"] = self._settings.listener_name
        return await self._request(connection, "lookupTopic", **fields)

    async def _request(self, connection: Connection, name: str, **fields: Any) -> Any:
        """Ask; a host that does not answer, or is not ready, is not the first to be asked the next time.

        With several hosts in the service URL each gets its share of the operation timeout.
        """
        seconds = self._settings.operation_timeout / len(self._addresses)
        try:
            return await connection.request(name, next(self._request_ids), timeout=seconds, **fields)
        except PulsarError as error:
            if error.retriable and connection.endpoint == str(self._addresses[self._current]):
                self._current = (self._current + 1) % len(self._addresses)
            raise

    def _target(self, answer: Any) -> tuple[Address, Address]:
        """Physical and logical address of an answer."""
        tls = self._addresses[0].tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not url:
            scheme = "TLS" if tls else "plain"
            raise RemoteProtocolError(f"the lookup's answer names no {scheme} address", hint="check the broker's listeners")
        try:
            logical = parse_service_url(url)[0]
        except InvalidConfiguration as error:
            raise RemoteProtocolError(f"the lookup's answer names no broker: {error.message}") from None
        if answer.proxy_through_service_url:
            return self._addresses[self._current], logical
        return logical, logical

    async def any_connection(self) -> Connection:
        """A connection to some host of the service URL; the last error when none can be reached.

        A host whose connection has ended is not the first to be asked again: it may be silent for long.
        """
        if self._on_first_use is not None:
            begin, self._on_first_use = self._on_first_use, None
            begin()
        if self._asked is not None and self._asked[1].closed:
            self._current, self._asked = (self._asked[0] + 1) % len(self._addresses), None
        failure: PulsarError | None = None
        for index in self._in_turn():
            self._current = index
            try:
                connection = await self._pool.get(self._addresses[index])
            except (ConnectionLost, OperationTimeout, RemoteProtocolError) as error:
                failure = failure or error
                self._current = (index + 1) % len(self._addresses)
                await asyncio.sleep(0)
            else:
                self._asked = index, connection
                return connection
        raise failure or ConnectionLost("the service URL names no host")

    def _in_turn(self) -> list[int]:
        """The hosts from the current one on; those whose pause is not over come last, the shortest first."""
        count = len(self._addresses)
        order = [(self._current + step) % count for step in range(count)]
        pauses = {index: self._pool.pause_of(self._addresses[index]) for index in order}
        moment = self._settings.initial_backoff
        return sorted(order, key=lambda index: pauses[index] if pauses[index] > moment else 0.0)
