"""More coordinators over HTTP: at once, permanently, and only ever more. Answers as stock 4.2.4 gives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admin_client import Admin, admin_of
from raw_client import RawClient, Refused

from pulsar_txn.broker.base import config
from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.broker import Broker
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import ASSIGN_TOPIC

REPLICAS = "/admin/v3/transactions/transactionCoordinator/replicas"
TOO_FEW = "Number of transaction coordinators should be more than the current number of transaction coordinator"


async def partitions(client: RawClient) -> int:
    answer = await client.request("partitionMetadata", topic=ASSIGN_TOPIC)
    return int(answer.partitions)


@pytest.mark.seed_rows("D39")
async def test_new_coordinators_serve_at_once_and_clients_see_them(admin: Admin, client: RawClient) -> None:
    before = await client.new_txn(tc_id=0)
    with pytest.raises(Refused) as refused:
        await client.request("tcClientConnectRequest", tc_id=4)
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
    assert await partitions(client) == 2
    assert await admin("POST", REPLICAS, 5) == (204, "")
    assert await partitions(client) == 5
    assert (await client.new_txn(tc_id=4)).most == 4
    await client.end(before)
    _, stats = await admin("GET", "/admin/v3/transactions/coordinatorStats")
    assert sorted(stats) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("count", [2, 1, 0, -1])
async def test_there_are_never_fewer_coordinators(admin: Admin, client: RawClient, count: int) -> None:
    assert await admin("POST", REPLICAS, count) == (406, {"reason": TOO_FEW})
    assert await partitions(client) == 2


@pytest.mark.parametrize("body", ["many", None, [3], 1e9])
async def test_a_number_of_coordinators_that_makes_no_sense_is_refused(admin: Admin, client: RawClient, body: object) -> None:
    status, answer = await admin("POST", REPLICAS, body)
    assert status == 400
    assert "number of coordinators" in answer["reason"]
    assert await partitions(client) == 2


async def test_there_is_an_end_to_coordinators(admin: Admin, client: RawClient) -> None:
    status, answer = await admin("POST", REPLICAS, 1025)
    assert status == 409
    assert "1024" in answer["reason"]
    assert await partitions(client) == 2


async def test_of_two_who_ask_at_once_the_larger_number_counts_also_after_a_restart(bench: Any) -> None:
    catalog = bench.broker.catalog
    more, fewer = await asyncio.gather(catalog.grow_coordinators(6), catalog.grow_coordinators(3), return_exceptions=True)
    assert more is None
    assert isinstance(fewer, Refusal)
    assert fewer.code == ServerError.NotAllowedError
    await bench.restart()
    assert await partitions(bench.client()) == 6


@pytest.mark.seed_rows("D40")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_added_coordinators_and_their_transactions_are_there_after_a_restart(bench: Any, how: str) -> None:
    async with admin_of(bench) as admin:
        assert await admin("POST", REPLICAS, 3) == (204, "")
    txn = await bench.client().new_txn(tc_id=2)
    await getattr(bench, how)()
    client = bench.client()
    assert await partitions(client) == 3
    await client.request("tcClientConnectRequest", tc_id=2)
    await client.abort(txn)
    assert (await client.new_txn(tc_id=2)).least > txn.least


async def test_the_assign_topic_is_in_no_list(admin: Admin) -> None:
    assert await admin("POST", REPLICAS, 3) == (204, "")
    assert await admin("GET", "/admin/v2/persistent/pulsar/system/partitioned") == (200, [])


@pytest.mark.seed_rows("D21")
async def test_a_broker_has_sixteen_coordinators_unless_told_otherwise() -> None:
    store = MemoryStore()
    await store.start()
    loaded = config.load(None, {})
    broker = Broker(loaded.config, store, AsyncioRuntime())
    await broker.start()
    client = RawClient(broker)
    assert await partitions(client) == 16
    assert (await client.new_txn(tc_id=15)).most == 15
    with pytest.raises(Refused) as refused:
        await client.request("tcClientConnectRequest", tc_id=16)
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
    await broker.close()
    await store.close()
