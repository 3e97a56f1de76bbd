"""Coordinators that cannot be opened: their logs are closed, they are tried again, and keep nobody else from serving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn import coordinators as module
from pulsar_txn.broker.txn.coordinator_host import coordinator_log_name
from pulsar_txn.broker.txn.coordinators import Coordinators, PlainCoordinators
from pulsar_txn.broker.txn.hosts import MachineHost
from pulsar_txn.ledger.machine import Step, TellParticipant, WriteSnapshot
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.tc import FencingCoordinator
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId

SICK = 1


class _Nobody:
    def tell(self, effect: TellParticipant, done: Callable[[], None]) -> None:
        done()


class _Sick(FencingCoordinator):
    """Fails in a part of its recovery, as often as `failures` says."""

    failures = 0
    part = ""

    def _stumble(self, part: str) -> None:
        if _Sick.part == part and self.tc_id == SICK and _Sick.failures:
            _Sick.failures -= 1
            raise LedgerError(f"{part} fails")

    def apply(self, log: str, position: Any, record: Any) -> None:
        self._stumble("apply")
        super().apply(log, position, record)

    def recovered(self, now_ms: int) -> Step[Any]:
        self._stumble("recovered")
        step = super().recovered(now_ms)
        return Step(step.records, (*step.effects, WriteSnapshot("log")), step.trailing)

    def snapshot(self) -> Any:
        self._stumble("snapshot")
        return super().snapshot()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_REOPEN_SECONDS", 0.001)


async def _begin(coordinators: Coordinators, tc_id: int) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    coordinators.new_txn(tc_id, 60_000, None, None, lambda *answer: answered.set_result(answer))
    return await answered


def _coordinators(store: MemoryStore) -> Coordinators:
    runtime = AsyncioRuntime()
    turn = Turn(runtime, Clock(runtime))
    return Coordinators(store, turn, PlainCoordinators(_Sick, turn, _Nobody()), lambda *_: None)


@pytest.mark.parametrize("part", ["apply", "recovered", "snapshot"])
async def test_a_coordinator_that_fails_in_its_recovery_closes_its_log_and_serves_later(part: str) -> None:
    store = MemoryStore()
    coordinators = _coordinators(store)
    coordinators.grow(2)
    await coordinators.wait_ready()
    assert (await _begin(coordinators, SICK))[0] == TxnId(SICK, 0)
    await coordinators.close()

    _Sick.part, _Sick.failures = part, 3
    coordinators = _coordinators(store)
    coordinators.grow(2)
    await coordinators.wait_ready()
    with pytest.raises(Refusal) as refused:
        await coordinators.connect(SICK)
    assert refused.value.code is ServerError.TransactionCoordinatorNotFound, "an error that clients retry"
    assert (await _begin(coordinators, SICK))[1] is ServerError.TransactionCoordinatorNotFound
    assert (await _begin(coordinators, 0))[0] == TxnId(0, 0), "the other one serves"
    async with asyncio.timeout(20):
        while coordinators.ready(SICK) is None:
            await asyncio.wait([asyncio.create_task(coordinators.wait_ready()), asyncio.create_task(asyncio.sleep(0.001))])
    assert _Sick.failures == 0
    assert (await _begin(coordinators, SICK))[0] == TxnId(SICK, 1), "nothing was forgotten"
    await coordinators.close()
    log = await store.open(coordinator_log_name(SICK))
    await log.close()


async def test_a_coordinator_whose_recovery_is_cancelled_leaves_its_log_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, reached = MemoryStore(), asyncio.Event()

    async def endless(_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(MachineHost, "_recover", endless)
    coordinators = _coordinators(store)
    coordinators.grow(1)
    await reached.wait()
    await coordinators.close()
    log = await store.open(coordinator_log_name(0))
    await log.close()
