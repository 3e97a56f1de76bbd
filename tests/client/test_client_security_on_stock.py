"""A stock server that checks who connects: tokens, basic and certificates, over TLS and plain; one server for all."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jwt
import pytest
import trustme
from compat_official import Official
from compat_programs import SECURED
from cryptography.hazmat.primitives import serialization
from stock_pulsar import StockPulsar, free_port

from pulsar_txn import compat
from pulsar_txn.client import AsyncClient, InitialPosition, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication, BasicAuthentication
from pulsar_txn.client.errors import AuthenticationError, ConnectionLost
from pulsar_txn.client.txn.transactions import core_of

pytestmark = [pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(300)]

KEY = b"k" * 32
HTPASSWD = b"ann:$apr1$abcdefgh$M2T3erDstkD7SsE2QQnfH0\n"  # the password is s3cret
PROVIDERS = ("Token", "Basic", "Tls")


class Secured(NamedTuple):
    url: str
    tls_url: str
    authority: Path
    certificate: Path
    key: Path
    token: str


def token(life: float | None = None, secret: bytes = KEY) -> str:
    claims: dict[str, object] = {"sub": "admin"}
    return jwt.encode(claims | ({} if life is None else {"exp": int(time.time() + life)}), secret, "HS256")


def data_url(content: bytes) -> str:
    return f"data:;base64,{base64.b64encode(content).decode()}"


def write_pair(folder: Path, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
    """Certificate and key as files; the key in the form that Java reads (PKCS 8)."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem, form, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(pem, form, plain))
    return certificate, key


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    authority_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(authority_file)
    server_pair = write_pair(folder, "server", authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA))
    own = authority.issue_cert("worker@example.org", common_name="worker", key_type=trustme.KeyType.RSA)
    client_pair = write_pair(folder, "client", own)
    tls_port = free_port()
    conf = {
        "authenticationEnabled": "true",
        "authenticationProviders": ",".join(
            f"org.apache.pulsar.broker.authentication.AuthenticationProvider{name}" for name in PROVIDERS
        ),
        "tokenSecretKey": data_url(KEY),
        "basicAuthConf": data_url(HTPASSWD),
        "authenticationRefreshCheckSeconds": "1",
        "brokerServicePortTls": str(tls_port),
        "tlsCertificateFilePath": str(server_pair[0]),
        "tlsKeyFilePath": str(server_pair[1]),
        "tlsTrustCertsFilePath": str(authority_file),
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token()}",
        "anonymousUserRole": "anonymous",  # what the fixture asks over HTTP while the server starts
    }
    with StockPulsar("4.2.4", conf=conf) as server:
        yield Secured(server.service_url, f"pulsar+ssl://127.0.0.1:{tls_port}", authority_file, *client_pair, token())


async def works(client: AsyncClient, topic: str) -> None:
    """A transaction with a send and an acknowledgement goes through."""
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    producer = await client.create_producer(topic)
    await producer.send(b"in")
    async with client.transaction() as txn:
        await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
        await producer.send(b"out", txn=txn)
    assert (await consumer.receive(timeout=20)).data == b"out"


async def test_a_token_that_runs_out_is_replaced_while_the_connection_lives(secured: Secured, topic: str) -> None:
    made: list[str] = []

    def fresh() -> str:
        made.append(token(life=4))
        return made[-1]

    async with AsyncClient(secured.url, authentication=TokenAuthentication(fresh)) as client:
        producer = await client.create_producer(topic)
        connections = core_of(client).pool.current()
        async with asyncio.timeout(30):
            while len(made) < 3:
                await producer.send(b"x")
                await asyncio.sleep(0.2)
        assert core_of(client).pool.current() == connections
        await works(client, f"{topic}-work")


@pytest.mark.parametrize("method", ["token", "basic", "certificate"])
async def test_over_tls_every_method_is_taken(secured: Secured, topic: str, method: str) -> None:
    methods: dict[str, Authentication] = {
        "token": TokenAuthentication(token()),
        "basic": BasicAuthentication("ann", "s3cret"),
        "certificate": TlsAuthentication(secured.certificate, secured.key),
    }
    async with AsyncClient(secured.tls_url, authentication=methods[method], tls_trust_certs_file=secured.authority) as client:
        await works(client, f"{topic}-work")


@pytest.mark.parametrize(
    "wrong", [TokenAuthentication(token(secret=b"x" * 32)), BasicAuthentication("ann", "wrong"), TlsAuthentication()]
)
async def test_wrong_credentials_are_refused_with_a_typed_error(secured: Secured, topic: str, wrong: Authentication) -> None:
    async with AsyncClient(secured.tls_url, authentication=wrong, tls_trust_certs_file=secured.authority) as client:
        with pytest.raises(AuthenticationError):
            await client.create_producer(topic)


async def test_the_name_in_the_servers_certificate_is_checked(secured: Secured, topic: str) -> None:
    url = secured.tls_url.replace("127.0.0.1", "localhost")
    async with AsyncClient(url, authentication=TokenAuthentication(token()), tls_trust_certs_file=secured.authority) as client:
        with pytest.raises(ConnectionLost, match="is in the certificate"):
            await client.create_producer(topic)


@pytest.mark.parametrize("name", SECURED)
def test_a_program_of_the_official_client_runs_unchanged_where_it_has_to_say_who_it_is(
    secured: Secured, topic: str, name: str, official_says: Official
) -> None:
    theirs = official_says(name, secured, lambda: f"{topic}-{uuid.uuid4().hex[:12]}")
    assert repr(SECURED[name](compat, secured, topic)) == theirs()
