"""Everything ends in time (K15): each request is answered, each transaction is decided, full reads finish, samples keep their
bounds.

The meta event gives the bounds, all optional but one at least: `answer_ms` (from a request to its answer), `txn_decided_ms`
(after the timeout of a transaction), `unseen_ms` (the duration of a full read), and `metrics`, `{name: {"max": m, "last": l}}`:
every sample is at most `m`, the last one of each source at most `l`. While something is broken (from the `kill` of a server to
the next `heal`) no bound runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from history_facts import Facts
from history_reader import NEVER
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_reader import Op

Found = tuple[str, tuple["Op | None", ...]]
MS = 1_000_000


def k15_liveness(facts: Facts) -> Verdict:
    """The bounds of the meta event hold."""
    bounds = facts.meta.get("bounds", {})
    known = {"answer_ms": _unanswered, "txn_decided_ms": _undecided, "unseen_ms": _slow_reads, "metrics": _samples}
    asked = [name for name in known if name in bounds]
    if not asked:
        return unknown("K15", "the meta event gives no bounds")
    bad: list[Found] = []
    for name in asked:
        bad += known[name](facts)
    if bad:
        return invalid("K15", bad[0][0], bad[0][1], len(bad))
    if "metrics" in asked and not facts.by_kind["metrics"]:
        return unknown("K15", "there are bounds for metrics and no samples")
    return valid("K15", f"bounds: {', '.join(asked)}")


class _Health:
    """When everything worked: the times of the kills and heals."""

    def __init__(self, facts: Facts) -> None:
        self._times: list[int] = []  # broken from the even ones to the odd ones
        broken = False
        clients = {op.process for op in facts.history.ops}
        for op in sorted((*facts.by_kind["kill"], *facts.by_kind["heal"]), key=lambda op: op.start):
            if op.f == "kill" and op.value["target"] in clients:  # a killed client breaks nothing for others
                continue
            if broken is (op.f == "heal"):
                self._times.append(op.start)
                broken = not broken

    def since(self, start: int, end: int) -> int:
        """The moment from which a bound runs for something that began at `start`: the last heal until `end`, if that is later.
        NEVER if something is broken at `end`."""
        place = bisect_right(self._times, end)
        if place % 2:
            return NEVER
        return max(start, self._times[place - 1]) if place else start


def _unanswered(facts: Facts) -> Iterator[Found]:
    bound = facts.meta["bounds"]["answer_ms"] * MS
    health = _Health(facts)
    last = max(facts.history.ops, key=_last_ns)
    killed = {op.value["target"]: op for op in facts.by_kind["kill"]}
    slept: dict[str, list[int]] = defaultdict(list)
    for op in facts.by_kind["pause"]:
        slept[op.value["target"]].append(op.start)
    for op in facts.history.ops:
        if any(op.start <= moment <= op.end for moment in slept[op.process]):
            continue  # nobody says how long it slept
        if op.end == NEVER:
            if op.process in killed:
                continue
            if health.since(op.start, _last_ns(last)) + bound < _last_ns(last):
                yield f"{op.f} of {op.process} was never answered, and nobody killed {op.process}", (op, last)
        elif op.f != "final_read" and health.since(op.start, op.end) + bound < op.end:
            yield f"{op.f} took {(op.end - op.start) // MS} ms", (op,)


def _last_ns(op: Op) -> int:
    return op.start if op.end == NEVER else op.end


def _undecided(facts: Facts) -> Iterator[Found]:
    health = _Health(facts)
    for txn in facts.txns.values():
        if txn.begin is None or txn.timeout_ms is None or txn.may_be_prepared():
            continue
        due = txn.last_ns + txn.timeout_ms * MS
        for op in txn.statuses:
            if op.type == "ok" and op.value["status"] == "open":
                since = health.since(due, op.start)
                if since + facts.decided_ms * MS < op.start:
                    yield f"transaction {txn.name} is open {(op.start - due) // MS} ms after its timeout", (txn.begin, op)


def _slow_reads(facts: Facts) -> Iterator[Found]:
    bound = facts.meta["bounds"]["unseen_ms"] * MS
    health = _Health(facts)
    killed = {op.value["target"] for op in facts.by_kind["kill"]}
    for op in facts.by_kind["final_read"]:
        if op.end == NEVER and op.process in killed:
            continue
        if op.end != NEVER and op.type != "ok" and health.since(op.start, op.end) != op.start:
            continue  # a server was gone in between, and the reader begins again
        if op.type != "ok":
            yield "a full read did not finish", (op,)
        elif health.since(op.start, op.end) + bound < op.end:
            yield f"a full read took {(op.end - op.start) // MS} ms", (op,)


def _samples(facts: Facts) -> Iterator[Found]:
    limits: dict[str, dict[str, float]] = facts.meta["bounds"]["metrics"]
    last: dict[tuple[str, str], Op] = {}
    for op in facts.by_kind["metrics"]:
        for name in limits.keys() & op.value["values"].keys():
            last[op.value["source"], name] = op
            if "max" in limits[name] and op.value["values"][name] > limits[name]["max"]:
                yield f"{name} of {op.value['source']} is above {limits[name]['max']}", (op,)
    for (source, name), op in last.items():
        if "last" in limits[name] and op.value["values"][name] > limits[name]["last"]:
            yield f"{name} of {source} is above {limits[name]['last']} at the end", (op,)
