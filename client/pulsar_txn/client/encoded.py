"""Messages in the form in which topics keep them: batches that were encoded elsewhere, and whole entries.

Sending: a program encodes batches before, perhaps in other processes, and sends them as they are. A batch can be pickled.

    batch = encode_batch([row(b"one", key="k"), b"two"])
    await producer.send_encoded(batch)

Reading: an entry reader hands out entries of one topic partition as the broker stores them; `open_entry` and
`split_entry_payload` decode them, without an object per message.

    reader = await open_entry_reader(client, partition, EARLIEST_ID)
    for entry in await reader.take(1_000_000, timeout=1.0):
        payloads, sequence_ids, others = split_entry_payload(open_entry(entry.data))
"""

from __future__ import annotations

import re
from typing import Any

from pulsar_txn.client.client import AsyncClient, parse_topic
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.net.retries import count_partitions, find_schema
from pulsar_txn.client.receive.entry_reader import AsyncEntryReader, OnGap, RawEntry
from pulsar_txn.client.receive.entry_verification import (
    OpenedEntry,
    UnreadableEntryError,
    join_chunks,
    open_entry,
    split_entry_payload,
)
from pulsar_txn.client.receive.options import RegexSubscriptionMode
from pulsar_txn.client.schema.base import EncodedSchema, SchemaInfo
from pulsar_txn.client.schema.key_value import encoding_of, join_pair, pair_info, parts_of, split_pair
from pulsar_txn.client.schema.protobuf import message_class
from pulsar_txn.client.send.batching import EncodedBatch, Row, encode_batch, pack_batch, row
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

__all__ = [
    "AsyncEntryReader",
    "EncodedBatch",
    "EncodedSchema",
    "OnGap",
    "OpenedEntry",
    "RawEntry",
    "Row",
    "SchemaInfo",
    "UnreadableEntryError",
    "encode_batch",
    "encoding_of",
    "existing_partitions",
    "join_chunks",
    "join_pair",
    "matching_topics",
    "message_class",
    "open_entry",
    "open_entry_reader",
    "pack_batch",
    "pair_info",
    "parts_of",
    "row",
    "split_entry_payload",
    "split_pair",
    "topic_schema",
]


async def open_entry_reader(
    client: AsyncClient,
    partition: str,
    start: MessageId,
    *,
    queue_bytes: int = 16 * 1024 * 1024,
    may_create: bool = False,
    most: int = 0,
    on_gap: OnGap | None = None,
) -> AsyncEntryReader:
    """A reader of a topic partition, or of a topic without partitions, that begins with the entry `start`.

    `EARLIEST_ID` is the first entry. About `queue_bytes` wait here at most, and with `most` so many messages. Without
    `may_create` a topic that does not exist stays so, and is TopicNotFound. Raises as `AsyncClient.create_reader`.

    `on_gap(before, after)` is told of two entries that came one after the other although their positions do not follow each
    other. There was the end of a ledger, something that readers do not see, or entries that the topic has lost.
    """
    core = core_of(client)
    core.check_open()
    name = parse_topic(partition)
    bounds: dict[str, Any] = {"queue_bytes": queue_bytes, "may_create": may_create, "most": most}
    reader = AsyncEntryReader(core, str(name), name.partition, start, **bounds, on_gap=on_gap)
    await reader.start()
    return reader


async def existing_partitions(client: AsyncClient, topic: str) -> list[str]:
    """The full names of a topic's partitions; the topic itself when it has none, or does not exist. Creates nothing.

    Brokers that know the difference raise TopicNotFound. One partition that is named is returned as it is.
    """
    core = core_of(client)
    core.check_open()
    name = parse_topic(topic)
    return partition_names(name, await count_partitions(core, name, create=False))


async def matching_topics(client: AsyncClient, pattern: str) -> list[str]:
    """The full names of the topics and partitions of a namespace that match a pattern now, as `AsyncClient.subscribe` reads it.

    `tenant/namespace/regular expression`, or only the expression for `public/default`. Raises as `subscribe`.
    """
    core = core_of(client)
    core.check_open()
    return sorted(await TopicPattern.parse(re.compile(pattern)).find(core, RegexSubscriptionMode.PERSISTENT_ONLY))


async def topic_schema(client: AsyncClient, topic: str, version: bytes = b"") -> SchemaInfo | None:
    """The newest schema of a topic, or the one of a version that messages name; None if absent. Raises as `create_producer`."""
    core = core_of(client)
    core.check_open()
    name = str(parse_topic(topic).base)
    found = await find_schema(core, name, version)
    return None if found is None else SchemaInfo.of(found)


def partition_names(name: TopicName, count: int) -> list[str]:
    """The full names of `count` partitions; the topic itself for 0."""
    return [str(name.with_partition(index)) for index in range(count)] or [str(name)]
