"""Writes of a zombie: sends and acknowledgements with the id of any transaction, which no client of ours would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from targets import Target

from pulsar_txn.client.inside import AsyncioRuntime, Connection, Settings
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.ids import Position, TxnId


class Zombie:
    """Connections to a cluster, and bare frames on them."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._ids = 1000

    def _next(self) -> int:
        self._ids += 1
        return self._ids

    async def send(self, topic: str, payload: bytes, txn_id: TxnId) -> None:
        """One message in a transaction. Raises the SEND_ERROR."""
        connection = await self.brokers.owner(topic)
        number = self._next()
        opened = await connection.request("producer", self._next(), topic=topic, producer_id=number)
        side = _Side(connection)
        connection.add_producer(number, side)
        bits = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}
        metadata = pb.MessageMetadata(
            producer_name=opened.producer_name, sequence_id=0, publish_time=self.brokers.runtime.wall_ms(), **bits
        )
        connection.write(hot.encode_send(number, 0, 1, encode_entry(metadata, payload), txn=txn_id))
        async with asyncio.timeout(30):
            await side.answered
        await connection.request("close_producer", self._next(), producer_id=number)

    async def send_chunk(self, topic: str, uuid: str, number: int, of: int, data: bytes) -> None:
        """One chunk of a message, by a producer of its own. Raises the SEND_ERROR."""
        connection = await self.brokers.owner(topic)
        producer = self._next()
        opened = await connection.request("producer", self._next(), topic=topic, producer_id=producer)
        side = _Side(connection)
        connection.add_producer(producer, side)
        metadata = pb.MessageMetadata(
            producer_name=opened.producer_name,
            sequence_id=0,
            publish_time=self.brokers.runtime.wall_ms(),
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=of,
            total_chunk_msg_size=of * len(data),
        )
        connection.write(hot.encode_send(producer, 0, 1, encode_entry(metadata, data)))
        async with asyncio.timeout(30):
            await side.answered
        await connection.request("close_producer", self._next(), producer_id=producer)

    async def ack(self, topic: str, subscription: str, positions: list[Position], txn_id: TxnId) -> None:
        """Acknowledge in a transaction, on a Shared subscription. Raises the answer's error."""
        connection = await self.brokers.owner(topic)
        number = self._next()
        await connection.request(
            "subscribe",
            self._next(),
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
        )
        request_id = self._next()
        ids = [(ledger_id, entry_id, None, 0) for ledger_id, entry_id in positions]
        frame = hot.encode_ack(number, False, ids, txn=txn_id, request_id=request_id)
        await connection.request_frames("ack", request_id, [frame])
        await connection.request("close_consumer", self._next(), consumer_id=number)


class _Side:
    def __init__(self, connection: Connection) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_receipt(self, _sequence_id: int, _ledger_id: int, _entry_id: int) -> None:
        self.answered.set_result(None)

    def on_send_error(self, _sequence_id: int, error: Any) -> None:
        self.answered.set_exception(error)

    def on_closed_by_broker(self) -> None:
        self.answered.cancel()


@asynccontextmanager
async def zombie(pulsar: Target | str, settings: Settings | None = None) -> AsyncIterator[Zombie]:
    """One that is gone at the end, of a server or a service URL."""
    service_url = pulsar if isinstance(pulsar, str) else pulsar.service_url
    brokers = Brokers("test", service_url, settings or Settings(), AsyncioRuntime())
    try:
        yield Zombie(brokers)
    finally:
        await brokers.close()
