"""Agreements of all instances of a coordinator service: how many coordinators there are, and the clusters' names.

It is in the store's metadata, and several instances may start, or grow, at the same moment.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Final

from pulsar_txn.broker.serving import coordinator_log_name
from pulsar_txn.ledger.protocols import LogStore, MetadataStore, StoreUnsupported, VersionConflict

logger = logging.getLogger("pulsar_txn.tc_service")

_COUNT: Final = "/tc-service/coordinators"
_CLUSTERS: Final = "/tc-service/clusters"


async def agree_on_count(store: LogStore, wanted: int) -> int:
    """Return how many coordinators there are: never less than there were, because each may have transactions to end.

    Raises StoreUnsupported for a store whose coordinators are those of a broker.
    """
    has_logs = store.exists(coordinator_log_name(0))  # asked first: the number is stored before the first log is made
    while True:
        stored = await store.metadata.get(_COUNT)
        if stored is None and has_logs:
            raise StoreUnsupported("this folder belongs to a broker; give the coordinator a folder of its own")
        before = 0 if stored is None else int(stored.data)
        if before >= wanted:
            if before > wanted:
                logger.warning(
                    "numberOfTransactionCoordinators=%d has no effect: there are %d, and each is needed", wanted, before
                )
            return before
        try:
            expected = -1 if stored is None else stored.version
            await store.metadata.put(_COUNT, str(wanted).encode(), expected_version=expected)
        except VersionConflict:
            continue  # another instance started at the same moment
        return wanted


async def count_now(metadata: MetadataStore) -> int:
    """Return how many coordinators there are; another instance may have added some."""
    stored = await metadata.get(_COUNT)
    return 0 if stored is None else int(stored.data)


async def compare_clusters(metadata: MetadataStore, names: Iterable[str]) -> None:
    """Warn when the instance that started last knew other clusters: decisions for those that are not here would wait."""
    mine = sorted(names)
    stored = await metadata.get(_CLUSTERS)
    theirs: list[str] = mine if stored is None else json.loads(stored.data)
    if theirs != mine:
        logger.warning(
            "the clusters here are %s; before, they were %s. Give all instances the same ones: what is decided for a cluster "
            "waits while the instance that leads does not know it",
            ", ".join(mine), ", ".join(theirs),
        )  # fmt: skip
    if stored is None or theirs != mine:
        await metadata.put(_CLUSTERS, json.dumps(mine).encode())
