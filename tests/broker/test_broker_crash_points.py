"""The crash point of the demo's broker: it ends it with a commit half told, once, and installs nothing when it is off."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_client import FULL, RawClient

from pulsar_txn.broker import broker
from pulsar_txn.broker.txn.participants import InProcessParticipants
from pulsar_txn.wire.ids import TxnId

FLIGHTS = str(Path(__file__).resolve().parents[2] / "examples" / "flights")
sys.path.insert(0, FLIGHTS)

import broker_crash  # noqa: E402 - a program of the demo
from crash import BROKER_POINT, note_kill  # noqa: E402 - likewise


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The point is armed, and notes what is in flight instead of killing this process."""
    log = tmp_path / "crashes.jsonl"
    monkeypatch.setenv("PULSAR_TXN_CRASH_POINT", BROKER_POINT)
    monkeypatch.setenv("PULSAR_TXN_CRASH_LOG", str(log))

    def note(path: Path, in_flight: Any) -> None:
        note_kill(path, BROKER_POINT, "broker", 0, **in_flight)

    monkeypatch.setattr(broker_crash, "end_process", note)
    monkeypatch.setattr(broker, "InProcessParticipants", broker_crash.armed_participants)
    return log


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


async def until_written(log: Path) -> dict[str, Any]:
    for _ in range(1000):
        if found := lines(log):
            return found[0]
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was killed")


@pytest.mark.seed_rows("D35")
async def test_all_but_one_participant_hold_their_markers_when_it_fires_and_recovery_tells_the_last_one(
    benches: Callable[..., Any], log: Path
) -> None:
    bench = await benches().start()
    client: RawClient = bench.client()
    txn = await client.txn_with(a=b"one", b=b"two")
    ending = asyncio.ensure_future(client.end(txn))
    in_flight = await until_written(log)
    ending.cancel()
    assert in_flight["point"] == BROKER_POINT
    assert in_flight["txn_id"] == str(txn)
    assert sorted([*in_flight["told"], *in_flight["not_told"]]) == [FULL + "a", FULL + "b"]
    assert len(in_flight["not_told"]) == 1

    await bench.crash()  # the log has its line: the same environment arms nothing now
    assert isinstance(bench.broker.participants, InProcessParticipants)
    again = bench.client()
    for number, topic in enumerate("ab"):
        await again.subscribe(topic, "s", number, earliest=True)
    assert await again.payloads(1, 0) == [b"one"]
    assert await again.payloads(1, 1) == [b"two"]


async def test_it_fires_at_the_nth_commit_behind_the_moment_that_a_file_tells(
    benches: Callable[..., Any], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_TXN_CRASH_NTH", "2")
    monkeypatch.setenv("PULSAR_TXN_CRASH_AFTER", str(tmp_path / "now"))
    bench = await benches().start()
    client: RawClient = bench.client()

    async def begin() -> TxnId:
        txn = await client.new_txn(0)
        await client.add_topics(txn, FULL + "a", FULL + "b")
        return txn

    for _ in range(3):
        await client.end(await begin())
    (tmp_path / "now").touch()
    await client.end(await begin())
    await client.abort(await begin())  # aborts are not counted
    assert lines(log) == []
    fatal = await begin()
    ending = asyncio.ensure_future(client.end(fatal))
    assert (await until_written(log))["txn_id"] == str(fatal)
    ending.cancel()


async def test_a_commit_with_one_participant_is_let_through(benches: Callable[..., Any], log: Path) -> None:
    bench = await benches().start()
    client: RawClient = bench.client()
    txn = await client.new_txn(0)
    await client.add_topics(txn, FULL + "a")
    await client.end(txn)
    assert lines(log) == []


def test_without_the_name_of_the_point_nothing_is_installed(tmp_path: Path) -> None:
    plain: Any = object()
    log = {"PULSAR_TXN_CRASH_LOG": str(tmp_path / "crashes.jsonl")}
    named = {"PULSAR_TXN_CRASH_POINT": BROKER_POINT, **log}
    assert broker_crash.armed(plain, plain, {}) is plain
    assert broker_crash.armed(plain, plain, {"PULSAR_TXN_CRASH_POINT": "sink.commit.end", **log}) is plain
    assert isinstance(broker_crash.armed(plain, plain, named), broker_crash.HoldsOneBack)
    assert broker_crash.plan_of(named) == broker_crash.Plan(log=tmp_path / "crashes.jsonl")


def test_the_line_is_in_the_file_when_the_process_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "crashes.jsonl"
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[2]); from broker_crash import end_process; "
        "end_process(pathlib.Path(sys.argv[1]), {'txn_id': 'x'})"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(log), FLIGHTS], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (line,) = lines(log)
    assert line["txn_id"] == "x"
    assert line["pid"] > 0
