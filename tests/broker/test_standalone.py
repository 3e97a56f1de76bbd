"""`Standalone`: a broker that listens, on a folder or in memory; and the pytest fixture of users."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pytest
from raw_client import FULL, RawClient

from pulsar_txn.broker import BrokerConfig, Standalone
from pulsar_txn.ledger.protocols import StoreInUse
from pulsar_txn.wire.ids import EARLIEST


async def _work(broker: Standalone) -> Any:
    client = RawClient(broker.broker, on_disk=True)
    await client.producer("a", producer_name="p")
    await client.subscribe("a", "s", kind=1)
    await client.sent(b"acked")
    await client.sent(b"kept")
    done, still_open = await client.new_txn(), await client.new_txn()
    for txn in (done, still_open):
        await client.add_topics(txn, FULL + "a")
    await client.add_subscriptions(done, (FULL + "a", "s"))
    await client.ack(await client.receive(), txn=done)
    await client.sent(b"in", txn=done)
    await client.end(done)
    await client.sent(b"open", txn=still_open)
    return still_open


async def test_a_folder_keeps_everything_through_a_restart(tmp_path: Path) -> None:
    config = BrokerConfig(number_of_transaction_coordinators=2)
    async with Standalone(tmp_path / "data", port=0, config=config) as broker:
        assert broker.service_url == f"pulsar://127.0.0.1:{broker.port}"
        txn = await _work(broker)
    async with Standalone(tmp_path / "data", port=0, config=config) as broker:
        client = RawClient(broker.broker, on_disk=True)
        await client.subscribe("a", "s", kind=1)
        assert await client.payloads(2) == [b"kept", b"in"]
        await client.request("tcClientConnectRequest", tc_id=txn.most)
        await client.end(txn)
        assert await client.payloads(1) == [b"open"]


async def test_without_a_folder_there_is_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Standalone():
            assert any("nothing survives" in record.message for record in caplog.records)


async def test_a_port_in_use_and_a_folder_in_use_are_errors_and_leave_nothing_open(tmp_path: Path) -> None:
    async with Standalone(tmp_path / "one", port=0) as broker:
        with pytest.raises(OSError, match="in use"):
            async with Standalone(tmp_path / "two", port=broker.port):
                pass
        with pytest.raises(StoreInUse):
            async with Standalone(tmp_path / "one", port=0):
                pass
        async with Standalone(tmp_path / "two", port=0):
            pass


async def test_leaving_is_quick_and_sends_clients_away(tmp_path: Path) -> None:
    broker = Standalone(tmp_path, port=0)
    await broker.start()
    reader, _writer = await asyncio.open_connection("127.0.0.1", broker.port)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await broker.close()
        assert await reader.read() == b""
    await broker.close()
    _writer.close()


async def test_storage_that_failed_is_told_and_the_broker_can_still_be_left() -> None:
    from pulsar_txn.ledger.memory import MemoryStore

    store = MemoryStore()
    broker = Standalone(port=0, store=store)
    await broker.start()
    await broker.broker.coordinators.wait_ready()
    store.fail()
    await asyncio.wait_for(broker.storage_failed.wait(), 5)
    await broker.close()


def test_the_fixture_gives_a_broker_to_users(pulsar_broker: Standalone) -> None:
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("a", "s")
    client.create_producer("a").send(b"x")
    assert consumer.receive(5000).data() == b"x"
    client.close()


def test_the_plug_in_is_imported_without_the_broker_and_its_optional_parts() -> None:
    program = (
        "import sys\n"
        "for name in ('uvloop', 'click', 'aiohttp', 'prometheus_client', 'javaproperties'): sys.modules[name] = None\n"
        "import pulsar_txn.broker.pytest_plugin\n"
        "assert 'pulsar_txn.broker.server' not in sys.modules\n"
        "import pulsar_txn.broker.server\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_a_topic_that_was_never_written_has_no_last_message() -> None:
    async with Standalone() as broker:
        from pulsar_txn.wire.topics import TopicName

        topic = await broker.broker.topic(TopicName.parse("a"))
        assert await topic.last_message() == (EARLIEST, -1)
