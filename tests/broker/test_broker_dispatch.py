"""Subscriptions and dispatchers, in frames: order, permits, redelivery, ownership."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.dispatch.waiting import Replay
from pulsar_txn.broker.topics import dispatcher as dispatch
from pulsar_txn.ledger.protocols import ReadFailed
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot import encode_send
from pulsar_txn.wire.ids import unsigned64

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


async def test_permits_count_messages_and_a_batch_may_overdraw_them_once(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", permits=2)
    for _ in range(3):
        await client.sent([b"1", b"2", b"3"])
    await client.settle()
    assert len(client.messages[0]) == 1
    client.flow(1)
    await client.settle()
    assert len(client.messages[0]) == 1
    client.flow(1)
    await client.settle()
    assert len(client.messages[0]) == 2


async def test_nothing_is_sent_without_permits_and_nobody_polls_meanwhile(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", permits=0)
    await client.sent(b"1")
    dispatcher = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher
    await client.nothing()
    runs: list[int] = []
    original = dispatcher._dispatch
    dispatcher._dispatch = lambda: (runs.append(1), original())[1]
    await client.settle()
    assert runs == []
    client.flow(1)
    assert await client.payloads(1) == [b"1"]


async def test_a_slow_consumer_stops_its_dispatcher_and_not_the_others(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", "slow")
    other = bench.client()
    await other.subscribe("a", "fast")
    client.connection.pause_writing()
    assert not client.pipe.reading
    await other.producer("a", producer_name="q")
    for number in range(5):
        await other.sent(b"%d" % number, name="q")
    assert len(await other.payloads(5)) == 5
    assert not client.messages[0]
    client.connection.resume_writing()
    assert client.pipe.reading
    assert len(await client.payloads(5)) == 5


async def test_shared_goes_round_robin_and_a_lost_consumer_gives_its_messages_to_the_others(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    other = bench.client()
    await client.subscribe("a", kind=SHARED)
    await other.subscribe("a", kind=SHARED)
    for number in range(10):
        await client.sent(b"%d" % number)
    await client.settle()
    assert len(client.messages[0]) == len(other.messages[0]) == 5
    lost = [each.position for each in other.messages[0]]
    client.messages[0].clear()
    other.drop()
    again = [await client.receive() for _ in range(5)]
    assert [each.position for each in again] == lost
    assert {each.redelivery_count for each in again} == {1}


async def test_a_consumer_with_too_much_unacknowledged_gets_nothing_more(benches: Any) -> None:
    bench = await benches(max_unacked_messages_per_consumer=3).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    for number in range(6):
        await client.sent(b"%d" % number)
    await client.settle()
    assert len(client.messages[0]) == 3
    await client.ack(client.messages[0][0])
    await client.settle()
    assert len(client.messages[0]) == 4


async def test_redelivery_of_some_and_of_all(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    for number in range(3):
        await client.sent(b"%d" % number)
    messages = [await client.receive() for _ in range(3)]
    one = pb.MessageIdData(ledgerId=messages[1].position[0], entryId=messages[1].position[1])
    client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0, message_ids=[one]))
    assert (await client.receive()).payloads == [b"1"]
    await client.ack(messages[0])
    client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0))
    assert await client.payloads(2) == [b"1", b"2"]
    await client.nothing()


async def test_redelivery_on_exclusive_rewinds_and_carries_the_consumers_epoch(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", consumer_epoch=0)
    for number in range(3):
        await client.sent(b"%d" % number)
    messages = [await client.receive() for _ in range(3)]
    assert {each.epoch for each in messages} == {0}
    await client.ack(messages[0])
    client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0, consumer_epoch=1))
    again = [await client.receive() for _ in range(2)]
    assert [each.payloads for each in again] == [[b"1"], [b"2"]]
    assert {each.epoch for each in again} == {1}


async def test_batch_indexes_that_were_acknowledged_travel_in_the_ack_set(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await client.sent([b"0", b"1", b"2", b"3"])
    batch = await client.receive()
    await client.ack(batch, left=0b1010)
    client.drop()
    other = bench.client()
    await other.subscribe("a", kind=SHARED)
    again = await other.receive()
    assert (again.ack_set, again.payloads) == (0b1010, [b"1", b"3"])
    await other.ack(again, left=0b0101)
    assert bench.broker.topics[FULL + "a"].subscriptions["s"].cursor.backlog() == 0


async def test_failover_tells_who_is_active_and_hands_over(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    other = bench.client()
    await client.subscribe("a", kind=FAILOVER, consumer_name="a")
    await other.subscribe("a", kind=FAILOVER, consumer_name="b")
    await client.settle()

    def last(of: RawClient) -> bool:
        return [body.is_active for name, body in of.events if name == "active_consumer_change"][-1]

    assert last(client) is True
    assert last(other) is False
    await client.sent(b"1")
    assert await client.payloads(1) == [b"1"]
    await other.nothing()
    await client.request("close_consumer", consumer_id=0)
    assert await other.payloads(1) == [b"1"]
    assert last(other) is True


async def test_key_shared_keeps_a_key_with_one_consumer_in_order_through_a_newcomer(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED, consumer_name="one")
    for number in range(20):
        await client.sent(b"%d" % number, key=f"k{number % 10}")
    held = [await client.receive() for _ in range(20)]
    other = bench.client()
    await other.subscribe("a", kind=KEY_SHARED, consumer_name="two")
    for number in range(20, 40):
        await client.sent(b"%d" % number, key=f"k{number % 10}")
    await client.settle()
    await other.nothing()  # whatever moves to the newcomer waits for what the first one still holds
    await client.ack(*held)
    await client.settle()
    first = list(client.messages[0])
    second = list(other.messages[0])
    assert len(first) + len(second) == 20
    assert second
    keys = [{each.metadata.partition_key for each in part} for part in (first, second)]
    assert not keys[0] & keys[1]
    for part in (first, second):
        for key in {each.metadata.partition_key for each in part}:
            numbers = [int(each.payloads[0]) for each in part if each.metadata.partition_key == key]
            assert numbers == sorted(numbers)


async def test_sticky_ranges_are_obeyed_and_may_not_overlap(client: RawClient, bench: Any) -> None:
    def meta(start: int, end: int) -> pb.KeySharedMeta:
        return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)])

    other = bench.client()
    await client.subscribe("a", kind=KEY_SHARED, keySharedMeta=meta(0, 32767))
    with pytest.raises(Refused) as refused:
        await other.subscribe("a", kind=KEY_SHARED, keySharedMeta=meta(32767, 65535))
    assert refused.value.code == ServerError.ConsumerAssignError
    await other.subscribe("a", kind=KEY_SHARED, keySharedMeta=meta(32768, 65535))
    await client.producer("a")
    for number in range(40):
        await client.sent(b"x", key=f"key-{number}")
    await client.settle()
    assert len(client.messages[0]) + len(other.messages[0]) == 40
    assert client.messages[0]
    assert other.messages[0]


async def test_seek_moves_the_cursor_and_sends_its_consumers_away_first(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a")
    for number in range(5):
        await client.sent(b"%d" % number)
    messages = [await client.receive() for _ in range(5)]
    await client.ack(messages[4], cumulative=True)
    target = messages[2].position
    await client.request("seek", consumer_id=0, message_id=pb.MessageIdData(ledgerId=target[0], entryId=target[1]))
    assert [name for name, _ in client.events][1:] == ["close_consumer"]
    await client.subscribe("a")
    assert await client.payloads(3) == [b"2", b"3", b"4"]
    await bench.crash()
    again = bench.client()
    await again.subscribe("a")
    assert await again.payloads(3) == [b"2", b"3", b"4"]


async def test_seek_to_earliest_and_latest(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a")
    await client.sent(b"0")
    await client.sent(b"1")
    await client.payloads(2)
    far = 2**63 - 1
    await client.request("seek", consumer_id=0, message_id=pb.MessageIdData(ledgerId=far, entryId=far))
    await client.subscribe("a")
    await client.nothing()
    minus = unsigned64(-1)
    await client.request("seek", consumer_id=0, message_id=pb.MessageIdData(ledgerId=minus, entryId=minus))
    await client.subscribe("a")
    assert await client.payloads(2) == [b"0", b"1"]


async def test_last_message_id_looks_past_aborted_tails_and_never_beyond_what_readers_see(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", permits=0)

    async def last() -> tuple[int, int]:
        body = await client.request("getLastMessageId", consumer_id=0)
        return body.last_message_id.entryId, body.last_message_id.batch_index

    minus = unsigned64(-1)
    assert await last() == (minus, -1)
    position = await client.sent([b"0", b"1"])
    assert await last() == (position[1], 1)
    for _ in range(40):
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + "a")
        await client.sent(b"x", txn=txn)
        await client.abort(txn)
    assert await last() == (position[1], 1)
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    inside = await client.sent(b"x", txn=txn)
    assert await last() == (position[1], 1)
    await client.end(txn)
    assert await last() == (inside[1], -1)


async def test_a_reader_starts_where_it_says_and_is_gone_with_its_consumer(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    positions = [await client.sent(b"%d" % number) for number in range(4)]
    start = pb.MessageIdData(ledgerId=positions[1][0], entryId=positions[1][1])
    await client.subscribe("a", "r", durable=False, start_message_id=start)
    assert await client.payloads(3) == [b"1", b"2", b"3"]  # a client that starts after the first one skips it
    await client.request("close_consumer", consumer_id=0)
    assert bench.broker.topics[FULL + "a"].subscriptions == {}


async def test_a_subscription_without_durability_takes_transactional_acks(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", "r", kind=SHARED, durable=False)
    await client.sent(b"0")
    message = await client.receive()
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "r"))
    await client.ack(message, txn=txn)
    await client.abort(txn)
    again = await client.receive()
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "r"))
    await client.ack(again, txn=txn)
    await client.end(txn)
    await client.nothing()
    await client.request("close_consumer", consumer_id=0)


@pytest.mark.seed_rows("D65")
async def test_unsubscribe_deletes_cursor_and_redo_log_for_good(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a")
    await client.sent(b"0")
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(await client.receive(), txn=txn)
    await client.request("unsubscribe", consumer_id=0)
    assert not [name for name in bench.store.names() if "pending_ack" in name]
    await client.end(txn)  # a subscription that is gone has nothing to commit
    await bench.crash()
    again = bench.client()
    await again.subscribe("a")
    assert await again.payloads(1) == [b"0"]


async def test_a_cumulative_ack_on_shared_is_refused_when_an_answer_is_wanted(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await client.sent(b"0")
    message = await client.receive()
    with pytest.raises(Refused) as refused:
        await client.ack(message, cumulative=True)
    assert refused.value.code == ServerError.NotAllowedError


async def test_ack_receipts_come_when_the_ack_is_durable(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a")
    await client.sent(b"0")
    message = await client.receive()
    bench.store.auto_confirm = False
    acking = asyncio.ensure_future(client.ack(message))
    await client.settle()
    assert not acking.done()
    bench.store.auto_confirm = True
    bench.store.confirm()
    await acking


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1, 7)), st.booleans())))
def test_replay_is_a_sorted_map_of_what_is_left(steps: list[tuple[int, int | None, bool]]) -> None:
    replay, model = Replay(), {}
    for entry, indexes, drop in steps:
        position = (0, entry)
        if drop:
            replay.discard(position)
            model.pop(position, None)
        else:
            replay.add(position, indexes)
            known = model.get(position, 0)
            model[position] = None if indexes is None or known is None else known | indexes
        assert replay.in_order() == sorted(model.items())
        assert replay.first() == (min(model.items()) if model else None)


async def test_a_message_whose_metadata_only_half_parses_does_not_stop_a_key_shared_subscription(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1).SerializeToString()
    half = metadata + b"\x22\x01\xff"  # a property that is none: nothing that publishing looks at
    client.raw(b"".join(encode_send(0, 5, 1, len(half).to_bytes(4) + half + b"x")))
    await client.sent(b"behind it", sequence_id=6)
    assert await client.payloads(2) == [b"x", b"behind it"]


async def test_what_cannot_be_read_now_is_delivered_when_it_can(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor left, an error of the disk that may pass: nobody is disconnected, nothing is skipped."""
    monkeypatch.setattr(dispatch, "READ_RETRY_SECONDS", 0)
    await client.producer("a")
    await client.sent([b"1"])
    log = bench.broker.topics[FULL + "a"].log
    read, failures = log.read, 3

    async def fails(start: Any, **limits: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise ReadFailed(log.name, start, "Too many open files")
        return await read(start, **limits)

    monkeypatch.setattr(log, "read", fails)
    monkeypatch.setattr(log, "read_cached", lambda position: None)
    await client.subscribe("a", "s", kind=SHARED)
    assert await client.payloads(1) == [b"1"]
    assert failures == 0
