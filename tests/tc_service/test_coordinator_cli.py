"""`pulsar-txn coordinator` as a process: its ready file, its exit codes, and one sentence for each."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

from command_line import pulsar_txn
from our_coordinator import OurCoordinator

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient

NOWHERE = {"east": "pulsar://127.0.0.1:1"}


def coordinator(*arguments: object) -> subprocess.CompletedProcess[str]:
    return pulsar_txn("coordinator", *arguments, timeout=30)


def keys(**more: str) -> list[str]:
    chosen = {"clusters": "east", "cluster.east.serviceUrl": NOWHERE["east"], **more}
    return [each for key, value in chosen.items() for each in ("--set", f"{key}={value}")]


async def test_it_says_where_it_is_serves_while_a_cluster_is_away_keeps_what_it_decided_and_drains() -> None:
    beside = OurCoordinator(NOWHERE)
    with beside:
        facts = beside.facts()
        assert (facts["serviceUrl"], facts["clusters"], facts["coordinators"]) == (beside.service_url, ["east"], 4)
        async with AsyncClient(NOWHERE["east"], coordinator=beside.service_url) as client:
            txn = await client.begin_transaction(timeout=600)
            await asyncio.to_thread(beside.restart, hard=True)
            await txn.commit()
            assert txn.id is not None
            again = await client.begin_transaction()
            assert again.id is not None
            assert again.id.least > 1 or again.id.most != txn.id.most
        busy = await asyncio.to_thread(coordinator, "--data", beside.data_dir, "--port", 0, *keys())
        assert (busy.returncode, "in use" in busy.stderr) == (73, True)
        assert await asyncio.to_thread(beside.stop) == 0
        assert not beside.ready_file.exists()


def test_what_is_wrong_is_one_sentence_and_a_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = coordinator("--data", tmp_path / "data", "--port", taken.getsockname()[1], *keys())
    nowhere = coordinator("--port", 0, *keys())
    assert (nowhere.returncode, "or ledgerProvider=topic" in nowhere.stderr) == (2, True)
    cases = {
        2: coordinator("--data", tmp_path / "data", "--set", "clusters=east"),
        69: port,
    }
    for code, ended in cases.items():
        assert ended.returncode == code
        assert ended.stderr.splitlines()[-1].startswith("pulsar-txn: ")
        assert "Traceback" not in ended.stderr
    assert "say where its brokers are, with cluster.east.serviceUrl=" in cases[2].stderr
    assert "is in use; stop what listens there" in cases[69].stderr


async def test_the_folder_of_a_broker_is_refused(tmp_path: Path) -> None:
    async with Standalone(tmp_path / "data", port=0):
        """Its coordinators have logs there."""
    ended = await asyncio.to_thread(coordinator, "--data", tmp_path / "data", "--port", 0, *keys())
    assert ended.returncode == 73
    assert "this folder belongs to a broker; give the coordinator a folder of its own" in ended.stderr
