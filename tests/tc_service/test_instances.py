"""Several instances of the coordinator service: one leads each coordinator, and clients find it, also after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from insides import coordinators_of
from instances import World
from memory_network import MemoryNetwork, run_virtual
from raw_client import FULL, RawClient, Refused

from pulsar_txn.client.errors import InvalidTransactionStatus, TransactionFenced
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.tc_service.server.clusters import agree_on_count, compare_clusters, count_now
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus, coordinator_of
from pulsar_txn.wire.topics import ASSIGN_TOPIC

OUT = FULL + "out"
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def told(story: Callable[[World], Coroutine[Any, Any, None]], instances: int = 2, **config: Any) -> None:
    """Tell a story in virtual time."""

    async def main(network: MemoryNetwork) -> None:
        await story(await World(network, instances, **config).start())

    run_virtual(main)


def raw(world: World, number: int) -> RawClient:
    return RawClient(world.instances[number].service)  # type: ignore[arg-type]  # it wants connections, and nothing else of a broker


def test_one_instance_leads_and_the_other_says_at_once_where() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: first.leads == [0, 1, 2, 3])
        assert second.leads == []
        standby = raw(world, 1)
        assert (await standby.request("partitionMetadata", topic=ASSIGN_TOPIC)).partitions == 4
        found = await standby.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-3")
        assert found.brokerServiceUrl == first.url
        assert not found.proxy_through_service_url
        before = world.network.loop.time()
        with pytest.raises(Refused, match=f"coordinator 3 is led by {first.url}") as refused:
            await standby.request("tcClientConnectRequest", tc_id=3)
        assert refused.value.code == ServerError.TransactionCoordinatorNotFound
        assert world.network.loop.time() - before < 0.1
        found = await raw(world, 0).request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-3")
        assert found.brokerServiceUrl == first.url

    told(story)


def test_while_nobody_leads_a_lookup_is_to_be_repeated() -> None:
    async def story(world: World) -> None:
        standby = raw(world, 0)
        with pytest.raises(Refused, match="no instance is known to lead coordinator 0") as refused:
            await standby.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-0")
        assert refused.value.code == ServerError.ServiceNotReady

    told(story, 1)


@pytest.mark.seed_rows("C04")
def test_clients_go_on_by_themselves_when_the_leader_is_killed() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        async with world.coordinator() as coordinator:
            ask = coordinators_of(coordinator)
            early = await ask.new_txn(60_000)
            await ask.add_partitions(early, ["east|" + OUT])
            await first.kill()
            before = world.network.loop.time()
            late = await ask.new_txn(60_000)
            assert world.network.loop.time() - before < 1.0
            assert second.leads == [0, 1, 2, 3]
            await ask.end_txn(late, ABORT)
            await ask.end_txn(early, COMMIT)
            await ask.end_txn(early, COMMIT)
            with pytest.raises(InvalidTransactionStatus):
                await ask.end_txn(early, ABORT)
        assert [each.action.name for each in second.cluster.told] == ["COMMIT"]

    told(story)


def test_a_successor_drives_every_decision_again_and_the_commit_under_way_gets_its_answer() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        first.cluster.answers = False
        async with world.coordinator() as coordinator:
            ask = coordinators_of(coordinator)
            txn = await ask.new_txn(60_000)
            await ask.add_partitions(txn, ["east|" + OUT])
            commit = asyncio.create_task(ask.end_txn(txn, COMMIT))
            await world.until(lambda: first.cluster.told)
            assert not commit.done()
            await first.kill()
            await commit
            assert [(each.txn_id, each.action.name) for each in second.cluster.told] == [(txn, "COMMIT")]

    told(story)


def test_a_graceful_end_gives_the_leases_back_at_once() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        first.cluster.answers = False  # an end that takes long holds nobody up
        async with world.coordinator() as coordinator:
            ask = coordinators_of(coordinator)
            txn = await ask.new_txn(60_000)
            await ask.add_partitions(txn, ["east|" + OUT])
            commit = asyncio.create_task(ask.end_txn(txn, COMMIT))
            await world.until(lambda: first.cluster.told)
            before = world.network.loop.time()
            stopping = asyncio.create_task(first.stop())
            await world.until(lambda: len(second.leads) == 4)
            assert world.network.loop.time() - before < 1.0
            await stopping
            await commit

    told(story)


def test_a_leader_that_was_cut_off_past_its_lease_answers_nothing_from_memory() -> None:
    """Its clients reach it, it believes to lead, and what it knows is old."""

    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        old, new = raw(world, 0), raw(world, 1)
        await answered(world, old, old.start("tcClientConnectRequest", tc_id=0, incarnation="life"))
        txn = await begun(world, old)
        first.store.cut()
        await world.until(lambda: second.leads == [0, 1, 2, 3])
        assert first.leads == [0, 1, 2, 3], "it has not found out yet"
        await answered(world, new, ended(new, txn, COMMIT))
        later = await begun(world, new)
        asked = [ended(old, each, ABORT) for each in (later, txn)]
        await asyncio.sleep(1)
        assert not any(each in old._answers for each in asked), "neither is known to end, nor to be unknown"
        first.store.mend()
        await world.until(lambda: not first.leads)
        for each in asked:
            assert old._answers[each][0].error == ServerError.ServiceNotReady
        assert old.pipe.closed, "its client has to show somewhere else that it lives"
        assert world.told()[txn] == {"COMMIT"}

    told(story)


def ended(client: RawClient, txn: TxnId, action: TxnAction) -> int:
    return client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(action))


async def begun(world: World, client: RawClient) -> TxnId:
    """A transaction with a participant."""
    body = await answered(world, client, client.start("newTxn", txn_ttl_millis=60_000, tc_id=0))
    ids = {"txnid_least_bits": body.txnid_least_bits, "txnid_most_bits": body.txnid_most_bits}
    await answered(world, client, client.start("addPartitionToTxn", **ids, partitions=[OUT]))
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)


async def answered(world: World, client: RawClient, request_id: int) -> Any:
    await world.until(lambda: client._answers.get(request_id))
    return await client.answer(request_id)


def test_a_lease_that_is_lost_and_free_again_is_won_back_at_once() -> None:
    async def story(world: World) -> None:
        (only,) = world.instances
        await world.until(lambda: len(only.leads) == 4)
        for _ in range(5):
            before = world.network.loop.time()
            only.store.lose()
            await world.until(lambda: not only.leads)
            await world.until(lambda: len(only.leads) == 4)
            assert world.network.loop.time() - before < 1.5, "waiting for a lease is no failure that delays the next wait"

    told(story, 1)


def test_a_transactional_id_whose_coordinator_is_elsewhere_takes_over_before_its_first_transaction() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        async with world.coordinator(transactional_id="app") as old, world.coordinator(transactional_id="app") as new:
            zombie = await coordinators_of(old).new_txn(60_000)
            home = coordinator_of(zombie.most)
            await move(world, home)
            await coordinators_of(old).add_partitions(zombie, ["east|" + OUT])
            second.cluster.answers = False
            begins = asyncio.create_task(coordinators_of(new).new_txn(60_000))
            await world.until(lambda: second.cluster.told)
            await asyncio.sleep(1)
            assert not begins.done(), "what the older epoch left behind has not ended everywhere"
            second.cluster.answers = True
            second.cluster.answer()
            await begins
            with pytest.raises(TransactionFenced):
                await coordinators_of(old).end_txn(zombie, COMMIT)
        assert world.told()[zombie] == {"ABORT"}

    async def move(world: World, tc_id: int) -> None:
        """From the first instance to the second."""
        first, second = world.instances
        first.store.lose(f"_{tc_id}")
        await world.until(lambda: second.leads == [tc_id])
        await world.until(lambda: tc_id not in first.leads)

    told(story)


def test_instances_that_start_together_agree_on_the_number_of_coordinators() -> None:
    async def main(network: MemoryNetwork) -> None:
        world = World(network, 3)
        wanted = [2, 5, 3]
        counts = await asyncio.gather(
            *(agree_on_count(each.store, number) for each, number in zip(world.instances, wanted, strict=True))
        )
        assert all(count >= number for count, number in zip(counts, wanted, strict=True))
        assert await count_now(world.logs.values.metadata) == 5

    run_virtual(main)


def test_an_instance_leads_what_another_one_has_added() -> None:
    async def story(world: World) -> None:
        first, second = world.instances
        await world.until(lambda: len(first.leads) == 4)
        assert await agree_on_count(second.store, 6) == 6
        await world.until(lambda: first.leads == [0, 1, 2, 3, 4, 5])

    told(story)


async def test_other_clusters_than_before_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryStore() as store:
        await compare_clusters(store.metadata, ["west", "east"])
        await compare_clusters(store.metadata, ["east", "west"])
        assert not caplog.records
        await compare_clusters(store.metadata, ["east"])
        assert "the clusters here are east; before, they were east, west" in caplog.text
        caplog.clear()
        await compare_clusters(store.metadata, ["east"])
        assert not caplog.records


@pytest.mark.parametrize("when", ["in-doubt", "later"])
def test_what_a_client_leaves_open_that_was_held_in_doubt_is_aborted_when_the_cluster_is_back(when: str) -> None:
    async def story(world: World) -> None:
        loop, client = world.network.loop, world.coordinator()
        await world.until(lambda: bool(world.instances[0].leads))
        ask = coordinators_of(client)
        txn_id = await ask.new_txn(600_000)
        await ask.add_partitions(txn_id, ["east|" + OUT])
        await world.instances[0].kill()
        world.claims.cluster.is_away = True
        successor = await world.replace(world.instances[0])

        def status() -> TxnStatus | None:
            host = successor.service.coordinators.ready(coordinator_of(txn_id.most))
            return None if host is None else host.machine.status(txn_id)

        await world.until(lambda: status() is TxnStatus.HELD)
        if when == "in-doubt":
            await client.close()
        world.claims.cluster.is_away = False
        if when == "later":
            await world.until(lambda: status() is TxnStatus.OPEN)
            await client.close()
        began = loop.time()
        await world.until(lambda: world.told().get(txn_id) == {"ABORT"}, 60)
        assert loop.time() - began < 10

    told(story, instances=1)
