"""Every frame between our client and our broker obeys the protocol: the story of commits, aborts and timeouts, tapped."""

from __future__ import annotations

from frame_tap import FrameTap
from history_wire import k17_wire
from memory_network import run_virtual

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType


async def story(network):
    tap = FrameTap()

    def record(label, data):
        direction = "to_broker" if label[0] == ">" else "to_client"
        tap.feed(label[1:], direction, int(network.loop.time() * 1e9), data)

    network.record = record
    async with (
        Standalone(None, port=6650, runtime=network) as broker,
        AsyncClient(broker.service_url, runtime=network) as client,
    ):
        source = await client.create_producer("in")
        target = await client.create_producer("out")
        worker = await client.subscribe("in", "workers", consumer_type=ConsumerType.SHARED)
        for number in range(20):
            await source.send(f"m{number}".encode())
        for turn in range(10):
            async with client.transaction(timeout=30) as txn:
                message = await worker.receive()
                await target.send(message.value, txn=txn)
                await worker.acknowledge(message, txn=txn)
                if turn % 3 == 2:
                    txn.rollback()
        late = await client.begin_transaction(timeout=5)  # left open: the client closes with it
        await target.send(b"never", txn=late)
    return tap


def test_every_frame_between_client_and_broker_obeys_the_protocol():
    tap, _ = run_virtual(story)
    verdict = k17_wire(tap.connections)
    assert verdict.status == "VALID", str(verdict)
    kinds = {frame[2] for frames in tap.connections.values() for frame in frames}
    assert {"NEW_TXN_RESPONSE", "END_TXN_RESPONSE", "ACK_RESPONSE", "SEND_RECEIPT", "MESSAGE", "LOOKUP_RESPONSE"} <= kinds
