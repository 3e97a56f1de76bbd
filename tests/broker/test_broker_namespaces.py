"""Namespaces over HTTP: made, given policies, unloaded, deleted. Statuses and sentences as stock 4.2.4 gives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admin_client import Admin, admin_of
from raw_client import RawClient, Refused

from pulsar_txn.wire.errors import ServerError

NAMESPACES = "/admin/v2/namespaces"
ORDERS = f"{NAMESPACES}/acme/orders"
TOPIC = "persistent://acme/orders/t"
ENCRYPTED = {"encryption_keys": [{"key": "k", "value": b"sealed"}]}


@pytest.fixture
async def orders(admin: Admin) -> Admin:
    assert await admin("PUT", "/admin/v2/tenants/acme", {}) == (204, "")
    assert await admin("PUT", ORDERS, {}) == (204, "")
    return admin


async def test_a_tenant_goes_when_its_namespaces_have_gone(orders: Admin) -> None:
    assert await orders("PUT", "/admin/v2/tenants/acme", {}) == (409, {"reason": "Tenant already exist"})
    assert await orders("DELETE", "/admin/v2/tenants/acme") == (409, {"reason": "The tenant still has active namespaces"})
    assert await orders("DELETE", ORDERS) == (204, "")
    assert await orders("DELETE", "/admin/v2/tenants/acme") == (204, "")
    assert await orders("DELETE", "/admin/v2/tenants/acme") == (404, {"reason": "Tenant doesn't exist"})


async def test_a_namespace_with_topics_is_not_deleted(orders: Admin, client: RawClient) -> None:
    assert await orders("PUT", ORDERS, {}) == (409, {"reason": "Namespace already exists"})
    await client.producer(TOPIC)
    assert await orders("DELETE", ORDERS) == (409, {"reason": "Cannot delete non empty namespace"})
    refusal = {"reason": "Broker doesn't allow forced deletion of namespaces"}
    assert await orders("DELETE", f"{ORDERS}?force=true") == (405, refusal)
    assert (await orders("DELETE", "/admin/v2/persistent/acme/orders/t?force=true"))[0] == 204
    assert await orders("DELETE", ORDERS) == (204, "")
    assert await orders("DELETE", ORDERS) == (404, {"reason": "Namespace acme/orders does not exist."})
    assert await orders("GET", f"{ORDERS}/encryptionRequired") == (404, {"reason": "Namespace does not exist"})


async def test_a_namespace_whose_topics_took_part_in_transactions_can_be_deleted_and_made_again(
    orders: Admin, client: RawClient
) -> None:
    await client.producer(TOPIC)
    await client.subscribe(TOPIC, kind=1)
    await client.sent(b"in")
    done, open_ = await client.new_txn(), await client.new_txn()
    for txn in (done, open_):
        await client.add_topics(txn, TOPIC)
        await client.add_subscriptions(txn, (TOPIC, "s"))
        await client.sent(b"x", txn=txn)
    await client.ack(await client.receive(), txn=done)
    await client.end(done)
    assert (await orders("DELETE", "/admin/v2/persistent/acme/orders/t?force=true"))[0] == 204
    assert await orders("DELETE", ORDERS) == (204, "")
    assert not orders.broker.store.names("acme/")
    await client.abort(open_)  # a participant that is gone has nothing to end
    assert await orders("PUT", ORDERS) == (204, "")
    assert await orders("GET", f"{ORDERS}/topics") == (200, [])


async def test_with_force_everything_in_a_namespace_goes(benches: Any) -> None:
    bench = await benches(force_delete_namespace_allowed=True).start()
    client = bench.client()
    async with admin_of(bench) as admin:
        await admin("PUT", "/admin/v2/persistent/acme/orders/p/partitions", 2)
        await client.producer(TOPIC)
        await client.producer("non-persistent://acme/orders/n", 1)
        assert await admin("POST", f"{ORDERS}/encryptionRequired", True) == (204, "")
        assert await admin("DELETE", f"{ORDERS}?force=true") == (204, "")
        assert await admin("GET", NAMESPACES + "/acme") == (404, {"reason": "Tenant acme does not exist"})
        assert not bench.store.names("acme/")
        assert not [name for name in bench.broker.topics if "acme" in name]
        assert await admin("GET", "/admin/v2/persistent/acme/orders/partitioned") == (200, [])
        await client.producer(TOPIC, 7)  # the policy is gone with the namespace


# ---- encryptionRequired


async def test_where_encryption_is_required_only_encrypted_messages_are_taken(orders: Admin, client: RawClient) -> None:
    await client.producer(TOPIC, 1, producer_name="open")
    assert await orders("POST", f"{ORDERS}/encryptionRequired", True) == (204, "")
    assert await orders("GET", f"{ORDERS}/encryptionRequired") == (200, True)
    assert client.events[-1][0] == "close_producer"  # it was there before, and has to go
    with pytest.raises(Refused) as refused:
        await client.producer(TOPIC, 2, producer_name="open")
    assert refused.value.code == ServerError.MetadataError
    assert f"Encryption is required in {TOPIC}" in str(refused.value)
    await client.producer(TOPIC, 3, producer_name="sealed", encrypted=True)
    await client.sent(b"sealed", 3, name="sealed", fields=ENCRYPTED)
    txn = await client.new_txn()
    await client.add_topics(txn, TOPIC)
    await client.sent(b"sealed", 3, name="sealed", fields=ENCRYPTED, txn=txn)
    with pytest.raises(Refused) as refused:
        await client.sent(b"open", 3, name="sealed", txn=txn)
    assert refused.value.code == ServerError.MetadataError
    assert "Messages must be encrypted" in str(refused.value)
    await client.end(txn)
    await client.subscribe(TOPIC)
    assert await client.payloads(2) == [b"sealed", b"sealed"]


async def test_encryption_is_still_required_after_a_restart_and_not_after_it_was_taken_back(bench: Any) -> None:
    async with admin_of(bench) as admin:
        assert await admin("PUT", ORDERS, {"encryption_required": True, "max_topics": 9}) == (204, "")
        _, policies = await admin("GET", ORDERS)
        assert (policies["encryption_required"], policies["max_topics"]) == (True, 9)
    await bench.restart()
    client = bench.client()
    with pytest.raises(Refused):
        await client.producer(TOPIC)
    async with admin_of(bench) as admin:
        assert await admin("DELETE", f"{ORDERS}/encryptionRequired") == (204, "")
    await client.producer(TOPIC)
    await client.sent(b"open")


async def test_a_broker_may_require_encryption_everywhere(benches: Any) -> None:
    bench = await benches(encryption_require_on_producer=True).start()
    client = bench.client()
    for name in ("a", "non-persistent://public/default/n"):
        with pytest.raises(Refused) as refused:
            await client.producer(name)
        assert refused.value.code == ServerError.MetadataError
    await client.producer("non-persistent://public/default/n", encrypted=True)
    with pytest.raises(Refused):
        await client.sent(b"open")
    await client.sent(b"sealed", fields=ENCRYPTED)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("encryptionRequired", "yes"),
        ("encryptionRequired", 1),
        ("delayedDelivery", 5),
        ("delayedDelivery", {"active": "yes"}),
        ("delayedDelivery", {"active": True, "tickTime": "soon"}),
        ("delayedDelivery", None),
    ],
)
async def test_a_policy_of_another_kind_is_refused_and_changes_nothing(orders: Admin, path: str, body: object) -> None:
    status, answer = await orders("POST", f"{ORDERS}/{path}", body)
    assert status == 400
    assert answer["reason"]
    assert await orders.broker.namespaces.policies("acme", "orders") == {}


# ---- unload


async def test_an_unloaded_topic_is_opened_again_with_everything_in_it(admin: Admin, client: RawClient) -> None:
    await client.producer("a", producer_name="p")
    await client.subscribe("a")
    for number in range(3):
        client.send(b"%d" % number)
    assert await admin("PUT", "/admin/v2/persistent/public/default/a/unload") == (204, "")
    assert len(client.receipts) == 3  # what was taken was answered first
    assert {name for name, _ in client.events} >= {"close_producer", "close_consumer"}
    assert not admin.broker.topics
    client.messages.clear()
    await client.producer("a", 1, producer_name="p")
    await client.sent(b"3", 1)
    await client.subscribe("a", consumer_id=1)
    assert await client.payloads(4, 1) == [b"0", b"1", b"2", b"3"]


async def test_who_comes_while_a_topic_is_closed_waits_and_gets_it(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.sent(b"x")
    topic = bench.broker.topics["persistent://public/default/a"]
    topic.host.fail(OSError("gone"))
    await asyncio.sleep(0)
    await client.producer("a", 1)  # answered, and not with an error
    assert bench.broker.topics["persistent://public/default/a"] is not topic


async def test_partitions_and_namespaces_are_unloaded_as_a_whole(admin: Admin, client: RawClient) -> None:
    base = "/admin/v2/persistent/acme/orders"
    await admin("PUT", f"{base}/p/partitions", 2)
    await client.producer(TOPIC)
    await client.producer("other", 1)
    assert len(admin.broker.topics) == 4
    assert await admin("PUT", f"{base}/p/unload") == (204, "")
    assert len(admin.broker.topics) == 2
    assert await admin("PUT", f"{ORDERS}/unload") == (204, "")
    assert list(admin.broker.topics) == ["persistent://public/default/other"]
    assert await admin("PUT", f"{base}/no/unload") == (404, {"reason": "Topic persistent://acme/orders/no not found"})
    assert (await admin("PUT", f"{NAMESPACES}/no/no/unload"))[0] == 404


async def test_a_transaction_goes_on_across_an_unload(admin: Admin, client: RawClient) -> None:
    await client.producer("a", producer_name="p")
    txn = await client.new_txn()
    await client.add_topics(txn, "persistent://public/default/a")
    await client.sent(b"x", txn=txn)
    await admin("PUT", "/admin/v2/persistent/public/default/a/unload")
    await client.producer("a", 1, producer_name="p")
    await client.sent(b"y", 1, txn=txn)
    await client.subscribe("a")
    await client.nothing()
    await client.end(txn)
    assert await client.payloads(2) == [b"x", b"y"]


async def test_what_is_said_of_a_transaction_is_the_same_when_nobody_has_opened_its_topics_again(
    admin: Admin, client: RawClient
) -> None:
    """Named after a story of the conformance suite that asked before its client was back, after a restart."""
    await client.producer("a", producer_name="p")
    await client.subscribe("a")
    txn = await client.new_txn()
    await client.add_topics(txn, "persistent://public/default/a", "persistent://public/default/gone")
    await client.sent(b"x", txn=txn)
    path = f"/admin/v3/transactions/transactionMetadata/{txn.most}/{txn.least}"
    before = await admin("GET", path)
    assert "startPosition" in before[1]["producedPartitions"]["persistent://public/default/a"]
    await admin("PUT", "/admin/v2/persistent/public/default/a/unload")
    assert not admin.broker.topics
    assert await admin("GET", path) == before
    _, slow = await admin("GET", "/admin/v3/transactions/slowTransactions/0")
    assert list(slow.values()) == [before[1]]
    assert list(admin.broker.topics) == ["persistent://public/default/a"]  # and none is made


# ---- partitions


async def test_partitions_are_added_with_the_subscriptions_of_the_others(admin: Admin, client: RawClient) -> None:
    path = "/admin/v2/persistent/public/default/p/partitions"
    base = "persistent://public/default/p"
    await admin("PUT", path, 2)
    await client.subscribe(f"{base}-partition-1", "durable")
    await client.subscribe(f"{base}-partition-1", "reader", 1, durable=False)
    with pytest.raises(Refused):
        await client.producer(f"{base}-partition-2")
    assert await admin("POST", path, 3) == (204, "")
    assert await admin("GET", path) == (200, {"partitions": 3, "deleted": False})
    assert (await client.request("partitionMetadata", topic=base)).partitions == 3
    await client.producer(f"{base}-partition-2")
    await client.sent(b"first")
    await client.subscribe(f"{base}-partition-2", "durable", 2, earliest=False)
    assert await client.payloads(1, 2) == [b"first"]
    assert await admin("GET", "/admin/v2/persistent/public/default/p-partition-2/subscriptions") == (200, ["durable"])


async def test_there_are_never_fewer_partitions(admin: Admin) -> None:
    path = "/admin/v2/persistent/public/default/p/partitions"
    await admin("PUT", path, 2)
    assert await admin("POST", path, 2) == (204, "")
    fewer = {"reason": "Desired partitions 1 can't be less than the current partitions 2."}
    assert await admin("POST", path, 1) == (422, fewer)
    assert (await admin("POST", path, 10_001))[0] == 422
    assert (await admin("POST", path, "x"))[0] == 400
    assert await admin("GET", path) == (200, {"partitions": 2, "deleted": False})
    not_one = {"reason": "Topic persistent://public/default/a is not the partitioned topic."}
    assert await admin("POST", "/admin/v2/persistent/public/default/a/partitions", 2) == (409, not_one)
