"""The process of an instance: it ends with its worker, whatever its function does."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest

from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient

PROGRAM = """
import sys
from pulsar_txn.pipeline.functions.worker import instance
from pulsar_txn.pipeline.functions.__main__ import instance as run
instance.LONGEST_END_SECONDS = 1
instance.REPORT_SECONDS = 0.05
sys.exit(run())
"""
PATIENT = PROGRAM.replace("LONGEST_END_SECONDS = 1", "LONGEST_END_SECONDS = 60")
STUCK = "import time\ndef process(input):\n    print('printed')\n    time.sleep(600)\n"
QUICK = "def process(input):\n    print('printed')\n    return f'{input}!'\n"


@pytest.mark.parametrize(("source", "code", "received"), [(STUCK, -signal.SIGALRM, 1), (QUICK, 0, 1)], ids=["stuck", "quick"])
async def test_an_instance_ends_when_its_input_ends(tmp_path, source, code, received):
    (tmp_path / "f.py").write_text(source, encoding="utf-8")
    config = {"className": "f", "py": str(tmp_path / "f.py"), "inputs": ["in"], "subscriptionPosition": "EARLIEST"}
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        await (await client.create_producer("in")).send(b"x")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdin=pipe, stdout=pipe)
        told = {"serviceUrl": broker.service_url, "config": config, "instance": 0}
        process.stdin.write(json.dumps(told).encode() + b"\n")
        async with asyncio.timeout(60):
            while json.loads(await process.stdout.readline())["stats"]["received"] < received:
                pass  # each line is a report, and nothing that the function printed
            process.stdin.close()
            while line := await process.stdout.readline():
                assert json.loads(line)["stats"]["received"] == received
            assert await process.wait() == code


METRICS = """
from pulsar import Function

class Many(Function):
    def process(self, input, context):
        for number in range(20_000):
            context.record_metric(f"metric-{number}", number)
"""


async def test_a_function_with_too_many_metrics_still_reports_in_lines_that_its_worker_takes(tmp_path):
    (tmp_path / "many.py").write_text(METRICS, encoding="utf-8")
    config = {"className": "many.Many", "py": str(tmp_path / "many.py"), "inputs": ["in"], "subscriptionPosition": "EARLIEST"}
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        await (await client.create_producer("in")).send(b"x")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PATIENT, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 16
        )
        told = {"serviceUrl": broker.service_url, "config": config, "instance": 0}
        process.stdin.write(json.dumps(told).encode() + b"\n")
        async with asyncio.timeout(60):
            while not (stats := json.loads(await process.stdout.readline())["stats"])["processed_successfully"]:
                pass  # a longer line than the limit raises
            kept = stats["user_metrics"]
            assert list(kept) == [f"metric-{number}" for number in range(len(kept))]
            assert 0 < len(kept) < 20_000
            process.stdin.close()
            _, said = await process.communicate()
        assert said.count(b"too many metrics") == 1
        assert process.returncode == 0
