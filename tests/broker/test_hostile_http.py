"""Hostile requests over HTTP: every route with values that make no sense is answered with 4xx and a sentence.

PULSAR_TXN_FUZZ_REQUESTS sets the number; the seeds are fixed, so that a failure comes again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
from admin_client import Admin
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestClient, TestServer
from mutations import mutate
from raw_client import RawClient
from yarl import URL

from pulsar_txn.broker.admin import function_questions
from pulsar_txn.broker.admin.routes import make_app
from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.runtime import AsyncioRuntime

REQUESTS = int(os.environ.get("PULSAR_TXN_FUZZ_REQUESTS", "3000"))
SEEDS = 3
TOPICS = "/admin/v2/persistent/public/default"
GOOD = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "coordinator": "0",
    "most": "0",
    "least": "0",
    "timeout": "0",
    "ledger": "0",
    "entry": "0",
    "place": "1",
}
"""What a path may name, where there is such a thing."""

WORDS = [
    "",
    "%00",
    "a%0Ab",
    "%7F",
    "%C2%85",
    "%FF",
    "%ED%A0%80",
    "%2E%2E",
    "..",
    ".",
    "%2F",
    "a%2Fb",
    "%25",
    "%",
    "*",
    "'",
    '"',
    "null",
    "true",
    "-",
    "-1",
    "0",
    "1",
    "+1",
    "1.5",
    "1e9",
    "1_0",
    "%201",
    "%D9%A3",
    "0x1",
    "NaN",
    str(2**31),
    str(2**63 - 1),
    str(2**63),
    str(-(2**63)),
    str(2**64),
    "9" * 300,
    "9" * 4400,
    "a" * 3000,
    "%F0%9F%92%A5",
    "t-partition-0",
    "t-partition-99999999999",
    "p",
    "p-partition-0",
    "p-partition-9",
    "__change_events",
    "transaction_coordinator_assign",
    "t-s__transaction_pending_ack",
]
BODIES = [
    b"",
    b"\xff\xfe",
    b"\0",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"NaN",
    b"-1",
    b"0",
    b"3",
    b"1.5",
    b"1e400",
    b"9" * 5000,
    str(2**63).encode(),
    b'"latest"',
    b'"earliest"',
    b"earliest",
    b'"x"',
    b'{"ledgerId":-1,"entryId":-1}',
    b'{"ledgerId":"0","entryId":0}',
    b'{"ledgerId":0}',
    b'{"ledgerId":1e3,"entryId":true}',
    b'{"ledgerId":-5,"entryId":1}',
    b'{"ledgerId":%d,"entryId":%d}' % (2**70, 2**70),
    b'{"ledgerId":9223372036854775807,"entryId":9223372036854775807}',
    b'{"ledgerId":0,"entryId":0}',
    b"[0,0]",
    b'{"active":1}',
    b'{"active":true,"tickTime":1e99,"maxDeliveryDelayInMillis":-5}',
    b'{"active":true,"tickTime":%d,"maxDeliveryDelayInMillis":%d}' % (2**80, 2**80),
    b'{"encryption_required":"yes"}',
    b'{"delayed_delivery_policies":[]}',
    b'{"delayed_delivery_policies":{"active":null}}',
    b"x" * 1_100_000,
]
QUERIES = [
    "",
    "force=true",
    "force=%00",
    "timeout=1&timeout=2",
    "coordinatorId=",
    "limit=0",
    "limit=-1",
    "limit=x",
    "limit=3",
    "after=%FF",
    "after=%00",
    "lowWaterMarks=true",
    "batchIndex=9",
    "perPartition=false",
    "batchIndex=-99",
    "a=b;c=d",
]


@pytest.fixture
async def http(bench: Any) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(make_app(bench.broker))) as client:
        yield client


def coded(name: str, rnd: random.Random) -> str:
    word = rnd.choice(WORDS)
    if name in {"coordinator", "most", "least", "timeout", "ledger", "entry", "place"} and rnd.random() < 0.5:
        return word or "0"
    return word or "x"


def some_path(pattern: str, rnd: random.Random) -> str:
    """One path of a route: each part mostly good, sometimes hostile."""
    hostile = rnd.random()
    return re.sub(
        r"\{(\w+)(?::[^}]*)?\}",
        lambda found: coded(found[1], rnd) if rnd.random() < hostile and found[1] != "domain" else GOOD.get(found[1], "x"),
        pattern,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_route_answers_nonsense_with_a_sentence_and_never_breaks(
    http: TestClient[Any, Any],
    bench: Any,
    client: RawClient,
    seed: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(function_questions, "WAIT_SECONDS", 0.05)  # a worker fetches questions; there are none here
    rnd = random.Random(seed)
    await client.producer("t")
    for each in range(3):
        await client.sent(b"%d" % each)
    await client.subscribe("t", "s", kind=1)
    routes = sorted({(route.method, route.resource.canonical) for route in http.app.router.routes() if route.resource})
    statuses: dict[str, set[int]] = {}
    patterns = {(method, canonical): formatter for method, canonical, formatter in _formatters(http.app)}
    for _ in range(REQUESTS // SEEDS):
        method, canonical = rnd.choice(routes)
        path = some_path(patterns[method, canonical], rnd)
        query = rnd.choice(QUERIES)
        if "partitions" in canonical and method in {"PUT", "POST"} and rnd.random() < 0.5:
            path = path.replace("/t/partitions", "/p/partitions")
        url = URL(str(http.make_url("/")).rstrip("/") + path + (f"?{query}" if query else ""), encoded=True)
        headers = {
            "Content-Type": rnd.choice(["application/json", "text/plain; charset=nothing", "application/json; charset=utf-16"])
        }
        async with http.session.request(method, url, data=rnd.choice(BODIES), headers=headers) as answer:
            text = await answer.text()
            is_told = answer.status < 500 or answer.status == HTTPStatus.NOT_IMPLEMENTED
            assert is_told, (method, path, query, answer.status, text)
            statuses.setdefault(f"{method} {canonical}", set()).add(answer.status)
            if answer.status >= 400 and len(path) < 8000:  # a longer line is aiohttp's to refuse, in plain text
                assert json.loads(text)["reason"], (method, path, text)
    assert not [each.getMessage() for each in caplog.records if each.name.startswith("pulsar_txn")]
    assert len(statuses) > 0.9 * len(routes)
    seen = set().union(*statuses.values())
    assert {200, 204, 400, 404, 409, 412, 413} <= seen
    assert (await (await http.get("/admin/v2/brokers/health")).text()) == "ok"


def _formatters(app: Any) -> list[tuple[str, str, str]]:
    found = []
    for route in app.router.routes():
        if route.resource is not None:
            info = route.resource.get_info()
            found.append((route.method, route.resource.canonical, info.get("formatter") or info["path"]))
    return found


# ---- who asks


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080", "192.0.2.7:1", "a.localhost", "LOCALHOST"]
)
async def test_a_request_by_a_name_of_this_broker_is_answered(http: TestClient[Any, Any], host: str) -> None:
    async with http.get("/admin/v2/brokers/health", headers={"Host": host}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "[", "a@localhost@b", ""]
)
@pytest.mark.parametrize("path", ["/admin/v2/brokers/health", "/metrics", "/nothing", TOPICS])
async def test_a_request_by_a_foreign_name_is_refused(http: TestClient[Any, Any], host: str, path: str) -> None:
    async with http.get(path, headers={"Host": host}) as answer:
        assert answer.status in {400, 403}
        if answer.status == 403:
            assert "webServiceAllowedHosts" in (await answer.json())["reason"]


async def test_names_of_the_configuration_are_answered(benches: Any) -> None:
    bench = await benches(advertised_address="Broker.example", web_service_allowed_hosts="one.example, two.example").start()
    async with TestClient(TestServer(make_app(bench.broker))) as http:
        for host, status in (("broker.example:8080", 200), ("two.example", 200), ("three.example", 403)):
            async with http.get("/admin/v2/brokers/health", headers={"Host": host}) as answer:
                assert answer.status == status


async def test_pages_of_other_sites_cannot_ask(http: TestClient[Any, Any], bench: Any) -> None:
    own = f"http://{http.host}:{http.port}"
    for origin, status in ((own, 204), ("http://localhost:3000", 403), ("https://evil.example", 403), ("null", 403)):
        async with http.put(f"{TOPICS}/made", headers={"Origin": origin}) as answer:
            assert answer.status == status
        async with http.delete(f"{TOPICS}/made", headers={"Origin": origin}) as answer:
            assert answer.status == status
    preflight = {"Origin": own, "Access-Control-Request-Method": "PUT"}
    async with http.options(f"{TOPICS}/made", headers=preflight) as answer:
        assert answer.status == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


# ---- what is asked


@pytest.mark.parametrize("name", ["%00", "a%00b", "%0A", "%0D%0Ax", "%7F", "%C2%80"])
async def test_control_characters_in_names_are_refused(
    http: TestClient[Any, Any], bench: Any, client: RawClient, name: str
) -> None:
    for path in (f"{TOPICS}/{name}", f"{TOPICS}/t/subscription/{name}"):
        url = URL(str(http.make_url("/")).rstrip("/") + path, encoded=True)
        async with http.session.put(url) as answer:
            assert answer.status == 400
            assert "control character" in (await answer.json())["reason"]
    assert not bench.broker.topics


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("", 0),
        ('"latest"', 0),
        ("null", 0),
        ('"earliest"', 5),
        ('{"ledgerId":-1,"entryId":-1,"partitionIndex":-1}', 5),
        ('{"ledgerId": 9223372036854775807, "entryId": 9223372036854775807}', 0),
    ],
)
async def test_a_subscription_begins_where_the_body_says(admin: Admin, bench: Any, body: str, left: int) -> None:
    await _five(bench)
    assert await _made_at(admin, body) == (204, left)


async def test_a_subscription_begins_with_the_message_that_the_body_names(admin: Admin, bench: Any) -> None:
    ledger_id, entry_id = (await _five(bench))[2]
    assert await _made_at(admin, json.dumps({"ledgerId": ledger_id, "entryId": entry_id})) == (204, 3)


@pytest.mark.parametrize(
    "body",
    [
        "earliest",
        '"first"',
        "7",
        "[0,0]",
        "{}",
        '{"ledgerId":0}',
        '{"ledgerId":"0","entryId":0}',
        '{"ledgerId":0.5,"entryId":0}',
        '{"ledgerId":true,"entryId":0}',
        '{"ledgerId":-2,"entryId":0}',
        '{"ledgerId":9223372036854775808,"entryId":0}',
        "[" * 99_999,
    ],
)
async def test_a_position_that_makes_no_sense_makes_no_subscription(admin: Admin, bench: Any, body: str) -> None:
    await _five(bench)
    status, _ = await _made_at(admin, body)
    assert status == 400
    assert (await admin("GET", f"{TOPICS}/t/subscriptions"))[1] == []


async def _five(bench: Any) -> list[Any]:
    client = bench.client()
    await client.producer("t")
    return [await client.sent(b"%d" % each) for each in range(5)]


async def _made_at(admin: Admin, body: str) -> tuple[int, int]:
    async with admin._client.put(f"{TOPICS}/t/subscription/s", data=body) as answer:
        status = answer.status
    stats = (await admin("GET", f"{TOPICS}/t/stats"))[1]["subscriptions"]
    return status, stats["s"]["msgBacklog"] if "s" in stats else 0


# ---- how much


async def test_health_tells_a_full_disk_and_a_failed_store(admin: Admin, bench: Any) -> None:
    for path in ("/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        assert await admin("GET", path) == (200, "ok")
        bench.store.disk_full = True
        status, answer = await admin("GET", path)
        assert status == 503
        assert "disk is full" in answer["reason"]
        bench.store.disk_full = False
        bench.broker.storage_failure = OSError("gone")
        status, answer = await admin("GET", path)
        bench.broker.storage_failure = None
        assert status == 503
        assert "storage failed: gone" in answer["reason"]


async def test_heads_and_bodies_have_a_size(benches: Any) -> None:
    bench = await benches(http_max_request_header_size=4096, max_http_request_size=10_000).start()
    async with TestClient(TestServer(make_app(bench.broker))) as http:
        async with http.get("/admin/v2/clusters", headers={f"X-{each}": "x" * 100 for each in range(60)}) as answer:
            assert answer.status == 431
            assert "httpMaxRequestHeaderSize" in (await answer.json())["reason"]
        async with http.put("/admin/v2/namespaces/a/b", data=b" " * 10_001) as answer:
            assert answer.status == 413
            assert "maxHttpRequestSize" in (await answer.json())["reason"]


async def _served(bench: Any) -> HttpServer:
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    assert server._loading is not None
    await server._loading
    return server


async def test_a_head_or_a_body_that_never_ends_is_closed(benches: Any) -> None:
    bench = await benches(http_server_idle_timeout=200).start()
    server = await _served(bench)
    port = int(server.url.rpartition(":")[2])
    head = b"PUT /admin/v2/namespaces/a/b HTTP/1.1\r\nHost: localhost\r\n"
    for said, answered in ((b"GET / HT", b""), (head, b""), (head + b"Content-Length: 10\r\n\r\n12", b"HTTP/1.1 408")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(answered)
        writer.close()
    await server.close()


async def test_a_connection_that_is_accepted_while_the_side_over_http_begins_is_answered(benches: Any) -> None:
    made: list[Any] = []

    class Watched(AsyncioRuntime):
        async def listen(self, host: str, port: int, protocol: Any) -> Any:
            made.append(protocol)
            return await super().listen(host, port, protocol)

    bench = await benches().start()
    server = HttpServer(bench.broker, Watched())
    await server.start("127.0.0.1", 0)
    early = made[0]()  # the loop has accepted a connection, and tells its protocol in its next turn
    async with ClientSession() as session, asyncio.timeout(10):
        async with session.get(f"{server.url}/metrics") as answer:
            assert answer.status == 200
        late = await asyncio.get_running_loop().create_server(lambda: early, "127.0.0.1", 0)
        port = late.sockets[0].getsockname()[1]
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.status == 200
    late.close()
    await server.close()


async def test_connections_to_the_http_port_are_bounded(benches: Any) -> None:
    bench = await benches(max_http_server_connections=3).start()
    server = await _served(bench)
    port = int(server.url.rpartition(":")[2])
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    async with ClientSession(connector=TCPConnector(force_close=True)) as http:
        async with http.get(f"{server.url}/admin/v2/brokers/health") as answer:
            assert answer.status == 503
            assert "maxHttpServerConnections" in (await answer.json())["reason"]
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(30):
            while bench.broker.limits.reached["maxHttpServerConnections"]:
                async with http.get(f"{server.url}/admin/v2/brokers/health") as answer:
                    if answer.status == 200:
                        break
    await server.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_is_no_http_is_closed_and_says_nothing_in_the_log(
    bench: Any, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rnd, server = random.Random(seed), await _served(bench)
    port = int(server.url.rpartition(":")[2])
    healthy = [
        b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"PUT /admin/v2/namespaces/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /admin/v2/tenants/x HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    ]
    for _ in range(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(mutate(healthy[rnd.randrange(len(healthy))], rnd))
        writer.write_eof()
        async with asyncio.timeout(30):
            answer = await reader.read()
        assert answer[:9] in {b"", b"HTTP/1.1 ", b"HTTP/1.0 "}
        assert b" 500 " not in answer[:16], answer
        writer.close()
    async with ClientSession() as http, http.get(f"{server.url}/admin/v2/brokers/health") as answer:
        assert answer.status == 200
    await server.close()
    assert not [each.getMessage() for each in caplog.records]
