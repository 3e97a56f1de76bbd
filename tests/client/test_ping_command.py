"""`pulsar-txn ping` tells a server that serves from one that does not, for health checks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from stock_pulsar import free_port

from pulsar_txn.client.commands import ping
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(ping, ["--timeout", "0.5", *arguments], env={"PULSAR_TXN_PING": None})


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def url_of(*ports: int) -> str:
    return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def answering(server: socket.socket, frame: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(frame)
            connection.recv(4096)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


CONNECTED = command("connected", server_version="Some 1.0", protocol_version=21, max_message_size=2**20)


def test_a_server_that_answers_at_one_of_several_hosts_suffices(listening: socket.socket) -> None:
    thread = answering(listening, CONNECTED)
    port = listening.getsockname()[1]
    done = run(url_of(free_port(), port))
    thread.join(5)
    assert done.exit_code == 0
    assert f"Some 1.0 serves at 127.0.0.1:{port}" in done.output


def test_a_server_that_wants_credentials_has_answered(listening: socket.socket) -> None:
    refusal = command("error", request_id=2**64 - 1, error=ServerError.AuthenticationError, message="no token")
    thread = answering(listening, refusal)
    done = run(url_of(listening.getsockname()[1]))
    thread.join(5)
    assert done.exit_code == 0
    assert "asks for credentials" in done.output


def test_a_process_that_hangs_does_not_serve_although_its_port_takes_connections(listening: socket.socket) -> None:
    done = run(url_of(listening.getsockname()[1]))
    assert done.exit_code == 69
    assert "no answer to CONNECT within 0.5 s" in done.output


def test_nobody_there_and_no_url_have_codes_of_their_own() -> None:
    assert run(url_of(free_port(), free_port())).exit_code == 69
    assert run("nonsense").exit_code == 2
    assert CliRunner().invoke(ping, [], env={"PULSAR_TXN_PING": url_of(free_port())}).exit_code == 69
