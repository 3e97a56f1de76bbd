"""The process that waits for the disk ends without a word when its broker is gone."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulsar_txn.ledger.journal import sync_helper


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
