"""A broker that asks who comes, judged by official clients and tools, and by our own client beside them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as official
import pytest
import stock_install
import targets
from credentials import SECRET, Papers, token
from our_broker import OurBroker
from second_addresses import WAYS, Reach, reached
from stock_pulsar import free_port

from pulsar_txn import compat
from pulsar_txn.client import EARLIEST_ID, AsyncClient, ConsumerType, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication
from pulsar_txn.client.errors import PulsarError

pytestmark = pytest.mark.timeout(240)

TOOL_VERSION = "4.0.8"
TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


class Guarded(OurBroker):
    """A broker with all four ports, tokens and certificates; the operator is `root`."""

    def __init__(self, folder: Path) -> None:
        self.papers = Papers(folder)
        self.tls_port, self.https_port = free_port(), free_port()
        secret = folder / "secret.key"
        secret.write_bytes(SECRET)
        conf = {
            "brokerServicePortTls": str(self.tls_port),
            "webServicePortTls": str(self.https_port),
            "tlsCertificateFilePath": str(self.papers.server[0]),
            "tlsKeyFilePath": str(self.papers.server[1]),
            "tlsTrustCertsFilePath": str(self.papers.trust),
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,tls",
            "tokenSecretKey": f"file://{secret}",
            "superUserRoles": "root",
            "numberOfTransactionCoordinators": "4",
        }
        super().__init__(conf=conf)

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.tls_port}"

    @property
    def https_url(self) -> str:
        return f"https://127.0.0.1:{self.https_port}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/guarded-{uuid.uuid4().hex[:10]}"


@pytest.fixture(params=WAYS)
def reach(request: pytest.FixtureRequest) -> Iterator[Reach]:
    """Each test here runs by the advertised address, by another name of the host, and through a tunnel."""
    with reached(request.param) as reach:
        yield reach


def round_trip(pulsar: Any, url: str, authentication: Any, topic: str, **options: Any) -> bytes:
    """A message of the official client, or of what has its names."""
    client = pulsar.Client(url, authentication=authentication, **({"operation_timeout_seconds": 20} | options))
    try:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(topic).send(b"x")
        return bytes(consumer.receive(20_000).data())
    finally:
        client.close()


@pytest.mark.parametrize("kind", ["official", "compat"])
@pytest.mark.parametrize("way", ["token", "token over TLS", "certificate"])
def test_python_clients_prove_who_they_are(guarded: Guarded, topic: str, way: str, kind: str, reach: Reach) -> None:
    pulsar: Any = official if kind == "official" else compat
    certificate, key = guarded.papers.of("ann")
    who = (
        pulsar.AuthenticationTLS(str(certificate), str(key))
        if way == "certificate"
        else pulsar.AuthenticationToken(token("ann"))
    )
    tls = {} if way == "token" else {"tls_trust_certs_file_path": str(guarded.papers.trust)}
    url = guarded.service_url if way == "token" else guarded.tls_url
    assert round_trip(pulsar, reach(url), who, topic, **tls) == b"x"


@pytest.mark.parametrize("kind", ["official", "compat"])
def test_python_clients_with_a_wrong_token_are_not_let_in(guarded: Guarded, topic: str, kind: str, reach: Reach) -> None:
    pulsar: Any = official if kind == "official" else compat
    who = pulsar.AuthenticationToken(token("ann", key=b"x" * 32))
    with pytest.raises(official.PulsarException if kind == "official" else compat.AuthenticationError):
        round_trip(pulsar, reach(guarded.service_url), who, topic, operation_timeout_seconds=2)


@pytest.mark.parametrize("way", ["token", "certificate"])
async def test_our_client_runs_transactions_in_which_nobody_else_takes_part(
    guarded: Guarded, topic: str, way: str, reach: Reach
) -> None:
    def who(role: str) -> Authentication:
        return TokenAuthentication(token(role)) if way == "token" else TlsAuthentication(*guarded.papers.of(role))

    trust, url = guarded.papers.trust, reach(guarded.tls_url)
    async with (
        AsyncClient(url, authentication=who("ann"), tls_trust_certs_file=trust) as ann,
        AsyncClient(url, authentication=who("bob"), tls_trust_certs_file=trust) as bob,
    ):
        producer = await ann.create_producer(topic)
        consumer = await bob.subscribe(topic, "s")
        txn = await ann.begin_transaction()
        await producer.send(b"x", txn=txn)
        with pytest.raises(PulsarError):
            await bob.attach_transaction(txn.id).commit()
        await txn.commit()
        assert (await consumer.receive(timeout=20)).data == b"x"


# ---- Java


def stock_home() -> Path:
    if reason := stock_install.missing_tools():
        targets.lacking("pulsar", reason)
    return stock_install.install(TOOL_VERSION)


def tool(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = {"PULSAR_MEM": "-Xmx256m", "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    name, *rest = arguments
    return subprocess.run(
        [home / "bin" / name, *rest], env=os.environ | small, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.stock
def test_java_proves_who_it_is_through_a_tunnel(guarded: Guarded, topic: str) -> None:
    with reached("tunnel") as reach:
        who = ["--auth-plugin", TOKEN_PLUGIN, "--auth-params", f"token:{token('ann')}", "--tlsTrustCertsFilePath"]
        options = ["--url", reach(guarded.tls_url), *who, str(guarded.papers.trust)]
        made = tool(stock_home(), "pulsar-client", *options, "produce", "-m", "through a tunnel", topic)
    assert "1 messages successfully produced" in made.stdout + made.stderr


@pytest.mark.stock
@pytest.mark.soak
async def test_java_runs_transactions_with_a_token_over_tls_and_operators_administrate(
    guarded: Guarded, topic: str, reach: Reach
) -> None:
    home = await asyncio.to_thread(stock_home)
    service_url, admin_url = reach(guarded.tls_url), reach(guarded.https_url)

    async def admin(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        who = ("--auth-plugin", TOKEN_PLUGIN, "--auth-params", f"token:{token(role)}")
        trust = ("--tls-trust-cert-path", str(guarded.papers.trust))
        return await asyncio.to_thread(tool, home, "pulsar-admin", "--admin-url", admin_url, *who, *trust, *arguments)

    refused = await admin("ann", "topics", "create", topic)
    assert refused.returncode
    assert "superUserRoles" in refused.stderr + refused.stdout
    made = await admin("root", "topics", "create", topic)
    assert made.returncode == 0, made.stderr + made.stdout

    async with AsyncClient(guarded.service_url, authentication=TokenAuthentication(token("ann"))) as client:
        await (await client.subscribe(topic, "sub", consumer_type=ConsumerType.SHARED)).close()
        producer = await client.create_producer(topic, batching=False)
        for number in range(60):
            await producer.send(b"%d" % number)
    options = f"-threads 1 -ntxn 20 -nmc 1 -nmp 2 -tto 20 -u {service_url}".split()
    who = ["--auth-plugin", TOKEN_PLUGIN, "--auth-params", f"token:{token('ann')}"]
    files = ["--trust-cert-file", str(guarded.papers.trust), "--topics-c", topic, "--topics-p", f"{topic}-out"]
    ran = await asyncio.to_thread(tool, home, "pulsar-perf", "transaction", *options, *who, *files)
    assert ran.returncode == 0, ran.stderr[-1000:] + ran.stdout[-2000:]
    listed = await admin("root", "transactions", "coordinators-list")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count(guarded.service_url) == 4
    async with AsyncClient(guarded.service_url, authentication=TokenAuthentication(token("ann"))) as client:
        reader = await client.create_reader(f"{topic}-out", EARLIEST_ID)
        seen = 0
        while await reader.has_message_available():
            await reader.read_next(timeout=20)
            seen += 1
    assert seen == 40, "twenty transactions with two messages each"
