"""`pulsar-txn coordinator`: a coordinator beside clusters as a process, from its options to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from pulsar_txn.broker.serving import (
    LOG_FORMAT,
    USAGE,
    AsyncioRuntime,
    CannotListen,
    Ending,
    HttpServer,
    Lifetime,
    cannot_listen,
    command_line_of,
    load_config,
    loop_factory,
)
from pulsar_txn.client.inside import AsyncioRuntime as ClientRuntime

from .cluster.participants import ClusterRefused
from .config import LoadedCoordinator, load
from .front.front import ClientsFront
from .late_write_scans import LateWriteScans
from .server.leaders import NO_ADDRESS, Address
from .server.listening import CoordinatorServer
from .server.service import CoordinatorService

logger = logging.getLogger("pulsar_txn.tc_service")


@click.command("coordinator")
@click.option("--conf", type=click.Path(path_type=Path), help="Configuration: clusters, limits; see conf/coordinator.conf.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for all decisions; not with ledgerProvider=topic.")
@click.option("--port", type=click.IntRange(0, 65535), help="Binary protocol (brokerServicePort); 0: any free one.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other key; may be repeated.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="JSON with the address, there while it serves.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="On stderr.",
)
def command(
    conf: Path | None,
    data: Path | None,
    port: int | None,
    settings: tuple[str, ...],
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Coordinate transactions beside Pulsar clusters until SIGTERM or SIGINT, which drain; a second one ends it at once.

    Exit codes: 0 drained, 2 usage or configuration, 69 port not available, 73 data folder refused, 74 storage failed
    or damaged, 75 cut short.
    """
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    loaded = load_config(load, conf, command_line_of(settings, port))
    if data is None and loaded.config.ledger_provider == "journal":
        raise click.UsageError(
            "say where the decisions go: --data DIR (or ledgerProvider=topic, which keeps them in the cluster)"
        )
    for warning in loaded.warnings:
        logger.warning("configuration: %s", warning)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(loaded, data, ready_file))


async def _run(loaded: LoadedCoordinator, data: Path | None, ready_file: Path | None) -> None:
    process = _Process(loaded, data)
    lifetime = Lifetime(process, ready_file)
    reports = asyncio.get_running_loop().create_task(_report(process.server.changed, lifetime))
    try:
        await lifetime.run()
    finally:
        reports.cancel()


async def _report(changed: asyncio.Event, lifetime: Lifetime) -> None:
    """Keep the ready file true."""
    while True:
        await changed.wait()
        changed.clear()
        lifetime.facts_changed()


class _Process:
    """The service, as its process serves it; see `broker.cli.lifetime.Serves`."""

    def __init__(self, loaded: LoadedCoordinator, data: Path | None) -> None:
        self._config = loaded.config
        self._clusters = loaded.clusters
        self._data = data
        self.server = CoordinatorServer(loaded.config, loaded.clusters, data)
        self._front: ClientsFront | None = None
        self._http: HttpServer | None = None
        self._late_write_scans: LateWriteScans | None = None

    async def start(self) -> None:
        try:
            await self.server.listen()
            try:
                front, web = await self._open_sides(self.server.service)
            except BaseException:
                await self.server.abandon()
                raise
            await self.server.lead(front=front, web=web)
        except ClusterRefused as error:
            raise Ending(USAGE, str(error)) from error
        except CannotListen as error:
            raise cannot_listen(self._config.bind_address, error, {}) from error
        self._late_write_scans = LateWriteScans(self.server.service, self.server.admins, AsyncioRuntime())
        self._late_write_scans.start()

    async def _open_sides(self, service: CoordinatorService) -> tuple[Address, Address]:
        """Open the front and the HTTP side; their addresses. Raises CannotListen; none is open then."""
        front = web = NO_ADDRESS
        try:
            if self._config.has_front:
                self._front = ClientsFront(service, self._config, self._clusters, AsyncioRuntime(), ClientRuntime())
                await self._front.start()
                front = self._front.address
            if self._config.has_http:
                web = await self._start_http(service)
        except BaseException:
            if self._front is not None:
                await self._front.close()
            raise
        return front, web

    async def _start_http(self, service: CoordinatorService) -> Address:
        from .admin.routes import make_app  # aiohttp takes longer to import than the service takes to start

        config = self._config
        http = HttpServer(service, AsyncioRuntime(), make_app)
        await http.start(config.bind_address, config.web_service_port, config.web_service_port_tls)
        self._http = http
        return Address("" if http.url == http.url_tls else http.url, http.url_tls)

    async def storage_failed(self) -> Exception:
        await self.server.storage_failed.wait()
        failure = self.server.service.storage_failure
        assert failure is not None  # noqa: S101 - it is set before the event
        return failure

    async def close(self) -> None:
        if self._front is not None:
            await self._front.close()
        if self._http is not None:
            await self._http.close()
        if self._late_write_scans is not None:
            await self._late_write_scans.close()
        await self.server.close()

    def _facts_of_front(self) -> dict[str, Any]:
        if self._front is None:
            return {}
        services = self._front.services
        return {"frontServiceUrl": services.service_url or None, "frontServiceUrlTls": services.service_url_tls or None}

    def ready_line(self) -> str:
        facts, where = self.facts(), " and ".join(self.server.addresses)
        if self._front is not None:
            where += f", with a front for other clients at {' and '.join(self._front.addresses)},"
        return (
            f"pulsar-txn {facts['version']} coordinates at {where} for {', '.join(facts['clusters'])}: "
            f"{facts['coordinators']} coordinators, {self._ledger()}{self._web()}"
        )

    def _web(self) -> str:
        if self._http is None:
            return ", no HTTP (webServicePort= opens it, for metrics and `pulsar-txn transactions`)"
        return f", HTTP at {self._http.url or self._http.url_tls}"

    def _ledger(self) -> str:
        config, facts = self._config, self.facts()
        if config.ledger_provider == "topic":
            return f"decisions in topics {config.ledger_topic_prefix}-* of {config.ledger_namespace} in {config.ledger_cluster}"
        return f"journal in {facts['data']}, sync by {facts['sync']}"

    def facts(self) -> dict[str, Any]:
        service = self.server.service
        return {
            "version": version("pulsar-txn"),
            "pid": os.getpid(),
            "serviceUrl": service.service_url or None,
            "serviceUrlTls": service.service_url_tls or None,
            **self._facts_of_front(),
            "webServiceUrl": None if self._http is None else self._http.url,
            "webServiceUrlTls": None if self._http is None else self._http.url_tls or None,
            "clusters": list(self._clusters),
            "coordinators": len(service.coordinators),
            "leads": service.coordinators.here,
            "ledger": self._config.ledger_provider,
            "data": None if self._data is None else str(self._data.absolute()),
            "sync": getattr(self.server.store, "syncer_kind", "none"),
        }
