"""Messages that were confirmed: none lost (K3), none doubled (K4), transactions whole or absent (K11), and every input of a
copier with its one output (K14)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from history_acks import redelivered_after_commit
from history_facts import Facts, Identity, Part, Read, identity_of, part_of, position_of
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_facts import Barrier
    from history_reader import Op
    from history_txns import Txn

Found = tuple[str, tuple["Op | None", ...]]


def k3_lost_write(facts: Facts) -> Verdict:
    """Every confirmed message (without a transaction, or committed) is in the last full read of its partition, is not skipped
    by a reader that went further, and came to each subscription that was there and was drained."""
    expected: dict[Part, list[tuple[Op, Op]]] = defaultdict(list)
    for send in facts.sends:
        since = facts.expected(send)
        if since is not None:
            expected[part_of(send)].append((send, since))
    if not expected:
        return unknown("K3", "no message was confirmed")
    last = facts.last_reads()
    bad: list[Found] = []
    doubts: list[str] = []
    for part, sends in expected.items():
        if part not in last:
            doubts.append(f"{part} has no full read by a reader")
        else:
            _absent(facts, last[part], sends, bad, doubts)
        bad += _skipped(facts, part, sends)
        bad += _not_delivered(facts, part, sends)
    if bad:
        return invalid("K3", bad[0][0], bad[0][1], len(bad))
    if doubts:
        return unknown("K3", doubts[0])
    return valid("K3", f"{sum(map(len, expected.values()))} confirmed messages in {len(expected)} partitions")


def _absent(facts: Facts, read: Read, sends: list[tuple[Op, Op]], bad: list[Found], doubts: list[str]) -> None:
    barrier = facts.blocked_from(read.part, read.op.start)
    for send, since in sends:
        if identity_of(send) in read.seen:
            continue
        if max(send.end, since.end) >= read.op.start:
            doubts.append(f"the last full read of {read.part} began before {identity_of(send)} was confirmed")
        elif barrier.hides(send):
            doubts.append(f"a transaction may have been open in {read.part} during its last full read")
        else:
            bad.append(("a confirmed message is absent from the last full read of its partition", (send, since, read.op)))


def _skipped(facts: Facts, part: Part, sends: list[tuple[Op, Op]]) -> Iterator[Found]:
    for start in facts.by_kind["reader"]:
        if part_of(start) != part or start.value["start"] != "earliest":
            continue
        read = facts.by_reader.get((part, start.value["reader"]), [])
        read = [op for op in read if op.process == start.process]
        if not read:
            continue
        highest = max(read, key=position_of)
        seen = {identity_of(op) for op in read}
        for send, since in sends:
            if position_of(send) < position_of(highest) and identity_of(send) not in seen:
                yield f"reader {start.value['reader']} passed a confirmed message", (start, send, since, highest)


def _not_delivered(facts: Facts, part: Part, sends: list[tuple[Op, Op]]) -> Iterator[Found]:
    drained: dict[str, Read] = {}
    for read in facts.full_reads:
        if read.part == part and read.op.value.get("reader") is None:
            drained[read.op.value["subscription"]] = read
    for subscription, read in drained.items():
        created = min(
            (op for op in facts.by_kind["subscribe"] if part_of(op) == part and op.value["subscription"] == subscription),
            key=lambda op: op.end,
            default=None,
        )
        if created is None or (part, subscription) in facts.moved:
            continue
        barrier = facts.blocked_from(part, read.op.start)
        came = {identity_of(op) for op in facts.by_subscription.get((part, subscription), [])}
        for send, since in sends:
            early = created.value["initial"] != "earliest" and send.start <= created.end
            late = max(send.end, since.end) >= read.op.start
            if early or late or identity_of(send) in came or barrier.hides(send):
                continue
            yield f"subscription {subscription} was drained and never got a confirmed message", (created, send, since, read.op)


def k4_duplicate(facts: Facts) -> Verdict:
    """A message has one position, and does not come again when its acknowledgement is in force."""
    placed: dict[Identity, Op] = {}
    bad: list[Found] = []
    allowed = set(facts.meta.get("duplicates_allowed", ()))
    for op in [*facts.sends, *facts.deliveries]:
        if "position" not in op.value:
            continue
        before = placed.setdefault(identity_of(op), op)
        if (part_of(before), position_of(before)) == (part_of(op), position_of(op)):
            continue
        if op.value["payload"]["txn"] is None and op.value["topic"] in allowed:
            continue  # the run says that the topic does not look for duplicates
        bad.append(("one message has two positions", (before, op)))
    bad += redelivered_after_commit(facts)
    if bad:
        return invalid("K4", bad[0][0], bad[0][1], len(bad))
    if not placed:
        return unknown("K4", "no position of a message is known")
    return valid("K4", f"{len(placed)} messages")


def k11_torn(facts: Facts) -> Verdict:
    """A committed transaction is seen whole, an aborted one not at all, one of unknown outcome whole or not at all."""
    last = facts.last_reads()
    bad: list[Found] = []
    doubts: list[str] = []
    judged = 0
    barriers: dict[Part, Barrier] = {}
    for txn in facts.txns.values():
        if not txn.sends:
            continue
        parts = {(topic, partition) for topic, partition in txn.sends[0].value["payload"]["parts"]}
        parts |= {part_of(send) for send in txn.sends}
        unread = sorted(parts - last.keys())
        if unread:
            doubts.append(f"{unread[0]} has no full read by a reader, and transaction {txn.name} wrote there")
            continue
        judged += 1
        for part in parts - barriers.keys():
            barriers[part] = facts.blocked_from(part, last[part].op.start)
        _judge_whole(txn, [last[part] for part in sorted(parts)], barriers, bad, doubts)
    if bad:
        return invalid("K11", bad[0][0], bad[0][1], len(bad))
    if doubts:
        return unknown("K11", doubts[0])
    if not judged:
        return unknown("K11", "no transaction sent a message")
    return valid("K11", f"{judged} transactions")


def _judge_whole(txn: Txn, reads: list[Read], barriers: dict[Part, Barrier], bad: list[Found], doubts: list[str]) -> None:
    seen = [op for send in txn.sends for read in reads if (op := read.seen.get(identity_of(send))) is not None]
    # A message that the client never noted as sent is judged too: the payloads say how many there are.
    count = txn.sends[0].value["payload"]["n"]
    present = {op.value["payload"]["i"] for op in seen}
    if txn.aborted is not None:
        if present:
            what = f"transaction {txn.name} is aborted, and {len(present)} of its messages are there"
            bad.append((what, (*txn.shows_abort(), txn.sends[0], seen[0], *(read.op for read in reads))))
        return
    if len(present) == count or (not present and txn.committed is None):
        return
    missing = [send for send in txn.sends if send.value["payload"]["i"] not in present]
    gone = {part_of(send): send for send in missing}
    what = f"transaction {txn.name} has {len(present)} of {count} messages"
    for read in reads:
        since = txn.committed
        late = since is not None and since.end >= read.op.start
        if late or (read.part in gone and _may_hide(barriers[read.part], gone[read.part])):
            doubts.append(f"{what}, but a transaction may have been open in {read.part} during its last full read")
            return
    witness = (txn.begin, txn.committed, *(read.op for read in reads), *txn.sends, *seen[:1])
    bad.append((f"{what}, and no older transaction can be open", witness))


def _may_hide(barrier: Barrier, send: Op) -> bool:
    if "position" in send.value:
        return barrier.hides(send)
    return barrier.position is not None or send.end >= barrier.since_ns


def k14_exactly_once(facts: Facts) -> Verdict:
    """Each message of a hop's inputs has exactly one message among its outputs that names it, and outputs name nothing else."""
    hops = facts.meta.get("hops")
    if not hops:
        return unknown("K14", "the meta event names no hops")
    last = facts.last_reads()
    bad: list[Found] = []
    judged = 0
    for hop in hops:
        reads = {}
        for side in ("from", "to"):
            parts = {part for part in _all_parts(facts) if part[0] in hop[side]}
            unread = sorted(parts - last.keys())
            if unread or not parts:
                return unknown("K14", f"{(unread or hop[side])[0]} has no full read by a reader")
            reads[side] = [last[part] for part in sorted(parts)]
        judged += _judge_hop(hop, reads["from"], reads["to"], bad)
    if bad:
        return invalid("K14", bad[0][0], bad[0][1], len(bad))
    if not judged:
        return unknown("K14", "there was nothing to copy")
    return valid("K14", f"{judged} inputs in {len(hops)} hops")


def _all_parts(facts: Facts) -> set[Part]:
    found = set(facts.sends_by_part)
    for f in ("subscribe", "reader", "final_read"):
        found |= {part_of(op) for op in facts.by_kind[f]}
    return found


def _judge_hop(hop: dict[str, list[str]], sources: list[Read], targets: list[Read], bad: list[Found]) -> int:
    inputs = {identity: op for read in sources for identity, op in read.seen.items()}
    made: dict[Identity, Op] = {}
    read_ops = [read.op for read in (*sources, *targets)]
    for read in targets:
        for op in read.seen.values():
            for producer, seq in op.value["payload"]["inputs"]:
                name = (producer, seq)
                if name not in inputs:
                    bad.append((f"an output names the input {name}, which is not in {hop['from']}", (op, *read_ops)))
                elif name in made:
                    bad.append((f"input {name} has two outputs", (inputs[name], made[name], op, *read_ops)))
                made[name] = op
    for name, op in inputs.items():
        if name not in made:
            bad.append((f"input {name} has no output in {hop['to']}", (op, *read_ops)))
    return len(inputs)
