"""Fencing: of all programs that use one transactional id, only the newest may go on.

A program that must not run twice (a worker of one partition, one writer of a ledger) opens its transactions under a
*transactional id*, and every start of it under a higher *epoch*. The first transaction of a higher epoch ends what an older
epoch left open, in the same Step: the ABORTING records of the older transactions, then the NEW record. So a zombie, for
example a worker that was paused while its successor took over, finds its transaction aborted, whatever it had sent; every
further request of it is answered ProducerFenced. A commit that was decided before the fence stays a commit.

Epochs come from outside and never twice (the broker counts them durably, see `pulsar_txn.broker.txn.transactional_ids`);
a coordinator only remembers the highest epoch it saw of each id. That is part of the fold: NEW records carry both
(`records.proto`, fields 101 and 102). Ids of different principals do not meet. Clients without a transactional id, which
are all clients of Apache Pulsar's own, are served as by the plain coordinator and never fenced.

An id that opened nothing for `id_retention_ms` is forgotten, by the times of the log, so that the room is bounded by the ids
in use. What its last epoch left open is fenced all the same: open transactions are asked for their owner, not this memory.

Sources: KIP-98 (transactional id, epoch, fencing), KIP-890 (an epoch for each transaction; here a transaction id is that);
`docs/adr/0003`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId

ID_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
"""Time for which an id is remembered after its last transaction; Kafka's transactional.id.expiration.ms."""

_FORGOTTEN_PER_NOTE: Final = 4

Name: TypeAlias = tuple[str | None, str]
"""Principal and transactional id."""

EpochImage: TypeAlias = tuple[Name, tuple[int, int]]
"""An id, its highest epoch, and when it was used last."""


class Fencing:
    """The transactional ids of one coordinator: the highest epoch of each, and the transactions that each has open.

    `max_active_of_id`: how many transactions of one transactional id may be open (0: any number); a successor ends as many
    in one Step. `epochs` is state, in the order in which ids were used last. `unfinished`, all that takes room of each id, and
    `_open_of` follow from the transactions.
    """

    def __init__(self, *, id_retention_ms: int = ID_RETENTION_MS, max_active_of_id: int = 0) -> None:
        self.epochs: OrderedMap[Name, tuple[int, int]] = OrderedMap()
        self._id_retention_ms = id_retention_ms
        self._max_active_of_id = max_active_of_id
        self._open_of: dict[Name, dict[int, None]] = {}
        self.unfinished: dict[Name, dict[int, None]] = {}

    # ---- decisions

    def check_asker(self, asker: Owner) -> None:
        """Refuse an instance that has a successor, with ProducerFenced."""
        identity = asker[1]
        if identity is not None and self.is_fenced(asker):
            raise fenced(identity[0])

    def is_fenced(self, owner: Owner) -> bool:
        """True if a higher epoch of the same transactional id was seen."""
        principal, identity = owner
        if identity is None:
            return False
        known = self.epochs.get((principal, identity[0]))
        return known is not None and identity[1] < known[0]

    def open_of(self, owner: Owner) -> Collection[int]:
        """The open transactions of the same transactional id, of any epoch."""
        principal, identity = owner
        return self._open_of.get((principal, identity[0]), ()) if identity is not None else ()

    def check_room(self, owner: Owner, count: int, tc_id: int) -> None:
        """Refuse one more transaction of an id that has `count` of them open, with TooManyRequests."""
        if owner[1] is not None and self._max_active_of_id and count >= self._max_active_of_id:
            raise Refusal(
                ServerError.TooManyRequests,
                f"transactional id {owner[1][0]!r} has {count} transactions open in coordinator {tc_id}, as many as it may"
                " (maxActiveTransactionsPerTransactionalId): end some, or try later",
            )

    # ---- the fold

    def note(self, owner: Owner, now_ms: int) -> None:
        """A NEW record of `owner` was applied."""
        principal, identity = owner
        if identity is None:
            return
        epochs, name = self.epochs, (principal, identity[0])
        highest, _ = epochs.pop(name) or (identity[1], 0)
        epochs[name] = (max(identity[1], highest), now_ms)
        for _ in range(_FORGOTTEN_PER_NOTE):  # not all at once: a hundred thousand may go out of use at the same time
            oldest = epochs.first()
            if oldest is None or oldest[1][1] + self._id_retention_ms >= now_ms:
                return
            del epochs[oldest[0]]

    def entered(self, owner: Owner, least: int, is_open: bool) -> None:
        """The transaction `least` of `owner` takes room."""
        principal, identity = owner
        if identity is not None:
            name = (principal, identity[0])
            self.unfinished.setdefault(name, {})[least] = None
            if is_open:
                self._open_of.setdefault(name, {})[least] = None

    def left_open(self, owner: Owner, least: int) -> None:
        """The transaction `least` of `owner` was decided, or prepared: it is no longer OPEN."""
        _take_out(self._open_of, owner, least)

    def ended(self, owner: Owner, least: int) -> None:
        """The transaction `least` of `owner` takes no room any more."""
        _take_out(self.unfinished, owner, least)

    def check(self, open_transactions: Iterable[tuple[TxnId, Owner]]) -> None:
        """Raise AssertionError when a transaction is open whose owner is fenced."""
        for txn_id, owner in open_transactions:
            if self.is_fenced(owner):
                raise AssertionError(f"fencing: {txn_id} of {owner} is open")

    # ---- snapshots

    def elements(self) -> Iterator[tuple[str, CoordinatorSnapshot.Epoch]]:
        """The epochs of this moment, each with the name of its field in a snapshot."""
        groups = self.epochs.moment().groups()
        return (("epochs", _epoch(item)) for group in groups for item in group)

    def restore(self, part: CoordinatorSnapshot) -> None:
        """Take over the epochs of a slice; a plain coordinator's snapshot has none."""
        for each in part.epochs:
            principal = each.principal if each.HasField("principal") else None
            self.epochs[principal, each.transactional_id] = (each.epoch, each.last_used_ms)


def fenced(transactional_id: str) -> Refusal:
    """Return what an instance that has a successor is answered."""
    return Refusal(
        ServerError.ProducerFenced,
        f"transactional id {transactional_id!r} was taken over by a newer instance; this one must stop",
    )


def _take_out(of: dict[Name, dict[int, None]], owner: Owner, least: int) -> None:
    principal, identity = owner
    if identity is not None:
        name = (principal, identity[0])
        left = of[name]
        del left[least]
        if not left:
            del of[name]


def _epoch(item: EpochImage) -> CoordinatorSnapshot.Epoch:
    (principal, transactional_id), (epoch, used_ms) = item
    return CoordinatorSnapshot.Epoch(principal=principal, transactional_id=transactional_id, epoch=epoch, last_used_ms=used_ms)
