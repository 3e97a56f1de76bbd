"""What must be true of the results. Plain functions of what was read, so that tests can show that they do find faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from crash import Kill
from watch import Seen

Totals = Mapping[tuple[str, str], tuple[int, int]]
"""(dimension, key) -> (flights, net cents)."""

MOST_APART_MS = 4_000
_NAMED_AT_MOST = 5


@attrs.frozen
class Findings:
    """What a topic of results has against the truth, flight by flight."""

    topic: str
    messages: int
    cents: int
    truth_cents: int
    lost: tuple[int, ...]
    doubled: tuple[int, ...]
    wrong: tuple[int, ...]

    @property
    def clean(self) -> bool:
        """Every flight once, and right to the cent."""
        return not (self.lost or self.doubled or self.wrong) and self.cents == self.truth_cents

    def problems(self) -> list[str]:
        """In words; empty when clean."""
        found = [
            f"{self.topic}: {len(ids)} flights are {what} ({_some(ids)})"
            for what, ids in (("lost", self.lost), ("doubled", self.doubled), ("wrong", self.wrong))
            if ids
        ]
        if self.cents != self.truth_cents:
            found.append(f"{self.topic}: {cents(self.cents)} in all, and the truth is {cents(self.truth_cents)}")
        return found


def compare(topic: str, values: Iterable[Mapping[str, Any]], truth: Mapping[int, Mapping[str, Any]]) -> Findings:
    """Compare each message with the truth of its flight, in every field that the truth knows; unknown flights are wrong."""
    counted: Counter[int] = Counter()
    wrong: set[int] = set()
    total = 0
    for value in values:
        number = value["id"]
        counted[number] += 1
        total += value["net_cents"]
        expected = truth.get(number)
        if expected is None or any(value[key] != expected[key] for key in value.keys() & expected.keys()):
            wrong.add(number)
    return Findings(
        topic=topic,
        messages=counted.total(),
        cents=total,
        truth_cents=sum(int(each["net_cents"]) for each in truth.values()),
        lost=tuple(sorted(truth.keys() - counted.keys())),
        doubled=tuple(sorted(number for number, times in counted.items() if times > 1)),
        wrong=tuple(sorted(wrong)),
    )


def refused_problems(topic: str, values: Iterable[Mapping[str, Any]], truth: Collection[int]) -> list[str]:
    """Every flight that nobody can settle is refused once, with a reason, and no other flight is."""
    values = list(values)
    counted = Counter(value["id"] for value in values)
    kinds = {
        "missing": [number for number in sorted(truth) if number not in counted],
        "doubled": sorted(number for number, times in counted.items() if number in truth and times > 1),
        "refused without a rule for it": sorted((number for number in counted if number not in truth), key=str),
        "refused without a reason": sorted(value["id"] for value in values if not value.get("reason")),
    }
    return [f"{topic}: {len(ids)} flights are {what} ({_some(ids)})" for what, ids in kinds.items() if ids]


def transaction_problems(topics: Mapping[str, Sequence[Seen]]) -> list[str]:
    """A micro-batch is one transaction over all topics (`topics`: by name), and a transaction is one micro-batch."""
    of_batch: dict[int, set[str]] = defaultdict(set)
    of_txn: dict[str, set[int]] = defaultdict(set)
    for those in topics.values():
        for seen in those:
            batch, txn = -1 if seen.batch_id is None else seen.batch_id, str(seen.txn_id)
            of_batch[batch].add(txn)
            of_txn[txn].add(batch)
    problems = [
        f"micro-batch {batch} came in {len(txns)} transactions: {', '.join(sorted(txns))}"
        for batch, txns in sorted(of_batch.items())
        if len(txns) > 1
    ]
    problems += [f"transaction {txn} holds micro-batches {sorted(those)}" for txn, those in of_txn.items() if len(those) > 1]
    if "None" in of_txn:
        problems.append("there are rows that were sent in no transaction")
    missing = sorted(set(range(max(of_batch, default=-1) + 1)) - of_batch.keys())
    return problems + ([f"micro-batches {_some(missing)} are missing"] if missing else [])


def sums(values: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Flights and cents per carrier, as a reader of the postings or settlements adds them up."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for value in values:
        found["carrier", value["carrier"]][0] += 1
        found["carrier", value["carrier"]][1] += value["net_cents"]
    return {key: (flights, net) for key, (flights, net) in found.items()}


def totals_problems(what: str, found: Totals, truth: Totals) -> list[str]:
    """Every total that is missing, too many, or off by a flight or a cent."""
    differing = [key for key in sorted(found.keys() | truth.keys()) if found.get(key) != truth.get(key)]
    return [f"{what}: total of {' '.join(key)} is {found.get(key)}, and the truth is {truth.get(key)}" for key in differing]


def kill_problems(kills: Sequence[Kill], expected: Sequence[str]) -> list[str]:
    """A point that nobody was killed at, and a kill with nothing in flight, prove nothing."""
    points = [kill.point for kill in kills]
    missing = [f"nobody was killed at {point}" for point in expected if point not in points]
    return missing + [f"nothing was in flight at {kill.point}" for kill in kills if kill.nothing_in_flight()]


def recovery_problems(kill: Kill, rows: Mapping[str, Sequence[Seen]], *, committed: bool) -> list[str]:
    """Whether the transaction that was in flight is in all topics of `rows` or, not `committed`, in none."""
    counts = {topic: sum(seen.txn_id == kill.txn_id for seen in those) for topic, those in rows.items()}
    if committed:
        return [
            f"{kill.point}: {topic} has nothing of the decided {kill.txn_id}" for topic, count in counts.items() if not count
        ]
    return [
        f"{kill.point}: {topic} shows {count} messages of {kill.txn_id}, which never committed"
        for topic, count in counts.items()
        if count
    ]


def comparison_problems(mode: str, settled: Findings) -> list[str]:
    """Without transactions the same kills must show: else they prove nothing about the transactions."""
    if mode == "ack-first" and not settled.lost:
        return ["transactions off, acknowledging first: nothing was lost, so the kills prove nothing"]
    if mode == "send-first" and not settled.doubled:
        return ["transactions off, sending first: nothing was doubled, so the kills prove nothing"]
    return [f"transactions off, {mode}: {problem}" for problem in settled.problems() if "wrong" in problem]


def batch_problems(topics: Mapping[str, Sequence[Seen]], truth: Totals) -> list[str]:
    """What a reader sees of the pipeline's topics (`topics`: by dimension), rows of a micro-batch side by side.

    Each topic: batches 0 … n, each once, whole and in order; all topics: the same batches, and in each batch the same sums;
    the last batch: the truth.
    """
    problems: list[str] = []
    grouped = {dimension: _batches(dimension, seen, problems) for dimension, seen in topics.items()}
    newest = {dimension: max(batches, default=-1) for dimension, batches in grouped.items()}
    if len(set(newest.values())) != 1:
        problems.append(f"the topics are not at the same batch: {newest}")
    for dimension, batches in grouped.items():
        expected = list(range(newest[dimension] + 1))
        if list(batches) != expected or not batches:
            problems.append(f"totals by {dimension}: batches {list(batches)} instead of {expected or 'at least one'}")
    for batch in sorted(set.intersection(*(set(batches) for batches in grouped.values()))):
        whole = {dimension: _sum(batches[batch]) for dimension, batches in grouped.items()}
        if len(set(whole.values())) != 1:
            problems.append(f"batch {batch} is not the same in all topics: {whole} flights and cents")
    last = {key: total for batches in grouped.values() if batches for key, total in batches[max(batches)].items()}
    return problems + totals_problems("last micro-batch", last, truth)


def gap_problems(arrivals: Mapping[str, Mapping[int, int]]) -> list[str]:
    """What readers that follow all topics saw (batch -> ms): a batch comes to all of them together.

    A transaction's markers reach its topics one after the other, a matter of milliseconds; the bound is wide, and far
    below what a restart of the pipeline takes.
    """
    problems = []
    for batch in sorted({batch for seen in arrivals.values() for batch in seen}):
        times = [seen[batch] for seen in arrivals.values() if batch in seen]
        if len(times) < len(arrivals):
            problems.append(f"batch {batch} never reached all topics")
        elif max(times) - min(times) > MOST_APART_MS:
            problems.append(f"batch {batch} reached the topics {max(times) - min(times)} ms apart")
    return problems


Batch = dict[tuple[str, str], tuple[int, int]]


def _batches(dimension: str, seen: Sequence[Seen], problems: list[str]) -> dict[int, Batch]:
    batches: dict[int, Batch] = {}
    current = None
    for each in seen:
        batch_id = -1 if each.batch_id is None else each.batch_id
        if batch_id != current and batch_id in batches:
            problems.append(f"totals by {dimension}: batch {batch_id} appears again after batch {current}")
        current = batch_id
        rows = batches.setdefault(batch_id, {})
        key = (each.value["dimension"], each.value["key"])
        if key in rows:
            problems.append(f"totals by {dimension}: batch {batch_id} has {key[1]} twice")
        rows[key] = (each.value["flights"], each.value["net_cents"])
    return batches


def _sum(batch: Batch) -> tuple[int, int]:
    return sum(flights for flights, _ in batch.values()), sum(net for _, net in batch.values())


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _NAMED_AT_MOST} more" if len(ids) > _NAMED_AT_MOST else ""
    return ", ".join(map(str, ids[:_NAMED_AT_MOST])) + more


def cents(amount: int) -> str:
    """Cents as dollars."""
    sign = "-" if amount < 0 else ""
    return f"{sign}${abs(amount) // 100:,}.{abs(amount) % 100:02}"
