"""`pulsar-txn standalone`: one broker as a process, from its options to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base import plugins
from pulsar_txn.broker.base.config import Loaded, conf_key, load
from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.server import Standalone

from . import functions_child
from .exits import CUT_SHORT, STORAGE_FAILED, USAGE, Ending, cannot_listen

_logger = logging.getLogger(__name__)

_PLUGINS: Final = {
    "ledger_provider": plugins.LEDGERS,
    "transaction_metadata_store_provider_class_name": plugins.COORDINATORS,
    "transaction_buffer_provider_class_name": plugins.TRANSACTION_BUFFERS,
    "transaction_pending_ack_store_provider_class_name": plugins.PENDING_ACKS,
}
_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""The broker makes few cycles and many short-lived objects: looking for cycles after every 700 took a sixth of its time."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def command_line_of(settings: tuple[str, ...], port: int | None = None, http_port: int | None = None) -> dict[str, str]:
    """What options say, by key. Raises click.BadParameter for something that is not KEY=VALUE."""
    chosen: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        chosen[key] = value
    if port is not None:
        chosen["brokerServicePort"] = str(port)
    if http_port is not None:
        chosen["webServicePort"] = str(http_port)
    return chosen


def load_config(conf: Path | None, command_line: dict[str, str]) -> Loaded:
    """The configuration with the environment and the options on top. Raises ConfigError, and Ending for a file."""
    try:
        return load(conf, os.environ, command_line)
    except OSError as error:
        raise Ending(USAGE, f"{conf} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Ending(USAGE, f"{conf} is not a text in UTF-8: {error}") from error


@click.command("standalone")
@click.option("--conf", type=click.Path(path_type=Path), help="Configuration with Pulsar's keys; else the shipped one.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for all data; made if it is not there.")
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
    logging.basicConfig(level=log_level.upper(), format=_LOG_FORMAT)
    chosen = command_line_of(settings, port, http_port)
    if functions:
        chosen["functionsWorkerEnabled"] = "true"
    loaded = load_config(conf, chosen)
    for warning in loaded.warnings:
        _logger.warning("configuration: %s", warning)
    if data is None and loaded.config.ledger_provider != "memory":
        raise click.UsageError("say where the data goes: --data DIR (or --set ledgerProvider=memory, which keeps nothing)")
    _check_plugins(loaded)
    if loaded.config.functions_worker_enabled:
        _check_functions(loaded.config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(Process(loaded.config, data, ready_file).run())


def _check_plugins(loaded: Loaded) -> None:
    """Before any file is touched. Raises Ending."""
    for field, group in _PLUGINS.items():
        value = getattr(loaded.config, field)
        try:
            plugins.resolve(group, value)
        except plugins.PluginError as error:
            raise Ending(USAGE, f"{loaded.origins[field]}: {conf_key(field)}={value}: {error}") from error


def _check_functions(config: BrokerConfig) -> None:
    """Before any file is touched. Raises Ending."""
    functions_child.check_installed()
    if config.web_service_port is None:
        raise Ending(USAGE, "functions need the HTTP port: set webServicePort")
    if config.bind_address not in _LOOPBACK:
        _logger.warning(
            "functions are enabled and HTTP listens on %s: whoever reaches this port can run code on this machine",
            config.bind_address,
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Of uvloop where there is one."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Process:
    """A broker, its signals and its ready line."""

    def __init__(self, config: BrokerConfig, data: Path | None, ready_file: Path | None) -> None:
        self._config = config
        self._data = data
        self._ready_file = ready_file
        self._runtime = AsyncioRuntime()
        self._standalone = Standalone(data, config=config, runtime=self._runtime)
        self._http: HttpServer | None = None
        self._functions: functions_child.FunctionsChild | None = None
        self._signals = 0
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Start, serve until a signal, drain. Raises Ending for every end that is not an ordinary drain, and LedgerError."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._start()
            gc.collect()
            gc.freeze()  # what was loaded and recovered stays: no collection looks at it again
            gc.set_threshold(*_GC_THRESHOLDS)
            if self._config.functions_worker_enabled and self._http is not None:
                patience = self._config.broker_shutdown_timeout_ms / 1000
                self._functions = functions_child.FunctionsChild(self._http.url, patience)
            self._say_ready()
            await self._until_end()
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise Ending(CUT_SHORT, "ended by a second signal; what was answered is durable") from None
        finally:
            self._remove_ready_file()

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            _logger.info("%s: draining", number.name)
            self._stop.set()
        elif self._main is not None:
            self._main.cancel()

    async def _start(self) -> None:
        config = self._config
        try:
            await self._standalone.start()
        except (OSError, OverflowError) as error:
            known = error if isinstance(error, OSError) else OSError(str(error))
            raise cannot_listen(
                config.bind_address, config.broker_service_port, "brokerServicePort", "--port", known
            ) from error
        if config.web_service_port is not None:
            await self._start_http(config.web_service_port)

    async def _start_http(self, port: int) -> None:
        host = self._config.bind_address
        self._http = HttpServer(self._standalone.broker, self._runtime)
        try:
            await self._http.start(host, port)
        except OSError as error:
            await self._standalone.close()
            raise cannot_listen(host, port, "webServicePort", "--http-port", error) from error

    async def _until_end(self) -> None:
        standalone = self._standalone
        waits = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(standalone.storage_failed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if standalone.storage_failed.is_set():
            raise Ending(STORAGE_FAILED, str(standalone.broker.storage_failure))
        self._remove_ready_file()
        if self._functions is not None:
            await self._functions.close()
        if self._http is not None:
            await self._http.close()
        await standalone.close()
        _logger.info("drained")

    def _say_ready(self) -> None:
        facts = self._facts()
        if self._ready_file is not None:
            beside = self._ready_file.with_name(self._ready_file.name + ".tmp")
            try:
                beside.write_text(json.dumps(facts) + "\n", encoding="utf-8")
                beside.replace(self._ready_file)
            except OSError as error:
                raise Ending(USAGE, f"--ready-file {self._ready_file} cannot be written: {error.strerror}") from error
        place = f" in {facts['data']}" if facts["data"] else ""
        click.echo(
            f"pulsar-txn {facts['version']} is ready: {facts['serviceUrl']}, {facts['webServiceUrl'] or 'no HTTP'}, "
            f"{facts['coordinators']} coordinators, {facts['ledger']}{place}, sync by {facts['sync']}"
        )

    def _facts(self) -> dict[str, Any]:
        broker = self._standalone.broker
        return {
            "version": version("pulsar-txn"),
            "pid": os.getpid(),
            "serviceUrl": broker.service_url,
            "webServiceUrl": self._http.url if self._http is not None else None,
            "coordinators": len(broker.coordinators) if broker.coordinators is not None else 0,
            "ledger": self._config.ledger_provider,
            "data": str(self._data.absolute()) if self._data is not None else None,
            "sync": getattr(broker.store, "syncer_kind", "none"),
        }

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            with contextlib.suppress(OSError):
                self._ready_file.unlink(missing_ok=True)
