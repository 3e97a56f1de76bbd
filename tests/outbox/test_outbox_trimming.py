"""Rows go when, and only when, the coordinator has ended their transactions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from outbox_fakes import FakeAsyncClient, FakeClient, FakeCoordinator

from pulsar_txn.client import ConnectionLost, InvalidConfiguration
from pulsar_txn.client.outbox import AsyncOutbox, Outbox, TrimResult, identity_sql, table_sql
from pulsar_txn.client.outbox.database import at_once
from pulsar_txn.client.outbox.engine import Key
from pulsar_txn.wire.ids import TxnId

HOUR_MS = 3_600_000


class World:
    def __init__(self, path: Path) -> None:
        self.coordinator = FakeCoordinator()
        self.now_ms = HOUR_MS
        self.connect = lambda: sqlite3.connect(path, timeout=0.2)
        with sqlite3.connect(path) as connection:
            connection.execute(table_sql(dialect="sqlite"))
            connection.execute(identity_sql(dialect="sqlite"))

    def outbox(self, *, trim_every: int | None = None, connect: Any = None, group: str = "orders") -> Outbox:
        client = FakeClient(self.coordinator, lambda: self.now_ms)
        return Outbox(client, group, connect or self.connect, trim_every=trim_every)

    def run(self, outbox: Outbox, times: int = 1) -> None:
        connection = self.connect()
        for _ in range(times):
            with outbox.transaction(connection):
                pass
        connection.close()

    def outcomes(self) -> list[str]:
        connection = self.connect()
        found = [row[0] for row in connection.execute("SELECT outcome FROM pulsar_txn_outbox")]
        connection.close()
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "orders.db")


def _lost() -> None:
    raise ConnectionLost("cut")


def test_rows_of_ended_transactions_go_in_batches_and_when_the_outbox_is_closed(world: World) -> None:
    with world.outbox(trim_every=3) as outbox:
        world.run(outbox, 2)
        assert len(world.outcomes()) == 2
        world.run(outbox)
        assert world.outcomes() == []
        world.run(outbox)
    assert world.outcomes() == []


def test_a_row_whose_transaction_has_not_ended_stays_with_the_outbox(world: World) -> None:
    world.coordinator.faults["commit"] = _lost
    with world.outbox(trim_every=1) as outbox:
        world.run(outbox)
    assert world.outcomes() == ["commit"]
    assert world.coordinator.states() == ["PREPARED"]


def test_rows_that_cannot_be_removed_now_are_removed_another_time(world: World) -> None:
    down = [False]

    def connect() -> Any:
        if down[0]:
            raise sqlite3.OperationalError("down")
        return world.connect()

    with world.outbox(trim_every=1, connect=connect) as outbox:
        down[0] = True
        world.run(outbox)
        assert world.outcomes() == ["commit"]
        down[0] = False
        world.run(outbox)
        assert world.outcomes() == []


def test_a_trim_keeps_young_rows_and_those_of_other_groups(world: World) -> None:
    outbox, other = world.outbox(), world.outbox(group="payments")
    world.run(outbox)
    world.run(other)
    world.now_ms += HOUR_MS
    world.run(outbox)
    assert outbox.trim(older_than=1800) == TrimResult(removed=1, kept=0)
    assert world.outcomes() == ["commit", "commit"]


def test_a_trim_ends_what_a_crash_has_left_by_its_row(world: World) -> None:
    world.coordinator.faults["commit"] = _lost
    outbox = world.outbox()
    world.run(outbox)
    world.coordinator.faults.clear()
    world.now_ms += 2 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=1, kept=0)
    assert world.coordinator.states() == ["COMMITTED"]


def test_a_row_stays_while_its_coordinator_does_not_answer_however_old_it_is(world: World) -> None:
    outbox = world.outbox()
    world.coordinator.faults["commit"] = _lost
    world.run(outbox)
    world.now_ms += 10_000 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=0, kept=1)
    with world.outbox():
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["COMMITTED"]
    world.coordinator.faults.clear()
    assert outbox.trim() == TrimResult(removed=1, kept=0)


def test_a_trim_never_ends_a_transaction_that_has_another_secret(world: World) -> None:
    """A coordinator that was set up anew has another transaction with this id."""
    outbox = world.outbox()
    world.run(outbox)
    held = next(iter(world.coordinator.held.values()))
    held.state, held.secret = "OPEN", b""
    world.now_ms += 2 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=1, kept=0)
    assert world.coordinator.states() == ["OPEN"]


def test_a_row_that_pulsar_contradicts_is_kept_and_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    outbox = world.outbox()
    world.run(outbox)
    next(iter(world.coordinator.held.values())).state = "ABORTED"
    world.now_ms += 2 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=0, kept=1)
    assert "the database has committed (0,1), and Pulsar has not" in caplog.text


def test_a_tombstone_of_a_check_that_came_too_late_goes(world: World) -> None:
    outbox = world.outbox(trim_every=1)
    with outbox:
        world.run(outbox)
    (held,) = world.coordinator.held.values()
    assert at_once(outbox._engine.decide(Key(held.secret), TxnId(0, 1))).value == "abort"
    world.now_ms += 2 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=1, kept=0)
    assert world.coordinator.states() == ["COMMITTED"]


def test_more_rows_than_a_page_are_trimmed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_txn.client.outbox.rows.PAGE_ROWS", 2)
    outbox = world.outbox()
    world.run(outbox, 5)
    world.now_ms += 2 * HOUR_MS
    assert outbox.trim() == TrimResult(removed=5, kept=0)
    assert outbox.trim() == TrimResult(removed=0, kept=0)


async def test_the_outbox_of_asyncio_trims_with_a_blocking_driver_in_a_thread(world: World) -> None:
    outbox = AsyncOutbox(FakeAsyncClient(world.coordinator, lambda: world.now_ms), "orders", world.connect, trim_every=2)
    async with outbox:
        connection = world.connect()
        for _ in range(3):
            async with outbox.transaction(connection):
                pass
        connection.close()
        assert len(world.outcomes()) == 1
        world.now_ms += 2 * HOUR_MS
        assert await outbox.trim() == TrimResult(removed=1, kept=0)


@pytest.mark.parametrize("trim_every", [0, -1, "1"])
def test_a_batch_of_no_rows_is_refused(world: World, trim_every: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="trim_every"):
        world.outbox(trim_every=trim_every)
