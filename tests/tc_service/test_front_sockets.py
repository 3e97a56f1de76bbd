"""The front over real sockets: floods that nobody reads, thousands of clients, and TLS on either side."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from coordinator_bench import Bench

from pulsar_txn.broker.serving import AsyncioRuntime
from pulsar_txn.client.inside import AsyncioRuntime as ClientRuntime
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.tc_service.front.front import ClientsFront
from pulsar_txn.wire.frames import FrameReader, command, decode_command

CONNECT = command("connect", client_version="raw", protocol_version=21)
CONNECTED = command("connected", server_version="flood", protocol_version=21)
FLOOD_BYTES = 64 << 20
BUFFERED_BYTES = 16 << 20
"""Those of the system's sockets on loopback, mostly."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


@asynccontextmanager
async def fronted(
    serve: Serve, *, tls: ssl.SSLContext | None = None, cluster: Any = None, **config: Any
) -> AsyncIterator[ClientsFront]:
    """A front whose broker is `serve`, called when the client was let in."""

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await read_frame(reader)
            writer.write(CONNECTED)
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    broker = await asyncio.start_server(let_in, "127.0.0.1", 0, ssl=tls)
    port = broker.sockets[0].getsockname()[1]
    bench = Bench("east", front_service_port=0, broker_max_connections_per_ip=0, **config)
    await bench.start()
    scheme = "pulsar" if tls is None else "pulsar+ssl"
    where = {"east": ClusterConfig(service_url=f"{scheme}://localhost:{port}", **(cluster or {}))}
    front = ClientsFront(bench.service, bench.config, where, AsyncioRuntime(), ClientRuntime())
    await front.start()
    try:
        yield front
    finally:
        await front.close()
        await bench.service.close()
        await bench.store.close()
        broker.close()


async def joined(front: ClientsFront, **tls: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that the broker has let in."""
    url = front.services.service_url_tls if tls else front.services.service_url
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), **tls)
    writer.write(CONNECT)
    assert decode_command(await asyncio.wait_for(read_frame(reader), 10)).HasField("connected")
    return reader, writer


async def no_more(taken: list[int], quiet_seconds: float = 0.5) -> int:
    """The sum once it has not grown for a while: whoever counts is held back."""
    before = -1
    while sum(taken) != before:
        before = sum(taken)
        await asyncio.sleep(quiet_seconds)
    return before


@pytest.mark.timeout(60)
async def test_a_broker_that_floods_a_client_which_does_not_read_is_held_back_and_nothing_is_lost() -> None:
    taken: list[int] = []
    frame = command("error", request_id=1, error=0, message="x" * 65_000)

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while sum(taken) < FLOOD_BYTES:
            writer.write(frame)
            await writer.drain()
            taken.append(len(frame))

    async with fronted(flood) as front:
        reader, writer = await joined(front)
        reader._limit = 1 << 16  # type: ignore[attr-defined]  # so that the test's own end reads no more
        assert 0 < await no_more(taken) < BUFFERED_BYTES
        whole = 0
        while whole < FLOOD_BYTES:
            assert await read_frame(reader) == frame[4:]
            whole += len(frame)
        writer.close()


@pytest.mark.timeout(60)
async def test_a_client_that_floods_a_broker_which_does_not_read_is_held_back_and_nothing_is_lost() -> None:
    go_on, arrived, sent = asyncio.Event(), asyncio.Event(), [0]
    frame = command("error", request_id=1, error=0, message="x" * 65_000)

    async def stand_still(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await go_on.wait()
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _each in range(FLOOD_BYTES // len(frame)):
            assert await read_frame(reader) == frame[4:]
        arrived.set()

    async with fronted(stand_still) as front:
        _, writer = await joined(front)

        async def flood() -> None:
            for _each in range(FLOOD_BYTES // len(frame)):
                writer.write(frame)
                await writer.drain()
                sent.append(len(frame))

        flooding = asyncio.create_task(flood())
        assert 0 < await no_more(sent) < BUFFERED_BYTES
        go_on.set()
        await asyncio.wait_for(arrived.wait(), 30)
        await flooding
        writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        frame = await read_frame(reader)
        writer.write(len(frame).to_bytes(4) + frame)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [300, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_many_clients_work_beside_half_open_ones_and_all_places_are_free_at_the_end(count: int) -> None:
    async with fronted(echo) as front:
        port = int(front.services.service_url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in silent[::2]:
            writer.write(CONNECT[:9])
        clients = []
        for start in range(0, count, 100):
            clients += await asyncio.gather(*(joined(front) for _ in range(start, min(start + 100, count))))
        assert front.limits.connections == 2 * (count + len(silent))

        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said = command("ping") + command("newTxn", request_id=7, txn_ttl_millis=60_000, tc_id=1)
            writer.write(said)
            cut = FrameReader()
            found: list[bytes] = []
            while len(found) < 2:
                found += cut.feed(await reader.read(1000))
            assert {decode_command(each).type for each in found} == {18, 51}

        await asyncio.gather(*(work(*each) for each in clients))
        for _, writer in [*clients, *silent]:
            writer.close()
        async with asyncio.timeout(20):
            while front.limits.connections:  # noqa: ASYNC110 - the system tells the server that they are gone
                await asyncio.sleep(0.01)
        assert not front.connections


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def test_the_coordinators_own_certificate_is_never_shown_for_a_client(authority: trustme.CA, tmp_path: Path) -> None:
    """A broker that takes certificates for roles would take every client for the coordinator, which is a superuser."""
    own = authority.issue_cert("coordinator@example.org")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    seen: list[Any] = []

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert"))
        await reader.read()

    cluster = {
        "tls_trust_certs_file_path": str(tmp_path / "ca.pem"),
        "tls_certificate_file_path": str(tmp_path / "own.pem"),
        "tls_key_file_path": str(tmp_path / "own.pem"),
        "auth_plugin": "tls",
        "auth_params": f"tlsCertFile:{tmp_path / 'own.pem'},tlsKeyFile:{tmp_path / 'own.pem'}",
    }
    async with fronted(look, tls=server_tls(authority, tmp_path), cluster=cluster) as front:
        _, writer = await joined(front)
        writer.close()
    assert not seen[0]


async def test_the_front_speaks_tls_to_clients_and_to_brokers(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("localhost", "127.0.0.1"):
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(tmp_path / "server.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    keys = {
        "front_service_port_tls": 0,
        "tls_certificate_file_path": str(tmp_path / "server.pem"),
        "tls_key_file_path": str(tmp_path / "server.key"),
    }
    cluster = {"tls_trust_certs_file_path": str(tmp_path / "ca.pem")}
    async with fronted(echo, tls=server_tls(authority, tmp_path), cluster=cluster, **keys) as front:
        assert front.services.service_url_tls.startswith("pulsar+ssl://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        reader, writer = await joined(front, ssl=trusting)
        writer.write(command("ping"))
        assert await asyncio.wait_for(read_frame(reader), 10) == command("ping")[4:]
        writer.close()
