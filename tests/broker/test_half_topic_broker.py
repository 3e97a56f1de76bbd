"""A broker with half messages for some of its topics: chosen by namespace or name, and what clients see then."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from raw_client import FULL, Refused

from pulsar_txn.broker.base.plugins import PluginError
from pulsar_txn.broker.catalog.buffer_choice import read_rules

HALF = FULL + "half"
RULES = f"{HALF}=half-topic"


@pytest.fixture
async def half(benches: Any) -> Any:
    return await benches(transaction_buffer_provider_overrides=RULES, broker_deduplication_enabled=True).start()


async def opened(client: Any, *topics: str) -> Any:
    """A transaction with these topics registered."""
    txn = await client.new_txn()
    await client.add_topics(txn, *topics)
    return txn


@pytest.mark.seed_rows("A02", "A11", "A15", "A25")
async def test_an_open_transaction_holds_nobody_back_and_commits_come_in_their_order(half: Any) -> None:
    client = half.client()
    await client.producer("half")
    await client.subscribe("half")
    first, second, aborted = [await opened(client, HALF) for _ in range(3)]
    await client.sent(b"first 0", txn=first)
    await client.sent(b"second 0", txn=second)
    await client.sent(b"aborted", txn=aborted)
    await client.sent(b"plain")
    assert await client.payloads(1) == [b"plain"]
    await client.sent([b"first 1", b"first 2"], txn=first)
    await client.end(second)
    await client.abort(aborted)
    await client.end(first)
    assert await client.payloads(4) == [b"second 0", b"first 0", b"first 1", b"first 2"]
    await client.nothing()
    with pytest.raises(Refused):
        await client.sent(b"late", txn=aborted)


async def test_other_topics_of_the_broker_have_the_buffer_of_pulsar(half: Any) -> None:
    client = half.client()
    await client.producer("other")
    await client.subscribe("other")
    txn = await opened(client, FULL + "other")
    await client.sent(b"0", txn=txn)
    await client.sent(b"plain")
    await client.nothing()
    await client.end(txn)
    assert await client.payloads(2) == [b"0", b"plain"]


@pytest.mark.seed_rows("A29")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_open_transactions_outlive_the_broker(half: Any, how: str) -> None:
    client = half.client()
    await client.producer("half")
    txn = await opened(client, HALF)
    await client.sent(b"0", txn=txn)
    await client.sent(b"plain")
    await client.sent(b"1", txn=txn)
    await getattr(half, how)()
    again = half.client()
    await again.subscribe("half")
    assert await again.payloads(1) == [b"plain"]
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    assert await again.payloads(2) == [b"0", b"1"]
    await getattr(half, how)()
    third = half.client()
    await third.subscribe("half")
    assert await third.payloads(3) == [b"plain", b"0", b"1"]


@pytest.mark.seed_rows("A16")
async def test_a_transaction_of_thousands_of_messages_is_seen_whole(half: Any) -> None:
    client = half.client()
    await client.producer("half")
    await client.subscribe("half", permits=5000)
    txn = await opened(client, HALF)
    expected = [str(number).encode() for number in range(2000)]
    for payload in expected:
        client.send(payload, txn=txn)
    await client.until(lambda: len(client.receipts) == len(expected), "receipts")
    await client.nothing()
    await client.end(txn)
    assert await client.payloads(len(expected)) == expected


@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_a_message_that_waits_for_its_transaction_counts_as_sent(half: Any, how: str) -> None:
    client = half.client()
    await client.producer("half", producer_name="p")
    txn = await opened(client, HALF)
    await client.sent(b"0", txn=txn)
    await getattr(half, how)()
    again = half.client()
    producer = await again.producer("half", producer_name="p")
    assert producer.last_sequence_id == 0


async def test_a_topic_keeps_the_buffer_that_it_was_made_with(benches: Any, caplog: pytest.LogCaptureFixture) -> None:
    bench = await benches(transaction_buffer_provider_overrides="public/default=half-topic").start()
    client = bench.client()
    await client.producer("half")
    txn = await opened(client, HALF)
    await client.sent(b"0", txn=txn)
    bench.config = attrs.evolve(bench.config, transaction_buffer_provider_overrides="")
    await bench.restart()
    again = bench.client()
    await again.producer("half")
    await again.subscribe("half")
    assert "keeps the transaction buffer 'half-topic'" in caplog.text
    await again.sent(b"plain")
    assert await again.payloads(1) == [b"plain"], "the open transaction holds nobody back"
    await again.producer("new", 1)
    assert "public/default/new keeps" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "half-topic",
        "public/default=",
        "=half-topic",
        "a/b/c/d=topic",
        "non-persistent://public/default/x=topic",
        "pub!ic/x=topic",
    ],
)
def test_a_rule_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(PluginError):
        read_rules(text)


def test_rules_name_namespaces_and_topics() -> None:
    assert read_rules(" public/orders=half-topic, persistent://public/default/t-partition-3 = my:Buffer ,") == {
        "public/orders": "half-topic",
        "persistent://public/default/t": "my:Buffer",
    }


async def test_commits_of_many_transactions_share_their_commit_groups(half: Any) -> None:
    """Named after a fault: the copies of one transaction waited until those of the one before it were durable."""
    client = half.client()
    await client.producer("half")
    await client.subscribe("half")
    txns = [await opened(client, HALF) for _ in range(40)]
    for number, txn in enumerate(txns):
        await client.sent(f"{number}".encode(), txn=txn)
    half.store.auto_confirm = False
    ends = [client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0) for txn in txns]
    groups = 0
    while groups < 20 and half.broker.topics[HALF].buffer.stats().committed_txn_count < len(txns):
        await client.settle()
        half.store.confirm()
        groups += 1
    half.store.auto_confirm = True
    half.store.confirm()
    for end in ends:
        await client.answer(end)
    assert groups <= 5
    assert await client.payloads(len(txns)) == [f"{number}".encode() for number in range(len(txns))]


async def test_large_and_small_transactions_that_commit_together_are_copied_in_their_order(half: Any) -> None:
    client = half.client()
    await client.producer("half")
    await client.subscribe("half", permits=5000)
    expected = []
    ends = []
    for number, size in enumerate((300, 1, 700, 2, 1, 300)):
        txn = await opened(client, HALF)
        for at in range(size):
            client.send(f"{number} {at}".encode(), txn=txn)
            expected.append(f"{number} {at}".encode())
        await client.until(lambda: len(client.receipts) == len(expected), "receipts")
        ends.append(txn)
    asked = [client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0) for txn in ends]
    for each in asked:
        await client.answer(each)
    assert await client.payloads(len(expected)) == expected
