"""The end of a subscription, when its client goes away in the middle of it; found by mutated frames."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError


@pytest.mark.parametrize("turns", range(1, 7))
async def test_a_client_that_goes_in_the_middle_of_unsubscribing_leaves_no_pending_ack_log_open(
    client: RawClient, bench: Any, turns: int
) -> None:
    await client.producer("a")
    await client.sent(b"x")
    gone = bench.client()
    await gone.subscribe("a")
    txn = await gone.new_txn()
    await gone.add_subscriptions(txn, (FULL + "a", "s"))
    await gone.ack(await gone.receive(), txn=txn)
    gone.start("unsubscribe", consumer_id=0)
    await client.settle(turns)
    gone.drop()
    later = bench.client()
    await later.subscribe("a")
    other = await later.new_txn()
    await later.add_subscriptions(other, (FULL + "a", "s"))
    await later.ack(await later.receive(), txn=other)
    await later.end(other)


@pytest.mark.parametrize("turns", range(6))
async def test_a_topic_that_is_unloaded_while_pending_acks_are_opened_can_open_them_again(
    client: RawClient, bench: Any, turns: int
) -> None:
    await client.producer("a")
    await client.sent(b"x")
    await client.subscribe("a")
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    message = await client.receive()
    subscription = bench.broker.topics[FULL + "a"].subscriptions["s"]
    (consumer,) = subscription.consumers
    subscription.acknowledge_in(consumer, txn, [(*message.position, None, 0)], lambda *_: None, cumulative=False)
    await client.settle(turns)
    await bench.broker.unload_topic(bench.broker.topics[FULL + "a"].name)
    later = bench.client()
    await later.subscribe("a")
    with suppress(Refused):  # a conflict, when the first one got through
        await later.ack(message, txn=txn)
    await later.end(txn)


@pytest.mark.parametrize("turns", range(4))
async def test_a_reader_that_comes_back_at_once_keeps_the_pending_acks_of_its_own(
    client: RawClient, bench: Any, turns: int
) -> None:
    await client.producer("a")
    await client.sent(b"x")
    gone = bench.client()
    await gone.subscribe("a", durable=False)
    txn = await gone.new_txn()
    await gone.add_subscriptions(txn, (FULL + "a", "s"))
    await gone.ack(await gone.receive(), txn=txn)
    gone.drop()
    await client.settle(turns)
    later = bench.client()
    await later.subscribe("a", durable=False)
    await later.ack(await later.receive(), txn=txn)
    await client.settle()
    await later.end(txn)


async def test_a_subscription_is_made_by_asking_only_where_that_is_allowed(benches: Any) -> None:
    bench = await benches(allow_auto_subscription_creation=False).start()
    client = bench.client()
    await client.producer("a", initial_subscription_name="made")
    with pytest.raises(Refused) as refused:
        await client.subscribe("a", "other")
    assert refused.value.code == ServerError.SubscriptionNotFound
    await client.subscribe("a", "made")
    await client.subscribe("a", "reader", 1, durable=False)


async def test_a_subscription_that_is_closed_opens_no_pending_acks_any_more(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    position = await client.sent(b"x")
    await client.subscribe("a")
    subscription = bench.broker.topics[FULL + "a"].subscriptions["s"]
    (consumer,) = subscription.consumers
    await client.request("unsubscribe", consumer_id=0)
    answers: list[Any] = []
    txn = await client.new_txn()
    ids = [(*position, None, 0)]
    subscription.acknowledge_in(consumer, txn, ids, lambda *answer: answers.append(answer), cumulative=False)
    await client.settle()
    assert [code for _, code, _ in answers] == [ServerError.ServiceNotReady]
    assert not [name for name in bench.store.names() if name.endswith("pending_ack")]


async def test_pending_acks_that_failed_are_opened_again_with_their_topic(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.sent(b"x")
    await client.subscribe("a")
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(await client.receive(), txn=txn)
    bench.broker.topics[FULL + "a"].subscriptions["s"].host.fail(LedgerError("lost"))
    await client.subscribe("a", consumer_id=1)
    await client.nothing(1)  # it is pending still
    await client.abort(txn)
    assert await client.payloads(1, 1) == [b"x"]
