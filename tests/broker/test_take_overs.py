"""Connecting with a transactional id: what older instances began has ended, at all participants, when the answer comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.txn.transactional_ids import MOST_PENDING
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

TOPIC = FULL + "orders"
CONNECT = "tcClientConnectRequest"


class Stuck:
    """Participants take no outcome while `holds`."""

    def __init__(self, bench: Any) -> None:
        self.holds = True
        self.waiting: list[Callable[[], None]] = []
        self._tell = bench.broker.participants.tell
        bench.broker.participants.tell = self.tell
        for tc_id in bench.broker.coordinators.here:
            bench.broker.coordinators.ready(tc_id)._participants = bench.broker.participants

    def tell(self, effect: Any, told: Any) -> None:
        self.waiting.append(lambda: self._tell(effect, told))
        if not self.holds:
            self.let_go()

    def let_go(self) -> None:
        self.holds = False
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


async def instance(bench: Any, name: str = "app", client: RawClient | None = None) -> tuple[RawClient, int, int]:
    """A client that took an id over; its epoch and its coordinator."""
    client = client or bench.client()
    answer = await client.request(CONNECT, tc_id=0, transactional_id=name)
    return client, answer.transactional_epoch, answer.tc_id


async def began(bench: Any) -> tuple[RawClient, TxnId]:
    """An instance with a transaction that has sent."""
    old, _, tc_id = await instance(bench)
    await old.producer(TOPIC)
    txn = await old.new_txn(tc_id)
    await old.add_topics(txn, TOPIC)
    await old.sent(b"of the old one", txn=txn)
    return old, txn


def waits(bench: Any, seconds: float) -> None:
    """How long a connect waits from now on. A short wait set from the start would end those of the set-up on a slow machine."""
    bench.broker.take_overs._wait_seconds = seconds


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.broker.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


def end(client: RawClient, txn: TxnId, action: TxnAction = TxnAction.COMMIT) -> int:
    return client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(action))


@pytest.fixture
async def bench(benches: Callable[..., Any]) -> Any:
    return await benches().start()


@pytest.mark.seed_rows("B04", "B05", "E02", "E04", "E12")
async def test_what_the_predecessor_left_open_is_aborted_when_the_connect_is_answered(bench: Any) -> None:
    old, txn = await began(bench)
    new, _, _ = await instance(bench)
    assert status(bench, txn) is TxnStatus.ABORTED
    await new.subscribe(TOPIC)
    await old.sent(b"plain")
    assert (await new.receive()).payloads == [b"plain"], "nothing holds the topic back any more"
    for request in (old.end(txn), old.new_txn(txn.most), old.add_topics(txn, TOPIC)):
        with pytest.raises(Refused) as refused:
            await request
        assert refused.value.code == ServerError.ProducerFenced, "no transaction of the new one was needed"


@pytest.mark.seed_rows("E04", "E13", "E14", "E05")
async def test_a_commit_that_was_decided_is_waited_for(bench: Any) -> None:
    old, txn = await began(bench)
    stuck = Stuck(bench)
    asked = end(old, txn)
    await old.until(lambda: stuck.waiting)
    new = bench.client()
    connect = new.start(CONNECT, tc_id=0, transactional_id="app")
    await new.settle()
    assert connect not in new._answers, "a participant does not hold the outcome yet"
    stuck.let_go()
    await new.answer(connect)
    assert status(bench, txn) is TxnStatus.COMMITTED
    await old.answer(asked)
    await new.subscribe(TOPIC)
    assert (await new.receive()).payloads == [b"of the old one"]


@pytest.mark.seed_rows("E01")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_an_epoch_that_was_answered_fences_after_a_restart_though_it_opened_nothing(bench: Any, how: str) -> None:
    _, old_epoch, tc_id = await instance(bench)
    _, new_epoch, _ = await instance(bench)
    await getattr(bench, how)()
    old, new = bench.client(), bench.client()
    for client, epoch in ((old, old_epoch), (new, new_epoch)):
        await client.request(CONNECT, tc_id=tc_id, transactional_id="app", transactional_epoch=epoch)
    with pytest.raises(Refused) as refused:
        await old.new_txn(tc_id)
    assert refused.value.code == ServerError.ProducerFenced
    await new.new_txn(tc_id)


async def test_of_two_successors_at_once_the_newer_one_goes_on(bench: Any) -> None:
    _, txn = await began(bench)
    stuck = Stuck(bench)
    first, second = bench.client(), bench.client()
    asked = first.start(CONNECT, tc_id=0, transactional_id="app")
    await first.until(lambda: stuck.waiting)
    also = second.start(CONNECT, tc_id=0, transactional_id="app")
    await second.settle()
    assert len(stuck.waiting) == 1, "it is aborted once"
    stuck.let_go()
    answer = await second.answer(also)
    refused = await first.refusal(asked)
    assert refused is not None
    assert refused.code == ServerError.ProducerFenced
    assert status(bench, txn) is TxnStatus.ABORTED
    await second.new_txn(answer.tc_id)
    again = await first.refusal(first.start(CONNECT, tc_id=0, transactional_id="app"))
    assert again is not None, "the same attempt has lost for good"
    assert again.code == ServerError.ProducerFenced


async def test_the_wait_is_bounded_and_a_repeat_goes_on_with_the_same_epoch(benches: Callable[..., Any]) -> None:
    bench = await benches(transactional_id_take_over_timeout_in_millis=60_000).start()
    _, txn = await began(bench)
    stuck, new = Stuck(bench), bench.client()
    configured = bench.broker.take_overs._wait_seconds
    assert configured == 60
    waits(bench, 0.02)
    counter = bench.store.metadata.counters
    epochs: list[int] = []
    for _ in range(3):
        asked = new.start(CONNECT, tc_id=0, transactional_id="app")
        await new.until(lambda asked=asked: new._answers.get(asked), turns=1_000_000)
        refused = await new.refusal(asked)
        assert refused is not None
        assert refused.code == ServerError.ServiceNotReady
        assert "'app'" in str(refused)
        epochs.append(counter["/counters/transactional-epoch"])
    assert len(set(epochs)) == 1
    host = bench.broker.coordinators.ready(txn.most)
    assert len(host._awaiting[txn]) == 1, "repeats join, and leave nothing"
    waits(bench, configured)
    stuck.let_go()
    _, epoch, tc_id = await instance(bench, client=new)
    assert epoch == epochs[0] - 1, "it is the counter of epochs that are given"
    assert status(bench, txn) is TxnStatus.ABORTED
    await new.new_txn(tc_id)
    assert not bench.broker.take_overs._pending


async def test_very_many_successors_that_wait_are_refused(bench: Any) -> None:
    await began(bench)
    stuck = Stuck(bench)
    clients = [bench.client() for _ in range(MOST_PENDING + 1)]
    asked = [each.start(CONNECT, tc_id=0, transactional_id="app") for each in clients]
    refused = await clients[-1].refusal(asked[-1])
    assert refused is not None
    assert refused.code == ServerError.ServiceNotReady
    stuck.let_go()
    assert await clients[-2].answer(asked[-2])


async def test_a_topic_that_cannot_be_opened_keeps_the_successor_waiting_and_no_other_id(benches: Callable[..., Any]) -> None:
    bench = await benches().start()
    _, txn = await began(bench)
    await bench.crash()
    waits(bench, 0.02)
    opens = bench.store.open
    broken = True

    async def fails(name: str) -> Any:
        if broken and name.endswith("/orders"):
            raise LedgerError("the disk gives nothing")
        return await opens(name)

    bench.store.open = fails
    new = bench.client()
    asked = new.start(CONNECT, tc_id=0, transactional_id="app")
    await new.until(lambda: new._answers.get(asked), turns=1_000_000)
    refused = await new.refusal(asked)
    assert refused is not None
    assert refused.code == ServerError.ServiceNotReady
    waits(bench, 60)
    await instance(bench, "other")
    broken = False
    while True:
        asked = new.start(CONNECT, tc_id=0, transactional_id="app")
        await new.until(lambda asked=asked: new._answers.get(asked), turns=1_000_000)
        if await new.refusal(asked) is None:
            break
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_a_crash_between_the_fence_and_its_aborts_is_made_good_by_the_next_connect(bench: Any) -> None:
    _, txn = await began(bench)
    stuck, new = Stuck(bench), bench.client()
    new.start(CONNECT, tc_id=0, transactional_id="app")
    await new.until(lambda: stuck.waiting)
    await bench.crash()
    _, _, tc_id = await instance(bench)
    assert tc_id == txn.most
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(bench: Any) -> None:
    await began(bench)
    stuck, new = Stuck(bench), bench.client()
    new.start(CONNECT, tc_id=0, transactional_id="app")
    await new.until(lambda: stuck.waiting)
    new.drop()
    await new.settle()
    stuck.let_go()
    await instance(bench)
    assert not bench.broker.take_overs._pending
