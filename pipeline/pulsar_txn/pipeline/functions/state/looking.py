"""Looking at a state without owning it: nobody is fenced, and only what is committed is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_txn.client import MessageId
from pulsar_txn.pipeline.functions.state.log import AT_ONCE, record_of
from pulsar_txn.pipeline.functions.state.table import Value

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient


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
