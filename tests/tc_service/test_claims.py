"""Claims: an incarnation begins after the registers were compared, and an end leaves after the registers have come as far."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from coordinator_bench import Bench, ScriptedCluster
from memory_claims import MemoryClaims
from raw_client import FULL, RawClient, Refused

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LogClosed
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.ids import lane_of
from pulsar_txn.tc.log_incarnations import end_of_lanes, service_of
from pulsar_txn.tc_service.claims import RESERVED_AT_ONCE, Claims
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

OUT = FULL + "out"
Benches = Callable[..., Bench]


@pytest.fixture
async def benches() -> AsyncIterator[Benches]:
    made: list[Bench] = []

    def make(*names: str, **config: Any) -> Bench:
        made.append(Bench(*names, **config))
        return made[-1]

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


def backed_up(store: MemoryStore) -> MemoryStore:
    """A copy of what is durable, which is started elsewhere or later."""
    copied = MemoryStore()
    copied._durable = copy.deepcopy(store._durable)
    return copied.crash()


async def restore(bench: Bench, backup: MemoryStore) -> None:
    """The process has died, and another one begins with the backup."""
    bench.store.crash()
    bench.store = backup
    await bench.crash()


async def begun(client: RawClient, cluster: str = "east") -> TxnId:
    txn = await client.new_txn()
    ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
    await client.request("addPartitionToTxn", partitions=[OUT], cluster=cluster, **ids)
    return txn


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - conditions of several kinds
            await asyncio.sleep(0.01)


def machine(bench: Bench) -> Any:
    host = bench.service.coordinators.ready(0)
    assert host is not None
    return host.machine


def told(bench: Bench, cluster: str = "east") -> list[tuple[TxnId, str]]:
    return [(each.txn_id, each.action.name) for each in bench.clusters[cluster].told]


async def test_a_restart_goes_on_and_what_was_open_is_not_held(benches: Benches) -> None:
    bench = await benches("east").start()
    txn = await begun(bench.client())
    service = service_of(lane_of(txn.most))
    await bench.crash()
    assert machine(bench).status(txn) is TxnStatus.OPEN
    client = bench.client()
    await client.end(txn)
    assert told(bench) == [(txn, "COMMIT")]
    assert service_of(lane_of((await begun(client)).most)) != service, "each incarnation has a number of its own"


@pytest.mark.parametrize("restarts", [0, 1], ids=["in-its-incarnation", "in-an-older-incarnation"])
async def test_a_restored_log_holds_what_was_open_and_only_an_administrator_ends_it(benches: Benches, restarts: int) -> None:
    bench = await benches("east").start()
    committed, aborted = await begun(bench.client()), await begun(bench.client())
    backup = backed_up(bench.store)
    for _ in range(restarts):
        await bench.crash()
    client = bench.client()
    await client.end(committed)
    await restore(bench, backup)
    held = machine(bench).held()
    assert {(info.txn_id, info.status, info.held) for info in held} == {
        (each, TxnStatus.HELD, Cause.RESTORED) for each in (committed, aborted)
    }
    assert [name for name, _ in bench.service.incarnations.held()] == ["tc-0"] * 2
    client = bench.client()
    for action in (client.end, client.abort):
        with pytest.raises(Refused) as refused:
            await action(aborted)
        assert refused.value.code == ServerError.ServiceNotReady
    bench.service.coordinators.end(committed, TxnAction.COMMIT, None, None, lambda *_: None, superuser=True)
    await client.until(lambda: told(bench) == [(committed, "COMMIT")])
    await begun(client)


async def test_a_log_whose_ids_a_lost_one_gave_gives_others(benches: Benches) -> None:
    bench = await benches("east").start()
    before = [await begun(bench.client()) for _ in range(3)]
    bench.store.crash()
    bench.store = MemoryStore()
    await bench.crash()
    client = bench.client()
    after = [await begun(client) for _ in range(3)]
    assert not {each.most for each in before} & {each.most for each in after}
    for each in before:
        with pytest.raises(Refused) as refused:
            await client.end(each)
        assert refused.value.code == ServerError.TransactionNotFound


async def test_an_end_is_told_once_the_register_has_come_as_far_as_its_decision(benches: Benches) -> None:
    bench = await benches("east").start()
    client = bench.client()
    txn = await begun(client)
    metadata = bench.clusters["east"].claims_place.cluster.metadata
    put, may_write = metadata.put, asyncio.Event()

    async def waits(*args: Any, **more: Any) -> int:
        await may_write.wait()
        version: int = await put(*args, **more)
        return version

    metadata.put = waits
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.settle()
    assert machine(bench).status(txn) is TxnStatus.COMMITTING
    assert not told(bench)
    may_write.set()
    await client.until(lambda: told(bench) == [(txn, "COMMIT")])


async def test_a_copy_waits_for_its_original_and_takes_no_participants_meanwhile(benches: Benches) -> None:
    original = await benches("east").start()
    txn = await begun(original.client())
    other = benches("east")
    other.store = backed_up(original.store)
    other.clusters = {"east": ScriptedCluster(original.clusters["east"].claims_place.beside())}
    await other.start()
    with pytest.raises(Refused, match="another process has claimed the store") as refused:
        await begun(other.client())
    assert refused.value.code == ServerError.ServiceNotReady
    assert [(info.txn_id, info.held) for info in machine(other).held()] == [(txn, Cause.DOUBT)]
    await original.client().end(txn)
    original.clusters["east"].claims_place.forget()
    await eventually(lambda: other.service.clusters.claims["east"].is_held)
    assert [(info.txn_id, info.held) for info in machine(other).held()] == [(txn, Cause.RESTORED)]
    await begun(other.client())


async def test_an_original_that_lost_its_claim_to_a_copy_tells_nothing_any_more(benches: Benches) -> None:
    original = await benches("east").start()
    client = original.client()
    txn = await begun(client)
    other = benches("east")
    other.store = backed_up(original.store)
    other.clusters = {"east": ScriptedCluster(original.clusters["east"].claims_place.beside())}
    original.clusters["east"].claims_place.forget()  # its connection is gone, and it does not know it yet
    await other.start()
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.until(lambda: original.service.incarnations.lost_registers == 1)
    assert not told(original)
    await other.client().abort(txn)
    assert told(other) == [(txn, "ABORT")], "the copy has all of the log, and goes on with it"


async def test_what_has_participants_in_a_cluster_that_is_away_at_a_start_waits_in_doubt_and_goes_on(benches: Benches) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    here, there = await begun(client, "east"), await begun(client, "west")
    bench.clusters["west"].claims_place.cluster.is_away = True
    await bench.crash()
    assert [machine(bench).status(each) for each in (here, there)] == [TxnStatus.OPEN, TxnStatus.HELD]
    client = bench.client()
    with pytest.raises(Refused, match="takes no participants here"):
        await begun(client, "west")
    await client.end(here)
    bench.clusters["west"].claims_place.cluster.is_away = False
    await eventually(lambda: machine(bench).status(there) is TxnStatus.OPEN)
    await client.end(there)
    assert told(bench, "west") == [(there, "COMMIT")]
    await begun(client, "west")


async def test_a_decision_is_told_to_a_cluster_that_was_away_at_a_start_also_when_something_was_held_in_doubt(
    benches: Benches,
) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    decided, open_ = await begun(client, "west"), await begun(client, "west")
    west = bench.clusters["west"]
    west.answers = False
    client.start("endTxn", txnid_least_bits=decided.least, txnid_most_bits=decided.most, txn_action=0)
    await client.until(lambda: told(bench, "west") == [(decided, "COMMIT")])
    west.claims_place.cluster.is_away = True
    await bench.crash()
    assert [machine(bench).status(each) for each in (decided, open_)] == [TxnStatus.COMMITTING, TxnStatus.HELD]
    before = len(told(bench, "west"))
    west.claims_place.cluster.is_away = False
    await eventually(lambda: told(bench, "west")[before:] == [(decided, "COMMIT")])


@pytest.mark.parametrize("fails", [True, False], ids=["writes-fail", "writes-hang"])
async def test_a_cluster_that_is_away_keeps_its_own_part_and_no_other_one(benches: Benches, fails: bool) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    txn, late = await begun(client, "east"), await begun(client, "east")
    for each in (txn, late):
        ids = {"txnid_least_bits": each.least, "txnid_most_bits": each.most}
        await client.request("addPartitionToTxn", partitions=[OUT], cluster="west", **ids)
    west = bench.clusters["west"].claims_place.cluster
    put, gone = west.metadata.put, asyncio.Event()

    async def stalls(*_args: Any, **_more: Any) -> int:
        await gone.wait()
        raise LogClosed("the cluster was away")

    west.metadata.put = stalls
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.settle()
    assert not told(bench, "east"), "it is not known yet that the other cluster is away"
    if fails:
        west.is_away = True
        gone.set()
    await eventually(lambda: told(bench, "east") == [(txn, "COMMIT")])
    client.start("endTxn", txnid_least_bits=late.least, txnid_most_bits=late.most, txn_action=1)
    await client.until(lambda: told(bench, "east") == [(txn, "COMMIT"), (late, "ABORT")])
    assert not told(bench, "west")
    west.metadata.put = put
    west.is_away = False
    gone.set()
    await eventually(lambda: told(bench, "west") == [(txn, "COMMIT"), (late, "ABORT")])


async def test_a_cluster_that_was_away_says_later_that_the_log_was_restored(benches: Benches) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    there = await begun(client, "west")
    backup = backed_up(bench.store)
    await client.end(there)
    bench.clusters["west"].claims_place.cluster.is_away = True
    await restore(bench, backup)
    assert machine(bench).held(Cause.DOUBT)
    bench.clusters["west"].claims_place.cluster.is_away = False
    await eventually(lambda: bool(machine(bench).held(Cause.RESTORED)))
    await bench.crash()
    assert [info.txn_id for info in machine(bench).held(Cause.RESTORED)] == [there], "it is in the log"
    assert not told(bench, "west")


async def test_when_lanes_are_used_up_others_are_drawn_and_claimed(benches: Benches) -> None:
    bench = await benches("east").start()
    client = bench.client()
    first = await begun(client)
    lanes = machine(bench)._lanes
    lanes.next_lane = end_of_lanes(service_of(lane_of(first.most))) - 1
    await begun(client)
    with pytest.raises(Refused) as refused:
        await begun(client)
    assert refused.value.code == ServerError.ServiceNotReady
    await bench.service.incarnations.reserve_ahead()
    after = await begun(client)
    service = service_of(lane_of(after.most))
    assert service != service_of(lane_of(first.most))
    claimed = await bench.clusters["east"].claims_place.metadata.children("/services")
    assert f"{service:07x}" in claimed
    await bench.crash()
    assert machine(bench).status(after) is TxnStatus.OPEN, "the log holds what the register says"


async def test_claims_that_are_lost_are_held_again_and_ends_go_on(benches: Benches) -> None:
    bench = await benches("east").start()
    client = bench.client()
    txn = await begun(client)
    bench.clusters["east"].claims_place.lose()
    with pytest.raises(Refused, match="were lost"):
        await begun(client)
    await eventually(lambda: bench.service.clusters.claims["east"].is_held)
    await client.end(txn)
    assert told(bench) == [(txn, "COMMIT")]
    assert bench.service.clusters.claims["east"].losses == 1


async def test_one_cluster_may_have_two_names(benches: Benches) -> None:
    """Each name has registers of its own, and the number of an incarnation is claimed once."""
    bench = benches("east", "west")
    bench.clusters["west"] = ScriptedCluster(bench.clusters["east"].claims_place.beside())
    await bench.start()
    client = bench.client()
    here, there = await begun(client, "east"), await begun(client, "west")
    await client.end(here)
    await client.end(there)
    assert (told(bench, "east"), told(bench, "west")) == ([(here, "COMMIT")], [(there, "COMMIT")])


async def test_the_logs_of_a_front_take_it_over_together() -> None:
    """One process, whose logs ask at once whether the last owner lives: none of them takes another's question for the owner."""
    before = MemoryClaims()
    backend = before.beside()
    await before.open("old-east", is_shared=False)
    await Claims("east", before, "old", is_shared=False).reserve(0, 0)
    before.forget()
    await backend.open("new-east", is_shared=False)
    claims = Claims("east", backend, "new", is_shared=False)
    firsts = [first for first, _ in await asyncio.gather(*(claims.reserve(tc_id, 0) for tc_id in range(4)))]
    assert firsts == [RESERVED_AT_ONCE, 0, 0, 0]
