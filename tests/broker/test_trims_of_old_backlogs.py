"""Backlogs of an earlier start: what is acknowledged of them goes piece by piece, as if the broker had never been away."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import FULL


@pytest.mark.parametrize("restarts", [0, 1, 2])
async def test_a_backlog_of_an_earlier_start_goes_piece_by_piece(benches: Any, restarts: int) -> None:
    bench = await benches(managed_ledger_max_entries_per_ledger=10).start()
    client = bench.client()
    await client.producer("t")
    await client.subscribe("t", "s")
    sent = []
    for number in range(100):
        sent.append(await client.sent(b"%d" % number))
        bench.broker.topics[FULL + "t"].sweep()
    for _ in range(restarts):
        await bench.restart()
        client = bench.client()
        await client.subscribe("t", "s")
    topic = bench.broker.topics[FULL + "t"]
    for acknowledged in (5, 35, 98, 99):
        topic.subscriptions["s"].cursor.mark_delete_to(sent[acknowledged])
        topic.sweep()
        await client.settle()
        assert topic.log.stats().entries == 100 - (acknowledged + 1) // 10 * 10


async def test_a_backlog_of_few_large_entries_goes_by_its_bytes(benches: Any) -> None:
    bench = await benches(managed_ledger_max_size_per_ledger_mbytes=1).start()
    client = bench.client()
    await client.producer("t")
    await client.subscribe("t", "s")
    sent = [await client.sent(bytes(700_000)) for _ in range(4)]
    await bench.restart()
    client = bench.client()
    await client.subscribe("t", "s")
    topic = bench.broker.topics[FULL + "t"]
    topic.subscriptions["s"].cursor.mark_delete_to(sent[1])
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries < 4
    assert topic.log.first is not None
    assert topic.log.first <= sent[2]
