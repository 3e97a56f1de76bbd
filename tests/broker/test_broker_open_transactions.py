"""What an open transaction is owed by its broker: its data stays, its timeout has a limit, it is opened once."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.commands.txn_session import REMEMBERED
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId, signed64


def opened(body: Any) -> TxnId:
    return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))


@pytest.mark.seed_rows("B35")
@pytest.mark.parametrize("subscribed", [True, False])
async def test_retention_keeps_the_data_of_an_open_transaction(benches: Any, subscribed: bool) -> None:
    bench = await benches(managed_ledger_max_entries_per_ledger=5).start()
    client: RawClient = bench.client()
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    kept = [await client.sent(b"kept-%d" % number, txn=txn) for number in range(10)]
    last = kept[-1]
    for _ in range(12):
        last = await client.sent(b"plain")
    topic = bench.broker.topics[FULL + "a"]
    if subscribed:  # by a seek or a skip, its cursor has passed everything
        await client.subscribe("a")
        topic.subscriptions["s"].cursor.mark_delete_to(last)
    topic.sweep()
    await client.settle()
    assert topic.log.first is not None
    assert topic.log.first <= kept[0], "the data of an open transaction was trimmed"
    await client.end(txn)
    reader = bench.client()
    await reader.subscribe("a", "later")
    assert await reader.payloads(10) == [b"kept-%d" % number for number in range(10)]


async def test_data_of_a_transaction_goes_like_any_other_after_its_end(benches: Any) -> None:
    bench = await benches(managed_ledger_max_entries_per_ledger=5).start()
    client: RawClient = bench.client()
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    for _ in range(12):
        await client.sent(b"data", txn=txn)
    topic = bench.broker.topics[FULL + "a"]
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries == 12
    await client.end(txn)
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries < 12


@pytest.mark.seed_rows("C14")
async def test_a_timeout_above_one_hour_is_refused_with_the_key_that_allows_it(bench: Any, client: RawClient) -> None:
    await client.request("tcClientConnectRequest", tc_id=0)
    with pytest.raises(Refused, match="at most 3600000 ms, or raise maxTransactionTimeoutInSeconds") as caught:
        await client.request("newTxn", tc_id=0, txn_ttl_millis=3_600_001)
    assert caught.value.code == ServerError.NotAllowedError
    await client.request("newTxn", tc_id=0, txn_ttl_millis=3_600_000)


async def test_the_limit_of_a_timeout_is_configurable_and_zero_is_none(benches: Any) -> None:
    for seconds, longest in ((10, 10_000), (0, 2**63 - 1)):
        bench = await benches(max_transaction_timeout_in_seconds=seconds).start()
        client: RawClient = bench.client()
        await client.new_txn(timeout_ms=longest)
        if seconds:
            with pytest.raises(Refused, match="at most 10000 ms"):
                await client.new_txn(timeout_ms=longest + 1)


# ---- NEW_TXN that is sent twice


def new_txn(request_id: int, tc_id: int = 0, timeout_ms: int = 60_000) -> bytes:
    return command("newTxn", request_id=request_id, tc_id=tc_id, txn_ttl_millis=timeout_ms)


async def answers(client: RawClient, request_id: int, count: int) -> list[TxnId]:
    return [opened(await client.answer(request_id)) for _ in range(count)]


async def connected(bench: Any) -> RawClient:
    client: RawClient = bench.client()
    for tc_id in range(2):
        await client.request("tcClientConnectRequest", tc_id=tc_id)
    return client


def open_count(bench: Any) -> int:
    return sum(bench.broker.coordinators.ready(tc_id).machine.active_count for tc_id in range(2))


@pytest.mark.parametrize("together", [True, False])
async def test_a_new_txn_sent_twice_with_one_request_id_opens_one_transaction(bench: Any, together: bool) -> None:
    client = await connected(bench)
    client.raw(new_txn(7))
    if not together:
        await client.settle()
    client.raw(new_txn(7) * 2)
    first, second, third = await answers(client, 7, 3)
    assert first == second == third
    assert open_count(bench) == 1
    client.raw(new_txn(8))
    assert await answers(client, 8, 1) != [first]
    assert open_count(bench) == 2


async def test_one_request_id_opens_one_transaction_at_each_coordinator_and_on_each_connection(bench: Any) -> None:
    one, other = await connected(bench), await connected(bench)
    one.raw(new_txn(7) + new_txn(7, tc_id=1))
    other.raw(new_txn(7))
    assert len({*await answers(one, 7, 2), *await answers(other, 7, 1)}) == 3
    assert open_count(bench) == 3


async def test_a_repeat_is_answered_after_its_coordinator_was_opened_again(bench: Any) -> None:
    client = await connected(bench)
    client.raw(new_txn(7))
    (txn,) = await answers(client, 7, 1)
    host = bench.broker.coordinators.ready(0)
    host.fail(LedgerError("a fault"))
    client.raw(new_txn(7))
    assert await answers(client, 7, 1) == [txn], "its answer was lost with the first one, not the transaction"


async def test_a_new_txn_that_failed_is_carried_out_when_it_is_repeated(bench: Any) -> None:
    client = await connected(bench)
    client.raw(new_txn(7, timeout_ms=3_600_001))
    with pytest.raises(Refused):
        await client.answer(7)
    client.raw(new_txn(7))
    (txn,) = await answers(client, 7, 1)
    client.raw(new_txn(7))
    assert await answers(client, 7, 1) == [txn]


async def test_a_repeat_of_one_that_fails_fails_with_it(bench: Any) -> None:
    client = await connected(bench)
    client.raw(new_txn(7) * 2)
    bench.broker.coordinators.ready(0).fail(LedgerError("a fault"))
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await client.answer(7)
        assert caught.value.code == ServerError.ServiceNotReady


async def test_what_a_connection_remembers_of_its_transactions_is_bounded(benches: Any) -> None:
    bench = await benches(max_active_transactions_per_coordinator=0).start()
    client = await connected(bench)
    for request_id in range(REMEMBERED + 50):
        client.raw(new_txn(request_id))
        await client.answer(request_id)
    assert len(client.connection.session.transactions.opened.answered) == REMEMBERED
    assert not client.connection.session.transactions.opened._waiting
    before = open_count(bench)
    client.raw(new_txn(REMEMBERED + 49))
    await client.answer(REMEMBERED + 49)
    assert open_count(bench) == before
