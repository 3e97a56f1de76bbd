"""What is known of a transactional id, asked for over the connection with a coordinator."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from check_client import KNOWS_CHECKS, CheckClient, txn_of
from credentials import TOKENS, Speaker, token
from loop_blocks import held_loop
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.commands import txn as commands
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

ASK = "describeTransactionalId"
TOPIC = FULL + "orders"


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


async def bound(client: RawClient, name: str = "app") -> tuple[int, int]:
    """Be an instance of a transactional id: its coordinator and epoch."""
    answer = await client.request("tcClientConnectRequest", tc_id=0, transactional_id=name)
    return answer.tc_id, answer.transactional_epoch


@pytest.mark.seed_rows("B18", "E07", "E08")
@pytest.mark.parametrize("crashes", [False, True], ids=["live", "recovered"])
async def test_an_id_is_described_over_the_wire_with_epoch_states_and_participants(bench: Any, crashes: bool) -> None:
    one, two = CheckClient(bench.broker), CheckClient(bench.broker)
    tc_id, _ = await bound(one)
    prepared = await one.begin(None, tc_id)
    await one.prepare(prepared)
    _, epoch = await bound(two)
    txn = await two.begin("g", tc_id, timeout_ms=50_000)
    await two.add_topics(txn, TOPIC)
    await two.add_subscriptions(txn, (TOPIC, "s"))
    if crashes:
        await bench.crash()
        await bench.broker.coordinators.wait_ready()
    answer = await CheckClient(bench.broker).request(ASK, transactional_id="app")
    assert (answer.tc_id, answer.epoch, answer.transaction_count, answer.elsewhere) == (tc_id, epoch, 2, False)
    first, second = answer.transactions
    assert (txn_of(first), TxnStatus(first.status), first.epoch) == (prepared, TxnStatus.PREPARED, epoch - 1)
    assert (txn_of(second), TxnStatus(second.status), second.epoch) == (txn, TxnStatus.OPEN, epoch)
    assert (second.timeout_millis, second.check_group, second.participant_count) == (50_000, "g", 2)
    assert {(each.topic, each.subscription) for each in second.participants} == {(TOPIC, ""), (TOPIC, "s")}
    assert second.modified_millis >= second.start_time_millis > 0
    assert answer.last_used_millis > 0


async def test_nothing_is_known_of_an_id_that_never_came_and_asking_registers_nothing(bench: Any) -> None:
    one = CheckClient(bench.broker)
    answer = await one.request(ASK, transactional_id="nobody")
    assert not answer.HasField("epoch")
    assert not answer.HasField("tc_id")  # the first id that comes settles how they are spread, and no question does
    await bound(one)
    answer = await one.request(ASK, transactional_id="nobody")
    assert answer.HasField("tc_id")
    assert not answer.HasField("epoch")


@pytest.mark.seed_rows("B33")
async def test_data_of_an_id_is_refused_before_its_coordinator_knows_it_and_every_instance_is_known_there(bench: Any) -> None:
    one, two = CheckClient(bench.broker), CheckClient(bench.broker)
    await one.producer(TOPIC)
    with pytest.raises(Refused) as refused:
        await one.sent(b"early", txn=TxnId(1, 0))
    assert refused.value.code == ServerError.NotAllowedError
    tc_id, first = await bound(one)
    prepared = await one.begin(None, tc_id)
    await one.add_topics(prepared, TOPIC)
    await one.sent(b"in time", txn=prepared)
    await one.prepare(prepared)
    _, second = await bound(two)
    await two.begin(None, tc_id)
    known = await two.request(ASK, transactional_id="app")
    assert (known.tc_id, [each.epoch for each in known.transactions]) == (tc_id, [first, second])


async def test_what_has_ended_is_not_shown(bench: Any) -> None:
    one = CheckClient(bench.broker)
    tc_id, epoch = await bound(one)
    await one.end(await one.begin(None, tc_id), TxnAction.COMMIT)
    answer = await one.request(ASK, transactional_id="app")
    assert (answer.epoch, answer.transaction_count, list(answer.transactions)) == (epoch, 0, [])


async def test_a_role_sees_its_own_ids_and_an_operator_all(benches: Any) -> None:
    bench = await benches(**TOKENS, super_user_roles="root").start()

    def client(role: str) -> GuardedClient:
        return GuardedClient(bench.broker, token(role), feature_flags=KNOWS_CHECKS)

    _, of_ann = await bound(client("ann"))
    assert (await client("ann").request(ASK, transactional_id="app")).epoch == of_ann
    assert (await client("ann").request(ASK, transactional_id="app", owner="ann")).epoch == of_ann
    assert not (await client("bob").request(ASK, transactional_id="app")).HasField("epoch")
    for owner in ("ann", "nobody", ""):  # the refusal does not tell which of them has the id
        with pytest.raises(Refused, match="a role sees its own transactional ids") as refused:
            await client("bob").request(ASK, transactional_id="app", owner=owner)
        assert refused.value.code == ServerError.AuthorizationError
    assert (await client("root").request(ASK, transactional_id="app", owner="ann")).epoch == of_ann
    assert not (await client("root").request(ASK, transactional_id="app")).HasField("epoch")
    assert not (await client("root").request(ASK, transactional_id="app", owner="")).HasField("epoch")


async def test_one_answer_is_bounded_and_says_how_many_there_are(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_TRANSACTIONS", 3)
    monkeypatch.setattr(commands, "_MAX_NAMES", 2 * len(TOPIC) + 5)
    one = CheckClient(bench.broker)
    tc_id, _ = await bound(one)
    txns = [await one.begin(None, tc_id) for _ in range(5)]
    for txn in txns:
        await one.add_topics(txn, TOPIC, TOPIC + "2")
    answer = await one.request(ASK, transactional_id="app")
    assert [txn_of(each) for each in answer.transactions] == txns[:3]
    assert answer.transaction_count == 5
    assert [(each.participant_count, len(each.participants)) for each in answer.transactions] == [(2, 2), (2, 0), (2, 0)]


async def test_very_wide_transactions_are_described_while_others_have_their_turns(bench: Any) -> None:
    """All of them at once, with all their participants, held the loop for a second."""
    one = CheckClient(bench.broker)
    tc_id, _ = await bound(one)
    machine = bench.broker.coordinators.ready(tc_id).machine
    names = [f"{TOPIC}-{number}" for number in range(1000)]
    for _ in range(100):
        await one.add_topics(await one.begin(None, tc_id), *names)
    async with held_loop() as held:
        answer = await one.request(ASK, transactional_id="app")
    assert [each.participant_count for each in answer.transactions] == [1000] * 100
    assert held.longest_seconds < held.total_seconds / 3
    txn_id = txn_of(answer.transactions[1])
    unfinished = machine.describe(None, "app").unfinished
    await one.end(txn_id, TxnAction.ABORT)
    info = attrs.evolve(machine.describe(None, "app"), unfinished=unfinished)
    left = commands.each_unfinished(machine, info, bench.broker.turn.budget)
    assert [each.txn_id.least async for each in left] == [least for least in unfinished if least != txn_id.least]


async def test_a_question_for_a_coordinator_that_is_not_there_is_refused_and_can_be_repeated(bench: Any) -> None:
    one = CheckClient(bench.broker)
    tc_id, _ = await bound(one)
    bench.broker.coordinators._serving.pop(tc_id)
    with pytest.raises(Refused) as refused:
        await one.request(ASK, transactional_id="app", tc_id=tc_id)
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
