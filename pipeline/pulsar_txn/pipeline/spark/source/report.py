"""Report of a running stream on itself in Spark's progress, beside offsets: how far it is behind, and what is hidden from it.

Spark has no metrics for sources in Python. It shows what `reportLatestOffset` answers, as `latestOffset` of the source; so
it stands there. `source_progress` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pulsar_txn.pipeline.spark.source.hidden import Hidden
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place


def behind(found: Mapping[str, Hidden], read: Mapping[str, Place], newest: Mapping[str, Place]) -> dict[str, Any]:
    """By topic partition, and in all: entries that are not read yet, up to `newest` and to the end; and what is hidden."""
    partitions = {
        topic: _of(hidden, read.get(topic, NOTHING), newest.get(topic, NOTHING)) for topic, hidden in sorted(found.items())
    }
    names = ("lag_entries", "lag_entries_to_end", "hidden_entries", "open_transactions")
    total: dict[str, Any] = {name: sum(each[name] for each in partitions.values()) for name in names}
    ages = [each["oldest_open_ms"] for each in partitions.values() if "oldest_open_ms" in each]
    if ages:
        total["oldest_open_ms"] = max(ages)
    return {"partitions": partitions, "total": total}


def _of(hidden: Hidden, read: Place, newest: Place) -> dict[str, Any]:
    said: dict[str, Any] = {
        "lag_entries": hidden.ledgers.between(read, newest),
        "lag_entries_to_end": hidden.ledgers.between(read, max(newest, hidden.ledgers.last)),
        "hidden_entries": hidden.entries,
        "open_transactions": hidden.transactions,
    }
    if hidden.oldest is not None:
        said["oldest_transaction"] = hidden.oldest.txn
        said["oldest_open_ms"] = max(0, int(time.time() * 1000) - hidden.oldest.since_ms)
    return said
