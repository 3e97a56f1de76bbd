"""Which tests run in one worker of pytest-xdist."""

from __future__ import annotations

from pieces import REAL_CLUSTER, SPARK_SESSION
from xdist.scheduler import LoadFileScheduling


class ByFileAndServer(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types for its schedulers
    """A file is one piece of work, and so is all that uses Spark's session, and all that uses the cluster of several servers.

    Either takes ten seconds and more to start, and each worker with a test for it would start its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK_SESSION):
            return SPARK_SESSION[0]
        if nodeid.startswith(REAL_CLUSTER):
            return REAL_CLUSTER
        return str(super()._split_scope(nodeid))
