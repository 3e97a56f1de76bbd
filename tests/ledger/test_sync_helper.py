"""The process that waits for the disk: it syncs what it is told to, and ends without a word when its broker is gone."""

import asyncio
import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulsar_txn.ledger.journal import sync_helper
from pulsar_txn.ledger.journal.files import SYNC, HelperSyncer, ThreadSyncer


@pytest.mark.parametrize("commands", [b"", b"s", b"sdz"])
def test_a_broker_that_goes_without_reading_its_answers_is_no_error(tmp_path: Path, commands: bytes) -> None:
    """Named after a traceback under the one sentence that says what is wrong with an option."""
    with (tmp_path / "file").open("wb") as file, ThreadPoolExecutor(1) as pool:
        file.write(b"x")
        file.flush()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            served = pool.submit(sync_helper.serve, theirs)
            for command in commands:
                socket.send_fds(ours, [bytes([command])], [file.fileno()])
            if commands:
                ours.recv(1, socket.MSG_PEEK)  # an answer is there, and nobody reads it
            ours.close()
            served.result(10)


async def sync(syncer: HelperSyncer | ThreadSyncer, fd: int) -> int:
    """The errno of a sync of `fd`."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    syncer.request(SYNC, fd, done.set_result)
    return await asyncio.wait_for(done, 10)


@pytest.mark.parametrize("kind", [HelperSyncer, ThreadSyncer])
async def test_what_is_synced_is_the_file_that_was_named_and_its_error_comes_back(
    tmp_path: Path, kind: type[HelperSyncer | ThreadSyncer]
) -> None:
    """A pipe cannot be synced: whoever answers 0 for one has synced nothing, or something else."""
    syncer = kind(lambda: None)
    reading, writing = os.pipe()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(2):
            assert await sync(syncer, file.fileno()) == 0
            assert await sync(syncer, writing) == errno.EINVAL
            assert await sync(syncer, writing) == errno.EINVAL
    syncer.close()
    os.close(reading)
    os.close(writing)


async def test_a_number_that_came_back_for_another_file_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    syncer = HelperSyncer(lambda: None)
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    assert await sync(syncer, fd) == 0
    syncer.forget(fd)
    reading, writing = os.pipe()
    os.dup2(writing, fd)  # closes the file; the number is the pipe's now
    assert await sync(syncer, fd) == errno.EINVAL
    syncer.close()
    for each in (fd, reading, writing):
        os.close(each)


def test_a_descriptor_that_did_not_come_through_is_an_error_and_the_file_before_is_not_synced_for_it(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, ThreadPoolExecutor(1) as pool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pool.submit(sync_helper.serve, theirs)
            socket.send_fds(ours, [b"S"], [file.fileno()])
            assert ours.recv(1) == b"\0"
            ours.send(b"S")
            assert ours.recv(1) == bytes([errno.EMFILE])
            ours.shutdown(socket.SHUT_RDWR)


def test_zero_fill_writes_everything_and_then_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"x" * (3 * sync_helper.ZERO_FILL_STEP_BYTES + 5))
        file.flush()
        fsync = os.fsync

        def recorded(fd: int) -> None:
            calls.append((fd, (tmp_path / "file").read_bytes().count(0)))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", recorded)
        assert sync_helper.attempt(b"z", file.fileno()) == 0
        assert calls == [(file.fileno(), 3 * sync_helper.ZERO_FILL_STEP_BYTES + 5)]
