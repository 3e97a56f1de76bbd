"""The coordinator beside our own broker: the stories that are told beside stock clusters, with a cluster that costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from credentials import TOKENS, Speaker, token
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.server.listening import CoordinatorServer
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId, unsigned64

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
LANE = TxnId(LANE_BIT | (3 << 48) | 5, 7)
OUT = FULL + "out"


@contextlib.asynccontextmanager
async def broker_of(data: Path | None = None, port: int = 0, **config: Any) -> AsyncIterator[Standalone]:
    keys = {"external_transaction_coordinators_enabled": True, "number_of_transaction_coordinators": 1} | config
    async with Standalone(data, config=BrokerConfig(broker_service_port=port, **keys)) as broker:
        yield broker


@contextlib.asynccontextmanager
async def coordinator_of(**clusters: Standalone) -> AsyncIterator[CoordinatorServer]:
    config = CoordinatorConfig(broker_service_port=0, number_of_transaction_coordinators=2)
    named = {name: ClusterConfig(service_url=broker.service_url) for name, broker in clusters.items()}
    async with CoordinatorServer(config, named) as coordinator:
        yield coordinator


def client_of(east: Standalone, beside: CoordinatorServer) -> AsyncClient:
    return AsyncClient(east.service_url, coordinator=beside.service_url)


def end(txn: TxnId, action: TxnAction = COMMIT, mark: int | None = None) -> dict[str, Any]:
    low = txn.least if mark is None else mark
    return {
        "txnid_most_bits": unsigned64(txn.most),
        "txnid_least_bits": txn.least,
        "txn_action": int(action),
        "txnid_least_bits_of_low_watermark": unsigned64(low),
    }


async def received(client: AsyncClient, topic: str) -> list[bytes]:
    found = []
    async with await client.create_reader(topic) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next(timeout=10)).data)
    return found


async def test_consume_process_produce_is_one_unit_and_an_abort_brings_the_input_back() -> None:
    async with broker_of() as east, coordinator_of(east=east) as beside, client_of(east, beside) as client:
        consumer = await client.subscribe("in", "s", initial_position=InitialPosition.EARLIEST)
        source, output = await client.create_producer("in"), await client.create_producer("out")
        for number in range(3):
            await source.send(b"%d" % number)
        with contextlib.suppress(LookupError):
            async with client.transaction() as txn:
                assert txn.id is None or txn.id.most & LANE_BIT
                message = await consumer.receive(timeout=10, txn=txn)
                await output.send(b"never", txn=txn)
                raise LookupError
        for _ in range(3):
            async with client.transaction() as txn:
                message = await consumer.receive(timeout=10, txn=txn)
                await output.send(b"from " + message.data, txn=txn)
        assert sorted(await received(client, "out")) == [b"from 0", b"from 1", b"from 2"]


async def test_a_transaction_that_is_open_beside_is_not_read_and_its_timeout_is_its_coordinators() -> None:
    async with broker_of() as east, coordinator_of(east=east) as beside, client_of(east, beside) as client:
        output = await client.create_producer("out")
        txn = await client.begin_transaction(timeout=600)
        await output.send(b"x", txn=txn)
        assert await received(client, "out") == []
        await txn.commit()
        assert await received(client, "out") == [b"x"]
        late = await client.begin_transaction(timeout=2)
        await output.send(b"late", txn=late)
        await asyncio.sleep(3.5)
        with pytest.raises(PulsarError):
            await late.commit()
        assert await received(client, "out") == [b"x"]


async def test_what_is_sent_after_the_end_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as east:
        client = RawClient(east.broker, on_disk=True)
        await client.producer("out")
        client.send(b"in", txn=LANE)
        await client.until(lambda: client.receipts)
        await client.request("endTxnOnPartition", topic=OUT, **end(LANE))
        await client.request("endTxnOnPartition", topic=OUT, **end(LANE, mark=-1))  # a repeat
        client.send(b"late", txn=LANE)
        await client.until(lambda: client.send_errors)
    async with broker_of(tmp_path) as east:
        client = RawClient(east.broker, on_disk=True)
        await client.producer("out")
        client.send(b"late", txn=LANE)
        await client.until(lambda: client.send_errors)
        client.send(b"next", txn=TxnId(LANE.most, 8))
        await client.until(lambda: client.receipts)
        await client.request("endTxnOnPartition", topic=OUT, **end(TxnId(LANE.most, 8)))
        async with AsyncClient(east.service_url) as reading:
            assert await received(reading, "out") == [b"in", b"next"]


async def test_ids_of_the_brokers_own_coordinators_do_not_end_from_outside() -> None:
    async with broker_of() as east:
        client = RawClient(east.broker)
        await client.producer("out")
        txn = await client.new_txn()
        await client.add_topics(txn, "out")
        client.send(b"x", txn=txn)
        await client.until(lambda: client.receipts)
        for action in (COMMIT, ABORT):
            with pytest.raises(Refused, match="of a coordinator of this broker") as refused:
                await client.request("endTxnOnPartition", topic=OUT, **end(txn, action))
            assert refused.value.code == ServerError.NotAllowedError
        await client.end(txn)
        async with AsyncClient(east.service_url) as reading:
            assert await received(reading, "out") == [b"x"]


async def test_what_is_not_there_has_nothing_to_end() -> None:
    async with broker_of() as east:
        client = RawClient(east.broker)
        await client.producer("out")
        subscription = {"topic": OUT, "subscription": "nobody"}
        await client.request("endTxnOnSubscription", subscription=subscription, **end(LANE))
        for topic in (FULL + "nothing", FULL + "nothing-partition-3"):
            await client.request("endTxnOnPartition", topic=topic, **end(TxnId(0, (1 << 62) + 1), ABORT, -1))
            await client.request("endTxnOnSubscription", subscription=subscription | {"topic": topic}, **end(LANE))
        with pytest.raises(Refused):
            await client.request("endTxnOnPartition", topic="a://b", **end(LANE))
        without = {name: value for name, value in end(LANE).items() if name != "txn_action"}
        with pytest.raises(Refused, match="no action"):
            await client.request("endTxnOnPartition", topic=OUT, **without)


async def test_with_authentication_only_a_superuser_ends_at_a_participant() -> None:
    async with broker_of(**TOKENS, super_user_roles="coordinator") as east:
        ann, coordinator = Speaker(east.broker, token("ann")), Speaker(east.broker, token("coordinator"))
        await ann.producer("out")
        ann.send(b"x", txn=LANE)
        await ann.until(lambda: ann.receipts)
        with pytest.raises(Refused, match="superUserRoles") as refused:
            await ann.request("endTxnOnPartition", topic=OUT, **end(LANE))
        assert refused.value.code == ServerError.TransactionNotFound
        await coordinator.request("endTxnOnPartition", topic=OUT, **end(LANE))


async def test_without_the_key_nobody_ends_here_and_no_foreign_id_is_taken() -> None:
    async with broker_of(external_transaction_coordinators_enabled=False) as east:
        client = RawClient(east.broker)
        await client.producer("out")
        client.send(b"x", txn=LANE)
        await client.until(lambda: client.send_errors)
        with pytest.raises(Refused, match="this broker's own coordinators only"):
            await client.request("endTxnOnPartition", topic=OUT, **end(LANE))
