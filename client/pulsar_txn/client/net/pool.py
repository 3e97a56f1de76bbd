"""The connections of a client: one per (logical broker, physical address), made when first asked for, shared by all.

After an attempt that failed, or a connection that did not last, the next attempt waits at the broker's gate (`_pauses`), and
with it everybody who asks meanwhile. So callers need no pauses of their own: errors of the pool are `paced`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, InvalidConfiguration, OperationTimeout, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.pauses import Backoff, Gate, SignsOfLife
from pulsar_txn.client.net.runtime import Runtime, UnknownHost
from pulsar_txn.client.net.service_url import Address
from pulsar_txn.client.net.settings import Settings

logger = logging.getLogger("pulsar_txn.client.connection")

_TLS_PORT: Final = "is this a TLS port? pulsar+ssl:// usually goes with 6651, pulsar:// with 6650"
_WRONG_NAME: Final = frozenset({62, 63, 64})
"""OpenSSL's codes X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH and _IP_ADDRESS_MISMATCH."""


class ConnectionPool:
    """Hands out connections. Two callers that ask for the same broker at once share one attempt."""

    def __init__(self, runtime: Runtime, settings: Settings, *, outage_level: int = logging.WARNING) -> None:
        self.signs_of_life = SignsOfLife()
        self._outage_level = outage_level
        self._outages: set[tuple[str, Address]] = set()
        self._runtime = runtime
        self._settings = settings
        self._connections: dict[tuple[str, Address], asyncio.Task[Connection]] = {}
        self._gates: dict[tuple[str, Address], Gate] = {}
        self._closed = False
        self._generation = 0

    def pause_of(self, address: Address) -> float:
        """Seconds that the next attempt at a host of the service URL waits; 0 when it is connected, or may be asked now."""
        key = (str(address), address)
        gate = self._gates.get(key)
        task = self._connections.get(key)
        if gate is None or task is None or _is_usable(task):
            return 0.0
        if task.done():
            gate.lost()
        return gate.seconds

    async def get(self, physical: Address, logical: Address | None = None) -> Connection:
        """A usable connection to `logical`, through the proxy at `physical` when the two differ.

        Waits for the broker's gate first. Raises ConnectionLost, OperationTimeout, RemoteProtocolError or a BrokerError of the
        handshake; the next attempt waits by itself. When cancelled the attempt goes on for others that wait for it.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed")
        target = logical or physical
        key = (str(target), physical)
        task = self._connections.get(key)
        if task is None or (task.done() and not _is_usable(task)):
            gate = self._gates.get(key)
            if gate is None:
                gate = self._gates[key] = Gate(self._runtime, self._backoff())
            gate.lost()
            task = asyncio.get_running_loop().create_task(self._connect_at(gate, physical, target))
            self._connections[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise AlreadyClosed("the client was closed while it connected") from None
            raise

    def current(self) -> list[Connection]:
        """The connections that are open now, in the order in which they were asked for."""
        return [task.result() for task in self._connections.values() if _is_usable(task)]

    def start_over(self, error: PulsarError) -> None:
        """Close all connections, also those that are being made: others are wanted now."""
        self._generation += 1
        for connection in self.current():
            connection.close(error)
        for gate in self._gates.values():
            gate.open()

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails with ConnectionLost."""
        self._closed = True
        for connection in self.current():
            connection.close()
        pending = [task for task in self._connections.values() if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._connections.clear()

    def _backoff(self) -> Backoff:
        return Backoff(self._runtime, self._settings.initial_backoff, self._settings.max_backoff)

    async def _connect_at(self, gate: Gate, physical: Address, target: Address) -> Connection:
        """Wait at the gate, connect, and tell the gate what came of it."""
        await gate.passed()
        try:
            connection = await self._connect(physical, target)
        except Exception as error:
            gate.failed()
            if isinstance(error, PulsarError):
                error.paced = True
                self._note_outage((str(target), physical), error)
            raise
        gate.worked()
        if (str(target), physical) in self._outages:
            self._outages.discard((str(target), physical))
            logger.info("%s: connected again", target)
        self.signs_of_life.seen()
        return connection

    def _note_outage(self, key: tuple[str, Address], error: PulsarError) -> None:
        """Say once that a broker cannot be reached, while calls still try; what ends them at once they say themselves."""
        if error.retriable:
            level = logging.DEBUG if key in self._outages else self._outage_level
            self._outages.add(key)
            logger.log(level, "%s: no connection, trying again: %s", key[0], error)

    async def _connect(self, physical: Address, target: Address) -> Connection:
        context = self._settings.ssl_context() if physical.tls else None
        generation = self._generation
        proxy_to = None if target == physical else str(target)
        timeout = self._settings.connection_timeout
        where = self._settings.sni_proxy or physical
        if where is not physical and context is None:
            raise InvalidConfiguration(f"a proxy that routes by SNI needs TLS, and {physical} is to be reached without")
        try:
            async with asyncio.timeout(timeout):
                connection = await self._runtime.connect(
                    lambda: Connection(self._runtime, self._settings, str(physical), proxy_to=proxy_to),
                    where.host,
                    where.port,
                    ssl_context=context,
                    server_hostname=physical.host,
                )
        except TimeoutError:
            hint = "check host, port and firewall"
            raise OperationTimeout(f"no connection within {timeout:g} s", endpoint=str(where), hint=hint) from None
        except OSError as error:
            raise _connect_error(error, where) from None
        await connection.handshake()
        if generation != self._generation:
            connection.close()
            raise ConnectionLost("the client has moved to another cluster meanwhile", endpoint=str(physical))
        return connection


def _is_usable(task: asyncio.Task[Connection]) -> bool:
    """True if it has come to a connection that is still open."""
    return task.done() and not task.cancelled() and task.exception() is None and not task.result().closed


def _connect_error(error: OSError, address: Address) -> ConnectionLost:
    if isinstance(error, ssl.SSLCertVerificationError):
        name = error.verify_code in _WRONG_NAME
        wrong_name = "use a host name that is in the certificate (tls_validate_hostname=False would not look at it)"
        hint = wrong_name if name else "give its authority: tls_trust_certs_file= or tls_context= (--tls-trust-certs-file)"
        text = f"the broker's certificate was not accepted: {error.verify_message}"
        return ConnectionLost(text, endpoint=str(address), hint=hint, retriable=False)
    if isinstance(error, ssl.SSLError):
        return ConnectionLost(f"TLS failed: {error}", endpoint=str(address), hint=_TLS_PORT)
    if address.tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return ConnectionLost("the peer ended the TLS handshake", endpoint=str(address), hint=_TLS_PORT)
    hint = "is a broker running there? check the host and port of the service URL"
    if isinstance(error, UnknownHost):
        hint = f"nobody knows the host {address.host!r}: check its name in the service URL, and the DNS"
    return ConnectionLost(f"cannot connect: {str(error) or repr(error)}", endpoint=str(address), hint=hint)
