"""What came out of the main job, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from chaos import UNENDED_POINT, Planned
from checks import (
    Findings,
    batch_problems,
    compare,
    gap_problems,
    kill_problems,
    recovery_problems,
    refused_problems,
    sums,
    totals_problems,
    transaction_problems,
)
from crash import BROKER_POINT, Kill
from runs import Input, KillReport
from topics import Topics
from watch import Arrival, Seen


@attrs.define
class MicroBatch:
    """A micro-batch of the settling query, as readers of its three topics found it."""

    number: int
    txn_id: str
    rows: dict[str, int] = attrs.field(factory=dict)
    visible_ms: int | None = None
    waited_ms: list[int] = attrs.field(factory=list)

    @property
    def flights(self) -> int:
        """How many were settled or refused in it; a settled one has two rows."""
        return sum(count for topic, count in self.rows.items() if not topic.endswith("postings"))


@attrs.define
class MainResult:
    """What came out of the main job."""

    settlements: Findings
    refused: int
    by_carrier: dict[tuple[str, str], tuple[int, int]]
    batches: list[MicroBatch]
    totals_batches: int
    totals: int
    kills: list[KillReport]
    published_ms: list[int]
    events: list[dict[str, Any]]
    seconds: float
    seed: int
    our_broker: bool
    problems: list[str]

    @property
    def visible(self) -> list[tuple[int, int]]:
        """(ms, flights visible up to then)."""
        found, total = [], 0
        for batch in sorted((each for each in self.batches if each.visible_ms), key=lambda each: each.visible_ms or 0):
            total += batch.flights
            found.append((batch.visible_ms or 0, total))
        return found


@attrs.frozen
class Found:
    """Everything that readers have found: `rows` by topic from the start, `arrivals` while it ran; and who was killed."""

    topics: Topics
    rows: Mapping[str, Sequence[Seen]]
    arrivals: Mapping[str, Mapping[int, Arrival]]
    kills: Sequence[Kill]

    def compared(self, topic: str, known: Input) -> Findings:
        """A topic with a message per settled flight, against the truth."""
        return compare(topic, [seen.value for seen in self.rows[topic]], known.truth)

    def by_carrier(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Flights and cents, as a reader of the postings adds them up."""
        return sums(seen.value for seen in self.rows[self.topics.postings])

    def micro_batches(self) -> list[MicroBatch]:
        """Those of the settling query, in their order."""
        found: dict[int, MicroBatch] = {}
        for topic in self.topics.settled:
            for seen in self.rows[topic]:
                number = -1 if seen.batch_id is None else seen.batch_id
                batch = found.setdefault(number, MicroBatch(number, str(seen.txn_id)))
                batch.rows[topic] = batch.rows.get(topic, 0) + 1
        for number, arrival in self.arrivals.get(self.topics.settlements, {}).items():
            if number in found:
                found[number].visible_ms, found[number].waited_ms = arrival.first_ms, arrival.waited_ms
        return [found[number] for number in sorted(found)]

    def problems(self, known: Input, plan: Sequence[Planned]) -> list[str]:
        """All of them, in words; `plan` says who should have been killed."""
        found = [problem for topic in self.topics.settled[:2] for problem in self.compared(topic, known).problems()]
        refused = [seen.value for seen in self.rows[self.topics.refused]]
        found += refused_problems(self.topics.refused, refused, known.refused)
        carriers = {key: total for key, total in known.totals.items() if key[0] == "carrier"}
        found += totals_problems("postings", self.by_carrier(), carriers)
        by_dimension = {dimension: self.rows[topic] for dimension, topic in self.topics.totals.items()}
        found += transaction_problems({topic: self.rows[topic] for topic in self.topics.settled})
        found += transaction_problems(by_dimension) + batch_problems(by_dimension, known.totals)
        for together in (self.topics.settled[:2], list(self.topics.totals.values())):
            found += gap_problems({topic: self._first_seen(topic) for topic in together})
        return found + self._kill_problems(plan)

    def _first_seen(self, topic: str) -> dict[int, int]:
        return {number: arrival.first_ms for number, arrival in self.arrivals.get(topic, {}).items()}

    def _kill_problems(self, plan: Sequence[Planned]) -> list[str]:
        problems = kill_problems(self.kills, [planned.point for planned in plan])
        for target in sorted({planned.target for planned in plan}):
            wanted = sum(planned.target == target for planned in plan)
            killed = sum(kill.target == target for kill in self.kills)
            if killed != wanted:
                problems.append(f"main job: the {target} was killed {killed} times instead of {wanted}")
        settled = {topic: self.rows[topic] for topic in self.topics.settled}
        for kill in self.kills:
            if kill.point == UNENDED_POINT:
                problems += recovery_problems(kill, settled, committed=False)
            if kill.point == BROKER_POINT and not any(
                seen.txn_id == kill.txn_id for those in self.rows.values() for seen in those
            ):
                problems.append(f"{kill.point}: no topic has anything of the decided {kill.txn_id}")
        return problems
