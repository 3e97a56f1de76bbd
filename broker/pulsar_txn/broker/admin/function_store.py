"""Store of functions at the broker: configurations in the metadata store, packages in logs, and what a worker reports.

The broker runs no function. A worker asks for this through `function_worker_api`, and runs them in processes of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import attrs

from pulsar_txn.broker.base.runtime import Runtime
from pulsar_txn.ledger.protocols import Log, LogStore
from pulsar_txn.wire.errors import Refusal, ServerError

PATH: Final = "/functions"
SILENT_SECONDS: Final = 30.0
"""Without a word of the worker for so long nothing is said to run."""
_PACKAGES: Final = "functions/packages/"
_NUMBERS: Final = "/functions-packages"
_FLUSH_BYTES: Final = 4 << 20
_ENTRY_BYTES: Final = 256 << 10


@attrs.frozen(order=True)
class FunctionName:
    """Tenant, namespace and name."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"


@attrs.frozen
class Package:
    """An uploaded file: the name that it had, and where its bytes are."""

    number: int
    name: str
    size: int
    sha256: str


@attrs.frozen(kw_only=True)
class FunctionRecord:
    """One function as it is kept."""

    config: dict[str, Any]
    package: Package
    version: int = 0
    running: bool = True
    stopped: tuple[int, ...] = ()
    """Instances that were stopped alone."""
    restarts: dict[str, int] = attrs.field(factory=dict)
    """Number of requested restarts of an instance, or of `all`."""

    @property
    def parallelism(self) -> int:
        """Instances."""
        found: int = self.config.get("parallelism", 1)
        return found

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> FunctionRecord:
        """From what was stored."""
        fields = json.loads(data)
        return cls(**fields | {"package": Package(**fields["package"]), "stopped": tuple(fields["stopped"])})


class FunctionStore:
    """All functions of a broker. `start()` before anything else."""

    def __init__(self, store: LogStore, runtime: Runtime) -> None:
        self.records: dict[FunctionName, FunctionRecord] = {}
        self.reports: dict[FunctionName, list[dict[str, Any]]] = {}
        """Last report of the worker: for each instance `instanceId`, `status` and `metrics`."""
        self.changes = Changes(f"{int(runtime.random() * 2**53):x}")
        self._heard: float | None = None
        self._monotonic = runtime.monotonic
        self._store = store
        self._started: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        """Read what is stored, once; packages that no function has are removed. Raises LedgerError."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_task(self._load())
        await asyncio.shield(self._started)

    async def _load(self) -> None:
        metadata = self._store.metadata
        for tenant in await metadata.children(PATH):
            for namespace in await metadata.children(f"{PATH}/{tenant}"):
                for name in await metadata.children(f"{PATH}/{tenant}/{namespace}"):
                    found = await metadata.get(f"{PATH}/{tenant}/{namespace}/{name}")
                    if found is not None:
                        self.records[FunctionName(tenant, namespace, name)] = FunctionRecord.decode(found.data)
        kept = {f"{_PACKAGES}{record.package.number}" for record in self.records.values()}
        for log in self._store.names(_PACKAGES):
            if log not in kept:
                await self._store.delete(log)

    def hear(self) -> None:
        """The worker is there."""
        self._heard = self._monotonic()

    @property
    def silence(self) -> str | None:
        """Reason why no instance is known; None while the worker reports."""
        if self._heard is None:
            return "no functions worker is connected"
        seconds = self._monotonic() - self._heard
        return None if seconds < SILENT_SECONDS else f"the functions worker has not been heard for {seconds:.0f} s"

    def get(self, name: FunctionName) -> FunctionRecord:
        """One function. Refusal TopicNotFound."""
        if name not in self.records:
            raise Refusal(ServerError.TopicNotFound, f"Function {name} doesn't exist")
        return self.records[name]

    async def create(self, name: FunctionName, record: FunctionRecord) -> None:
        """Store a new function; durable when it returns. Refusal NotAllowedError when it is there already."""
        async with self._writing:
            if name in self.records:
                raise Refusal(ServerError.NotAllowedError, f"Function {name} already exists")
            await self._put(name, record)

    async def change(self, name: FunctionName, change: Callable[[FunctionRecord], FunctionRecord]) -> None:
        """Store what `change` makes of a function; durable when it returns. Refusal TopicNotFound."""
        async with self._writing:
            before = self.get(name)
            record = change(before)
            await self._put(name, record)
        if before.package.number != record.package.number:
            await self.drop_package(before.package.number)

    async def _put(self, name: FunctionName, record: FunctionRecord) -> None:
        await self._store.metadata.put(f"{PATH}/{name}", record.encode())
        self.records[name] = record
        self.changes.note()

    async def delete(self, name: FunctionName) -> None:
        """Forget a function and its package; durable when it returns."""
        async with self._writing:
            record = self.get(name)
            await self._store.metadata.delete(f"{PATH}/{name}")
            del self.records[name]
            self.reports.pop(name, None)
            self.changes.note()
        await self.drop_package(record.package.number)

    # ---- packages

    async def put_package(self, name: str, parts: AsyncIterator[bytes], most: int) -> Package:
        """Store a file; durable when it returns. Refusal NotAllowedError when it has more bytes than `most`."""
        number = await self._store.metadata.increment(_NUMBERS)
        log = await self._store.open(f"{_PACKAGES}{number}")
        try:
            digest, size = await _fill(log, parts, most)
        except BaseException:
            await log.close()
            await self.drop_package(number)
            raise
        await log.close()
        return Package(number, name, size, digest)

    async def package(self, number: int) -> AsyncIterator[bytes]:
        """The bytes of a package, in parts. One is read at a time."""
        async with self._reading:
            async for part in self._read(number):
                yield part

    async def _read(self, number: int) -> AsyncIterator[bytes]:
        log = await self._store.open(f"{_PACKAGES}{number}", create=False)
        try:
            start = log.first or log.last_appended
            while entries := await log.read(start):
                for _, data in entries:
                    yield data
                start = log.next_position(entries[-1][0])
        finally:
            await log.close()

    async def drop_package(self, number: int) -> None:
        """Remove a package."""
        async with self._reading:
            await self._store.delete(f"{_PACKAGES}{number}")


async def _fill(log: Log, parts: AsyncIterator[bytes], most: int) -> tuple[str, int]:
    """Append a file; its digest and size. Refusal NotAllowedError when it has more bytes than `most`."""
    digest, size, unflushed = hashlib.sha256(), 0, 0
    async for part in parts:
        size, unflushed = size + len(part), unflushed + len(part)
        if size > most:
            raise Refusal(ServerError.NotAllowedError, f"the package has more than {most} bytes (functionsMaxPackageSizeInMB)")
        digest.update(part)
        for start in range(0, len(part), _ENTRY_BYTES):
            log.append(part[start : start + _ENTRY_BYTES])
        if unflushed > _FLUSH_BYTES:
            await log.flush()
            unflushed = 0
    await log.flush()
    return digest.hexdigest(), size


class Changes:
    """A number that grows with every change, for those who wait for one. `epoch` tells the starts of a broker apart."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._number = 0
        self._changed = asyncio.Event()

    @property
    def revision(self) -> str:
        """The state that was reached."""
        return f"{self._epoch}.{self._number}"

    def note(self) -> None:
        """Something changed."""
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_beyond(self, revision: str, seconds: float) -> None:
        """Until there is another revision than this one, or the time is over."""
        if revision != self.revision:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


def status_of(record: FunctionRecord, reports: Iterable[dict[str, Any]], silence: str | None) -> dict[str, Any]:
    """The status of a function in Pulsar's shape. `silence`: why nothing that was reported holds any more, if so."""
    said = {} if silence is not None else {each["instanceId"]: each["status"] for each in reports}
    instances = []
    for number in range(record.parallelism):
        status = said.get(number, {"running": False, "error": silence or "no functions worker has reported this instance yet"})
        if not record.running or number in record.stopped:
            status = status | {"running": False, "error": ""}
        instances.append({"instanceId": number, "status": status})
    running = sum(bool(each["status"].get("running")) for each in instances)
    return {"numInstances": record.parallelism, "numRunning": running, "instances": instances}


LAST_MINUTE: Final = "1min"
_SUMS: Final = ("receivedTotal", "processedSuccessfullyTotal", "systemExceptionsTotal", "userExceptionsTotal")


def stats_of(record: FunctionRecord, reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a function in Pulsar's shape: in all, and those of the last minute under `1min`."""
    found = [{"instanceId": each["instanceId"], "metrics": each["metrics"]} for each in reports]
    found = [each for each in found if each["instanceId"] < record.parallelism]
    metrics = [each["metrics"] for each in found]
    total = _summed(metrics) | {LAST_MINUTE: _summed([each.get(LAST_MINUTE) or {} for each in metrics])}
    total["lastInvocation"] = max((each.get("lastInvocation", 0) for each in metrics), default=0)
    return total | {"instances": found}


def _summed(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {key: sum(each.get(key, 0) for each in metrics) for key in _SUMS}
    weights = sum(each.get("receivedTotal", 0) for each in metrics)
    latency = sum(each.get("avgProcessLatency", 0.0) * each.get("receivedTotal", 0) for each in metrics)
    total["avgProcessLatency"] = latency / weights if weights else 0.0
    return total
