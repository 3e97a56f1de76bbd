"""Answers to acknowledgements are lost, between this build and febdd5f: each message is worked on once.

Only a client and a broker that both know keys go on in the same transaction. An old client reports that nobody knows, and
works again; an old broker takes the repeat for one by what it names.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest
from earlier_build import earlier_broker, start_current, start_earlier
from frame_proxy import Fault, FrameProxy
from official_reading import read_officially
from our_broker import OurBroker
from targets import Target

from pulsar_txn.client import AsyncClient

COUNT: Final = 12
ONCE: Final = [b"%02d" % number for number in range(COUNT)]

WORK: Final = """
import asyncio, json, sys
from pulsar_txn.client import AsyncClient, InitialPosition, PulsarError

async def main(url, topic, count):
    attempts = 0
    async with AsyncClient(url) as client:
        consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
        sink = await client.create_producer(f"{topic}-out")
        done = 0
        while done < int(count):
            attempts += 1
            try:
                async with client.transaction() as txn:
                    messages = [await consumer.receive(txn=txn, timeout=20) for _ in range(3)]
                    for message in messages:
                        await sink.send(message.data, txn=txn)
                        await consumer.acknowledge(message, txn=txn)
                done += 3
            except PulsarError:
                pass  # its messages come again
    print(json.dumps(attempts))

asyncio.run(main(*sys.argv[1:]))
"""


async def worked(service_url: str, topic: str, *, earlier_client: bool = False) -> tuple[int, list[bytes]]:
    """How many attempts a worker made whose first acknowledgement was never answered, and what became visible."""
    async with AsyncClient(service_url) as client:
        producer = await client.create_producer(topic, batching=False)
        for number in range(COUNT):
            await producer.send(b"%02d" % number)
    async with FrameProxy(service_url) as proxy:
        trap = proxy.arm("ack", Fault.RESET_AFTER)
        start = start_earlier if earlier_client else start_current
        worker = start(WORK, proxy.service_url, topic, str(COUNT))
        try:
            out, err = await asyncio.to_thread(worker.communicate, timeout=60)
        finally:
            worker.kill()
        assert not worker.returncode, err
        assert trap.sprung
    return json.loads(out), sorted(await asyncio.to_thread(read_officially, service_url, f"{topic}-out", COUNT))


@pytest.mark.parametrize(
    ("earlier_server", "earlier_client", "attempts"),
    [(False, False, COUNT // 3), (True, False, COUNT // 3), (False, True, COUNT // 3 + 1)],
    ids=["both know keys", "an old broker", "an old client"],
)
async def test_a_lost_answer_doubles_nothing_whichever_side_knows_keys(
    tmp_path: Path, earlier_server: bool, earlier_client: bool, attempts: int
) -> None:
    make = earlier_broker if earlier_server else OurBroker
    with make(data_dir=tmp_path / "data") as broker:
        assert await worked(broker.service_url, "in", earlier_client=earlier_client) == (attempts, ONCE)


@pytest.mark.soak
@pytest.mark.stock
async def test_a_lost_answer_of_a_stock_broker_aborts_and_doubles_nothing(stock_pulsar: Target, topic: str) -> None:
    """It refuses the repeat of what it has taken, and the client does not claim to know why."""
    attempts, found = await worked(stock_pulsar.service_url, topic)
    assert attempts > COUNT // 3
    assert found == ONCE
