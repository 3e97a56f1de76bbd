"""What acknowledgements promise: settled after the commit, back after the abort (K8), and nobody else's while the transaction
is open (K9). A plain one settles when it is answered, whatever became of those in transactions before it.

Only individual acknowledgements are judged for exclusion; a cumulative one is judged by what comes after its commit. A
subscription that was moved by a seek is left out, because what was settled there may come again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from history_facts import Facts, Part, Position, Txn, part_of, position_of
from history_reader import NEVER
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_reader import Op

Found = tuple[str, tuple["Op | None", ...]]
Place = tuple[Part, str, Position]  # partition, subscription, position


def _places(ack: Op) -> Iterator[Place]:
    part, subscription = part_of(ack), ack.value["subscription"]
    for ledger, entry, index in ack.value["positions"]:
        yield part, subscription, (ledger, entry, index)


class _Acks:
    """The individual acknowledgements of each place, and the cumulative ones of each subscription."""

    def __init__(self, facts: Facts) -> None:
        self.individual: dict[Place, list[Op]] = defaultdict(list)
        self.cumulative: dict[tuple[Part, str], list[tuple[Position, Op]]] = defaultdict(list)
        for ack in facts.by_kind["ack"]:
            key = part_of(ack), ack.value["subscription"]
            if key in facts.moved:
                continue
            for place in _places(ack):
                if ack.value["kind"] == "cumulative":
                    self.cumulative[key].append((place[2], ack))
                else:
                    self.individual[place].append(ack)


class _Settled:
    """What is settled, each with the acknowledgement and the earliest answer that says so: to a commit, or to itself."""

    def __init__(self, facts: Facts) -> None:
        self._individual: dict[Place, tuple[Op, Op]] = {}
        cumulative: dict[tuple[Part, str], list[tuple[Position, Op, Op]]] = defaultdict(list)
        for ack in facts.by_kind["ack"]:
            plain = ack.type == "ok" and ack.value["txn"] is None
            commit = ack if plain else _commit_of(facts, ack)
            if commit is None or (part_of(ack), ack.value["subscription"]) in facts.moved:
                continue
            for place in _places(ack):
                if ack.value["kind"] == "cumulative":
                    cumulative[place[:2]].append((place[2], ack, commit))
                elif place not in self._individual or commit.end < self._individual[place][1].end:
                    self._individual[place] = (ack, commit)
        self._cumulative = {key: _rising(found) for key, found in cumulative.items()}

    def before(self, place: Place, moment_ns: int) -> tuple[Op, Op] | None:
        """The acknowledgement that settled a place before a moment, and the answer that says so."""
        found = self._individual.get(place)
        if found is not None and found[1].end < moment_ns:
            return found
        rising = self._cumulative.get(place[:2], [])
        last = bisect_left(rising, moment_ns, key=lambda item: item[0]) - 1
        if last >= 0 and rising[last][1] >= place[2]:
            return rising[last][2:]
        return None


def _rising(found: list[tuple[Position, Op, Op]]) -> list[tuple[int, Position, Op, Op]]:
    """The ends of the commits, each with the highest position that was settled until then."""
    rising: list[tuple[int, Position, Op, Op]] = []
    for position, ack, commit in sorted(found, key=lambda item: item[2].end):
        best = (position, ack, commit)
        if rising and rising[-1][1] >= position:
            best = rising[-1][1:]
        rising.append((commit.end, *best))
    return rising


def redelivered_after_commit(facts: Facts) -> Iterator[Found]:
    """Deliveries to consumers that subscribed after the message was settled."""
    settled = _Settled(facts)
    for op in facts.deliveries:
        if op.value["reader"] is not None:
            continue
        began = facts.subscribed_at(op)
        if began is None:
            continue
        found = settled.before((part_of(op), op.value["subscription"], position_of(op)), began.start)
        if found is not None:
            yield (
                "a message came again to a consumer that subscribed after its acknowledgement was in force",
                (*found, began, op),
            )


def _commit_of(facts: Facts, ack: Op) -> Op | None:
    if ack.type != "ok" or ack.value["txn"] is None:
        return None
    txn = facts.txns[ack.value["txn"]]
    return txn.committed if txn.aborted is None else None


def k8_ack_settlement(facts: Facts) -> Verdict:
    """What one committed transaction settled is not settled by another one; what is settled does not come again; what only
    aborted ones held comes again before the subscription is drained."""
    acks = _Acks(facts)
    bad = [*_settled_twice(facts, acks), *redelivered_after_commit(facts), *_not_back(facts, acks)]
    if bad:
        return invalid("K8", bad[0][0], bad[0][1], len(bad))
    settled = sum(_commit_of(facts, ack) is not None for ack in facts.by_kind["ack"])
    if not settled:
        return unknown("K8", "no transaction with an acknowledgement is known to be committed")
    if not any(read.op.value.get("reader") is None for read in facts.full_reads):
        return unknown("K8", "no subscription was drained (final_read with a subscription)")
    return valid("K8", f"{settled} committed acknowledgements")


def _settled_twice(facts: Facts, acks: _Acks) -> Iterator[Found]:
    for (_, subscription, position), found in acks.individual.items():
        if len(found) == 1:
            continue
        commits = {ack.value["txn"]: (ack, commit) for ack in found if (commit := _commit_of(facts, ack)) is not None}
        if len(commits) > 1:
            (one, one_commit), (two, two_commit), *_ = commits.values()
            what = f"two committed transactions acknowledged {position} on {subscription}"
            yield what, (one, one_commit, two, two_commit)


def _not_back(facts: Facts, acks: _Acks) -> Iterator[Found]:
    """Messages that only aborted transactions acknowledged, and that did not come again before the subscription was drained."""
    drains: dict[tuple[Part, str], Op] = {}
    for read in facts.full_reads:
        if read.op.value.get("reader") is None:
            drains[read.part, read.op.value["subscription"]] = read.op
    came: dict[Place, int] = {}
    for op in facts.deliveries:
        if op.value["reader"] is None:
            came[part_of(op), op.value["subscription"], position_of(op)] = op.start  # the last one stays
    for place, found in acks.individual.items():
        drain = drains.get(place[:2])
        if drain is None or any(position >= place[2] and ack.type != "fail" for position, ack in acks.cumulative[place[:2]]):
            continue
        ends = [_abort_of(facts, ack) for ack in found if ack.type != "fail"]
        if not ends or any(end is None or end.end >= drain.start for end in ends):
            continue
        held = max((ack for ack in found if ack.type != "fail"), key=lambda ack: ack.start)
        if came.get(place, -1) <= held.start:
            what = f"{place[2]} was held by an aborted transaction and did not come again before {place[1]} was drained"
            yield what, (held, *facts.txns[held.value["txn"]].shows_abort(), drain)


def _abort_of(facts: Facts, ack: Op) -> Op | None:
    return None if ack.value["txn"] is None else facts.txns[ack.value["txn"]].aborted


def k9_pending_exclusion(facts: Facts) -> Verdict:
    """While a message is pending in an open transaction it is not acknowledged again, by another transaction or by the same
    one, and no consumer that subscribed in the meantime gets it."""
    acks = _Acks(facts)
    spans: dict[Place, list[tuple[int, int, Op]]] = defaultdict(list)
    for place, found in acks.individual.items():
        plain = min((ack.start for ack in found if ack.value["txn"] is None and ack.type != "fail"), default=NEVER)
        for ack in found:
            if ack.type == "ok" and ack.value["txn"] is not None:
                until = min(facts.txns[ack.value["txn"]].end_begins_ns(), plain)
                if ack.end < until:
                    spans[place].append((ack.end, until, ack))
    if not spans:
        return unknown("K9", "no acknowledgement is known to have been pending (is timeout_ms in begin?)")
    bad = [*_held_twice(facts, spans), *_given_while_pending(facts, spans), *_taken_twice(facts, acks)]
    if bad:
        return invalid("K9", bad[0][0], bad[0][1], len(bad))
    return valid("K9", f"{sum(map(len, spans.values()))} pending acknowledgements")


def _held_twice(facts: Facts, spans: dict[Place, list[tuple[int, int, Op]]]) -> Iterator[Found]:
    for place, found in spans.items():
        ordered = sorted(found, key=lambda span: span[0])
        last: tuple[int, int, Op] | None = None
        for span in ordered:
            if last is not None and span[0] < last[1] and span[2].value["txn"] != last[2].value["txn"]:
                one, two = (facts.txns[ack.value["txn"]] for ack in (last[2], span[2]))
                what = f"two open transactions hold {place[2]} on {place[1]} at the same time"
                yield what, (one.begin, two.begin, last[2], span[2], *_ends(one), *_ends(two))
            if last is None or span[1] > last[1]:
                last = span


def _taken_twice(facts: Facts, acks: _Acks) -> Iterator[Found]:
    """A message that came twice and was acknowledged twice in one transaction, which then has two outputs of it."""
    for place, found in acks.individual.items():
        taken: dict[str, Op] = {}
        for ack in found:
            if ack.type != "ok" or ack.value["txn"] is None:
                continue
            first = taken.setdefault(ack.value["txn"], ack)
            if first is not ack:
                what = f"transaction {ack.value['txn']} acknowledged {place[2]} on {place[1]} twice"
                yield what, (facts.txns[ack.value["txn"]].begin, first, ack)


def _ends(txn: Txn) -> list[Op]:
    return sorted([*txn.commits, *txn.aborts], key=lambda op: op.start)[:1]


def _given_while_pending(facts: Facts, spans: dict[Place, list[tuple[int, int, Op]]]) -> Iterator[Found]:
    for op in facts.deliveries:
        if op.value["reader"] is not None:
            continue
        place = (part_of(op), op.value["subscription"], position_of(op))
        for since, until, ack in spans.get(place, ()):
            if not since < op.start < until:
                continue
            began = facts.subscribed_at(op)
            if began is not None and began.start > since:
                txn = facts.txns[ack.value["txn"]]
                what = f"a message came to a new consumer while transaction {txn.name}, which acknowledged it, was open"
                yield what, (txn.begin, ack, began, op, *_ends(txn))
