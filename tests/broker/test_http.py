"""Administration and metrics over HTTP: shapes as Pulsar's, errors with a sentence, and the port before aiohttp is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from admin_client import Admin, admin_of
from aiohttp import ClientSession
from raw_client import FULL

from pulsar_txn.broker.admin import metrics
from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.runtime import AsyncioRuntime

TOPICS = "/admin/v2/persistent/public/default"
TXNS = "/admin/v3/transactions"


# ---- topics


async def test_topics_are_made_listed_and_deleted(admin: Admin) -> None:
    assert await admin("PUT", f"{TOPICS}/a") == (204, "")
    assert (await admin("PUT", f"{TOPICS}/a"))[0] == 409
    assert await admin("GET", TOPICS) == (200, ["persistent://public/default/a"])
    assert await admin("GET", f"{TOPICS}/a/partitions") == (200, {"partitions": 0, "deleted": False})
    assert await admin("DELETE", f"{TOPICS}/a") == (204, "")
    assert await admin("DELETE", f"{TOPICS}/a") == (404, {"reason": "Topic not found persistent://public/default/a"})
    assert await admin("GET", TOPICS) == (200, [])


async def test_partitioned_topics_are_made_listed_and_deleted_with_their_partitions(admin: Admin) -> None:
    assert await admin("PUT", f"{TOPICS}/p/partitions", 3) == (204, "")
    assert (await admin("PUT", f"{TOPICS}/p/partitions", 3))[0] == 409
    assert (await admin("PUT", f"{TOPICS}/p"))[0] == 409
    assert await admin("GET", f"{TOPICS}/p/partitions") == (200, {"partitions": 3, "deleted": False})
    assert await admin("GET", f"{TOPICS}/partitioned") == (200, ["persistent://public/default/p"])
    assert await admin("GET", TOPICS) == (200, [f"persistent://public/default/p-partition-{index}" for index in range(3)])
    status, stats = await admin("GET", f"{TOPICS}/p/partitioned-stats")
    assert status == 200
    assert len(stats["partitions"]) == stats["metadata"]["partitions"] == 3
    assert await admin("DELETE", f"{TOPICS}/p/partitions") == (204, "")
    assert await admin("GET", TOPICS) == (200, [])
    assert (await admin("DELETE", f"{TOPICS}/p/partitions"))[0] == 404
    assert (await admin("GET", f"{TOPICS}/p/partitioned-stats"))[0] == 404


@pytest.mark.parametrize("body", ["three", None, 0, -1, 10_001])
async def test_a_partition_count_that_makes_no_sense_is_refused(admin: Admin, body: object) -> None:
    status, answer = await admin("PUT", f"{TOPICS}/p/partitions", body)
    assert status in {400, 409}
    assert "partitions" in answer["reason"]
    assert await admin("GET", f"{TOPICS}/partitioned") == (200, [])


async def test_subscriptions_are_made_listed_and_deleted(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.producer(f"{FULL}t")
    await client.sent(b"x")
    assert await admin("PUT", f"{TOPICS}/t/subscription/first", "earliest") == (204, "")
    assert await admin("PUT", f"{TOPICS}/t/subscription/last", "latest") == (204, "")
    assert (await admin("PUT", f"{TOPICS}/t/subscription/last", "latest"))[0] == 409
    assert await admin("GET", f"{TOPICS}/t/subscriptions") == (200, ["first", "last"])
    _, stats = await admin("GET", f"{TOPICS}/t/stats")
    assert {name: each["msgBacklog"] for name, each in stats["subscriptions"].items()} == {"first": 1, "last": 0}
    assert await admin("DELETE", f"{TOPICS}/t/subscription/first") == (204, "")
    assert (await admin("DELETE", f"{TOPICS}/t/subscription/first"))[0] == 404
    assert await admin("GET", f"{TOPICS}/t/subscriptions") == (200, ["last"])


async def test_what_is_in_use_is_deleted_with_force_only(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.producer(f"{FULL}t")
    status, answer = await admin("DELETE", f"{TOPICS}/t")
    assert status == 412
    assert "force=true" in answer["reason"]
    assert (await admin("DELETE", f"{TOPICS}/t?force=true"))[0] == 204


async def test_stats_count_messages_and_name_who_is_connected(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.producer(f"{FULL}t")
    await client.sent(b"x")
    status, stats = await admin("GET", f"{TOPICS}/t/stats")
    assert status == 200
    assert (stats["msgInCounter"], stats["ongoingTxnCount"]) == (1, 0)
    assert stats["bytesInCounter"] == stats["storageSize"] > 0
    assert [each["accessMode"] for each in stats["publishers"]] == ["Shared"]
    _, internal = await admin("GET", f"{TOPICS}/t/internalStats")
    assert internal["numberOfEntries"] == 1
    _, last = await admin("GET", f"{TOPICS}/t/lastMessageId")
    assert f"{last['ledgerId']}:{last['entryId']}" == internal["lastConfirmedEntry"]


async def test_nothing_is_made_by_asking(admin: Admin) -> None:
    for path in ("stats", "internalStats", "subscriptions", "lastMessageId"):
        assert await admin("GET", f"{TOPICS}/no/{path}") == (404, {"reason": "Topic not found persistent://public/default/no"})
    assert (await admin("GET", f"{TXNS}/transactionBufferStats/public/default/no"))[0] == 404
    assert await admin("GET", TOPICS) == (200, [])


@pytest.mark.seed_rows("D38")
async def test_the_topics_of_the_transaction_machinery_cannot_be_made_opened_or_deleted(admin: Admin) -> None:
    for name in ("transaction_coordinator_assign", "__transaction_log_0"):
        path = f"/admin/v2/persistent/pulsar/system/{name}"
        assert (await admin("PUT", path))[0] == 409
        assert (await admin("DELETE", path))[0] == 409
        assert (await admin("GET", f"{path}/stats"))[0] == 409
    assert await admin("GET", "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions") == (
        200,
        {"partitions": 2, "deleted": False},
    )


# ---- names


async def test_tenants_and_namespaces_are_there_when_they_were_made_or_used(admin: Admin) -> None:
    assert (await admin("GET", "/admin/v2/namespaces/acme/orders"))[0] == 404
    assert (await admin("GET", "/admin/v2/namespaces/acme"))[0] == 404
    assert (await admin("PUT", "/admin/v2/tenants/acme", {}))[0] == 204
    assert (await admin("PUT", "/admin/v2/namespaces/acme/orders", {}))[0] == 204
    assert (await admin("PUT", "/admin/v2/persistent/acme/used/t"))[0] == 204
    assert await admin("GET", "/admin/v2/tenants") == (200, ["acme", "public", "pulsar"])
    assert await admin("GET", "/admin/v2/namespaces/acme") == (200, ["acme/orders", "acme/used"])
    assert (await admin("GET", "/admin/v2/namespaces/public/default"))[0] == 200
    assert await admin("GET", "/admin/v2/namespaces/acme/used/topics") == (200, ["persistent://acme/used/t"])
    assert (await admin("GET", "/admin/v2/tenants/acme"))[1]["allowedClusters"] == ["standalone"]
    assert (await admin("GET", "/admin/v2/tenants/nobody"))[0] == 404


async def test_a_cluster_of_one_broker_is_described(admin: Admin) -> None:
    assert await admin("GET", "/admin/v2/clusters") == (200, ["standalone"])
    assert (await admin("GET", "/admin/v2/clusters/standalone"))[0] == 200
    assert (await admin("GET", "/admin/v2/clusters/other"))[0] == 404
    assert len((await admin("GET", "/admin/v2/brokers"))[1]) == 1
    status, found = await admin("GET", "/lookup/v2/topic/persistent/public/default/t")
    assert (status, found["topic"]) == (200, "persistent://public/default/t")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/admin/v2/persistent/b@d/default/t", 412),
        ("GET", f"{TXNS}/slowTransactions/soon", 400),
        ("GET", f"{TXNS}/transactionMetadata/x/1", 400),
        ("GET", f"{TXNS}/coordinatorStats?coordinatorId=9", 404),
        ("GET", f"{TXNS}/coordinatorInternalStats/9", 404),
        ("GET", f"{TXNS}/transactionMetadata/0/99", 404),
        ("GET", f"{TXNS}/transactionMetadata/9/0", 404),
        ("POST", f"{TXNS}/abortTransaction/0/99999", 404),
        ("POST", f"{TXNS}/abortTransaction/9/0", 404),
        ("GET", f"{TXNS}/pendingAckStats/public/default/no/s", 404),
    ],
)
async def test_an_error_is_a_reason_and_no_500(admin: Admin, method: str, path: str, status: int) -> None:
    code, answer = await admin(method, path)
    assert code == status
    assert answer["reason"]


async def test_health_is_bad_once_the_storage_failed(admin: Admin) -> None:
    assert await admin("GET", "/admin/v2/brokers/health") == (200, "ok")
    admin.broker.storage_failure = OSError("gone")
    status, answer = await admin("GET", "/admin/v2/brokers/health")
    admin.broker.storage_failure = None
    assert status == 503
    assert "gone" in answer["reason"]


@pytest.mark.seed_rows("D12")
async def test_without_transactions_the_transaction_paths_say_so(benches: Any) -> None:
    bench = await benches(transaction_coordinator_enabled=False).start()
    async with admin_of(bench) as admin:
        status, answer = await admin("GET", f"{TXNS}/coordinators")
    assert status == 503
    assert "transactionCoordinatorEnabled=true" in answer["reason"]


# ---- metrics


async def test_metrics_carry_pulsars_names(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.producer(f"{FULL}t")
    await client.sent(b"x")
    txn_id = await client.new_txn()
    status, text = await admin("GET", "/metrics")
    assert status == 200
    at = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"'
    assert f"pulsar_in_messages_total{{{at}}} 1.0" in text
    assert f"pulsar_txn_tb_active_total{{{at}}} 0.0" in text
    assert f'pulsar_txn_active_count{{cluster="standalone",coordinator_id="{txn_id.most}"}} 1.0' in text
    assert 'pulsar_topics_count{cluster="standalone"} 1.0' in text
    assert "pulsar_txn_ledger_bytes_in_flight" in text
    assert "process_resident_memory_bytes" in text
    names = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    assert {"pulsar_txn_created_total", "pulsar_txn_committed_total", "pulsar_txn_aborted_total"} <= names


async def test_series_per_topic_are_bounded_and_the_totals_count_all(
    admin: Admin, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_TOPICS", 2)
    client = bench.client()
    for number in range(4):
        await client.producer(f"{FULL}t{number}", number)
        for _ in range(number):
            await client.sent(b"x", number)
    _, text = await admin("GET", "/metrics")
    assert [f"default/t{number}" in text for number in range(4)] == [False, False, True, True]
    assert 'pulsar_topics_count{cluster="standalone"} 4.0' in text
    assert 'pulsar_txn_broker_in_messages_total{cluster="standalone"} 6.0' in text


# ---- the port


async def test_a_request_that_comes_before_aiohttp_waits_for_it(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = asyncio.Event()
    load = HttpServer._load

    async def later(self: HttpServer) -> None:
        await may_load.wait()
        await load(self)

    monkeypatch.setattr(HttpServer, "_load", later)
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    async with ClientSession(server.url) as http:
        asked = asyncio.create_task(http.get("/admin/v2/brokers/health"))
        await asyncio.sleep(0.05)
        assert not asked.done()
        may_load.set()
        async with await asked as answer:
            assert await answer.text() == "ok"
        async with http.get("/admin/v2/brokers/health") as answer:
            assert answer.status == 200
    await server.close()
    await server.close()


async def test_the_loop_serves_while_aiohttp_is_imported(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("pulsar_txn.broker.admin.server._SLOW_IMPORTS", ("slow_to_import",))
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    async with ClientSession(server.url) as http:
        asked = asyncio.create_task(http.get("/admin/v2/brokers/health"))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 5
        async with await asked as answer:
            assert await answer.text() == "ok"
    await server.close()


async def test_somebody_who_says_too_much_before_aiohttp_is_there_is_cut_off(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpServer, "_load", lambda _self: asyncio.Event().wait())
    server = HttpServer(bench.broker, AsyncioRuntime())
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"x" * 100_000)
    try:
        assert await reader.read() == b""
    except ConnectionError:
        assert reader.at_eof() or reader.exception() is not None
    writer.close()
    await server.close()
