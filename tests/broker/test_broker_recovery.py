"""A crash after every confirmation of a whole transaction: all or nothing, and whatever was answered holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnId


class _Story:
    """One transaction over two topics and one subscription; remembers what the client was told."""

    def __init__(self, bench: Any, crash_at: int) -> None:
        self.bench = bench
        self.txn: TxnId | None = None
        self.committed = False
        self.acked_in_txn = False
        self.confirmations = 0
        self._crash_at = crash_at
        confirm = bench.store.confirm

        def counted() -> None:
            if bench.store.open_group:
                self.confirmations += 1
                if self.confirmations > crash_at:
                    return  # nothing is confirmed any more
            confirm()

        bench.store.confirm = counted

    async def run(self, client: RawClient) -> bool:
        """True when it came to its end before the crash."""
        try:
            await self._tell(client)
        except AssertionError:
            return False
        return True

    async def _tell(self, client: RawClient) -> None:
        self.txn = await client.new_txn()
        await client.add_topics(self.txn, FULL + "out1", FULL + "out2")
        await client.add_subscriptions(self.txn, (FULL + "in", "s"))
        await client.sent(b"x1", 1, txn=self.txn)
        await client.sent(b"x2", 2, txn=self.txn)
        await client.ack((await client.receive(0)).position, txn=self.txn)
        self.acked_in_txn = True
        await client.end(self.txn)
        self.committed = True


async def _prepared(bench: Any) -> RawClient:
    client = bench.client()
    await client.producer("in", 0)
    await client.producer("out1", 1, producer_name="p1")
    await client.producer("out2", 2, producer_name="p2")
    await client.subscribe("in", "s", 0, kind=1)
    await client.subscribe("out1", "r", 1)
    await client.subscribe("out2", "r", 2)
    await client.sent(b"work", 0)
    return client


@pytest.mark.seed_rows("B08", "B09", "B38", "C17", "C25", "D09")
async def test_a_crash_after_any_confirmation_leaves_all_or_nothing(benches: Any) -> None:
    finished = False
    outcomes: set[bool] = set()
    for crash_at in range(60):
        bench = await benches().start()
        client = await _prepared(bench)
        story = _Story(bench, crash_at)
        finished = await story.run(client)
        client.drop()
        await bench.crash()
        outcomes.add(await _check(bench, story))
        if finished:
            break
    assert finished
    assert outcomes == {True, False}


async def _check(bench: Any, story: _Story) -> bool:
    """Whether the transaction took effect; AssertionError when a part of it did, or an answer does not hold."""
    client = bench.client()
    await client.request("tcClientConnectRequest", tc_id=0)
    committed = story.committed
    if story.txn is not None and not committed:
        try:  # the decision may have been durable
            await client.abort(story.txn)
        except Refused as refused:
            committed = refused.code == ServerError.InvalidTxnStatus
            if committed:
                await client.end(story.txn)
    await client.subscribe("in", "s", 0, kind=1)
    await client.subscribe("out1", "r", 1)
    await client.subscribe("out2", "r", 2)
    await client.settle()
    seen = [[data for each in client.messages[number] for data in each.payloads] for number in range(3)]
    assert seen == ([[], [b"x1"], [b"x2"]] if committed else [[b"work"], [], []])
    for topic in bench.broker.topics.values():
        topic.buffer.check_invariants()
        for subscription in topic.subscriptions.values():
            if subscription.pending_ack is not None:
                subscription.pending_ack.check_invariants()
    return committed


@pytest.mark.seed_rows("C46", "D68")
async def test_an_open_transaction_survives_a_restart_and_can_be_committed(bench: Any) -> None:
    client = await _prepared(bench)
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "out1")
    await client.add_subscriptions(txn, (FULL + "in", "s"))
    await client.sent(b"x", 1, txn=txn)
    await client.ack(await client.receive(0), txn=txn)
    await bench.restart()
    again = bench.client()
    await again.subscribe("in", "s", 0, kind=1)
    await again.subscribe("out1", "r", 1)
    await again.nothing(0)
    await again.nothing(1)
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    assert await again.payloads(1, 1) == [b"x"]
    await again.nothing(0)


@pytest.mark.seed_rows("C45", "D35")
async def test_a_commit_that_was_decided_is_driven_to_its_end_after_the_crash_by_itself(bench: Any) -> None:
    client = await _prepared(bench)
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "out1")
    await client.sent(b"x", 1, txn=txn)
    bench.broker.participants.close()  # nobody hears of the decision
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.settle()
    await bench.crash()
    again = bench.client()
    await again.subscribe("out1", "r", 1)
    assert await again.payloads(1, 1) == [b"x"]
    await again.end(txn)


@pytest.mark.seed_rows("D25")
async def test_ids_are_not_given_twice_after_a_crash(bench: Any) -> None:
    first = await bench.client().new_txn()
    await bench.crash()
    second = await bench.client().new_txn()
    assert second.least > first.least


async def test_a_failed_store_answers_nothing_and_says_so(bench: Any) -> None:
    client = bench.client()
    await client.producer("a")
    told: list[Exception] = []
    bench.broker.on_storage_failed = told.append
    bench.store.auto_confirm = False
    client.send(b"x")
    await client.settle()
    bench.store.fail()
    await client.settle()
    assert not client.receipts
    assert len(told) == 1
    assert isinstance(told[0], LedgerError)


@pytest.mark.seed_rows("D33")
async def test_a_topic_that_cannot_be_opened_keeps_only_its_own_transactions_waiting(bench: Any) -> None:
    client = await _prepared(bench)
    damaged, sound = await client.new_txn(), await client.new_txn()
    for txn, name, producer_id in ((damaged, "out1", 1), (sound, "out2", 2)):
        await client.add_topics(txn, FULL + name)
        await client.sent(b"x", producer_id, txn=txn)
    await bench.restart()
    opened = bench.store.open

    async def open_but_not_one(name: str, **options: Any) -> Any:
        if name.endswith("out1"):
            raise LedgerError("damaged")
        return await opened(name, **options)

    bench.store.open = open_but_not_one
    again = bench.client()
    await again.request("tcClientConnectRequest", tc_id=0)
    waiting = again.start("endTxn", txnid_least_bits=damaged.least, txnid_most_bits=damaged.most, txn_action=0)
    await again.end(sound)
    await again.subscribe("out2", "r", 2)
    assert await again.payloads(1, 2) == [b"x"]
    bench.store.open = opened
    await asyncio.sleep(0.25)
    await again.answer(waiting)


@pytest.mark.seed_rows("B07", "B14", "D02")
@pytest.mark.parametrize("crash", [True, False])
async def test_deduplication_holds_across_a_restart(benches: Any, crash: bool) -> None:
    bench = await benches(broker_deduplication_enabled=True).start()
    client = bench.client()
    await client.producer("a", producer_name="p")
    position = await client.sent(b"0", sequence_id=5)
    assert position >= (0, 0)
    assert await client.sent(b"0", sequence_id=5) == (-1, -1)
    await (bench.crash() if crash else bench.restart())
    again = bench.client()
    answer = await again.producer("a", producer_name="p")
    assert answer.last_sequence_id == 5
    assert await again.sent(b"0", sequence_id=5) == (-1, -1)
    await again.sent(b"1", sequence_id=6)
    await again.subscribe("a")
    assert await again.payloads(2) == [b"0", b"1"]
    await again.nothing()


@pytest.mark.parametrize(("interval", "covered"), [(100, 300), (1000, 0), (50_000, 0)])
async def test_the_state_of_deduplication_is_stored_every_so_many_entries(benches: Any, interval: int, covered: int) -> None:
    """`brokerDeduplicationEntriesInterval`: what came after the last snapshot is read again after a crash."""
    bench = await benches(broker_deduplication_enabled=True, broker_deduplication_entries_interval=interval).start()
    client = bench.client()
    await client.producer("a", producer_name="p")
    for number in range(350):
        await client.sent(b"", sequence_id=number)
    await client.settle()
    snapshot = await bench.broker.topics[FULL + "a"].log.latest_snapshot()
    assert (0 if snapshot is None else snapshot.covers[1] + 1) == covered
    await bench.crash()
    again = bench.client()
    assert (await again.producer("a", producer_name="p")).last_sequence_id == 349
