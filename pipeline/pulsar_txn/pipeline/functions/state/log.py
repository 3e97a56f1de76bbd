"""The topic that holds the state of one owner: taking it over, reading it, writing to it, and removing its beginning.

Taking over: the new owner's producer fences the old one, then writes a claim and reads the topic until the claim. Readers see
committed messages only, and nothing after an open transaction. So when the claim is read, every transaction that wrote here
before the fence has ended, and its outcome is part of what was read. The old owner can write nothing more; because every
transaction that uses the state writes at least one record here, none of its later transactions can commit.

Before its records each transaction announces its id in a plain message. A new owner ends the announced transaction of its
predecessor, so it need not wait for the timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.client import AccessMode, AsyncTransaction, ConsumerType, InitialPosition, MessageId
from pulsar_txn.client.errors import ProducerQueueFull, PulsarError
from pulsar_txn.pipeline.functions.state.table import Table, Value

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncReader, Message, SendTicket

logger = logging.getLogger("pulsar_txn.pipeline.functions")

OWNER_KEY: Final = "\x00owner"
"""The key of claims and announcements. Keys of functions never begin with this character."""
SUBSCRIPTION: Final = "function-state"
"""It keeps what is not garbage from being trimmed; the owner moves it."""
KIND: Final = "kind"
COUNTER: Final = "counter"
TXN: Final = "txn"
AT_ONCE: Final = 2000
QUIET: Final = 0.25
"""Seconds without a message before the claim after which the predecessor's transaction is ended."""
TRIM_RECORDS: Final = 1000


class StateLog:
    """One owner's topic. `open` returns the table; after `write` the caller keeps or drops its changes."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.topic = topic
        self._client = client
        self._producer: AsyncProducer[bytes] | None = None

    async def open(self) -> Table[MessageId]:
        """Fence the previous owner and read what it has committed."""
        guard = await self._client.subscribe(
            self.topic,
            SUBSCRIPTION,
            initial_position=InitialPosition.EARLIEST,
            consumer_type=ConsumerType.FAILOVER,
            receiver_queue_size=1,
        )
        await guard.close()
        self._producer = await self._client.create_producer(
            self.topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING, send_timeout=0.0, chunking=False
        )
        claim = await self._producer.send(b"", key=OWNER_KEY)
        return await self._read_until(claim)

    async def _read_until(self, claim: MessageId) -> Table[MessageId]:
        table: Table[MessageId] = Table()
        announced: str | None = None
        reader = await self._client.create_reader(self.topic, receiver_queue_size=AT_ONCE)
        try:
            while True:
                found = await _next(reader)
                for message in found:
                    if message.message_id == claim:
                        if announced is not None:
                            await self._end(announced)  # its acknowledgements may be undone after its records
                        return table
                    announced = message.properties.get(TXN, announced)
                    _load(table, message)
                if not found and announced is not None:
                    await self._end(announced)
                    announced = None
        finally:
            await reader.close()

    async def _end(self, announced: str) -> None:
        """End the predecessor's last transaction, if it is open; when that cannot be done, its timeout does it."""
        try:
            await self._client.attach_transaction(announced).abort()
        except PulsarError as error:
            logger.debug("%s: %s is not aborted: %s", self.topic, announced, error)

    async def write(self, records: Sequence[tuple[str, Value | None]], txn: AsyncTransaction | None) -> list[SendTicket]:
        """Send the records, in the transaction if there is one. In a transaction it waits until they are stored."""
        if txn is None:
            return [await self._send(key, value, None) for key, value in records]
        await txn.inside.open_now()
        await (await self._queue(b"", key=OWNER_KEY, properties={TXN: str(txn.id)}))
        tickets = [await self._send(key, value, txn) for key, value in records]
        if not tickets:
            tickets = [await self._queue(b"", key=OWNER_KEY, txn=txn)]
        for ticket in tickets:
            await ticket
        return tickets

    async def _send(self, key: str, value: Value | None, txn: AsyncTransaction | None) -> SendTicket:
        if isinstance(value, int):
            return await self._queue(str(value).encode(), key=key, txn=txn, properties={KIND: COUNTER})
        return await self._queue(value, key=key, txn=txn)

    async def _queue(self, payload: bytes | None, **options: Any) -> SendTicket:
        producer = self._producer
        if producer is None:
            raise RuntimeError("the state is not open")
        while True:
            try:
                return producer.send_nowait(payload, **options)
            except ProducerQueueFull:
                await producer.wait_for_room()

    async def trim(self, position: MessageId) -> None:
        """Allow the broker to remove everything up to this position. A failure is logged: the next call removes more."""
        try:
            guard = await self._client.subscribe(
                self.topic, SUBSCRIPTION, consumer_type=ConsumerType.FAILOVER, receiver_queue_size=1
            )
            try:
                await guard.acknowledge_cumulative(position, receipt=True)
            finally:
                await guard.close()
        except PulsarError as error:
            logger.warning("%s: the beginning of the state's topic was not removed: %s", self.topic, error)

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.close()


async def _next(reader: AsyncReader[bytes]) -> Sequence[Message[bytes]]:
    """Return what is there; nothing when nothing came for a while."""
    try:
        async with asyncio.timeout(QUIET):
            return await reader.read_many(AT_ONCE)
    except TimeoutError:
        return ()


def _load(table: Table[MessageId], message: Message[bytes]) -> None:
    key = message.key
    if key is None or key == OWNER_KEY:
        table.load(None, None, message.message_id)
    else:
        table.load(key, record_of(message), message.message_id)


def record_of(message: Message[bytes]) -> Value | None:
    """The value that a record gives its key; None deletes it."""
    if message.is_tombstone:
        return None
    return int(message.data) if message.properties.get(KIND) == COUNTER else message.data
