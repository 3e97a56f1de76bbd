"""The fronts of several instances: each leads clients to the front of the instance that leads, also after a takeover."""

from __future__ import annotations

from typing import Any

import pytest
from front_bench import FrontClient, FrontRuntime, ScriptedBroker
from instances import Instance, World
from memory_network import MemoryNetwork, run_virtual
from raw_client import FULL, Refused

from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.tc_service.front.front import ClientsFront
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC

OUT = FULL + "out"
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


async def client_at(world: World, instance: Instance) -> FrontClient:
    """A client of the front of an instance."""
    where = {"east": ClusterConfig(service_url="pulsar://b1:6650")}
    front = ClientsFront(instance.service, world.config, where, world.network, FrontRuntime({"b1:6650": ScriptedBroker()}))
    front.services.service_url = instance.front_url
    return await FrontClient(front).ready()


async def ask(world: World, client: FrontClient, name: str, **fields: Any) -> Any:
    """The answer to a request, for which time passes."""
    asked = client.start(name, **fields)
    await world.until(lambda: client._answers.get(asked))
    return await client.answer(asked)


def end(txn: TxnId, action: TxnAction) -> dict[str, int]:
    return {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most, "txn_action": int(action)}


def test_a_front_leads_clients_to_the_front_of_the_leader_and_decisions_survive_a_takeover() -> None:
    async def story(network: MemoryNetwork) -> None:
        world = await World(network, front_service_port=0).start()
        first, second = world.instances
        coordinators = first.service.front_coordinators
        assert coordinators is not None
        await world.until(lambda: coordinators.here == [0, 1, 2, 3])
        client, standby = await client_at(world, first), await client_at(world, second)
        assert (await standby.request("partitionMetadata", topic=ASSIGN_TOPIC)).partitions == 4
        for each in (client, standby):
            found = await each.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-2")
            assert found.brokerServiceUrl == first.front_url
        with pytest.raises(Refused) as refused:
            await standby.request("tcClientConnectRequest", tc_id=2)
        assert refused.value.code == ServerError.TransactionCoordinatorNotFound

        first.cluster.answers = False
        begun = await ask(world, client, "newTxn", tc_id=2, txn_ttl_millis=60_000)
        txn = TxnId(begun.txnid_most_bits, begun.txnid_least_bits)
        ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
        await ask(world, client, "addPartitionToTxn", partitions=[OUT], **ids)
        client.start("endTxn", **end(txn, COMMIT))
        await world.until(lambda: first.cluster.told)
        await first.kill()
        taken = second.service.front_coordinators
        assert taken is not None
        await world.until(lambda: taken.here == [0, 1, 2, 3])
        assert (await standby.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-2")).brokerServiceUrl == second.front_url
        await ask(world, standby, "endTxn", **end(txn, COMMIT))
        assert second.cluster.ends == [(OUT, None, "COMMIT")]
        with pytest.raises(Refused):
            await ask(world, standby, "endTxn", **end(txn, ABORT))
        assert (await ask(world, standby, "newTxn", tc_id=2, txn_ttl_millis=1000)).txnid_least_bits > txn.least

    run_virtual(story)


def test_a_leader_without_a_front_is_nobody_to_be_led_to() -> None:
    async def story(network: MemoryNetwork) -> None:
        world = World(network, front_service_port=0)
        first, second = world.instances
        await first.start()
        first.store.advertised = first.url
        await second.start()
        coordinators = first.service.front_coordinators
        assert coordinators is not None
        await world.until(lambda: coordinators.here == [0, 1, 2, 3])
        standby = await client_at(world, second)
        with pytest.raises(
            Refused, match="no instance with a front is known to lead coordinator 1 at this moment; retry"
        ) as said:
            await standby.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-1")
        assert said.value.code == ServerError.ServiceNotReady

    run_virtual(story)
