"""The clusters of `test_real_cluster_*.py`: one of each serves all of them, in one worker of pytest-xdist (see `schedule`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import targets
from real_clusters import WEST_VERSION, RealClusters
from stock_cluster import StockCluster
from stock_install import InstallError, missing_tools
from stock_pulsar import StockPulsar


@pytest.fixture(scope="session")
def real_clusters() -> Iterator[RealClusters]:
    """Both clusters. A test that kills servers starts them again at its end."""
    if (reason := missing_tools()) is not None:
        targets.lacking("pulsar", reason)
    try:
        east, west = StockCluster(), StockPulsar(WEST_VERSION)
    except InstallError as error:
        targets.lacking("pulsar", str(error))
    with east, west:
        print(f"the cluster started in {east.start_seconds:.1f} s")
        yield RealClusters(east, west)


@pytest.fixture
def clusters(real_clusters: RealClusters) -> Iterator[RealClusters]:
    """Both clusters, with all servers running again after the test."""
    yield real_clusters
    real_clusters.all_up()
