"""The index of a history that the checks share: transactions, sends, deliveries and full reads, each found by name.

Rules that all checks follow:

* An operation precedes another only if it ended strictly before the other began. Equal stamps say nothing.
* A transaction is known to be committed by an `ok` of commit, a status "committed" or a `fail` of abort; known to be aborted
  by the opposite. Everything else is unknown.
* What a transactional id has open when a higher epoch of it is opened ends before that is answered: aborted, unless its commit
  was asked for before. What may be prepared by then is spared.
* A message that came late to the application may have been dispatched early and have waited in the client. So a delivery
  counts as dispatched after a moment only if its consumer subscribed after that moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from history_reader import NEVER
from history_txns import Txn, decide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from history_reader import History, Op
    from history_txns import Incarnation

Part = tuple[str, int]  # topic, partition
Position = tuple[int, int, int]  # ledger, entry, batch index
Identity = tuple[str, int]  # producer, seq

DECIDED_MS = 2000  # a transaction is decided so long after its timeout at the latest (L1), unless the bounds say otherwise


def part_of(op: Op) -> Part:
    """The partition that an operation is about."""
    return op.value["topic"], op.value["partition"]


def position_of(op: Op) -> Position:
    """The position that an operation has or got."""
    ledger, entry, index = op.value["position"]
    return ledger, entry, index


def identity_of(op: Op) -> Identity:
    """The message that an operation is about."""
    payload = op.value["payload"]
    return payload["producer"], payload["seq"]


class Read:
    """A full read: `op` is its final_read, `seen` has the first delivery of each message in it."""

    __slots__ = ("op", "part", "seen")

    def __init__(self, op: Op, deliveries: Iterable[Op]) -> None:
        self.op = op
        self.part = part_of(op)
        self.seen: dict[Identity, Op] = {}
        for delivery in deliveries:
            self.seen.setdefault(identity_of(delivery), delivery)


class Facts:
    """The index of one history. Building it costs one pass and some dictionaries."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.meta: dict[str, Any] = history.meta
        self.by_kind: dict[str, list[Op]] = defaultdict(list)
        for op in history.ops:
            self.by_kind[op.f].append(op)
        self.sends = self.by_kind["send"]
        self.deliveries = self.by_kind["deliver"]
        self.decided_ms: int = self.meta.get("bounds", {}).get("txn_decided_ms", DECIDED_MS)
        self.txns: dict[str, Txn] = {}
        for op in history.ops:
            self._note_txn(op)
        self.opens: dict[str, list[Op]] = defaultdict(list)  # of each transactional id
        for op in self.by_kind["open"]:
            name = op.value.get("transactional_id") or op.value.get("identity", ("", None))[1]
            if name is not None:
                self.opens[name].append(op)
        self._successors: dict[Incarnation | None, tuple[int, Op | None]] = {None: (NEVER, None)}
        for txn in self.txns.values():
            txn.others_ns, successor = self.successor(txn.incarnation)
            decide(txn, successor)
            if self.meta.get("prepared_end"):
                txn.others_ns = min([txn.others_ns, *(op.start for op in txn.prepares)])
        if self.meta.get("clients_end"):
            self._note_clients_that_went()
        self.heals = [op.start for op in self.by_kind["heal"]]
        self.sent: dict[Identity, list[Op]] = defaultdict(list)
        self.sends_by_part: dict[Part, list[Op]] = defaultdict(list)
        for op in self.sends:
            self.sent[identity_of(op)].append(op)
            self.sends_by_part[part_of(op)].append(op)
        # Deliveries by subscription or reader; the order of the clock within each.
        self.by_subscription: dict[tuple[Part, str], list[Op]] = defaultdict(list)
        self.by_reader: dict[tuple[Part, str], list[Op]] = defaultdict(list)
        for op in self.deliveries:
            value = op.value
            if value["reader"] is None:
                self.by_subscription[part_of(op), value["subscription"]].append(op)
            else:
                self.by_reader[part_of(op), value["reader"]].append(op)
        self.full_reads = [self._read(op) for op in self.by_kind["final_read"] if op.type == "ok"]
        self.subscribes: dict[tuple[str, Part, str, str], list[Op]] = defaultdict(list)
        for op in self.by_kind["subscribe"]:
            self.subscribes[op.process, part_of(op), op.value["subscription"], op.value["consumer"]].append(op)
        # Subscriptions that were moved: what was settled may come again.
        self.moved = {(part_of(op), op.value["subscription"]) for op in self.by_kind["seek"]}

    def _note_txn(self, op: Op) -> None:
        name = op.value.get("txn")
        if name is None or op.f not in ("begin", "prepare", "commit", "abort", "status", "send", "ack"):
            return
        txn = self.txns.get(name)
        if txn is None:
            txn = self.txns[name] = Txn(name)
        if op.f == "begin":
            txn.begin = op
        else:
            {
                "prepare": txn.prepares,
                "commit": txn.commits,
                "abort": txn.aborts,
                "status": txn.statuses,
                "send": txn.sends,
                "ack": txn.acks,
            }[op.f].append(op)

    def successor(self, incarnation: Incarnation | None) -> tuple[int, Op | None]:
        """Since when a successor of an incarnation may have taken over, and the first open of one that was answered."""
        if incarnation not in self._successors:
            name, epoch = incarnation
            # One without an answer may have got any epoch.
            later = [op for op in self.opens[name] if "identity" not in op.value or op.value["identity"][2] > epoch]
            begins = min((op.start for op in later), default=NEVER)
            self._successors[incarnation] = begins, min((op for op in later if op.type == "ok"), key=_end, default=None)
        return self._successors[incarnation]

    def _note_clients_that_went(self) -> None:
        went: dict[str, list[int]] = defaultdict(list)
        for op in (*self.by_kind["kill"], *self.by_kind["pause"]):
            went[op.value["target"]].append(op.start)
        for txn in self.txns.values():
            if txn.begin is not None:
                later = (moment for moment in went.get(txn.begin.process, ()) if moment >= txn.begin.start)
                txn.client_gone_ns = min(later, default=NEVER)

    def _read(self, op: Op) -> Read:
        reader = op.value.get("reader")
        part = part_of(op)
        if reader is not None:
            found = self.by_reader.get((part, reader), [])
        else:
            found = self.by_subscription.get((part, op.value["subscription"]), [])
        first = bisect_left(found, op.start, key=_start)
        return Read(op, found[first : bisect_right(found, op.end, key=_start)])

    def last_reads(self) -> dict[Part, Read]:
        """The last full read by a reader, of each partition that has one."""
        last: dict[Part, Read] = {}
        for read in self.full_reads:
            if read.op.value.get("reader") is not None:
                last[read.part] = read  # full reads come in the order of their invocations
        return last

    def expected(self, send: Op) -> Op | None:
        """The operation after whose end everybody must see the message of a send; None when nobody needs to."""
        if send.type != "ok":
            return None
        if send.value["txn"] is None:
            return send
        txn = self.txns[send.value["txn"]]
        return txn.committed if txn.aborted is None else None

    def may_be_open(self, txn: Txn, moment_ns: int) -> bool:
        """Whether a transaction may still be open at a moment: no answer says that it ended, and its timeout, or the last heal
        of what could have delayed its end, was not long enough ago."""
        for answer in (txn.committed, txn.aborted):
            if answer is not None and answer.end < moment_ns:
                return False
        if txn.fenced is not None and txn.fenced.end < moment_ns:
            return False
        if txn.timeout_ms is None or (txn.may_be_prepared() and not self.meta.get("prepared_end")):
            return True
        # A client may begin late, at the first operation that needs an id, so the timeout counts from the last one.
        due_ns = txn.last_ns + txn.timeout_ms * 1_000_000
        place = bisect_left(self.heals, moment_ns)
        healed_ns = self.heals[place - 1] if place else 0
        return moment_ns <= max(due_ns, healed_ns) + self.decided_ms * 1_000_000

    def blocked_from(self, part: Part, moment_ns: int) -> Barrier:
        """What transactions that may be open at a moment can hide in a partition."""
        barrier = Barrier()
        for send in self.sends_by_part[part]:
            if send.value["txn"] is None or send.type == "fail":
                continue
            if self.may_be_open(self.txns[send.value["txn"]], moment_ns):
                barrier.add(send)
        return barrier

    def subscribed_at(self, delivery: Op) -> Op | None:
        """The subscribe with which the consumer of a delivery began, or None."""
        found = None
        key = (delivery.process, part_of(delivery), delivery.value["subscription"], delivery.value["consumer"])
        for op in self.subscribes.get(key, ()):
            if op.start <= delivery.start:
                found = op
        return found


class Barrier:
    """What open transactions hide: positions from `position` on, and messages whose send ended after `since_ns` began.

    The second is for sends whose position nobody knows: a message that was confirmed before such a send began is before it.
    """

    def __init__(self) -> None:
        self.position: Position | None = None
        self.since_ns = NEVER

    def add(self, send: Op) -> None:
        """Count a message of a transaction that may be open."""
        if "position" in send.value:
            position = position_of(send)
            self.position = position if self.position is None else min(self.position, position)
        else:
            self.since_ns = min(self.since_ns, send.start)

    def hides(self, send: Op) -> bool:
        """Whether the message of a confirmed send may be hidden."""
        return (self.position is not None and position_of(send) >= self.position) or send.end >= self.since_ns


def _start(op: Op) -> int:
    return op.start


def _end(op: Op) -> int:
    return op.end
