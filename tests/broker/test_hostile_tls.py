"""The ports with TLS under clients that do not shake hands: bounded in time and number, and nobody else is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector
from credentials import TOKENS, Papers, token
from second_addresses import WAYS, reached

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.base.settings import BrokerConfig, ConfigError
from pulsar_txn.broker.server import Standalone, check_security
from pulsar_txn.client import AsyncClient, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.errors import AuthenticationError, ConnectionLost, PulsarError
from pulsar_txn.wire.frames import command

PLAIN = {"broker_service_port": 0, "broker_service_port_tls": 0, "number_of_transaction_coordinators": 1}


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@contextlib.asynccontextmanager
async def broker_of(papers: Papers, **config: Any) -> AsyncIterator[Standalone]:
    async with Standalone(config=BrokerConfig(**(PLAIN | papers.keys | config))) as broker:
        yield broker


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def ended(reader: asyncio.StreamReader, seconds: float = 20) -> bytes:
    """What came until the other side closed."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), seconds)
    return b""


async def works(url: str, papers: Papers, **options: Any) -> None:
    async with AsyncClient(url, **({"tls_trust_certs_file": papers.trust, "operation_timeout": 20} | options)) as client:
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            await producer.send(b"x" * 200_000, txn=txn)


async def test_both_ports_serve_and_each_client_stays_on_its_own(papers: Papers) -> None:
    async with broker_of(papers) as broker:
        await works(broker.service_url, papers)
        await works(broker.service_url_tls, papers)
        await works(broker.service_url_tls.replace("127.0.0.1", "localhost"), papers)


async def test_plain_bytes_on_the_port_with_tls_and_the_other_way_round(papers: Papers) -> None:
    async with broker_of(papers) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls))
        writer.write(command("connect", client_version="x", protocol_version=21))
        assert b"pulsar-txn" not in await ended(reader)
        writer.close()
        with pytest.raises(ConnectionLost, match="TLS"):
            await works(broker.service_url.replace("pulsar:", "pulsar+ssl:"), papers, operation_timeout=1)
        await works(broker.service_url_tls, papers)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_of_tls_are_refused(papers: Papers, version: ssl.TLSVersion) -> None:
    async with broker_of(papers) as broker:
        context = ssl.create_default_context(cafile=papers.trust)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls), ssl=context)


@pytest.mark.parametrize("ciphers", ["eNULL:@SECLEVEL=0", "aNULL:@SECLEVEL=0"])
async def test_ciphers_that_keep_nothing_secret_are_refused(papers: Papers, ciphers: str) -> None:
    context = ssl.create_default_context(cafile=papers.trust)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    async with broker_of(papers) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls), ssl=context)


async def test_a_handshake_that_never_ends_is_ended(papers: Papers) -> None:
    async with broker_of(papers, incomplete_frame_timeout_seconds=1) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls))
        writer.write(b"\x16\x03\x01\x02\x00\x01")  # the begin of a ClientHello
        assert broker.broker.limits.connections == 1
        assert await ended(reader) == b""
        assert broker.broker.limits.connections == 0
        writer.close()


async def half_handshakes(port: int, count: int) -> list[socket.socket]:
    loop, sockets = asyncio.get_running_loop(), []
    for _ in range(count):
        each = socket.socket()
        each.setblocking(False)
        sockets.append(each)
        await loop.sock_connect(each, ("127.0.0.1", port))
        await loop.sock_sendall(each, b"\x16\x03\x01\x02\x00\x01")
    return sockets


async def test_half_handshakes_count_as_connections_of_their_address(papers: Papers) -> None:
    limits = {"broker_max_connections_per_ip": 100, "incomplete_frame_timeout_seconds": 3}
    async with broker_of(papers, **limits) as broker:
        sockets = await half_handshakes(port_of(broker.service_url_tls), 500)
        async with asyncio.timeout(20):
            while broker.broker.limits.reached["brokerMaxConnectionsPerIp"] < 400:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
        assert broker.broker.limits.connections == 100
        async with asyncio.timeout(20):
            while broker.broker.limits.connections:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.05)
        await works(broker.service_url_tls, papers)
        for each in sockets:
            each.close()


async def test_half_handshakes_do_not_outlive_the_broker(papers: Papers) -> None:
    async with broker_of(papers) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls))
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        while not broker.broker.limits.connections:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.01)
    assert await ended(reader) == b""
    writer.close()


async def test_what_comes_with_the_end_of_the_handshake_is_not_lost(papers: Papers) -> None:
    async with broker_of(papers) as broker:
        context = ssl.create_default_context(cafile=papers.trust)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker.service_url_tls))
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        tls.write(command("connect", client_version="x", protocol_version=21))
        writer.write(outgoing.read())  # the end of the handshake and CONNECT, in one piece
        answer = b""
        async with asyncio.timeout(20):
            while not answer:
                incoming.write(await reader.read(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer = tls.read(65536)
        assert b"pulsar-txn" in answer
        writer.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_certificate_that_names_nobody_proves_nothing(papers: Papers, way: str) -> None:
    keys = {"authentication_enabled": True, "authentication_providers": "tls"}
    async with broker_of(papers, **keys) as broker:
        with reached(way) as reach:
            plain, tls = reach(broker.service_url), reach(broker.service_url_tls)
            with pytest.raises(AuthenticationError, match="no common name"):
                await works(tls, papers, authentication=TlsAuthentication(*papers.of(None)))
            with pytest.raises(AuthenticationError, match="no certificate"):
                await works(plain, papers, authentication=TlsAuthentication(*papers.of("ann")))
            await works(tls, papers, authentication=TlsAuthentication(*papers.of("ann")))


async def test_a_certificate_that_its_authority_has_revoked_is_not_let_in(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    ann, bob = TlsAuthentication(*papers.of("ann")), TlsAuthentication(*papers.of("bob"))
    keys = {"authentication_enabled": True, "authentication_providers": "tls", "tls_cert_refresh_check_duration_sec": 0}
    crl = papers.revocation_list(papers.folder / "ann.pem")
    async with broker_of(papers, tls_crl_file_path=str(crl), **keys) as broker:
        url = broker.service_url_tls
        with pytest.raises(PulsarError):
            await works(url, papers, authentication=ann, operation_timeout=1)
        await works(url, papers, authentication=bob)
        papers.revocation_list(papers.folder / "ann.pem", papers.folder / "bob.pem")  # read anew, as certificates are
        with pytest.raises(PulsarError):
            await works(url, papers, authentication=bob, operation_timeout=1)
        papers.revocation_list(days=-1)
        with pytest.raises(PulsarError):  # out of date: nobody knows
            await works(url, papers, authentication=bob, operation_timeout=1)
        papers.revocation_list()
        await works(url, papers, authentication=ann)
        other = tmp_path / "other"
        other.mkdir()
        papers.revocation_list(by=Papers(other))
        with pytest.raises(PulsarError):  # of another authority
            await works(url, papers, authentication=ann, operation_timeout=1)


@pytest.mark.parametrize(
    ("crl", "keys", "sentence"),
    [
        ("crl.pem", {"tls_trust_certs_file_path": None}, "tlsCrlFilePath needs tlsTrustCertsFilePath"),
        ("ca.pem", {}, "must have revocation lists"),
        ("both.pem", {}, "and no certificates"),
        ("server.key", {}, "tlsCrlFilePath cannot be used"),
        ("not.there", {}, "tlsCrlFilePath cannot be used: .*No such file"),
    ],
)
def test_a_file_that_has_no_list_is_refused(tmp_path: Path, crl: str, keys: dict[str, Any], sentence: str) -> None:
    papers = Papers(tmp_path)
    (tmp_path / "o").mkdir()
    Papers(tmp_path / "o")
    both = papers.revocation_list().read_bytes() + (tmp_path / "o" / "ca.pem").read_bytes()
    (tmp_path / "both.pem").write_bytes(both)
    config = BrokerConfig(**(papers.keys | {"broker_service_port_tls": 0, "tls_crl_file_path": str(tmp_path / crl)} | keys))
    with pytest.raises(ConfigError, match=sentence):
        check_security(config)


async def test_a_certificate_can_be_asked_of_everybody(papers: Papers, tmp_path: Path) -> None:
    keys = TOKENS | {"tls_require_trusted_client_cert_on_connect": True}
    async with broker_of(papers, **keys) as broker:
        ann = TokenAuthentication(token())
        with pytest.raises(PulsarError):
            await works(broker.service_url_tls, papers, authentication=ann, operation_timeout=1)
        stranger = Papers(tmp_path).of("ann")
        files = {"tls_certificate_file": stranger[0], "tls_key_file": stranger[1]}
        with pytest.raises(PulsarError):
            await works(broker.service_url_tls, papers, authentication=ann, operation_timeout=1, **files)
        own = papers.of("anybody")
        files = {"tls_certificate_file": own[0], "tls_key_file": own[1]}
        await works(broker.service_url_tls, papers, authentication=ann, **files)


async def test_http_with_tls_bounds_its_handshakes_as_well(papers: Papers) -> None:
    async with broker_of(papers, broker_max_connections_per_ip=50, incomplete_frame_timeout_seconds=2) as broker:
        server = HttpServer(broker.broker, AsyncioRuntime())
        await server.start("127.0.0.1", 0, 0)
        sockets = await half_handshakes(port_of(server.url_tls), 200)
        async with asyncio.timeout(20):
            while broker.broker.limits.reached["brokerMaxConnectionsPerIp"] < 150:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
            while broker.broker.limits.connections:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.05)
        context = ssl.create_default_context(cafile=papers.trust)
        async with ClientSession(connector=TCPConnector(ssl=context)) as session:
            async with session.get(f"{server.url_tls}/admin/v2/brokers/health") as answer:
                assert await answer.text() == "ok"
            async with session.get(f"{server.url}/admin/v2/brokers/leaderBroker") as answer:
                assert (await answer.json())["serviceUrl"] == server.url
        for each in sockets:
            each.close()
        await server.close()
