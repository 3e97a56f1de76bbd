"""Coordinators with more state than one stored piece had room for: they serve, snapshot, restart, and hold no turn for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loop_blocks import LONGEST_SECONDS, held_loop

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.coordinator_host import CoordinatorHost
from pulsar_txn.broker.txn.coordinators import Coordinators, PlainCoordinators
from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LogStore
from pulsar_txn.tc import FencingCoordinator
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

MIB = 1 << 20


class _Told:
    """Participants that hold every outcome as soon as they hear of it."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        self.count += 1
        told(effect.txn_id)


class _Clients:
    """Requests to one coordinator, some in each turn of the loop."""

    def __init__(self, store: LogStore, **options: Any) -> None:
        runtime = AsyncioRuntime()
        self.turn = Turn(runtime, Clock(runtime))
        self.told = _Told()
        factory = partial(FencingCoordinator, **options)
        kind = PlainCoordinators(factory, self.turn, self.told)
        self.coordinators = Coordinators(store, self.turn, kind, lambda *_: None)
        self._left = 0
        self._answered = asyncio.Event()
        self.errors: list[Any] = []

    @property
    def host(self) -> CoordinatorHost:
        host = self.coordinators.ready(0)
        assert host is not None, "it serves"
        return host

    async def open(self) -> None:
        self.coordinators.grow(1)
        await self.coordinators.wait_ready()

    async def ask(self, count: int, request: Callable[[int, Any], None], per_turn: int = 50) -> list[Any]:
        """`request(number, answer)` for every number below `count`; the values, once all are answered."""
        values: list[Any] = [None] * count
        self._left = count
        self._answered.clear()
        for number in range(count):
            request(number, partial(self._note, values, number))
            if number % per_turn == per_turn - 1:
                await asyncio.sleep(0)
        await self._answered.wait()
        assert self.errors == []
        return values

    async def begin(self, count: int, timeout_ms: int = 10**9, name: str | None = None) -> list[TxnId]:
        def request(number: int, answer: Any) -> None:
            identity = None if name is None else (f"{name}-{number}", 1)
            self.coordinators.new_txn(0, timeout_ms, None, identity, answer)

        return await self.ask(count, request)

    async def abort(self, ids: list[TxnId], name: str | None = None) -> None:
        def request(number: int, answer: Any) -> None:
            identity = None if name is None else (f"{name}-{number}", 1)
            self.coordinators.end(ids[number], TxnAction.ABORT, None, identity, answer)

        await self.ask(len(ids), request)

    async def add(self, ids: list[TxnId], participants: tuple[Participant, ...]) -> None:
        def request(number: int, answer: Any) -> None:
            self.coordinators.add(ids[number], participants, None, None, answer)

        await self.ask(len(ids), request, per_turn=1)

    def _note(self, values: list[Any], number: int, value: Any, error: Any, message: str) -> None:
        values[number] = value
        if error is not None:
            self.errors.append((error, message))
        self._left -= 1
        if not self._left:
            self._answered.set()


async def _quiet(clients: _Clients) -> None:
    """Return once no snapshot is under way."""
    async with asyncio.timeout(60):
        while clients.host.snapshots.is_under_way:
            await clients.host.logs["log"].flush()
    await clients.host.logs["log"].flush()


SIZES = [(24, 200, 2_000, MIB), pytest.param((320, 1_000, 110_000, 64 * MIB), marks=pytest.mark.soak)]


@pytest.mark.parametrize("size", SIZES)
async def test_open_transactions_with_many_participants_and_more_aborts_survive_snapshots_and_restarts(
    size: tuple[int, int, int, int], tmp_path: Path
) -> None:
    open_count, participants, aborts, segment_bytes = size
    named = tuple(Participant(f"persistent://public/default/{'a-long-name-' * 4}{n}") for n in range(participants))
    every = aborts * 3 // 4
    async with JournalStore(tmp_path, segment_bytes=segment_bytes) as store:
        clients = _Clients(store, snapshot_every=every)
        await clients.open()
        ids = await clients.begin(open_count)
        await clients.add(ids, named)
        await clients.abort(await clients.begin(aborts))
        await _quiet(clients)
        stored = await clients.host.logs["log"].latest_snapshot()
        assert stored is not None
        assert len(stored.data) > segment_bytes // 4, "more than a snapshot had room for"
        await clients.coordinators.close()
        for _ in range(2):  # what failed failed at every later start as well
            clients = _Clients(store, snapshot_every=every)
            await clients.open()
            machine: Any = clients.host.machine
            assert machine.active_count == open_count
            assert machine.transactions()[-1].participants == named
            machine.check_invariants()
            await clients.abort(await clients.begin(aborts // 10))
            await clients.coordinators.close()
        clients = _Clients(store, snapshot_every=every)
        await clients.open()
        await clients.abort(ids)
        assert clients.told.count == open_count * participants
        await clients.coordinators.close()


@pytest.mark.parametrize("count", [5_000, pytest.param(230_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_any_number_of_transactional_ids_survives_a_snapshot_and_a_restart(count: int, tmp_path: Path) -> None:
    async with JournalStore(tmp_path, segment_bytes=MIB if count < 100_000 else 64 * MIB) as store:
        clients = _Clients(store, snapshot_every=count)
        await clients.open()
        await clients.abort(
            await clients.begin(count, name="a-transactional-id-of-an-application"), "a-transactional-id-of-an-application"
        )
        await _quiet(clients)
        assert await clients.host.logs["log"].latest_snapshot() is not None
        await clients.coordinators.close()
        clients = _Clients(store, snapshot_every=count)
        await clients.open()
        assert len(clients.host.machine.fencing.epochs) == count  # type: ignore[attr-defined] # of FencingCoordinator
        await clients.coordinators.close()


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_no_turn_is_held_by_many_open_transactions_their_snapshot_recovery_and_timeouts(count: int) -> None:
    store = MemoryStore()
    clients = _Clients(store, snapshot_every=count)
    async with held_loop() as held:
        await clients.open()
        await clients.begin(count)
        await _quiet(clients)
    assert held.longest_seconds < LONGEST_SECONDS, f"begin and snapshot: {held}"
    async with held_loop() as held:
        await clients.coordinators.close()
        clients = _Clients(store, snapshot_every=count)
        await clients.open()
    assert clients.host.machine.active_count == count  # type: ignore[attr-defined] # of FencingCoordinator
    assert held.longest_seconds < LONGEST_SECONDS, f"recovery: {held}"
    await clients.coordinators.close()
    clients = _Clients(store, snapshot_every=10 * count)
    clients.turn.clock.observe(clients.turn.clock.now_ms() + 2 * 10**9)
    async with held_loop() as held:
        await clients.open()
        machine: Any = clients.host.machine
        async with asyncio.timeout(100):
            while machine.active_count:
                await asyncio.wait([asyncio.create_task(clients.turn.budget.pause())])
    assert held.longest_seconds < LONGEST_SECONDS, f"timeouts: {held}"
    await clients.coordinators.close()


async def test_many_participants_are_told_over_several_turns(tmp_path: Path) -> None:
    count = 3_000
    clients = _Clients(MemoryStore())
    await clients.open()
    told_at: dict[int, int] = {}
    turns = 0
    tell = clients.told.tell

    def counted(effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        told_at[turns] = told_at.get(turns, 0) + 1
        for _ in range(200):  # a participant takes some time
            hash(effect.participant)
        tell(effect, told)

    clients.told.tell = counted  # type: ignore[method-assign] # counts
    ids = await clients.begin(1)
    await clients.add(ids, tuple(Participant(f"t{number}") for number in range(count)))
    ended = asyncio.get_running_loop().create_task(clients.abort(ids))
    while not ended.done():
        turns += 1
        await asyncio.sleep(0)
    await ended
    assert sum(told_at.values()) == count
    assert len(told_at) > 2
    await clients.coordinators.close()
