"""A coordinator's transactions time out, although its host looks at their deadlines only when one may have come nearer."""

from __future__ import annotations

from typing import Any

from raw_client import RawClient

from pulsar_txn.wire.ids import TxnId


async def only_open(bench: Any, client: RawClient, *left: TxnId) -> None:
    """Return when these are the transactions of coordinator 0 that are open."""
    coordinator = bench.broker.coordinators.ready(0).coordinator
    await client.until(lambda: {info.txn_id for info in coordinator.transactions()} == set(left), turns=1_000_000)


async def test_a_transaction_with_a_nearer_deadline_times_out_before_those_that_were_opened_before(
    bench: Any, client: RawClient
) -> None:
    long = await client.new_txn(timeout_ms=60_000)
    await client.new_txn(timeout_ms=10)
    await only_open(bench, client, long)
    await client.new_txn(timeout_ms=10)
    await only_open(bench, client, long)


async def test_every_deadline_is_met_when_nobody_asks_for_anything_after_the_first(bench: Any, client: RawClient) -> None:
    long = await client.new_txn(timeout_ms=60_000)
    for timeout_ms in (1200, 600, 50):  # far enough apart that a held up loop does not meet two at once
        await client.new_txn(timeout_ms=timeout_ms)
    await only_open(bench, client, long)


async def test_a_deadline_is_met_after_a_restart(bench: Any, client: RawClient) -> None:
    long = await client.new_txn(timeout_ms=60_000)
    await client.new_txn(timeout_ms=300)
    await bench.restart()
    await bench.broker.coordinators.wait_ready()
    await only_open(bench, client, long)
