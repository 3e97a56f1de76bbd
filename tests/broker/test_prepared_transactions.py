"""Prepared transactions wait for their end, whatever becomes of client, timeout and broker. Ends that are answered early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from check_client import ABORT, COMMIT, KNOWS_CHECKS, UNKNOWN, CheckClient, ids_of
from credentials import TOKENS, Speaker, token
from manual_runtime import ManualRuntime
from raw_client import FULL, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

TOPIC = FULL + "orders"


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.broker.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


async def started(benches: Callable[..., Any], **config: Any) -> tuple[Any, ManualRuntime]:
    bench, clock = benches(**config), ManualRuntime()
    bench.runtime = clock
    return await bench.start(), clock


async def prepared(one: CheckClient, token: bytes = b"token", **fields: Any) -> TxnId:
    """A prepared transaction with a message."""
    await one.producer(TOPIC)
    txn = await one.begin(**{"group": None, "timeout_ms": 10_000, **fields})
    await one.add_topics(txn, TOPIC)
    await one.sent(b"prepared", txn=txn)
    await one.prepare(txn, token)
    return txn


@pytest.mark.parametrize("how", ["stays", "crash", "restart"])
@pytest.mark.parametrize("action", [TxnAction.COMMIT, TxnAction.ABORT])
async def test_a_prepared_transaction_outlives_its_timeout_its_client_and_the_broker(
    benches: Any, how: str, action: TxnAction
) -> None:
    bench, clock = await started(benches)
    one = CheckClient(bench.broker)
    txn = await prepared(one)
    one.drop()
    if how != "stays":
        await getattr(bench, how)()
        await bench.broker.coordinators.wait_ready()
    await clock.advance(60)
    assert status(bench, txn) is TxnStatus.PREPARED
    other = CheckClient(bench.broker)
    await other.end_with(txn, action, prepared_token=b"token")
    await other.end_with(txn, action, prepared_token=b"token")  # a repeat
    await other.producer(TOPIC)
    await other.sent(b"plain")
    await other.subscribe(TOPIC)
    expected = [b"prepared", b"plain"] if action is TxnAction.COMMIT else [b"plain"]
    assert await other.payloads(len(expected)) == expected
    await other.nothing()


async def test_nothing_more_is_taken_for_it_and_a_repeat_is_answered(bench: Any) -> None:
    one = CheckClient(bench.broker)
    txn = await prepared(one)
    await one.prepare(txn)
    for request in (one.prepare(txn, b"other"), one.add_topics(txn, FULL + "t2"), one.add_subscriptions(txn, (TOPIC, "s"))):
        with pytest.raises(Refused) as refused:
            await request
        assert refused.value.code == ServerError.InvalidTxnStatus
    await one.end(txn)
    with pytest.raises(Refused) as refused:
        await one.prepare(txn)
    assert refused.value.code == ServerError.InvalidTxnStatus
    assert (refused.value.body.txnid_most_bits, refused.value.body.txnid_least_bits) == txn


@pytest.mark.parametrize("shown", [b"", b"x" * 65])
async def test_a_token_has_to_say_something_and_not_too_much(bench: Any, shown: bytes) -> None:
    one = CheckClient(bench.broker)
    txn = await one.begin(None)
    with pytest.raises(Refused) as refused:
        await one.prepare(txn, shown)
    assert refused.value.code == ServerError.NotAllowedError
    await one.end(txn)


async def test_the_token_is_what_another_role_needs(benches: Any) -> None:
    bench = await benches(**TOKENS, super_user_roles="root").start()
    ann, bob, root = (GuardedClient(bench.broker, token(role), feature_flags=KNOWS_CHECKS) for role in ("ann", "bob", "root"))
    first, second = await ann.begin(None), await ann.begin(None)
    with pytest.raises(Refused) as refused:
        await bob.prepare(first)
    assert refused.value.code == ServerError.TransactionNotFound
    for txn in (first, second):
        await ann.prepare(txn, b"secret")
    for fields in ({}, {"prepared_token": b"guess"}):
        with pytest.raises(Refused) as refused:
            await bob.end_with(first, **fields)
        assert refused.value.code == ServerError.TransactionNotFound
    await bob.end_with(first, prepared_token=b"secret")
    await root.end(second, TxnAction.ABORT)
    assert (status(bench, first), status(bench, second)) == (TxnStatus.COMMITTED, TxnStatus.ABORTED)


@pytest.mark.seed_rows("B04", "E02")
async def test_a_successor_spares_what_is_prepared_and_may_end_it(bench: Any) -> None:
    one = CheckClient(bench.broker)
    answer = await one.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    txn = await prepared(one, tc_id=answer.tc_id)
    left_open = await one.begin(None, tc_id=answer.tc_id)
    two = CheckClient(bench.broker)
    again = await two.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    assert again.tc_id == txn.most
    assert (status(bench, txn), status(bench, left_open)) == (TxnStatus.PREPARED, TxnStatus.ABORTED)
    await two.end(txn)
    assert status(bench, txn) is TxnStatus.COMMITTED


async def test_a_prepared_one_with_a_group_is_asked_for_without_a_limit(benches: Any) -> None:
    bench, clock = await started(benches, transaction_check_max=1)
    one = CheckClient(bench.broker)
    await one.join()
    txn = await prepared(one, group="g")
    for number in range(5):
        await clock.advance(31)
        (question,) = one.take()
        assert (question.prepared, question.check_count, question.max_checks) == (True, number + 1, 0)
        await one.says(txn, UNKNOWN)
    await clock.advance(31)
    await one.says(txn, COMMIT)
    assert status(bench, txn) is TxnStatus.COMMITTED


@pytest.mark.seed_rows("C37")
async def test_a_nonce_opens_one_transaction_however_often_it_is_sent(benches: Any) -> None:
    bench = await benches().start()
    one = CheckClient(bench.broker)
    txn = await one.begin("g", nonce=b"n-1")
    assert await CheckClient(bench.broker).begin("g", nonce=b"n-1") == txn
    await bench.crash()
    again = CheckClient(bench.broker)
    assert await again.begin("g", nonce=b"n-1") == txn
    assert await again.begin("g", nonce=b"n-2") != txn
    await again.end(txn)


# ---- answered at the decision


class Stuck:
    """Participants take no outcome until `let_go`."""

    def __init__(self, bench: Any) -> None:
        self.waiting: list[Callable[[], None]] = []
        participants = bench.broker.participants
        tell = participants.tell
        participants.tell = lambda effect, told: self.waiting.append(lambda: tell(effect, told))

    def let_go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


@pytest.mark.seed_rows("C26")
async def test_an_end_may_be_answered_once_it_is_durable_and_before_participants_have_it(bench: Any) -> None:
    one, reader = CheckClient(bench.broker), CheckClient(bench.broker)
    await one.producer(TOPIC)
    await reader.subscribe(TOPIC)
    txn = await one.begin(None)
    await one.add_topics(txn, TOPIC)
    await one.sent(b"x", txn=txn)
    stuck = Stuck(bench)
    await one.end_with(txn, answer_at_decision=True)
    await reader.nothing()
    assert status(bench, txn) is TxnStatus.COMMITTING
    await bench.crash()  # only what was durable survives
    again = CheckClient(bench.broker)
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end_with(txn, answer_at_decision=True)
    await again.subscribe(TOPIC)
    assert (await again.receive()).payloads == [b"x"]
    assert stuck.waiting


async def test_a_group_may_be_answered_at_its_decision(bench: Any) -> None:
    one = CheckClient(bench.broker)
    await one.producer(TOPIC)
    first, second = await one.begin(None), await one.begin(None)
    await one.add_topics(first, TOPIC)
    await one.add_topics(second, TOPIC)
    stuck = Stuck(bench)
    await one.end_with(first, group_least_bits=[second.least], answer_at_decision=True)
    assert {status(bench, each) for each in (first, second)} == {TxnStatus.COMMITTING}
    whole = one.start("endTxn", **ids_of(first), txn_action=0, group_least_bits=[second.least])
    await one.settle()
    assert whole not in one._answers
    stuck.let_go()
    await one.answer(whole)


async def test_an_early_answer_is_refused_like_any_other(bench: Any) -> None:
    one = CheckClient(bench.broker)
    txn = await one.begin(None)
    await one.end_with(txn, answer_at_decision=True)
    with pytest.raises(Refused) as refused:
        await one.end_with(txn, TxnAction.ABORT, answer_at_decision=True)
    assert refused.value.code == ServerError.InvalidTxnStatus
    assert ABORT != COMMIT


async def test_when_the_store_fails_nothing_that_was_asked_to_be_answered_early_is_answered_as_done(bench: Any) -> None:
    one = CheckClient(bench.broker)
    txn = await one.begin(None)
    bench.broker.coordinators.ready(0).fail(OSError("gone"))
    refused = await one.refusal(one.start("endTxn", **ids_of(txn), txn_action=0, answer_at_decision=True))
    assert refused is not None
    assert refused.code in (ServerError.TransactionCoordinatorNotFound, ServerError.ServiceNotReady)
