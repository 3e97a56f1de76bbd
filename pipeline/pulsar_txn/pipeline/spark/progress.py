"""Spark's progress of a stream, read for the people who watch it: how far the source is behind, and what is hidden from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class PartitionProgress:
    """A topic partition when a micro-batch began. Entries are what a topic stores: a batch of messages, or one message.

    None means that it is not known: without the option `admin.url` only `lag_entries` is, as long as what was read and the
    end are in one ledger.
    """

    lag_entries: int | None = None
    """Entries that readers may see, and that the query has not read when the micro-batch is done."""
    lag_entries_to_end: int | None = None
    """The same up to the end of the topic: with what is hidden, and with the transactions' own markers."""
    hidden_entries: int | None = None
    """Entries after the first one of the oldest open transaction, committed or not: nobody may see them before it ends."""
    open_transactions: int | None = None
    """Open transactions that have written here."""
    oldest_transaction: str | None = None
    """The one that hides them, as `(coordinator,number)`."""
    oldest_open_ms: int | None = None
    """Time for which it has been open."""


@attrs.frozen(kw_only=True)
class SourceProgress:
    """One source of a query in one of its progresses."""

    partitions: Mapping[str, PartitionProgress]
    """By the full name of the topic partition."""
    total: PartitionProgress
    """Their sums, and the longest time; a transaction that has written to two partitions counts twice."""
    unreachable_for_seconds: int | None = None
    """Time for which the cluster has not answered."""


def source_progress(progress: Any) -> list[SourceProgress]:
    """Progress of our sources in a `StreamingQueryProgress` (`query.lastProgress`, `event.progress` of a listener), in order.

    Other sources of the query are left out. The progress may also be a dict, or its JSON text; None has no sources.
    """
    if progress is None:
        return []
    given = json.loads(progress) if isinstance(progress, str) else progress
    found = (_of_source(each) for each in given["sources"])
    return [each for each in found if each is not None]


def _of_source(source: Mapping[str, Any]) -> SourceProgress | None:
    end, latest = (_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
    if end is None:
        return None
    latest = latest or {}
    said = latest.get("partitions", {})
    newest = latest.get("p", end["p"])
    partitions = {
        topic: PartitionProgress(**said[topic])
        if topic in said
        else PartitionProgress(lag_entries=_lag(end["p"].get(topic, [-1, -1]), newest[topic]))
        for topic in newest
    }
    total = PartitionProgress(**latest["total"]) if "total" in latest else _sum(partitions.values())
    return SourceProgress(partitions=partitions, total=total, unreachable_for_seconds=latest.get("unreachable_for_seconds"))


def _offset(value: Any) -> Mapping[str, Any] | None:
    """An offset of our source; None for those of others."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and "v" in found and isinstance(found.get("p"), Mapping) else None


def _lag(read: list[int], newest: list[int]) -> int | None:
    """Entries between two positions, as far as positions tell."""
    if newest <= read:
        return 0
    return newest[1] - read[1] if newest[0] == read[0] else None


def _sum(partitions: Any) -> PartitionProgress:
    lags = [each.lag_entries for each in partitions]
    return PartitionProgress(lag_entries=None if None in lags else sum(lags))
