"""Transactions that end with the connection that opened them, and only with that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from check_client import CheckClient, ids_of
from manual_runtime import ManualRuntime
from raw_client import FULL, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnId, TxnStatus

TOPIC = FULL + "orders"


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.broker.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


async def bound(one: CheckClient, **fields: Any) -> TxnId:
    return await one.begin(None, abort_on_disconnect=True, **fields)


@pytest.mark.seed_rows("C42")
async def test_what_was_to_end_with_its_connection_is_aborted_and_all_else_stays_open(bench: Any) -> None:
    one, other = CheckClient(bench.broker), CheckClient(bench.broker)
    await one.producer(TOPIC)
    await other.producer(TOPIC)
    await other.subscribe(TOPIC)
    txn = await bound(one)
    await one.add_topics(txn, TOPIC)
    await one.sent(b"x", txn=txn)
    plain, of_another = await one.begin(None), await bound(other)
    await other.sent(b"plain")
    one.drop()
    assert (await other.receive()).payloads == [b"plain"], "nothing holds the topic back"
    await other.nothing()
    assert [status(bench, each) for each in (txn, plain, of_another)] == [
        TxnStatus.ABORTED,
        TxnStatus.OPEN,
        TxnStatus.OPEN,
    ]
    with pytest.raises(Refused) as refused:
        await other.end(txn)
    assert refused.value.code == ServerError.InvalidTxnStatus


async def test_what_is_decided_or_prepared_stays_as_it_is(bench: Any) -> None:
    one = CheckClient(bench.broker)
    committed, prepared = await bound(one), await bound(one)
    await one.end(committed)
    await one.prepare(prepared)
    one.drop()
    await one.settle()
    assert (status(bench, committed), status(bench, prepared)) == (TxnStatus.COMMITTED, TxnStatus.PREPARED)
    assert not bench.broker.coordinators.bound._of


async def test_one_that_is_opened_after_its_connection_has_ended_ends_at_once(bench: Any) -> None:
    one = CheckClient(bench.broker)
    await one.request("tcClientConnectRequest", tc_id=0)
    one.start("newTxn", tc_id=0, txn_ttl_millis=60_000, abort_on_disconnect=True)
    one.drop()
    await one.settle()
    assert status(bench, TxnId(0, 0)) is TxnStatus.ABORTED
    assert not bench.broker.coordinators.bound._of


async def test_it_belongs_to_the_connection_that_asked_for_it_last(bench: Any) -> None:
    first, second = CheckClient(bench.broker), CheckClient(bench.broker)
    txn = await bound(first, nonce=b"n")
    assert await bound(second, nonce=b"n") == txn
    first.drop()  # a connection that hung, and whose end comes late
    await first.settle()
    assert status(bench, txn) is TxnStatus.OPEN
    second.drop()
    await second.settle()
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_the_end_of_the_broker_is_not_the_end_of_its_clients(bench: Any) -> None:
    one = CheckClient(bench.broker)
    txn = await bound(one)
    one.pipe.close = lambda: asyncio.get_running_loop().call_soon(one.drop)  # type: ignore[method-assign]  # as a socket does
    await bench.restart()
    assert one.connection.closed
    again = CheckClient(bench.broker)
    await again.request("tcClientConnectRequest", tc_id=0)
    assert status(bench, txn) is TxnStatus.OPEN
    await again.end(txn)


async def test_while_its_coordinator_is_being_opened_the_abort_waits(benches: Any) -> None:
    bench, clock = benches(), ManualRuntime()
    bench.runtime = clock
    await bench.start()
    one = CheckClient(bench.broker)
    txn = await bound(one)
    bench.broker.coordinators.ready(0).fail(OSError("gone"))
    one.drop()
    await one.settle()
    assert bench.broker.coordinators.ready(0) is None
    await clock.advance(5)
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_thousands_are_aborted_while_others_are_served(benches: Any) -> None:
    bench = await benches().start()
    one, other = CheckClient(bench.broker), CheckClient(bench.broker)
    await one.request("tcClientConnectRequest", tc_id=0)
    asked = [one.start("newTxn", tc_id=0, txn_ttl_millis=60_000, abort_on_disconnect=True) for _ in range(5000)]
    for each in asked:
        await one.answer(each)
    one.drop()
    coordinator, turns = bench.broker.coordinators.ready(0).coordinator, 0
    while coordinator.active_count:
        await other.request("partitionMetadata", topic=TOPIC)
        turns += 1
    assert turns > 5
    assert not bench.broker.coordinators.bound._of


async def test_an_end_that_is_under_way_goes_on(bench: Any) -> None:
    one = CheckClient(bench.broker)
    txn = await bound(one)
    one.start("endTxn", **ids_of(txn), txn_action=0)
    one.drop()
    await one.settle()
    assert status(bench, txn) is TxnStatus.COMMITTED
