"""END_TXN for several transactions over the wire: all end by one record or none does; the answer comes when all are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.txn.coordinators import JointEnd
from pulsar_txn.tc import EndTxn, TransactionCoordinator
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

TOPICS = [f"{FULL}g{number}" for number in range(3)]


async def filled(client: RawClient, count: int = 3) -> list[TxnId]:
    """Open transactions, each with a message in a topic of its own."""
    txns = []
    for number, topic in enumerate(TOPICS[:count]):
        await client.producer(topic, number)
        txn = await client.new_txn(0)
        await client.add_topics(txn, topic)
        await client.sent(b"%d" % number, number, txn=txn)
        txns.append(txn)
    return txns


def end_together(client: RawClient, txns: list[TxnId], action: TxnAction = TxnAction.COMMIT) -> int:
    """Send END_TXN of a group; the request's id."""
    first, *group = txns
    fields = {"txnid_least_bits": first.least, "txnid_most_bits": first.most, "txn_action": int(action)}
    return client.start("endTxn", group_least_bits=[each.least for each in group], **fields)


async def refusal(client: RawClient, txns: list[TxnId]) -> int:
    with pytest.raises(Refused) as refused:
        await client.answer(end_together(client, txns))
    return refused.value.code


async def seen(client: RawClient, count: int) -> list[list[bytes]]:
    """What a new subscription of each topic is given."""
    found = []
    for number, topic in enumerate(TOPICS[:count]):
        await client.subscribe(topic, "reader", number)
        found.append(await client.payloads(1, number))
    return found


async def test_all_are_visible_when_the_answer_is_there(bench: Any) -> None:
    client = bench.client()
    txns = await filled(client)
    await client.answer(end_together(client, txns))
    assert await seen(client, 3) == [[b"0"], [b"1"], [b"2"]]
    await client.answer(end_together(client, txns))
    for txn in txns:
        await client.end(txn)


async def test_a_group_with_a_member_that_is_over_is_refused_and_leaves_the_rest_open(bench: Any) -> None:
    client = bench.client()
    one, two, three = await filled(client)
    await client.abort(two)
    assert await refusal(client, [one, two, three]) == ServerError.InvalidTxnStatus
    assert await refusal(client, [one, TxnId(0, 99)]) == ServerError.TransactionNotFound
    await client.answer(end_together(client, [one, three]))
    await client.subscribe(TOPICS[0], "reader", 0)
    assert await client.payloads(1, 0) == [b"0"]


async def test_nobody_sends_in_a_transaction_that_its_group_has_ended(bench: Any) -> None:
    client = bench.client()
    txns = await filled(client)
    await client.answer(end_together(client, txns))
    with pytest.raises(Refused):
        await client.sent(b"late", 1, txn=txns[1])


async def test_a_crash_after_the_decision_commits_all_and_a_repeat_is_told_so(bench: Any) -> None:
    client = bench.client()
    txns = await filled(client)
    participants = bench.broker.participants
    participants.close()  # nobody is told any more in this life
    end_together(client, txns)
    await client.settle()
    await bench.crash()
    again = bench.client()
    assert await seen(again, 3) == [[b"0"], [b"1"], [b"2"]]
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.answer(end_together(again, txns))


async def test_a_crash_before_the_decision_is_durable_commits_none(bench: Any) -> None:
    client = bench.client()
    txns = await filled(client)
    end_together(client, txns)  # appended, and not confirmed: the loop has had no turn
    await bench.crash()
    again = bench.client()
    await again.request("tcClientConnectRequest", tc_id=0)
    for txn in txns:
        await again.abort(txn)


async def test_an_epoch_that_is_over_ends_no_group(bench: Any) -> None:
    old, new = bench.client(), bench.client()
    answer = await old.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    txns = [await old.new_txn(answer.tc_id) for _ in range(2)]
    await new.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    await new.new_txn(answer.tc_id)
    assert await refusal(old, txns) == ServerError.ProducerFenced


async def test_as_many_as_it_likes_and_not_more(bench: Any) -> None:
    client = bench.client()
    txns = [await client.new_txn(0) for _ in range(1000)]
    await client.answer(end_together(client, txns))
    assert await refusal(client, [txns[0], *(TxnId(0, number) for number in range(10_001))]) == ServerError.NotAllowedError


async def offered(client: RawClient) -> bool:
    await client.until(lambda: client.events, "CONNECTED")
    ((_, connected),) = client.events
    return bool(connected.feature_flags.supports_group_end)


async def test_the_broker_says_whether_its_coordinators_end_groups(
    benches: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await offered((await benches().start()).client())
    assert not await offered((await benches(transaction_coordinator_enabled=False).start()).client())
    monkeypatch.setattr(TransactionCoordinator, "ends_groups", False)
    client = (await benches().start()).client()
    assert not await offered(client)
    txns = [await client.new_txn(0) for _ in range(2)]
    assert await refusal(client, txns) == ServerError.NotAllowedError
    for txn in txns:
        await client.end(txn)


class _Host:
    """Takes what a coordinator is asked."""

    def __init__(self) -> None:
        self.asked: list[EndTxn] = []

    def submit(self, request: EndTxn, *, reserve: bool) -> None:
        self.asked.append(request)


def _joint(host: Any, count: int, answers: list[Any]) -> JointEnd:
    members = [TxnId(0, least + 1) for least in range(count)]
    end = EndTxn(None, members[0], TxnAction.COMMIT, group=tuple(members[1:]), abort_others=True)
    return JointEnd(host, members, end, lambda *answer: answers.append(answer))


@pytest.mark.parametrize("code", [ServerError.ServiceNotReady, ServerError.TransactionCoordinatorNotFound])
def test_a_coordinator_that_fails_before_all_are_over_makes_the_answer_retriable(code: ServerError) -> None:
    answers: list[Any] = []
    host = _Host()
    joint = _joint(host, 3, answers)
    joint.decided(None, None, "")
    assert [(each.txn_id, each.action, each.group) for each in host.asked] == [
        (TxnId(0, least), TxnAction.COMMIT, ()) for least in (1, 2, 3)
    ]
    host.asked[0].token(None, None, "")
    assert answers == []
    host.asked[1].token(None, code, "retry")
    host.asked[2].token(None, code, "retry")
    assert answers == [(None, code, "retry")]


def test_a_member_that_is_forgotten_since_counts_as_over() -> None:
    answers: list[Any] = []
    host = _Host()
    _joint(host, 2, answers).decided(None, None, "")
    for each in host.asked:
        each.token(None, ServerError.TransactionNotFound if each.txn_id.least == 2 else None, "")
    assert answers == [(None, None, "")]
