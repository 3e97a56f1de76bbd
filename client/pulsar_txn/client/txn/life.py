"""Where a transaction is in its life: its id, its state, its deadline, its failures, and who is told when it ends.

    NOT_STARTED ─first operation─► OPEN ─commit─► COMMITTING ─► COMMITTED
                                    │ │               │  ├────► ABORTED     an operation failed, or it was ended already
                                    │ │               │  └────► UNKNOWN     END_TXN may have worked, its answer is lost
                                    │ │               ▲  ▲
                                    │ ├─prepare─► PREPARING ─► PREPARED     commit and abort are legal in both; only an abort
                                    │ │               ▼  ▼                  is while the prepare is on its way
                                    │ └─abort─────► ABORTING ──► ABORTED
                                    └─deadline────► TIMED_OUT ─► ABORTED    (the coordinator aborts it as well)

A transaction without an id can be committed and aborted as well: nobody has to be asked for that. One that is PREPARED has
no deadline any more; its client may close, and leaves it alone. One with a check group can also be committed by a member of
the group: whoever did not hear of its abort from the coordinator does not know that it is aborted (UNKNOWN).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from pulsar_txn.client.errors import PulsarError, TransactionStateError, TransactionTimedOut
from pulsar_txn.client.txn.enlist import WhenEnded
from pulsar_txn.client.txn.prepared import PreparedToken
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

USABLE: Final = frozenset({TransactionState.NOT_STARTED, TransactionState.OPEN})
FINAL: Final = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.ERROR})
OUTCOMES: Final = {TransactionState.COMMITTED: TxnAction.COMMIT, TransactionState.ABORTED: TxnAction.ABORT}

HELD: Final = frozenset({TransactionState.PREPARING, TransactionState.PREPARED})
"""It waits for an end that the program decides on, and takes no operations."""

_TOLD: Final = FINAL | {TransactionState.TIMED_OUT, TransactionState.UNKNOWN}
_MAY_STILL_COMMIT: Final = USABLE | HELD | {TransactionState.COMMITTING, TransactionState.COMMITTED, TransactionState.UNKNOWN}


@attrs.frozen(kw_only=True)
class TransactionOptions:
    """How a transaction is opened and ended; seconds."""

    timeout: float = 60.0
    commit_timeout: float | None = None
    name: str | None = None
    force_abort: bool = False
    managed: bool = False
    checked: Checked | None = None
    """What only coordinators of ours can do for it: a check group, an abort with the connection."""
    visible: bool = True
    """Whether a commit waits until readers see it."""

    @property
    def check_group(self) -> str | None:
        """Whose members may end it as well."""
        return None if self.checked is None else self.checked.check_group


class Witness(Protocol):
    """Told what becomes of a transaction; called on the loop."""

    def opened(self) -> None:
        """Its coordinator gave it an id."""
        ...

    def doomed(self, error: BaseException) -> None:
        """Its first operation failed."""
        ...

    def ended(self) -> None:
        """It has reached a state in which nothing more can be done with it, and has an id."""
        ...


class Life:
    """The state of one transaction, which its other parts read and move on."""

    def __init__(
        self,
        options: TransactionOptions,
        monotonic: Callable[[], float],
        txn_id: TxnId | None,
        prepared: PreparedToken | None = None,
    ) -> None:
        self.options = options
        self.id = txn_id
        self.attached = txn_id is not None
        """Whether it was begun elsewhere, by somebody who may end it as well."""
        self.prepared = prepared
        """Its token, once the coordinator may have prepared it: it has no timeout from then on."""
        self.state = TransactionState.NOT_STARTED if txn_id is None else TransactionState.OPEN
        self.state = self.state if prepared is None else TransactionState.PREPARED
        self.usable = prepared is None
        """Whether operations are taken."""
        self.may_come_late = self.attached
        """Whether something of it may reach a broker after all its operations were answered: an operation was sent more than
        once, or somebody else may know its id and send in it."""
        self.id_shown = False
        """Whether the program has seen its id, and may have given it to somebody who ends it."""
        self.deadline: float | None = None
        self.failures: list[BaseException] = []
        self.left_to_group = False
        """Whether its outcome was left to its check group: it is unknown here, as it is meant to be."""
        self.counts_as_left = False
        """Whether statistics count it so."""
        self.aborts = False
        """END_TXN abort leaves or has left: whatever follows it comes too late."""
        self.opened_at = monotonic()
        self.ended_at: float | None = None
        self.witness: Witness | None = None
        self.when_lost: Callable[[], None] = lambda: None
        """Called when it can no longer be committed."""
        self._monotonic = monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: list[WhenEnded] = []
        self._told = False
        self._left: PulsarError | None = None

    def opened(self, txn_id: TxnId, asked_at: float) -> None:
        """The coordinator has opened it: its clock has run since it was asked."""
        self.id, self.opened_at = txn_id, asked_at
        timeout = self.options.timeout
        self.deadline = asked_at + timeout - min(1.0, timeout * 0.05)
        if self.state is TransactionState.NOT_STARTED:
            self.state = TransactionState.OPEN
        # Weakly: a transaction that the program dropped is to be collected, which warns.
        delay = max(0.0, self.deadline - self._monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, _call, weakref.WeakMethod(self.time_out))
        if self.witness is not None:
            self.witness.opened()

    def time_out(self) -> None:
        """Its time is over."""
        if self.state is TransactionState.OPEN:
            self.move(TransactionState.TIMED_OUT)

    @property
    def may_be_ended_elsewhere(self) -> bool:
        """True if somebody else may commit it, so that only its coordinator knows that it was not."""
        return self.options.check_group is not None or self.prepared is not None

    @property
    def is_known_to_others(self) -> bool:
        """True if somebody else may know its id, and have ended it: "not found" then says nothing about its outcome."""
        return self.attached or self.id_shown

    def show_id(self) -> TxnId | None:
        """The id, for the program: from now on others may know it."""
        self.may_come_late = self.id_shown = True
        return self.id

    def in_time(self) -> bool:
        """True if its time is not over; looks at the clock, because a program that computes holds up the timer."""
        if self.aborts:
            return False
        if self.deadline is None or self._monotonic() < self.deadline:
            return True
        self.time_out()
        return False

    def check_usable(self) -> None:
        """Raise TransactionTimedOut or TransactionStateError unless it takes operations."""
        if self.usable and self.in_time():
            return
        if self.state is TransactionState.TIMED_OUT:
            raise self.timed_out()
        raise TransactionStateError(
            f"the transaction is {self.state.value}", txn_id=self.id, hint="begin a new one for further operations"
        )

    def fail(self, error: BaseException) -> None:
        """An operation failed: nothing of the unit is to be committed. A refusal may be reported twice; it counts once."""
        if self.state in FINAL or self.state is TransactionState.UNKNOWN or (self.failures and self.failures[-1] is error):
            return
        self.failures.append(error)
        if len(self.failures) == 1 and self.witness is not None:
            self.witness.doomed(error)

    def leave(self, error: PulsarError) -> None:
        """Its cluster is left: what is under way fails, and the coordinator aborts it at its timeout."""
        if self.state is not TransactionState.PREPARED:
            self.deadline = self._monotonic()
        self._left = error
        if self.usable:
            self.fail(error)
            self.move(TransactionState.TIMED_OUT)

    def timed_out(self) -> TransactionTimedOut:
        """The error of an operation that comes too late."""
        over = f"the transaction's {self.options.timeout:g} s are over"
        return TransactionTimedOut(
            over if self._left is None else self._left.message,
            txn_id=self.id,
            hint="run the unit again, in smaller pieces or with a larger timeout=",
        )

    def when_ended(self, callback: WhenEnded) -> None:
        """Call back when it can no longer be used, and when its outcome is known; see `Enlisting.when_ended`."""
        if self._told:
            asyncio.get_running_loop().call_soon(callback, OUTCOMES.get(self.state))
        if self.state not in FINAL:
            self._callbacks.append(callback)

    def move(self, state: TransactionState) -> None:
        """It is in another state now; tell those who wait for that."""
        before, self.state = self.state, state
        self.usable = state in USABLE
        if self.usable:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state is TransactionState.PREPARED:
            self.deadline = None
        if state in FINAL:
            self.ended_at = self._monotonic()
        if state not in _MAY_STILL_COMMIT:
            self.when_lost()
        if state in _TOLD:
            self._tell()
            if self.id is not None and state is not before and self.witness is not None:
                self.witness.ended()

    def _tell(self) -> None:
        final = self.state in FINAL
        if self._told and not final:
            return
        self._told = True
        callbacks = self._callbacks
        if final:
            self._callbacks = []
        for callback in list(callbacks):
            callback(OUTCOMES.get(self.state))


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    bound = method()
    if bound is not None:
        bound()
