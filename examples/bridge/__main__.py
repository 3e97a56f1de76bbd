"""An exactly-once bridge: messages of a topic in one cluster go to a topic in another, each once, whatever is killed.

    pulsar-txn coordinator --conf coordinator.conf --data ./decisions       # knows both clusters, as "east" and "west"
    python -m bridge --from pulsar://east:6650 --to pulsar://west:6650 --coordinator pulsar://127.0.0.1:6653 orders

One transaction spans both clusters: it acknowledges messages in the first and sends copies to the second. Run the program
again after a kill: a transaction that was not committed is aborted, and its messages come again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncCoordinator,
    AsyncProducer,
    CommitOutcomeUnknown,
    ConsumerType,
    InitialPosition,
    PulsarError,
    TransactionState,
)

SUBSCRIPTION = "bridge"
PAUSE_SECONDS = 0.5


async def bridge(arguments: argparse.Namespace, stop: asyncio.Event) -> None:
    """Copy until `stop` is set."""
    async with (
        AsyncCoordinator(arguments.coordinator) as coordinator,
        AsyncClient(arguments.source, coordinator=coordinator, cluster=arguments.source_name) as source,
        AsyncClient(arguments.target, coordinator=coordinator, cluster=arguments.target_name) as target,
    ):
        consumer = await source.subscribe(
            arguments.topic,
            SUBSCRIPTION,
            consumer_type=ConsumerType.FAILOVER,
            initial_position=InitialPosition.EARLIEST,
        )
        producer = await target.create_producer(arguments.topic, send_timeout=0)
        while not stop.is_set():
            try:
                await copy_some(coordinator, consumer, producer, arguments.batch)
            except CommitOutcomeUnknown as error:
                await settle(error, stop)
            except PulsarError as error:  # a cluster or the coordinator is away: the transaction was aborted
                print(f"again: {error}", file=sys.stderr)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PAUSE_SECONDS)


async def copy_some(
    coordinator: AsyncCoordinator, consumer: AsyncConsumer[bytes], producer: AsyncProducer[bytes], most: int
) -> None:
    """One transaction over both clusters. What was received in it is acknowledged by its commit."""
    async with coordinator.transaction(timeout=30) as txn:
        messages = await consumer.receive_many(most, max_wait=0.2, txn=txn)
        await asyncio.gather(
            *(producer.send(each.data, key=each.key, properties=each.properties, txn=txn) for each in messages)
        )


async def settle(error: CommitOutcomeUnknown, stop: asyncio.Event) -> None:
    """The answer to a commit was lost: ask until the coordinator says what became of it."""
    while not stop.is_set():
        with contextlib.suppress(PulsarError):
            if await error.resolve() is not TransactionState.UNKNOWN:
                return
        await asyncio.sleep(PAUSE_SECONDS)


async def main(arguments: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await bridge(arguments, stop)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bridge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("--from", dest="source", required=True, help="service URL of the cluster to read from")
    parser.add_argument("--from-name", dest="source_name", default="east", help="its name in coordinator.conf")
    parser.add_argument("--to", dest="target", required=True, help="service URL of the cluster to write to")
    parser.add_argument("--to-name", dest="target_name", default="west", help="its name in coordinator.conf")
    parser.add_argument("--coordinator", required=True, help="where `pulsar-txn coordinator` listens")
    parser.add_argument("--batch", type=int, default=100, help="most messages of one transaction")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
