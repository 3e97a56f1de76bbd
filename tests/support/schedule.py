"""Which tests run in one worker of pytest-xdist."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

_SPARK: Final = ("tests/spark/test_spark_", "tests/spark/test_sync_")
_REAL_CLUSTER: Final = "tests/tc_service/test_real_cluster_"


class ByFileAndServer(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types for its schedulers
    """A file is one piece of work, and so is all that uses Spark's session, and all that uses the cluster of several servers.

    Either takes ten seconds and more to start, and each worker with a test for it would start its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_SPARK):
            return _SPARK[0]
        if nodeid.startswith(_REAL_CLUSTER):
            return _REAL_CLUSTER
        return str(super()._split_scope(nodeid))
