"""One instance of a function as a process: it reads what to run from its standard input, and reports on its standard output.

The first line of the input is the specification. The end of the input asks for an orderly end, so an instance ends with its
worker, however that ends. What the function prints goes to the standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
import traceback
from typing import Any, Final

import attrs

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.errors import UsageError
from pulsar_txn.pipeline.functions._guarantees import FunctionEvent
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.runner import FunctionRun
from pulsar_txn.pipeline.functions.stats import FunctionStats

logger = logging.getLogger("pulsar_txn.pipeline.functions.worker")

REPORT_SECONDS: Final = 1.0
LONGEST_END_SECONDS: Final = 40
"""More than a worker that lives gives its instances."""
LATEST_ERRORS: Final = 10
LONGEST_METRICS: Final = 32 << 10
"""Bytes of the metrics in a report: those of 100 instances are one request to the broker."""
LONGEST_TRACEBACK: Final = 20_000
_FAILED: Final = 1
_USAGE: Final = 2


class Reports:
    """Lines of JSON for the worker. The function cannot write among them."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._errors: list[dict[str, Any]] = []
        self._warned = False

    def observe(self, event: FunctionEvent) -> None:
        """Remember why messages failed."""
        if event.kind == "failed" and event.error is not None:
            text = f"{type(event.error).__name__}: {event.error}"[:2000]
            self._errors.append({"exceptionString": text, "timestampMs": int(time.time() * 1000)})
            del self._errors[:-LATEST_ERRORS]

    def say_stats(self, stats: FunctionStats) -> None:
        """Say what was counted so far.

        Metrics of the function's own beyond 32 KiB are left out: the worker has to keep them.
        """
        found, left = attrs.asdict(stats), LONGEST_METRICS
        kept: dict[str, Any] = {}
        for name, metric in found["user_metrics"].items():
            left -= len(json.dumps({name: metric}))
            if left < 0:
                self._warn_of_metrics(len(kept))
                break
            kept[name] = metric
        self.say(stats=found | {"user_metrics": kept})

    def _warn_of_metrics(self, kept: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the function records too many metrics: its statistics show the first %d; record fewer names", kept)

    def say(self, **report: Any) -> None:
        """Write one report."""
        self._stream.write(json.dumps(report | {"errors": self._errors}) + "\n")
        self._stream.flush()


async def main() -> int:
    """Run until the input ends. The exit code: 0 an orderly end, 1 the run failed, 2 it cannot work."""
    reports = Reports()
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    spec = json.loads(await reader.readline())
    stop = asyncio.Event()
    ending = asyncio.create_task(_end_with(reader, stop))
    try:
        async with AsyncClient(spec["serviceUrl"]) as client:
            config = FunctionConfig.from_mapping(spec["config"])
            run = FunctionRun(client, config, stop=stop, observer=reports.observe, instances=(spec["instance"],))
            reporting = asyncio.create_task(_report(run, reports))
            try:
                await run.run()
            finally:
                reporting.cancel()
            reports.say_stats(run.stats())
    except Exception as error:  # noqa: BLE001 - the worker is told
        text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
        reports.say(error=f"{type(error).__name__}: {error}", traceback=text)
        return _USAGE if isinstance(error, UsageError) else _FAILED
    finally:
        ending.cancel()
    return 0


async def _end_with(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    """An orderly end when the input ends. A function that never returns must not outlive its worker: the alarm ends it."""
    await reader.read()
    signal.alarm(LONGEST_END_SECONDS)
    stop.set()


async def _report(run: FunctionRun, reports: Reports) -> None:
    while True:
        reports.say_stats(run.stats())
        await asyncio.sleep(REPORT_SECONDS)
