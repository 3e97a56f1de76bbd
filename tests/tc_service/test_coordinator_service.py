"""The coordinator service over scripted clusters: who may take part, who is told, and what a restart finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from coordinator_bench import Bench
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId, coordinator_of, signed64
from pulsar_txn.wire.topics import ASSIGN_TOPIC

IN, OUT = FULL + "in", FULL + "out"


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*names: str) -> Bench:
        made.append(Bench(*names))
        return made[-1]

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


async def add(client: RawClient, txn: TxnId, cluster: str | None, *topics: str) -> Any:
    fields = {} if cluster is None else {"cluster": cluster}
    ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
    return await client.request("addPartitionToTxn", **ids, partitions=list(topics), **fields)


async def test_the_coordinators_are_found_as_those_of_a_broker_and_topics_are_refused_with_a_sentence(benches: Any) -> None:
    client = (await benches("east").start()).client()
    found = await client.request("partitionMetadata", topic=ASSIGN_TOPIC)
    assert found.partitions == 2
    answer = await client.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-1")
    assert answer.proxy_through_service_url
    assert answer.authoritative
    for name in ("partitionMetadata", "lookupTopic"):
        with pytest.raises(Refused, match="has no topics; give the client the service URL of its cluster"):
            await client.request(name, topic=OUT)


async def test_ids_are_far_outside_those_of_the_clusters_own_coordinators(benches: Any) -> None:
    client = (await benches("east").start()).client()
    ids = [await client.new_txn(tc_id) for tc_id in (0, 1, 0)]
    assert [coordinator_of(each.most) for each in ids] == [0, 1, 0]
    assert all(each.most & LANE_BIT for each in ids)
    assert len(set(ids)) == 3
    assert all(signed64(each.most) > 0 for each in ids)


async def test_a_commit_is_told_to_each_participant_and_answered_when_all_hold_it(benches: Any) -> None:
    bench = await benches("east").start()
    east, client = bench.clusters["east"], bench.client()
    east.answers = False
    txn = await client.new_txn()
    await client.add_topics(txn, "out", OUT)  # one name, written in two ways
    await client.add_subscriptions(txn, (IN, "s"))
    asked = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(TxnAction.COMMIT))
    await client.until(lambda: len(east.told) == 2)
    assert sorted(east.ends, key=str) == [(IN, "s", "COMMIT"), (OUT, None, "COMMIT")]
    await client.settle()
    assert asked not in client._answers
    east.answer()
    await client.answer(asked)
    await client.end(txn)  # a repeat is answered from what is remembered
    with pytest.raises(Refused):
        await client.abort(txn)
    assert len(east.told) == 2


async def test_only_the_owner_says_that_nothing_of_a_transaction_can_come_late(benches: Any) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    for all_answered in (True, False):
        txn = await client.new_txn()
        await add(client, txn, "east", OUT)
        ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
        await client.request("endTxn", **ids, txn_action=0, all_answered=all_answered)
        assert [each.driver.answered.count(txn) for each in bench.clusters.values()] == [all_answered] * 2
    unknown = {"txnid_least_bits": 77, "txnid_most_bits": txn.most}
    with pytest.raises(Refused):
        await client.request("endTxn", **unknown, txn_action=0, all_answered=True)
    assert len(bench.clusters["east"].driver.answered) == 1


def first(*named: tuple[str, str | None, str]) -> list[pb.FirstParticipant]:
    return [pb.FirstParticipant(topic=topic, subscription=name, cluster=cluster) for topic, name, cluster in named]


async def begin(client: RawClient, *named: tuple[str, str | None, str]) -> TxnId:
    await client.request("tcClientConnectRequest", tc_id=0)
    body = await client.request("newTxn", tc_id=0, txn_ttl_millis=60_000, participants=first(*named))
    return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))


@pytest.mark.seed_rows("C13")
async def test_what_a_transaction_writes_to_first_is_registered_when_its_id_is_answered(benches: Any) -> None:
    bench = await benches("east", "west").start()
    txn = await begin(bench.client(), ("out", None, "east"), (IN, "s", "east"), (OUT, None, "west"))
    await bench.crash()
    client = bench.client()
    await client.request("tcClientConnectRequest", tc_id=0)
    await client.end(txn)
    assert sorted(bench.clusters["east"].ends, key=str) == [(IN, "s", "COMMIT"), (OUT, None, "COMMIT")]
    assert bench.clusters["west"].ends == [(OUT, None, "COMMIT")]
    checks = bench.clusters["east"].checks
    await begin(client, ("out", None, "east"))
    await begin(client, ("out", None, "east"))
    assert bench.clusters["east"].checks == checks + 1


@pytest.mark.parametrize(
    ("named", "code", "says"),
    [
        ((("gone", None, "east"),), ServerError.TopicNotFound, "not there"),
        (((OUT, None, "east"), ("gone", None, "east")), ServerError.TopicNotFound, "not there"),
        (((OUT, None, "north"),), ServerError.NotAllowedError, "no cluster 'north'"),
        (((OUT, None, ""),), ServerError.NotAllowedError, "does not say which cluster"),
        ((("non-persistent://public/default/t", None, "east"),), ServerError.NotAllowedError, "not persistent"),
        (((OUT, None, "east"),) * 1001, ServerError.NotAllowedError, "1000 are the most"),
        (((OUT, None, "west"),), ServerError.ServiceNotReady, "could not be asked"),
    ],
)
async def test_what_cannot_take_part_opens_no_transaction(
    benches: Any, named: tuple[tuple[str, str | None, str], ...], code: ServerError, says: str
) -> None:
    bench = await benches("east", "west").start()
    bench.clusters["east"].missing.add(FULL + "gone")
    bench.clusters["west"].is_away = True
    client = bench.client()
    before = await begin(client)
    with pytest.raises(Refused, match=says) as refused:
        await begin(client, *named)
    assert refused.value.code == code
    assert (await begin(client)).least == before.least + 1


async def test_a_participant_is_looked_for_once_and_a_missing_one_is_refused_with_all_of_its_request(benches: Any) -> None:
    bench = await benches("east").start()
    east, client = bench.clusters["east"], bench.client()
    east.missing.add(OUT)
    txn = await client.new_txn()
    with pytest.raises(Refused) as refused:
        await client.add_topics(txn, IN, OUT)
    assert refused.value.code == ServerError.TopicNotFound
    assert (refused.value.body.txnid_most_bits, refused.value.body.txnid_least_bits) == (txn.most, txn.least)
    east.missing.clear()
    await client.add_topics(txn, OUT)
    checks = east.checks
    await client.add_topics(txn, OUT, IN)
    assert east.checks == checks
    await client.end(txn)


@pytest.mark.parametrize(
    "topic", ["non-persistent://public/default/t", "persistent://pulsar/system/t", "segment://a/b/c", "a//b", ASSIGN_TOPIC]
)
async def test_what_no_broker_can_end_a_transaction_on_is_refused_before_anybody_is_asked(benches: Any, topic: str) -> None:
    bench = await benches("east").start()
    client = bench.client()
    txn = await client.new_txn()
    with pytest.raises(Refused) as refused:
        await client.add_topics(txn, topic)
    assert refused.value.code == ServerError.NotAllowedError
    assert bench.clusters["east"].checks == 0


async def test_with_several_clusters_a_client_says_which_and_one_transaction_spans_them(benches: Any) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    txn = await client.new_txn()
    with pytest.raises(Refused, match=r"does not say which cluster.*east, west"):
        await add(client, txn, None, OUT)
    with pytest.raises(Refused, match=r"no cluster 'north' here.*east, west"):
        await add(client, txn, "north", OUT)
    await add(client, txn, "east", OUT)
    await add(client, txn, "west", OUT)
    await client.end(txn)
    assert bench.clusters["east"].ends == bench.clusters["west"].ends == [(OUT, None, "COMMIT")]


async def test_after_a_crash_every_decision_is_told_again_and_the_repeat_of_the_client_is_answered(benches: Any) -> None:
    bench = await benches("east", "west").start()
    bench.clusters["west"].answers = False
    client = bench.client()
    txn = await client.new_txn()
    for name in ("east", "west"):
        await add(client, txn, name, OUT)
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(TxnAction.ABORT))
    await client.until(lambda: bench.clusters["west"].told)
    await bench.crash()
    client = bench.client()
    await client.until(lambda: bench.clusters["west"].told)
    assert bench.clusters["east"].ends == bench.clusters["west"].ends == [(OUT, None, "ABORT")]
    await client.abort(txn)
    with pytest.raises(Refused):
        await client.end(txn)


async def test_a_cluster_that_is_not_configured_any_more_keeps_its_transactions(
    benches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await benches("east", "west").start()
    bench.clusters["west"].answers = False
    client = bench.client()
    txn = await client.new_txn()
    await add(client, txn, "west", OUT)
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(TxnAction.COMMIT))
    await client.until(lambda: bench.clusters["west"].told)
    await bench.crash("east")
    assert "no cluster 'west' any more; configure it again" in caplog.text
    await bench.crash("east", "west")
    await bench.client().end(txn)
    assert bench.clusters["west"].ends == [(OUT, None, "COMMIT")]


async def test_a_client_that_leaves_while_a_cluster_is_asked_registers_nothing(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    txn = await client.new_txn()
    client.start("addPartitionToTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, partitions=[OUT])
    client.drop()
    other = bench.client()
    await other.end(txn)
    assert bench.clusters["east"].told == []


# ---- who lives: incarnations, leases, goodbyes, successors


async def guest(bench: Bench, incarnation: str, tc_id: int = 0) -> Any:
    client = bench.client()
    await client.request("tcClientConnectRequest", tc_id=tc_id, incarnation=incarnation)
    return client


def lane(txn: TxnId) -> int:
    return txn.most & (1 << 48) - 1


async def test_one_transaction_of_a_lane_at_a_time_and_the_next_one_of_a_client_takes_its_lane_again(benches: Any) -> None:
    bench = await benches("east").start()
    client = await guest(bench, "a")
    first, beside = await client.new_txn(), await client.new_txn()
    assert lane(first) != lane(beside)
    await client.end(first)
    after = await client.new_txn()
    assert lane(after) == lane(first)
    assert after.least > first.least


async def test_the_watermark_of_an_end_is_the_transaction_itself(benches: Any) -> None:
    bench = await benches("east").start()
    client = await guest(bench, "a")
    older = await client.new_txn()
    txn = await client.new_txn()
    await client.add_topics(txn, OUT)
    await client.end(txn)
    (told,) = bench.clusters["east"].told
    assert told.low_watermark == txn.least > older.least


async def test_lanes_go_to_another_client_after_a_goodbye_only(benches: Any) -> None:
    bench = await benches("east").start()
    left, dropped = await guest(bench, "left"), await guest(bench, "dropped")
    used, other = await left.new_txn(), await dropped.new_txn()
    await left.end(used)
    await dropped.end(other)
    dropped.drop()
    await left.request("tcClientConnectRequest", tc_id=0, incarnation="left", goodbye=True)
    newcomer = await guest(bench, "new")
    taken = [lane(await newcomer.new_txn()) for _ in range(3)]
    assert lane(used) in taken
    assert lane(other) not in taken


async def test_a_connection_speaks_for_one_incarnation(benches: Any) -> None:
    bench = await benches("east").start()
    client = await guest(bench, "a")
    with pytest.raises(Refused, match="another incarnation"):
        await client.request("tcClientConnectRequest", tc_id=0, incarnation="b")


async def test_a_client_without_a_connection_is_gone_when_its_lease_is_over_and_one_with_a_connection_is_not(
    benches: Any,
) -> None:
    bench = await benches("east").start()
    gone, stays = await guest(bench, "gone"), await guest(bench, "stays")
    lost, kept = await gone.new_txn(timeout_ms=3_000_000), await stays.new_txn(timeout_ms=3_000_000)
    for client, txn in ((gone, lost), (stays, kept)):
        await client.add_topics(txn, OUT)
    gone.drop()
    machine = bench.service.coordinators.ready(0)
    assert machine is not None
    now_ms = bench.service.turn.clock.now_ms()
    bench.service.turn.observe(now_ms + 9_000)
    await bench.service._renew()
    bench.service.turn.observe(now_ms + 11_000)
    machine.expire()
    await stays.until(lambda: bench.clusters["east"].told)
    assert [(each.txn_id, each.action) for each in bench.clusters["east"].told] == [(lost, TxnAction.ABORT)]
    await stays.end(kept)
    with pytest.raises(Refused):
        await stays.end(lost)


async def test_a_service_that_was_stopped_for_longer_than_a_lease_takes_nobody_who_is_connected_for_gone(benches: Any) -> None:
    bench = await benches("east").start()
    client = await guest(bench, "a")
    txn = await client.new_txn(timeout_ms=3_000_000)
    await client.add_topics(txn, OUT)
    machine = bench.service.coordinators.ready(0)
    assert machine is not None
    bench.service.turn.observe(bench.service.turn.clock.now_ms() + 60_000)
    machine.expire_soon()  # what is due comes before the next renewal
    await client.settle()
    assert bench.clusters["east"].told == []
    await client.end(txn)


async def test_a_successor_is_let_in_when_all_that_its_predecessor_left_has_ended_everywhere(benches: Any) -> None:
    bench = await benches("east").start()
    east = bench.clusters["east"]
    old = bench.client()
    given = await old.request("tcClientConnectRequest", tc_id=0, transactional_id="app", incarnation="old")
    open_, committing = await old.new_txn(given.tc_id), await old.new_txn(given.tc_id)
    for txn in (open_, committing):
        await old.add_topics(txn, OUT)
    east.answers = False
    old.start("endTxn", txnid_least_bits=committing.least, txnid_most_bits=committing.most, txn_action=int(TxnAction.COMMIT))
    await old.until(lambda: len(east.told) == 1)
    new = bench.client()
    asked = new.start("tcClientConnectRequest", tc_id=0, transactional_id="app", incarnation="new")
    await new.until(lambda: len(east.told) == 2)
    await new.settle()
    assert not new._answers.get(asked)
    east.answer()
    answer = await new.answer(asked)
    assert answer.transactional_epoch > given.transactional_epoch
    assert {each.txn_id: each.action for each in east.told} == {open_: TxnAction.ABORT, committing: TxnAction.COMMIT}
    with pytest.raises(Refused) as refused:
        await old.new_txn(given.tc_id)
    assert refused.value.code == ServerError.ProducerFenced
    fresh = await new.new_txn(given.tc_id)
    assert lane(fresh) not in (lane(open_), lane(committing))


async def test_a_group_ends_by_one_record_though_each_of_it_has_a_lane(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    given = await client.request("tcClientConnectRequest", tc_id=0, transactional_id="app", incarnation="a")
    first, second = await client.new_txn(given.tc_id), await client.new_txn(given.tc_id)
    await client.add_topics(first, IN)
    await client.add_topics(second, OUT)
    ids = {"txnid_least_bits": first.least, "txnid_most_bits": first.most, "txn_action": int(TxnAction.COMMIT)}
    for _ in range(2):  # and its repeat
        await client.request("endTxn", **ids, group_least_bits=[second.least])
    assert sorted(bench.clusters["east"].ends) == [(IN, None, "COMMIT"), (OUT, None, "COMMIT")]
