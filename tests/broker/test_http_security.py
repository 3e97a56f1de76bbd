"""Who may do what over HTTP when the broker asks who comes: operators everything, other roles read, nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector
from credentials import TOKENS, Papers, Speaker, nested, token, unsigned
from second_addresses import WAYS, reached

from pulsar_txn.broker.admin.routes import make_app
from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.runtime import AsyncioRuntime

TOPICS = "/admin/v2/persistent/public/default"
TXNS = "/admin/v3/transactions"
GUARDED = TOKENS | {"super_user_roles": "root"}


class Http:
    """Requests to one broker's HTTP port, each with the token of a role."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self.url = url
        self._session = session

    async def __call__(self, method: str, path: str, role: str | None = None, **options: Any) -> tuple[int, Any]:
        headers = options.pop("headers", {})
        if role is not None:
            headers = {"Authorization": f"Bearer {token(role)}"} | headers
        async with self._session.request(method, self.url + path, headers=headers, **options) as answer:
            return answer.status, await (answer.json() if answer.content_type == "application/json" else answer.text())


@pytest.fixture
async def bench(benches: Any) -> Any:
    return await benches(**GUARDED).start()


@pytest.fixture(params=WAYS)
async def http(bench: Any, request: pytest.FixtureRequest) -> AsyncIterator[Http]:
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    with reached(request.param) as reach:
        async with ClientSession() as session:
            yield Http(reach(server.url), session)
    await server.close()


def refusals() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("say who you are", {}),
        ("this kind of Authorization is not known here", {"Authorization": "Basic YW5uOnNlY3JldA=="}),
        ("no token was given", {"Authorization": "Bearer "}),
        ("the token is not valid", {"Authorization": f"Bearer {unsigned()}"}),
        ("the token is not valid", {"Authorization": f"Bearer {token(key=b'x' * 32)}"}),
        ("the token is not valid", {"Authorization": "Bearer tökén"}),
        ("the token has expired", {"Authorization": f"Bearer {token(exp=1)}"}),
        ("no claim 'sub'", {"Authorization": f"Bearer {token(None)}"}),
        ("a proxy cannot speak", {"Authorization": f"Bearer {token('root')}", "X-Original-Principal": "ann"}),
    ]


async def test_the_role_is_in_the_claim_that_a_key_names(benches: Any) -> None:
    bench = await benches(**GUARDED, token_auth_claim="user").start()
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    async with ClientSession() as session:
        http = Http(server.url, session)
        by_user, by_subject = ({"Authorization": f"Bearer {each}"} for each in (token(None, user="root"), token("root")))
        status, answer = await http("GET", TOPICS, headers=by_subject)
        assert (status, "no claim 'user'" in answer["reason"]) == (401, True)
        assert (await http("GET", TOPICS, headers=by_user))[0] == 200
    await server.close()


@pytest.mark.parametrize(("sentence", "headers"), refusals())
@pytest.mark.parametrize(("method", "path"), [("GET", TOPICS), ("PUT", f"{TOPICS}/t"), ("GET", "/nothing/here")])
async def test_who_does_not_say_who_they_are_gets_nothing(
    http: Http, method: str, path: str, sentence: str, headers: dict[str, str]
) -> None:
    status, answer = await http(method, path, headers=headers)
    assert status == 401
    assert sentence in answer["reason"]
    assert not any(value.partition(" ")[2] in answer["reason"] for value in headers.values() if value.partition(" ")[2])


async def test_a_head_that_no_parser_can_follow_is_refused(bench: Any, http: Http) -> None:
    speaker = Speaker(bench.broker, nested())
    await speaker.until(lambda: speaker.refused)
    assert speaker.refused == "the token is not valid"


async def test_operators_change_things_and_other_roles_look_at_them(http: Http) -> None:
    assert (await http("PUT", f"{TOPICS}/t", "ann"))[0] == 403
    assert await http("GET", TOPICS, "ann") == (200, [])
    assert (await http("PUT", f"{TOPICS}/t", "root"))[0] == 204
    assert await http("GET", TOPICS, "ann") == (200, ["persistent://public/default/t"])
    assert (await http("DELETE", f"{TOPICS}/t", "ann"))[0] == 403
    assert (await http("DELETE", f"{TOPICS}/t", "root"))[0] == 204


READ_BY_ROLES = {"GET"}
OPEN = {"/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/metrics", "/metrics/"}
OWN = {f"{TXNS}/{each}Transaction/{{most}}/{{least}}" for each in ("abort", "commit", "resume")}


async def test_every_path_asks_who_comes_and_every_change_is_for_operators(bench: Any, http: Http) -> None:
    app = make_app(bench.broker)
    seen = 0
    for route in app.router.routes():
        path = route.resource.canonical if route.resource else ""
        if route.method == "HEAD":
            continue
        asked = path.replace("{most}", "0").replace("{least}", "9").replace("{", "").replace("}", "")
        expected = 200 if path in OPEN else 401
        assert (await http(route.method, asked))[0] == expected, path
        may = route.method in READ_BY_ROLES and "/functions" not in path
        if not may and path not in OWN:
            assert (await http(route.method, asked, "ann"))[0] == 403, path
        seen += 1
    assert seen > 60


async def test_metrics_ask_as_well_when_they_are_told_to(benches: Any) -> None:
    bench = await benches(**GUARDED, authenticate_metrics_endpoint=True).start()
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    async with ClientSession() as session:
        http = Http(server.url, session)
        assert (await http("GET", "/metrics"))[0] == 401
        assert (await http("GET", "/metrics", "ann"))[0] == 200
    await server.close()


async def test_a_body_is_not_read_before_it_is_known_who_sends_it(http: Http) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(http.url.rpartition(":")[2]))
    writer.write(f"PUT {TOPICS}/t/partitions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_transactions_of_other_roles_do_not_exist(bench: Any, http: Http) -> None:
    ann = Speaker(bench.broker, token("ann"))
    txn = await ann.new_txn()
    one, abort = f"{TXNS}/transactionMetadata/{txn.most}/{txn.least}", f"{TXNS}/abortTransaction/{txn.most}/{txn.least}"
    for method, path in (("GET", one), ("POST", abort)):
        unknown = await http(method, path.replace(f"/{txn.most}/{txn.least}", f"/{txn.most}/4711"), "bob")
        status, answer = await http(method, path, "bob")
        assert (status, answer["reason"].replace(f",{txn.least})", ",4711)")) == (404, unknown[1]["reason"])
    assert await http("GET", f"{TXNS}/slowTransactions/0", "bob") == (200, {})
    assert list((await http("GET", f"{TXNS}/slowTransactions/0", "ann"))[1]) == [f"({txn.most},{txn.least})"]
    assert (await http("GET", one, "ann"))[1]["owner"] == "ann"
    assert (await http("GET", one, "root"))[0] == 200
    assert (await http("POST", abort, "ann"))[0] == 204
    assert (await http("GET", one, "root"))[0] == 404


async def test_operators_abort_what_any_role_has_begun(bench: Any, http: Http) -> None:
    txn = await Speaker(bench.broker, token("ann")).new_txn()
    assert (await http("POST", f"{TXNS}/abortTransaction/{txn.most}/{txn.least}", "root"))[0] == 204
    assert await http("GET", f"{TXNS}/slowTransactions/0", "root") == (200, {})


# ---- TLS


@pytest.mark.parametrize("way", WAYS)
async def test_a_certificate_says_who_comes_over_https(benches: Any, tmp_path: Path, way: str) -> None:
    papers = Papers(tmp_path)
    keys = {"authentication_enabled": True, "authentication_providers": "tls", "super_user_roles": "root"}
    bench = await benches(**keys, **papers.keys).start()
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", None, 0)
    assert server.url == server.url_tls
    by = contextlib.ExitStack()
    url = by.enter_context(reached(way))(server.url)

    async def ask(role: str | None, method: str, path: str, named: bool = True) -> int:
        context = ssl.create_default_context(cafile=papers.trust)
        if role is not None or not named:
            context.load_cert_chain(*papers.of(role))
        async with ClientSession(connector=TCPConnector(ssl=context)) as session:
            return (await Http(url, session)(method, path))[0]

    assert await ask("root", "PUT", f"{TOPICS}/t") == 204
    assert await ask("ann", "PUT", f"{TOPICS}/u") == 403
    assert await ask("ann", "GET", TOPICS) == 200
    assert await ask(None, "GET", TOPICS) == 401
    assert await ask(None, "GET", TOPICS, named=False) == 401
    by.close()
    await server.close()
