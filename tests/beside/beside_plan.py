"""What a fault run does, drawn from its seed: hops between topics of two clusters, workers, and an endless row of faults.

west in ──┬─► west copy          (both outputs of an input in one transaction, in two clusters)
          └─► east back
east in ────► east mid ────► west out
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import attrs

LEASE_SECONDS: Final = 5
TXN_SECONDS: Final = 15.0
PARTITIONS: Final = 4
MESSAGES_OF_A_TRANSACTION: Final = (1, 1, 2, 3)
LANES: Final = 2
"""Transactions that are open at once on a hop in a worker."""
ABORTED: Final = 0.1
"""The share of transactions that their program aborts."""
FAULTS: Final = {
    "unload": 5,
    "kill-coordinator": 4,
    "kill-worker": 4,
    "stop-worker": 1,
    "stop-coordinator": 1,
    "kill-broker": 1,
    "kill-bookie": 1,
    "kill-west": 1,
}
"""How often each is drawn, beside the others."""
GAP_SECONDS: Final = (2.0, 4.0)
"""Between faults. Stock brokers that unload faster stop (apache/pulsar#26368)."""
STOPPED_SECONDS: Final = LEASE_SECONDS + 2.0


@attrs.frozen
class Topic:
    """One of the run: the cluster's name, the full name there, and how many partitions it has."""

    cluster: str
    name: str
    partitions: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Its partitions, as the clients know them."""
        return tuple(f"{self.name}-partition-{number}" for number in range(self.partitions))

    @property
    def noted(self) -> list[str]:
        """Its partitions as histories name them."""
        return [f"{self.cluster}|{part}" for part in self.parts]


@attrs.frozen
class Hop:
    """Each message of `source` is written into all `targets`, and acknowledged, by one transaction.

    `batched`: whether what it writes is.
    """

    source: str
    targets: tuple[str, ...]
    mode: str
    batched: bool


@attrs.frozen
class Plan:
    """`inputs`: messages that enter each of the two first topics."""

    seed: int
    inputs: int
    workers: int
    topics: dict[str, Topic]
    hops: tuple[Hop, ...]

    @property
    def firsts(self) -> list[Topic]:
        """Where messages enter."""
        return [self.topics[name] for name in ("in-east", "in-west")]

    @property
    def lasts(self) -> list[Topic]:
        """What workers write, each once for each input."""
        return [self.topics[name] for name in ("mid", "out", "copy", "back")]

    def as_json(self) -> str:
        """For the processes."""
        return json.dumps(attrs.asdict(self))


def draw(seed: int, transactions: int, workers: int) -> Plan:
    """The plan of about so many committed transactions."""
    rng = random.Random(seed)
    mean = sum(MESSAGES_OF_A_TRANSACTION) / len(MESSAGES_OF_A_TRANSACTION)
    topics = {
        name: Topic(cluster, f"persistent://public/default/run-{seed}-{name}", partitions)
        for name, cluster, partitions in (
            ("in-east", "east", PARTITIONS),
            ("in-west", "west", 2),
            ("mid", "east", PARTITIONS),
            ("back", "east", PARTITIONS),
            ("out", "west", 2),
            ("copy", "west", 2),
        )
    }
    # Around two defects of stock brokers (docs/stock-pulsar.md): no Shared where there are markers, for there an abort may lock
    # the broker up; and no batches as inputs, for a batch that is pending as a whole is acknowledged twice.
    hops = (
        Hop("in-east", ("mid",), rng.choice(("Shared", "Key_Shared")), batched=False),
        Hop("mid", ("out",), "Failover", rng.random() < 0.5),
        Hop("in-west", ("copy", "back"), rng.choice(("Shared", "Failover")), rng.random() < 0.5),
    )
    return Plan(seed, int(transactions * mean / len(hops)), workers, topics, hops)


def faults(seed: int) -> Iterator[tuple[float, str, int]]:
    """Without end: seconds to wait, what, and a number that chooses whom."""
    rng = random.Random(f"{seed} faults")
    kinds = [kind for kind, times in FAULTS.items() for _ in range(times)]
    while True:
        rng.shuffle(kinds)
        for kind in list(kinds):
            yield rng.uniform(*GAP_SECONDS), kind, rng.randrange(1 << 30)


def plan_of(data: dict[str, Any]) -> Plan:
    """A plan out of its JSON."""
    topics = {name: Topic(**each) for name, each in data["topics"].items()}
    hops = tuple(Hop(**{**each, "targets": tuple(each["targets"])}) for each in data["hops"])
    return Plan(data["seed"], data["inputs"], data["workers"], topics, hops)
