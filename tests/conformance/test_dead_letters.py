"""Messages that come again and again, because their transactions abort, become dead letters."""

from __future__ import annotations

import pytest
from rows import row
from subscriptions import filled, left_over, subscribed
from transactions import data_of, received, stays_silent

from pulsar_txn.client import AsyncClient, ConsumerType, DeadLetterPolicy, InitialPosition

FORMS = [pytest.param(False, marks=row(27)), pytest.param(True, marks=row(28))]


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
@pytest.mark.parametrize("batched", FORMS)
async def test_what_was_in_too_many_aborted_transactions_becomes_a_dead_letter(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 3, batched=batched)
    dead = f"{topic}-dead"
    letters = await client.subscribe(dead, "letters", initial_position=InitialPosition.EARLIEST)
    policy = DeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=dead)
    consumer = await subscribed(client, topic, kind, dead_letter_policy=policy)
    counts = []
    for _ in range(3):
        messages = await received(consumer, 3)
        counts.append({message.redelivery_count for message in messages})
        txn = await client.begin_transaction()
        await consumer.acknowledge(messages, txn=txn)
        await txn.abort()
    assert counts == [{0}, {1}, {2}]
    assert sorted(await data_of(letters, 3)) == payloads
    assert await stays_silent(letters)
    assert await left_over(client, topic, consumer, 0) == []
