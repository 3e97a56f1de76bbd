"""The worker's supervisor: which processes there are, when they begin again, and what is said of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import attrs
import pytest

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions.worker import supervisor
from pulsar_txn.pipeline.functions.worker.broker_api import InstanceName, InstanceSpec, function_config, specs_of
from pulsar_txn.pipeline.functions.worker.supervisor import Health, Supervisor, report_of


def function(name="f", running=True, stopped=(), restarts=None, **config):
    package = {"number": 1, "name": "f.py", "size": 1, "sha256": "0" * 64}
    record = {"package": package, "running": running, "stopped": list(stopped), "restarts": restarts or {}}
    return {"tenant": "t", "namespace": "n", "name": name, "record": record | {"config": {"className": "f.F"} | config}}


def names(*functions):
    return sorted((name.fqfn, name.number) for name in specs_of(functions))


def test_each_instance_that_is_to_run_has_a_specification():
    assert names(function(parallelism=2), function("g", running=False), function("h", parallelism=3, stopped=[1])) == [
        ("t/n/f", 0),
        ("t/n/f", 1),
        ("t/n/h", 0),
        ("t/n/h", 2),
    ]


def test_a_restart_a_new_package_and_a_new_configuration_are_another_specification():
    (before,) = specs_of([function()]).values()
    changed = [
        function(restarts={"all": 1}),
        function(restarts={"0": 1}),
        function(userConfig={"a": 1}),
        {**function(), "record": {**function()["record"], "package": {"number": 2, "name": "f.py", "sha256": "1", "size": 1}}},
    ]
    for each in changed:
        assert specs_of([each])[InstanceName("t/n/f", 0)] != before
    assert specs_of([function(restarts={"1": 1})])[InstanceName("t/n/f", 0)] == before


def test_what_official_tools_send_without_being_asked_says_nothing():
    sent = {
        "className": "f.F",
        "inputs": ["a"],
        "autoAck": True,
        "skipToLatest": False,
        "userConfig": {},
        "output": None,
        "logTopic": "",
        "inputSpecs": {"a": {"schemaProperties": {}, "consumerProperties": {}, "poolMessages": False, "receiverQueueSize": 5}},
        "producerConfig": {"maxPendingMessages": 0, "useThreadLocalProducers": False, "compressionType": "ZSTD"},
    }
    assert function_config(sent) == {
        "className": "f.F",
        "inputs": ["a"],
        "autoAck": True,
        "skipToLatest": False,
        "inputSpecs": {"a": {"receiverQueueSize": 5}},
        "producerConfig": {"compressionType": "ZSTD"},
    }


def test_our_keys_come_through_official_tools_as_runtime_options():
    options = json.dumps({"transaction": {"transactionMode": "MANAGED"}})
    assert function_config({"customRuntimeOptions": options}) == {"transaction": {"transactionMode": "MANAGED"}}


def test_an_empty_section_for_state_says_that_there_is_state():
    assert function_config({"state": {}, "transaction": {}}) == {"state": {}}


@pytest.mark.parametrize("options", ["{", "[]", '{"py": "/etc/passwd.py"}'])
def test_other_runtime_options_are_refused(options):
    with pytest.raises(InvalidConfiguration, match="customRuntimeOptions should be"):
        function_config({"customRuntimeOptions": options})


def test_a_report_has_pulsars_names():
    health = Health(running=True, restarts=2, stats={"received": 3, "user_metrics": {"m": {"count": 2, "total": 5.0}}})
    report = report_of(1, health, "w", now=0.0)
    assert (report["instanceId"], report["status"]["numRestarts"], report["status"]["numReceived"]) == (1, 2, 3)
    assert (report["metrics"]["receivedTotal"], report["metrics"]["userMetrics"]) == (3, {"m": 5.0})


# --- processes --------------------------------------------------------------------------------------------------------

ECHO = """
import json, os, sys
print(json.dumps({"stats": {"received": 1}}), flush=True)
spec = json.loads(sys.stdin.readline())
if spec["config"].get("dies"):
    trace = f"Traceback in process {os.getpid()}"
    print(json.dumps({"error": "LookupError: nothing there", "traceback": trace}), flush=True)
    if spec["config"].get("slowly"):
        sys.stdin.read()
    sys.exit(3)
if spec["config"].get("killed"):
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


@pytest.fixture
def supervised(monkeypatch, tmp_path):
    """A supervisor of processes that are no functions, and the pauses that it makes."""
    monkeypatch.setattr(supervisor, "_COMMAND", ("-c", ECHO))
    fetched = []

    async def fetch(spec):
        fetched.append(spec)
        return tmp_path

    return Supervisor(fetch, first_pause=0.01), fetched


def spec(number=0, **config):
    return InstanceSpec(InstanceName("t/n/f", number), 1, "f.py", "0", json.dumps(config), 0)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a process of the test changes it
            await asyncio.sleep(0.01)


async def test_a_process_that_dies_begins_again_and_its_error_is_told(supervised, caplog):
    """The log has one line for each restart, and the traceback once."""
    keeping, fetched = supervised
    wanted = spec(dies=True)
    keeping.want({wanted.name: wanted}, "pulsar://nowhere")
    keeper = keeping.keepers[wanted.name]
    await until(lambda: keeper.health.restarts >= 3)
    assert len(fetched) >= 3
    await keeping.end()
    assert keeper.health.error == "LookupError: nothing there"
    lines = [record.getMessage() for record in caplog.records if record.name == supervisor.logger.name]
    assert len([line for line in lines if "Traceback in process" in line]) == 1
    assert len([line for line in lines if "begins again" in line]) == len(lines) - 1 >= 3
    assert not keeper.health.running


async def test_an_instance_with_an_error_does_not_run_even_before_its_process_has_ended(supervised):
    keeping, _ = supervised
    wanted = spec(dies=True, slowly=True)
    keeping.want({wanted.name: wanted}, "pulsar://nowhere")
    keeper = keeping.keepers[wanted.name]
    await until(lambda: keeper.health.error)
    assert not keeper.health.running
    await keeping.end()


async def test_a_process_that_does_not_report_yet_does_not_run(supervised, monkeypatch):
    monkeypatch.setattr(
        supervisor, "_COMMAND", ("-c", "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.read()")
    )
    keeping, _ = supervised
    wanted = spec()
    keeping.want({wanted.name: wanted}, "pulsar://nowhere")
    keeper = keeping.keepers[wanted.name]
    keeper.health.errors = [{"exceptionString": "of an earlier process"}]
    await until(lambda: not keeper.health.errors)
    assert not keeper.health.running
    await keeping.end()


async def test_a_killed_process_is_the_reason_although_it_could_not_say_so(supervised):
    keeping, _ = supervised
    wanted = spec(killed=True)
    keeping.want({wanted.name: wanted}, "pulsar://nowhere")
    keeper = keeping.keepers[wanted.name]
    await until(lambda: keeper.health.restarts >= 2 and keeper.health.error)
    assert keeper.health.error == "the process ended with -9"
    await keeping.end()


async def test_what_is_not_wanted_any_more_ends_and_what_has_not_changed_runs_on(supervised):
    keeping, _ = supervised
    first, second = spec(0), spec(1)
    keeping.want({first.name: first, second.name: second}, "pulsar://nowhere")
    keeper = keeping.keepers[first.name]
    await until(lambda: keeper.health.stats)
    keeping.want({first.name: first}, "pulsar://nowhere")
    assert list(keeping.keepers.values()) == [keeper]
    changed = spec(0, userConfig={"a": 1})
    keeping.want({first.name: changed}, "pulsar://nowhere")
    assert keeping.keepers[first.name] is not keeper
    assert keeper.health.restarts == 0
    assert [each["instanceId"] for each in keeping.reports("w")["t/n/f"]] == [0]
    await keeping.end()
    assert keeping.keepers == {}


async def test_a_package_that_cannot_be_fetched_is_an_error_of_the_instance(supervised):
    async def fetch(_spec):
        raise OSError("no such package")

    keeping = Supervisor(fetch, first_pause=0.01)
    wanted = spec()
    keeping.want({wanted.name: wanted}, "pulsar://nowhere")
    keeper = keeping.keepers[wanted.name]
    await until(lambda: keeper.health.restarts >= 2)
    assert keeper.health.error == "OSError: no such package"
    await keeping.end()


DEAF = """
import json, os, sys, time
print(json.dumps({"stats": {"received": os.getpid()}}), flush=True)
spec = json.loads(sys.stdin.readline())
sys.stdin.read()
while spec["config"].get("deaf"):
    time.sleep(0.05)
"""


async def test_a_function_that_does_not_end_holds_up_nothing_but_its_own_successor(supervised, monkeypatch):
    keeping, _ = supervised
    monkeypatch.setattr(supervisor, "_COMMAND", ("-c", DEAF))
    monkeypatch.setattr(supervisor, "PATIENCE", 1e9)
    deaf, other = spec(0, deaf=True), attrs.evolve(spec(0), name=InstanceName("t/n/other", 0))
    keeping.want({deaf.name: deaf}, "pulsar://nowhere")
    old = keeping.keepers[deaf.name]
    await until(lambda: old.health.stats)
    changed = spec(0)
    keeping.want({deaf.name: changed, other.name: other}, "pulsar://nowhere")
    successor = keeping.keepers[deaf.name]
    await until(lambda: keeping.keepers[other.name].health.running)
    assert not successor.health.stats
    os.kill(old.health.stats["received"], signal.SIGKILL)
    await until(lambda: successor.health.running)
    await keeping.end()
    assert keeping.keepers == {}


async def test_while_a_function_is_to_be_without_instances_none_begins_and_then_all_that_are_wanted_by_now(supervised):
    keeping, _ = supervised
    first, other = spec(0), attrs.evolve(spec(0), name=InstanceName("t/n/other", 0))
    keeping.want({first.name: first, other.name: other}, "pulsar://nowhere")
    kept = keeping.keepers[other.name]
    await until(lambda: keeping.keepers[first.name].health.stats and kept.health.stats)
    async with keeping.without("t/n/f"):
        assert list(keeping.keepers) == [other.name]
        second = spec(1)
        keeping.want({first.name: first, second.name: second, other.name: other}, "pulsar://nowhere")
        assert list(keeping.keepers) == [other.name]

        async def also_without():
            async with keeping.without("t/n/f"):
                return list(keeping.keepers)

        waiting = asyncio.create_task(also_without())
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting == [other.name]
    await until(lambda: set(keeping.keepers) == {first.name, second.name, other.name})
    assert keeping.keepers[other.name] is kept
    await until(lambda: keeping.keepers[second.name].health.running)
    await keeping.end()


async def test_only_so_many_processes_begin_at_a_time_and_what_is_not_wanted_by_then_never_begins(
    supervised, monkeypatch, tmp_path
):
    monkeypatch.setattr(supervisor, "_COMMAND", ("-c", "import sys; sys.stdin.read()"))  # it reports nothing
    monkeypatch.setattr(supervisor, "START_SECONDS", 1e9)
    fetched = []

    async def fetch(each):
        fetched.append(each)
        return tmp_path

    keeping = Supervisor(fetch, first_pause=0.01, starts=2)
    wanted = {spec(number).name: spec(number) for number in range(50)}
    keeping.want(wanted, "pulsar://nowhere")
    await until(lambda: len(fetched) == 2)
    keeping.want({}, "pulsar://nowhere")
    await keeping.end()
    assert len(fetched) == 2


async def test_a_process_that_reports_nothing_holds_the_others_up_for_a_while_only(supervised, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "_COMMAND", ("-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(supervisor, "START_SECONDS", 0.01)
    fetched = []

    async def fetch(each):
        fetched.append(each)
        return tmp_path

    keeping = Supervisor(fetch, first_pause=0.01, starts=1)
    keeping.want({spec(number).name: spec(number) for number in range(3)}, "pulsar://nowhere")
    await until(lambda: len(fetched) == 3)
    await keeping.end()
