"""Several instances of our coordinator as processes, with their decisions in topics of one cluster, and a load on them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from our_coordinator import OurCoordinator

from pulsar_txn.client import AsyncClient, AsyncProducer
from pulsar_txn.client.errors import CommitOutcomeUnknown, PulsarError, TransactionAborted
from pulsar_txn.client.state.transaction import TransactionState


class InstanceProcesses:
    """So many of them beside one cluster. `lease_ms`: of a coordinator's log."""

    def __init__(
        self, service_url: str, count: int = 2, *, lease_ms: int = 1500, conf: Mapping[str, str] | None = None
    ) -> None:
        common = {
            "ledgerProvider": "topic",
            "ledgerTopicPrefix": f"instances-{uuid.uuid4().hex[:8]}",
            "ledgerLeaseInMillis": str(lease_ms),
            **(conf or {}),
        }
        self.all = [OurCoordinator({"east": service_url}, conf=common) for _ in range(count)]

    @property
    def service_url(self) -> str:
        """All of them, for `coordinator=`."""
        return "pulsar://" + ",".join(f"127.0.0.1:{each.port}" for each in self.all)

    def __enter__(self) -> Self:
        for each in self.all:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each in self.all:
            if kind is not None:
                print(each.log_tail(12_000))
            each.stop()

    def leader(self, but: OurCoordinator | None = None) -> OurCoordinator | None:
        """The one that leads all coordinators; None while there is none. `but`: one that cannot say that it does not."""
        for each in self.all:
            try:
                facts = each.facts()
            except FileNotFoundError:  # it is being started, or gone
                continue
            if each is not but and len(facts["leads"]) == facts["coordinators"]:
                return each
        return None

    async def led(self, *, but: OurCoordinator | None = None, seconds: float = 60.0) -> OurCoordinator:
        """Wait until one leads all coordinators."""
        until = time.monotonic() + seconds
        while (leader := self.leader(but)) is None:
            assert time.monotonic() < until, "nobody leads"
            await asyncio.sleep(0.01)
        return leader

    async def parted(self, instance: OurCoordinator, seconds: float = 60.0) -> None:
        """Wait until an instance leads nothing."""
        until = time.monotonic() + seconds
        while instance.facts()["leads"]:
            assert time.monotonic() < until, "it leads on"
            await asyncio.sleep(0.01)


class Load:
    """Transactions that write one message to each of two topics; what became of each, as the client heard it."""

    def __init__(self, client: AsyncClient, topics: tuple[str, str]) -> None:
        self._client = client
        self._topics = topics
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.resolved = 0
        self.failed_begins = 0
        self.committed_at: list[tuple[float, float]] = []
        """When each transaction that was committed began, and ended."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    @property
    def count(self) -> int:
        return len(self.committed) + len(self.aborted)

    async def start(self, workers: int = 16) -> None:
        producers = [await self._client.create_producer(topic) for topic in self._topics]
        self._tasks = [asyncio.create_task(self._work(number, producers)) for number in range(workers)]

    async def until(self, count: int, seconds: float = 120.0) -> None:
        """Wait for so many outcomes more."""
        goal, end = self.count + count, time.monotonic() + seconds
        while self.count < goal:
            assert time.monotonic() < end, f"{self.count} of {goal} outcomes"
            broken = [task for task in self._tasks if task.done()]
            for task in broken:
                task.result()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def first_commit_since(self, moment: float, seconds: float = 60.0) -> float:
        """How long it took from a moment to a commit of a transaction that began after it."""
        end = time.monotonic() + seconds
        while not (found := [ended for began, ended in self.committed_at if began > moment]):
            assert time.monotonic() < end, "nothing was committed"
            await asyncio.sleep(0.005)
        return found[0] - moment

    async def _work(self, worker: int, producers: list[AsyncProducer[Any]]) -> None:
        number = 0
        while not self._is_over:
            number += 1
            value = b"%d-%d" % (worker, number)
            began = time.monotonic()
            try:
                txn = await self._client.begin_transaction(timeout=60)
                for producer in producers:
                    await producer.send(value, txn=txn)
            except PulsarError:
                self.failed_begins += 1
                self.aborted.add(value)  # nobody has asked for a commit
                continue
            await self._end(txn, value, began, aborts=number % 5 == 0)

    async def _end(self, txn: Any, value: bytes, began: float, *, aborts: bool) -> None:
        try:
            if aborts:
                await txn.abort()
                self.aborted.add(value)
                return
            await txn.commit()
        except CommitOutcomeUnknown as error:
            self.resolved += 1
            is_committed = await self._resolve(error)
        except TransactionAborted:
            is_committed = False
        except PulsarError:
            assert aborts
            is_committed = False
        else:
            is_committed = True
            self.committed_at.append((began, time.monotonic()))
        (self.committed if is_committed else self.aborted).add(value)

    async def _resolve(self, error: CommitOutcomeUnknown) -> bool:
        while True:
            outcome = await error.resolve()
            if outcome is TransactionState.COMMITTED:
                return True
            if outcome is TransactionState.ABORTED:
                return False
            await asyncio.sleep(0.2)
