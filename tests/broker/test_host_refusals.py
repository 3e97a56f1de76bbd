"""A host on a disk without room: every request has one answer, and what nobody would repeat is not lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_machine import ScriptedMachine, ScriptedRequest

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn import hosts as module
from pulsar_txn.broker.txn.hosts import MachineHost
from pulsar_txn.ledger.machine import AwaitOutcome, Outcome, Reply, Step
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

TXN = TxnId(0, 1)


class _Disk:
    """The log of a host, which has room for some more entries only."""

    def __init__(self, host: MachineHost[Any, bytes]) -> None:
        self.room = 10**9
        self._append = host.logs["log"].append
        host.logs["log"].append = self.append  # type: ignore[method-assign] # as a full disk refuses the reserve too

    def append(self, data: Any, *, reserve: bool = False) -> Position:
        if not self.room:
            raise DiskFull("full")
        self.room -= 1
        return self._append(data, reserve=reserve)


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> MachineHost[Any, bytes]:
    monkeypatch.setattr(module, "_OWED_SECONDS", 0.001)
    runtime = AsyncioRuntime()
    store = MemoryStore()
    log = await store.open("log")
    made: MachineHost[Any, bytes] = MachineHost(ScriptedMachine(), {"log": log}, Turn(runtime, Clock(runtime)), lambda *_: None)
    await made.recover()
    return made


async def _until(host: MachineHost[Any, bytes], applied: list[bytes]) -> None:
    machine: Any = host.machine
    async with asyncio.timeout(20):
        while machine.applied != applied:
            await asyncio.wait([asyncio.create_task(asyncio.sleep(0.001))])


async def test_an_end_that_the_disk_has_no_room_for_is_refused_once_and_not_answered_again_by_the_outcome(
    host: MachineHost[Any, bytes],
) -> None:
    disk, answers = _Disk(host), []  # type: ignore[var-annotated] # pairs
    request = ScriptedRequest(Step(), answers)
    request.step = Step((("log", b"decision"),), (AwaitOutcome(request.token, TXN),))
    disk.room = 0
    host.submit(request, reserve=True)
    await asyncio.sleep(0)
    assert answers == [(None, ServerError.PersistenceError)]
    disk.room = 9
    host.submit(request, reserve=True)
    host.carry_out(Step((("log", b"done"),), (Outcome(TXN, TxnAction.COMMIT),)))
    await host.logs["log"].flush()
    await asyncio.sleep(0)
    assert answers[1:] == [(None, None)], "the repeat has its own answer"
    assert not host.is_busy


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("records", [1, 2])
async def test_a_step_that_finds_no_room_for_its_trailing_record_fails_the_host_and_is_answered_once(
    host: MachineHost[Any, bytes], records: int, awaits: bool
) -> None:
    disk, answers = _Disk(host), []  # type: ignore[var-annotated] # pairs
    request = ScriptedRequest(Step(), answers)
    effect = AwaitOutcome(request.token, TXN) if awaits else Reply(request.token, "value")
    request.step = Step((("log", b"decision"),) * records, (effect, Outcome(TXN, TxnAction.COMMIT)), (("log", b"end"),))
    disk.room = records
    host.submit(request, reserve=True)
    await asyncio.sleep(0)
    assert host.failure is not None, "what is in memory is no state of the machine"
    assert answers == [(None, ServerError.ServiceNotReady)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(answers) == 1


async def test_what_nobody_waits_for_is_told_again_in_its_order_until_there_is_room(host: MachineHost[Any, bytes]) -> None:
    disk, answers = _Disk(host), []  # type: ignore[var-annotated] # pairs
    done = Step(effects=(Outcome(TXN, TxnAction.COMMIT),), trailing=(("log", b"1"),))
    host.carry_out(Step(effects=(AwaitOutcome(lambda *answer: answers.append(answer), TXN),)))
    disk.room = 0
    host.submit(ScriptedRequest(done), reserve=True)
    disk.room = 1
    host.submit(ScriptedRequest(Step((("log", b"2"),))), reserve=True)
    host.submit(ScriptedRequest(Step((("log", b"3"),))), reserve=True)
    assert host.machine.applied == [], "the later ones wait behind the first"  # type: ignore[attr-defined] # of ScriptedMachine
    await _until(host, [b"1"])
    assert answers == [(None, None, "")]
    disk.room = 2
    await _until(host, [b"1", b"2", b"3"])
    assert host.failure is None


async def test_what_is_due_waits_for_room_and_does_not_fail_the_host(host: MachineHost[Any, bytes]) -> None:
    disk = _Disk(host)
    disk.room = 0
    host.machine.due = [Step((("log", b"timeout"),))]  # type: ignore[attr-defined] # of ScriptedMachine
    host.submit(ScriptedRequest(Step()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert host.failure is None
    disk.room = 1
    await _until(host, [b"timeout"])


async def test_a_machine_that_cannot_apply_its_own_record_fails_its_host(host: MachineHost[Any, bytes]) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a mistake in a plug-in")

    answers: list[Any] = []
    host.machine.apply = broken  # type: ignore[method-assign] # a mistake
    request = ScriptedRequest(Step(), answers)
    request.step = Step((("log", b"1"),), (Reply(request.token),))
    host.submit(request)
    await asyncio.sleep(0)
    assert answers == [(None, ServerError.ServiceNotReady)]
    assert host.failure is not None


@pytest.mark.parametrize("error", [DiskFull("full"), EntryTooLarge("too large")])
async def test_a_snapshot_that_cannot_be_stored_fails_nobody_and_the_next_one_is_stored(
    host: MachineHost[Any, bytes], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    log = host.logs["log"]
    stored: list[str] = []

    class Refusing:
        def write(self, part: bytes) -> None:
            raise error

        def abandon(self) -> None:
            stored.append("abandoned")

    with monkeypatch.context() as patch:
        patch.setattr(log, "write_snapshot", lambda _: Refusing())
        host.take_snapshot("log", lambda *_: stored.append("first"))
    await asyncio.sleep(0)
    assert stored == ["abandoned"]
    assert host.failure is None
    host.take_snapshot("log", lambda *_: stored.append("second"))
    await asyncio.sleep(0)
    assert stored == ["abandoned", "second"]
