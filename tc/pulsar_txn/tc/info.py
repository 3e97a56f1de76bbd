"""Pictures in lists and stats of a transaction, and of a transactional id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

import attrs

from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.extras import NO_EXTRAS, Extras
from pulsar_txn.tc.fencing import Fencing, Name
from pulsar_txn.tc.owners import Identity
from pulsar_txn.tc.table import OPEN, PREPARED
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus


@attrs.frozen
class TransactionInfo:
    """An open, prepared or ending transaction at a moment.

    `modified_ms`: when its status changed last, or a participant was registered. `check_group`: None for none; `check_count`:
    how many questions about it members have begun to answer. `parked_ms`: since when it waits for an operator, None: it does
    not. `held`: why it is HELD (`causes.Cause`), 0 for what is not.
    """

    txn_id: TxnId
    status: TxnStatus
    principal: str | None
    identity: Identity | None
    start_time_ms: int
    timeout_ms: int
    participants: tuple[Participant, ...]
    modified_ms: int = 0
    extras: Extras = NO_EXTRAS

    @property
    def check_group(self) -> str | None:
        """Check group that is asked for its outcome; None for none."""
        return self.extras.group

    @property
    def check_count(self) -> int:
        """Number of questions about it that members have begun to answer."""
        return self.extras.check_count

    @property
    def prepared(self) -> bool:
        """True if it waits for its outcome."""
        return self.status is PREPARED

    @property
    def held(self) -> int:
        """Cause of its being HELD (`causes.Cause`), 0 for what is not."""
        return self.extras.held

    @property
    def parked_ms(self) -> int | None:
        """Time since when it waits for an operator, in ms; None: it does not."""
        return self.extras.parked_ms if self.status is OPEN else None


@attrs.frozen
class IdInfo:
    """A transactional id at a moment: its newest epoch, when that was used last, and what of all its epochs takes room.

    `unfinished`: the numbers of these transactions, oldest first; all of them, or as many as were asked for. Each is had by
    itself with `coordinator.transaction()`, because all of them with their participants may be a second of work.
    `transaction_count`: how many there are.
    """

    principal: str | None
    transactional_id: str
    epoch: int
    last_used_ms: int
    unfinished: tuple[int, ...]
    transaction_count: int


def info_of(txn: Transaction) -> TransactionInfo:
    """A transaction as it is now."""
    principal, identity = txn.owner
    participants = tuple(txn.participants())
    times = (txn.start_time_ms, txn.timeout_ms)
    extras = txn.extras or NO_EXTRAS
    return TransactionInfo(txn.txn_id, txn.status, principal, identity, *times, participants, txn.modified_ms, extras)


def ids_of(state: CoordinatorState) -> Iterator[IdInfo]:
    """The transactional ids that are remembered, longest unused first, then those of which only transactions are left."""
    if state.fencing is not None:
        for name in dict.fromkeys((*state.fencing.epochs, *state.fencing.unfinished)):
            found = id_info(state, *name)  # what is forgotten meanwhile is passed over
            if found is not None:
                yield found


def id_info(state: CoordinatorState, principal: str | None, transactional_id: str, most: int | None = None) -> IdInfo | None:
    """Describe one transactional id, None for nothing; with the `most` oldest of its transactions, or with all."""
    fencing, name = state.fencing, (principal, transactional_id)
    if fencing is None or (name not in fencing.epochs and name not in fencing.unfinished):
        return None
    return _id_info(state, fencing, name, most)


def _id_info(state: CoordinatorState, fencing: Fencing, name: Name, most: int | None) -> IdInfo:
    unfinished = fencing.unfinished.get(name, {})
    oldest = sorted(unfinished) if most is None else nsmallest(most, unfinished)
    known = fencing.epochs.get(name) or _known_by(state, unfinished)
    return IdInfo(*name, *known, tuple(oldest), len(unfinished))


def _known_by(state: CoordinatorState, unfinished: Iterable[int]) -> tuple[int, int]:
    """The epoch and last use of an id that was forgotten before its transactions."""
    transactions = [state.transactions[least] for least in unfinished]
    return max((txn.owner[1][1], txn.modified_ms) for txn in transactions if txn.owner[1] is not None)
