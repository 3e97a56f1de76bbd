"""Policies of a namespace hold for transactions as well, and a namespace that had some can be deleted."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import crypto_samples
import pytest
from admin import AdminError, delete, eventually, get_json, post, put, topic_path
from rows import row
from targets import Target
from transactions import data_of, stays_silent

from pulsar_txn.client import AsyncClient, InitialPosition, TransactionOperationFailed, TransactionState
from pulsar_txn.client.encryption import PemKeys
from pulsar_txn.client.errors import MetadataError, NotAllowedError

NAMESPACES = "/admin/v2/namespaces"
ONE_BUNDLE = {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}
"""A stock broker that looks up a topic directly after the creation takes the bundles for one; with several it gets stuck."""


@pytest.fixture
async def namespace(pulsar: Target) -> AsyncIterator[str]:
    """A namespace of the story's own, removed after it with its topics."""
    name = f"public/n-{uuid.uuid4().hex[:12]}"
    await put(pulsar, f"{NAMESPACES}/{name}", ONE_BUNDLE)
    yield name
    with contextlib.suppress(AdminError):  # the story deleted it
        for topic in await get_json(pulsar, f"/admin/v2/persistent/{name}"):
            await delete(pulsar, f"{topic_path(topic)}?force=true")
        await delete(pulsar, f"{NAMESPACES}/{name}")


async def used_in_a_transaction(client: AsyncClient, topic: str) -> None:
    """A message is sent in one transaction, received, and acknowledged in another one; a third one is aborted."""
    async with (
        await client.create_producer(topic) as producer,
        await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST) as consumer,
    ):
        async with client.transaction() as txn:
            await producer.send(b"x", txn=txn)
        async with client.transaction() as txn:
            message = await consumer.receive(timeout=20)
            assert message.data == b"x"
            await consumer.acknowledge(message, txn=txn)
        async with client.transaction() as txn:
            await producer.send(b"never", txn=txn)
            txn.rollback()


@row(54)
async def test_transactions_work_where_encryption_is_required(pulsar: Target, client: AsyncClient, namespace: str) -> None:
    """The topic's own machinery stores things there without encrypting them (apache/pulsar#24323)."""
    await post(pulsar, f"{NAMESPACES}/{namespace}/encryptionRequired", True)
    topic = f"persistent://{namespace}/t"
    keys = crypto_samples.rsa_pair()
    producer = await client.create_producer(topic, encryption_keys="k", crypto_keys=PemKeys(public=keys.public))
    crypto_keys = PemKeys(private=keys.private)
    consumer = await client.subscribe(topic, "s", crypto_keys=crypto_keys, initial_position=InitialPosition.EARLIEST)
    async with client.transaction() as txn:
        await producer.send(b"aborted", txn=txn)
        txn.rollback()
    async with client.transaction() as txn:
        await producer.send(b"secret", txn=txn)
        assert await stays_silent(consumer)
    async with client.transaction() as txn:
        message = await consumer.receive(timeout=20)
        assert message.data == b"secret"
        await consumer.acknowledge(message, txn=txn)
    assert await stays_silent(consumer)


@row(54)
async def test_a_producer_that_does_not_encrypt_is_refused_where_encryption_is_required(pulsar: Target, namespace: str) -> None:
    await post(pulsar, f"{NAMESPACES}/{namespace}/encryptionRequired", True)
    async with AsyncClient(pulsar.service_url, operation_timeout=3) as impatient:  # it tries again what may be a passing fault
        with pytest.raises(MetadataError, match=r"[Ee]ncryption"):
            await impatient.create_producer(f"persistent://{namespace}/t")


@row(55)
async def test_a_namespace_whose_topics_had_transactions_can_be_deleted_and_made_anew_empty(
    pulsar: Target, client: AsyncClient, namespace: str
) -> None:
    topics = [f"persistent://{namespace}/t-{number}" for number in range(2)]
    for topic in topics:
        await used_in_a_transaction(client, topic)
    with pytest.raises(AdminError) as refused:
        await delete(pulsar, f"{NAMESPACES}/{namespace}")
    assert refused.value.status == 409
    for topic in topics:
        await delete(pulsar, topic_path(topic))
    await delete(pulsar, f"{NAMESPACES}/{namespace}")
    assert namespace not in await get_json(pulsar, f"{NAMESPACES}/public")
    await put(pulsar, f"{NAMESPACES}/{namespace}", ONE_BUNDLE)
    assert await get_json(pulsar, f"/admin/v2/persistent/{namespace}") == []


@row(55)
async def test_a_namespace_can_be_deleted_behind_its_topic_that_had_an_open_transaction(
    pulsar: Target, client: AsyncClient, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    await put(pulsar, f"{topic_path(topic)}/partitions", 2)
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"0", txn=txn)
    await producer.send(b"1", txn=txn)
    await producer.close()
    await delete(pulsar, f"{topic_path(topic)}/partitions?force=true")
    await txn.abort()
    assert txn.state is TransactionState.ABORTED
    await delete(pulsar, f"{NAMESPACES}/{namespace}")
    assert namespace not in await get_json(pulsar, f"{NAMESPACES}/public")


@row(58)
async def test_a_delay_beyond_the_limit_of_its_namespace_fails_the_transaction(
    pulsar: Target, client: AsyncClient, namespace: str
) -> None:
    policy = {"active": True, "tickTime": 100, "maxDeliveryDelayInMillis": 5000}
    await post(pulsar, f"{NAMESPACES}/{namespace}/delayedDelivery", policy)
    path = f"{NAMESPACES}/{namespace}/delayedDelivery"
    assert (await eventually(lambda: get_json(pulsar, path), lambda found: found == policy)) == policy
    topic = f"persistent://{namespace}/t"
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"soon", deliver_after=1, txn=txn)
    with pytest.raises(NotAllowedError, match="5000"):
        await producer.send(b"never", deliver_after=60, txn=txn)
    with pytest.raises(TransactionOperationFailed):
        await txn.commit()
    async with client.transaction() as txn:
        await producer.send(b"within the limit", deliver_after=1, txn=txn)
    assert await data_of(consumer, 1) == [b"within the limit"]
    with pytest.raises(NotAllowedError, match="5000"):
        await producer.send(b"plain", deliver_after=60)
