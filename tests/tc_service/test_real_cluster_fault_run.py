"""Transactions over two clusters, with kills, moves and stopped processes drawn from a seed: none lost, doubled or torn.

Another seed in each run; one that fails is printed with the command to run it again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import run_beside
from real_clusters import RealClusters

pytestmark = [
    pytest.mark.stock,
    pytest.mark.flaky(reruns=0),  # a message that is lost once is lost: another run proves nothing about this one
]

SEED = int(os.environ.get("BESIDE_SEED") or random.SystemRandom().randrange(10**6))


KINDS = ("--instances 1", "--instances 2", "--instances 3", "--services 2")
"""Of the runs on clusters that they share: their topics are named after the seed, which is another one for each."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "transactions", "seconds"),
    [
        ("--services 2", "300", "10"),
        *(pytest.param(kind, "300", "18", marks=pytest.mark.soak) for kind in (*KINDS[:2], "--services 2")),
    ],
)
def test_what_enters_two_clusters_comes_through_transactions_once_while_things_are_killed(
    clusters: RealClusters, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, transactions: str, seconds: str
) -> None:
    """With two services, one of them goes on with an older copy of its log: an id that was given is never given again."""
    run(clusters, tmp_path, capfd, kind, "--transactions", transactions, "--seconds", seconds, "--workers", "3")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["--services 2", "--instances 1", "--instances 3"])
def test_ten_thousand_transactions(
    clusters: RealClusters, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    run(clusters, tmp_path, capfd, kind, "--transactions", "10000")


def run(clusters: RealClusters, folder: Path, capfd: pytest.CaptureFixture[str], kind: str, *options: str) -> None:
    """A run of one of KINDS."""
    given = ["--seed", str(SEED + KINDS.index(kind)), *kind.split(), *options, "--folder", str(folder)]
    failed = run_beside.main(given, clusters)
    told = capfd.readouterr().out
    assert not failed, told
    print(told)
