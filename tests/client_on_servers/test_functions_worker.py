"""Functions that a broker keeps and its worker runs: instances and the broker are killed, and the work goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import admin
import pytest
import stock_install
from click.testing import CliRunner
from command_line import pulsar_txn
from other_languages import java_program
from our_broker import OurBroker
from targets import lacking

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.pipeline.functions.commands import functions

PROBE = Path(__file__).parents[1] / "support" / "FunctionsProbe.java"
EXCLAIM = """
import os
from pulsar import Function

class Exclaim(Function):
    def process(self, input, context):
        print("what a function prints is no report")
        context.incr_counter("calls", 1)
        return f"{input}! {context.get_counter('calls')} {os.getpid()}"
"""
CONFIG = """
className: exclaim.Exclaim
py: exclaim.py
name: exclaim
inputs: [words]
output: exclamations
retainOrdering: true
subscriptionPosition: EARLIEST
transaction: {transactionMode: MANAGED, transactionTimeoutMs: 600000}
"""


@pytest.fixture
def broker():
    with OurBroker(conf={"functionsWorkerEnabled": "true"}) as started:
        yield started


@pytest.fixture
def command(broker):
    def run(*arguments):
        return CliRunner(env={"PULSAR_ADMIN_URL": broker.admin_url}).invoke(functions, [*map(str, arguments)])

    return run


def written(folder, config=CONFIG, source=EXCLAIM):
    (folder / "exclaim.py").write_text(source, encoding="utf-8")
    (folder / "exclaim.yml").write_text(config, encoding="utf-8")
    return folder / "exclaim.yml"


async def status_when(broker, wanted):
    return await admin.eventually(lambda: admin.get_json(broker, "/admin/v3/functions/public/default/exclaim/status"), wanted)


@pytest.mark.timeout(120)
async def test_a_function_goes_on_after_its_instance_and_after_the_broker_are_killed(broker, command, tmp_path):
    done = await asyncio.to_thread(command, "create", "--function-config-file", written(tmp_path))
    assert (done.exit_code, done.stdout) == (0, "public/default/exclaim is created\n"), done.stderr

    async def outputs(*payloads):
        async with AsyncClient(broker.service_url) as client:
            source = await client.create_producer("words")
            out = await client.subscribe("exclamations", "s", initial_position=InitialPosition.EARLIEST)
            found = []
            for payload in payloads:
                await source.send(payload)
                message = await out.receive(40)
                found.append(message.data.decode().split())
                await out.acknowledge(message, receipt=True)
            return found

    (first,) = await outputs(b"a")
    os.kill(int(first[2]), signal.SIGKILL)
    (second,) = await outputs(b"b")
    assert (first[:2], second[:2]) == (["a!", "1"], ["b!", "2"])
    assert first[2] != second[2]
    status = await status_when(
        broker, lambda found: found["numRunning"] == 1 and found["instances"][0]["status"]["numRestarts"]
    )
    assert status["instances"][0]["status"]["numRestarts"] == 1
    await asyncio.to_thread(broker.restart, hard=True)
    (third,) = await outputs(b"c")
    assert third[:2] == ["c!", "3"]
    assert (await asyncio.to_thread(command, "list")).stdout == "exclaim\n"


@pytest.mark.timeout(120)
async def test_the_commands_say_what_runs_and_stop_start_and_delete_it(broker, command, tmp_path):
    def run(*arguments):
        return asyncio.to_thread(command, *arguments)

    bad = written(tmp_path, CONFIG.replace("exclaim.Exclaim", "exclaim.Nobody"))
    refused = await run("create", "--function-config-file", bad)
    assert (refused.exit_code, "exclaim.py has no Nobody" in refused.stderr) == (2, True)
    elsewhere = written(tmp_path, CONFIG.replace("exclaim.Exclaim", "elsewhere.Nobody"))  # it might be installed there
    assert (await run("create", "--function-config-file", elsewhere)).exit_code == 0
    status = await status_when(broker, lambda found: "elsewhere" in found["instances"][0]["status"]["error"])
    assert status["numRunning"] == 0
    done = await run("update", "--name", "exclaim", "--classname", "exclaim.Exclaim")
    assert done.exit_code == 0, done.stderr
    await status_when(broker, lambda found: found["numRunning"] == 1)
    shown = json.loads((await run("get", "--fqfn", "public/default/exclaim")).stdout)
    assert (shown["className"], shown["retainOrdering"]) == ("exclaim.Exclaim", True)
    assert (await run("stop", "--name", "exclaim", "--instance-id", "0")).exit_code == 0
    assert json.loads((await run("status", "--name", "exclaim")).stdout)["numRunning"] == 0
    assert (await run("start", "--name", "exclaim")).exit_code == 0
    await status_when(broker, lambda found: found["numRunning"] == 1)
    assert "receivedTotal" in json.loads((await run("stats", "--name", "exclaim")).stdout)
    assert (await run("delete", "--name", "exclaim")).exit_code == 0
    assert (await run("list")).stdout == ""
    gone = await run("get", "--name", "exclaim")
    assert (gone.exit_code, gone.stderr) == (1, "pulsar-txn: Function public/default/exclaim doesn't exist\n")
    wrong = await run("create", "--function-config-file", written(tmp_path, CONFIG + "parallelism: none\n"))
    assert (wrong.exit_code, "parallelism" in wrong.stderr) == (2, True)
    shared = await run("create", "--function-config-file", written(tmp_path, CONFIG + "parallelism: 2\nstate: {}\n"))
    assert (shared.exit_code, "stateScope: PARTITION" in shared.stderr) == (2, True)


def test_where_no_broker_answers_a_command_ends_with_code_69():
    done = pulsar_txn("functions", "list", env={"PULSAR_ADMIN_URL": "http://127.0.0.1:1"})
    assert done.returncode == 69
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(180)
async def test_pulsar_admins_own_library_manages_a_python_function(broker, tmp_path):
    written(tmp_path)
    async with AsyncClient(broker.service_url) as client:
        await (await client.create_producer("words")).send(b"a")
    command = [*java_program(PROBE, stock_install.VERSIONS[-1]), broker.admin_url]
    run = [*command, str(tmp_path / "exclaim.py"), "words", "exclamations"]
    said = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in said.stdout.splitlines() if "=" in line and " " not in line.partition("=")[0]]
    assert lines == [
        "list=[probe]",
        "class=exclaim.Exclaim",
        "running=1/1",
        "minute=1",
        "stats=1",
        "triggered=t! 2",
        "calls=2",
        "k=v",
        "instances=2",
        "stopped=0",
        "left=[]",
        "gone=404",
    ], said.stderr


@pytest.mark.timeout(120)
async def test_a_running_function_is_triggered_and_its_state_shown_put_and_kept(broker, command, tmp_path):
    def run(*arguments):
        return asyncio.to_thread(command, *arguments)

    async def state(key):
        found = await run("querystate", "--name", "exclaim", "-k", key)
        return json.loads(found.stdout) if found.exit_code == 0 else found.stderr

    def running():
        return status_when(broker, lambda found: found["numRunning"] == 1)

    file = written(tmp_path, CONFIG + "cleanupSubscription: true\n")
    assert (await run("create", "--function-config-file", file)).exit_code == 0
    await running()
    assert (
        await state("calls")
        == "pulsar-txn: GET /admin/v3/functions/public/default/exclaim/state/calls: key 'calls' doesn't exist.\n"
    )
    said = await run("trigger", "--name", "exclaim", "--trigger-value", "ä b")
    assert said.stdout.startswith("ä b! 1 "), said.stderr
    (tmp_path / "value").write_bytes(b"from a file")
    said = await run("trigger", "--name", "exclaim", "--topic", "words", "--trigger-file", tmp_path / "value")
    assert said.stdout.startswith("from a file! 2 "), said.stderr
    wrong = await run("trigger", "--name", "exclaim", "--topic", "other", "--trigger-value", "a")
    assert (wrong.exit_code, "is no input of" in wrong.stderr) == (1, True)
    before = await state("calls")
    assert (before["numberValue"], before["key"]) == (2, "calls")
    assert (await run("putstate", "--name", "exclaim", "-s", '{"key": "calls", "numberValue": 40}')).exit_code == 0
    await running()
    assert (await run("trigger", "--name", "exclaim", "--trigger-value", "c")).stdout.startswith("c! 41 ")
    assert (await run("stop", "--name", "exclaim")).exit_code == 0
    stopped = await run("trigger", "--name", "exclaim", "--trigger-value", "d")
    assert (stopped.exit_code, "no instance of public/default/exclaim runs" in stopped.stderr) == (1, True)
    assert (await run("putstate", "--name", "exclaim", "-s", '{"key": "k", "byteValue": "/w=="}')).exit_code == 0
    assert (await state("k"))["byteValue"] == "/w=="
    after = await state("calls")
    assert (after["numberValue"], after["version"] > before["version"]) == (41, True)
    subscriptions = "/admin/v2/persistent/public/default/words/subscriptions"
    assert await admin.get_json(broker, subscriptions) == ["public/default/exclaim"]
    assert (await run("delete", "--name", "exclaim")).exit_code == 0
    assert await admin.get_json(broker, subscriptions) == []


@pytest.mark.timeout(180)
@pytest.mark.soak  # its library is in CI
async def test_the_command_pulsar_admin_creates_triggers_looks_at_and_deletes_a_function(broker, tmp_path):
    home = stock_install.cache_dir() / f"apache-pulsar-{stock_install.TARBALL_VERSION}"
    if not home.is_dir() or shutil.which("java") is None:
        lacking("pulsar", "no unpacked Pulsar whose command pulsar-admin could be run")

    async def pulsar_admin(*arguments):
        command = [home / "bin" / "pulsar-admin", "--admin-url", broker.admin_url, "functions", *arguments]
        env = os.environ | {"OPTS": "-XX:TieredStopAtLevel=1", "PULSAR_EXTRA_OPTS": ""}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=env, timeout=90, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    example = home / "examples" / "python-examples" / "wordcount_function.py"
    told = ["--inputs", "text", "--output", "counted", "--subs-position", "Earliest", "--cleanup-subscription"]
    created = await pulsar_admin(
        "create", "--name", "wc", "--py", example, "--classname", "wordcount_function.WordCountFunction", *told
    )
    assert "Created successfully" in created
    path = "/admin/v3/functions/public/default/wc/status"
    await admin.eventually(lambda: admin.get_json(broker, path), lambda found: found["numRunning"] == 1)
    assert "to be or not to be!" in await pulsar_admin("trigger", "--name", "wc", "--trigger-value", "to be or not to be")
    found = await pulsar_admin("querystate", "--name", "wc", "--key", "to")
    assert json.loads(found[found.index("{") :])["numberValue"] == 2
    assert "Deleted successfully" in await pulsar_admin("delete", "--name", "wc")
    assert await admin.get_json(broker, "/admin/v2/persistent/public/default/text/subscriptions") == []
