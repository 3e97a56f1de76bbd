"""Consistent readers of topics whose transactions wait beside them (half-topic), alone and with others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuts import is_silent, producers_of, send_in_one, take
from our_broker import OurBroker

from pulsar_txn.client import LATEST_ID, AsyncClient, OperationTimeout


@pytest.fixture(scope="module")
def broker() -> Iterator[OurBroker]:
    conf = {"transactionBufferProviderOverrides": "public/beside=half-topic"}
    with OurBroker(conf=conf) as started:
        yield started


@pytest.fixture
def topics(topic: str) -> list[str]:
    beside = topic.replace("/default/", "/beside/")
    return [f"{beside}-half", f"{topic}-usual", f"{beside}-other-half"]


async def test_a_half_that_waits_holds_back_the_rest_of_its_transaction(broker: OurBroker, topics: list[str]) -> None:
    async with AsyncClient(broker.service_url) as client, await client.consistent_reader(topics) as reader:
        half, usual, other = await producers_of(client, topics)
        await send_in_one(client, (half, b"1"), (usual, b"1"), (other, b"1"))
        assert len(await reader.next_cut(20)) == 3
        waits = await client.begin_transaction()
        await half.send(b"waits", txn=waits)
        await half.send(b"plain")
        assert await take(reader, 1) == [b"plain"]
        await send_in_one(client, (usual, b"2"), (other, b"2"))
        assert await is_silent(reader), "what waits could belong to it as well"
        await waits.commit()
        assert await take(reader, 3) == [b"2", b"2", b"waits"]


async def test_beginning_at_the_end_waits_for_what_is_open_beside_a_topic(broker: OurBroker, topics: list[str]) -> None:
    async with AsyncClient(broker.service_url, operation_timeout=1.0) as hasty, AsyncClient(broker.service_url) as client:
        half, usual, _ = await producers_of(client, topics)
        waits = await client.begin_transaction()
        await half.send(b"waits", txn=waits)
        with pytest.raises(OperationTimeout, match="open beside"):
            await hasty.consistent_reader(topics, LATEST_ID)
        await waits.commit()
        async with await client.consistent_reader(topics, LATEST_ID) as reader:
            await send_in_one(client, (half, b"1"), (usual, b"1"))
            assert await take(reader, 2) == [b"1", b"1"]
