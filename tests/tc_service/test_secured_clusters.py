"""A coordinator beside a stock cluster that asks who comes: with a token, with a certificate, over TLS, and without rights."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pulsar as official
import pytest
from credentials import SECRET, token
from our_coordinator import OurCoordinator
from second_addresses import reached
from secured_stock import SecuredStock
from stock_pulsar import StartError

from pulsar_txn.client import AsyncClient, InitialPosition, TokenAuthentication
from pulsar_txn.client.errors import PulsarError

pytestmark = [pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(300)]

MAIN = "from pulsar_txn.broker.cli import main; main()"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredStock]:
    with SecuredStock("4.2.4", tmp_path_factory.mktemp("secured")) as server:
        yield server


def name() -> str:
    return f"persistent://public/default/secured-{uuid.uuid4().hex[:10]}"


def of_clients(folder: Path) -> dict[str, str]:
    """The coordinator asks its clients who they are as well: with tokens of the same key."""
    key = folder / "secret.key"
    key.write_bytes(SECRET)
    return {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{key}",
        "superUserRoles": "admin",
    }


def coordinator(secured: SecuredStock, keys: Mapping[str, str], folder: Path) -> OurCoordinator:
    return OurCoordinator({"east": secured.service_url}, conf=of_clients(folder) | dict(keys))


@asynccontextmanager
async def app(secured: SecuredStock, url: str, role: str = "app") -> AsyncIterator[AsyncClient]:
    options = {"coordinator": url, "tls_trust_certs_file": secured.trust}
    async with AsyncClient(secured.service_url, authentication=TokenAuthentication(token(role)), **options) as client:
        yield client


async def bridge(client: AsyncClient, topic: str, payload: bytes) -> None:
    """One message in, one out, in one transaction."""
    consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
    source, output = await client.create_producer(f"{topic}-in"), await client.create_producer(topic)
    await source.send(payload)
    async with client.transaction(timeout=60) as txn:
        message = await consumer.receive(timeout=20, txn=txn)
        await output.send(b"done " + message.data, txn=txn)
    await asyncio.gather(consumer.close(), source.close(), output.close())


def judged(secured: SecuredStock, topic: str, count: int) -> list[bytes]:
    """What the official client reads, as `app`."""
    client = official.Client(
        secured.service_url,
        authentication=official.AuthenticationToken(token("app")),
        tls_trust_certs_file_path=secured.trust,
        logger=official.ConsoleLogger(official.LoggerLevel.Error),
    )
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        return [bytes(reader.read_next(timeout_millis=20_000).data()) for _ in range(count)]
    finally:
        client.close()


@pytest.mark.parametrize(("by", "way"), [("token", "tunnel"), ("certificate", "second name")])
async def test_transactions_of_a_role_with_few_rights_are_ended_by_one_with_all(
    secured: SecuredStock, tmp_path: Path, by: str, way: str
) -> None:
    topic = name()
    keys = secured.cluster_keys("east", secured.token_file("coordinator") if by == "token" else None)
    with coordinator(secured, keys, tmp_path) as beside, reached(way) as reach:
        url = reach(beside.service_url)
        async with app(secured, url) as client, app(secured, url, "admin") as other:
            await bridge(client, topic, b"1")
            left = await client.begin_transaction()
            with pytest.raises(PulsarError):
                stranger = AsyncClient(
                    secured.service_url,
                    coordinator=url,
                    authentication=TokenAuthentication(token("bob")),
                    tls_trust_certs_file=secured.trust,
                )
                async with stranger:
                    await stranger.attach_transaction(left.id).commit()
            await other.attach_transaction(left.id).abort()  # an operator of the coordinator
            await bridge(client, topic, b"2")
    assert await asyncio.to_thread(judged, secured, topic, 2) == [b"done 1", b"done 2"]


@pytest.mark.parametrize("role", ["app", "nobody"])
def test_a_role_without_rights_is_a_configuration_error_that_says_what_to_put_where(
    secured: SecuredStock, tmp_path: Path, role: str
) -> None:
    beside = coordinator(secured, secured.cluster_keys("east", secured.token_file(role)), tmp_path)
    with pytest.raises(StartError, match="superUserRoles of every broker"):
        beside.start()
    assert "Traceback" not in beside.log_tail()


def test_credentials_that_the_cluster_does_not_take_are_a_configuration_error(secured: SecuredStock, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jwt"
    wrong.write_text(token("coordinator", key=b"x" * 32), encoding="utf-8")
    beside = coordinator(secured, secured.cluster_keys("east", wrong), tmp_path)
    with pytest.raises(StartError, match="check the coordinator's credentials"):
        beside.start()
    assert wrong.read_text() not in beside.log_tail()


@pytest.mark.soak
async def test_a_role_that_loses_its_rights_goes_on_when_its_file_has_a_good_token_again(
    secured: SecuredStock, tmp_path: Path
) -> None:
    topic, file = name(), tmp_path / "coordinator.jwt"
    loop = asyncio.get_running_loop()
    expired = loop.time() + 15
    file.write_text(token("coordinator", exp=int(time.time()) + 15), encoding="utf-8")
    with coordinator(secured, secured.cluster_keys("east", file), tmp_path) as beside:
        async with app(secured, beside.service_url) as client:
            file.write_text(token("coordinator"), encoding="utf-8")
            await bridge(client, topic, b"1")
            producer = await client.create_producer(topic)
            txn = await client.begin_transaction(timeout=120)
            await producer.send(b"done 2", txn=txn)
            file.write_text(token("app"), encoding="utf-8")  # what the broker hears when it asks for a fresh one
            await asyncio.sleep(expired + 4 - loop.time())
            commit = asyncio.create_task(txn.commit())
            async with asyncio.timeout(30):
                while "superUserRoles of every broker" not in beside.log_tail():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.1)
            assert not commit.done()
            assert "the claims in the cluster east were lost" in beside.log_tail(), "and nothing new takes part meanwhile"
            file.write_text(token("coordinator"), encoding="utf-8")
            await asyncio.wait_for(commit, 60)
            async with client.transaction(timeout=120) as txn:
                await producer.send(b"done 3", txn=txn)
    assert await asyncio.to_thread(judged, secured, topic, 3) == [b"done 1", b"done 2", b"done 3"]


async def test_doctor_looks_at_a_secured_cluster_with_the_same_credentials(secured: SecuredStock) -> None:
    command = [sys.executable, "-c", MAIN, "doctor", "--cluster", secured.service_url, "--json", "--older-than", "0"]
    command += ["--admin-url", secured.server.admin_url, "--tls-trust-certs-file", secured.trust]
    command += ["--auth-token-file", str(secured.token_file("coordinator"))]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 1}, done.stderr
    assert isinstance(json.loads(done.stdout), list)
