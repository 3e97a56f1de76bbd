"""Faults of take-overs of a transactional id: what a predecessor began does not end with the answer to its successor (K18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from history_changes import delivered, end_of
from history_facts import Facts, identity_of, part_of
from history_reader import History, Op

if TYPE_CHECKING:
    import random

    from history_changes import Ops
    from history_facts import Part, Read
    from history_txns import Txn


def _fenced(facts: Facts) -> list[Txn]:
    return [txn for txn in facts.txns.values() if txn.fenced is not None]


def _later(ops: Ops, rng: random.Random, f: str) -> Ops | None:
    """Something that a zombie asked for in what it had open when its successor came succeeds after all."""
    facts = Facts(History(ops))
    of_each = ((txn, {"send": txn.sends, "ack": txn.acks, "commit": txn.commits}[f]) for txn in _fenced(facts))
    places = [(txn, op) for txn, ops_of in of_each for op in ops_of if f != "commit" or len(ops_of) == 1]
    if not places:
        return None
    txn, op = rng.choice(places)
    assert txn.fenced is not None
    op.type, op.start = "ok", txn.fenced.end + 1
    op.end = op.start + 1
    if op.f == "send":
        op.value["position"] = [7, 1_000_000, -1]
    return ops


def zombies_commit_counts(ops: Ops, rng: random.Random) -> Ops | None:
    """A zombie commits what its successor has aborted, and it is shown."""
    found = [txn for txn in _fenced(Facts(History(ops))) if not txn.commits and any(op.type == "ok" for op in txn.sends)]
    if not found:
        return None
    txn = rng.choice(found)
    end = end_of(ops)
    commit = Op("injected", "commit", "info", {"txn": txn.name}, end, end + 1)
    return [*ops, commit, delivered(next(op for op in txn.sends if op.type == "ok"), end + 2)]


def zombies_send_is_stored(ops: Ops, rng: random.Random) -> Ops | None:
    return _later(ops, rng, "send")


def zombies_ack_is_taken(ops: Ops, rng: random.Random) -> Ops | None:
    return _later(ops, rng, "ack")


def zombies_commit_succeeds(ops: Ops, rng: random.Random) -> Ops | None:
    return _later(ops, rng, "commit")


def _right_after(ops: Ops, rng: random.Random, f: str, **said: str) -> Ops | None:
    """One thing more that succeeds, in a transaction of a predecessor, right after the take-over."""
    found = _fenced(Facts(History(ops)))
    if not found:
        return None
    txn = rng.choice(found)
    assert txn.fenced is not None
    start = txn.fenced.end + 1
    return [*ops, Op("injected", f, "ok", {"txn": txn.name, **said}, start, start + 1)]


def zombie_prepares(ops: Ops, rng: random.Random) -> Ops | None:
    return _right_after(ops, rng, "prepare")


def open_after_the_take_over(ops: Ops, rng: random.Random) -> Ops | None:
    return _right_after(ops, rng, "status", status="open")


def changed_after_the_take_over(ops: Ops, rng: random.Random) -> Ops | None:
    """A message of a predecessor is in one full read after the take-over and not in another one."""
    facts = Facts(History(ops))
    reads: dict[Part, list[Read]] = {}
    for read in facts.full_reads:
        if read.op.value.get("reader") is not None:
            reads.setdefault(read.part, []).append(read)
    places = []
    for txn in _fenced(facts):
        assert txn.fenced is not None
        for send in txn.sends:
            later = [read for read in reads[part_of(send)] if read.op.start > txn.fenced.end] if send.type == "ok" else []
            sure = [read for read in later if not facts.blocked_from(read.part, read.op.start).hides(send)]
            places += [(read, send) for read in sure if len(sure) > 1]
    if not places:
        return None
    read, send = rng.choice(places)
    name, reader = identity_of(send), read.op.value["reader"]
    if name not in read.seen:
        return [*ops, delivered(send, read.op.end, reader=reader)]
    gone = {id(op) for op in facts.by_reader[read.part, reader] if identity_of(op) == name}
    return [op for op in ops if id(op) not in gone]


FAULTS = (
    zombies_commit_counts,
    zombies_commit_succeeds,
    zombies_send_is_stored,
    zombies_ack_is_taken,
    zombie_prepares,
    open_after_the_take_over,
    changed_after_the_take_over,
)
