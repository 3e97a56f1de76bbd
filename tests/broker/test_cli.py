"""`pulsar-txn standalone` as a process: how it starts, drains, ends, and what it says about each bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stock_install
from command_line import MAIN, pulsar_txn
from our_broker import OurBroker
from stock_pulsar import free_port

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.cli import exits
from pulsar_txn.broker.cli import standalone as cli_standalone
from pulsar_txn.client import AsyncClient

STOCK_SAMPLE = """\
### --- General broker settings --- ###
zookeeperServers=
metadataStoreUrl=
configurationStoreServers=
brokerServicePort=6650
webServicePort=8080
bindAddress=127.0.0.1
numHttpServerThreads=
delayedDeliveryTrackerFactoryClassName=org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory
brokerDeduplicationEnabled=false
defaultRetentionTimeInMinutes=0
allowAutoTopicCreationType=non-partitioned
tlsCiphers=
### --- Transactions --- ###
transactionCoordinatorEnabled=false
transactionMetadataStoreProviderClassName=org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider
transactionBufferProviderClassName=org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBufferProvider
transactionPendingAckStoreProviderClassName=org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckStoreProvider
compactionServiceFactoryClassName=org.apache.pulsar.compaction.PulsarCompactionServiceFactory"""


def stock_conf(tmp_path: Path) -> Path:
    """The standalone.conf of 4.0.8 when it is at hand, else a few of its lines."""
    cached = stock_install.cache_dir() / "apache-pulsar-4.0.8" / "conf" / "standalone.conf"
    if cached.is_file():
        return cached
    sample = tmp_path / "standalone.conf"
    sample.write_text(STOCK_SAMPLE)
    return sample


@contextlib.contextmanager
def standalone(*arguments: object):
    """A process with its ready file's facts; SIGKILLed if the test has not ended it."""
    ready = Path(arguments[arguments.index("--data") + 1]).with_suffix(".ready")
    command = [sys.executable, "-c", MAIN, "standalone", "--ready-file", str(ready), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "is ready" in line, process.stderr.read()
        yield process, json.loads(ready.read_text()), line
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@pytest.mark.seed_rows("E06")
def test_the_ready_line_and_the_ready_file_say_where_it_listens_and_the_file_goes_with_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with standalone("--data", data, "--port", 0, "--http-port", 0, "--set", "numberOfTransactionCoordinators=3") as started:
        process, facts, line = started
        assert facts["pid"] == process.pid
        assert facts["serviceUrl"].startswith("pulsar://127.0.0.1:")
        assert facts["webServiceUrl"].startswith("http://127.0.0.1:")
        assert (facts["coordinators"], facts["ledger"], facts["data"], facts["sync"]) == (3, "journal", str(data), "process")
        for told in (facts["serviceUrl"], facts["webServiceUrl"], "3 coordinators", "journal", "sync by process"):
            assert told in line
        assert ended(process)[0] == exits.OK
        assert not (tmp_path / "data.ready").exists()


def test_an_interrupt_drains_as_a_termination_does(tmp_path: Path) -> None:
    with standalone("--data", tmp_path / "data", "--port", 0, "--http-port", 0) as (process, _, _):
        code, errors = ended(process, signal.SIGINT)
    assert code == exits.OK
    assert "drained" in errors
    assert "Traceback" not in errors


def test_without_a_web_port_there_is_no_http(tmp_path: Path) -> None:
    with standalone("--data", tmp_path / "data", "--port", 0, "--set", "webServicePort=") as (process, facts, line):
        assert facts["webServiceUrl"] is None
        assert "no HTTP" in line
        assert ended(process)[0] == exits.OK


@pytest.mark.seed_rows("B06")
async def test_a_drain_answers_everything_that_it_stored_and_a_restart_keeps_it() -> None:
    with OurBroker() as broker:
        sent: list[bytes] = []

        async def send_on(producer, number: int) -> None:
            for count in range(1_000_000):
                data = b"%d-%d" % (number, count)
                await producer.send(data)
                sent.append(data)

        async with AsyncClient(broker.service_url, operation_timeout=0.5) as client:  # so long its close waits for receipts
            producer = await client.create_producer("drained")
            senders = [asyncio.create_task(send_on(producer, number)) for number in range(100)]
            await until(lambda: len(sent) >= 500)
            os.kill(broker.pid, signal.SIGTERM)
            await until(lambda: not producer.is_connected)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await asyncio.to_thread(broker.restart)
        stored = await read_all(broker.service_url, "drained")
    assert sorted(stored) == sorted(sent)


async def until(holds: Callable[[], bool]) -> None:
    """Give the loop turns until `holds`."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0)


async def read_all(url: str, topic: str) -> list[bytes]:
    stored: list[bytes] = []
    async with AsyncClient(url) as client, await client.create_reader(topic) as reader:
        while await reader.has_message_available():
            stored += [message.data for message in await reader.read_many()]
    return stored


@pytest.mark.seed_rows("C46", "D47")
async def test_a_transaction_that_was_open_survives_the_restart_and_can_be_committed() -> None:
    with OurBroker() as broker:
        async with AsyncClient(broker.service_url) as client:
            producer = await client.create_producer("kept")
            txn = await client.begin_transaction(timeout=600)
            await producer.send(b"held", txn=txn)
            await asyncio.to_thread(broker.restart)
            assert await read_all(broker.service_url, "kept") == []
            await txn.commit()
        assert await read_all(broker.service_url, "kept") == [b"held"]


async def test_a_second_signal_ends_it_at_once_with_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_self: object) -> None:
        await asyncio.Event().wait()

    config = BrokerConfig(broker_service_port=0, web_service_port=None, ledger_provider="memory")
    process = cli_standalone.Process(config, None, None)
    monkeypatch.setattr(cli_standalone.Standalone, "close", never)
    running = asyncio.create_task(process.run())
    await until(lambda: hasattr(process._standalone, "broker") and process._standalone.broker.service_url != "")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(exits.Ending) as ending:
        await running
    assert ending.value.code == exits.CUT_SHORT
    monkeypatch.undo()
    await process._standalone.close()


def test_when_the_sync_helper_is_killed_it_ends_as_storage_failed(tmp_path: Path) -> None:
    with standalone("--data", tmp_path / "data", "--port", 0, "--http-port", 0) as (process, facts, _):
        os.kill(sync_helper_of(process.pid), signal.SIGKILL)
        pulsar_txn("produce", "--url", facts["serviceUrl"], "t", "x")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == exits.STORAGE_FAILED
    assert "pulsar-txn: storage failed in " in errors
    assert "Traceback" not in errors


def sync_helper_of(pid: int) -> int:
    """The child that stays; others make segments ready and end."""
    until_s = time.monotonic() + 30
    while len(children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) > 1:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    return int(children[0])


# ---- bad input: a code, one sentence, no traceback


def refusal(*arguments: object, **more) -> tuple[int, str]:
    """The exit code and the sentence: the last line; nothing that looks like a traceback before it."""
    done = pulsar_txn(*arguments, **more)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--data DIR"),
        (("--data", "DATA", "--port", "70000"), "70000 is not in the range"),
        (("--data", "DATA", "--set", "brokerServicePort"), "write KEY=VALUE; what was given has no"),
        (("--data", "DATA", "--set", "brokerServicePort=x"), "command line: brokerServicePort=x: a whole number is expected"),
        (("--data", "DATA", "--set", "brokerServicePort=65536"), "a port up to 65535 is expected"),
        (("--data", "DATA", "--conf", "/nowhere/x.conf"), "/nowhere/x.conf cannot be read: No such file or directory"),
        (("--data", "DATA", "--ready-file", "/nowhere/ready"), "/nowhere/ready cannot be written"),
        (("--data", "DATA", "--unheard-of"), "No such option '--unheard-of'"),
    ],
)
def test_a_wrong_option_is_code_2(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    given = [str(tmp_path / "data") if each == "DATA" else each for each in arguments]
    code, said = refusal("standalone", *given, env={"brokerServicePort": "0", "webServicePort": "0"} if len(given) > 3 else {})
    assert code == exits.USAGE
    assert sentence.replace("'", "") in said.replace("'", "")


def test_a_bad_value_in_the_file_is_code_2_and_names_file_and_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# mine\nclusterName=c\nenableNonPersistentTopics=perhaps\n")
    code, said = refusal("standalone", "--conf", conf, "--data", tmp_path / "data")
    assert code == exits.USAGE
    assert said == f"pulsar-txn: {conf}:3: enableNonPersistentTopics=perhaps: true or false is expected"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transactionBufferProviderClassName", "nope"),
        ("transactionMetadataStoreProviderClassName", "no.such.module:Class"),
        ("transactionPendingAckStoreProviderClassName", "json:nope"),
        ("ledgerProvider", "nope"),
    ],
)
def test_an_unknown_plug_in_is_code_2_and_no_folder_is_made(tmp_path: Path, key: str, value: str) -> None:
    code, said = refusal("standalone", "--data", tmp_path / "data", "--set", f"{key}={value}")
    assert code == exits.USAGE
    assert f"command line: {key}={value}: " in said
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_code_69_and_the_sentence_says_which(tmp_path: Path) -> None:
    with OurBroker() as broker:
        for option, key, port in (
            ("--port", "brokerServicePort", broker.port),
            ("--http-port", "webServicePort", broker.http_port),
        ):
            ports = {"--port": 0, "--http-port": 0} | {option: port}
            given = [str(each) for pair in ports.items() for each in pair]
            code, said = refusal("standalone", "--data", tmp_path / option.strip("-"), *given)
            assert code == exits.UNAVAILABLE
            assert f"port {port} on 127.0.0.1 is in use" in said
            assert option in said
            assert key in said


def test_an_address_that_is_not_here_is_code_69(tmp_path: Path) -> None:
    code, said = refusal("standalone", "--data", tmp_path / "data", "--port", 0, "--set", "bindAddress=192.0.2.1")
    assert code == exits.UNAVAILABLE
    assert "cannot listen on 192.0.2.1" in said


def test_a_folder_in_use_is_code_73(tmp_path: Path) -> None:
    with OurBroker() as broker:
        for command in (("standalone", "--data"), ("check",)):
            code, said = refusal(*command, broker.data_dir)
            assert code == exits.STORE_REFUSED
            assert "is in use by another process" in said


def test_a_folder_of_a_newer_version_is_code_73(tmp_path: Path) -> None:
    data = filled(tmp_path)
    form = data / "FORMAT"
    form.write_text(re.sub(r"version \d+", "version 999", form.read_text(), count=1))
    for command in (("standalone", "--data"), ("check",)):
        code, said = refusal(*command, data)
        assert code == exits.STORE_REFUSED
        assert "format 999" in said


def test_a_folder_that_cannot_be_written_is_code_73() -> None:
    code, said = refusal("standalone", "--data", "/sys/pulsar-txn", "--port", 0)
    assert code == exits.STORE_REFUSED
    assert "cannot be written" in said


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/pulsar-txn", "loop", "loop/below", "n" * 300])
def test_a_place_where_no_folder_can_be_is_code_73(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "loop").symlink_to("loop")
    code, said = refusal("standalone", "--data", tmp_path / place, "--port", 0)
    assert code == exits.STORE_REFUSED
    assert "cannot be a folder" in said


def test_a_folder_of_somebody_else_is_code_73(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    code, said = refusal("standalone", "--data", tmp_path, "--port", 0)
    assert code == exits.STORE_REFUSED
    assert "letter.txt" in said


def test_a_damaged_folder_is_code_74(tmp_path: Path) -> None:
    data = filled(tmp_path)
    (data / "FORMAT").write_text("nothing of ours\n")
    code, said = refusal("standalone", "--data", data, "--port", 0)
    assert code == exits.STORAGE_FAILED
    assert "is damaged" in said


def test_a_stock_file_is_read_with_warnings_only(tmp_path: Path) -> None:
    conf = stock_conf(tmp_path)
    shown = pulsar_txn("config", "show", "--conf", conf, "--json")
    assert shown.returncode == exits.OK
    assert "keys are not known to this broker and have no effect" in shown.stderr
    assert json.loads(shown.stdout)["transactionCoordinatorEnabled"]["value"] is False
    given = ("--conf", conf, "--data", tmp_path / "data", "--port", 0, "--http-port", 0, "--set", "bindAddress=127.0.0.1")
    with standalone(*given) as (process, facts, _):
        assert facts["coordinators"] == 0
        code, errors = ended(process)
    assert code == exits.OK
    assert "WARNING" in errors


def test_without_the_extra_there_is_one_sentence_and_code_69() -> None:
    room = Path(cli_standalone.__file__).parents[3]
    program = f"import sys; sys.path.append({str(room)!r}); {MAIN}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == exits.UNAVAILABLE
    assert done.stdout == ""
    (said,) = done.stderr.splitlines()
    assert "pip install '.[broker]'" in said
    assert "click" in said


# ---- check


def filled(tmp_path: Path) -> Path:
    """A folder that a broker wrote and left."""
    data = tmp_path / "data"
    with OurBroker(data_dir=data) as broker:
        sent = pulsar_txn("produce", "--url", broker.service_url, "t", "first-payload", "second-payload")
        assert sent.returncode == 0, sent.stderr
    return data


def test_check_finds_nothing_in_a_sound_folder_and_a_flipped_byte_in_another(tmp_path: Path) -> None:
    data = filled(tmp_path)
    sound = pulsar_txn("check", data)
    assert (sound.returncode, sound.stdout) == (exits.OK, f"{data}: nothing is wrong\n")
    flip(data, b"second-payload")
    done = pulsar_txn("check", data)
    assert done.returncode == exits.STORAGE_FAILED
    assert "public/default/persistent/t" in done.stdout
    assert f"pulsar-txn: {data} is damaged, " in done.stderr
    findings = json.loads(pulsar_txn("check", data, "--json").stdout)
    (of_topic,) = (each for each in findings if each["log"] == "public/default/persistent/t")
    assert len(of_topic["position"]) == 2


def flip(data: Path, payload: bytes) -> None:
    """Change one byte of the one place where `payload` lies."""
    found = [(path, path.read_bytes()) for path in data.iterdir() if payload in path.read_bytes()]
    ((path, content),) = found
    at = content.index(payload)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


def test_check_of_no_folder_is_code_2(tmp_path: Path) -> None:
    nowhere = f"pulsar-txn: {tmp_path / 'nowhere'} is not a folder; name the data folder of a broker"
    assert refusal("check", tmp_path / "nowhere") == (exits.USAGE, nowhere)


# ---- config show


def test_config_show_prints_every_key_with_where_it_came_from(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("clusterName=mine\nbrokerServicePort=1\n")
    given = ("config", "show", "--conf", conf, "--set", "maxMessageSize=7", "--json")
    done = pulsar_txn(*given, env={"PULSAR_PREFIX_brokerServicePort": "2"})
    shown = json.loads(done.stdout)
    assert shown["clusterName"] == {"value": "mine", "origin": f"{conf}:1"}
    assert shown["brokerServicePort"] == {"value": 2, "origin": "environment PULSAR_PREFIX_brokerServicePort"}
    assert shown["maxMessageSize"] == {"value": 7, "origin": "command line"}
    assert shown["ledgerProvider"] == {"value": "journal", "origin": "default"}
    lines = pulsar_txn("config", "show").stdout.splitlines()
    assert len(lines) == len(shown)
    assert all("=" in line and "  # " in line for line in lines)


def test_help_and_version_start_nothing() -> None:
    done = pulsar_txn("--help")
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert listed >= {"standalone", "check", "config", "consume", "produce", "transactions"}
    assert pulsar_txn("--version").stdout.startswith("pulsar-txn ")


def test_it_is_ready_soon_and_small_when_idle(tmp_path: Path) -> None:
    port = free_port()
    with standalone("--data", tmp_path / "data", "--port", port, "--http-port", 0) as (process, _, _):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        assert ticks / os.sysconf("SC_CLK_TCK") < 5  # seconds of CPU, about 0.6: how long it waits for a core says nothing
        time.sleep(0.5)
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident_kib = int(status.partition("VmRSS:")[2].split()[0])
    assert resident_kib < 80 << 10
