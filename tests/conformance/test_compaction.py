"""Readers of compacted topics see what was committed, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from admin import eventually, get_json, put, topic_path
from rows import row
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncProducer


async def compact(pulsar: Target, topic: str) -> None:
    """Compact the topic, and wait until that is done."""
    await put(pulsar, f"{topic_path(topic)}/compaction")
    done: dict[str, Any] = await eventually(
        lambda: get_json(pulsar, f"{topic_path(topic)}/compaction"), lambda found: found["status"] != "RUNNING"
    )
    assert done["status"] == "SUCCESS", done


async def read_compacted(client: AsyncClient, topic: str) -> list[tuple[str | None, bytes]]:
    """Keys and payloads that a reader of the compacted topic finds now."""
    found = []
    async with await client.create_reader(topic, read_compacted=True) as reader:
        while await reader.has_message_available():
            message = await reader.read_next(timeout=20)
            found.append((message.key, message.data))
    return found


async def send(client: AsyncClient, producer: AsyncProducer[bytes], keys: str, payload: bytes, end: str) -> None:
    """The payload for each key, in a transaction of their own that then ends."""
    txn = await client.begin_transaction()
    for key in keys:
        producer.send_nowait(payload, key=key, txn=txn)
    await producer.flush()
    await getattr(txn, end)()


@row(56)
async def test_before_a_compaction_a_compacted_reader_sees_what_was_committed(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"plain", key="a")
    await send(client, producer, "a", b"aborted", "abort")
    await send(client, producer, "b", b"committed", "commit")
    is_open = await client.begin_transaction()
    await producer.send(b"open", key="c", txn=is_open)
    await producer.send(b"behind", key="d")
    assert await read_compacted(client, topic) == [("a", b"plain"), ("b", b"committed")]
    await is_open.commit()
    everything = [("a", b"plain"), ("b", b"committed"), ("c", b"open"), ("d", b"behind")]
    assert await read_compacted(client, topic) == everything


@row(56)
@pytest.mark.parametrize("batching", [False, True])
async def test_a_compaction_keeps_the_last_committed_message_of_each_key(
    pulsar: Target, client: AsyncClient, topic: str, batching: bool
) -> None:
    producer = await client.create_producer(topic, batching=batching)
    await send(client, producer, "abc", b"1", "commit")
    await send(client, producer, "abc", b"2", "commit")
    await send(client, producer, "a", b"aborted", "abort")
    await producer.send(b"3", key="b")
    is_open = await client.begin_transaction()
    await producer.send(b"open", key="c", txn=is_open)
    await compact(pulsar, topic)
    assert await read_compacted(client, topic) == [("a", b"2"), ("c", b"2"), ("b", b"3")]
    await is_open.commit()
    assert await read_compacted(client, topic) == [("a", b"2"), ("c", b"2"), ("b", b"3"), ("c", b"open")]
    await compact(pulsar, topic)
    assert await read_compacted(client, topic) == [("a", b"2"), ("b", b"3"), ("c", b"open")]
