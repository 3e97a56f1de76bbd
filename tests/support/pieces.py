"""Pieces of work: the tests that share something expensive, those that take long, and those of `make quick`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

SPARK_SESSION: Final = (
    "tests/spark/test_spark_grouped.py",
    "tests/spark/test_spark_pipeline.py",
    "tests/spark/test_spark_several_queries.py",
    "tests/spark/test_spark_sink.py",
    "tests/spark/test_spark_source_queries.py",
    "tests/spark/test_spark_typed_queries.py",
    "tests/spark/test_sync_client_in_executors.py",
    "tests/spark/test_write_batch.py",
    "tests/examples/test_demo_spark_rules.py",
)
"""The files with tests that take the fixture `spark`."""

REAL_CLUSTER: Final = "tests/tc_service/test_real_cluster_"

SAMPLED: Final = (
    "tests/broker/",
    "tests/client/",
    "tests/client_on_servers/",
    "tests/faults/",
    "tests/house/",
    "tests/outbox/",
    "tests/spark/",
    "tests/tc_service/test_beside_stock.py",
    "tests/tc_service/test_doctor_on_other_clusters.py",
    "tests/tc_service/test_doctor_on_stock.py",
    "tests/tc_service/test_ends_on_stock.py::test_a_broker_killed_with_ends_under_way",
    "tests/tc_service/test_front_conformance.py",
    "tests/tc_service/test_front_on_stock.py",
    "tests/tc_service/test_instances_on_stock.py",
    "tests/tc_service/test_lost_logs_on_stock.py",
    "tests/tc_service/test_pipelines_beside_stock.py",
    "tests/tc_service/test_topic_ledger",
    "tests/tc_service/test_watching_beside_stock.py",
    "tests/transactions/",
)
"""Folders and files whose tests run on the newest stock version, and on the others in `make soak`: faults that the tests
inject, what is lost or killed on our side, and what the client does by itself.

The others have what Pulsar's versions answer differently: conformance, and the ends of transactions beside a cluster.
"""


def is_sampled(test: str, older: Iterable[str], *, needs_stock: bool) -> bool:
    """True if a test, by its id, waits for `make soak` because it runs on an older version. Models have versions, too."""
    return needs_stock and test.startswith(SAMPLED) and any(version in test.rpartition("::")[2] for version in older)


LONG: Final = (
    *SPARK_SESSION,
    REAL_CLUSTER,
    "tests/tc_service/test_beside_stock.py",
    "tests/spark/test_spark_speculation.py",
    "tests/conformance/test_own_servers.py",
    "tests/chain",
    "tests/faults",
    "tests/client_on_servers",
    "tests/conformance",
    "tests/tc_service",
    "tests/spark",
    "tests/transactions",
    "tests/examples",
    "tests/house/test_distribution.py",
    "tests/broker/test_hostile_clients.py",
    "tests/client/test_hostile_fuzz.py",
    "tests/client/test_compat_programs.py",
)
"""Longest first, by what they took in CI; then what waits for servers, so that what only computes fills the gaps."""

LAST: Final = ("tests/spark/test_spark_connect.py",)
"""For the end, when less goes on: Spark gives a Python process ten seconds to begin, and that of Spark Connect imports for half
of them on an idle machine.
"""

QUICK_FOLDERS: Final = ("tests/wire/", "tests/tc/", "tests/rm_producer/", "tests/rm_pending_ack/")
"""Folders of which all tests are for `make quick`."""


def has_quick_tests(path: Path, root: Path) -> bool:
    """Whether a file, or anything in a folder, is for `make quick`. Nothing is imported: what others need may be missing."""
    place = path.relative_to(root).as_posix() + "/" * path.is_dir()
    if place.startswith(QUICK_FOLDERS) or place == "tests/":
        return True
    files = path.glob("*.py") if path.is_dir() else [path]
    return any("\npytestmark = pytest.mark.quick\n" in each.read_text(encoding="utf-8") for each in files)
