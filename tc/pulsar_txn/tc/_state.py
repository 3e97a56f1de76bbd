"""The state of a coordinator and the fold that makes it: the only code that changes it, live and in recovery."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from pulsar_txn.tc._deadlines import SLACK, Deadlines
from pulsar_txn.tc.outcomes import PAGE_SHIFT, STILL_OPEN, WAS_ABORTED, WAS_COMMITTED, OutcomeWindow, Owner
from pulsar_txn.tc.records import NEW, UPDATE, Record
from pulsar_txn.tc.records_pb2 import BatchedTransactionMetadataEntry, TransactionMetadataEntry
from pulsar_txn.tc.table import EDGES
from pulsar_txn.wire.ids import EARLIEST, Participant, Position, TxnId, TxnStatus

_OPEN: Final = int(TxnStatus.OPEN)
_OUTCOME_OF: Final = {int(TxnStatus.COMMITTED): WAS_COMMITTED, int(TxnStatus.ABORTED): WAS_ABORTED}


class Transaction:
    """An open or ending transaction. `status` is the number of its TxnStatus; participants keep their order of arrival."""

    __slots__ = ("owner", "start_time_ms", "status", "subscriptions", "timeout_ms", "topics", "txn_id")

    def __init__(self, txn_id: TxnId, owner: Owner, start_time_ms: int, timeout_ms: int) -> None:
        self.txn_id = txn_id
        self.owner = owner
        self.start_time_ms = start_time_ms
        self.timeout_ms = timeout_ms
        self.status = _OPEN
        self.topics: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def deadline_ms(self) -> int:
        """When it is aborted if it is still open then."""
        return self.start_time_ms + self.timeout_ms

    def has(self, participant: Participant) -> bool:
        """Whether `participant` is registered."""
        if participant.subscription is None:
            return participant.topic in self.topics
        return (participant.topic, participant.subscription) in self.subscriptions

    def participants(self) -> list[Participant]:
        """Topic partitions, then subscriptions, each in order of arrival; the same after a restore."""
        return [Participant(topic) for topic in self.topics] + [Participant(*pair) for pair in self.subscriptions]


class CoordinatorState:
    """What the log says. `transactions` holds what is open or ending, by `least`, ascending."""

    def __init__(self, tc_id: int, outcomes: OutcomeWindow) -> None:
        self.tc_id = tc_id
        self.outcomes = outcomes
        self.next_id = 0
        self.newest_time_ms = 0
        self.last_applied: Position = EARLIEST
        # Linked, not a plain dict: the smallest key must be at hand however many were taken out before it.
        self.transactions: OrderedDict[int, Transaction] = OrderedDict()
        self.open_count = 0
        self.deadlines = Deadlines(self.is_open)

    def apply(self, position: Position, record: Record) -> None:
        """Fold one entry in. Records that change nothing are legal: a stock log has such (see `table`)."""
        self.last_applied = position
        if isinstance(record, BatchedTransactionMetadataEntry):
            for entry in record.transaction_logs:
                self._apply(entry)
        else:
            self._apply(record)

    def is_open(self, least: int) -> bool:
        """Whether `least` is OPEN."""
        txn = self.transactions.get(least)
        return txn is not None and txn.status == _OPEN

    def low_watermark(self) -> int:
        """The highest id such that it and all below it have ended: what is open or ending is never covered. -1: none."""
        for least in self.transactions:
            return least - 1
        return self.next_id - 1

    def add(self, txn: Transaction) -> None:
        """Take in a transaction with a higher id than all others."""
        self.transactions[txn.txn_id.least] = txn
        if txn.status == _OPEN:
            self.open_count += 1
            self.deadlines.add(txn.deadline_ms, txn.txn_id.least)

    def _apply(self, record: TransactionMetadataEntry) -> None:
        modified_ms = record.last_modification_time
        if modified_ms > self.newest_time_ms:
            self.newest_time_ms = modified_ms
        least = record.txnid_least_bits
        operation = record.metadata_op
        if operation == NEW:
            self._open(least, record)
        highest = record.max_local_txn_id
        if highest >= self.next_id:
            self.next_id = highest + 1
        if operation == NEW:
            return
        txn = self.transactions.get(least)
        if txn is None:
            return
        if operation == UPDATE:
            self._move(txn, least, record)
        elif txn.status == _OPEN:
            for topic in record.partitions:
                txn.topics[topic] = None
            for pair in record.subscriptions:
                txn.subscriptions[pair.topic, pair.subscription] = None

    def _open(self, least: int, record: TransactionMetadataEntry) -> None:
        if least < self.next_id:
            return
        principal = record.owner if record.HasField("owner") else None
        identity = (record.transactional_id, record.transactional_epoch) if record.HasField("transactional_id") else None
        owner = (principal, identity)
        self.next_id = least + 1
        self.outcomes.opened(least, owner)
        self.add(Transaction(TxnId(self.tc_id, least), owner, record.start_time, record.timeout_ms))

    def _move(self, txn: Transaction, least: int, record: TransactionMetadataEntry) -> None:
        expected, new = int(record.expected_status), int(record.new_status)
        if txn.status != expected or (expected, new) not in EDGES:
            return
        txn.status = new
        outcome = _OUTCOME_OF.get(new)
        if outcome is not None:
            del self.transactions[least]
            self.outcomes.ended(least, outcome, txn.owner, self.next_id)
        else:
            self.open_count -= 1
            self.deadlines.sweep(self.open_count, self._entries)

    def _entries(self) -> Iterator[tuple[int, int]]:
        return ((txn.deadline_ms, least) for least, txn in self.transactions.items() if txn.status == _OPEN)

    def _window_agrees(self, txn: Transaction) -> bool:
        outcome, owner = self.outcomes.lookup(txn.txn_id.least)
        return (
            outcome == STILL_OPEN and owner in (txn.owner, None)
        ) or txn.txn_id.least >> PAGE_SHIFT not in self.outcomes.pages

    def check(self) -> None:
        """Raise AssertionError, the id of `table.INVARIANTS` first."""
        living = (TxnStatus.OPEN, TxnStatus.COMMITTING, TxnStatus.ABORTING)
        ids = list(self.transactions)
        _demand(all(txn.status in living for txn in self.transactions.values()), "S2", "an ended transaction takes room")
        _demand(ids == sorted(ids) and all(least < self.next_id for least in ids), "S18", f"ids {ids}, next {self.next_id}")
        _demand(all(map(self._window_agrees, self.transactions.values())), "S16", "the window differs from what takes room")
        windowed = sum(least >> PAGE_SHIFT in self.outcomes.pages for least in ids)
        _demand(self.outcomes.count_open() == windowed, "S16", "the window calls ids open that take no room")
        _demand(set(self._entries()) <= set(self.deadlines.heap), "L1", "a deadline is missing")
        _demand(len(self.deadlines.heap) <= 2 * self.open_count + SLACK, "L7", f"{len(self.deadlines.heap)} deadlines")


def _demand(holds: bool, invariant: str, why: str) -> None:
    if not holds:
        raise AssertionError(f"{invariant}: {why}")
