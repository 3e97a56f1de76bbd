"""What readers and consumers may see: no aborted message (K1), none before its commit (K2), one payload at a position (K5),
the order of the producer (K6), and everything that was committed before they began (K7)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from history_facts import Facts, Identity, Part, Position, identity_of, part_of, position_of
from history_format import payload_crc
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from history_reader import Op


def k1_aborted_read(facts: Facts) -> Verdict:
    """No message of an aborted transaction is delivered."""
    bad: list[tuple[Op, *tuple[Op | None, ...]]] = []
    for op in facts.deliveries:
        txn = facts.txns.get(op.value["payload"]["txn"])
        if txn is not None and txn.aborted is not None:
            bad.append((op, *txn.shows_abort()))
    if bad:
        delivery, *_ = bad[0]
        what = f"a message of transaction {delivery.value['payload']['txn']} was delivered, and the transaction is aborted"
        return invalid("K1", what, bad[0], len(bad))
    if not facts.deliveries:
        return unknown("K1", "nothing was delivered")
    if not any(txn.aborted is not None and txn.sends for txn in facts.txns.values()):
        return unknown("K1", "no transaction that sent something is known to be aborted")
    return valid("K1", f"{len(facts.deliveries)} deliveries")


def k2_dirty_read(facts: Facts) -> Verdict:
    """No message of a transaction is delivered before somebody asked to commit it."""
    bad: list[tuple[Op, Op | None]] = []
    transactional = 0
    for op in facts.deliveries:
        name = op.value["payload"]["txn"]
        if name is None:
            continue
        transactional += 1
        txn = facts.txns.get(name)
        first = min(txn.commits, key=lambda commit: commit.start, default=None) if txn is not None else None
        if first is None or op.start < first.start:
            bad.append((op, first))
    if bad:
        op, first = bad[0]
        asked = "nobody asked to commit it" if first is None else "its commit was asked for later"
        return invalid("K2", f"a message of transaction {op.value['payload']['txn']} was delivered; {asked}", bad[0], len(bad))
    if not transactional:
        return unknown("K2", "no message of a transaction was delivered")
    return valid("K2", f"{transactional} deliveries of transactional messages")


def k5_inconsistent_position(facts: Facts) -> Verdict:
    """A position names one payload for ever, and that payload was sent, to this partition, as it came."""
    if not facts.deliveries:
        return unknown("K5", "nothing was delivered")
    held: dict[tuple[Part, Position], Op] = {}
    sure: dict[Identity, Op] = {}
    bad: list[tuple[str, tuple[Op, ...]]] = []
    for op in [*facts.sends, *facts.deliveries]:
        payload = op.value["payload"]
        if "position" in op.value:
            before = held.setdefault((part_of(op), position_of(op)), op)
            if before is not op and before.value["payload"] != payload:
                bad.append(("one position has two payloads", (before, op)))
        if op.f == "send":
            sure.setdefault(identity_of(op), op)
            continue
        send = sure.get(identity_of(op))
        if payload_crc(payload) != payload["crc"]:
            bad.append(("a payload came with a wrong CRC", (op,)))
        elif send is None:
            bad.append(("a message was delivered that nobody sent", (op,)))
        elif send.value["payload"] != payload:
            bad.append(("a message came with another payload than it was sent with", (send, op)))
        elif part_of(send) != part_of(op):
            bad.append(("a message was delivered from a partition to which nobody sent it", (send, op)))
    if bad:
        return invalid("K5", bad[0][0], bad[0][1], len(bad))
    return valid("K5", f"{len(held)} positions")


def k6_order(facts: Facts) -> Verdict:
    """Per producer and partition the sequence rises with the position, and a reader gets rising positions."""
    placed: dict[tuple[Part, str], dict[Position, Op]] = defaultdict(dict)
    for op in [*facts.sends, *facts.deliveries]:
        if "position" in op.value:
            placed[part_of(op), op.value["payload"]["producer"]].setdefault(position_of(op), op)
    pairs = 0
    bad: list[tuple[str, tuple[Op, Op]]] = []
    for (part, producer), ops in placed.items():
        ordered = [ops[position] for position in sorted(ops)]
        pairs += len(ordered) - 1
        for low, high in pairwise(ordered):
            if low.value["payload"]["seq"] > high.value["payload"]["seq"]:
                bad.append((f"messages of {producer} in {part} are not in the order in which they were sent", (low, high)))
    for (_, reader), ops_read in facts.by_reader.items():
        for before, after in pairwise(ops_read):
            if before.process == after.process and position_of(before) > position_of(after):
                bad.append((f"reader {reader} went back", (before, after)))
    if bad:
        return invalid("K6", bad[0][0], bad[0][1], len(bad))
    if not pairs:
        return unknown("K6", "no producer sent two messages to one partition")
    return valid("K6", f"{pairs} neighbours")


def k7_commit_visibility(facts: Facts) -> Verdict:
    """A full read that began after a commit was answered sees it, unless an older transaction may be open; and the last
    position that readers are told never decreases without a restart."""
    bad: list[tuple[str, tuple[Op | None, ...]]] = _decreasing(facts)
    required = 0
    for read in facts.full_reads:
        if read.op.value.get("reader") is None:
            continue  # a subscription shows only what was not acknowledged
        barrier = facts.blocked_from(read.part, read.op.start)
        for send in facts.sends_by_part[read.part]:
            since = facts.expected(send)
            if since is None or max(since.end, send.end) >= read.op.start or barrier.hides(send):
                continue
            required += 1
            if identity_of(send) not in read.seen:
                what = "a full read began after the message was confirmed, and does not have it"
                bad.append((what, (send, since, read.op)))
    if bad:
        return invalid("K7", bad[0][0], bad[0][1], len(bad))
    if not required:
        return unknown("K7", "no full read by a reader began after something was confirmed")
    return valid("K7", f"{required} times a message was required and seen")


def _decreasing(facts: Facts) -> list[tuple[str, tuple[Op | None, ...]]]:
    """Pairs of operations that show that the last readable position of a partition went back."""
    found: list[tuple[str, tuple[Op | None, ...]]] = []
    kills = [op.start for op in facts.by_kind["kill"]]
    told: dict[Part, list[Op]] = defaultdict(list)
    for op in [*facts.by_kind["last_id"], *(op for op in facts.deliveries if facts.by_kind["last_id"])]:
        if op.type == "ok":
            told[part_of(op)].append(op)
    for ops in told.values():
        highest: Op | None = None
        waiting = sorted(ops, key=lambda op: op.end)
        next_told = 0
        for op in sorted((op for op in ops if op.f == "last_id"), key=lambda op: op.start):
            while next_told < len(waiting) and waiting[next_told].end < op.start:
                other = waiting[next_told]
                next_told += 1
                if highest is None or position_of(other) > position_of(highest):
                    highest = other
            if highest is None or position_of(op) >= position_of(highest):
                continue
            if not any(highest.start <= kill <= op.end for kill in kills):
                found.append(("the last position that may be read went back without a restart", (highest, op)))
    return found
