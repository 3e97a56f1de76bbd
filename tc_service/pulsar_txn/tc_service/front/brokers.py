"""The brokers behind the front: which of them a client's connection goes to, and which it may not be led to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.inside import Address, Runtime, Settings, TlsFiles, parse_service_url
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.wire.errors import Refusal, ServerError

P = TypeVar("P", bound=asyncio.BaseProtocol)

_MOST_KNOWN: Final = 1024
_CONNECT_SECONDS: Final = 5.0


class FrontBrokers:
    """The brokers of one cluster: those of its service URL, and those that lookups through the front have named."""

    def __init__(self, name: str, config: ClusterConfig, runtime: Runtime) -> None:
        self.name = name
        self._hosts = parse_service_url(config.service_url)
        self._runtime = runtime
        self._context = _context(config)
        self._known: dict[str, Address] = {str(each): each for each in self._hosts}
        self._learned: dict[str, None] = {}
        self._first = 0

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
            if len(self._learned) > _MOST_KNOWN:
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
        for address in self._in_turn() if to is None else [to]:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await self._connect(factory, address)
            except (OSError, TimeoutError) as error:
                failure = error
                self._first += 1
        raise Refusal(
            ServerError.ServiceNotReady, f"no broker of the cluster {self.name} can be reached ({failure}); retry"
        ) from failure

    def _in_turn(self) -> list[Address]:
        first = self._first % len(self._hosts)
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
