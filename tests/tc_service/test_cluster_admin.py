"""The admin API of a cluster: credentials on every broker that a question is sent on to, TLS, and names in paths."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from pulsar_txn.client import TokenAuthentication
from pulsar_txn.client.authentication import BasicAuthentication
from pulsar_txn.client.inside import Settings, TlsFiles
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable, open_admin, topic_path

Handler = Callable[[web.Request], web.Response]


@pytest.fixture
async def broker() -> AsyncIterator[Callable[..., TestServer]]:
    servers = []

    async def start(handler: Handler, **options: object) -> TestServer:
        async def handle(request: web.Request) -> web.Response:
            return handler(request)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        server = TestServer(app, scheme="https" if options else "http")
        await server.start_server(**options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()


def url_of(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("authentication", "header"),
    [(TokenAuthentication("secret"), "Bearer secret"), (BasicAuthentication("u", "p"), "Basic dTpw"), (None, None)],
)
async def test_credentials_go_to_the_broker_that_a_question_is_sent_on_to(broker, authentication, header) -> None:
    got = []

    def owner(request: web.Request) -> web.Response:
        got.append(request.headers.get("Authorization"))
        return web.json_response({"path": request.raw_path})

    second = await broker(owner)

    def other(request: web.Request) -> web.Response:
        got.append(request.headers.get("Authorization"))
        return web.Response(status=307, headers={"Location": url_of(second) + request.raw_path})

    first = await broker(other)
    async with open_admin(url_of(first), Settings(authentication=authentication)) as admin:
        answer = await admin.get(f"/admin/v2/persistent/{topic_path('persistent://a/b/odd %/?#')}/stats")
    assert answer == {"path": "/admin/v2/persistent/a/b/odd%20%25%2F%3F%23/stats"}
    assert got == [header, header]


async def test_brokers_that_send_a_question_round_in_circles_are_given_up(broker) -> None:
    server = await broker(lambda request: web.Response(status=307, headers={"Location": request.raw_path}))
    async with open_admin(url_of(server), Settings()) as admin:
        with pytest.raises(AdminUnreachable, match="5 times"):
            await admin.get("/x")


async def test_a_refusal_has_the_brokers_reason_and_what_is_no_admin_api_is_said(broker) -> None:
    server = await broker(lambda request: web.json_response({"reason": "no such topic"}, status=404))
    async with open_admin(url_of(server), Settings()) as admin:
        with pytest.raises(AdminRefused, match="404: no such topic"):
            await admin.get("/x")
    server = await broker(lambda request: web.Response(text="<html>"))
    async with open_admin(url_of(server), Settings()) as admin:
        with pytest.raises(AdminUnreachable, match="not a Pulsar admin API"):
            await admin.get("/x")
    with pytest.raises(ValueError, match="write http"):
        async with open_admin("pulsar://h:6650", Settings()):
            pytest.fail("the block was entered")


async def test_with_tls_the_brokers_certificate_is_checked_and_tokens_never_go_out_in_the_clear(broker, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    got: list[str | None] = []

    def plain(request: web.Request) -> web.Response:
        got.append(request.headers.get("Authorization"))
        return web.json_response({})

    in_the_clear = await broker(plain)

    def secure(request: web.Request) -> web.Response:
        if request.path == "/away":
            return web.Response(status=307, headers={"Location": url_of(in_the_clear)})
        return web.json_response({"fine": True})

    server = await broker(secure, ssl=context)
    trusting = Settings(authentication=TokenAuthentication("secret"), tls=TlsFiles(trust_certs_file=tmp_path / "ca.pem"))
    async with open_admin(url_of(server), trusting) as admin:
        assert await admin.get("/x") == {"fine": True}
        with pytest.raises(AdminUnreachable, match="sends us to http:"):
            await admin.get("/away")
    assert got == []
    async with open_admin(url_of(server), Settings()) as admin:
        with pytest.raises(AdminUnreachable, match=r"(?i)certificate"):
            await admin.get("/x")
