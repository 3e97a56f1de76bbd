"""Checks, prepared transactions and transactions bound to a connection, beside clusters: with lanes, and several instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from check_client import ABORT, COMMIT, KNOWS_CHECKS, CheckClient, txn_of
from coordinator_bench import Bench
from credentials import TOKENS, Speaker, token
from front_bench import FrontBench
from instances import World
from manual_runtime import ManualRuntime
from memory_network import MemoryNetwork, run_virtual
from raw_client import FULL, Refused
from service_admin import admin_of

from pulsar_txn.wire import hot_txn
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId, TxnStatus

OUT = FULL + "out"


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., tuple[Bench, ManualRuntime]]]:
    made: list[Bench] = []

    def make(*names: str, **config: Any) -> tuple[Bench, ManualRuntime]:
        bench, clock = Bench(*names, **config), ManualRuntime()
        bench.server_runtime = clock
        made.append(bench)
        return bench, clock

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


def client(bench: Any) -> CheckClient:
    return CheckClient(bench.service)


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.service.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


@pytest.mark.seed_rows("A07", "A09", "A14", "A28")
async def test_a_member_is_asked_and_its_answer_is_told_to_the_cluster(benches: Any) -> None:
    bench, clock = benches("east")
    await bench.start()
    one, other = client(bench), client(bench)
    await other.join()
    txn = await one.begin(check_data=b"17")
    assert txn.most & LANE_BIT
    await one.add_topics(txn, OUT)
    one.drop()
    await clock.advance(7)
    (question,) = other.take()
    assert (txn_of(question), question.check_data, question.check_count) == (txn, b"17", 1)
    await other.says(txn, COMMIT)
    assert bench.clusters["east"].ends == [(OUT, None, "COMMIT")]
    async with admin_of(bench.service) as admin:
        found = await admin.timeline(txn)
    assert found["checkGroup"] == "g"
    kinds = [(event["event"], event.get("by"), event.get("count")) for event in found["events"]]
    assert ("checked", None, 1) in kinds
    assert ("decided", "check", None) in kinds


async def test_what_a_gone_client_prepared_outlives_its_lease_and_the_service(benches: Any) -> None:
    bench, clock = benches("east")
    await bench.start()
    one = client(bench)
    await one.request("tcClientConnectRequest", tc_id=0, incarnation="i-1")
    prepared, left_open = await one.begin(None), await one.begin(None)
    for txn in (prepared, left_open):
        await one.add_topics(txn, OUT)
    await one.prepare(prepared)
    one.drop()
    await clock.advance(30)
    assert (status(bench, prepared), status(bench, left_open)) == (TxnStatus.PREPARED, TxnStatus.ABORTED)
    await bench.crash()
    await clock.advance(60)
    assert status(bench, prepared) is TxnStatus.PREPARED
    async with admin_of(bench.service) as admin:
        found = await admin.timeline(prepared)
    assert found["state"] == "PREPARED"
    assert [event["event"] for event in found["events"]] == ["begun", "registered", "prepared"]
    other = client(bench)
    await other.end_with(prepared, prepared_token=b"token")
    assert bench.clusters["east"].ends == [(OUT, None, "COMMIT")]


async def test_the_group_of_a_gone_client_decides_after_its_lease_and_a_crash(benches: Any) -> None:
    bench, clock = benches("east")
    await bench.start()
    one = client(bench)
    await one.request("tcClientConnectRequest", tc_id=0, incarnation="i-1")
    txn = await one.begin("g")
    await one.add_topics(txn, OUT)
    one.drop()
    await clock.advance(30)
    assert status(bench, txn) is TxnStatus.OPEN
    await bench.crash()
    await clock.advance(30)
    other = client(bench)
    await other.join()
    await clock.advance(1)
    (question,) = other.take()
    assert (txn_of(question), question.check_count) == (txn, 1)
    await other.says(txn, COMMIT)
    assert bench.clusters["east"].ends == [(OUT, None, "COMMIT")]


@pytest.mark.seed_rows("C42")
async def test_what_was_to_end_with_its_connection_ends_and_the_timeline_says_why(benches: Any) -> None:
    bench, _ = benches("east")
    await bench.start()
    one = client(bench)
    txn, plain = await one.begin(None, abort_on_disconnect=True), await one.begin(None)
    await one.add_topics(txn, OUT)
    one.drop()
    await one.settle()
    assert (status(bench, txn), status(bench, plain)) == (TxnStatus.ABORTED, TxnStatus.OPEN)
    async with admin_of(bench.service) as admin:
        found = await admin.timeline(txn)
    assert [event["by"] for event in found["events"] if event["event"] == "decided"] == ["disconnect"]


@pytest.mark.seed_rows("C26")
async def test_an_end_may_be_answered_before_the_cluster_has_it(benches: Any) -> None:
    bench, _ = benches("east")
    await bench.start()
    bench.clusters["east"].answers = False
    one = client(bench)
    txn = await one.begin(None)
    await one.add_topics(txn, OUT)
    await one.end_with(txn, answer_at_decision=True)
    assert status(bench, txn) is TxnStatus.COMMITTING
    await one.until(lambda: bench.clusters["east"].told)
    bench.clusters["east"].answer()
    await one.settle()
    assert status(bench, txn) is TxnStatus.COMMITTED


@pytest.mark.seed_rows("B18", "E07", "E08")
async def test_a_transactional_id_is_described_with_the_clusters_of_its_participants(benches: Any) -> None:
    bench, _clock = benches("east", "west", **TOKENS, super_user_roles="root")
    await bench.start()

    def of(role: str) -> GuardedClient:
        return GuardedClient(bench.service, token(role), feature_flags=KNOWS_CHECKS)

    one = of("ann")
    answer = await one.request("tcClientConnectRequest", tc_id=0, transactional_id="app", incarnation="i")
    txn = await one.begin("g", answer.tc_id)
    ids = {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}
    for cluster in ("east", "west"):
        await one.request("addPartitionToTxn", **ids, partitions=[OUT], cluster=cluster)
    for asks, fields in (("ann", {}), ("root", {"owner": "ann"})):
        found = await of(asks).request("describeTransactionalId", transactional_id="app", **fields)
        (shown,) = found.transactions
        assert (found.epoch, txn_of(shown), shown.check_group) == (answer.transactional_epoch, txn, "g")
        assert sorted((each.cluster, each.topic) for each in shown.participants) == [("east", OUT), ("west", OUT)]
    assert not (await of("bob").request("describeTransactionalId", transactional_id="app")).HasField("epoch")
    with pytest.raises(Refused, match="a role sees its own"):
        await of("bob").request("describeTransactionalId", transactional_id="app", owner="ann")


async def test_a_member_of_another_role_is_never_asked_and_never_heard(benches: Any) -> None:
    bench, clock = benches("east", **TOKENS)
    await bench.start()
    ann, bob = (GuardedClient(bench.service, token(role), feature_flags=KNOWS_CHECKS) for role in ("ann", "bob"))
    txn = await ann.begin()
    await bob.join()
    await clock.advance(50)
    bob.say(txn, COMMIT)
    await bob.settle()
    assert bob.questions == []
    assert status(bench, txn) is TxnStatus.OPEN
    await ann.join()
    await clock.advance(0)
    assert ann.asked == [txn]


async def test_a_successor_spares_what_its_predecessor_prepared(benches: Any) -> None:
    bench, _ = benches("east")
    await bench.start()
    old, new = client(bench), client(bench)
    tc_id = (await old.request("tcClientConnectRequest", tc_id=0, transactional_id="app")).tc_id
    prepared, left_open = await old.begin(None, tc_id), await old.begin(None, tc_id)
    await old.prepare(prepared)
    await new.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    assert (status(bench, prepared), status(bench, left_open)) == (TxnStatus.PREPARED, TxnStatus.ABORTED)
    await new.end(prepared, TxnAction.ABORT)


async def test_the_front_offers_nothing_of_it() -> None:
    bench = await FrontBench().start()
    try:
        one = await bench.joined()
        frame = hot_txn.encode_new_txn(7, 60_000, 0, more=hot_txn.encode_checked(hot_txn.Checked("g")))
        one.raw(frame)
        (body,) = await one.until(lambda: one._answers.get(7))
        assert body.error == ServerError.NotAllowedError
    finally:
        await bench.service.close()
        await bench.store.close()


# ---- several instances


def told(story: Callable[[World], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def main(network: MemoryNetwork) -> None:
        await story(await World(network, 2, **config).start())

    run_virtual(main)


def test_membership_lives_at_the_instance_that_leads_and_clients_join_again_after_a_takeover() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        knows = second.service.coordinators
        await world.until(lambda: knows.leader(0) == first.url)  # it claims in the cluster first, and reads then
        one, standby = CheckClient(first.service), CheckClient(second.service)  # type: ignore[arg-type]  # it wants connections
        await said(world, one, "tcClientConnectRequest", tc_id=0)
        await said(world, one, "txnGroup", tc_id=0, group="g")
        refused = await standby_refusal(world, standby)
        assert refused.code == ServerError.TransactionCoordinatorNotFound
        assert first.url in str(refused)
        body = await said(world, one, "newTxn", tc_id=0, txn_ttl_millis=3_000_000, check_group="g")
        txn = txn_of(body)
        await world.until(lambda: one.asked == [txn])
        bound = txn_of(await said(world, one, "newTxn", tc_id=1, txn_ttl_millis=3_000_000, abort_on_disconnect=True))
        first.store.lose("_0")
        await world.until(lambda: 0 in second.leads)
        await world.until(lambda: one.pipe.closed)
        one.connection.connection_lost(None)
        assert first.service.coordinators.check_groups.memberships == 0
        again = CheckClient(second.service)  # type: ignore[arg-type]  # as above
        await said(world, again, "tcClientConnectRequest", tc_id=0)
        await said(world, again, "txnGroup", tc_id=0, group="g")
        await world.until(lambda: again.asked == [txn])
        assert again.questions[0].check_count == 1, "nobody had begun to answer"
        again.say(txn, ABORT)
        machine = second.service.coordinators.ready(0).coordinator  # type: ignore[union-attr]  # it leads
        await world.until(lambda: machine.status(txn) is TxnStatus.ABORTED)
        stays = first.service.coordinators.ready(1).coordinator  # type: ignore[union-attr]  # the first one still leads this
        assert stays.status(bound) is TxnStatus.OPEN, "who was sent away did not go by itself"

    async def said(world: World, one: CheckClient, name: str, **fields: Any) -> Any:
        request = one.start(name, **fields)
        await world.until(lambda: one._answers.get(request))
        return await one.answer(request)

    async def standby_refusal(world: World, one: CheckClient) -> Refused:
        request = one.start("txnGroup", tc_id=0, group="g")
        await world.until(lambda: one._answers.get(request))
        found = await one.refusal(request)
        assert found is not None
        return found

    told(story)
