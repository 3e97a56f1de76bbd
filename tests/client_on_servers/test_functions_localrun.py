"""Function files as they are written for the official runtime, run by the command in a process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import admin
import pytest
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions import _command

EXCLAIM = """
from pulsar import Function

class Exclaim(Function):
    def process(self, input, context):
        context.get_logger().info("%s from %s", input, Function.__module__)
        return input + context.get_user_config_value("mark")
"""
NATIVE = """
def process(input):
    return f"{input}!"
"""
DIES = """
import os, pathlib, signal, time
from pulsar import Function

class Dies(Function):
    def process(self, input, context):
        context.publish(context.get_user_config_value("audit"), input)
        mark = pathlib.Path(context.get_user_config_value("marks")) / str(input)
        if input % 3 == 0 and not mark.exists():
            mark.touch()
            time.sleep(0.2)  # what is published is on its way
            os.kill(os.getpid(), signal.SIGKILL)
        return input
"""
WITHOUT_PULSAR = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pulsar" else found(name, *more)
from pulsar_txn.pipeline.functions._command import main
sys.exit(main())
"""


@contextlib.contextmanager
def localrun(*arguments, program=("-m", "pulsar_txn.pipeline.functions"), log=subprocess.DEVNULL):
    command = [sys.executable, *program, "localrun", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(10)


async def ended(process):
    return await asyncio.to_thread(process.wait, 50)


async def said(log, text):
    async def has_said():
        return text in log.read_text(encoding="utf-8")

    await admin.eventually(has_said, bool)


def written(folder: Path, name: str, source: str, config: str) -> Path:
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    file = folder / f"{name}.yml"
    file.write_text(config, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("name", "class_name", "source", "program"),
    [
        ("exclaim", "exclaim.Exclaim", EXCLAIM, ("-m", "pulsar_txn.pipeline.functions")),
        ("exclaim", "exclaim.Exclaim", EXCLAIM, ("-c", WITHOUT_PULSAR)),
        ("native", "native", NATIVE, ("-m", "pulsar_txn.pipeline.functions")),
    ],
    ids=["class", "class, without the official package", "native"],
)
async def test_an_unmodified_function_file_runs_until_sigterm(
    client, pulsar, topic, tmp_path, name, class_name, source, program
):
    config = f"""
        className: {class_name}
        py: {name}.py
        inputs: [{topic}]
        output: {topic}-out
        subscriptionPosition: EARLIEST
        userConfig: {{mark: "!"}}
        transaction: {{transactionMode: MANAGED}}
    """
    file = written(tmp_path, name, source, config)
    out = await client.subscribe(f"{topic}-out", "s")
    source_topic = await client.create_producer(topic)
    await source_topic.send(b"hello")
    log = tmp_path / "log"
    with log.open("wb") as stream:
        arguments = ("--function-config-file", file, "--broker-service-url", pulsar.service_url)
        with localrun(*arguments, program=program, log=stream) as process:
            async with asyncio.timeout(30):
                assert (await out.receive()).data == b"hello!"
                process.send_signal(signal.SIGTERM)
                assert await ended(process) == 0, log.read_text(encoding="utf-8")
    text = log.read_text(encoding="utf-8")
    if name == "exclaim":
        assert ("from pulsar_txn." in text) == (program[0] == "-c")
    subscription = await client.subscribe(topic, f"public/default/{name if name == 'native' else 'Exclaim'}")
    assert await subscription.receive_many(1, max_wait=0.3) == []


@pytest.mark.seed_rows("D08", "D16")
async def test_a_process_that_is_killed_between_publishing_and_commit_loses_and_doubles_nothing(
    client, pulsar, topic, tmp_path
):
    config = f"""
        className: dies.Dies
        py: dies.py
        inputs: [{topic}]
        output: {topic}-out
        retainOrdering: true
        subscriptionPosition: EARLIEST
        userConfig: {{audit: {topic}-audit, marks: {tmp_path}}}
        transaction: {{transactionMode: MANAGED, transactionTimeoutMs: 3000}}
    """
    file = written(tmp_path, "dies", DIES, config)
    source = await client.create_producer(topic)
    for number in range(6):
        await source.send(b"%d" % number)
    out = await client.subscribe(f"{topic}-out", "s", initial_position=InitialPosition.EARLIEST)
    audit = await client.subscribe(f"{topic}-audit", "s", initial_position=InitialPosition.EARLIEST)
    seen = []
    async with asyncio.timeout(60):
        for code in (-signal.SIGKILL, -signal.SIGKILL, 0):
            with localrun("--function-config-file", file, "--broker-service-url", pulsar.service_url) as process:
                if code == 0:
                    seen += [(await out.receive()).data for _ in range(6)]
                    process.send_signal(signal.SIGTERM)
                assert await ended(process) == code
        found = [(await audit.receive()).data for _ in range(6)]
    assert seen == found == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await out.receive_many(1, max_wait=0.3) == await audit.receive_many(1, max_wait=0.3) == []
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "3"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "inputs"),
        (("--inputs", "a"), "className"),
        (("--inputs", "a", "--classname", "no_such.Thing"), "no_such"),
        (("--inputs", "a", "--classname", "x", "--py", "/no/such/file.py"), "does not exist"),
        (("--inputs", "a", "--classname", "x", "--processing-guarantees", "TWICE"), "processingGuarantees"),
        (("--inputs", "a", "--classname", "x", "--user-config", "{"), "--user-config"),
        (("--client-auth-plugin", "org.apache.pulsar.client.impl.auth.AuthenticationAthenz"), "token, basic and TLS are"),
        (("--broker-service-url", "http://localhost:8080", "--inputs", "a"), "http"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_cannot_work_is_said_in_a_sentence_with_code_2(arguments, said):
    command = [sys.executable, "-m", "pulsar_txn.pipeline.functions", "localrun", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_where_no_broker_answers_the_command_ends_with_code_69(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_command, "AsyncClient", functools.partial(AsyncClient, operation_timeout=0.2))
    written(tmp_path, "native", NATIVE, "")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"pulsar://127.0.0.1:{nobody.getsockname()[1]}"
    flags = ["--inputs", "a", "--classname", "native", "--py", str(tmp_path / "native.py"), "--broker-service-url", url]
    assert _command.main(["localrun", *flags]) == 69
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("localrun: ")


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_function_that_raises_what_nothing_mends_ends_the_command_with_code_2(client, pulsar, topic, tmp_path):
    source = await client.create_producer(topic)
    await source.send(b"1")
    written(
        tmp_path,
        "state",
        "class S:\n    def process(self, input, context):\n        context.get_state('k')\n",
        "parallelism: 2",
    )
    flags = (
        "--inputs",
        topic,
        "--classname",
        "state.S",
        "--py",
        tmp_path / "state.py",
        "--subs-position",
        "EARLIEST",
        "--parallelism",
        2,
    )
    with localrun(*flags, "--broker-service-url", pulsar.service_url) as process:
        async with asyncio.timeout(30):
            assert await ended(process) == 2


class Tens:
    """Stops its run after the fifth call."""

    def __init__(self):
        self.seen = []
        self.stop = asyncio.Event()

    async def process(self, number, context):
        self.seen.append(number)
        if len(self.seen) == 5:
            self.stop.set()
        return 10 * number


async def twice_from_the_beginning(service_url, namespace):
    """The output of a function that ran again after all its acknowledgements were lost, as by a crash."""
    source_topic, output = f"{namespace}/numbers", f"{namespace}/tens"
    async with AsyncClient(service_url) as client:
        source = await client.create_producer(source_topic)
        await asyncio.gather(*(source.send(b"%d" % number) for number in range(5)))  # a batch, which is one entry
        told = {
            "inputs": [source_topic],
            "output": output,
            "subName": "s",
            "subscriptionPosition": "EARLIEST",
            "processingGuarantees": "EFFECTIVELY_ONCE",
        }
        for _ in range(2):
            tens = Tens()
            async with asyncio.timeout(30):
                await functions.run(client, told, tens, stop=tens.stop)
            assert tens.seen == [0, 1, 2, 3, 4]
            consumer = await client.subscribe(source_topic, "s", consumer_type=ConsumerType.FAILOVER)
            await consumer.seek(0)
            await consumer.close()
        reader = await client.create_reader(output)
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(5)).data)
    return found


@pytest.mark.seed_rows("D06")
async def test_effectively_once_doubles_nothing_where_our_broker_deduplicates():
    with OurBroker(conf={"brokerDeduplicationEnabled": "true"}) as broker:
        found = await twice_from_the_beginning(broker.service_url, "persistent://public/default")
    assert found == [b"0", b"10", b"20", b"30", b"40"]


async def test_effectively_once_doubles_nothing_where_stock_pulsar_deduplicates(stock_pulsar):
    namespace = f"public/f-{uuid.uuid4().hex[:12]}"
    await admin.put(stock_pulsar, f"/admin/v2/namespaces/{namespace}")
    await admin.post(stock_pulsar, f"/admin/v2/namespaces/{namespace}/deduplication", True)
    found = await twice_from_the_beginning(stock_pulsar.service_url, f"persistent://{namespace}")
    assert found == [b"0", b"10", b"20", b"30", b"40"]


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
async def test_a_second_signal_ends_the_command_at_once(client, pulsar, topic, tmp_path, number, code):
    source = await client.create_producer(topic)
    await source.send(b"1")
    written(tmp_path, "stuck", "import time\ndef process(input):\n    print('taken', flush=True)\n    time.sleep(600)\n", "")
    log = tmp_path / "log"
    flags = ("--inputs", topic, "--classname", "stuck", "--py", tmp_path / "stuck.py", "--subs-position", "EARLIEST")
    with log.open("wb") as stream, localrun(*flags, "--broker-service-url", pulsar.service_url, log=stream) as process:
        async with asyncio.timeout(30):
            await said(log, "taken")
            process.send_signal(number)
            await said(log, "a second signal ends at once")
            process.send_signal(number)
            assert await ended(process) == code


def test_the_help_lists_the_official_flags():
    command = [sys.executable, "-m", "pulsar_txn.pipeline.functions", "localrun", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    for flag in ("--function-config-file", "--client-auth-params", "--processing-guarantees", "--subs-name", "--log-topic"):
        assert flag in done.stdout
