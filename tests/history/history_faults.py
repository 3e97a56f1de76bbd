"""Faults of the kinds that the checks must find, each put into a history that was valid.

A fault is a function of the operations (copies, which it may change) and a source of randomness. It returns the changed
operations, or None when the history has no place for it.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import TYPE_CHECKING

import history_faults_of_fencing as fencing
from history_changes import copied, delivered, end_of
from history_facts import Facts, identity_of, part_of, position_of
from history_format import payload_crc
from history_reader import NEVER, History, Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from history_changes import Ops
    from history_txns import Txn


def aborted_read(ops: Ops, rng: random.Random) -> Ops | None:
    facts = Facts(History(ops))
    places = [s for s in facts.sends if s.type == "ok" and s.value["txn"] and facts.txns[s.value["txn"]].aborted]
    return [*ops, delivered(rng.choice(places), end_of(ops))] if places else None


def read_of_open(ops: Ops, rng: random.Random) -> Ops | None:
    facts = Facts(History(ops))
    places = [(send, txn.commits[0]) for txn in facts.txns.values() if txn.commits for send in txn.sends if send.type == "ok"]
    places = [(send, commit) for send, commit in places if send.end < commit.start]
    if not places:
        return None
    send, commit = rng.choice(places)
    return [*ops, delivered(send, rng.randrange(send.end, commit.start))]


def _confirmed(facts: Facts) -> list[Op]:
    return [send for send in facts.sends if facts.expected(send) is not None]


def lost(ops: Ops, rng: random.Random) -> Ops | None:
    sends = _confirmed(Facts(History(ops)))
    if not sends:
        return None
    gone = identity_of(rng.choice(sends))
    return [op for op in ops if op.f != "deliver" or identity_of(op) != gone]


def skipped(ops: Ops, rng: random.Random) -> Ops | None:
    """One reader passes a message that all others see."""
    facts = Facts(History(ops))
    confirmed = {identity_of(send) for send in _confirmed(facts)}
    started = {op.value["reader"] for op in facts.by_kind["reader"]}
    places = [
        op
        for (_, reader), found in facts.by_reader.items()
        if reader in started
        for op in found[:-1]
        if identity_of(op) in confirmed and position_of(op) < position_of(found[-1])
    ]
    if not places:
        return None
    gone = rng.choice(places)
    return [op for op in ops if op is not gone]


def not_delivered(ops: Ops, rng: random.Random) -> Ops | None:
    """A message never reaches a subscription, and nobody notices an acknowledgement of it."""
    sends = [send for send in _confirmed(Facts(History(ops))) if send.value["topic"] == "A"]
    if not sends:
        return None
    gone = identity_of(rng.choice(sends))
    return [op for op in ops if op.f != "deliver" or op.value["subscription"] is None or identity_of(op) != gone]


def two_positions(ops: Ops, rng: random.Random) -> Ops | None:
    places = [op for op in ops if op.f == "deliver"]
    if not places:
        return None
    return [*ops, delivered(rng.choice(places), end_of(ops), position=[7, 1_000_000, -1])]


def came_again(ops: Ops, rng: random.Random) -> Ops | None:
    facts = Facts(History(ops))
    acks = [ack for txn in facts.txns.values() if txn.committed for ack in txn.acks if ack.type == "ok"]
    return _delivered_again(ops, facts, rng.choice(acks)) if acks else None


def came_again_after_a_plain_ack(ops: Ops, rng: random.Random) -> Ops | None:
    """The plain acknowledgement of what an aborted transaction had acknowledged is lost, as in apache/pulsar#26616."""
    facts = Facts(History(ops))
    acks = [ack for ack in facts.by_kind["ack"] if ack.type == "ok" and ack.value["txn"] is None]
    return _delivered_again(ops, facts, rng.choice(acks)) if acks else None


def _delivered_again(ops: Ops, facts: Facts, ack: Op) -> Ops:
    first = next(
        op for op in facts.deliveries if op.value["position"] == ack.value["positions"][0] and part_of(op) == part_of(ack)
    )
    end = end_of(ops)
    where = {"topic": ack.value["topic"], "partition": -1, "subscription": "s"}
    subscribe = Op(
        "injected", "subscribe", "ok", where | {"consumer": "new", "mode": "Shared", "initial": "earliest"}, end, end
    )
    return [*ops, subscribe, delivered(first, end + 2, subscription="s", consumer="new", reader=None)]


def swapped_payload(ops: Ops, rng: random.Random) -> Ops | None:
    found = [op for op in ops if op.f == "deliver"]
    noted = Counter((part_of(op), position_of(op)) for op in ops if op.f in ("send", "deliver") and "position" in op.value)
    twice = [op for op in found if noted[part_of(op), position_of(op)] > 1]
    if not twice or len({identity_of(op) for op in found}) < 2:
        return None
    one = rng.choice(twice)
    other = rng.choice([op for op in found if identity_of(op) != identity_of(one)])
    one.value["payload"] = copy.deepcopy(other.value["payload"])
    return ops


def flipped_payload(ops: Ops, rng: random.Random) -> Ops | None:
    found = [op for op in ops if op.f == "deliver"]
    if not found:
        return None
    rng.choice(found).value["payload"]["n"] += 1
    return ops


def invented(ops: Ops, rng: random.Random) -> Ops | None:
    found = [op for op in ops if op.f == "send" and op.type == "ok" and op.value["txn"] is None]
    if not found:
        return None
    gone = rng.choice(found)
    kept = [op for op in ops if op is not gone]
    return kept if any(op.f == "deliver" and identity_of(op) == identity_of(gone) for op in kept) else None


def wrong_order(ops: Ops, rng: random.Random) -> Ops | None:
    facts = Facts(History(ops))
    places: dict[object, list[Op]] = {}
    for send in _confirmed(facts):
        places.setdefault((part_of(send), send.process), []).append(send)
    pairs = [found for found in places.values() if len(found) > 1]
    if not pairs:
        return None
    one, two = rng.sample(rng.choice(pairs), 2)
    swap = {tuple(a.value["position"]): list(b.value["position"]) for a, b in ((one, two), (two, one))}
    for op in ops:
        if op.f in ("send", "deliver") and part_of(op) == part_of(one) and "position" in op.value:
            op.value["position"] = swap.get(tuple(op.value["position"]), op.value["position"])
    return ops


def reader_went_back(ops: Ops, rng: random.Random) -> Ops | None:
    places = [found for found in Facts(History(ops)).by_reader.values() if len(found) > 1]
    if not places:
        return None
    first, *_, last = rng.choice(places)
    again = delivered(first, end_of(ops), reader=last.value["reader"])
    again.process = last.process
    return [*ops, again]


def late_visibility(ops: Ops, rng: random.Random) -> Ops | None:
    """A full read in the middle lacks the messages from some position on, as if they came later."""
    facts = Facts(History(ops))
    places = []
    for read in facts.full_reads:
        if read.op.value.get("reader") is None:
            continue
        barrier = facts.blocked_from(read.part, read.op.start)
        for send in facts.sends_by_part[read.part]:
            since = facts.expected(send)
            if (
                since
                and max(since.end, send.end) < read.op.start
                and not barrier.hides(send)
                and identity_of(send) in read.seen
            ):
                places.append((read, position_of(send)))
    if not places:
        return None
    read, position = rng.choice(places)
    gone = {id(op) for op in facts.by_reader[read.part, read.op.value["reader"]] if position_of(op) >= position}
    return [op for op in ops if id(op) not in gone]


def last_id_went_back(ops: Ops, rng: random.Random) -> Ops | None:
    end = end_of(ops)
    where = {"topic": "C", "partition": -1, "reader": "r"}
    one = Op("injected", "last_id", "ok", {**where, "position": [7, 1_000_001, 3]}, end, end + 1)
    two = Op("injected", "last_id", "ok", {**where, "position": [7, 1_000_001, rng.randint(-1, 2)]}, end + 2, end + 3)
    return [*ops, one, two]


def settled_twice(ops: Ops, rng: random.Random) -> Ops | None:
    """Fault 1 of the whole-entry rule: two committed transactions acknowledged the same message."""
    facts = Facts(History(ops))
    committed = [txn for txn in facts.txns.values() if txn.committed]
    acks = [ack for txn in committed for ack in txn.acks if ack.type == "ok"]
    if len(committed) < 2 or not acks:
        return None
    ack = rng.choice(acks)
    other = rng.choice([txn for txn in committed if txn.name != ack.value["txn"]])
    again = copied([ack])[0]
    again.value["txn"] = other.name
    assert other.committed is not None
    again.start = again.end = other.committed.start - 1
    return [*ops, again]


def not_back(ops: Ops, rng: random.Random) -> Ops | None:
    """A message that an aborted transaction held does not come again."""
    facts = Facts(History(ops))
    drain = next(read.op.start for read in facts.full_reads if read.op.value.get("reader") is None)
    ended = [txn for txn in facts.txns.values() if txn.aborted and txn.aborted.end < drain]
    acks = [ack for txn in ended for ack in txn.acks if ack.type == "ok" and ack.value["topic"] == "A"]
    if not acks:
        return None
    held = rng.choice(acks)
    position = held.value["positions"][0]
    kept = []
    for op in ops:
        if op.f == "ack" and op is not held and op.value["positions"] == [position]:
            continue
        if op.f == "deliver" and op.value["subscription"] == "s" and op.value["position"] == position and op.start > held.start:
            continue
        kept.append(op)
    return kept


def _of_copiers(txn: Txn) -> list[Op]:
    """Its acknowledgements on A, where nobody acknowledges plainly."""
    return [ack for ack in txn.acks if ack.type == "ok" and ack.value["topic"] == "A"]


def pending_taken(ops: Ops, rng: random.Random) -> Ops | None:
    """A second open transaction may acknowledge what is pending in the first."""
    facts = Facts(History(ops))
    places = []
    for txn in facts.txns.values():
        places += [(ack, txn) for ack in _of_copiers(txn) if ack.end + 2 < txn.end_begins_ns()]
    if not places:
        return None
    ack, txn = rng.choice(places)
    moment = rng.randrange(ack.end + 1, txn.end_begins_ns() - 1)
    begin = Op("injected", "begin", "ok", {"txn": "injected/0", "timeout_ms": 60_000}, ack.end, ack.end)
    again = copied([ack])[0]
    again.value["txn"] = "injected/0"
    again.start = again.end = moment
    again.process = "injected"
    return [*ops, begin, again]


def taken_twice(ops: Ops, rng: random.Random) -> Ops | None:
    """A transaction that was given a message twice may acknowledge both."""
    facts = Facts(History(ops))
    places = [ack for txn in facts.txns.values() for ack in _of_copiers(txn) if ack.end + 2 < txn.end_begins_ns()]
    if not places:
        return None
    again = copied([rng.choice(places)])[0]
    again.start = again.end = again.end + 1
    again.process = "injected"
    return [*ops, again]


def pending_given(ops: Ops, rng: random.Random) -> Ops | None:
    """A new consumer gets what is pending."""
    facts = Facts(History(ops))
    places = []
    for txn in facts.txns.values():
        places += [(ack, txn) for ack in _of_copiers(txn) if ack.end + 3 < txn.end_begins_ns()]
    if not places:
        return None
    ack, _ = rng.choice(places)
    first = next(
        op for op in facts.deliveries if op.value["position"] == ack.value["positions"][0] and part_of(op) == part_of(ack)
    )
    value = {"topic": "A", "partition": -1, "subscription": "s", "consumer": "new", "mode": "Shared", "initial": "earliest"}
    subscribe = Op("injected", "subscribe", "ok", value, ack.end + 1, ack.end + 1)
    return [*ops, subscribe, delivered(first, ack.end + 2, subscription="s", consumer="new", reader=None)]


def zombie(ops: Ops, rng: random.Random) -> Ops | None:
    opened = [op for op in ops if op.f == "open" and op.type == "ok" and op.value.get("identity", ["", "", 0])[2] > 1]
    if not opened:
        return None
    newer = rng.choice(opened)
    identity = ["transactional_id", "z", rng.randrange(newer.value["identity"][2])]
    start = newer.end + 1
    return [*ops, Op("injected", "begin", "ok", {"txn": "injected/z", "identity": identity}, start, start + 1)]


def torn(ops: Ops, rng: random.Random) -> Ops | None:
    """One message of a committed transaction is nowhere."""
    facts = Facts(History(ops))
    txns = [txn for txn in facts.txns.values() if txn.committed and len(txn.sends) > 1]
    if not txns:
        return None
    gone = identity_of(rng.choice(rng.choice(txns).sends))
    return [op for op in ops if op.f != "deliver" or identity_of(op) != gone]


def half_unknown(ops: Ops, rng: random.Random) -> Ops | None:
    """The same, and the client never learned the outcome."""
    facts = Facts(History(ops))
    txns = [txn for txn in facts.txns.values() if txn.committed and len(txn.sends) > 1 and not txn.prepares]
    if not txns:
        return None
    txn = rng.choice(txns)
    gone = identity_of(rng.choice(txn.sends))
    for op in (*txn.commits, *txn.aborts, *txn.statuses):
        op.type, op.end = "info", NEVER
    return [op for op in ops if op.f != "deliver" or identity_of(op) != gone]


def changed_outcome(ops: Ops, rng: random.Random) -> Ops | None:
    txns = [txn for txn in Facts(History(ops)).txns.values() if txn.committed or txn.aborted]
    if not txns:
        return None
    txn = rng.choice(txns)
    end = end_of(ops)
    status = rng.choice(("open", "aborted" if txn.committed else "committed"))
    return [*ops, Op("injected", "status", "ok", {"txn": txn.name, "status": status}, end, end + 1)]


def both_ends(ops: Ops, rng: random.Random) -> Ops | None:
    txns = [txn for txn in Facts(History(ops)).txns.values() if txn.committed and txn.begin]
    if not txns:
        return None
    txn = rng.choice(txns)
    assert txn.begin is not None
    return [*ops, Op("injected", "abort", "ok", {"txn": txn.name}, txn.begin.end, end_of(ops))]


def information_goes_round(ops: Ops, rng: random.Random) -> Ops | None:
    """The writer of an input names the output that was made from it."""
    facts = Facts(History(ops))
    edges = []
    for send in facts.sends:
        for name in send.value["payload"]["inputs"]:
            edges += [(origin, send) for origin in facts.sent.get(tuple(name), ())]
    if not edges:
        return None
    origin, output = rng.choice(edges)
    for op in ops:
        if op.f in ("send", "deliver") and identity_of(op) == identity_of(origin):
            payload = op.value["payload"]
            payload["inputs"] = [list(identity_of(output))]
            payload["crc"] = payload_crc(payload)
    return ops


def no_output(ops: Ops, rng: random.Random) -> Ops | None:
    outputs = [op for op in ops if op.f == "deliver" and op.value["topic"] == "B"]
    if not outputs:
        return None
    gone = identity_of(rng.choice(outputs))
    return [op for op in ops if op.f != "deliver" or identity_of(op) != gone]


def two_outputs(ops: Ops, rng: random.Random) -> Ops | None:
    """A second output names the same input: the doubling that a wrong acknowledgement causes."""
    reads = [r for r in Facts(History(ops)).last_reads().values() if r.part[0] == "B" and r.seen]
    if not reads:
        return None
    read = rng.choice(reads)
    one = rng.choice(list(read.seen.values()))
    two = delivered(one, read.op.end, reader=read.op.value["reader"], position=[7, 1_000_000, -1])
    two.value["payload"]["seq"] = 1_000_000
    two.value["payload"]["crc"] = payload_crc(two.value["payload"])
    return [*ops, two]


def foreign_input(ops: Ops, rng: random.Random) -> Ops | None:
    found = [op for op in ops if op.f == "deliver" and op.value["topic"] == "B"]
    if not found:
        return None
    changed = identity_of(rng.choice(found))
    for op in found:
        if identity_of(op) == changed:
            op.value["payload"]["inputs"] = [["nobody", 1]]
    return ops


def never_answered(ops: Ops, rng: random.Random) -> Ops | None:
    op = Op("injected", "begin", "info", {"txn": "injected/0"}, rng.choice(ops).start, NEVER)
    later = end_of(ops) + 60_000_000_000
    return [*ops, op, Op("injected", "metrics", "info", {"source": "broker", "values": {"rss": 1}}, later, later)]


def answered_late(ops: Ops, _: random.Random) -> Ops | None:
    end = end_of(ops)
    return [*ops, Op("injected", "begin", "ok", {"txn": "injected/0"}, end, end + 21_000_000_000)]


def open_for_ever(ops: Ops, rng: random.Random) -> Ops | None:
    txns = [txn.name for txn in Facts(History(ops)).txns.values() if txn.begin is not None and not txn.prepares]
    if not txns:
        return None
    later = end_of(ops) + 5_000_000_000
    value = {"txn": rng.choice(txns), "status": "open"}
    return [*ops, Op("injected", "status", "ok", value, later, later + 1)]


def too_much(ops: Ops, rng: random.Random) -> Ops | None:
    end = end_of(ops)
    return [*ops, Op("injected", "metrics", "info", {"source": "broker", "values": {"rss": rng.choice((6, 11))}}, end, end)]


FAULTS: dict[str, tuple[Callable[[Ops, random.Random], Ops | None], ...]] = {
    "K1": (aborted_read,),
    "K2": (read_of_open,),
    "K3": (lost, skipped, not_delivered),
    "K4": (two_positions, came_again, came_again_after_a_plain_ack),
    "K5": (swapped_payload, flipped_payload, invented),
    "K6": (wrong_order, reader_went_back),
    "K7": (late_visibility, last_id_went_back),
    "K8": (settled_twice, not_back, came_again, came_again_after_a_plain_ack),
    "K9": (pending_taken, taken_twice, pending_given),
    "K10": (zombie,),
    "K11": (torn, half_unknown),
    "K12": (changed_outcome, both_ends),
    "K13": (information_goes_round,),
    "K14": (no_output, two_outputs, foreign_input),
    "K15": (never_answered, answered_late, open_for_ever, too_much),
    "K18": fencing.FAULTS,
}
