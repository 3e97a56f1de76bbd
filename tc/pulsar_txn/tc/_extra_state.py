"""What follows from the extras of transactions: known nonces, what waits for a question, tokens of what has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.check_times import CheckPolicy, CheckRules, CheckTimes
from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.outcomes import OutcomeWindow
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.table import OPEN, PREPARED
from pulsar_txn.tc.tokens import EndedTokens

_BYTES_PER_OBJECT: Final = 256
"""Check data of so many bytes takes about as long to write as an object of a snapshot."""


class ExtraState:
    """The part of `CoordinatorState` about transactions with `extras`; no other one reaches it.

    `nonces`: which transaction an owner's nonce opened, while that takes room. `times`: what waits for a question. `tokens`: of
    prepared transactions that have ended. `prepared_ms`: since when each PREPARED one waits. `marked`: how many transactions
    have a check group or are prepared, or were.
    """

    def __init__(self, outcomes: OutcomeWindow, rules: CheckRules) -> None:
        self.nonces: dict[tuple[Owner, bytes], int] = {}
        self.times = CheckTimes(rules)
        self.tokens = EndedTokens(outcomes)
        self.marked = 0
        self.prepared_ms: dict[int, int] = {}
        self._bytes = 0

    @property
    def weight(self) -> int:
        """About how many objects of a snapshot it takes as long to write."""
        return len(self.tokens) + self._bytes // _BYTES_PER_OBJECT

    @property
    def is_plain(self) -> bool:
        """Whether readers that know nothing of groups and prepared transactions miss nothing."""
        return not self.marked and not self.tokens

    def entered(self, txn: Transaction) -> None:
        """A transaction with extras takes room."""
        extras = _extras_of(txn)
        if extras.nonce:
            self.nonces[txn.owner, extras.nonce] = txn.txn_id.least
        self.marked += _is_marked(extras)
        self._bytes += extras.size
        if txn.status is PREPARED:
            self.prepared_ms[txn.txn_id.least] = extras.prepared_ms
        if txn.status in (OPEN, PREPARED):
            self.waits(txn)

    def waits(self, txn: Transaction) -> None:
        """An OPEN or PREPARED transaction waits for its next question, if it has a check group."""
        extras, is_prepared = _extras_of(txn), txn.status is PREPARED
        since_ms = extras.prepared_ms if is_prepared else txn.start_time_ms
        self.times.watch(txn.txn_id.least, txn.owner[0], extras, since_ms, is_prepared)

    def counted(self, added: int) -> None:
        """The extras of a transaction have so many bytes more."""
        self._bytes += added

    def prepared(self, txn: Transaction, before: Extras | None) -> None:
        """A transaction was prepared; `before`: its extras until then."""
        extras = _extras_of(txn)
        self.marked += before is None or not _is_marked(before)
        self._bytes += extras.size - (0 if before is None else before.size)
        self.prepared_ms[txn.txn_id.least] = extras.prepared_ms
        self.waits(txn)

    def decided(self, txn: Transaction) -> None:
        """A transaction with extras was decided: nobody is asked for it any more."""
        self.prepared_ms.pop(txn.txn_id.least, None)
        group = _extras_of(txn).group
        if group is not None:
            self.times.forget(txn.txn_id.least, txn.owner[0], group)

    def ended(self, txn: Transaction) -> None:
        """A transaction with extras takes no room any more."""
        least, extras = txn.txn_id.least, _extras_of(txn)
        if self.nonces.get((txn.owner, extras.nonce)) == least:
            del self.nonces[txn.owner, extras.nonce]
        self.marked -= _is_marked(extras)
        self._bytes -= extras.size
        if extras.prepared_token:
            self.tokens.ended(least, extras.prepared_token)

    def contradictions(self, living: Iterable[Transaction]) -> Iterator[tuple[str, str]]:
        """What contradicts `table.INVARIANTS`, each with its id."""
        nonces, waiting, marked, size, keeps = {}, 0, 0, 0, self.times.rules.policy is CheckPolicy.KEEP
        for txn in living:
            extras = txn.extras
            if (txn.status is PREPARED) > (extras is not None and bool(extras.prepared_token)):
                yield "S2", f"{txn.txn_id} is PREPARED without a token"
            if extras is None:
                continue
            if extras.nonce:
                nonces[txn.owner, extras.nonce] = txn.txn_id.least
            marked += _is_marked(extras)
            size += extras.size
            if extras.group is not None and txn.status in (OPEN, PREPARED):
                due_ms = self.times.due_ms(txn.txn_id.least, txn.owner[0], extras.group)
                is_kept = txn.status is OPEN and extras.check_count >= self.times.rules.max_checks and keeps
                waiting += not is_kept
                if (due_ms is None) != is_kept:
                    yield "L1", f"{txn.txn_id} of group {extras.group!r} waits for {due_ms}"
        if waiting != self.times.count():
            yield "L1", f"{self.times.count()} transactions wait for a question or the policy, and not {waiting}"
        if nonces != self.nonces:
            yield "S16", f"nonces {self.nonces} should be {nonces}"
        if (marked, size) != (self.marked, self._bytes):
            yield "L7", f"{(self.marked, self._bytes)} are counted of extras, and there are {(marked, size)}"


def _is_marked(extras: Extras) -> bool:
    return extras.group is not None or bool(extras.prepared_token)


def _extras_of(txn: Transaction) -> Extras:
    assert txn.extras is not None  # noqa: S101 - callers have looked
    return txn.extras
