"""A coordinator beside clusters, for clients of one or several of them."""

from __future__ import annotations

import inspect
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final, Never, Self

import attrs

from pulsar_txn.client._options import unknown_option
from pulsar_txn.client._validation import refused
from pulsar_txn.client.net.authentication import Authentication
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.runtime import AsyncioRuntime, Runtime
from pulsar_txn.client.net.service_url import parse_service_url
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.tls import TlsFiles
from pulsar_txn.client.txn.session import ClientIncarnation
from pulsar_txn.client.txn.transactions import BeginsTransactions, Transactions

A_COORDINATOR: Final = "write pulsar://host:6653; an AsyncClient may also share an AsyncCoordinator, a Client a Coordinator"
_SILENCE_SECONDS: Final = 2.0
"""Of a coordinator that others can take over from: a client that waited for longer would lose its lease at the successor."""


def transactions_beside(service_url: str, settings: Settings, runtime: Runtime, name: str = "client") -> Transactions:
    """The transactions of a coordinator that is not in the brokers. Its core has connections of its own.

    With several hosts, one that is silent for some seconds is given up, because another one may lead by then.
    """
    if not isinstance(service_url, str):
        raise refused("coordinator", service_url, "the URL of a coordinator", hint=A_COORDINATOR)
    if "+ssl:" in service_url:
        settings.ssl_context()  # what is wrong with its files is said here
    if len(parse_service_url(service_url)) > 1:
        settings = attrs.evolve(
            settings,
            keep_alive_interval=min(settings.keep_alive_interval, _SILENCE_SECONDS),
            connection_timeout=min(settings.connection_timeout, _SILENCE_SECONDS),
        )
    return Transactions(Core(service_url, settings, runtime, name=name), ClientIncarnation(runtime))


class AsyncCoordinator(BeginsTransactions):
    """The coordinator of `pulsar-txn coordinator`, shared by clients of several clusters. Use it with `async with`.

    Give it to each client as `coordinator=`, with the cluster's name there as `cluster=`. Producers and consumers of all these
    clients then take the same transaction, which `transaction()` of the coordinator, or of any of the clients, begins.
    Close the coordinator after the clients, or use it as the outermost block.

    `service_url` names one or several hosts, and the options are those of `AsyncClient`. With several hosts, one that is silent
    for 2 seconds is given up, whatever `keep_alive_interval` and `connection_timeout` allow above that. A `transactional_id`
    and `one_transaction_at_a_time` belong to the coordinator, and with it to all its clients. Raises InvalidConfiguration for
    arguments that cannot work.
    """

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: float | timedelta = 30.0,
        connection_timeout: float | timedelta = 10.0,
        keep_alive_interval: float | timedelta = 30.0,
        initial_backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 5.0,
        authentication: Authentication | None = None,
        tls_context: ssl.SSLContext | None = None,
        tls_trust_certs_file: str | Path | None = None,
        tls_certificate_file: str | Path | None = None,
        tls_key_file: str | Path | None = None,
        tls_validate_hostname: bool = True,
        tls_allow_insecure_connection: bool = False,
        description: str = "",
        transactional_id: str | None = None,
        one_transaction_at_a_time: bool = False,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option("Coordinator", next(iter(unknown)), inspect.signature(AsyncCoordinator).parameters)
        settings = Settings(
            operation_timeout=operation_timeout,
            connection_timeout=connection_timeout,
            keep_alive_interval=keep_alive_interval,
            initial_backoff=initial_backoff,
            max_backoff=max_backoff,
            authentication=authentication,
            tls_context=tls_context,
            tls=TlsFiles(
                trust_certs_file=tls_trust_certs_file,
                certificate_file=tls_certificate_file,
                key_file=tls_key_file,
                validate_hostname=tls_validate_hostname,
                allow_insecure_connection=tls_allow_insecure_connection,
            ),
            description=description,
            transactional_id=transactional_id,
            one_transaction_at_a_time=one_transaction_at_a_time,
        )
        self._transactions = transactions_beside(service_url, settings, runtime or AsyncioRuntime(), "coordinator")
        self._core = self._transactions.core

    @property
    def service_url(self) -> str:
        """The address of the coordinator."""
        return self._core.service_url

    def __repr__(self) -> str:
        return f"<Coordinator {self.service_url} {'closed' if self._core.closed else 'open'}>"

    async def close(self) -> None:
        """Abort the open transactions, and leave the coordinator. Idempotent. If cancelled, the closing goes on."""
        await self._close_once()

    async def __aenter__(self) -> Self:
        self._core.check_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
