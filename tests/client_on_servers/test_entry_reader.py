"""Entry readers: whole entries in order, over reconnects, and never much more than was asked for in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client import EARLIEST_ID, AsyncClient, MessageId, TopicNotFound
from pulsar_txn.client.encoded import (
    AsyncEntryReader,
    UnreadableEntryError,
    existing_partitions,
    open_entry,
    open_entry_reader,
    split_entry_payload,
)
from pulsar_txn.client.state.permits import LARGEST, Permits
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.batches import decode_batch, encode_batch, split_batch
from pulsar_txn.wire.errors import MalformedBatch


async def all_values(reader: AsyncEntryReader, count: int, *, pause: Callable[[], Any] | None = None) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        entries = await reader.take(1, 10)
        assert entries, f"only {len(found)} of {count} came"
        for entry in entries:
            payloads, _, _ = split_entry_payload(open_entry(entry.data))
            assert len(payloads) == entry.num_messages
            found += payloads
        if pause is not None:
            await pause()
    return found


async def send(client: AsyncClient, topic: str, values: list[bytes], **options: Any) -> list[MessageId]:
    async with await client.create_producer(topic, **options) as producer:
        return list(await asyncio.gather(*(producer.send(value) for value in values)))


@pytest.mark.parametrize("batched", [True, False])
async def test_entries_come_in_order_from_the_one_that_was_asked_for(client: AsyncClient, topic: str, batched: bool) -> None:
    values = [str(number).encode() for number in range(50)]
    ids = await send(client, topic, values, batching=batched, batching_max_messages=7)
    reader = await open_entry_reader(client, topic, EARLIEST_ID)
    assert await all_values(reader, 50) == values
    assert (await reader.last_message_id()).position == ids[-1].position
    assert await reader.take(1, 0.01) == []
    middle = ids[25]
    again = await open_entry_reader(client, topic, MessageId(*middle.position))
    first = (await again.take(1, 10))[0]
    assert first.position == middle.position


async def test_nothing_is_created_by_reading(client: AsyncClient, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await open_entry_reader(client, topic, EARLIEST_ID)
    with contextlib.suppress(TopicNotFound):  # some brokers tell it from a topic without partitions, ours does not
        assert await existing_partitions(client, topic) == [topic]
    with pytest.raises(TopicNotFound):
        await open_entry_reader(client, topic, EARLIEST_ID)


async def test_messages_of_some_mebibytes_wait_with_the_broker(client: AsyncClient, topic: str) -> None:
    mebibyte = 1024 * 1024
    values = [bytes([number]) * mebibyte for number in range(40)]
    await send(client, topic, values, batching=False)
    reader = await open_entry_reader(client, topic, EARLIEST_ID, queue_bytes=4 * mebibyte)
    most = 0

    async def look() -> None:
        nonlocal most
        await asyncio.sleep(0.02)  # the broker sends what it may meanwhile
        most = max(most, sum(len(entry.data) for entry in reader.waiting()))

    await reader.wait(10)
    assert await all_values(reader, 40, pause=look) == values
    assert 0 < most <= 6 * mebibyte
    assert reader.paused == 0, "permits alone kept the bound"


async def test_a_jump_in_size_is_kept_within_twice_the_queue_and_loses_nothing(client: AsyncClient, topic: str) -> None:
    size = 256 * 1024
    small = [b"%d" % number for number in range(400)]
    large = [bytes([number]) * size for number in range(60)]
    await send(client, topic, small + large, batching=False)
    reader = await open_entry_reader(client, topic, EARLIEST_ID, queue_bytes=2 * 1024 * 1024)
    most = 0

    async def slow() -> None:
        nonlocal most
        await asyncio.sleep(0.005)
        most = max(most, sum(len(entry.data) for entry in reader.waiting()))

    assert await all_values(reader, 460, pause=slow) == small + large
    assert reader.paused > 0
    assert most <= 2 * 2 * 1024 * 1024 + size


async def test_a_reader_goes_on_after_its_connection_broke(client: AsyncClient, topic: str) -> None:
    values = [str(number).encode() for number in range(30)]
    await send(client, topic, values[:20], batching=False)
    reader = await open_entry_reader(client, topic, EARLIEST_ID)
    found = await all_values(reader, 15)
    for connection in core_of(client).pool.current():
        connection.close()
    await send(client, topic, values[20:], batching=False)
    assert found + await all_values(reader, 15) == values


def test_permits_follow_the_sizes_that_come() -> None:
    permits = Permits(1000, 10 * LARGEST)
    assert permits.start_over() == 10
    permits.arrived(1, 5 * LARGEST // 10)
    assert permits.allowed == 20
    assert permits.due() == 10
    permits.arrived(1000, 1000 * 100)
    assert permits.allowed > 20, "smaller ones count slowly"
    for _ in range(200):
        permits.arrived(1000, 1000 * 100)
    assert permits.allowed == 1000
    permits.arrived(1, LARGEST)
    assert permits.allowed == 10, "a large one counts at once"
    permits.left(20)
    assert permits.held == 0
    assert permits.due() == 10


@given(sizes=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 10**7)), max_size=50), budget=st.integers(1, 10**8))
def test_permits_never_stop_for_ever_and_never_pass_the_most(sizes: list[tuple[int, int]], budget: int) -> None:
    permits = Permits(1000, budget)
    assert permits.start_over() >= 1
    for messages, size in sizes:
        permits.arrived(messages, size)
        permits.left(messages)
        permits.due()
        assert 1 <= permits.held <= 1000


message = st.tuples(
    st.binary(max_size=300),
    st.none() | st.text(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=2),
    st.sampled_from([0, 5]),
    st.none() | st.integers(0, 2**40),
    st.none() | st.binary(max_size=3),
    st.booleans(),
)


@given(st.lists(st.binary(max_size=20_000) | message, min_size=1, max_size=20))
def test_a_batch_is_split_as_it_is_decoded(messages: list[Any]) -> None:
    payload = encode_batch(messages)
    decoded = decode_batch(payload, len(messages))
    payloads, numbers, others = split_batch(payload, len(messages))
    assert payloads == [row[0] for row in decoded]
    assert others == {index: row for index, row in enumerate(decoded) if index in others}
    for index, row in enumerate(decoded):
        if index not in others:
            assert row[1:] == (None, None, 0, numbers.get(index), None, False, False, False)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_a_damaged_batch_is_refused_by_both(messages: list[bytes], data: st.DataObject) -> None:
    payload = bytearray(encode_batch(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = [row[0] for row in decode_batch(payload, len(messages))]
    except MalformedBatch:
        with pytest.raises(MalformedBatch):
            split_batch(payload, len(messages))
    else:
        assert split_batch(payload, len(messages))[0] == expected


def test_what_is_no_entry_is_unreadable() -> None:
    for data in (b"", b"\x0e\x01", b"\x0e\x01\0\0\0\0\0\0\0\x01x"):
        with pytest.raises(UnreadableEntryError):
            open_entry(data)
