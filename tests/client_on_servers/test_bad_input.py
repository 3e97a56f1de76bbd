"""What a program gets wrong, on every server: a typed error whose message says what to do.

Arguments one by one are in test_wrong_arguments.py. More of it stands where it needs no server: URLs and handshakes in
test_client_connection.py, coordinators in test_client_coordinators.py, transactions in test_transaction.py, forks in
test_sync_classes.py; a port in use in tests/broker.
"""

import asyncio
from urllib.parse import urlsplit

import pytest
from targets import Target
from transactions import visible

from pulsar_txn.client import (
    AsyncClient,
    InitialPosition,
    TransactionState,
    TransactionStateError,
)
from pulsar_txn.client.errors import (
    AlreadyClosed,
    CommitOutcomeUnknown,
    ConnectionLost,
    CoordinatorUnavailable,
    InvalidConfiguration,
    InvalidTransactionStatus,
    MessageTooLarge,
    PulsarError,
    RemoteProtocolError,
    TransactionNotFound,
    TransactionOperationFailed,
)
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId


async def test_the_http_port_is_not_the_binary_port(pulsar: Target) -> None:
    address = urlsplit(pulsar.admin_url).netloc
    async with AsyncClient(f"pulsar://{address}", operation_timeout=5) as client:
        with pytest.raises((RemoteProtocolError, ConnectionLost), match="binary port"):
            await client.begin_transaction()


async def test_a_transaction_of_a_coordinator_that_is_not_there(client: AsyncClient) -> None:
    with pytest.raises(CoordinatorUnavailable, match="another cluster"):
        await client.attach_transaction(TxnId(4711, 0)).abort()


@pytest.mark.seed_rows("C16")
async def test_a_transaction_that_was_never_begun(client: AsyncClient, topic: str) -> None:
    txn = await client.begin_transaction()
    assert txn.id is not None
    never = client.attach_transaction(TxnId(txn.id.most, txn.id.least + 1_000_000))
    with pytest.raises(CommitOutcomeUnknown):  # whoever began it may have committed it long ago
        await never.commit()
    producer = await client.create_producer(topic)
    with pytest.raises((TransactionNotFound, InvalidTransactionStatus)):
        await producer.send(b"x", txn=client.attach_transaction(TxnId(txn.id.most, txn.id.least + 1_000_000)))
    await txn.abort()


async def test_text_that_is_no_id_of_a_transaction(client: AsyncClient) -> None:
    with pytest.raises(InvalidConfiguration, match="seven"):
        client.attach_transaction("seven")


async def test_a_message_that_is_too_large_is_refused_and_dooms_its_transaction_alone(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    with pytest.raises(TransactionOperationFailed):
        async with client.transaction() as txn:
            with pytest.raises(MessageTooLarge, match="split it"):
                await producer.send(bytes(6 * 1024 * 1024), txn=txn)
            await producer.send(b"never seen", txn=txn)
    async with client.transaction() as txn:
        await producer.send(b"small", txn=txn)
    assert await visible(client, topic) == [b"small"]


async def test_a_server_drops_a_connection_with_a_frame_that_is_too_large_and_serves_the_others(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    address = urlsplit(pulsar.service_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(command("connect", client_version="x", protocol_version=21))
    await reader.readexactly(4)
    writer.write((200 * 1024 * 1024).to_bytes(4) + bytes(1024))
    async with asyncio.timeout(10):
        while await reader.read(65536):
            pass
    writer.close()
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    assert await visible(client, topic) == [b"x"]


async def test_use_after_close(pulsar: Target, topic: str) -> None:
    client = AsyncClient(pulsar.service_url)
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s")
    txn = await client.begin_transaction()
    await client.close()
    for use in (
        client.begin_transaction,
        lambda: client.create_producer(topic),
        lambda: producer.send(b"x"),
        lambda: consumer.receive(timeout=1),
        txn.commit,
    ):
        with pytest.raises(AlreadyClosed, match="closed"):
            await use()


async def test_a_second_commit_and_an_abort_behind_it(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    await txn.commit()
    for end in (txn.commit, txn.abort):
        with pytest.raises(TransactionStateError, match="begin a new transaction"):
            await end()
    assert txn.state is TransactionState.COMMITTED
    assert await visible(client, topic) == [b"x"]


async def test_a_commit_inside_its_own_block(client: AsyncClient) -> None:
    async with client.transaction() as txn:
        with pytest.raises(TransactionStateError, match="leave the block"):
            await txn.commit()


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_operations_in_a_transaction_that_ended(client: AsyncClient, topic: str, end: str) -> None:
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    message = await consumer.receive(timeout=20)
    txn = await client.begin_transaction()
    await getattr(txn, end)()
    with pytest.raises(TransactionStateError, match="begin a new one"):
        await producer.send(b"late", txn=txn)
    with pytest.raises(TransactionStateError, match="begin a new one"):
        await consumer.acknowledge(message, txn=txn)
    with pytest.raises(TransactionStateError, match="begin a new one"):
        await consumer.acknowledge_cumulative(message, txn=txn)
    assert await visible(client, topic) == [b"x"]


async def test_objects_of_another_client(pulsar: Target, client: AsyncClient, topic: str) -> None:
    async with AsyncClient(pulsar.service_url) as other:
        producer = await other.create_producer(topic)
        async with client.transaction() as txn:
            with pytest.raises(TransactionStateError, match="client that began it"):
                await producer.send(b"x", txn=txn)


async def test_a_topic_that_keeps_nothing_takes_no_part_and_nothing_breaks(client: AsyncClient, topic: str) -> None:
    fleeting = await client.create_producer(topic.replace("persistent:", "non-persistent:"))
    durable = await client.create_producer(topic)
    async with client.transaction() as txn:
        with pytest.raises(PulsarError, match="persistent topic"):
            await fleeting.send(b"x", txn=txn)
        await durable.send(b"y", txn=txn)
    await fleeting.send(b"outside of transactions it goes")
    assert await visible(client, topic) == [b"y"]


async def test_a_cumulative_acknowledgement_where_there_is_no_order(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", consumer_type=1, initial_position=InitialPosition.EARLIEST)
    message = await consumer.receive(timeout=20)
    async with client.transaction() as txn:
        with pytest.raises(InvalidConfiguration, match="one by one"):
            await consumer.acknowledge_cumulative(message, txn=txn)
        await consumer.acknowledge(message, txn=txn)


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
async def test_a_timeout_that_is_none(client: AsyncClient, timeout: object) -> None:
    with pytest.raises((InvalidConfiguration, ValueError)):
        await client.begin_transaction(timeout=timeout)
