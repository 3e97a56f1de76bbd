"""Whether a history keeps the promise: what went in came out once, and nothing else; and the checkers of `tests/history`.

`compare` needs the final reads only and knows nothing of transactions: it is the whole promise as a user sees it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import attrs
from chain_schedule import Phase
from history_facts import Facts
from history_reader import History

Name = tuple[str, int]


@attrs.frozen
class Comparison:
    """Messages by their names: `sent` went in, the others are faults. `rest` is what is left on a subscription."""

    sent: int
    lost: tuple[Name, ...]
    doubled: tuple[Name, ...]
    foreign: tuple[Name, ...]
    rest: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.foreign or self.rest)

    def __str__(self) -> str:
        faults = {"lost": self.lost, "doubled": self.doubled, "foreign": self.foreign, "left": self.rest}
        found = "; ".join(f"{len(those)} {kind}, e.g. {those[0]}" for kind, those in faults.items() if those)
        return f"{self.sent} messages: {found or 'each is at the end once'}"


def compare(phase: Phase, history: History) -> Comparison:
    """What the final reads of the ends say, beside those of the beginnings."""
    found: dict[str, Counter[Name]] = defaultdict(Counter)
    left: list[str] = []
    for op in history.ops:
        if op.f != "deliver":
            continue
        if op.process.startswith("final-"):
            found[op.value["topic"]][tuple(op.value["payload"]["root"])] += 1
        elif op.process.startswith("rest-"):
            left.append(f"{op.value['topic']} {op.value['position']}")
    answered = _answered(history)
    sent = 0
    lost: list[Name] = []
    doubled: list[Name] = []
    foreign: list[Name] = []
    for chain in phase.chains:
        begin, end = found[chain.hops[0].source], found[chain.hops[-1].target]
        # What was answered has to be there; what was not may be.
        entered = set(begin) | answered[chain.hops[0].source]
        sent += len(entered)
        lost += sorted(entered - set(end))
        foreign += sorted(set(end) - entered)
        doubled += sorted(name for name, times in [*begin.items(), *end.items()] if times > 1)
    return Comparison(sent, tuple(lost), tuple(doubled), tuple(foreign), tuple(left))


def _answered(history: History) -> dict[str, set[Name]]:
    names: dict[str, set[Name]] = defaultdict(set)
    for op in history.ops:
        if op.f == "send" and op.process == "source" and op.type == "ok":
            names[op.value["topic"]].add(tuple(op.value["payload"]["root"]))
    return names


def refused(history: History) -> int:
    """How many operations predecessors asked for when a successor had taken over, in vain."""
    found = 0
    for txn in Facts(history).txns.values():
        if txn.fenced is not None:
            found += sum(op.type != "ok" and op.start > txn.fenced.end for op in txn.ops())
    return found


def ends_of_transactions(history: History) -> dict[str, int]:
    """How many transactions there were, and how they ended."""
    counts: Counter[str] = Counter()
    for op in history.ops:
        if op.f in ("commit", "abort"):
            counts[f"{op.f} {op.type}"] += 1
        elif op.f in ("begin", "status"):
            counts[op.f] += 1
    return dict(sorted(counts.items()))
