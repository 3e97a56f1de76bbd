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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("instances", [1, 2])
def test_what_enters_two_clusters_comes_through_transactions_once_while_things_are_killed(
    clusters: RealClusters, tmp_path: Path, capfd: pytest.CaptureFixture[str], instances: int
) -> None:
    run(clusters, tmp_path, capfd, "--transactions", "300", "--seconds", "18", "--workers", "3", "--instances", str(instances))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("instances", [1, 3])
def test_ten_thousand_transactions(
    clusters: RealClusters, tmp_path: Path, capfd: pytest.CaptureFixture[str], instances: int
) -> None:
    run(clusters, tmp_path, capfd, "--transactions", "10000", "--instances", str(instances))


def run(clusters: RealClusters, folder: Path, capfd: pytest.CaptureFixture[str], *options: str) -> None:
    """A run with `options`, the last of which is the number of instances."""
    seed = SEED + int(options[-1])  # topics of a run are named after its seed, and runs share the clusters
    failed = run_beside.main(["--seed", str(seed), *options, "--folder", str(folder)], clusters)
    told = capfd.readouterr().out
    assert not failed, told
    print(told)
