"""A broker that asks who comes, judged by the official client, and by our own beside it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as official
import pytest
from credentials import SECRET, Papers, token
from our_broker import OurBroker
from stock_pulsar import free_port

from pulsar_txn import compat
from pulsar_txn.client import AsyncClient, Authentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.errors import PulsarError

pytestmark = pytest.mark.timeout(240)


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
def test_python_clients_prove_who_they_are(guarded: Guarded, topic: str, way: str, kind: str) -> None:
    pulsar: Any = official if kind == "official" else compat
    certificate, key = guarded.papers.of("ann")
    who = (
        pulsar.AuthenticationTLS(str(certificate), str(key))
        if way == "certificate"
        else pulsar.AuthenticationToken(token("ann"))
    )
    tls = {} if way == "token" else {"tls_trust_certs_file_path": str(guarded.papers.trust)}
    url = guarded.service_url if way == "token" else guarded.tls_url
    assert round_trip(pulsar, url, who, topic, **tls) == b"x"


@pytest.mark.parametrize("kind", ["official", "compat"])
def test_python_clients_with_a_wrong_token_are_not_let_in(guarded: Guarded, topic: str, kind: str) -> None:
    pulsar: Any = official if kind == "official" else compat
    who = pulsar.AuthenticationToken(token("ann", key=b"x" * 32))
    with pytest.raises(official.PulsarException if kind == "official" else compat.AuthenticationError):
        round_trip(pulsar, guarded.service_url, who, topic, operation_timeout_seconds=3)


@pytest.mark.parametrize("way", ["token", "certificate"])
async def test_our_client_runs_transactions_in_which_nobody_else_takes_part(guarded: Guarded, topic: str, way: str) -> None:
    def who(role: str) -> Authentication:
        return TokenAuthentication(token(role)) if way == "token" else TlsAuthentication(*guarded.papers.of(role))

    trust = guarded.papers.trust
    async with (
        AsyncClient(guarded.tls_url, authentication=who("ann"), tls_trust_certs_file=trust) as ann,
        AsyncClient(guarded.tls_url, authentication=who("bob"), tls_trust_certs_file=trust) as bob,
    ):
        producer = await ann.create_producer(topic)
        consumer = await bob.subscribe(topic, "s")
        txn = await ann.begin_transaction()
        await producer.send(b"x", txn=txn)
        with pytest.raises(PulsarError):
            await bob.attach_transaction(txn.id).commit()
        await txn.commit()
        assert (await consumer.receive(timeout=20)).data == b"x"
