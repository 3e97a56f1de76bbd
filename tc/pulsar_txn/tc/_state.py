"""The state of a coordinator and the fold that makes it: the only code that changes it, live and in recovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from pulsar_txn.ledger.machine import WRITE
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.ledger.swept_heap import SLACK, SweptHeap
from pulsar_txn.tc._extra_state import ExtraState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.check_times import DEFAULT_RULES, CheckRules
from pulsar_txn.tc.fencing import Fencing
from pulsar_txn.tc.lane_table import LaneEvent
from pulsar_txn.tc.lanes import Lanes
from pulsar_txn.tc.log_incarnations import LogIncarnation, LogIncarnations
from pulsar_txn.tc.outcomes import PAGE_SHIFT, STILL_OPEN, WAS_ABORTED, WAS_COMMITTED, OutcomeWindow
from pulsar_txn.tc.records import CHECKED, GOODBYE, INCARNATION, NEW, PARKED, RESUMED, TAKEN_OVER, UPDATE, Batch, Entry, Record
from pulsar_txn.tc.records import PREPARED as PREPARED_OPERATION
from pulsar_txn.tc.table import ABORTED, ABORTING, COMMITTED, COMMITTING, EVENT_OF, HELD, OPEN, PREPARED, TRANSITIONS, Event
from pulsar_txn.wire.ids import EARLIEST, Position, TxnId, TxnStatus

_LANE_EVENT: Final = {
    COMMITTING: LaneEvent.COMMIT,
    ABORTING: LaneEvent.ABORT,
    COMMITTED: LaneEvent.DONE,
    ABORTED: LaneEvent.DONE,
    HELD: LaneEvent.HOLD,
    OPEN: LaneEvent.RELEASE,
}
"""Event of the lane for an UPDATE record with this `new_status`."""

_OUTCOME_OF: Final = {COMMITTED: WAS_COMMITTED, ABORTED: WAS_ABORTED}


class CoordinatorState:
    """State that the log says. `transactions` holds what takes room, by `least`, ascending; `bytes` is what the limits count.

    `open` has (deadline_ms, least) of every OPEN transaction; `deadlines` has them in order, and some that are no longer open.
    `fencing` follows which transactions of each transactional id are open, where the coordinator fences. `lanes` has the lanes,
    where the coordinator gives some; then `least` begins with 1. `incarnations` has those of the log, and `held` what is HELD.
    `extra` follows what only some transactions have. `active_of`: how many transactions of each role take room, but for those
    that are parked or HELD.

    A parked transaction is OPEN, but not among `open`: it has no deadline.
    """

    def __init__(
        self,
        tc_id: int,
        outcomes: OutcomeWindow,
        fencing: Fencing | None = None,
        lanes: Lanes | None = None,
        rules: CheckRules = DEFAULT_RULES,
    ) -> None:
        self.tc_id = tc_id
        self.outcomes = outcomes
        self.extra = ExtraState(outcomes, rules)
        self.fencing = fencing
        self.lanes = lanes
        self.next_id = 0 if lanes is None else 1
        self.newest_time_ms = 0
        self.last_applied: Position = EARLIEST
        self.transactions: OrderedMap[int, Transaction] = OrderedMap(Transaction.image)
        self.open: set[tuple[int, int]] = set()
        self.ending: dict[int, None] = {}
        self.held: dict[int, None] = {}
        self.incarnations = LogIncarnations()
        self.participant_count = 0
        self.bytes = 0
        self.active_of: dict[str, int] = {}
        self.is_restoring = False
        """True once the head of a snapshot was read; no state."""
        self.deadlines: SweptHeap[tuple[int, int]] = SweptHeap(self.open.__contains__)

    def apply(self, position: Position, record: Record) -> None:
        """Fold one entry of the log in. Records that change nothing are legal: a stock log has some (see `table`)."""
        self.last_applied = position
        if isinstance(record, Batch):
            for entry in record.entries:
                self.apply(position, entry)
            return
        operation, least, modified_ms, max_local_txn_id, *_ = record
        if modified_ms > self.newest_time_ms:
            self.newest_time_ms = modified_ms
        if operation == NEW and least >= self.next_id:  # an id below was given before: all its cells of NEW do nothing
            self._open(least, record)
        if max_local_txn_id >= self.next_id:
            self.next_id = max_local_txn_id + 1
        if operation > UPDATE:
            self._rare(operation, record)
            return
        txn = self.transactions.get(least)
        if txn is None or operation == NEW:
            return
        if operation == UPDATE:
            self._move(txn, least, record)
            for further in record.group:
                self._move_further(further, record)
        elif TRANSITIONS[txn.status, Event.ADD].act is WRITE:
            if self.transactions.moments:
                self.transactions.changing(least)
            self.add_participants(txn, record.partitions, record.subscriptions, modified_ms)

    def low_watermark(self) -> int:
        """The highest id such that it and all below it have ended: what is open or ending is never covered. -1: none."""
        oldest = self.transactions.first()
        return (self.next_id if oldest is None else oldest[0]) - 1

    def add(self, txn: Transaction) -> None:
        """Take in a transaction with a higher id than all others."""
        self.transactions[txn.txn_id.least] = txn
        self.participant_count += txn.participant_count
        self.bytes += txn.bytes
        principal, is_open = txn.owner[0], txn.status is OPEN
        if txn.extras is not None:
            self.extra.entered(txn)
            if is_open and txn.extras.parked_ms is not None:
                is_open, principal = False, None
        if txn.status is HELD:
            principal = None
        if principal is not None:
            self.active_of[principal] = self.active_of.get(principal, 0) + 1
        if is_open:
            entry = (txn.deadline_ms, txn.txn_id.least)
            self.open.add(entry)
            self.deadlines.add(entry)
        elif txn.status is HELD:
            self.held[txn.txn_id.least] = None
        elif txn.status in (COMMITTING, ABORTING):
            self.ending[txn.txn_id.least] = None
        if self.fencing is not None and txn.owner[1] is not None:
            self.fencing.entered(txn.owner, txn.txn_id.least, is_open)

    def due(self, now_ms: int, limit: int) -> list[Transaction]:
        """At most `limit` OPEN transactions that are due, the earliest first."""
        due = self.deadlines.smallest(limit, lambda entry: entry[0] <= now_ms)
        return [self.transactions[least] for _, least in due]

    def put_off(self, txn: Transaction, until_ms: int) -> None:
        """The timeout of an OPEN transaction is over later. No state: the next incarnation of the coordinator asks again."""
        least = txn.txn_id.least
        self.open.remove((txn.deadline_ms, least))
        txn.put_off(until_ms)
        self.open.add((until_ms, least))
        self.deadlines.add((until_ms, least))
        self.deadlines.lost(len(self.open))

    def add_participants(
        self, txn: Transaction, topics: Iterable[str], subscriptions: Iterable[tuple[str, str]], modified_ms: int
    ) -> None:
        """Register what a record, or a part of a snapshot, names."""
        count, size = txn.register(topics, subscriptions, modified_ms)
        self.participant_count += count
        self.bytes += size
        if txn.extras is not None:
            self.extra.grew(txn, size)

    def restore_head(self, next_id: int, newest_time_ms: int, last_applied: Position) -> None:
        """Begin with the head of a snapshot; `add` takes what follows."""
        self.is_restoring = True
        self.next_id = next_id
        self.newest_time_ms = newest_time_ms
        self.last_applied = last_applied

    @property
    def weight(self) -> int:
        """About how many objects a snapshot has to write."""
        outcomes, fenced = self.outcomes, 0 if self.fencing is None else len(self.fencing.epochs)
        lanes = 0 if self.lanes is None else len(self.lanes.kept)
        of_transactions = len(self.transactions) + self.participant_count + self.extra.weight
        return of_transactions + len(outcomes.owners.owners) + len(outcomes.late) + fenced + lanes + len(self.incarnations.kept)

    def _open(self, least: int, record: Entry) -> None:
        txn_id = TxnId(self.tc_id, least) if self.lanes is None else self._take_lane(self.lanes, least, record)
        if txn_id is None:
            return
        self.next_id = least + 1
        self.outcomes.opened(least, record.owner)
        txn = Transaction(txn_id, record.owner, record.start_time_ms, record.timeout_ms, record.extras)
        self.add(txn)
        if record.partitions or record.subscriptions:
            self.add_participants(txn, record.partitions, record.subscriptions, txn.modified_ms)
        if self.fencing is not None and record.owner[1] is not None:
            self.fencing.note(record.owner, self.newest_time_ms)

    def _take_lane(self, lanes: Lanes, least: int, record: Entry) -> TxnId | None:
        if record.owner[1] is not None:
            lanes.succeeded(record.owner)
        assert record.lane is not None  # noqa: S101 - `records.decode` lets no other one in
        return lanes.opened(record.lane, least, record.owner, record.incarnation, record.modified_ms)

    def _rare(self, operation: int, record: Entry) -> None:
        """Questions are counted, a transaction waits for somebody, a client has gone, or an epoch of an id has begun."""
        if operation == CHECKED:
            for least in (record.least, *record.group):
                self._checked(least, record.modified_ms)
            return
        if operation == PREPARED_OPERATION:
            self._prepared(record)
            return
        if operation == PARKED:
            for least in (record.least, *record.group):
                self._parked(least, record.modified_ms)
            return
        if operation == RESUMED:
            self._resumed(record.least, record.modified_ms)
            return
        lanes, owner = self.lanes, record.owner
        if operation == INCARNATION:
            self._began(record)
            return
        if operation == TAKEN_OVER:
            if self.fencing is not None:
                self.fencing.note(owner, self.newest_time_ms)
            if lanes is not None:
                lanes.succeeded(owner)
            return
        incarnation = record.incarnation
        assert lanes is not None and incarnation is not None  # noqa: S101, PT018 - `records.decode` lets no other one in
        (lanes.left if operation == GOODBYE else lanes.vanished)((owner[0], incarnation))

    def _began(self, record: Entry) -> None:
        service, (goes_on, _, until_least) = record.lane, record.group
        assert service is not None  # noqa: S101 - `records.decode` lets no other one in
        self.incarnations.began(LogIncarnation(service, self.next_id, self.last_applied, bool(goes_on)), until_least)
        if self.lanes is not None:
            self.lanes.began(service, goes_on=bool(goes_on))

    def _checked(self, least: int, now_ms: int) -> None:
        txn = self.transactions.get(least)
        if txn is None or txn.extras is None or TRANSITIONS[txn.status, Event.CHECK].act is not WRITE:
            return
        if self.transactions.moments:
            self.transactions.changing(least)
        txn.asked(txn.extras, now_ms)
        self.extra.waits(txn)

    def _parked(self, least: int, now_ms: int) -> None:
        txn = self.transactions.get(least)
        if txn is None or txn.extras is None or txn.extras.group is None or txn.is_parked or txn.status is not OPEN:
            return
        if self.transactions.moments:
            self.transactions.changing(least)
        self._left_open(txn, least)
        txn.parked(txn.extras, now_ms)
        self.extra.parked(txn)
        self._count_active(txn, -1)

    def _resumed(self, least: int, now_ms: int) -> None:
        txn = self.transactions.get(least)
        if txn is None or txn.extras is None or not txn.is_parked or txn.status is not OPEN:
            return
        if self.transactions.moments:
            self.transactions.changing(least)
        self._unparked(txn)
        txn.resumed(txn.extras, now_ms)
        entry = (txn.deadline_ms, least)
        self.open.add(entry)
        self.deadlines.add(entry)
        if self.fencing is not None and txn.owner[1] is not None:
            self.fencing.entered(txn.owner, least, is_open=True)
        self.extra.waits(txn)

    def _unparked(self, txn: Transaction) -> None:
        self.extra.unparked(txn)
        self._count_active(txn, 1)

    def _count_active(self, txn: Transaction, by: int) -> None:
        principal = txn.owner[0]
        if principal is not None:
            left = self.active_of.get(principal, 0) + by
            if left:
                self.active_of[principal] = left
            else:
                del self.active_of[principal]

    def _prepared(self, record: Entry) -> None:
        least, said = record.least, record.extras
        txn = self.transactions.get(least)
        if txn is None or said is None or TRANSITIONS[txn.status, Event.PREPARE].act is not WRITE:
            return
        if self.lanes is not None:
            self.lanes.happened(txn.txn_id.most, LaneEvent.PREPARE)
        if self.transactions.moments:
            self.transactions.changing(least)
        before = txn.extras
        self._left_open(txn, least)
        self.bytes += txn.prepared(said.prepared_token, record.modified_ms)
        self.extra.prepared(txn, before)

    def _move(self, txn: Transaction, least: int, record: Entry) -> None:
        """Follow an UPDATE record, where the table has that way from the present state."""
        status, event = txn.status, EVENT_OF.get(record.new_status)
        if event is None or status != record.expected_status:
            return
        act, new, _ = TRANSITIONS[status, event]
        if act is not WRITE or new is None or new != record.new_status:
            return
        if self.lanes is not None:
            self.lanes.happened(txn.txn_id.most, _LANE_EVENT[new])
        outcome = _OUTCOME_OF.get(new)
        if new is HELD or status is HELD:
            self._held(txn, least, new, record)
        elif outcome is None:
            if self.transactions.moments:
                self.transactions.changing(least)
            if status is OPEN:
                self._left_open(txn, least)
            txn.moved(new, record.modified_ms)
            self.ending[least] = None
            if txn.extras is not None:
                self.extra.decided(txn)
        else:
            del self.ending[least]
            del self.transactions[least]  # a moment that is walked shows it as it is, so it changes only after this
            txn.moved(new, record.modified_ms)
            self.bytes -= txn.bytes
            self.participant_count -= txn.participant_count
            if txn.owner[0] is not None:
                self._count_active(txn, -1)
            self.outcomes.ended(least, outcome, txn.owner, self.next_id)
            if txn.extras is not None:
                self.extra.ended(txn)
            if self.fencing is not None and txn.owner[1] is not None:
                self.fencing.ended(txn.owner, least)

    def _held(self, txn: Transaction, least: int, new: TxnStatus, record: Entry) -> None:
        """Hold a transaction, let it go on, or decide about it."""
        if self.transactions.moments:
            self.transactions.changing(least)
        before, status = txn.extras, txn.status
        if new is HELD:
            self.held[least] = None
            if status is OPEN:
                self._left_open(txn, least)
            self._count_active(txn, -1)
            if before is not None and status in (OPEN, PREPARED):
                self.extra.decided(txn)
            self.ending.pop(least, None)
        else:
            del self.held[least]
            self._count_active(txn, 1)
        added = txn.held(new, record.cause, record.modified_ms)
        self.bytes += added
        self.extra.counted(added)
        if new is OPEN:
            entry = (txn.deadline_ms, least)
            self.open.add(entry)
            self.deadlines.add(entry)
            if self.fencing is not None and txn.owner[1] is not None:
                self.fencing.entered(txn.owner, least, is_open=True)
            if txn.extras is not None:
                self.extra.waits(txn)
        elif new is not HELD:
            self.ending[least] = None

    def _move_further(self, least: int, record: Entry) -> None:
        txn = self.transactions.get(least)
        if txn is not None:
            self._move(txn, least, record)

    def _left_open(self, txn: Transaction, least: int) -> None:
        if txn.extras is not None and txn.extras.parked_ms is not None:  # it has left before
            self._unparked(txn)
            return
        self.open.remove((txn.deadline_ms, least))
        self.deadlines.lost(len(self.open))
        if self.fencing is not None and txn.owner[1] is not None:
            self.fencing.left_open(txn.owner, least)

    def _entries(self) -> Iterator[tuple[int, int]]:
        return ((txn.deadline_ms, least) for least, txn in self.transactions.items() if _waits_for_time(txn))

    def _window_agrees(self, txn: Transaction) -> bool:
        outcome, owner = self.outcomes.lookup(txn.txn_id.least)
        return (
            outcome == STILL_OPEN and owner in (txn.owner, None)
        ) or txn.txn_id.least >> PAGE_SHIFT not in self.outcomes.pages

    def check(self) -> None:
        """Raise AssertionError, the id of `table.INVARIANTS` first."""
        unfinished = (OPEN, PREPARED, HELD, COMMITTING, ABORTING)
        ids = list(self.transactions)
        _demand(all(txn.status in unfinished for txn in self.transactions.values()), "S2", "an ended transaction takes room")
        _demand(ids == sorted(ids) and all(least < self.next_id for least in ids), "S18", f"ids {ids}, next {self.next_id}")
        _demand(all(map(self._window_agrees, self.transactions.values())), "S16", "the window differs from what takes room")
        windowed = sum(least >> PAGE_SHIFT in self.outcomes.pages for least in ids)
        _demand(self.outcomes.count_open() == windowed, "S16", "the window calls ids open that take no room")
        _demand(self.open == set(self._entries()), "S2", "what is OPEN is not what is known as open")
        _demand(self.open <= set(self.deadlines), "L1", "a deadline is missing")
        # While a sweep is under way, as many may have ended as a quarter of what it has to move.
        _demand(len(self.deadlines) <= 4 * len(self.open) + 3 * SLACK, "L7", f"{len(self.deadlines)} deadlines")
        ending = {least for least, txn in self.transactions.items() if txn.status in (COMMITTING, ABORTING)}
        _demand(self.ending.keys() == ending, "S2", f"{self.ending.keys() ^ ending} are ending, or not")
        held = {least for least, txn in self.transactions.items() if txn.status is HELD}
        _demand(self.held.keys() == held, "S2", f"{self.held.keys() ^ held} are HELD, or not")
        active = Counter(
            txn.owner[0]
            for txn in self.transactions.values()
            if txn.owner[0] is not None and txn.status is not HELD and not (txn.status is OPEN and txn.is_parked)
        )
        _demand(self.active_of == active, "L7", f"{self.active_of} are counted for their roles, and should be {active}")
        _demand(self.bytes == sum(txn.bytes for txn in self.transactions.values()), "L7", f"{self.bytes} bytes counted")
        if self.lanes is not None:
            lanes_of = ((txn.txn_id, txn.status, txn.owner) for txn in self.transactions.values())
            for invariant, why in self.lanes.contradictions(lanes_of):
                _demand(False, invariant, why)
        for invariant, why in self.extra.contradictions(self.transactions.values()):
            _demand(False, invariant, why)
        if self.fencing is not None:
            self.fencing.check((txn.txn_id, txn.owner) for txn in self.transactions.values() if _waits_for_time(txn))
            living_of = {least for leasts in self.fencing.unfinished.values() for least in leasts}
            named = {least for least, txn in self.transactions.items() if txn.owner[1] is not None}
            _demand(living_of == named, "S14", f"{living_of ^ named} are known of their transactional ids, or not")


def _waits_for_time(txn: Transaction) -> bool:
    """True if its timeout ends it."""
    return txn.status is OPEN and not txn.is_parked


def _demand(holds: bool, invariant: str, why: str) -> None:
    if not holds:
        raise AssertionError(f"{invariant}: {why}")
