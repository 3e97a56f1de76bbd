"""The life of a process that serves: ready line, signals, drain, exit code. What it serves is its caller's business."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import click

from .exits import CUT_SHORT, STORAGE_FAILED, USAGE, Ending

LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_logger = logging.getLogger(__name__)

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""A server makes few cycles and many short-lived objects: looking for cycles after every 700 took a sixth of its time."""


class Serves(Protocol):
    """Server that a process runs."""

    async def start(self) -> None:
        """Serve from now on. Raises Ending, and LedgerError."""

    def facts(self) -> dict[str, Any]:
        """Content of the ready file."""

    def ready_line(self) -> str:
        """Line on standard output once it serves."""

    async def storage_failed(self) -> Exception:
        """Wait until nothing can be stored any more; the error."""

    async def close(self) -> None:
        """Drain."""


class Lifetime:
    """One run of what is served, from its start to an Ending."""

    def __init__(self, serves: Serves, ready_file: Path | None) -> None:
        self._serves = serves
        self._ready_file = ready_file
        self._signals = 0
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._is_ready = False

    def facts_changed(self) -> None:
        """Write the ready file anew, if it is there."""
        if self._is_ready and self._ready_file is not None:
            try:
                self._write(self._ready_file)
            except OSError as error:
                _logger.warning("--ready-file %s is out of date, it cannot be written: %s", self._ready_file, error.strerror)

    async def run(self) -> None:
        """Start, serve until a signal, drain. Raises Ending for every end that is not an ordinary drain, and LedgerError."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._serves.start()
            gc.collect()
            gc.freeze()  # what was loaded and recovered stays: no collection looks at it again
            gc.set_threshold(*_GC_THRESHOLDS)
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

    async def _until_end(self) -> None:
        failure = asyncio.ensure_future(self._serves.storage_failed())
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stop.wait()), failure]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if failure.done() and not failure.cancelled():
            raise Ending(STORAGE_FAILED, str(failure.result()))
        self._remove_ready_file()
        await self._serves.close()
        _logger.info("drained")

    def _say_ready(self) -> None:
        if self._ready_file is not None:
            try:
                self._write(self._ready_file)
            except OSError as error:
                raise Ending(USAGE, f"--ready-file {self._ready_file} cannot be written: {error.strerror}") from error
        self._is_ready = True
        click.echo(self._serves.ready_line())

    def _write(self, ready_file: Path) -> None:
        beside = ready_file.with_name(ready_file.name + ".tmp")
        beside.write_text(json.dumps(self._serves.facts()) + "\n", encoding="utf-8")
        beside.replace(ready_file)

    def _remove_ready_file(self) -> None:
        self._is_ready = False
        if self._ready_file is not None:
            with contextlib.suppress(OSError):
                self._ready_file.unlink(missing_ok=True)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Of uvloop where there is one."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
