"""A redo log of pending acks that cannot be read: its subscription waits for it, all others are served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.topics import subscription as module
from pulsar_txn.ledger.protocols import LedgerError, StorageFailed
from pulsar_txn.rm_pending_ack import PendingAckHandle
from pulsar_txn.wire.errors import ServerError, WireError
from pulsar_txn.wire.ids import TxnId


async def _with_pending_acks(bench: Any) -> TxnId:
    client = bench.client()
    await client.producer("a")
    for payload in (b"m0", b"m1"):
        await client.sent(payload)
    for consumer_id, name in enumerate(("sick", "well")):
        await client.subscribe("a", name, consumer_id=consumer_id)
    txn: TxnId = await client.new_txn()
    for consumer_id, name in enumerate(("sick", "well")):
        await client.add_subscriptions(txn, (FULL + "a", name))
        await client.ack(await client.receive(consumer_id), consumer_id=consumer_id, txn=txn)
    return txn


class _Sick:
    """Makes the redo log of one subscription unreadable as long as `error` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.error: Exception | None = error
        decode = PendingAckHandle.decode

        def broken(handle: PendingAckHandle, log: str, data: bytes) -> Any:
            if self.error is not None and handle.subscription == "sick":
                raise self.error
            return decode(handle, log, data)

        monkeypatch.setattr(PendingAckHandle, "decode", broken)
        monkeypatch.setattr(module, "_FIRST_RETRY_SECONDS", 0.001)
        monkeypatch.setattr(module, "_LAST_RETRY_SECONDS", 0.002)


@pytest.mark.parametrize("error", [WireError("not a record"), LedgerError("a bad sector")])
async def test_a_subscription_whose_pending_acks_cannot_be_read_is_refused_until_they_can_and_others_are_served(
    bench: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    txn = await _with_pending_acks(bench)
    sick = _Sick(monkeypatch, error)
    await bench.restart()
    client: RawClient = bench.client()
    await client.producer("a")
    await client.sent(b"m2")
    await client.subscribe("a", "well", consumer_id=1)
    assert (await client.receive(1)).payloads == [b"m1"], "what waits for the transaction is not delivered"
    with pytest.raises(Refused) as refused:
        await client.subscribe("a", "sick", consumer_id=0)
    assert refused.value.code == ServerError.PersistenceError
    sick.error = None
    async with asyncio.timeout(20):
        while bench.broker.topics[FULL + "a"].subscriptions["sick"].failure is not None:
            await asyncio.wait([asyncio.create_task(asyncio.sleep(0.001))])
    await client.subscribe("a", "sick", consumer_id=2)
    assert (await client.receive(2)).payloads == [b"m1"]
    await client.end(txn)
    assert bench.broker.topics[FULL + "a"].subscriptions["sick"].cursor.backlog() == 2


async def test_a_topic_that_fails_in_the_middle_of_its_opening_leaves_no_log_open(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _with_pending_acks(bench)
    await bench.restart()
    opened = module.Subscription.recover_pending_ack
    failures = 2

    async def failing(subscription: Any) -> None:
        nonlocal failures
        if subscription.name == "well" and failures:
            failures -= 1
            raise LedgerError("behind one that is open")
        await opened(subscription)

    monkeypatch.setattr(module.Subscription, "recover_pending_ack", failing)
    client: RawClient = bench.client()
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await client.subscribe("a", "well", consumer_id=1)
        assert refused.value.code == ServerError.ServiceNotReady
    await client.subscribe("a", "well", consumer_id=2)
    await client.subscribe("a", "sick", consumer_id=3)
    assert (await client.receive(3)).payloads == [b"m1"]


async def test_a_storage_failure_is_one_of_the_broker(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await _with_pending_acks(bench)
    _Sick(monkeypatch, StorageFailed("the disk is gone"))
    await bench.restart()
    client: RawClient = bench.client()
    with pytest.raises(Refused):
        await client.subscribe("a", "well", consumer_id=1)
    assert isinstance(bench.broker.storage_failure, StorageFailed)
