"""The process that feeds all chains of a phase, at an even rate, in bursts that become batches where a chain is batched.

    python chain_source.py PHASE.json FOLDER SERVICE_URL

It ends when everything was sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any, Final

from chain_recorder import note_sent
from chain_schedule import Chain, Phase, batches_by_key, phase_of
from history_format import HistoryWriter, encode_payload, make_payload

from pulsar_txn.client import AsyncClient, BatchingType, PulsarError

BURST: Final = 16
"""Messages that are sent together, at most."""
KEYS: Final = 6


async def feed(client: AsyncClient, writer: HistoryWriter, chain: Chain, seconds: float) -> None:
    """Send all messages of a chain."""
    rng = random.Random(chain.name)
    first = chain.hops[0]
    kind = BatchingType.KEY_BASED if batches_by_key(first.mode) else BatchingType.DEFAULT
    options: dict[str, Any] = {"producer_name": chain.name, "batching": first.batched, "batching_type": kind}
    async with await client.create_producer(first.source, **options) as producer:
        begin = asyncio.get_running_loop().time()
        sent = 0
        while sent < chain.messages:
            burst = range(sent, min(chain.messages, sent + rng.randint(1, BURST)))
            await asyncio.gather(*(_send(producer, writer, chain, number) for number in burst))
            sent = burst.stop
            due = begin + seconds * sent / chain.messages
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


async def _send(producer: Any, writer: HistoryWriter, chain: Chain, number: int) -> None:
    topic, key = chain.hops[0].source, f"k{number % KEYS}"
    name, seq = f"{chain.name}.{key}", number // KEYS  # batches are by key, so order is kept within a key only
    payload = make_payload(name, seq, parts=[[topic, -1]]) | {"root": [name, seq], "key": key}
    op = writer.invoke("send", topic=topic, partition=-1, producer=name, seq=seq, txn=None, payload=payload)
    try:
        message_id = await producer.send(encode_payload(payload), key=key)
    except PulsarError as error:
        writer.info(op, error=repr(error))
    else:
        note_sent(writer, op, message_id)


async def run(phase: Phase, folder: str, url: str) -> None:
    """Feed all chains."""
    writer = HistoryWriter(folder, "source")
    async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
        for chain in phase.chains:
            group.create_task(feed(client, writer, chain, phase.seconds))


if __name__ == "__main__":
    _, file, *rest = sys.argv
    asyncio.run(run(phase_of(json.loads(Path(file).read_text(encoding="utf-8"))), *rest))
