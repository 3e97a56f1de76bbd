"""The host takes snapshots slice by slice: of one moment, one at a time, and requests go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.hosts import MachineHost
from pulsar_txn.ledger import snapshots as module
from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.machine import NOTHING, Reply, Step
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.ledger.protocols import LogStore
from pulsar_txn.wire.ids import Position

SLICE = 16


class _Numbers:
    """Remembers every number it was given, in order; a slice has a few of them."""

    logs = ("log",)

    def __init__(self) -> None:
        self.numbers: OrderedMap[int, int] = OrderedMap(group=SLICE)
        self.last: Position = (-1, -1)
        self.slices = 0

    def decide(self, request: Any, now_ms: int) -> Step[int]:
        return Step((("log", request.number),), (Reply(request.token, request.number),))

    def apply(self, log: str, position: Position, record: int) -> None:
        self.numbers[record] = record
        self.last = position

    def encode(self, log: str, record: int) -> bytes:
        return b"%d" % record

    def decode(self, log: str, data: bytes) -> int:
        return int(data)

    def recovered(self, now_ms: int) -> Step[int]:
        return NOTHING

    def deadline(self) -> int | None:
        return None

    def expire(self, now_ms: int) -> Step[int]:
        return NOTHING

    def snapshot(self) -> Iterator[bytes]:
        return self._slices(self.numbers.moment().groups())

    def _slices(self, groups: Iterator[list[tuple[int, int]]]) -> Iterator[bytes]:
        for group in groups:
            self.slices += 1
            yield b" ".join(b"%d" % number for number, _ in group)

    def restore(self, part: bytes) -> None:
        for number in part.split():
            self.numbers[int(number)] = int(number)

    def trim_before(self, log: str) -> Position | None:
        return (self.last[0], self.last[1] + 1)

    def check_invariants(self) -> None:
        """Nothing."""


class _Ask:
    def __init__(self, number: int, answers: list[int]) -> None:
        self.number = number
        self.token = lambda value, error, _message: answers.append(value)


async def _recovered(store: LogStore) -> MachineHost[Any, int]:
    runtime = AsyncioRuntime()
    host: MachineHost[Any, int] = MachineHost(
        _Numbers(), {"log": await store.open("log")}, Turn(runtime, Clock(runtime)), lambda *_: None
    )
    await host.recover()
    return host


def _stores(kind: str, folder: Path) -> LogStore:
    return MemoryStore() if kind == "memory" else JournalStore(folder)


async def _ended(host: MachineHost[Any, Any]) -> None:
    async with asyncio.timeout(20):
        while host.snapshots.is_under_way:
            await asyncio.wait([asyncio.create_task(asyncio.sleep(0.001))])


@pytest.mark.parametrize("kind", ["memory", "journal"])
async def test_a_snapshot_of_many_slices_is_stored_over_many_turns_while_requests_are_answered(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 1)
    async with _stores(kind, tmp_path) as store:
        host, answers, events = await _recovered(store), [], []  # type: ignore[var-annotated] # numbers, what happened
        machine: Any = host.machine
        for number in range(20 * SLICE):
            host.submit(_Ask(number, answers))
        host.take_snapshot("log", lambda *_: events.append(machine.slices))
        for number in range(20 * SLICE, 30 * SLICE):
            host.submit(_Ask(number, answers))
        await host.logs["log"].flush()
        assert len(answers) == 30 * SLICE, "answered while the snapshot is under way"
        assert machine.slices < 20
        await _ended(host)
        assert events == [20]
        await host.logs["log"].flush()
        stored = await host.logs["log"].latest_snapshot()
        assert stored is not None
        assert b"".join(stored.parts).endswith(b"%d" % (20 * SLICE - 1)), "nothing of what came after the moment"
        first = host.logs["log"].first
        assert first is not None
        assert first[1] == 20 * SLICE, "trimmed to what the snapshot covers, no further"
        await host.close()
        again = await _recovered(store)
        assert list(again.machine.numbers) == list(range(30 * SLICE))  # type: ignore[attr-defined] # of _Numbers
        await again.close()


async def test_snapshots_that_are_asked_for_while_one_is_under_way_become_one_of_a_later_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 1)
    async with MemoryStore() as store:
        host, events = await _recovered(store), []  # type: ignore[var-annotated] # what happened
        for number in range(4 * SLICE):
            host.submit(_Ask(number, []))
        host.take_snapshot("log", lambda *_: events.append("first"))
        for name in ("second", "third"):
            host.submit(_Ask(len(events) + 10**6, []))
            host.take_snapshot("log", lambda *_, name=name: events.append(name))
        await _ended(host)
        assert events == ["first", "second", "third"]
        await host.logs["log"].flush()
        stored = await host.logs["log"].latest_snapshot()
        assert stored is not None
        assert b"%d" % 10**6 in b"".join(stored.parts)
        assert host.machine.slices == 4 + 5  # type: ignore[attr-defined] # of _Numbers
        await host.close()


async def test_a_host_that_is_closed_stores_the_snapshot_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 1)
    async with MemoryStore() as store:
        host, events = await _recovered(store), []  # type: ignore[var-annotated] # what happened
        for number in range(9 * SLICE):
            host.submit(_Ask(number, []))
        host.take_snapshot("log", lambda *_: events.append("stored"))
        await host.close()
        assert events == ["stored"]
        again = await _recovered(store)
        assert len(again.machine.numbers) == 9 * SLICE  # type: ignore[attr-defined] # of _Numbers
        assert again.logs["log"].first is None


async def test_a_crash_in_the_middle_of_a_snapshot_keeps_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 1)
    store = MemoryStore(auto_confirm=False)
    runtime = AsyncioRuntime()
    log = await store.open("log")
    host: MachineHost[Any, int] = MachineHost(_Numbers(), {"log": log}, Turn(runtime, Clock(runtime)), lambda *_: None)
    await host.recover()
    for number in range(8 * SLICE):
        host.submit(_Ask(number, []))
    for snapshot in range(2):
        host.take_snapshot("log")
        for _ in range(5 if snapshot else 20):
            store.confirm()
        host.submit(_Ask(10**6 + snapshot, []))
    store.confirm()
    assert host.snapshots.is_under_way
    again = await _recovered(store.crash())
    expected = [*range(8 * SLICE), 10**6, 10**6 + 1]
    assert list(again.machine.numbers) == expected  # type: ignore[attr-defined] # of _Numbers


async def test_nothing_of_a_snapshot_is_stored_before_everything_that_it_covers_is_durable() -> None:
    store, runtime, events = MemoryStore(auto_confirm=False), AsyncioRuntime(), []  # type: ignore[var-annotated] # what happened
    log = await store.open("log")
    host: MachineHost[Any, int] = MachineHost(_Numbers(), {"log": log}, Turn(runtime, Clock(runtime)), lambda *_: None)
    await host.recover()
    host.submit(_Ask(1, []))
    host.take_snapshot("log", lambda *_: events.append("stored"))
    assert host.failure is None
    assert events == []
    assert host.machine.slices == 0  # type: ignore[attr-defined] # of _Numbers
    store.confirm()
    await asyncio.sleep(0)
    assert events == ["stored"]
    store.confirm()
    again = await _recovered(store.crash())
    assert list(again.machine.numbers) == [1]  # type: ignore[attr-defined] # of _Numbers
