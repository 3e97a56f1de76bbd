"""Very many topics, subscriptions, connections and transactions: what looks at all of them does so in slices."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from admin_client import Admin, admin_of
from loop_blocks import LONGEST_SECONDS, held_loop
from raw_client import FULL, RawClient

from pulsar_txn.broker.admin import metrics
from pulsar_txn.broker.admin.metrics import exposition
from pulsar_txn.broker.topics.cursors import MemoryCursor
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST
from pulsar_txn.wire.topics import TopicName

SLOW = "/admin/v3/transactions/slowTransactions/0"


async def many_topics(bench: Any, count: int) -> None:
    await bench.broker.turn.budget.for_all((TopicName.parse(f"t{number}") for number in range(count)), bench.broker.topic)


def series(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name + "{")]


async def test_sweeps_and_metrics_of_many_topics_hold_the_loop_for_no_long_turn(bench: Any) -> None:
    await many_topics(bench, 6000)
    async with held_loop() as held:
        await bench.broker.sweep()
        text = "".join([part async for part in exposition(bench.broker)])
    assert len(series(text, "pulsar_in_messages_total")) == metrics.MAX_TOPICS
    assert series(text, "pulsar_topics_count")[0].endswith(" 6000.0")
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_metrics_of_many_subscriptions_are_bounded_whole_and_made_in_slices(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_SUBSCRIPTIONS", 1500)
    topic = await bench.broker.topic(TopicName.parse("a"))
    for number in range(3000):
        await topic.subscribe(f"s{number}", durable=False, initial=EARLIEST)
    async with held_loop() as held:
        text = "".join([part async for part in exposition(bench.broker)])
    assert len(set(series(text, "pulsar_subscription_back_log"))) == 1500
    assert series(text, "pulsar_subscriptions_count")[0].endswith(" 3000.0")
    for name in ("pulsar_subscription_back_log", "pulsar_subscription_consumers_count"):
        assert text.count(f"# TYPE {name} gauge") == 1
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_pings_of_many_clients_are_sent_in_slices(bench: Any) -> None:
    clients = [bench.client() for _ in range(3000)]
    await clients[-1].settle()
    async with held_loop() as held:
        await bench.broker.keep_alive()
        for client in clients:
            await client.until(lambda client=client: any(event == "ping" for event, _ in client.events))
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_many_open_transactions_are_listed_in_slices_and_in_pages(benches: Any) -> None:
    bench = await benches(max_active_transactions_per_coordinator=100_000, number_of_transaction_coordinators=2).start()
    client = bench.client()
    for tc_id in (0, 1):
        await client.new_txn(tc_id)
        requests = [client.start("newTxn", tc_id=tc_id, txn_ttl_millis=600_000) for _ in range(7999)]
        await client.until(lambda requests=requests: client._answers.get(requests[-1]), turns=100_000)
    for least in (0, 3, 5):
        request = client.start("endTxn", txnid_most_bits=0, txnid_least_bits=least, txn_action=0)
        await client.answer(request)
    async with admin_of(bench) as admin:
        async with held_loop() as held:
            status, found = await admin("GET", SLOW)
        assert status == 200
        assert held.longest_seconds < LONGEST_SECONDS, held
        expected = [f"(0,{least})" for least in range(8000) if least not in (0, 3, 5)] + [
            f"(1,{least})" for least in range(8000)
        ]
        assert list(found) == expected
        pages: list[str] = []
        while page := list((await admin("GET", f"{SLOW}?limit=3000&after={pages[-1] if pages else ''}"))[1]):
            pages += page
        assert pages == expected
        assert (await admin("GET", f"{SLOW}?after=17"))[0] == 400
        assert list((await admin("GET", f"{SLOW}?coordinatorId=1&limit=2"))[1]) == ["(1,0)", "(1,1)"]
        assert (await admin("GET", "/admin/v3/transactions/transactionMetadata/0/7999"))[0] == 200
        assert (await admin("GET", "/admin/v3/transactions/transactionMetadata/0/3"))[0] == 404


async def test_a_topic_that_cannot_be_opened_keeps_no_transaction_from_being_listed(
    bench: Any, client: RawClient, admin: Admin
) -> None:
    txn = await client.new_txn()
    await client.request("addPartitionToTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, partitions=[FULL + "a"])
    await client.producer("a")
    await bench.broker.unload_topic(TopicName.parse("a"))
    opens = bench.broker.topic

    async def refuses(name: TopicName, *, create: bool = True) -> Any:
        raise Refusal(ServerError.ServiceNotReady, f"{name} cannot be opened: damaged")

    bench.broker.topic = refuses
    status, found = await admin("GET", SLOW)
    bench.broker.topic = opens
    assert (status, list(found)) == (200, [f"({txn.most},{txn.least})"])


async def test_a_cumulative_acknowledgement_of_a_reader_costs_what_it_passes_not_what_is_held() -> None:
    async with MemoryStore() as store:
        log = await store.open("a")
        for _ in range(20_000):
            log.append(b"")
        await log.flush()
        ledger_id = log.last_appended[0]
        cursor = MemoryCursor(log, "reader", EARLIEST)
        cursor.delete([(ledger_id, number) for number in range(101, 20_000, 2)])
        looks = 0
        following = log.next_position

        def counted(position: Any) -> Any:
            nonlocal looks
            looks += 1
            return following(position)

        log.next_position = counted  # type: ignore[method-assign] # counts the steps
        deleted = cursor._deleted
        for number in range(0, 200, 2):
            cursor.mark_delete_to((ledger_id, number))
        assert cursor._deleted is deleted, "what is held was looked through"
        assert looks < 1000
        cursor.mark_delete_to((ledger_id, 19_000))
        assert cursor.mark_delete == (ledger_id, 19_001)
        assert cursor.backlog() == 499


async def test_what_is_taken_care_of_again_and_again_goes_on(benches: Any) -> None:
    bench = await benches(keep_alive_interval_seconds=0).start()
    client = bench.client()
    await client.until(lambda: sum(event == "ping" for event, _ in client.events) > 3, turns=100_000)
    await asyncio.sleep(0)


async def test_a_commit_group_costs_only_the_subscriptions_that_have_something_to_do(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    topic = bench.broker.topics[FULL + "a"]
    for number in range(500):
        await topic.subscribe(f"s{number}", durable=False, initial=EARLIEST)
    told = 0
    for subscription in topic.subscriptions.values():
        of = subscription.log_moved

        def counted(*news: Any, of: Any = of) -> Any:
            nonlocal told
            told += 1
            return of(*news)

        subscription.log_moved = counted
    await client.subscribe("a", "s7", durable=False)
    for number in range(10):
        await client.sent(b"%d" % number)
    assert await client.payloads(10) == [b"%d" % number for number in range(10)]
    assert 0 < told <= 40
    await client.request("close_consumer", consumer_id=0)
    await client.sent(b"x")
    told = 0
    await client.sent(b"y")
    assert told == 0


async def test_the_stats_of_a_topic_with_many_subscriptions_are_made_in_slices(bench: Any, admin: Admin) -> None:
    topic = await bench.broker.topic(TopicName.parse("a"))
    for number in range(4000):
        await topic.subscribe(f"s{number}", durable=False, initial=EARLIEST)
    path = "/admin/v2/persistent/public/default/a"
    async with held_loop() as held:
        async with admin._client.get(f"{path}/stats") as response:
            text = (await response.read()).decode()
        async with admin._client.get(f"{path}/subscriptions") as response:
            names = (await response.read()).decode()
    found = json.loads(text)
    assert set(found["subscriptions"]) == {f"s{number}" for number in range(4000)}
    assert found["subscriptions"]["s7"]["consumers"] == []
    assert json.loads(names) == sorted(f"s{number}" for number in range(4000))
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_the_last_message_is_looked_for_in_slices_however_much_was_aborted_behind_it(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    await client.subscribe("a", permits=0)
    first = await client.sent(b"seen")
    txn = await client.new_txn()
    await client.request("addPartitionToTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, partitions=[FULL + "a"])
    for _ in range(20_000):
        client.send(b"", txn=txn)
    await client.until(lambda: len(client.receipts) == 20_000, turns=100_000)
    await client.request("endTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action=1)
    async with held_loop() as held:
        request = client.start("getLastMessageId", consumer_id=0)
        await client.until(lambda: client._answers.get(request), turns=100_000)
    answer = await client.answer(request)
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == first
    assert held.longest_seconds < LONGEST_SECONDS, held
