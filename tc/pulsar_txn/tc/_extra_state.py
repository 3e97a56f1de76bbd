"""State that follows from the extras of transactions: known nonces, what waits for a question, tokens of what has ended."""

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

    `nonces`: which transaction an owner's nonce opened, while that takes room. `times`: what waits for a question. `tokens`:
    of prepared transactions that have ended. `prepared_ms`: since when each PREPARED one waits; `parked_ms`: since when each
    parked one does, and `parked_bytes` of `CoordinatorState.bytes` are theirs. `prepared_of`: how many a role has prepared,
    and of how many bytes; `prepared_bytes`: of all. `marked`: how many transactions have a check group or are prepared, or
    were.
    """

    def __init__(self, outcomes: OutcomeWindow, rules: CheckRules) -> None:
        self.nonces: dict[tuple[Owner, bytes], int] = {}
        self.times = CheckTimes(rules)
        self.tokens = EndedTokens(outcomes)
        self.marked = 0
        self.prepared_ms: dict[int, int] = {}
        self.prepared_bytes = 0
        self.prepared_of: dict[str | None, tuple[int, int]] = {}
        self.parked_ms: dict[int, int] = {}
        self.parked_bytes = 0
        self._were_parked = 0
        self._bytes = 0

    @property
    def weight(self) -> int:
        """About how many objects of a snapshot it takes as long to write."""
        return len(self.tokens) + self._bytes // _BYTES_PER_OBJECT

    @property
    def is_plain(self) -> bool:
        """True if readers that know nothing of groups and prepared transactions miss nothing."""
        return not self.marked and not self.tokens

    @property
    def were_parked(self) -> bool:
        """True if readers that know nothing of parked transactions would miss something."""
        return bool(self._were_parked)

    def entered(self, txn: Transaction) -> None:
        """A transaction with extras takes room."""
        extras = _extras_of(txn)
        if extras.nonce:
            self.nonces[txn.owner, extras.nonce] = txn.txn_id.least
        self.marked += _is_marked(extras)
        self._bytes += extras.size
        self._were_parked += _has_parked(extras)
        if txn.status is PREPARED:
            self._note_prepared(txn, extras)
        if extras.parked_ms is not None:
            if txn.status is OPEN:
                self.parked_ms[txn.txn_id.least] = extras.parked_ms
                self.parked_bytes += txn.bytes
        elif txn.status in (OPEN, PREPARED):
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
        self._note_prepared(txn, extras)
        self.waits(txn)

    def parked(self, txn: Transaction) -> None:
        """A transaction was parked: nobody is asked for it any more."""
        extras, least = _extras_of(txn), txn.txn_id.least
        assert extras.parked_ms is not None and extras.group is not None  # noqa: S101, PT018 - the caller has written it
        self._were_parked += extras.resumed_ms is None
        self.parked_ms[least] = extras.parked_ms
        self.parked_bytes += txn.bytes
        self.times.forget(least, txn.owner[0], extras.group)

    def unparked(self, txn: Transaction) -> None:
        """A parked transaction is none any more: it was resumed, prepared or decided."""
        del self.parked_ms[txn.txn_id.least]
        self.parked_bytes -= txn.bytes

    def grew(self, txn: Transaction, size: int) -> None:
        """Participants of so many bytes were added to a transaction with extras; to a PREPARED one while it is restored."""
        if txn.txn_id.least in self.parked_ms:
            self.parked_bytes += size
        elif txn.status is PREPARED:
            self.prepared_bytes += size
            count, of_role = self.prepared_of[txn.owner[0]]
            self.prepared_of[txn.owner[0]] = (count, of_role + size)

    def _note_prepared(self, txn: Transaction, extras: Extras) -> None:
        self.prepared_ms[txn.txn_id.least] = extras.prepared_ms
        self._count_prepared(txn, 1)

    def _count_prepared(self, txn: Transaction, by: int) -> None:
        principal, size = txn.owner[0], by * txn.bytes
        count, of_role = self.prepared_of.get(principal, (0, 0))
        self.prepared_bytes += size
        self.prepared_of[principal] = (count + by, of_role + size)
        if not count + by:
            del self.prepared_of[principal]

    def decided(self, txn: Transaction) -> None:
        """A transaction with extras was decided: nobody is asked for it any more."""
        if self.prepared_ms.pop(txn.txn_id.least, None) is not None:
            self._count_prepared(txn, -1)
        group = _extras_of(txn).group
        if group is not None:
            self.times.forget(txn.txn_id.least, txn.owner[0], group)

    def ended(self, txn: Transaction) -> None:
        """A transaction with extras takes no room any more."""
        least, extras = txn.txn_id.least, _extras_of(txn)
        if self.nonces.get((txn.owner, extras.nonce)) == least:
            del self.nonces[txn.owner, extras.nonce]
        self.marked -= _is_marked(extras)
        self._were_parked -= _has_parked(extras)
        self._bytes -= extras.size
        if extras.prepared_token:
            self.tokens.ended(least, extras.prepared_token)

    def contradictions(self, unfinished: Iterable[Transaction]) -> Iterator[tuple[str, str]]:
        """Return what contradicts `table.INVARIANTS`, each with its id."""
        found = [txn for txn in unfinished if txn.extras is not None or txn.status is PREPARED]
        for txn in found:
            if txn.status is PREPARED and (txn.extras is None or not txn.extras.prepared_token):
                yield "S2", f"{txn.txn_id} is PREPARED without a token"
        of_extras = [(txn, txn.extras) for txn in found if txn.extras is not None]
        nonces = {(txn.owner, extras.nonce): txn.txn_id.least for txn, extras in of_extras if extras.nonce}
        if nonces != self.nonces:
            yield "S16", f"nonces {self.nonces} should be {nonces}"
        marked, size = sum(_is_marked(extras) for _, extras in of_extras), sum(extras.size for _, extras in of_extras)
        if (marked, size) != (self.marked, self._bytes):
            yield "L7", f"{(self.marked, self._bytes)} are counted of extras, and there are {(marked, size)}"
        parked = {txn.txn_id.least: txn.bytes for txn in found if txn.is_parked and txn.status is OPEN}
        if (parked.keys(), sum(parked.values())) != (self.parked_ms.keys(), self.parked_bytes):
            yield "L7", f"{self.parked_ms.keys()} with {self.parked_bytes} bytes are parked, and should be {parked}"
        prepared = [txn.bytes for txn in found if txn.status is PREPARED]
        counted = [sum(each) for each in zip(*self.prepared_of.values(), strict=True)] or [0, 0]
        if (*counted, self.prepared_bytes) != (len(prepared), sum(prepared), counted[1]):
            yield "L7", f"{self.prepared_of} are prepared, and should be {prepared}"
        yield from self._untimely(of_extras)

    def _untimely(self, of_extras: list[tuple[Transaction, Extras]]) -> Iterator[tuple[str, str]]:
        """Those that wait for a question, or for the policy, and should not; or the other way round."""
        times, waiting = self.times, 0
        for txn, extras in of_extras:
            if extras.group is None or txn.status not in (OPEN, PREPARED) or txn.is_parked:
                continue
            least = txn.txn_id.least
            due_ms, is_out = times.due_ms(least, txn.owner[0], extras.group), times.is_out(least)
            is_asked_out = txn.status is OPEN and extras.check_count >= times.rules.max_checks and not is_out
            is_kept = is_asked_out and times.rules.policy is CheckPolicy.KEEP
            waiting += not is_kept
            if (due_ms is None) != (is_kept or is_out):
                yield "L1", f"{txn.txn_id} of group {extras.group!r} waits for {due_ms}"
        if waiting != times.count():
            yield "L1", f"{times.count()} transactions wait for a question or the policy, and not {waiting}"


def _has_parked(extras: Extras) -> bool:
    """True if it is parked, or was."""
    return extras.parked_ms is not None or extras.resumed_ms is not None


def _is_marked(extras: Extras) -> bool:
    return extras.group is not None or bool(extras.prepared_token)


def _extras_of(txn: Transaction) -> Extras:
    assert txn.extras is not None  # noqa: S101 - callers have looked
    return txn.extras
