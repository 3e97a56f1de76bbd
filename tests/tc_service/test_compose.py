"""The services of docker/compose.yaml on this machine, without an engine: their commands, their configuration, their roles."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from stock_install import install
from stock_pulsar import StockPulsar, free_port
from sync_sides import inner

from pulsar_txn.client import Client, TokenAuthentication
from pulsar_txn.client.commands import ping
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.txn.transactions import core_of

pytestmark = [pytest.mark.soak, pytest.mark.stock, pytest.mark.timeout(400)]

DOCKER = Path(__file__).parents[2] / "docker"
_MAIN = "from pulsar_txn.broker.cli import main; main()"


class Composed:
    """What the containers would see, as places of this machine: `/keys`, the host `pulsar`, published ports."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        self.keys.mkdir()
        self.services: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
        self.version = self.services["pulsar"]["image"].partition(":")[2]
        self.inside, self.outside, self.http, self.beside = (free_port() for _ in range(4))
        self._places = {
            "pulsar://pulsar:6650": f"pulsar://127.0.0.1:{self.inside}",
            "http://pulsar:8080": f"http://127.0.0.1:{self.http}",
            "127.0.0.1:16650": f"127.0.0.1:{self.outside}",
            "0.0.0.0:16650": f"127.0.0.1:{self.outside}",
            "/pulsar/bin/": f"{install(self.version)}/bin/",
            "/keys": str(self.keys),
            "$$": "$",
        }

    def here(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def run_once(self, service: str) -> None:
        """A service that ends by itself."""
        subprocess.run([self.here(each) for each in self.services[service]["command"]], check=True, timeout=150)

    def broker(self) -> StockPulsar:
        environment = self.services["pulsar"]["environment"]
        conf = {
            key.removeprefix("PULSAR_PREFIX_"): self.here(value) for key, value in environment.items() if key != "PULSAR_MEM"
        }
        conf |= {"advertisedAddress": ""}
        # What the fixture asks over HTTP while the server starts; programs here have their tokens.
        conf |= {"anonymousUserRole": "anonymous", "superUserRoles": conf["superUserRoles"] + ",anonymous"}
        return StockPulsar(self.version, conf=conf, port=self.inside, http_port=self.http)

    def coordinator(self, folder: Path) -> subprocess.Popen[bytes]:
        conf = folder / "coordinator.conf"
        conf.write_text(self.here((DOCKER / "coordinator.conf").read_text()) + f"brokerServicePort={self.beside}\n")
        (folder / "data").mkdir()
        places = {"/conf/coordinator.conf": str(conf), "/data": str(folder / "data")}
        words = [places.get(each, each) for each in self.services["coordinator"]["command"]]
        return subprocess.Popen([sys.executable, "-c", _MAIN, *words])


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    composed = Composed(tmp_path)
    composed.run_once("keys")
    with composed.broker():
        composed.run_once("grants")
        process = composed.coordinator(tmp_path)
        try:
            until_it_listens(process, composed.beside)
            yield composed
        finally:
            process.terminate()
            assert process.wait(30) == 0


def until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the coordinator does not listen; it has ended with {process.poll()}")


def test_a_program_on_the_host_has_transactions_with_the_token_of_its_role(composed: Composed) -> None:
    coordinator = f"pulsar://127.0.0.1:{composed.beside}"
    assert CliRunner().invoke(ping, [coordinator]).exit_code == 0
    token = TokenAuthentication((composed.keys / "app.jwt").read_text().strip())
    with Client(f"pulsar://127.0.0.1:{composed.outside}", authentication=token, coordinator=coordinator) as client:
        producer, reader = client.create_producer("orders"), client.create_reader("orders")
        with client.transaction() as txn:
            producer.send(b"committed", txn=txn)
        with client.transaction() as txn:
            producer.send(b"aborted", txn=txn)
            txn.rollback()
        producer.send(b"last")
        assert [reader.read_next(timeout=30).data for _ in range(2)] == [b"committed", b"last"]
        connections = core_of(inner(client)).pool.current()
        assert {each.endpoint for each in connections} == {f"127.0.0.1:{composed.outside}"}, (
            "the name `pulsar` is for containers"
        )
    with (
        Client(f"pulsar://127.0.0.1:{composed.outside}", coordinator=coordinator, operation_timeout=5) as nobody,
        pytest.raises(PulsarError, match=r"(?i)authenticat|token"),
    ):
        nobody.begin_transaction()
