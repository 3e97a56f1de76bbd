"""Supervisor of a worker's processes: one process for each instance, restarted after a pause that grows.

`LastMinute` is the difference between the counts of an instance now and a minute ago.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from pulsar_txn.pipeline.functions.worker.broker_api import InstanceName, InstanceSpec, function_config

SECONDS: Final = 60.0


@attrs.frozen
class _Counts:
    received: int
    successes: int
    system_exceptions: int
    user_exceptions: int
    milliseconds: float
    """In `process` altogether."""

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> _Counts:
        calls = stats.get("processed_successfully", 0) + stats.get("user_exceptions", 0)
        return cls(
            stats.get("received", 0),
            stats.get("processed_successfully", 0),
            stats.get("system_exceptions", 0),
            stats.get("user_exceptions", 0),
            stats.get("process_latency_ms", 0.0) * calls,
        )


_NOTHING: Final = _Counts(0, 0, 0, 0, 0.0)


class LastMinute:
    """Counts of the last minute, sampled about each second. A restarted process counts from zero."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, _Counts]] = deque()
        self._base = _NOTHING
        """The counts at the beginning of the last minute."""

    def note(self, now: float, stats: Mapping[str, Any]) -> None:
        """Note what a process has counted by `now`."""
        counts = _Counts.of(stats)
        if self._noted and counts.received < self._noted[-1][1].received:
            self._noted.clear()
            self._base = _NOTHING
        self._noted.append((now, counts))
        self._forget(now)

    def figures(self, now: float) -> dict[str, Any]:
        """Figures with Pulsar's names."""
        self._forget(now)
        last, base = self._noted[-1][1] if self._noted else self._base, self._base
        calls = last.successes + last.user_exceptions - base.successes - base.user_exceptions
        return {
            "receivedTotal": last.received - base.received,
            "processedSuccessfullyTotal": last.successes - base.successes,
            "systemExceptionsTotal": last.system_exceptions - base.system_exceptions,
            "userExceptionsTotal": last.user_exceptions - base.user_exceptions,
            "avgProcessLatency": (last.milliseconds - base.milliseconds) / calls if calls else 0.0,
        }

    def _forget(self, now: float) -> None:
        while self._noted and self._noted[0][0] <= now - SECONDS:
            self._base = self._noted.popleft()[1]


logger = logging.getLogger("pulsar_txn.pipeline.functions.worker")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
PATIENCE: Final = 30.0
"""Seconds that an instance has for an orderly end."""
START_SECONDS: Final = 10.0
"""After this time without a report the next process may begin all the same."""
_LONGEST_LINE: Final = 1 << 20
_COMMAND: Final = ("-c", "import sys; from pulsar_txn.pipeline.functions.__main__ import instance; sys.exit(instance())")


@attrs.define
class Health:
    """Health of an instance, over all its processes.

    It runs from the first figures that its process reports until the process says that it failed, or ends. `error` says why it
    does not run; it stays until the instance runs again.
    """

    running: bool = False
    error: str = ""
    restarts: int = 0
    stats: dict[str, Any] = attrs.field(factory=dict)
    errors: list[dict[str, Any]] = attrs.field(factory=list)
    minute: LastMinute = attrs.field(factory=LastMinute)


class Keeper:
    """Keeper of one instance. `end()` ends it in an orderly way; another specification needs another keeper."""

    def __init__(
        self,
        spec: InstanceSpec,
        service_url: str,
        fetch: Callable[[InstanceSpec], Awaitable[Path]],
        *,
        first_pause: float,
        starts: asyncio.Semaphore,
        before: asyncio.Task[None] | None = None,
    ) -> None:
        """`starts`: held while a process begins. `before`: the end of the instance with its last specification."""
        self.spec = spec
        self.health = Health()
        self._service_url = service_url
        self._fetch = fetch
        self._first_pause = first_pause
        self._starts = starts
        self._before = before
        self._reported = asyncio.Event()
        self._logged = ""
        """The error whose traceback was logged last. The same error again has one line for each restart."""
        self._stop = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Ask for the end, and wait for it."""
        self._stop.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        if self._before is not None:
            await asyncio.wait([self._before])
        pause = self._first_pause
        while not self._stop.is_set():
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                await self._run_once()
            except Exception as error:  # noqa: BLE001 - an instance that cannot start is tried again
                self.health.error = f"{type(error).__name__}: {error}"
            self.health.running = False
            if self._stop.is_set():
                return
            if loop.time() - began > LONGEST_PAUSE:
                pause = self._first_pause
            logger.warning("%s ended: %s; it begins again in %g s", self.spec.name, self.health.error or "no reason", pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
            self.health.restarts += 1

    async def _run_once(self) -> None:
        async with contextlib.AsyncExitStack() as starting:
            await starting.enter_async_context(self._starts)
            if self._stop.is_set():
                return
            config = function_config(self.spec.config) | {"py": str(await self._fetch(self.spec))}
            told = {"serviceUrl": self._service_url, "config": config, "instance": self.spec.name.number}
            process = await asyncio.create_subprocess_exec(
                sys.executable, *_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE
            )
            try:
                await self._work(process, json.dumps(told).encode() + b"\n", starting)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _work(self, process: asyncio.subprocess.Process, told: bytes, starting: contextlib.AsyncExitStack) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._reported.clear()
        process.stdin.write(told)
        reading = asyncio.ensure_future(self._read(process.stdout))
        stopping = asyncio.ensure_future(self._stop.wait())
        reported = asyncio.ensure_future(self._reported.wait())
        try:
            await process.stdin.drain()
            await asyncio.wait({reading, stopping, reported}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            await starting.aclose()
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            reported.cancel()
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            gave_a_reason = await reading
            code = await process.wait()
        if code and not gave_a_reason:
            self.health.error = f"the process ended with {code}"

    async def _read(self, stream: asyncio.StreamReader) -> bool:
        """Note what the process reports, until it ends. Whether it gave a reason for its end."""
        gave_a_reason = False
        while line := await stream.readline():
            self._reported.set()
            report: Mapping[str, Any] = json.loads(line)
            self.health.errors = list(report.get("errors", ()))
            if "stats" in report:
                self.health.stats = dict(report["stats"])
                self.health.minute.note(asyncio.get_running_loop().time(), self.health.stats)
                self.health.running, self.health.error = True, ""
            if "error" in report:
                self.health.running, self.health.error = False, str(report["error"])
                gave_a_reason = True
            if "traceback" in report and self.health.error != self._logged:  # tracebacks of one error differ in small things
                self._logged = self.health.error
                logger.warning("%s failed:\n%s", self.spec.name, report["traceback"])
        return gave_a_reason


class Supervisor:
    """All instances of a worker. What ends slowly holds up nothing but its own successor."""

    def __init__(
        self,
        fetch: Callable[[InstanceSpec], Awaitable[Path]],
        *,
        first_pause: float = FIRST_PAUSE,
        starts: int | None = None,
    ) -> None:
        """`starts`: processes that begin at the same time; by default as many as there are processors."""
        self._starts = asyncio.Semaphore(starts or os.cpu_count() or 1)
        self.keepers: dict[InstanceName, Keeper] = {}
        self._fetch = fetch
        self._first_pause = first_pause
        self._wanted: Mapping[InstanceName, InstanceSpec] = {}
        self._service_url = ""
        self._without: set[str] = set()
        """Functions of which no instance may run now."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ending: dict[InstanceName, asyncio.Task[None]] = {}

    def want(self, specs: Mapping[InstanceName, InstanceSpec], service_url: str) -> None:
        """Make what runs what is wanted: what is not wanted any more, or has changed, begins to end."""
        self._wanted, self._service_url = specs, service_url
        self._settle()

    @contextlib.asynccontextmanager
    async def without(self, fqfn: str) -> AsyncIterator[None]:
        """While no instance of a function runs; those that are wanted begin afterwards. One after the other for a function."""
        async with self._turns[fqfn]:
            self._without.add(fqfn)
            try:
                self._settle()
                await self._ended(task for name, task in self._ending.items() if name.fqfn == fqfn)
                yield
            finally:
                self._without.discard(fqfn)
                self._settle()

    async def end(self) -> None:
        """End everything, and wait for it."""
        self._wanted = {}
        self._settle()
        await self._ended(self._ending.values())

    async def _ended(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        if waiting := list(tasks):
            await asyncio.wait(waiting)

    def _settle(self) -> None:
        wanted = {name: spec for name, spec in self._wanted.items() if name.fqfn not in self._without}
        for name, keeper in list(self.keepers.items()):
            if wanted.get(name) != keeper.spec:
                del self.keepers[name]
                self._begin_to_end(name, keeper)
        for name, spec in wanted.items():
            if name not in self.keepers:
                before = self._ending.get(name)
                self.keepers[name] = Keeper(
                    spec, self._service_url, self._fetch, first_pause=self._first_pause, starts=self._starts, before=before
                )

    def _begin_to_end(self, name: InstanceName, keeper: Keeper) -> None:
        """Its end is also that of those before it."""
        task = self._ending[name] = asyncio.get_running_loop().create_task(keeper.end())

        def forget(_: object) -> None:
            if self._ending.get(name) is task:
                del self._ending[name]

        task.add_done_callback(forget)

    def reports(self, worker: str) -> dict[str, list[dict[str, Any]]]:
        """Reports of the instances of each function, in Pulsar's shape."""
        found: dict[str, list[dict[str, Any]]] = {}
        now = asyncio.get_running_loop().time()
        for name, keeper in sorted(self.keepers.items(), key=lambda item: (item[0].fqfn, item[0].number)):
            found.setdefault(name.fqfn, []).append(report_of(name.number, keeper.health, worker, now))
        return found


def report_of(number: int, health: Health, worker: str, now: float) -> dict[str, Any]:
    """`status` and `metrics` of an instance with Pulsar's names."""
    stats = health.stats
    received, successes = stats.get("received", 0), stats.get("processed_successfully", 0)
    user, system = stats.get("user_exceptions", 0), stats.get("system_exceptions", 0)
    latency, last = stats.get("process_latency_ms", 0.0), stats.get("last_invocation_ms", 0)
    status = {
        "running": health.running,
        "error": health.error,
        "numRestarts": health.restarts,
        "numReceived": received,
        "numSuccessfullyProcessed": successes,
        "numUserExceptions": user,
        "latestUserExceptions": health.errors,
        "numSystemExceptions": system,
        "latestSystemExceptions": [],
        "averageLatency": latency,
        "lastInvocationTime": last,
        "workerId": worker,
    }
    metrics = {
        "receivedTotal": received,
        "processedSuccessfullyTotal": successes,
        "systemExceptionsTotal": system,
        "userExceptionsTotal": user,
        "avgProcessLatency": latency,
        "1min": health.minute.figures(now),
        "lastInvocation": last,
        "userMetrics": {name: metric["total"] for name, metric in stats.get("user_metrics", {}).items()},
    }
    return {"instanceId": number, "status": status, "metrics": metrics}
