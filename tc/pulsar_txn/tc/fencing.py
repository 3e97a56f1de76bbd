"""A coordinator that fences: of all who call themselves by one transactional id, only the newest may go on.

A program that must not run twice (a worker of one partition, one writer of a ledger) opens its transactions under a
*transactional id*, and every start of it under a higher *epoch*. The first transaction of a higher epoch ends what an older
one left open, in the same Step: the ABORTING records of the older transactions, then the NEW record. So a zombie, say a worker
that was paused while its successor took over, finds its transaction aborted, whatever it had sent; every further
request of it is answered ProducerFenced. A commit that was decided before the fence stays a commit.

Epochs come from outside and never twice (the broker counts them durably, see `pulsar_txn.broker.txn.transactional_ids`); this
machine only remembers the highest one it saw for each id. That is part of the fold: NEW records carry both
(`records.proto`, fields 101 and 102). Ids of different principals do not meet. Clients without a transactional id, which are
all of Pulsar's own, are served as by the plain coordinator and never fenced.

An id that opened nothing for `id_retention_ms` is forgotten, by the times of the log, so that the room is bounded by the ids
in use. What its last epoch left open is fenced all the same: open transactions are asked for their owner, not this memory.

Sources: KIP-98 (transactional id, epoch, fencing), KIP-890 (an epoch for each transaction; here a transaction id is that);
`docs/adr/0003`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias

from pulsar_txn.ledger.machine import Step
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.tc import snapshots
from pulsar_txn.tc._state import CoordinatorState, Transaction
from pulsar_txn.tc.coordinator import TransactionCoordinator
from pulsar_txn.tc.outcomes import OutcomeWindow, Owner
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot, TransactionMetadataEntry
from pulsar_txn.tc.requests import AddParticipants, EndTxn, NewTxn
from pulsar_txn.tc.table import Event
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnStatus

ID_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
"""How long an id is remembered behind its last transaction; Kafka's transactional.id.expiration.ms."""

_FORGOTTEN_PER_NOTE: Final = 4

_Name: TypeAlias = tuple["str | None", str]
"""Principal and transactional id."""


class FencingCoordinator(TransactionCoordinator):
    """The coordinator `tc_id` with fencing; further options as `TransactionCoordinator`.

    `max_active_of_id`: how many transactions of one transactional id may be open (0: any number); a successor ends as many in
    one Step.

    Refusals beside those of `requests`: ProducerFenced for every request of an epoch below the highest of its id, but for ends:
    the repeat of what was decided is answered, and what is forgotten is TransactionNotFound.
    """

    fences: ClassVar = True
    """What the broker asks of a plug-in before it offers transactional ids to clients."""

    def __init__(
        self, tc_id: int, *, id_retention_ms: int = ID_RETENTION_MS, max_active_of_id: int = 0, **options: Any
    ) -> None:
        self._epochs: OrderedMap[_Name, tuple[int, int]] = OrderedMap()
        self._id_retention_ms = id_retention_ms
        self._max_active_of_id = max_active_of_id
        super().__init__(tc_id, **options)

    @property
    def epochs(self) -> dict[str, int]:
        """The highest epoch of every transactional id without a principal, for hosts and tests."""
        return {name: epoch for (principal, name), (epoch, _) in self._epochs.items() if principal is None}

    def snapshot(self) -> Iterator[bytes]:
        """The plain coordinator's snapshot, and the epochs."""
        groups = self._epochs.moment().groups()
        return chain(super().snapshot(), snapshots.gathered(("epochs", _epoch(*item)) for group in groups for item in group))

    def _restored(self, part: CoordinatorSnapshot) -> None:
        """Also takes a plain coordinator's snapshot: the provider may be changed while transactions are open."""
        for each in part.epochs:
            principal = each.principal if each.HasField("principal") else None
            self._epochs[principal, each.transactional_id] = (each.epoch, each.last_used_ms)

    def check_invariants(self) -> None:
        """Those of the table, and: no transaction is open whose owner is fenced."""
        super().check_invariants()
        for txn in self._state.transactions.values():
            if txn.status == TxnStatus.OPEN and self._is_fenced(txn.owner):
                raise AssertionError(f"fencing: {txn.txn_id} of {txn.owner} is open")

    # ------------------------------------------------------------------ the fold

    def _new_state(self, outcomes: OutcomeWindow) -> CoordinatorState:
        self._fenced_state = _FencingState(self.tc_id, outcomes, self._epochs, self._id_retention_ms)
        return self._fenced_state

    # ------------------------------------------------------------------ decisions

    def _new(self, request: NewTxn, now_ms: int) -> Step[Record]:
        identity = request.identity
        if identity is None:
            return super()._new(request, now_ms)
        owner = (request.principal, identity)
        if self._is_fenced(owner):
            raise _fenced(identity[0])
        opened = super()._new(request, now_ms)
        decisions: list[tuple[str, Record]] = []
        trailing: list[tuple[str, Record]] = []
        effects = list(opened.effects)
        open_of_id = self._fenced_state.open_of.get((request.principal, identity[0]), {})
        for least in open_of_id:
            txn = self._state.transactions[least]
            if _is_older(txn.owner, owner):
                decision, more, heard = self._leave_open(txn, Event.ABORT, now_ms, told=len(effects))
                decisions += decision
                trailing += more
                effects += heard
        if self._max_active_of_id and len(open_of_id) - len(decisions) >= self._max_active_of_id:
            raise Refusal(
                ServerError.TooManyRequests,
                f"transactional id {identity[0]!r} has {len(open_of_id)} transactions open in coordinator {self.tc_id}, as many"
                " as it may (maxActiveTransactionsPerTransactionalId): end some, or try later",
            )
        return Step((*decisions, *opened.records), tuple(effects), tuple(trailing))

    def _add(self, request: AddParticipants, now_ms: int) -> Step[Record]:
        if request.identity is not None and self._is_fenced((request.principal, request.identity)):
            raise _fenced(request.identity[0])
        return super()._add(request, now_ms)

    def _end(self, request: EndTxn, now_ms: int) -> Step[Record]:
        try:
            return super()._end(request, now_ms)
        except Refusal as refusal:
            identity = request.identity
            # A transaction that is forgotten stays one that is not found: what became of it is not known any more.
            decided = refusal.code is ServerError.InvalidTxnStatus
            if decided and identity is not None and self._is_fenced((request.principal, identity)):
                raise _fenced(identity[0]) from refusal
            raise

    def _permits(self, owner: Owner | None, asker: Owner) -> bool:
        """A successor may ask for the outcomes of those before it."""
        return super()._permits(owner, asker) or (owner is not None and _is_older(owner, asker))

    def _is_fenced(self, owner: Owner) -> bool:
        principal, identity = owner
        if identity is None:
            return False
        known = self._epochs.get((principal, identity[0]))
        return known is not None and identity[1] < known[0]


class _FencingState(CoordinatorState):
    """Remembers the highest epoch of each id beside what a coordinator remembers.

    `open_of`: the OPEN transactions of each transactional id, so that a new epoch finds those before it without a scan.
    """

    def __init__(
        self, tc_id: int, outcomes: OutcomeWindow, epochs: OrderedMap[_Name, tuple[int, int]], retention_ms: int
    ) -> None:
        super().__init__(tc_id, outcomes)
        self._epochs = epochs
        self._retention_ms = retention_ms
        self.open_of: dict[_Name, dict[int, None]] = {}

    @property
    def weight(self) -> int:
        """With the epochs."""
        return super().weight + len(self._epochs)

    def add(self, txn: Transaction) -> None:
        """As in CoordinatorState."""
        super().add(txn)
        name = _name_of(txn.owner)
        if name is not None and txn.status == TxnStatus.OPEN:
            self.open_of.setdefault(name, {})[txn.txn_id.least] = None

    def left_open(self, txn: Transaction) -> None:
        """As in CoordinatorState."""
        super().left_open(txn)
        name = _name_of(txn.owner)
        if name is not None:
            left = self.open_of[name]
            del left[txn.txn_id.least]
            if not left:
                del self.open_of[name]

    def _open(self, least: int, record: TransactionMetadataEntry) -> None:
        is_new = least >= self.next_id
        super()._open(least, record)
        if is_new and record.HasField("transactional_id"):
            principal = record.owner if record.HasField("owner") else None
            self._note((principal, record.transactional_id), record.transactional_epoch)

    def _note(self, name: _Name, epoch: int) -> None:
        epochs, now_ms = self._epochs, self.newest_time_ms
        highest, _ = epochs.pop(name) or (epoch, 0)
        epochs[name] = (max(epoch, highest), now_ms)
        for _ in range(_FORGOTTEN_PER_NOTE):  # not all at once: a hundred thousand may be out of use at the same time
            oldest = epochs.first()
            if oldest is None or oldest[1][1] + self._retention_ms >= now_ms:
                return
            del epochs[oldest[0]]


def _name_of(owner: Owner) -> _Name | None:
    principal, identity = owner
    return None if identity is None else (principal, identity[0])


def _epoch(name: _Name, known: tuple[int, int]) -> CoordinatorSnapshot.Epoch:
    (principal, transactional_id), (epoch, used_ms) = name, known
    return CoordinatorSnapshot.Epoch(principal=principal, transactional_id=transactional_id, epoch=epoch, last_used_ms=used_ms)


def _is_older(owner: Owner, than: Owner) -> bool:
    """Whether both are of one transactional id, and `owner` of a lower epoch."""
    (principal, identity), (other, newer) = owner, than
    if identity is None or newer is None or principal != other:
        return False
    return identity[0] == newer[0] and identity[1] < newer[1]


def _fenced(transactional_id: str) -> Refusal:
    return Refusal(
        ServerError.ProducerFenced,
        f"transactional id {transactional_id!r} was taken over by a newer instance; this one must stop",
    )
