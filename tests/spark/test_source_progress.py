"""What a stream says of its lag and of open transactions: entries counted, and read out of Spark's progress. No server."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from typing import Any

from pulsar_txn.pipeline.spark import PartitionProgress, source_progress
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Ledgers
from pulsar_txn.pipeline.spark.source.topics import Hidden, Oldest, OpenTransactions, behind

STATS = {
    "numberOfEntries": 25,
    "lastConfirmedEntry": "9:4",
    "currentLedgerEntries": 5,
    "ledgers": [{"ledgerId": 3, "entries": 10}, {"ledgerId": 5, "entries": 10}, {"ledgerId": 9, "entries": 0}],
}


def test_entries_are_counted_over_ledgers() -> None:
    ledgers = Ledgers.read(STATS)
    assert ledgers.between(NOTHING, (9, 4)) == 25
    assert ledgers.between((3, 9), (5, 0)) == 1
    assert ledgers.between((3, 4), (9, 1)) == 5 + 10 + 2
    assert ledgers.between((1, 7), (9, 4)) == 25, "that ledger is gone"
    assert ledgers.between((9, 4), (9, 4)) == ledgers.between((9, 4), (5, 1)) == 0
    assert ledgers.following((3, 8)) == (3, 9)
    assert ledgers.following((3, 9)) == (5, 0)
    assert ledgers.following((9, 4)) == (9, 5)
    assert ledgers.following(NOTHING) == (3, 0)
    trimmed = Ledgers.read({**STATS, "numberOfEntries": 3})
    assert trimmed.between(NOTHING, (9, 4)) == 3


def test_an_empty_topic_has_no_ledgers_with_entries() -> None:
    empty = Ledgers.read({"numberOfEntries": 0, "lastConfirmedEntry": "-1:-1", "ledgers": []})
    assert empty.between(NOTHING, NOTHING) == 0
    assert Ledgers.read({"numberOfEntries": 0, "lastConfirmedEntry": "7:-1"}).between(NOTHING, (7, -1)) == 0


def test_the_lag_is_up_to_what_readers_may_see_and_up_to_the_end() -> None:
    ledgers = Ledgers.read(STATS)
    found = {"a": Hidden(ledgers, 4, 1, Oldest((9, 1), "(0,5)", 0)), "b": Hidden(ledgers, 0, 0, None)}
    report = behind(found, {"a": (3, 9), "b": (9, 4)}, {"a": (9, 0), "b": (9, 4)})
    of_a = report["partitions"]["a"]
    assert (of_a["lag_entries"], of_a["lag_entries_to_end"], of_a["hidden_entries"]) == (11, 15, 4)
    assert of_a["oldest_transaction"] == "(0,5)"
    assert report["partitions"]["b"]["lag_entries_to_end"] == 0
    assert report["total"]["lag_entries_to_end"] == 15
    assert report["total"]["oldest_open_ms"] >= of_a["oldest_open_ms"] - 1000
    json.dumps(report)


def test_a_progress_of_other_sources_has_nothing_of_ours() -> None:
    sources = [
        {"endOffset": "7", "latestOffset": None},
        {"endOffset": None},
        {"endOffset": {"a": {"0": 5}}},
        {"endOffset": "x"},
    ]
    assert source_progress({"sources": sources}) == []
    assert source_progress(None) == []
    far = {"sources": [{"endOffset": {"v": 1, "p": {"t": [1, 5]}}, "latestOffset": {"v": 1, "p": {"t": [2, 0], "u": [2, 3]}}}]}
    (found,) = source_progress(far)
    assert found.partitions == {"t": PartitionProgress(), "u": PartitionProgress()}, "another ledger: nobody has counted"
    assert found.total.lag_entries is None


def test_one_partition_that_cannot_be_asked_hides_no_other() -> None:
    class Half:
        url = "http://admin"

        async def get(self, path: str) -> Any:
            if "broken" in path:
                raise urllib.error.URLError("refused")
            return {"ongoingTxnSize": 0} if "Buffer" in path else STATS

    async def work() -> set[str]:
        watching = OpenTransactions(read_options({"service.url": "pulsar://h", "admin.url": "http://h"}))
        watching._admin = Half()  # type: ignore[assignment]  # what it asks of it
        await watching.watch(["persistent://public/default/broken", "persistent://public/default/well"], 10)
        await watching.close()
        return set(watching.found)

    assert asyncio.run(work()) == {"persistent://public/default/well"}
