"""`pulsar-txn standalone`: one broker as a process, from its options to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final

import click

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base import plugins
from pulsar_txn.broker.base.config import Loaded, conf_key, load
from pulsar_txn.broker.base.runtime import AsyncioRuntime, start_child
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.catalog.buffer_choice import read_rules
from pulsar_txn.broker.net.ports import CannotListen
from pulsar_txn.broker.server import Standalone

from .exits import CUT_SHORT, UNAVAILABLE, USAGE, Ending, cannot_listen
from .lifetime import LOG_FORMAT, Lifetime, loop_factory
from .options import command_line_of, load_config

_logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_MAIN: Final = "from pulsar_txn.broker.cli import main; main()"

_PLUGINS: Final = {
    "ledger_provider": plugins.LEDGERS,
    "transaction_metadata_store_provider_class_name": plugins.COORDINATORS,
    "transaction_buffer_provider_class_name": plugins.TRANSACTION_BUFFERS,
    "transaction_pending_ack_store_provider_class_name": plugins.PENDING_ACKS,
}


@click.command("standalone")
@click.option("--conf", type=click.Path(path_type=Path), help="Configuration with Pulsar's keys; else the shipped one.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for all data; created if absent.")
@click.option("--port", type=click.IntRange(0, 65535), help="Binary protocol (brokerServicePort); 0: any free one.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="HTTP (webServicePort); 0: any free one.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other key; may be repeated.")
@click.option("--functions", is_flag=True, help="Run a functions worker beside the broker (functionsWorkerEnabled).")
@click.option("--ready-file", type=click.Path(path_type=Path), help="JSON with the addresses, there while the broker serves.")
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
    http_port: int | None,
    settings: tuple[str, ...],
    functions: bool,
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Run one broker until SIGTERM or SIGINT, which drain it; a second one ends it at once.

    Exit codes: 0 drained, 2 usage or configuration, 69 port not available, 73 data folder refused, 74 storage failed
    or damaged, 75 cut short.
    """
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    chosen = command_line_of(settings, port, http_port)
    if functions:
        chosen["functionsWorkerEnabled"] = "true"
    loaded = load_config(load, conf, chosen)
    for warning in loaded.warnings:
        _logger.warning("configuration: %s", warning)
    if data is None and loaded.config.ledger_provider != "memory":
        raise click.UsageError("say where the data goes: --data DIR (or --set ledgerProvider=memory, which keeps nothing)")
    _check_plugins(loaded)
    if loaded.config.functions_worker_enabled:
        _check_functions(loaded.config)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(Process(loaded.config, data, ready_file).run())


def _check_plugins(loaded: Loaded) -> None:
    """Before any file is touched. Raises Ending."""
    for field, group in _PLUGINS.items():
        value = getattr(loaded.config, field)
        with _blaming(loaded, field, f"={value}"):
            plugins.resolve(group, value)
    with _blaming(loaded, "transaction_buffer_provider_overrides"):
        for value in read_rules(loaded.config.transaction_buffer_provider_overrides).values():
            plugins.resolve(plugins.TRANSACTION_BUFFERS, value)


@contextlib.contextmanager
def _blaming(loaded: Loaded, field: str, value: str = "") -> Iterator[None]:
    """A plug-in that cannot be found is the fault of this key. Raises Ending."""
    try:
        yield
    except plugins.PluginError as error:
        raise Ending(USAGE, f"{loaded.origins[field]}: {conf_key(field)}{value}: {error}") from error


def _check_functions(config: BrokerConfig) -> None:
    """Before any file is touched. Raises Ending."""
    if not entry_points(group="pulsar_txn.commands", name="functions"):
        raise Ending(UNAVAILABLE, "functions are not installed; run: pip install '.[broker,functions]' in a checkout")
    if config.web_service_port is None:
        raise Ending(USAGE, "functions need the HTTP port: set webServicePort")
    if config.authentication_enabled:
        text = "the worker beside the broker has no credentials; set functionsWorkerEnabled=false, and use functions localrun"
        raise Ending(USAGE, f"functions and authenticationEnabled=true do not go together here: {text}")


class Process:
    """A broker with its HTTP port and its functions worker, served by one process."""

    def __init__(self, config: BrokerConfig, data: Path | None, ready_file: Path | None) -> None:
        self._config = config
        self._data = data
        self._runtime = AsyncioRuntime()
        self._standalone = Standalone(data, config=config, runtime=self._runtime)
        self._http: HttpServer | None = None
        self._functions: FunctionsChild | None = None
        self._lifetime = Lifetime(self, ready_file)

    async def run(self) -> None:
        """See `Lifetime.run`."""
        await self._lifetime.run()

    async def start(self) -> None:
        """Serve from now on; see `Serves`."""
        config = self._config
        try:
            await self._standalone.start()
        except CannotListen as error:
            raise cannot_listen(config.bind_address, error) from error
        if config.web_service_port is not None or config.web_service_port_tls is not None:
            await self._start_http()

    async def _start_http(self) -> None:
        config = self._config
        self._http = HttpServer(self._standalone.broker, self._runtime)
        try:
            await self._http.start(config.bind_address, config.web_service_port, config.web_service_port_tls)
        except CannotListen as error:
            await self._standalone.close()
            raise cannot_listen(config.bind_address, error) from error
        if self._config.functions_worker_enabled:
            patience = self._config.broker_shutdown_timeout_ms / 1000
            self._functions = FunctionsChild(self._http.url, patience)

    async def storage_failed(self) -> Exception:
        """Wait until the broker's store has failed; the error."""
        await self._standalone.storage_failed.wait()
        failure = self._standalone.broker.storage_failure
        assert failure is not None  # noqa: S101 - it is set before the event
        return failure

    async def close(self) -> None:
        """Drain."""
        if self._functions is not None:
            await self._functions.close()
        if self._http is not None:
            await self._http.close()
        await self._standalone.close()

    def ready_line(self) -> str:
        """Line with its addresses and its data folder."""
        facts = self.facts()
        where = " and ".join(filter(None, (facts["serviceUrl"], facts["serviceUrlTls"])))
        place = f" in {facts['data']}" if facts["data"] else ""
        return (
            f"pulsar-txn {facts['version']} is ready: {where}, {facts['webServiceUrl'] or 'no HTTP'}, "
            f"{facts['coordinators']} coordinators, {facts['ledger']}{place}, sync by {facts['sync']}"
        )

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        broker = self._standalone.broker
        return {
            "version": version("pulsar-txn"),
            "pid": os.getpid(),
            "serviceUrl": broker.service_url or None,
            "serviceUrlTls": broker.service_url_tls or None,
            "webServiceUrl": self._http.url if self._http is not None else None,
            "webServiceUrlTls": (self._http.url_tls or None) if self._http is not None else None,
            "coordinators": len(broker.coordinators) if broker.coordinators is not None else 0,
            "ledger": self._config.ledger_provider,
            "data": str(self._data.absolute()) if self._data is not None else None,
            "sync": getattr(broker.store, "syncer_kind", "none"),
        }


class FunctionsChild:
    """The functions worker beside the broker: a child process, `pulsar-txn functions worker`, that runs until `close`.

    The broker does not know what a function is. It starts a command of another room by its name, as a user would.
    """

    def __init__(self, admin_url: str, patience: float) -> None:
        """`patience`: seconds that the worker has to end its functions."""
        self._admin_url = admin_url
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            command = (sys.executable, "-c", _MAIN, "functions", "worker", "--admin-url", self._admin_url, "--with-parent")
            self._process = await start_child(*command)
            code = await self._process.wait()
            if code == CUT_SHORT:
                _logger.warning("the functions worker ended because another one has taken over")
                return
            _logger.error(
                "the functions worker ended with code %d and is started again in %g s; its error is above", code, pause
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def close(self) -> None:
        """End the worker and its functions, in an orderly way while there is time."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await process.wait()
        if process.returncode is None:
            _logger.warning("the functions worker did not end in %g s and is killed", self._patience)
            process.kill()
            await process.wait()
