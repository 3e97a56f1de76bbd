"""Ranges as tasks: long ones are cut between entries (`minPartitions`), small ones share a task (`maxPartitions`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.source.ranges import Range, first_visible


class Work(InputPartition):
    """Work of one task: what it reads, one range after the other."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)


def together(ranges: Sequence[Range], most: int | None) -> list[Work]:
    """One task per range, or `most` tasks with about as many entries each."""
    if most is None or len(ranges) <= most:
        return [Work([each]) for each in ranges]
    shares: list[list[Range]] = [[] for _ in range(most)]
    sizes = [0] * most
    for each in sorted(ranges, key=entries_in, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(each)
        sizes[least] += entries_in(each)
    return [Work(share) for share in shares if share]


def entries_in(each: Range) -> int:
    """About how many entries a range has: of its last ledger only, because ids do not count those of others."""
    first = each.start[1] if each.start[0] == each.end[0] else -1
    return max(1, each.end[1] - first)


async def cut(client: AsyncClient, ranges: Sequence[Range], least: int) -> list[Range]:
    """The same ranges in `least` pieces or more, as far as they have entries enough. Use it on the client's loop."""
    total = sum(entries_in(each) for each in ranges)
    pieces: list[Range] = []
    for each in ranges:
        wanted = -(-least * entries_in(each) // total) if len(ranges) < least else 1
        pieces += await _cut_one(client, each, wanted)
    return pieces


async def _cut_one(client: AsyncClient, each: Range, wanted: int) -> list[Range]:
    """Pieces between visible entries, so that each task can see that nothing was lost before its piece."""
    ledger_id, last = each.end
    first = each.start[1] if each.start[0] == ledger_id else -1
    places = [each.start]
    for number in range(1, min(wanted, last - first)):
        found = await first_visible(client, each.topic, (ledger_id, first + (last - first) * number // wanted))
        if found is not None and places[-1] < found < each.end:
            places.append(found)
    places.append(each.end)
    known = [each.next_known] + [None] * len(places)
    return [
        Range(each.topic, *pair, next_known=known[number], ends_visibly=pair[1] != each.end or each.ends_visibly)
        for number, pair in enumerate(itertools.pairwise(places))
    ]
