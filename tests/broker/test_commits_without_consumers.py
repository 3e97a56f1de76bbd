"""Transactions that commit after the consumers have left: the pending-ack log is told what the cursor has stored."""

from __future__ import annotations

from typing import Any

from insides import state_of
from raw_client import FULL, RawClient

SHARED = 1
MANY = 200
STORED_EVERY = 64
"""Commits that wait for the cursor before the pending-ack handle notes that it has them."""


async def test_commits_are_noted_as_stored_when_nobody_receives_any_more(client: RawClient, bench: Any) -> None:
    """A subscription without consumers must still hear of commit groups, or its pending-ack log keeps every commit."""
    await client.producer("a")
    for number in range(MANY):
        await client.sent(b"%d" % number)
    consumer = bench.client()
    await consumer.subscribe("a", kind=SHARED, permits=MANY)
    await consumer.until(lambda: len(consumer.messages[0]) == MANY, turns=100_000)
    txns = []
    for message in consumer.messages[0]:
        txn = await client.new_txn()
        names = {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}
        await client.request("addSubscriptionToTxn", subscription=[{"topic": FULL + "a", "subscription": "s"}], **names)
        await consumer.ack(message.position, txn=txn)
        txns.append(names)
    consumer.drop()
    await client.sent(b"one more")
    bench.store.auto_confirm = False  # a disk: what the cursor stores comes later than the commit that it follows
    requests = [client.start("endTxn", txn_action=0, **names) for names in txns]
    subscription = bench.broker.topics[FULL + "a"].subscriptions["s"]
    for _ in range(20):
        bench.store.confirm()
        await client.settle()
    bench.store.auto_confirm = True
    for request in requests:
        await client.answer(request)
    assert subscription.cursor.backlog() == 1
    assert len(state_of(subscription.pending_ack).settled) < STORED_EVERY
