"""The host of machines: what it owes them, where the broker's own tests do not reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.hosts import MachineHost
from pulsar_txn.ledger.machine import SLICE_BYTES, Reply, Step, WriteSnapshot
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import DiskFull, LedgerError
from pulsar_txn.ledger.snapshots import Envelope
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Position


class _Count:
    """Counts its records; requests are (token, what)."""

    logs = ("log", "other")

    def __init__(self) -> None:
        self.count = 0
        self.deadline_ms: int | None = None

    def decide(self, request: Any, now_ms: int) -> Step[bytes]:
        if request.what == "no":
            raise Refusal(ServerError.NotAllowedError, "no")
        records = {"one": (("log", b"1"),), "two": (("log", b"1"), ("other", b"2")), "none": ()}[request.what]
        return Step(records, (Reply(request.token, self.count),))

    def apply(self, log: str, position: Position, record: bytes) -> None:
        self.count += 1

    def encode(self, log: str, record: bytes) -> bytes:
        return record

    def decode(self, log: str, data: bytes) -> bytes:
        return data

    def recovered(self, now_ms: int) -> Step[bytes]:
        return Step()

    def deadline(self) -> int | None:
        return self.deadline_ms

    def expire(self, now_ms: int) -> Step[bytes]:
        self.deadline_ms = None
        return Step((("log", b"timed"),))

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % self.count

    def restore(self, part: bytes) -> None:
        self.count = int(part)

    def trim_before(self, log: str) -> Position | None:
        return None

    def check_invariants(self) -> None:
        assert self.count >= 0


class _Ask:
    def __init__(self, answers: list[Any], what: str) -> None:
        self.what = what
        self.token = lambda value, error, _message: answers.append((what, value, error))


@pytest.fixture
def turn() -> Turn:
    runtime = AsyncioRuntime()
    return Turn(runtime, Clock(runtime))


async def _host(turn: Turn, store: MemoryStore) -> tuple[MachineHost[Any, bytes], list[Exception]]:
    failures: list[Exception] = []
    logs = {name: await store.open(name) for name in _Count.logs}
    host: MachineHost[Any, bytes] = MachineHost(_Count(), logs, turn, lambda host, *_: failures.append(host.failure))
    await host.recover()
    return host, failures


async def turn_ends() -> None:
    """Let the turn of the loop end: answers leave."""
    await asyncio.sleep(0)


@pytest.mark.seed_rows("D67")
async def test_answers_wait_for_all_records_and_those_without_records_for_the_tail_of_all_logs(turn: Turn) -> None:
    store = MemoryStore(auto_confirm=False)
    host, _ = await _host(turn, store)
    answers: list[Any] = []
    for what in ("none", "two", "no", "none", "one"):
        host.submit(_Ask(answers, what))
    await turn_ends()
    assert answers == [("none", 0, None)]
    store.confirm()
    await turn_ends()
    assert answers[1:] == [("two", 0, None), ("no", None, ServerError.NotAllowedError), ("none", 2, None), ("one", 2, None)]


async def test_a_failed_log_refuses_what_waits_and_what_comes_and_is_told_once(turn: Turn) -> None:
    store = MemoryStore(auto_confirm=False)
    host, failures = await _host(turn, store)
    answers: list[Any] = []
    host.submit(_Ask(answers, "two"))
    store.fail()
    host.submit(_Ask(answers, "one"))
    await turn_ends()
    assert [error for _, _, error in answers] == [ServerError.ServiceNotReady] * 2
    assert len(failures) == 1


async def test_a_full_disk_refuses_the_request_and_a_step_appended_in_part_fails_the_host(turn: Turn) -> None:
    store = MemoryStore(auto_confirm=False)
    host, failures = await _host(turn, store)
    answers: list[Any] = []
    store.disk_full = True
    host.submit(_Ask(answers, "one"))
    await turn_ends()
    assert answers == [("one", None, ServerError.PersistenceError)]
    assert host.machine.count == 0
    store.disk_full = False

    def full(*_: Any, **__: Any) -> Position:
        raise DiskFull("full")

    host.logs["other"].append = full  # type: ignore[method-assign] # the second log of the Step
    host.submit(_Ask(answers, "two"))
    await turn_ends()
    assert answers[-1] == ("two", None, ServerError.ServiceNotReady)
    assert isinstance(failures[0], LedgerError)


@pytest.mark.seed_rows("D42")
async def test_deadlines_are_carried_out_when_they_are_due(turn: Turn) -> None:
    store = MemoryStore()
    host, _ = await _host(turn, store)
    host.machine.deadline_ms = turn.clock.now_ms() + 20  # type: ignore[attr-defined] # of _Count
    host.submit(_Ask([], "none"))
    await asyncio.sleep(0.005)
    assert host.machine.count == 0
    await asyncio.sleep(0.05)
    assert host.machine.count == 1


@pytest.mark.seed_rows("D60")
async def test_a_snapshot_names_what_it_covers_of_every_log_and_is_stored_when_all_of_it_is_durable(turn: Turn) -> None:
    store = MemoryStore(auto_confirm=False)
    host, _ = await _host(turn, store)
    answers: list[Any] = []
    host.submit(_Ask(answers, "two"))
    host.carry_out(Step((), (WriteSnapshot("log"),)))
    host.submit(_Ask(answers, "one"))
    assert await host.logs["log"].latest_snapshot() is None
    store.confirm()
    store.confirm()
    stored = await host.logs["log"].latest_snapshot()
    assert stored is not None
    host.submit(_Ask(answers, "two"))
    store.confirm()
    recovered, _ = await _host(turn, store.crash())
    assert recovered.machine.count == 5


def test_the_clock_never_goes_below_the_newest_time_of_a_log() -> None:
    clock = Clock(AsyncioRuntime())
    now = clock.now_ms()
    clock.observe(now - 1000)
    assert now <= clock.now_ms() < now + 1000
    clock.observe(now + 5000)
    assert clock.now_ms() >= now + 5000


@given(
    st.dictionaries(st.text(max_size=9), st.tuples(st.integers(0, 2**62), st.integers(-1, 2**62)), max_size=4),
    st.binary(max_size=30) | st.just(bytes(3 * SLICE_BYTES)),
    st.lists(st.binary(max_size=30), max_size=3),
)
def test_an_envelope_is_read_as_it_was_written_and_not_when_it_was_cut(covers: Any, extra: bytes, slices: list[bytes]) -> None:
    parts = list(Envelope(covers, extra).parts())
    assert all(len(part) <= SLICE_BYTES for part in parts)
    assert Envelope.read([*parts, *slices]) == (Envelope(covers, extra), tuple(slices))
    for size in {0, 1, len(parts[-1]) - 1, len(parts[-1]) // 2}:
        with pytest.raises(WireError):
            Envelope.read([*parts[:-1], parts[-1][:size]])


def test_a_snapshot_of_version_1_is_one_part_with_the_machine_in_one_piece() -> None:
    (part,) = Envelope({"log": (3, 4)}, b"extra").parts()
    old = part[:4] + b"\x01" + part[5:] + b"machine"
    assert Envelope.read([old]) == (Envelope({"log": (3, 4)}, b"extra"), (b"machine",))
    with pytest.raises(WireError, match="version 1 to 2"):
        Envelope.read([part[:4] + b"\x03" + part[5:]])
