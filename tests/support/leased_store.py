"""A store that several services in one process share, with leases: what the topic ledger promises, without a cluster.

`SharedLogs` is the cluster. Each service has a `LeasedStore` of it, which can be killed, or cut off from the cluster while its
clients still reach the service. Time is that of the loop, which may be virtual.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import Buffer, LeaseLost, LedgerError, LogClosed, LogListener, MetadataStore, Snapshot
from pulsar_txn.wire.ids import Position

LEDGER: Final = 1
_BEAT: Final = b""


class SharedLog:
    """One log in the cluster: what is durable, and who leads."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.first = 0
        self.next = 0
        self.snapshot: Snapshot | None = None
        self.holder: LeasedLog | None = None
        self.claim: str | None = None
        self.beat_at = 0.0
        self.epoch = 0
        self._waiters: list[asyncio.Future[None]] = []

    def free(self) -> None:
        """Nobody leads."""
        self.holder = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def freed(self, seconds: float) -> None:
        """Wait until nobody leads, or for so long."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiter


class SharedLogs:
    """The cluster."""

    def __init__(self, *, lease_s: float = 2.0, latency_s: float = 0.002) -> None:
        self.lease_s = lease_s
        self.latency_s = latency_s
        self.logs: dict[str, SharedLog] = {}
        self.values = MemoryStore()
        self.takeovers = 0

    def log(self, name: str) -> SharedLog:
        """The log of this name; made when it is not there."""
        return self.logs.setdefault(name, SharedLog())


class LeasedStore:
    """One process's view. Implements `SharedLogStore` as far as a coordinator service asks."""

    disk_full = False
    bytes_in_flight = 0
    progress = None

    def __init__(self, logs: SharedLogs) -> None:
        self.advertised = ""
        self.cluster = logs
        self.metadata: MetadataStore = logs.values.metadata
        self.is_cut = False
        self.is_dead = False
        self.open_logs: list[LeasedLog] = []

    async def start(self) -> None:
        """Nothing to open."""

    async def open(self, name: str, *, create: bool = True) -> LeasedLog:
        """Wait until this process leads the log."""
        shared, cluster = self.cluster.log(name), self.cluster
        loop = asyncio.get_running_loop()
        while self.is_dead or self.is_cut or shared.holder is not None:
            left = shared.beat_at + cluster.lease_s - loop.time()
            if not (self.is_dead or self.is_cut) and left <= 0:
                shared.free()  # nobody has heard of the leader for a lease
            else:
                await shared.freed(max(left, 0.001))
        cluster.takeovers += 1
        log = LeasedLog(self, name, shared)
        self.open_logs.append(log)
        await asyncio.sleep(2 * cluster.latency_s)  # CLAIM, and the log is read up to it
        log.check_open()
        return log

    def leader_of(self, name: str) -> str | None:
        """The newest claim."""
        return self.cluster.log(name).claim

    def exists(self, name: str) -> bool:
        """Whether there is a log of this name."""
        return name in self.cluster.logs

    @property
    def log_count(self) -> int:
        return len(self.cluster.logs)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.cluster.logs if name.startswith(prefix))

    async def delete(self, name: str) -> None:
        raise NotImplementedError("no coordinator deletes its log")

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """There is never too much in flight."""

    def kill(self) -> None:
        """The process is gone; the cluster sees that its connections have ended."""
        self.is_dead = True
        for log in list(self.open_logs):
            log.die()

    def cut(self) -> None:
        """The process runs on, and hears nothing of the cluster."""
        self.is_cut = True

    def mend(self) -> None:
        """It hears everything now."""
        self.is_cut = False
        for log in list(self.open_logs):
            log.go_on()

    def lose(self, which: str = "") -> None:
        """All ties to the cluster break, and whoever waits is let in; this process finds out when it writes next."""
        for log in [each for each in self.open_logs if each.name.endswith(which)]:
            log.is_tied = False
            if log.shared.holder is log:
                log.shared.free()

    async def close(self) -> None:
        """Give all leases back."""
        for log in list(self.open_logs):
            await log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class LeasedLog:
    """A log that this process leads, or believes to lead."""

    def __init__(self, store: LeasedStore, name: str, shared: SharedLog) -> None:
        self.name = name
        self.shared = shared
        self.is_tied = True
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._listener: LogListener | None = None
        self._failure: LedgerError | None = None
        self._out: deque[tuple[float, Callable[[], None]]] = deque()
        self._back: deque[Callable[[], None]] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        shared.holder, shared.claim, shared.epoch = self, store.advertised, shared.epoch + 1
        shared.beat_at = self._loop.time()
        shared.next += 1  # the claim
        self.epoch = shared.epoch
        self._next = shared.next
        self._confirmed = shared.next - 1
        self._fresh_until = self._loop.time() + store.cluster.lease_s
        self._beat()

    # ---- what it promises

    @property
    def first(self) -> Position | None:
        return (LEDGER, self.shared.first) if self.shared.first < self.shared.next else None

    @property
    def last_appended(self) -> Position:
        return (LEDGER, self._next - 1)

    @property
    def last_confirmed(self) -> Position:
        return (LEDGER, self._confirmed)

    @property
    def fresh(self) -> bool:
        return self._failure is None and self.is_tied and self._loop.time() < self._fresh_until

    def refresh(self) -> Position:
        return self.append(_BEAT)

    def listen(self, listener: LogListener) -> None:
        self._listener = listener

    def append(self, data: Any, *, reserve: bool = False) -> Position:
        entry, self._next = self._next, self._next + 1
        self._send(lambda: self._store_entry(entry, bytes(data)), lambda: self._confirm(entry))
        return (LEDGER, entry)

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        self.check_open()
        await asyncio.sleep(self._store.cluster.latency_s)
        found = [each for each in sorted(self.shared.entries) if start[1] <= each <= self._confirmed]
        return [((LEDGER, each), self.shared.entries[each]) for each in found[:max_entries]]

    def next_position(self, position: Position) -> Position:
        return (LEDGER, position[1] + 1)

    def trim(self, before: Position) -> None:
        self._send(lambda: self._trim(before[1]), lambda: None)

    def write_snapshot(self, covers: Position) -> SnapshotOf:
        return SnapshotOf(self, covers)

    async def latest_snapshot(self) -> Snapshot | None:
        return self.shared.snapshot

    async def flush(self) -> None:
        self.check_open()
        while self._out or self._back:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self.check_open()

    async def close(self) -> None:
        if self._failure is None:
            await self.flush()
            self._end(LogClosed("closed"))
            if self.shared.holder is self:
                self.shared.free()

    # ---- its way to the cluster and back

    def keep(self, snapshot: Snapshot) -> None:
        """A snapshot is finished."""

        def store() -> None:
            self.shared.snapshot = snapshot

        self._send(store, lambda: None)

    def check_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    def die(self) -> None:
        """Its process is gone."""
        self._end(LogClosed("the process is dead"))
        if self.shared.holder is self:
            self.shared.free()

    def go_on(self) -> None:
        """The cluster is heard again."""
        while self._back and self._failure is None:
            self._back.popleft()()
        self._tell_waiters()
        for _ in range(len(self._out)):
            self._loop.call_later(self._store.cluster.latency_s, self._arrive)

    def _send(self, arrives: Callable[[], None], comes_back: Callable[[], None]) -> None:
        self.check_open()
        sent_at = self._loop.time()

        def arrived() -> None:
            arrives()
            self.shared.beat_at = self._loop.time()

            def back() -> None:
                comes_back()
                self._fresh_until = sent_at + self._store.cluster.lease_s

            self._return(back)

        self._out.append((sent_at, arrived))
        self._loop.call_later(self._store.cluster.latency_s, self._arrive)

    def _arrive(self) -> None:
        if self._store.is_cut or self._failure is not None or not self._out:
            return
        _, arrived = self._out.popleft()
        if self.shared.holder is self:
            arrived()
        else:
            self._return(self._lost)

    def _return(self, back: Callable[[], None]) -> None:
        self._back.append(back)
        self._loop.call_later(self._store.cluster.latency_s, self._come_back)

    def _come_back(self) -> None:
        if not self._store.is_cut and self._failure is None and self._back:
            self._back.popleft()()
            self._tell_waiters()

    def _lost(self) -> None:
        error = LeaseLost(f"another instance leads {self.name}")
        self._end(error)
        if self._listener is not None:
            self._listener.log_failed(error)

    def _end(self, error: LedgerError) -> None:
        if self._failure is None:
            self._failure = error
            self._out.clear()
            self._back.clear()
            self._store.open_logs.remove(self)
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _store_entry(self, entry: int, data: Buffer) -> None:
        if data != _BEAT:
            self.shared.entries[entry] = bytes(data)
        self.shared.next = entry + 1

    def _confirm(self, entry: int) -> None:
        self._confirmed = entry
        if self._listener is not None:
            self._listener.log_confirmed((LEDGER, entry))

    def _trim(self, before: int) -> None:
        for entry in [each for each in self.shared.entries if each < before]:
            del self.shared.entries[entry]
        self.shared.first = max(self.shared.first, before)

    def _beat(self) -> None:
        if self._failure is None:
            if not self._store.is_cut:
                self.refresh()
            self._loop.call_later(self._store.cluster.lease_s / 4, self._beat)


class SnapshotOf:
    """The parts of a snapshot."""

    def __init__(self, log: LeasedLog, covers: Position) -> None:
        self._log = log
        self._covers = covers
        self._parts: list[bytes] = []

    def write(self, part: Buffer) -> None:
        self._parts.append(bytes(part))

    def finish(self) -> None:
        self._log.keep(Snapshot(self._covers, tuple(self._parts)))

    def abandon(self) -> None:
        self._parts.clear()
