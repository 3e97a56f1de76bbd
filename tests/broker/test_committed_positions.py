"""Where a subscription is for good: unstable while an open transaction holds acknowledgements, and who committed last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admin_client import admin_of
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.topics import pending_ack_host as hosts
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Position, TxnId, signed64

TOPIC = FULL + "t"
PATH = "/admin/v3/transactions/committedPosition/public/default/t/s"
STATS = "/admin/v3/transactions/pendingAckStats/public/default/t/s"


async def asked(client: RawClient) -> tuple[Position, TxnId | None, TxnId | None]:
    """GET_COMMITTED_POSITION: position, last committed, unstable."""
    body = await client.request("getCommittedPosition", consumer_id=0)
    ids = [
        TxnId(getattr(body, f"{name}_most_bits"), getattr(body, f"{name}_least_bits"))
        if body.HasField(f"{name}_least_bits")
        else None
        for name in ("last_committed", "unstable")
    ]
    return (signed64(body.position.ledgerId), signed64(body.position.entryId)), ids[0], ids[1]


async def consuming(client: RawClient, count: int = 5) -> list[Any]:
    """Messages in the topic, given to consumer 0 of subscription `s`."""
    await client.producer("t")
    await client.subscribe("t")
    for number in range(count):
        await client.sent(f"{number}".encode())
    return [await client.receive() for _ in range(count)]


async def opened(client: RawClient) -> TxnId:
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (TOPIC, "s"))
    return txn


@pytest.mark.seed_rows("C03", "C29")
async def test_a_position_is_unstable_until_its_transaction_has_ended(bench: Any, client: RawClient) -> None:
    messages = await consuming(client)
    start = (messages[0].position[0], messages[0].position[1] - 1)
    assert await asked(client) == (start, None, None)
    first, second = await opened(client), await opened(client)
    await client.ack(messages[0], txn=first)
    await client.ack(messages[1], txn=second)
    assert await asked(client) == (start, None, first)
    async with admin_of(bench) as admin:
        status, body = await admin("GET", PATH + "?requireStable=true")
        assert (status, body["transaction"]) == (409, str(first))
        stable = {"position": f"{start[0]}:{start[1]}", "stable": False, "openTransaction": str(first)}
        assert await admin("GET", PATH) == (200, stable)
        assert "lastCommittedTransaction" not in (await admin("GET", STATS))[1]
    await client.end(first)
    assert await asked(client) == (messages[0].position, first, second)
    await client.abort(second)
    assert await asked(client) == (messages[0].position, first, None)
    async with admin_of(bench) as admin:
        position = "{}:{}".format(*messages[0].position)
        found = {"position": position, "stable": True, "lastCommittedTransaction": str(first)}
        assert await admin("GET", PATH + "?requireStable=true") == (200, found)
        assert (await admin("GET", STATS))[1]["lastCommittedTransaction"] == str(first)


@pytest.mark.seed_rows("C03", "C29")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_what_was_committed_last_and_what_is_open_outlive_the_broker(bench: Any, client: RawClient, how: str) -> None:
    messages = await consuming(client)
    committed, other, without = await opened(client), await opened(client), await opened(client)
    await client.ack(messages[0], messages[1], txn=committed)
    await client.end(committed)
    await client.end(without)
    await client.ack(messages[3], txn=other)
    for _ in range(2):
        await getattr(bench, how)()
        client = bench.client()
        await client.subscribe("t", permits=0)
        assert await asked(client) == (messages[1].position, committed, other)
    await client.request("tcClientConnectRequest", tc_id=0)
    await client.abort(other)
    assert await asked(client) == (messages[1].position, committed, None)


async def test_a_cumulative_acknowledgement_holds_the_position_as_well(client: RawClient) -> None:
    messages = await consuming(client)
    txn = await opened(client)
    await client.ack(messages[2], txn=txn, cumulative=True)
    assert (await asked(client))[2] == txn
    await client.end(txn)
    assert await asked(client) == (messages[2].position, txn, None)


async def test_a_plain_acknowledgement_takes_the_position_out_of_the_transaction(client: RawClient) -> None:
    messages = await consuming(client)
    txn = await opened(client)
    await client.ack(messages[0], txn=txn)
    await client.ack(messages[0])
    assert await asked(client) == (messages[0].position, None, None)
    await client.end(txn)
    assert await asked(client) == (messages[0].position, None, None), "it acknowledged nothing any more"


async def test_an_answered_commit_counts_although_its_acknowledgements_are_many(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "AT_ONCE", 2)
    messages = await consuming(client, 40)
    txn = await opened(client)
    await client.ack(*messages, txn=txn)
    await client.end(txn)
    assert await asked(client) == (messages[-1].position, txn, None)


async def test_a_commit_that_is_not_durable_yet_is_waited_for(bench: Any, client: RawClient) -> None:
    """A position from before it would be given although the transaction is decided."""
    messages = await consuming(client)
    txn = await opened(client)
    await client.ack(messages[0], txn=txn)
    handle = bench.broker.topics[TOPIC].subscriptions["s"].pending_ack
    bench.store.auto_confirm = False
    ending = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    while handle.first_holder() is not None:  # the coordinator's decision is durable, then the subscription is told
        await client.settle()
        assert handle.first_holder() is None or not bench.store.confirm()
    question = asyncio.create_task(asked(client))
    await client.settle()
    early = question.done()
    bench.store.auto_confirm = True
    bench.store.confirm()
    assert not early
    assert await question == (messages[0].position, txn, None)
    await client.answer(ending)


async def test_who_has_no_position_is_refused(client: RawClient) -> None:
    with pytest.raises(Refused) as refused:
        await client.request("getCommittedPosition", consumer_id=9)
    assert refused.value.code == ServerError.ConsumerNotFound
    await client.subscribe("non-persistent://public/default/n", consumer_id=1)
    with pytest.raises(Refused, match="no position"):
        await client.request("getCommittedPosition", consumer_id=1)


async def test_a_log_that_fails_answers_with_retry(bench: Any, client: RawClient) -> None:
    messages = await consuming(client)
    txn = await opened(client)
    await client.ack(messages[0], txn=txn)
    subscription = bench.broker.topics[TOPIC].subscriptions["s"]
    client.send(b"in flight")
    question = asyncio.create_task(asked(client))
    await asyncio.sleep(0)
    subscription.host.fail(RuntimeError("the log is gone"))
    with pytest.raises(Refused) as refused:
        await question
    assert refused.value.code in (ServerError.ServiceNotReady, ServerError.ConsumerNotFound)
