"""Other systems: what only Linux has, or what Windows lacks, is taken away from a process of its own, which then works."""

import errno
import fcntl
import os
import subprocess
import sys
import textwrap

import pytest

from pulsar_txn.broker.base.runtime import LoopThread
from pulsar_txn.broker.server import Standalone
from pulsar_txn.ledger.journal import sync_helper

ONLY_LINUX = """
import errno, os, select, sys
for name in ("fdatasync", "posix_fadvise", "posix_fallocate", "POSIX_FADV_WILLNEED", "RWF_NOWAIT", "pwritev", "preadv",
             "memfd_create", "sched_getaffinity", "sched_setaffinity", "pipe2", "copy_file_range", "splice", "eventfd",
             "pidfd_open", "getrandom", "sendfile"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("EUCLEAN", "EREMOTEIO"):
    delattr(errno, name)
del select.epoll
sys.modules["uvloop"] = None
"""
"""Before anything else: macOS has none of these."""

HELPER = """
import runpy, sys
exec({names!r})
runpy.run_path({helper!r}, run_name="__main__")
"""

NOT_ON_WINDOWS = """
import asyncio, multiprocessing, os, pathlib, select, signal, socket, subprocess, sys, tempfile, threading
for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop", "tty", "pty", "syslog", "posix"):
    sys.modules[name] = None
for name in ("fdatasync", "fork", "register_at_fork", "pread", "pwrite", "preadv", "pwritev", "posix_fadvise", "getuid",
             "geteuid", "setsid", "sched_getaffinity", "statvfs", "fchmod", "O_CLOEXEC", "O_DIRECTORY", "killpg"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_kill", "pthread_sigmask"):
    delattr(signal, name)
for name in ("send_fds", "recv_fds"):
    delattr(socket, name)
def lacks(*_args, **_kwargs):
    raise NotImplementedError
for loop in (asyncio.SelectorEventLoop, asyncio.BaseEventLoop, asyncio.AbstractEventLoop):
    loop.add_signal_handler = loop.remove_signal_handler = loop.add_reader = loop.add_writer = lacks
"""
"""After Python's own library was loaded, which would look for the Windows one."""


def run(program, *arguments, code=0, **environment):
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | environment,
        check=False,
    )
    assert found.returncode == code, found.stderr + found.stdout
    return found.stdout + found.stderr


COMMAND = "\nfrom pulsar_txn.broker.cli import main\nsys.argv = ['pulsar-txn', *sys.argv[1:]]\nmain()\n"


# --- macOS ------------------------------------------------------------------------------------------------------------


def test_without_what_only_linux_has_the_broker_keeps_what_it_is_given(tmp_path):
    """`os.fdatasync` was read when the sync helper was imported: standalone, the fixture and --help ended in a traceback."""
    helper = tmp_path / "helper.py"
    helper.write_text(HELPER.format(names=ONLY_LINUX, helper=sync_helper.__file__))
    told = run(
        ONLY_LINUX
        + """
import asyncio
from pathlib import Path
from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient
from pulsar_txn.ledger.journal import files
files._HELPER = Path(sys.argv[2])

async def main():
    for start in range(2):
        async with Standalone(sys.argv[1], port=0) as broker, AsyncClient(broker.service_url) as client:
            print(broker.broker.store.syncer_kind)
            consumer = await client.subscribe("t", "s")
            producer = await client.create_producer("t")
            if start:
                print((await consumer.receive(10)).data)
            else:
                async with client.transaction() as txn:
                    await producer.send(b"kept", txn=txn)
asyncio.run(main())
""",
        str(tmp_path / "data"),
        str(helper),
    )
    assert told.count("process\n") == 2, told
    assert "b'kept'" in told


@pytest.mark.parametrize("arguments", [["--help"], ["standalone", "--help"], ["backup", "--help"], ["check", "--help"]])
def test_without_what_only_linux_has_the_commands_explain_themselves(arguments):
    assert "Usage: pulsar-txn" in run(ONLY_LINUX + COMMAND, *arguments)


def test_without_a_folder_nothing_of_the_journal_is_imported():
    run("""
    import asyncio, sys
    from pulsar_txn.broker.base.runtime import LoopThread
    from pulsar_txn.broker.server import Standalone
    thread = LoopThread(lambda: Standalone(None, port=0))
    thread.start()
    thread.stop()
    found = [name for name in sys.modules if name.startswith("pulsar_txn.ledger.journal")]
    assert not found, found
    """)


def test_the_helper_asks_macos_to_empty_the_cache_of_the_disk_and_does_without_where_that_is_not_known(monkeypatch, tmp_path):
    calls = []

    def full_sync(fd, command):
        calls.append((fd, command))
        if len(calls) > 1:
            raise OSError(errno.ENOTSUP if len(calls) == 2 else errno.EIO, "no")

    monkeypatch.setattr(sync_helper, "FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    assert [sync_helper.attempt(b"d", file) for _ in range(3)] == [0, 0, errno.EIO]
    os.close(file)
    assert calls == [(file, 51)] * 3
    assert synced == [file]  # the second time: a file system that does not know it


# --- Windows ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url():
    thread = LoopThread(lambda: Standalone(None, port=0))
    yield thread.start().service_url
    thread.stop()


def test_without_what_windows_lacks_the_clients_work(url):
    run(
        NOT_ON_WINDOWS
        + """
from pulsar_txn.client import AsyncClient, Client, InitialPosition

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        producer = await client.create_producer("windows")
        async with client.transaction() as txn:
            await producer.send(b"async", txn=txn)
        async with client.subscribe("windows", "s", initial_position=InitialPosition.EARLIEST) as consumer:
            assert (await consumer.receive(10)).data == b"async"
asyncio.run(main())
with Client(sys.argv[1]) as client:
    with client.transaction() as txn:
        client.create_producer("windows").send(b"blocking", txn=txn)
    with client.subscribe("windows", "b", initial_position=InitialPosition.EARLIEST) as consumer:
        assert [consumer.receive(10).data for _ in range(2)] == [b"async", b"blocking"]
""",
        url,
    )


def test_without_what_windows_lacks_compat_and_the_outbox_work(url, tmp_path):
    run(
        NOT_ON_WINDOWS
        + """
import sqlite3
from pulsar_txn import compat
from pulsar_txn.client import Client
from pulsar_txn.client.outbox import Outbox
client = compat.Client(sys.argv[1])
consumer = client.subscribe("windows-compat", "s")
producer = client.create_producer("windows-compat")
with client.transaction() as txn:
    producer.send(b"x", txn=txn)
message = consumer.receive(10000)
assert message.data() == b"x"
consumer.acknowledge(message)
client.close()
connect = lambda: sqlite3.connect(sys.argv[2], check_same_thread=False)
with Client(sys.argv[1]) as client, Outbox(client, "orders", connect) as outbox:
    outbox.create_table()
    producer, database = client.create_producer("windows-outbox"), connect()
    database.execute("CREATE TABLE o (n int)")
    reader = client.subscribe("windows-outbox", "s")
    with outbox.transaction(database) as txn:
        database.execute("INSERT INTO o VALUES (1)")
        producer.send(b"order", txn=txn)
    assert reader.receive(10).data == b"order"
    database.close()
""",
        url,
        str(tmp_path / "db"),
    )


@pytest.mark.parametrize(
    "arguments", [["standalone", "--data", "x"], ["backup", "a", "b"], ["transactions", "list"], ["coordinator", "--conf", "x"]]
)
def test_without_what_windows_lacks_a_command_of_the_broker_ends_with_one_sentence(arguments):
    told = run(NOT_ON_WINDOWS + COMMAND, *arguments, code=69)
    assert told.startswith("pulsar-txn: the broker and its tools run on Linux and macOS, and this system has no fcntl")
    assert len(told.splitlines()) == 1
    assert "WSL" in told


def test_without_what_windows_lacks_the_commands_of_the_client_work_and_help_shows_the_others(url):
    told = run(NOT_ON_WINDOWS + COMMAND, "--help")
    assert "Not here: the broker" in told
    run(NOT_ON_WINDOWS + COMMAND, "produce", "windows-command", "hello", "--url", url)
    told = run(NOT_ON_WINDOWS + COMMAND, "consume", "windows-command", "-s", "s", "--from-start", "--wait", "10", "--url", url)
    assert told == "hello\n"
    run(NOT_ON_WINDOWS + COMMAND, "ping", url)
    told = run(NOT_ON_WINDOWS + COMMAND, "standalone", "--help")
    assert "Not here: the broker" in told


def test_without_what_windows_lacks_the_fixture_and_the_class_end_with_one_sentence(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(pulsar_broker):\n    pass\n")
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['fcntl'] = sys.modules['resource'] = None\n")
    program = "import pytest, sys\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', *sys.argv[1:]]))"
    told = run(program, str(tmp_path), str(tmp_path), code=1)
    assert "pulsar_broker: the broker and its tools run on Linux and macOS" in told
    assert "Traceback" not in told
    told = run(NOT_ON_WINDOWS + "\nfrom pulsar_txn.broker import Standalone", code=1)
    assert told.splitlines()[-1].startswith("ImportError: the broker and its tools run on Linux and macOS")


def test_without_what_windows_lacks_localrun_ends_with_one_sentence(url, tmp_path):
    (tmp_path / "f.py").write_text("def process(value):\n    return value\n")
    program = "\nfrom pulsar_txn.pipeline.functions._command import main\nsys.exit(main(sys.argv[1:]))"
    arguments = ["--py", str(tmp_path / "f.py"), "--classname", "f", "--inputs", "windows-in", "--broker-service-url", url]
    told = run(NOT_ON_WINDOWS + program, "localrun", *arguments, code=2)
    assert "localrun: this system cannot end a function by a signal" in told
