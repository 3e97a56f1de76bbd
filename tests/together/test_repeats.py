"""Our client and our broker, with connections that break: what a transaction sent is in it once, wherever the cut comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_network import run_virtual

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.client.errors import ConnectionLost, NotAllowedError, OutOfOrderSequence, TransactionOperationFailed


def at(network: Any, buffer: str = "topic", *, deduplicates: bool = False) -> Standalone:
    """A broker in memory with this configuration."""
    config = BrokerConfig(
        broker_service_port=6650,
        transaction_buffer_provider_class_name=buffer,
        broker_deduplication_enabled=deduplicates,
    )
    return Standalone(None, config=config, runtime=network)


def noted(network: Any) -> list[Any]:
    """The connections of clients from now on."""
    made: list[Any] = []
    connect = network.connect

    async def note(*args: Any, **options: Any) -> Any:
        made.append(await connect(*args, **options))
        return made[-1]

    network.connect = note
    return made


async def read_all(client: AsyncClient, topic: str) -> list[bytes]:
    """What a reader of the whole topic gets within a second."""
    found = []
    async with await client.subscribe(topic, "readers", initial_position=InitialPosition.EARLIEST) as consumer:
        while True:
            try:
                async with asyncio.timeout(1):
                    message = await consumer.receive()
            except TimeoutError:
                return found
            found.append(message.value)


@pytest.mark.seed_rows("B07", "B10")
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("buffer", ["topic", "half-topic"])
def test_a_transaction_survives_a_cut_at_any_time_and_has_each_message_once(buffer: str, batching: bool) -> None:
    async def story(network: Any) -> tuple[list[bytes], int]:
        connections, expected = noted(network), []
        async with at(network, buffer) as broker, AsyncClient(broker.service_url, runtime=network) as client:
            producer = await client.create_producer("t", batching=batching)
            for step in range(24):
                async with client.transaction() as txn:
                    await producer.send(f"{step} first".encode(), txn=txn)
                    sends = [producer.send_nowait(f"{step} {number}".encode(), txn=txn) for number in range(3)]
                    await asyncio.sleep(step * 0.0001)
                    connections[-1].close(ConnectionLost("cut"))
                    sends.append(producer.send_nowait(f"{step} last".encode(), txn=txn))
                    await asyncio.gather(*sends)
                expected += [f"{step} {each}".encode() for each in ("first", 0, 1, 2, "last")]
            assert await read_all(client, "t") == expected
        return expected, len(connections)

    (expected, connections), _ = run_virtual(story)
    assert len(expected) == 5 * 24
    assert connections >= 24


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("payloads", [(b"a", b"b"), (b"a", b"a")], ids=["different", "equal"])
def test_two_messages_with_one_id_in_a_transaction_are_an_error(batching: bool, payloads: tuple[bytes, bytes]) -> None:
    """The second one was confirmed with the id -1:-1, and not stored."""

    async def story(network: Any) -> None:
        async with at(network) as broker, AsyncClient(broker.service_url, runtime=network) as client:
            producer = await client.create_producer("t", batching=batching)
            txn = await client.begin_transaction()
            await producer.send(payloads[0], sequence_id=5, txn=txn)
            with pytest.raises(NotAllowedError, match="another message of this transaction has sequence id 5"):
                await producer.send(payloads[1], sequence_id=5, txn=txn)
            with pytest.raises(TransactionOperationFailed):
                await txn.commit()
            async with client.transaction() as txn:
                await producer.send(b"%d" % 5, sequence_id=5, txn=txn)
            other = await client.create_producer("t", batching=batching)
            await other.send(b"plain", sequence_id=7)
            await other.send(b"plain", sequence_id=7)
            assert await read_all(client, "t") == [b"5", b"plain", b"plain"]

    run_virtual(story)


@pytest.mark.seed_rows("B13")
def test_a_producer_that_refuses_gaps_says_what_is_missing_and_goes_on_from_there() -> None:
    async def story(network: Any) -> None:
        async with (
            at(network, deduplicates=True) as broker,
            AsyncClient(broker.service_url, runtime=network) as client,
        ):
            producer = await client.create_producer("t", producer_name="p", refuse_sequence_gaps=True)
            await producer.send(b"0")
            with pytest.raises(OutOfOrderSequence, match="send again from expected_sequence_id") as refused:
                await producer.send(b"2", sequence_id=2)
            assert refused.value.expected_sequence_id == 1
            assert isinstance(refused.value, NotAllowedError)
            await producer.send(b"1", sequence_id=1)
            await producer.send(b"2", sequence_id=2)
            await producer.send(b"2", sequence_id=2)
            await producer.close()
            producer = await client.create_producer("t", producer_name="p", refuse_sequence_gaps=True)
            await producer.send(b"3")
            assert await read_all(client, "t") == [b"0", b"1", b"2", b"3"]

    run_virtual(story)


def test_a_broker_that_cannot_look_for_gaps_is_not_asked_in_vain() -> None:
    async def story(network: Any) -> None:
        async with at(network) as broker, AsyncClient(broker.service_url, runtime=network) as client:
            with pytest.raises(NotAllowedError, match="brokerDeduplicationEnabled"):
                await client.create_producer("t", refuse_sequence_gaps=True)

    run_virtual(story)
