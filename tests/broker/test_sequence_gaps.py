"""A producer that asks for it gets a typed error for a gap in its sequence ids, and nothing is stored; nobody else does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire.errors import ServerError

ASKS = [{"key": "pulsar-txn.refuse-sequence-gaps", "value": "true"}]


@pytest.fixture
async def bench(benches: Any) -> Any:
    return await benches(
        broker_deduplication_enabled=True, transaction_buffer_provider_overrides=f"{FULL}half=half-topic"
    ).start()


async def gap(client: RawClient, payload: bytes, **options: Any) -> int:
    """Send what must be refused as a gap; the id that is expected."""
    with pytest.raises(Refused, match="comes before") as refused:
        await client.sent(payload, **options)
    error = refused.value.body
    assert (error.error, error.HasField("expected_sequence_id")) == (ServerError.NotAllowedError, True)
    return int(error.expected_sequence_id)


@pytest.mark.seed_rows("B13")
async def test_a_gap_is_refused_a_repeat_is_a_duplicate_and_neither_changes_anything(bench: Any) -> None:
    client = bench.client()
    assert (await client.producer("t", producer_name="p", metadata=ASKS)).refuses_gaps
    await client.subscribe("t")
    await client.sent(b"0", sequence_id=0)
    assert await gap(client, b"2", sequence_id=2) == 1
    assert await client.sent(b"0", sequence_id=0) == (-1, -1)
    assert await gap(client, b"2", sequence_id=2) == 1
    await client.sent([b"1", b"2"], sequence_id=1, fields={"highest_sequence_id": 2})
    assert await gap(client, b"4", sequence_id=4) == 3
    await client.sent(b"3", sequence_id=3)
    assert await client.payloads(4) == [b"0", b"1", b"2", b"3"]
    await client.nothing()


@pytest.mark.seed_rows("B13")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_a_gap_is_found_after_a_restart(bench: Any, how: str) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p", metadata=ASKS)
    await client.sent(b"5", sequence_id=5)
    await getattr(bench, how)()
    again = bench.client()
    assert (await again.producer("t", producer_name="p", metadata=ASKS)).last_sequence_id == 5
    assert await gap(again, b"7", sequence_id=7) == 6
    await again.sent(b"6", sequence_id=6)


@pytest.mark.parametrize("topic", ["t", "half"])
async def test_plain_messages_and_those_of_transactions_are_one_row(bench: Any, topic: str) -> None:
    client = bench.client()
    await client.producer(topic, producer_name="p", metadata=ASKS)
    txn, other = await client.new_txn(), await client.new_txn()
    for each in (txn, other):
        await client.add_topics(each, FULL + topic)
    await client.sent(b"0", sequence_id=0)
    await client.sent(b"1", sequence_id=1, txn=txn)
    assert await gap(client, b"3", sequence_id=3, txn=other) == 2
    await client.sent(b"2", sequence_id=2, txn=other)
    assert await client.sent(b"1", sequence_id=1, txn=txn) == (-1, -1)
    await client.abort(other)
    with pytest.raises(Refused, match=r"has ended|not open"):
        await client.sent(b"3", sequence_id=3, txn=other)
    assert await gap(client, b"4", sequence_id=4) == 3, "what was refused is missing"
    await client.sent(b"3", sequence_id=3)


async def test_the_sends_after_a_refused_one_are_refused_with_it(bench: Any) -> None:
    """What leaves together: nothing after the hole is stored."""
    client = bench.client()
    await client.producer("t", producer_name="p", metadata=ASKS)
    await client.sent(b"0", sequence_id=0)
    for number in range(1, 5):
        late = {"deliver_at_time": 1 << 62} if number == 1 else {}
        bench.broker.topics[FULL + "t"].rules = late_rules(bench)
        client.send(f"{number}".encode(), sequence_id=number, fields=late)
    await client.until(lambda: len(client.send_errors) == 4, "refusals")
    assert [error.sequence_id for error in client.send_errors] == [1, 2, 3, 4]
    assert [error.HasField("expected_sequence_id") for error in client.send_errors] == [False, True, True, True]
    assert {error.expected_sequence_id for error in client.send_errors[1:]} == {1}


def late_rules(bench: Any) -> Any:
    """Rules that refuse a message for a time that is too far away."""
    return attrs.evolve(bench.broker.topics[FULL + "t"].rules, max_delay_ms=1000)


async def test_chunks_of_a_message_are_no_gap(bench: Any) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p", metadata=ASKS)
    await client.sent(b"0", sequence_id=0)
    for number in range(2):
        fields = {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": number, "total_chunk_msg_size": 2}
        await client.sent(b"x", sequence_id=1, fields=fields, is_chunk=True)
    await client.sent(b"2", sequence_id=2)
    assert await gap(client, b"x", sequence_id=4, is_chunk=True) == 3


async def test_who_does_not_ask_may_leave_gaps(bench: Any) -> None:
    client = bench.client()
    opened = await client.producer("t", producer_name="p", metadata=[{"key": ASKS[0]["key"], "value": "no"}])
    assert not opened.refuses_gaps
    for number in (0, 2, 100):
        await client.sent(b"x", sequence_id=number)


async def test_a_broker_that_keeps_no_sequence_ids_refuses_the_producer(benches: Any) -> None:
    bench = await benches().start()
    client = bench.client()
    for topic in ("t", "non-persistent://public/default/t"):
        with pytest.raises(Refused, match="set brokerDeduplicationEnabled=true"):
            await client.producer(topic, producer_name="p", metadata=ASKS)
    assert not (await client.producer("t", producer_name="p")).refuses_gaps
