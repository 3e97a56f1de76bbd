"""The coordinator seen from outside: fencing of lower epochs (K10), and each transaction as one register that goes from open to
committed or to aborted (K12)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from history_facts import Facts
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from history_reader import Op

SEARCH_BUDGET = 100_000
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


def k10_fencing(facts: Facts) -> Verdict:
    """After the open of a higher epoch was answered, no operation of a lower epoch that began later succeeds."""
    opened: dict[tuple[str, str], list[tuple[int, int, Op]]] = defaultdict(list)  # end, epoch, op
    epochs: dict[tuple[str, str], set[int]] = defaultdict(set)
    for op in facts.history.ops:
        if "identity" in op.value:
            kind, name, epoch = op.value["identity"]
            epochs[kind, name].add(epoch)
            if op.f == "open" and op.type == "ok":
                opened[kind, name].append((op.end, epoch, op))
    fenced = {name: _rising(found) for name, found in opened.items() if len(epochs[name]) > 1}
    if not fenced:
        return unknown("K10", "no fenced name was used in two epochs")
    bad: list[tuple[Op, Op]] = []
    judged = 0
    for op in facts.history.ops:
        if op.type != "ok" or "identity" not in op.value:
            continue
        kind, name, epoch = op.value["identity"]
        if (kind, name) not in fenced:
            continue
        judged += 1
        rising = fenced[kind, name]
        place = bisect_left(rising, op.start, key=lambda item: item[0]) - 1
        if place >= 0 and rising[place][1] > epoch:
            bad.append((rising[place][2], op))
    if bad:
        op = bad[0][1]
        kind, name, epoch = op.value["identity"]
        return invalid("K10", f"{op.f} succeeded as epoch {epoch} of {kind} {name}, which was fenced before", bad[0], len(bad))
    return valid("K10", f"{judged} operations of {len(fenced)} fenced names")


def _rising(found: list[tuple[int, int, Op]]) -> list[tuple[int, int, Op]]:
    """The opens, by their ends, each with the highest epoch until then."""
    rising: list[tuple[int, int, Op]] = []
    for end, epoch, op in sorted(found, key=lambda item: item[0]):
        rising.append((end, *rising[-1][1:]) if rising and rising[-1][1] >= epoch else (end, epoch, op))
    return rising


def k12_register(facts: Facts) -> Verdict:
    """The answers to commit, abort and status of each transaction fit one order of these operations."""
    bad: list[tuple[Op, ...]] = []
    judged = 0
    for txn in facts.txns.values():
        ops = [op for op in (*txn.commits, *txn.aborts, *txn.statuses) if not (op.f == "status" and op.type != "ok")]
        if not ops:
            continue
        judged += 1
        if txn.fenced is not None:
            ops.append(txn.fenced)
        fits = linearizable(ops, txn.others_end_ns())
        if fits is None:
            return unknown("K12", f"the search over {len(ops)} operations of transaction {txn.name} used up its budget")
        if not fits:
            bad.append(tuple(ops))
    if bad:
        name = bad[0][0].value["txn"]
        return invalid("K12", f"the answers about transaction {name} fit no order", (facts.txns[name].begin, *bad[0]), len(bad))
    if not judged:
        return unknown("K12", "no transaction was ended or asked about")
    return valid("K12", f"{judged} transactions")


def linearizable(ops: list[Op], others_end_ns: int, budget: int = SEARCH_BUDGET) -> bool | None:
    """Whether an order of the operations exists that respects time and a register (Wing and Gong's search).

    Each operation that was answered takes its effect between its invocation and its answer; one of unknown outcome does so at
    any time after its invocation, or never. The coordinator may abort at any time from `others_end_ns` on, and has done so when
    an `open` of a successor is answered. Returns None when the search needs more than `budget` steps.
    """
    must = [op for op in ops if op.type in ("ok", "fail")]
    may = [op for op in ops if op.type == "info" and op.f != "status"]
    # What is left of `must` and the state say all: operations of unknown outcome and the timeout only ever leave `open`, once.
    start = ((1 << len(must)) - 1, OPEN)
    todo = [start]
    seen = {start}
    while todo:
        left, state = todo.pop()
        if not left:
            return True
        budget -= 1
        if budget < 0:
            return None
        pending = [(bit, op) for bit, op in enumerate(must) if left >> bit & 1]
        limit = min(op.end for _, op in pending)  # whatever comes next must have begun by then
        nexts = [
            (left & ~(1 << bit), after)
            for bit, op in pending
            if op.start <= limit and (after := _effect(op, state)) is not None
        ]
        if state == OPEN:
            begun = {op.f for op in may if op.start <= limit}
            if "commit" in begun:
                nexts.append((left, COMMITTED))
            # A client answers the commit of a transaction in which something failed by aborting it.
            if begun or others_end_ns <= limit:
                nexts.append((left, ABORTED))
        for node in nexts:
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return False


def _effect(op: Op, state: str) -> str | None:
    """The state after an operation with the answer that it got; None when the state does not allow that answer."""
    if op.f == "open":
        return ABORTED if state == OPEN else state
    if op.f == "status":
        return state if op.value["status"] == state else None
    wanted, other = (COMMITTED, ABORTED) if op.f == "commit" else (ABORTED, COMMITTED)
    if op.type == "ok":
        return wanted if state in (OPEN, wanted) else None
    from_open = op.f == "commit" and state == OPEN
    return other if state == other or from_open else None
