"""State of a function: its table in memory, the topic that is its log, and a read without ownership (`read_key`).

The topic holds one record for each change of a key; the last record of a key counts. The table, which does no IO, keeps the
order of the last records: the key with the oldest one comes first. When less than half of the topic is in use, each write
also copies some of the oldest keys to the end. Everything before the oldest last record is garbage. So the topic has at most
about three times as many records as there are keys, whatever the broker compacts.

A state has one owner. The producer of a new owner fences the old one, then writes a claim and reads the topic until the
claim. Readers see committed messages only, and nothing after an open transaction. So when the claim is read, every
transaction that wrote here before the fence has ended, and its outcome is part of what was read. The old owner can write
nothing more; because every transaction that uses the state writes at least one record here, none of its later transactions
can commit.

Before its records each transaction announces its id in a plain message. A new owner ends the announced transaction of its
predecessor, so it need not wait for the timeout. `read_key` fences nobody and sees committed values only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pulsar_txn.client import AccessMode, AsyncTransaction, ConsumerType, InitialPosition, MessageId
from pulsar_txn.client.errors import ProducerQueueFull, PulsarError
from pulsar_txn.client.inside import open_now

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncReader, Message
    from pulsar_txn.client.messages import SendTicket

P = TypeVar("P")
"""A position in the topic."""
Value: TypeAlias = int | bytes
"""A counter, or what `put_state` was given."""

SLACK: Final = 1000
"""Records that are never worth cleaning."""
COPIES: Final = 16
"""Keys that a write copies at least when it cleans."""
MARK_EVERY: Final = 1000
"""While the topic is read, one position is remembered for this number of records."""


class Table(Generic[P]):
    """Counters and values by key. Changes are seen at once, and are kept or dropped together."""

    def __init__(self) -> None:
        self._live: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        """Committed values with the number of their last record, in the order of these numbers."""
        self._changed: dict[str, Value | None] = {}
        self._copied: list[str] = []
        self._count = 0
        """Records of the topic so far."""
        self._marks: deque[tuple[int, P]] = deque()
        """(n, position): the first n records are at or before that position."""
        self._given = 0
        """The number of records that `garbage` has answered."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def records(self) -> int:
        """Records of the topic that are not garbage at its beginning."""
        return self._count - self._first_needed()

    def get(self, key: str) -> Value | None:
        """The value of a key as the current call sees it."""
        if key in self._changed:
            return self._changed[key]
        found = self._live.get(key)
        return None if found is None else found[0]

    def set(self, key: str, value: Value | None) -> None:
        """Change a key until `keep` or `drop`; None deletes it."""
        self._changed[key] = value

    def committed(self) -> Iterator[tuple[str, Value]]:
        """All committed keys with their values, the oldest first."""
        return ((key, found[0]) for key, found in self._live.items())

    def load(self, key: str | None, value: Value | None, position: P) -> None:
        """One record that was read from the topic; no key: one that holds no state."""
        if key is not None:
            self._settle(key, value)
        self._count += 1
        if self._count % MARK_EVERY == 0:
            self.mark(self._count, position)

    def to_write(self) -> list[tuple[str, Value | None]]:
        """The records that make the changes durable, and copies of old ones when the topic has too much garbage."""
        needed = 2 * len(self._live) + SLACK
        if self.records > needed and self._changed:
            most = 2 * len(self._changed) + COPIES
            self._copied = [key for key in islice(self._live, most) if key not in self._changed]
        else:
            self._copied = []
        return [*((key, self._live[key][0]) for key in self._copied), *self._changed.items()]

    def keep(self, extra: int = 0) -> int:
        """Keep what `to_write` gave, which is committed, and `extra` records that hold no state.

        Returns the number of records so far.
        """
        for key in self._copied:
            self._settle(key, self._live[key][0])
            self._count += 1
        for key, value in self._changed.items():
            self._settle(key, value)
            self._count += 1
        self._count += extra
        self.drop()
        return self._count

    def mark(self, number: int, position: P) -> None:
        """The first `number` records of the topic are at or before this position."""
        self._marks.append((number, position))

    def drop(self) -> None:
        """Forget the changes."""
        self._changed, self._copied = {}, []

    def garbage(self, least: int) -> P | None:
        """A position up to which everything is garbage, when that is `least` more records than at the last answer."""
        first, found = self._first_needed(), None
        if first - self._given < least:
            return None
        while self._marks and self._marks[0][0] <= first:
            self._given, found = self._marks.popleft()
        return found

    def _first_needed(self) -> int:
        """The number of the oldest record that is of use."""
        for _, number in self._live.values():
            return number
        return self._count

    def _settle(self, key: str, value: Value | None) -> None:
        self._live.pop(key, None)
        if value is not None:
            self._live[key] = (value, self._count)


logger = logging.getLogger("pulsar_txn.pipeline.functions")

OWNER_KEY: Final = "\x00owner"
"""The key of claims and announcements. Keys of functions never begin with this character."""
SUBSCRIPTION: Final = "function-state"
"""Cursor that keeps live values from being trimmed; the owner moves it."""
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
        await open_now(txn)
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
            logger.warning(
                "%s: old entries of the state were not released (%s); a later attempt releases them", self.topic, error
            )

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.close()


async def _next(reader: AsyncReader[bytes]) -> Sequence[Message[bytes]]:
    """Messages that have come; none when nothing came for a while."""
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


async def read_key(client: AsyncClient, topic: str, key: str) -> tuple[Value, MessageId] | None:
    """The value of a key, with the place of its record. It reads the topic, and keeps nothing else in memory."""
    found: tuple[Value, MessageId] | None = None
    async with await client.create_reader(topic, receiver_queue_size=AT_ONCE) as reader:
        while await reader.has_message_available():
            for message in await reader.read_many(AT_ONCE):
                if message.key == key:
                    value = record_of(message)
                    found = None if value is None else (value, message.message_id)
    return found
