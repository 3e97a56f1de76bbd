"""A client and a broker in one process over in-memory pipes: equal seeds give equal bytes, whatever the hash seed is."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory_network import run_virtual

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition
from pulsar_txn.client.errors import TransactionTimedOut

SUPPORT = Path(__file__).resolve().parents[1] / "support"


async def story(network):
    """Commits, an abort, a timeout, a redelivery, an acknowledgement of each kind; returns what was read at the end."""
    seen = []
    async with (
        Standalone(None, port=6650, runtime=network) as broker,
        AsyncClient(broker.service_url, runtime=network) as client,
    ):
        source = await client.create_producer("in")
        target = await client.create_producer("out")
        workers = [
            await client.subscribe("in", "workers", consumer_type=ConsumerType.SHARED, receiver_queue_size=1) for _ in range(2)
        ]
        for number in range(20):
            await source.send(f"m{number}".encode(), key=f"k{number % 3}")
        for worker in workers:
            for turn in range(5):
                async with client.transaction(timeout=30) as txn:
                    message = await worker.receive()
                    await target.send(message.value + f"/{turn}".encode(), txn=txn)
                    await worker.acknowledge(message, txn=txn)
                    if turn == 2:
                        txn.rollback()
        late = await client.begin_transaction(timeout=5)
        await target.send(b"never", txn=late)
        await asyncio.sleep(6)
        with pytest.raises(TransactionTimedOut):
            await late.commit()
        reader = await client.subscribe("out", "readers", initial_position=InitialPosition.EARLIEST)
        while (message := await receive_within(reader, 1)) is not None:
            seen.append(message.value.decode())
            await reader.acknowledge(message)
    return seen


async def receive_within(consumer, seconds):
    try:
        async with asyncio.timeout(seconds):
            return await consumer.receive()
    except TimeoutError:
        return None


def told(seed):
    async def within_an_hour(network):
        async with asyncio.timeout(3600):
            return await story(network)

    seen, network = run_virtual(within_an_hour, seed)
    return {"seen": seen, "frames": network.frames, "digest": network.digest(), "seconds": network.loop.time()}


def in_another_process(hash_seed):
    program = f"import json, sys; sys.path[:0] = {[str(SUPPORT), str(Path(__file__).parent)]!r}\n"
    program += f"import {Path(__file__).stem} as here; print(json.dumps(here.told(7)))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_story_reads_committed_data_only_and_takes_no_real_time():
    result = told(7)
    assert len(result["seen"]) == 8
    assert "never" not in result["seen"]
    assert not [value for value in result["seen"] if value.endswith("/2")]
    assert result["seconds"] > 6


def test_equal_seeds_give_equal_bytes_under_different_hash_seeds():
    first, second = in_another_process("1"), in_another_process("4242")
    assert first == second
    assert first["frames"] > 100
