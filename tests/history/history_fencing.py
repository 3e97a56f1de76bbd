"""What a take-over of a transactional id promises about its predecessors (K18): when it is answered, all that they had open has
ended everywhere, and nothing that they ask for later counts. What they had prepared is spared.

K10 judges operations that carry an identity themselves, as each begin does. Here transactions are judged by their begins.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from history_facts import Facts, identity_of
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_facts import Identity, Part, Read
    from history_reader import Op
    from history_txns import Txn

Found = tuple[str, tuple["Op | None", ...]]


def k18_take_over(facts: Facts) -> Verdict:
    """A transaction that was not prepared when a successor had taken over shows no sign of a commit that was asked for later;
    nothing that began later succeeded in it; and all full reads that began later agree about its messages."""
    fenced = {name: txn for name, txn in facts.txns.items() if txn.fenced is not None}
    if not fenced:
        return unknown("K18", "no transaction of a transactional id had a successor and was not prepared")
    delivered: dict[str, Op] = {}
    for op in facts.deliveries:
        delivered.setdefault(op.value["payload"]["txn"], op)
    bad: list[Found] = []
    for name, txn in fenced.items():
        bad += [*_late_success(txn), *_late_commit(txn, delivered.get(name))]
    bad += _changed(facts, fenced)
    if bad:
        return invalid("K18", bad[0][0], bad[0][1], len(bad))
    had_one = sum(facts.successor(txn.incarnation)[1] is not None for txn in facts.txns.values())
    spared = had_one - len(fenced)
    return valid("K18", f"{len(fenced)} transactions had a successor, {spared} more were prepared")


def _late_success(txn: Txn) -> Iterator[Found]:
    since = _taken_over(txn)
    for op in (*txn.sends, *txn.acks, *txn.prepares):
        if op.type == "ok" and op.start > since.end:
            yield f"{op.f} in transaction {txn.name} succeeded after a successor had taken over", (txn.begin, since, op)
    for op in txn.statuses:
        if op.type == "ok" and op.value["status"] == "open" and op.start > since.end:
            yield f"transaction {txn.name} was open after a successor had taken over", (txn.begin, since, op)


def _late_commit(txn: Txn, delivery: Op | None) -> Iterator[Found]:
    """The answer to a commit that began later says nothing when another one may have arrived before."""
    since = _taken_over(txn)
    if any(op.start <= since.end for op in txn.commits):
        return
    for sign in (delivery, txn.committed):
        if sign is not None:
            what = f"transaction {txn.name} is committed, and nobody had asked for that before a successor had taken over"
            yield what, (txn.begin, since, sign)


def _changed(facts: Facts, fenced: dict[str, Txn]) -> Iterator[Found]:
    """Messages that a full read has and another one has not, although both began after the take-over."""
    reads: dict[Part, list[Read]] = defaultdict(list)
    for read in facts.full_reads:
        if read.op.value.get("reader") is not None:
            reads[read.part].append(read)
    for part, of_part in reads.items():
        shown: dict[Identity, tuple[Txn, Op, Op]] = {}
        for read in of_part:
            for name, op in read.seen.items():
                txn = fenced.get(op.value["payload"]["txn"])
                if txn is not None and _taken_over(txn).end < read.op.start:
                    shown.setdefault(name, (txn, read.op, op))
        for read in of_part:
            lacks = [found for name, found in shown.items() if name not in read.seen]
            barrier = facts.blocked_from(part, read.op.start) if lacks else None
            for txn, has, op in lacks:
                since = _taken_over(txn)
                if since.end < read.op.start and barrier is not None and not barrier.hides(_placed(facts, op)):
                    what = f"a message of transaction {txn.name} came or went after a successor had taken over"
                    yield what, (txn.begin, since, has, op, read.op)


def _placed(facts: Facts, delivery: Op) -> Op:
    """The earliest operation that says where a message is: its send when that was answered, or else its delivery."""
    sends = facts.sent.get(identity_of(delivery), ())
    return next((send for send in sends if "position" in send.value), delivery)


def _taken_over(txn: Txn) -> Op:
    assert txn.fenced is not None
    return txn.fenced
