"""Compaction: the newest committed message of each key, for readers that ask for it; whole or not there, also after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from admin_client import Admin, admin_of
from raw_client import FULL, RawClient, Refused
from topic_views import compact, read, visible

from pulsar_txn.broker.topics.compacted_entries import reduced
from pulsar_txn.ledger.protocols import DiskFull
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch, encode_batch
from pulsar_txn.wire.compression import ZSTD, compress, decompress
from pulsar_txn.wire.entries import encode_entry, split_entry
from pulsar_txn.wire.errors import ServerError

COMPACTION = "/admin/v2/persistent/public/default/a/compaction"
Keyed = Sequence[tuple[str | None, bytes]]


async def send(client: RawClient, *messages: tuple[str | None, bytes], **options: Any) -> None:
    for key, payload in messages:
        await client.sent(payload, key=key, **options)


async def send_batch(client: RawClient, messages: Keyed, compression: int = 0, **fields: Any) -> Any:
    """A batch with keys, compressed."""
    payload = encode_batch([(data, key) for key, data in messages])
    if compression:
        fields |= {"compression": compression, "uncompressed_size": len(payload)}
        payload = compress(compression, payload)
    return await client.sent(payload, fields={"num_messages_in_batch": len(messages), **fields})


@pytest.mark.seed_rows("C47")
async def test_of_each_key_the_newest_message_is_left_at_its_place(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await send(client, ("a", b"1"), ("b", b"1"), (None, b"no key"), ("a", b"2"), ("c", b"1"), ("c", b""), ("d", b"1"))
    assert await read(bench) == await read(bench, compacted=False)
    await compact(bench, client)
    assert await read(bench) == [("b", b"1"), ("a", b"2"), ("d", b"1")]
    await send(client, ("b", b"2"))
    assert await read(bench) == [("b", b"1"), ("a", b"2"), ("d", b"1"), ("b", b"2")]
    assert len(await read(bench, compacted=False)) == 8
    await compact(bench, client)
    assert await read(bench) == [("a", b"2"), ("d", b"1"), ("b", b"2")]


async def test_a_compaction_of_nothing_and_of_what_was_all_removed(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await compact(bench, client)
    assert await read(bench) == []
    await send(client, ("a", b"1"), ("a", b""))
    await compact(bench, client)
    assert await read(bench) == []
    await send(client, ("a", b"2"))
    assert await read(bench) == [("a", b"2")]


@pytest.mark.seed_rows("C47", "C49", "C52")
async def test_only_what_is_committed_counts(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await send(client, ("a", b"plain"), ("b", b"plain"))
    kept, dropped, still_open = [await client.new_txn() for _ in range(3)]
    for txn in (kept, dropped, still_open):
        await client.add_topics(txn, FULL + "a")
    await send(client, ("a", b"kept"), txn=kept)
    await send(client, ("a", b"dropped"), ("b", b""), txn=dropped)
    await client.end(kept)
    await client.abort(dropped)
    await send(client, ("b", b"open"), txn=still_open)
    await send(client, ("a", b"behind the open one"))
    await compact(bench, client)
    assert await read(bench) == [("b", b"plain"), ("a", b"kept")]
    await client.end(still_open)
    assert (await read(bench))[-2:] == [("b", b"open"), ("a", b"behind the open one")]
    await compact(bench, client)
    assert await read(bench) == [("b", b"open"), ("a", b"behind the open one")]


@pytest.mark.seed_rows("C54")
@pytest.mark.parametrize("buffer", ["topic", "half-topic"])
async def test_an_old_horizon_costs_only_less_compaction(benches: Any, buffer: str) -> None:
    """What readers may see is published once it is durable, so compaction may begin with an older position than the newest."""
    bench = await benches(transaction_buffer_provider_class_name=buffer).start()
    client = bench.client()
    await client.producer("a")
    await send(client, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    topic = bench.broker.topics[FULL + "a"]
    old = topic.published
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await send(client, ("a", b"3"), txn=txn)
    await send(client, ("b", b"2"))
    await client.end(txn)
    newest, topic.host.published = topic.published, old
    await compact(bench, client)
    assert topic.compaction.view.horizon == old < newest
    topic.host.published = newest
    assert sorted(await read(bench)) == [("a", b"2"), ("a", b"3"), ("b", b"1"), ("b", b"2")], "less, and nothing is missing"
    await bench.crash()
    client = bench.client()
    await client.producer("a")
    assert sorted(await read(bench)) == [("a", b"2"), ("a", b"3"), ("b", b"1"), ("b", b"2")]
    await compact(bench, client)
    assert sorted(await read(bench)) == [("a", b"3"), ("b", b"2")]


@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_a_compacted_topic_is_one_after_a_restart_too(bench: Any, how: str) -> None:
    client = bench.client()
    await client.producer("a")
    await send(client, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    await compact(bench, client)
    await send(client, ("b", b"2"))
    await getattr(bench, how)()
    assert await read(bench) == [("b", b"1"), ("a", b"2"), ("b", b"2")]
    client = bench.client()
    await client.subscribe("a", "other")
    await compact(bench, client)
    assert await read(bench) == [("a", b"2"), ("b", b"2")]
    assert len([name for name in bench.store.names() if "/compacted/" in name]) == 1


async def test_a_compaction_that_fails_leaves_the_copy_before_and_can_be_repeated(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.producer("a")
    await send(client, ("a", b"1"), ("a", b"2"))
    await compact(bench, client)
    await send(client, ("a", b"3"))
    compaction = bench.broker.topics[FULL + "a"].compaction
    opened = bench.store.open

    async def full(name: str, **options: Any) -> Any:
        log = await opened(name, **options)
        if "/compacted/" in name:
            monkeypatch.setattr(log, "append", _no_room)
        return log

    monkeypatch.setattr(bench.store, "open", full)
    compaction.start()
    await client.until(lambda: compaction.status != "RUNNING")
    assert compaction.status == "ERROR"
    assert "no room" in compaction.error
    assert await read(bench) == [("a", b"2"), ("a", b"3")]
    monkeypatch.setattr(bench.store, "open", opened)
    await compact(bench, client)
    assert await read(bench) == [("a", b"3")]


def _no_room(data: Any, *, reserve: bool = False) -> Any:
    raise DiskFull("no room")


async def test_a_crash_in_the_middle_leaves_the_copy_before(bench: Any) -> None:
    client = bench.client()
    await client.producer("a")
    await send(client, ("a", b"1"), ("a", b"2"))
    await compact(bench, client)
    await send(client, ("a", b"3"))
    compaction = bench.broker.topics[FULL + "a"].compaction
    compaction._copy = _never  # the new log is there, and has no snapshot yet
    compaction.start()
    await client.settle()
    await bench.crash()
    assert await read(bench) == [("a", b"2"), ("a", b"3")]
    assert len([name for name in bench.store.names() if "/compacted/" in name]) == 1


async def _never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def test_a_reader_that_is_on_its_way_goes_on_in_the_new_copy(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await send(client, *[(f"k{number}", b"1") for number in range(20)])
    await compact(bench, client)
    reader = bench.client()
    start = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    await reader.subscribe("a", "r", permits=5, durable=False, read_compacted=True, start_message_id=start)
    assert len(await reader.payloads(5)) == 5
    await send(client, *[(f"k{number}", b"2") for number in range(0, 20, 2)])
    await compact(bench, client)
    reader.flow(100)
    await reader.settle(200)
    later = [each for message in reader.messages[0] for each in visible(message)]
    assert set(later) >= {(f"k{number}", b"2") for number in range(0, 20, 2)}
    assert [each for each in later if each[1] == b"1"] == [(f"k{number}", b"1") for number in range(5, 20) if number % 2]


async def test_what_was_trimmed_is_still_in_the_copy_and_what_is_not_compacted_is_not_trimmed(benches: Any) -> None:
    bench = await benches(managed_ledger_max_entries_per_ledger=1).start()
    client = bench.client()
    await client.producer("a")
    await send(client, ("a", b"1"), ("b", b"1"), ("a", b"2"))
    await compact(bench, client)
    topic = bench.broker.topics[FULL + "a"]
    for message in (("b", b"2"), ("b", b"3")):
        topic.sweep()  # cuts before the message, and trims up to the cut if nobody needs what is before it
        await client.settle()
        await send(client, message)
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries == 2
    assert await read(bench, compacted=False) == [("b", b"2"), ("b", b"3")]
    assert await read(bench) == [("b", b"1"), ("a", b"2"), ("b", b"2"), ("b", b"3")]
    await bench.restart()
    assert await read(bench) == [("b", b"1"), ("a", b"2"), ("b", b"2"), ("b", b"3")]


async def test_the_last_message_of_a_reader_of_the_copy_is_one_that_it_gets(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", read_compacted=True)
    position = await client.sent(b"1", key="a")
    await send(client, ("b", b"1"), ("b", b""))
    await compact(bench, client)
    answer = await client.request("getLastMessageId", consumer_id=0)
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == position
    await send(client, ("a", b""))
    await compact(bench, client)
    answer = await client.request("getLastMessageId", consumer_id=0)
    assert answer.last_message_id.entryId == 2**64 - 1
    last = await client.sent(b"2", key="c")
    answer = await client.request("getLastMessageId", consumer_id=0)
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == last


@pytest.mark.parametrize("compression", [0, ZSTD])
async def test_of_a_batch_the_places_stay(client: RawClient, bench: Any, compression: int) -> None:
    await client.producer("a")
    await send_batch(client, [("a", b"1"), ("b", b"1"), ("a", b"2"), (None, b"x"), ("c", b"")], compression)
    await send_batch(client, [("d", b"1"), ("e", b"1")], compression)
    await send_batch(client, [("d", b"2"), ("b", b"2")], compression)
    await compact(bench, client)
    reader = bench.client()
    start = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    raw: list[list[tuple[str | None, bytes, bool]]] = []
    await reader.subscribe("a", "r", durable=False, read_compacted=True, start_message_id=start, permits=100)
    await reader.settle(200)
    for message in reader.messages[0]:
        raw.append([(row[2], row[0], row[7]) for row in rows_of(message.entry)])
    assert raw == [
        [("a", b"", True), ("b", b"", True), ("a", b"2", False), (None, b"", True), ("c", b"", True)],
        [("d", b"", True), ("e", b"1", False)],
        [("d", b"2", False), ("b", b"2", False)],
    ]


def rows_of(entry: bytes) -> list[Any]:
    raw, payload = split_entry(entry)
    metadata = pb.MessageMetadata.FromString(raw)
    data = decompress(metadata.compression, payload, metadata.uncompressed_size, max_size=1 << 20)
    return decode_batch(data, metadata.num_messages_in_batch)


async def test_a_batch_that_cannot_be_looked_into_is_kept_whole(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    sealed = {"num_messages_in_batch": 2, "encryption_keys": [{"key": "k", "value": b"v"}]}
    broken = {"num_messages_in_batch": 2, "compression": ZSTD, "uncompressed_size": 100}
    for fields in (sealed, broken):
        await client.sent(b"nobody reads this", fields=fields)
    await send(client, ("a", b"1"))
    await compact(bench, client)
    stored = bench.broker.topics[FULL + "a"].compaction.view
    assert len(stored) == 3


async def test_chunks_stay_together(client: RawClient, bench: Any) -> None:
    await client.producer("a")

    async def chunk(message: str, chunk_id: int) -> None:
        fields = {"uuid": message, "num_chunks_from_msg": 2, "chunk_id": chunk_id, "partition_key": "a"}
        await client.sent(f"{message}{chunk_id}".encode(), fields=fields)

    for message in ("x", "y"):
        await chunk(message, 0)
        await chunk(message, 1)
    await chunk("z", 0)
    await compact(bench, client)
    assert [payload for _, payload in await read(bench)] == [b"y0", b"y1", b"z0"]
    await chunk("z", 1)
    await compact(bench, client)
    assert [payload for _, payload in await read(bench)] == [b"z0", b"z1"]


def test_an_entry_of_which_everything_stays_is_not_touched() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    entry = encode_entry(metadata, encode_batch([(b"1", "a")]))
    assert reduced((1, 1), entry, {"a": ((1, 1), 0)}, set()) is entry
    newest: Mapping[str, Any] = {"a": ((1, 2), 0)}
    assert reduced((1, 1), entry, newest, set()) is None


async def test_only_one_consumer_may_read_the_copy(client: RawClient) -> None:
    for kind in (1, 3):
        with pytest.raises(Refused) as refused:
            await client.subscribe("a", kind=kind, read_compacted=True)
        assert refused.value.code == ServerError.NotAllowedError
        assert "readCompacted only allowed on failover or exclusive subscriptions" in str(refused.value)


# ---- over HTTP, as stock 4.2.4 answers


async def test_a_compaction_is_asked_for_and_watched_over_http(admin: Admin, client: RawClient, bench: Any) -> None:
    assert (await admin("PUT", COMPACTION))[0] == 404
    await client.producer("a")
    await send(client, ("a", b"1"), ("a", b"2"))
    assert await admin("GET", COMPACTION) == (200, {"status": "NOT_RUN", "lastError": ""})
    compaction = bench.broker.topics[FULL + "a"].compaction
    compaction.start()
    assert await admin("PUT", COMPACTION) == (409, {"reason": "Compaction already in progress"})
    await client.until(lambda: compaction.status == "SUCCESS")
    assert await admin("GET", COMPACTION) == (200, {"status": "SUCCESS", "lastError": ""})
    assert await admin("PUT", COMPACTION) == (204, "")


async def test_the_copy_goes_with_its_topic_and_is_no_topic(bench: Any) -> None:
    client = bench.client()
    await client.producer("a")
    await send(client, ("a", b"1"))
    await compact(bench, client)
    async with admin_of(bench) as admin:
        assert await admin("GET", "/admin/v2/persistent/public/default") == (200, [FULL + "a"])
        assert (await admin("DELETE", "/admin/v2/persistent/public/default/a?force=true"))[0] == 204
    assert not [name for name in bench.store.names() if "default" in name]


async def test_all_partitions_are_compacted(admin: Admin, client: RawClient) -> None:
    await admin("PUT", "/admin/v2/persistent/public/default/p/partitions", 2)
    assert await admin("PUT", "/admin/v2/persistent/public/default/p/compaction") == (204, "")
    parts = [admin.broker.topics[f"{FULL}p-partition-{index}"] for index in range(2)]
    await client.until(lambda: all(each.compaction.status == "SUCCESS" for each in parts))
