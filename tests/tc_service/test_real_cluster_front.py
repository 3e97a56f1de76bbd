"""Unchanged Java programs through the front of a cluster of two brokers with TLS, tokens and authorization."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from front_probe import check_stories, probe, said
from our_coordinator import OurCoordinator
from real_clusters import RealClusters, new_topic
from stock_cluster import BROKERS, VERSION
from stock_pulsar import free_port

from pulsar_txn.client import ConsumerType

pytestmark = [pytest.mark.stock, pytest.mark.timeout(300)]

COORDINATORS = 4


class SecureFront:
    """A coordinator with a front that takes TLS only, and checks the cluster's tokens."""

    def __init__(self, clusters: RealClusters) -> None:
        port, secrets = free_port(), clusters.east_cluster.secrets
        assert secrets is not None
        self.url = f"pulsar+ssl://127.0.0.1:{port}"
        self.coordinator: OurCoordinator = clusters.coordinator(
            conf={
                "frontCluster": "east",
                "frontServicePortTls": str(port),
                "tlsCertificateFilePath": str(secrets.certificate),
                "tlsKeyFilePath": str(secrets.key),
                "authenticationEnabled": "true",
                "authenticationProviders": "token",
                "tokenSecretKey": secrets.secret_key.as_uri(),
            }
        )

    @staticmethod
    def let_in(clusters: RealClusters, role: str = "app") -> dict[str, str]:
        """How a program is let in."""
        return {"PROBE_TOKEN": clusters.east_cluster.token(role), "PROBE_TRUST": clusters.east_cluster.authority}


@pytest.fixture(scope="module")
def front(real_clusters: RealClusters) -> Iterator[SecureFront]:
    made = SecureFront(real_clusters)
    with made.coordinator:
        yield made


def at(clusters: RealClusters, **places: str) -> None:
    """Make topics, each served by the broker that is named for it."""
    for topic, broker in places.items():
        clusters.east_cluster.create(topic)
        clusters.east_cluster.move(topic, broker)
        assert clusters.east_cluster.owner(topic) == broker


@contextlib.asynccontextmanager
async def unloaded_meanwhile(clusters: RealClusters, topics: list[str]) -> AsyncIterator[list[str]]:
    """The topics move from broker to broker, one every two seconds; what was moved, and where to."""
    moved: list[str] = []

    async def move() -> None:
        while True:
            await asyncio.sleep(2)
            topic = topics[len(moved) % len(topics)]
            there = BROKERS[(len(moved) // len(topics)) % 2]
            await asyncio.to_thread(clusters.east_cluster.move, topic, there)
            moved.append(f"{topic} to {there}")

    moving = asyncio.create_task(move())
    try:
        yield moved
    finally:
        moving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await moving


async def test_java_has_transactions_over_topics_of_both_brokers_through_a_front_with_tls_and_tokens(
    clusters: RealClusters, front: SecureFront
) -> None:
    topic = new_topic()
    at(clusters, **{f"{topic}-in": "br1", f"{topic}-out": "br2"})
    async with probe(VERSION, "stories", front.url, topic, let_in=front.let_in(clusters)) as output:
        check_stories([line async for line in said(output)], COORDINATORS)


@pytest.mark.soak
@pytest.mark.parametrize("count", [60, 600])
async def test_java_moves_each_message_once_while_topics_move_between_the_brokers(
    clusters: RealClusters, front: SecureFront, count: int
) -> None:
    before, after = new_topic(), new_topic()
    at(clusters, **{before: "br1", after: "br2"})
    async with clusters.east.client() as client:
        await (await client.subscribe(before, "relay", consumer_type=ConsumerType.SHARED)).close()
        producer = await client.create_producer(before)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))
    async with (
        unloaded_meanwhile(clusters, [before, after]) as moved,
        probe(VERSION, "relay", front.url, before, after, let_in=front.let_in(clusters)) as output,
    ):
        lines = [line async for line in said(output)]
    found = Counter(map(int, await asyncio.to_thread(clusters.east.read, after)))
    assert (sorted(set(range(count)) - set(found)), found.most_common(1)[0][1], len(found)) == ([], 1, count), (lines, moved)
    assert len(moved) > 1
