"""TLS: who is trusted, whose name is checked, what we show ourselves; and servers behind a proxy."""

import asyncio
import ssl

import pytest
import trustme
from fake_broker import FakeBroker, Pipe, fake_client

from pulsar_txn.client import AsyncClient, InitialPosition, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, OperationTimeout
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command


class Socket(Pipe):
    """A fake broker's end of a real connection."""

    def __init__(self, broker, reader, writer):
        super().__init__(broker, None, "socket")
        self.writer = writer
        self.peer = writer.get_extra_info("peercert")
        self.task = asyncio.create_task(self.read(reader))

    async def read(self, reader):
        while data := await reader.read(65536):
            self._to_broker(data)

    def send(self, data):
        self.writer.write(data)

    def cut(self, error=None):
        self.writer.close()


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def trusted(authority, tmp_path):
    """The authority's certificate as a file."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


@pytest.fixture
async def serve(authority):
    """Start a fake broker with TLS on loopback; its certificate is for these names."""
    servers = []

    async def start(*names, client_authority=None, route=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(context)
        context.sni_callback = route
        if client_authority is not None:
            client_authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        broker = FakeBroker()

        def accept(reader, writer):
            broker.pipes.append(Socket(broker, reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        servers.append((server, broker))
        port = server.sockets[0].getsockname()[1]
        broker.address = f"localhost:{port}"
        url = f"pulsar+ssl://{broker.address}"
        broker.on["lookupTopic"] = lambda _pipe, body: command(
            "lookupTopicResponse", request_id=body.request_id, brokerServiceUrlTls=url, response=1, authoritative=True
        )
        return broker, url, port

    yield start
    for server, broker in servers:
        server.close()
        for pipe in broker.pipes:
            pipe.writer.close()
            pipe.task.cancel()


def quick(url, **options):
    return AsyncClient(url, operation_timeout=5, connection_timeout=5, **options)


async def test_a_broker_with_a_certificate_of_a_trusted_authority_is_used(serve, trusted):
    broker, url, _ = await serve("localhost")
    async with quick(url, tls_trust_certs_file=trusted) as client:
        producer = await client.create_producer("t")
        await producer.send(b"hello")
    assert len(broker.all("send")) == 1


async def test_a_context_of_the_programs_own_is_taken_as_it_is(serve, authority):
    _, url, _ = await serve("localhost")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with quick(url, tls_context=context) as client:
        assert await client.get_topic_partitions("t")


async def test_an_unknown_authority_is_refused_at_once_with_what_to_give(serve):
    broker, url, _ = await serve("localhost")
    async with quick(url) as client:
        with pytest.raises(ConnectionLost, match="tls_trust_certs_file") as caught:
            await client.get_topic_partitions("t")
    assert not caught.value.retriable
    assert not broker.got


@pytest.mark.parametrize("names", [["broker.example"], ["127.0.0.2"]])
async def test_a_certificate_of_another_name_is_refused_and_the_hint_says_so(serve, trusted, names):
    broker, url, _ = await serve(*names)
    async with quick(url, tls_trust_certs_file=trusted) as client:
        with pytest.raises(ConnectionLost, match="is in the certificate") as caught:
            await client.get_topic_partitions("t")
    assert not caught.value.retriable
    assert "localhost" in str(caught.value)
    assert not broker.got


async def test_an_address_is_checked_like_a_name(serve, trusted):
    _, _, port = await serve("localhost")
    async with quick(f"pulsar+ssl://127.0.0.1:{port}", tls_trust_certs_file=trusted) as client:
        with pytest.raises(ConnectionLost, match="IP address mismatch"):
            await client.get_topic_partitions("t")


async def test_without_the_check_of_names_only_the_authority_counts(serve, trusted):
    _, url, _ = await serve("broker.example")
    async with quick(url, tls_trust_certs_file=trusted, tls_validate_hostname=False) as client:
        assert await client.get_topic_partitions("t")
    async with quick(url, tls_validate_hostname=False) as client:
        with pytest.raises(ConnectionLost, match="certificate was not accepted"):
            await client.get_topic_partitions("t")


async def test_an_insecure_connection_takes_any_certificate(serve):
    _, url, _ = await serve("broker.example")
    async with quick(url, tls_allow_insecure_connection=True) as client:
        assert await client.get_topic_partitions("t")


async def test_a_token_never_leaves_before_the_broker_has_proven_itself(serve):
    broker, url, _ = await serve("localhost")
    async with quick(url, authentication=TokenAuthentication("secret")) as client:
        with pytest.raises(ConnectionLost):
            await client.get_topic_partitions("t")
    assert not broker.got


@pytest.mark.parametrize("how", ["authentication", "options"])
async def test_a_broker_that_wants_a_certificate_gets_ours(serve, authority, trusted, tmp_path, how):
    broker, url, _ = await serve("localhost", client_authority=authority)
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    own = authority.issue_cert("worker-1@example.org", common_name="worker-1")
    own.cert_chain_pems[0].write_to_path(certificate)
    own.private_key_pem.write_to_path(key)
    files = {"tls_certificate_file": certificate, "tls_key_file": key}
    options = {"authentication": TlsAuthentication(certificate, key)} if how == "authentication" else files
    async with quick(url, tls_trust_certs_file=trusted, **options) as client:
        assert await client.get_topic_partitions("t")
    assert (("commonName", "worker-1"),) in broker.pipes[0].peer["subject"]
    assert broker.all("connect")[0].auth_method_name == ("tls" if how == "authentication" else "")


async def test_a_client_without_the_certificate_that_is_wanted_does_not_hang(serve, authority, trusted):
    _, url, _ = await serve("localhost", client_authority=authority)
    async with quick(url, tls_trust_certs_file=trusted, max_backoff=0.1) as client:
        with pytest.raises((ConnectionLost, OperationTimeout)):
            await client.get_topic_partitions("t")


async def test_a_plain_port_is_recognised(unused_tcp_port):
    async def plain(reader, writer):
        writer.write(b"no TLS here")
        await reader.read()
        writer.close()  # since Python 3.12 a server waits for its connections when it closes

    server = await asyncio.start_server(plain, "127.0.0.1", unused_tcp_port)
    async with server, AsyncClient(f"pulsar+ssl://127.0.0.1:{unused_tcp_port}", operation_timeout=2) as client:
        with pytest.raises(ConnectionLost, match="is this a TLS port"):
            await client.get_topic_partitions("t")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tls_trust_certs_file": "missing-ca.pem"}, "missing-ca.pem"),
        ({"tls_certificate_file": "missing-cert.pem"}, "missing-cert.pem"),
        ({"tls_key_file": "alone.key"}, "alone.key"),
        ({"authentication": TlsAuthentication("other.pem", "other.key")}, "other.pem"),
    ],
)
async def test_files_that_cannot_be_used_are_named_when_the_client_is_made(options, name):
    with pytest.raises(InvalidConfiguration, match=name):
        AsyncClient("pulsar+ssl://localhost", **options)


async def test_a_key_with_a_pass_phrase_is_refused_instead_of_asking_the_terminal(authority, tmp_path):
    from cryptography.hazmat.primitives import serialization

    own = authority.issue_cert("worker@example.org")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    own.cert_chain_pems[0].write_to_path(certificate)
    private = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    key.write_bytes(private.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(InvalidConfiguration, match="pass phrase"):
        AsyncClient("pulsar+ssl://localhost", tls_certificate_file=certificate, tls_key_file=key)


# --- a server with TLS, and proxies -------------------------------------------------------------------------------


@pytest.fixture
async def terminator(authority):
    """Listen with TLS on loopback and hand everything on to a plain address."""
    tasks = set()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    servers = []

    async def copy(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def start(host, port):
        async def accept(reader, writer):
            onward_reader, onward_writer = await asyncio.open_connection(host, port)
            for pair in ((reader, onward_writer), (onward_reader, writer)):
                tasks.add(asyncio.create_task(copy(*pair)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        servers.append(server)
        return f"pulsar+ssl://localhost:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_transactions_through_tls_on_our_broker(terminator, trusted, topic):
    from pulsar_txn.broker import Standalone

    async with Standalone() as standalone:
        host, _, port = standalone.service_url.removeprefix("pulsar://").partition(":")
        url = await terminator(host, int(port))
        async with quick(url, tls_trust_certs_file=trusted) as client:
            # The broker names its plain address; whoever puts TLS in front of it makes it say the front's.
            lookup = core_of(client).lookup
            lookup._target = lambda _answer: (lookup._addresses[0], lookup._addresses[0])
            consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
            producer = await client.create_producer(topic)
            async with client.transaction() as txn:
                await producer.send(b"x" * 100_000, txn=txn)
            assert (await consumer.receive(timeout=5)).data == b"x" * 100_000


async def test_a_proxy_that_routes_by_sni_gets_every_connection_with_the_brokers_name(authority, trusted, serve):
    """PIP-60: the brokers' names lead nowhere from here; each has a certificate of its own, which is checked."""
    asked = []
    contexts = {}
    for name in ("broker-1.example", "broker-2.example"):
        contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(contexts[name])

    def route(connection, name, _context):
        asked.append(name)
        connection.context = contexts[name]

    broker, _, port = await serve("proxy.example", route=route)
    broker.on["lookupTopic"] = lambda _pipe, body: command(
        "lookupTopicResponse",
        request_id=body.request_id,
        brokerServiceUrlTls="pulsar+ssl://broker-2.example:6651",
        response=1,
        authoritative=True,
    )
    options = {"tls_trust_certs_file": trusted, "sni_proxy_url": f"pulsar+ssl://127.0.0.1:{port}"}
    async with quick("pulsar+ssl://broker-1.example:6651", **options) as client:
        producer = await client.create_producer("t")
        await producer.send(b"x")
    assert asked == ["broker-1.example", "broker-2.example"]
    assert [connect.proxy_to_broker_url for connect in broker.all("connect")] == ["", ""]


async def test_a_proxy_that_routes_by_sni_is_no_way_around_tls():
    async with quick("pulsar://localhost:6650", sni_proxy_url="pulsar+ssl://127.0.0.1:1") as client:
        with pytest.raises(InvalidConfiguration, match="needs TLS"):
            await client.create_producer("t")


async def test_a_broker_behind_a_proxy_is_reached_through_it_and_the_proxy_is_told_where_to():
    proxy = FakeBroker("proxy:6650")
    proxy.on["lookupTopic"] = lambda _pipe, body: command(
        "lookupTopicResponse",
        request_id=body.request_id,
        brokerServiceUrl="pulsar://inner:6650",
        response=1,
        authoritative=True,
        proxy_through_service_url=True,
    )
    async with fake_client(proxy, authentication=TokenAuthentication("t")) as client:
        producer = await client.create_producer("t")
        await producer.send(b"x")
    assert [pipe.address for pipe in proxy.pipes] == ["proxy:6650", "proxy:6650"]
    assert [(connect.proxy_to_broker_url, connect.auth_data) for connect in proxy.all("connect")] == [
        ("", b"t"),
        ("inner:6650", b"t"),
    ]
