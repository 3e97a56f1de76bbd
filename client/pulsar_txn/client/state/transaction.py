"""The life of one transaction as its client sees it, from its first operation to its outcome.

This machine decides whether operations are taken, what a commit waits for, whether END_TXN is sent and with what, and what each
answer says of the outcome. It never waits, sends or looks at a clock: the shell (`txn/unit.py`) tells it what happened,
performs the effects, and carries out one **step** after the other of an end that is on its way.

NEW has no id yet: its first operation asks for one, and only then does its clock run. Without an id it can be committed and
aborted as well; nobody has to be asked for that. OPEN takes operations; TIMED_OUT takes none, and can only be aborted.

COMMITTING waits for the operations, then sends END_TXN. One operation that failed dooms the transaction, for part of a unit is
never committed: it is RECALLING then, which is an abort in the name of the commit, whose caller is told why.

ABORTING waits for the operations as well, because an acknowledgement that reaches its broker after the abort would stay pending
there. ABORT_LOST means that the abort was not answered; it may be asked for again, and the coordinator aborts at the timeout.

PREPARING waits for the operations and then hands the coordinator a token; after a lost answer the transaction is PREPARE_LOST.
PREPARED has no timeout. Whoever has the token ends it, so the end of its client does not.

Four states are UNKNOWN to the program, and differ in what may still be asked for:

* COMMIT_UNKNOWN: END_TXN commit may have been carried out. A commit asks again, which is idempotent; an abort is refused.
* ABORT_UNKNOWN: an abort found no transaction, and somebody else may have committed it. It may be asked for again; a commit may
  not, for the program wanted an abort.
* GIVEN_UP: its commit was recalled, and its check group, or whoever knows its id, may have committed it nevertheless.
* LEFT: it was left to its check group, open. Its outcome is unknown here because that was asked for. Either end may be asked
  for, and what was under way then is waited for first.

The hardest part is what the answers to END_TXN mean. Three rules, in order of importance:

* An outcome is UNKNOWN only when END_TXN commit may have reached the coordinator, or when others may end the transaction.
* "Not found" is no outcome. It means an abort only where nobody else can have committed: this client began the transaction,
  the program has never seen its id, and no commit of it was sent.
* What others may commit as well is aborted when its coordinator says so, not when this client has given it up.

Sources: PIP-31; the coordinator's status machine (`tc.table`) for which answer says what; KIP-939 for prepare.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import attrs

from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    FeatureUnsupported,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionFenced,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
    UsageError,
)
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

ABORT_WAIT_SECONDS: Final = 2.0
"""Time that an abort has at least, and all that one has whose block was cancelled; the coordinator's timeout does the rest."""


class TransactionState(enum.Enum):
    """The state of a transaction, as far as this client knows."""

    NOT_STARTED = "NOT_STARTED"
    """Begun lazily, and without an operation yet: the coordinator does not know it."""
    OPEN = "OPEN"
    """Takes operations."""
    PREPARING = "PREPARING"
    """The prepare is on its way, or its answer was lost: it takes no more operations."""
    PREPARED = "PREPARED"
    """Waits for commit or abort by the holder of its token, whatever becomes of this client. It has no timeout."""
    COMMITTING = "COMMITTING"
    """The commit is on its way."""
    COMMITTED = "COMMITTED"
    """Took effect. Final."""
    ABORTING = "ABORTING"
    """The abort is on its way, or its answer was lost."""
    ABORTED = "ABORTED"
    """Nothing of it took effect, and nothing will. Final."""
    TIMED_OUT = "TIMED_OUT"
    """Its time is over: it takes no more operations and can only be aborted."""
    UNKNOWN = "UNKNOWN"
    """The commit was sent and its answer lost; `resolve()` of the error asks."""
    ERROR = "ERROR"
    """Its end was refused; the coordinator's answer says why. Final."""

    __hash__ = object.__hash__  # each member is there once; Enum's own hash is Python code, and runs at every look-up


FINAL: Final = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.ERROR})
"""States after which nothing more can happen."""
HELD: Final = frozenset({TransactionState.PREPARING, TransactionState.PREPARED})
"""States that wait for an end that the program decides on, and take no operations."""


@attrs.frozen(kw_only=True)
class TransactionOptions:
    """Options with which a transaction is opened and ended; seconds.

    `checked` is for coordinators of ours: a check group, an abort with the connection. With `visible` a commit waits until
    readers see it.
    """

    timeout: float = 60.0
    commit_timeout: float | None = None
    name: str | None = None
    force_abort: bool = False
    managed: bool = False
    checked: Checked | None = None
    visible: bool = True

    @property
    def check_group(self) -> str | None:
        """The group whose members may end it as well."""
        return None if self.checked is None else self.checked.check_group


class State(enum.IntEnum):
    """A transaction's state."""

    NEW = 0
    OPEN = 1
    TIMED_OUT = 2
    PREPARING = 3
    PREPARE_LOST = 4
    PREPARED = 5
    COMMITTING = 6
    RECALLING = 7
    ABORTING = 8
    ABORT_LOST = 9
    COMMIT_UNKNOWN = 10
    ABORT_UNKNOWN = 11
    GIVEN_UP = 12
    LEFT = 13
    COMMITTED = 14
    ABORTED = 15
    ERROR = 16


class Event(enum.IntEnum):
    """Something that happens to a transaction. Those from IS_COMMITTED on are what an answer says."""

    OPENED = 0
    FAIL = 1
    EXPIRE = 2
    COMMIT = 3
    ABORT = 4
    PREPARE = 5
    LEAVE = 6
    RECALL = 7
    IS_COMMITTED = 8
    IS_ABORTED = 9
    IS_PREPARED = 10
    MAYBE_COMMITTED = 11
    MAYBE_ABORTED = 12
    MAYBE_PREPARED = 13
    GIVE_UP = 14
    UNANSWERED = 15
    REFUSED = 16


class Act(enum.Enum):
    """The machine's answer to an event."""

    MOVE = "note it"
    DOOM = "note the failure; it can only be aborted"
    COMMIT = "wait for its operations, send END_TXN commit"
    AGAIN = "send END_TXN commit again"
    RECALL = "abort it, and say why"
    ABORT = "wait for its operations, send END_TXN abort"
    PREPARE = "wait for its operations, send PREPARE_TXN"
    REPEAT = "send PREPARE_TXN again"
    SHARE = "wait for what is on its way"
    DONE = "nothing is left to do"
    REFUSE = "TransactionStateError"
    SKIP = "do nothing"


class Cell(NamedTuple):
    """An act, and the state after it."""

    act: Act
    to: State


_SHOWN: Final = (
    TransactionState.NOT_STARTED,
    TransactionState.OPEN,
    TransactionState.TIMED_OUT,
    TransactionState.PREPARING,
    TransactionState.PREPARING,
    TransactionState.PREPARED,
    TransactionState.COMMITTING,
    TransactionState.ABORTING,
    TransactionState.ABORTING,
    TransactionState.ABORTING,
    TransactionState.UNKNOWN,
    TransactionState.UNKNOWN,
    TransactionState.UNKNOWN,
    TransactionState.UNKNOWN,
    TransactionState.COMMITTED,
    TransactionState.ABORTED,
    TransactionState.ERROR,
)
"""State -> what the program sees."""

_USABLE: Final = frozenset({State.NEW, State.OPEN})
_ON_ITS_WAY: Final = frozenset({State.PREPARING, State.COMMITTING, State.RECALLING, State.ABORTING})
_WAITS_FOR_TOKEN: Final = frozenset({State.PREPARE_LOST, State.PREPARED})
_WANTED_ABORT: Final = frozenset({State.RECALLING, State.ABORTING, State.ABORT_LOST, State.ABORT_UNKNOWN, State.GIVEN_UP})
_CANNOT_COMMIT: Final = frozenset(
    {TransactionState.TIMED_OUT, TransactionState.ABORTING, TransactionState.ABORTED, TransactionState.ERROR}
)
_TOLD: Final = FINAL | {TransactionState.TIMED_OUT, TransactionState.UNKNOWN}
_OUTCOMES: Final = {TransactionState.COMMITTED: TxnAction.COMMIT, TransactionState.ABORTED: TxnAction.ABORT}

_SAID: Final = {
    Event.IS_COMMITTED: Cell(Act.MOVE, State.COMMITTED),
    Event.IS_ABORTED: Cell(Act.MOVE, State.ABORTED),
    Event.MAYBE_COMMITTED: Cell(Act.MOVE, State.COMMIT_UNKNOWN),
}
"""Answers of the coordinator about a transaction that has not ended, also to a question."""


def _row(state: State, cells: Mapping[Event, Cell]) -> dict[tuple[State, Event], Cell]:
    """The row of a state: what is not in `cells` changes nothing, and what the program asks for is refused."""
    refused = dict.fromkeys((Event.COMMIT, Event.ABORT, Event.PREPARE, Event.LEAVE), Cell(Act.REFUSE, state))
    return {(state, event): cells.get(event, refused.get(event, Cell(Act.SKIP, state))) for event in Event}


def _doomed(state: State) -> dict[Event, Cell]:
    return _SAID | {Event.FAIL: Cell(Act.DOOM, state)}


_ABORTS: Final = {Event.ABORT: Cell(Act.ABORT, State.ABORTING)}
_LEAVES: Final = {Event.LEAVE: Cell(Act.MOVE, State.LEFT)}

TRANSITIONS: Final[Mapping[tuple[State, Event], Cell]] = {
    **_row(
        State.NEW,
        _doomed(State.NEW)
        | _ABORTS
        | _LEAVES
        | {
            Event.OPENED: Cell(Act.MOVE, State.OPEN),
            Event.EXPIRE: Cell(Act.MOVE, State.TIMED_OUT),
            Event.COMMIT: Cell(Act.COMMIT, State.COMMITTING),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
        },
    ),
    **_row(
        State.OPEN,
        _doomed(State.OPEN)
        | _ABORTS
        | _LEAVES
        | {
            Event.EXPIRE: Cell(Act.MOVE, State.TIMED_OUT),
            Event.COMMIT: Cell(Act.COMMIT, State.COMMITTING),
            Event.PREPARE: Cell(Act.PREPARE, State.PREPARING),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
        },
    ),
    **_row(
        State.TIMED_OUT,
        _doomed(State.TIMED_OUT)
        | _ABORTS
        | _LEAVES
        | {Event.COMMIT: Cell(Act.RECALL, State.RECALLING), Event.RECALL: Cell(Act.RECALL, State.RECALLING)},
    ),
    **_row(
        State.PREPARING,
        _doomed(State.PREPARING)
        | _ABORTS
        | {
            Event.PREPARE: Cell(Act.SHARE, State.PREPARING),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
            Event.IS_PREPARED: Cell(Act.MOVE, State.PREPARED),
            Event.MAYBE_PREPARED: Cell(Act.MOVE, State.PREPARE_LOST),
        },
    ),
    **_row(
        State.PREPARE_LOST,
        _doomed(State.PREPARE_LOST)
        | _ABORTS
        | _LEAVES
        | {
            Event.COMMIT: Cell(Act.COMMIT, State.COMMITTING),
            Event.PREPARE: Cell(Act.REPEAT, State.PREPARING),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
        },
    ),
    **_row(
        State.PREPARED,
        _doomed(State.PREPARED)
        | _ABORTS
        | _LEAVES
        | {
            Event.COMMIT: Cell(Act.COMMIT, State.COMMITTING),
            Event.PREPARE: Cell(Act.DONE, State.PREPARED),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
        },
    ),
    **_row(
        State.COMMITTING,
        _doomed(State.COMMITTING)
        | {
            Event.COMMIT: Cell(Act.SHARE, State.COMMITTING),
            Event.RECALL: Cell(Act.RECALL, State.RECALLING),
            Event.IS_PREPARED: Cell(Act.MOVE, State.PREPARED),
            Event.MAYBE_PREPARED: Cell(Act.MOVE, State.PREPARE_LOST),
            Event.UNANSWERED: Cell(Act.MOVE, State.TIMED_OUT),
        },
    ),
    **_row(
        State.RECALLING,
        _doomed(State.RECALLING)
        | {
            Event.COMMIT: Cell(Act.SHARE, State.RECALLING),
            Event.ABORT: Cell(Act.SHARE, State.RECALLING),
            Event.MAYBE_ABORTED: Cell(Act.MOVE, State.ABORT_UNKNOWN),
            Event.GIVE_UP: Cell(Act.MOVE, State.GIVEN_UP),
            Event.UNANSWERED: Cell(Act.MOVE, State.ABORT_LOST),
            Event.REFUSED: Cell(Act.MOVE, State.ERROR),
        },
    ),
    **_row(
        State.ABORTING,
        _doomed(State.ABORTING)
        | {
            Event.ABORT: Cell(Act.SHARE, State.ABORTING),
            Event.MAYBE_ABORTED: Cell(Act.MOVE, State.ABORT_UNKNOWN),
            Event.UNANSWERED: Cell(Act.MOVE, State.ABORT_LOST),
            Event.REFUSED: Cell(Act.MOVE, State.ERROR),
        },
    ),
    **_row(State.ABORT_LOST, _doomed(State.ABORT_LOST) | _ABORTS),
    **_row(State.COMMIT_UNKNOWN, _SAID | {Event.COMMIT: Cell(Act.AGAIN, State.COMMITTING)}),
    **_row(State.ABORT_UNKNOWN, _SAID | _ABORTS),
    **_row(State.GIVEN_UP, _SAID | _ABORTS | {Event.COMMIT: Cell(Act.RECALL, State.RECALLING)}),
    **_row(State.LEFT, _doomed(State.LEFT) | _ABORTS | {Event.COMMIT: Cell(Act.COMMIT, State.COMMITTING)}),
    **_row(State.COMMITTED, {}),
    **_row(State.ABORTED, {Event.ABORT: Cell(Act.DONE, State.ABORTED)}),
    **_row(State.ERROR, {}),
}
"""(state, event) -> act and next state; complete."""


# --- what the shell does ------------------------------------------------------------------------------------------------


class AwaitOperations(NamedTuple):
    """Flush, and wait for the operations; then `operations_ended`. With `whole`, calls that nobody awaited are failures."""

    until: float
    whole: bool


class AwaitId(NamedTuple):
    """Wait for an id that was asked for; then `id_awaited`."""

    until: float


class EndTxn(NamedTuple):
    """Send END_TXN within `timeout` seconds; then `answered`. The fields are those of `TransactionCoordinators.end_txn`."""

    txn_id: TxnId
    action: TxnAction
    timeout: float
    group: Sequence[TxnId] = ()
    abort_others: bool = False
    prepared: PreparedToken | None = None
    at_decision: bool = False
    all_answered: bool = False


class PrepareTxn(NamedTuple):
    """Send PREPARE_TXN with the token, within `timeout` seconds; then `answered`."""

    token: PreparedToken
    timeout: float


class Answer(NamedTuple):
    """End: the caller is told, by this error if there is one."""

    error: BaseException | None = None


Step: TypeAlias = AwaitOperations | AwaitId | EndTxn | PrepareTxn | Answer


class BringInputBack(NamedTuple):
    """Have what was received in it, and was not acknowledged, delivered again."""


class ForgetInput(NamedTuple):
    """Its commit took effect: what was received in it is acknowledged."""


class StartTimer(NamedTuple):
    """Call `expire` at this time."""

    at: float


class StopTimer(NamedTuple):
    """Never call it."""


class TellEnd(NamedTuple):
    """Tell who waits for its end; None when it can no longer be used and the outcome is open. `final`: nothing follows."""

    outcome: TxnAction | None
    final: bool


class Opened(NamedTuple):
    """Observers: it has an id."""


class Doomed(NamedTuple):
    """Observers: its first operation failed."""

    error: BaseException


class Ending(NamedTuple):
    """Observers: an end begins."""

    action: TxnAction


class Ended(NamedTuple):
    """Observers: nothing more can be done with it for now."""


class WarnEmpty(NamedTuple):
    """Log that nothing was in it."""


Effect: TypeAlias = (
    BringInputBack | ForgetInput | StartTimer | StopTimer | TellEnd | Opened | Doomed | Ending | Ended | WarnEmpty
)


class Target:
    """Operations on a topic partition (`subscription` None) or a subscription, counted in messages."""

    __slots__ = ("bytes", "confirmed", "cumulative", "failed", "started", "subscription", "topic")

    def __init__(self, topic: str, subscription: str | None) -> None:
        self.topic = topic
        self.subscription = subscription
        self.started = self.confirmed = self.failed = self.bytes = 0
        self.cumulative = False

    @property
    def in_flight(self) -> int:
        """Messages without an answer."""
        return self.started - self.confirmed - self.failed


class TransactionMachine:
    """The machine. A method is an event; `effects` is what the shell then performs, in its order, and clears.

    The events of an end (`commit`, `abort`, `prepare`, `operations_ended`, `id_awaited`, `answered`) return its next step. All
    times are seconds of one monotonic clock. `txn_id`: of a transaction that was begun elsewhere; `prepared`: its token.
    """

    def __init__(
        self, options: TransactionOptions, now: float, txn_id: TxnId | None = None, prepared: PreparedToken | None = None
    ) -> None:
        self.options = options
        self.effects: list[Effect] = []
        self.id = txn_id
        self.attached = txn_id is not None
        """True if it was begun elsewhere, by somebody who may end it as well."""
        self.prepared = prepared
        """Its token, once the coordinator may have prepared it."""
        self.state = State.NEW if txn_id is None else State.OPEN if prepared is None else State.PREPARED
        self.usable = prepared is None
        """True if operations are taken."""
        self.may_come_late = self.attached
        """True if something of it may reach a broker after all its operations were answered: an operation was sent more than
        once, or somebody else may know its id and send in it."""
        self.id_shown = False
        """True if the program has seen its id, and may have given it to somebody who ends it."""
        self.deadline: float | None = None
        self.failures: list[BaseException] = []
        self.closed_by: PulsarError | None = None
        """Cause of an abort by the client, for which the program did not ask."""
        self.opened_at = now
        self.ended_at: float | None = None
        self.group: Sequence[TxnId] = ()
        """Further transactions of its coordinator that are committed by the same record; an abort leaves them alone."""
        self.aborts_others = False
        """True if its commit aborts all else that the transactional id has open."""
        self.visible = options.visible
        self.looked_for_input = False
        self.busy_targets = 0
        """Targets that have operations in flight."""
        self.step: Step | None = None
        """Step of the end that is on its way."""
        self._targets: dict[tuple[str, str | None], Target] = {}
        self._left_by: PulsarError | None = None
        self._abort_left = False
        self._commit_left = False
        # of the end that is on its way
        self._end = 0.0
        self._from = self.state
        self._reason: TransactionAborted | None = None
        self._recalls = False
        self._repeated = False
        self._token: PreparedToken | None = None

    # --- looking at it ----------------------------------------------------------------------------------------------

    @property
    def shown(self) -> TransactionState:
        """Its state, as the program sees it."""
        return _SHOWN[self.state]

    @property
    def outcome(self) -> TxnAction | None:
        """Its outcome; None as long as it is not known here."""
        return _OUTCOMES.get(_SHOWN[self.state])

    @property
    def is_on_its_way(self) -> bool:
        """True if a commit, an abort or a prepare has begun and has no answer yet."""
        return self.state in _ON_ITS_WAY

    @property
    def is_empty(self) -> bool:
        """True if it has no id, and nothing was done in it that would need one."""
        return self.id is None and not self._targets and not self.looked_for_input

    @property
    def targets(self) -> Collection[Target]:
        """Targets of its operations, in the order of first use."""
        return self._targets.values()

    @property
    def in_flight(self) -> int:
        """Messages without an answer."""
        return sum(target.in_flight for target in self._targets.values()) if self.busy_targets else 0

    @property
    def may_be_ended_elsewhere(self) -> bool:
        """True if somebody else may commit it, so that only its coordinator knows that it was not."""
        return self.options.check_group is not None or self.prepared is not None

    @property
    def _is_known_to_others(self) -> bool:
        """True if somebody else may know its id, and have ended it: "not found" then says nothing about its outcome."""
        return self.may_be_ended_elsewhere or self.attached or self.id_shown

    def show_id(self) -> TxnId | None:
        """Return the id, for the program: from now on others may know it."""
        self.may_come_late = self.id_shown = True
        return self.id

    # --- operations -------------------------------------------------------------------------------------------------

    def opened(self, txn_id: TxnId, asked_at: float) -> None:
        """Its coordinator has opened it; its clock has run since it was asked."""
        timeout = self.options.timeout
        self.id, self.opened_at = txn_id, asked_at
        self.deadline = asked_at + timeout - min(1.0, timeout * 0.05)
        self._move(Event.OPENED, asked_at)
        if self.state is State.OPEN:
            self.effects.append(StartTimer(self.deadline))
        self.effects.append(Opened())

    def check_usable(self, now: float) -> None:
        """Raise TransactionTimedOut or TransactionStateError unless it takes operations."""
        if self.usable and self.in_time(now):
            return
        if self.state is State.TIMED_OUT:
            raise self._timed_out()
        raise TransactionStateError(
            f"the transaction is {self.shown.value}", txn_id=self.id, hint="begin a new one for further operations"
        )

    def in_time(self, now: float) -> bool:
        """True if what leaves now arrives before its end; a program that computes holds up the timer."""
        if self._abort_left:
            return False
        if self.deadline is None or now < self.deadline:
            return True
        self._move(Event.EXPIRE, now)
        return False

    def operation_starts(
        self, topic: str, subscription: str | None, messages: int, size: int = 0, *, cumulative: bool = False
    ) -> Target:
        """Operations on a target begin."""
        key = (topic, subscription)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(topic, subscription)
        if not target.in_flight:
            self.busy_targets += 1
        target.started += messages
        target.bytes += size
        if cumulative:
            target.cumulative = True
        return target

    def sends_added(self, topic: str, messages: int, size: int) -> None:
        """Further sends to a topic partition begin, while others of it are in flight."""
        target = self._targets[topic, None]
        target.started += messages
        target.bytes += size

    def operation_ends(self, topic: str, subscription: str | None, messages: int, error: BaseException | None) -> None:
        """Operations on a target were answered, or have failed."""
        target = self._targets[topic, subscription]
        if error is None:
            target.confirmed += messages
        else:
            target.failed += messages
            self.fail(error)
        if not target.in_flight:
            self.busy_targets -= 1

    def fail(self, error: BaseException) -> None:
        """An operation failed. A refusal may be reported twice; it counts once, and an abort counts the first one only."""
        if TRANSITIONS[self.state, Event.FAIL].act is not Act.DOOM:
            return
        if self.failures and (self.failures[-1] is error or self.state in _WANTED_ABORT):
            return
        self.failures.append(error)
        if len(self.failures) == 1:
            self.effects.append(Doomed(error))

    def expire(self, now: float) -> None:
        """Its time is over."""
        self._move(Event.EXPIRE, now)

    def drop(self, error: PulsarError, now: float) -> None:
        """Its client leaves the cluster, or has no time to abort it: the coordinator does at its timeout."""
        if self.state is not State.PREPARED:
            self.deadline = now
        self._left_by = error
        if self.usable:
            self.fail(error)
            self._move(Event.EXPIRE, now)

    # --- ends that are asked for ------------------------------------------------------------------------------------

    def input_is_due(self, now: float) -> bool:
        """True if what was received in it is to be acknowledged now, before an end that may commit it."""
        return self.usable and not self.failures and self.in_time(now)

    def commit(self, now: float, budget: float) -> Step | None:
        """Commit within `budget` seconds; None: share the end that is on its way. Raises TransactionStateError."""
        if self.closed_by is not None:
            raise self.closed_by
        before, act = self.state, TRANSITIONS[self.state, Event.COMMIT].act
        if act is Act.SHARE:
            return None
        if act is Act.REFUSE:
            raise self._not_now("commit")
        self._begins(TxnAction.COMMIT, now + budget)
        if act is Act.RECALL:
            reason = self._reason if before is State.GIVEN_UP else self._timed_out()
            return self._recall(reason, now, budget, operations_ended=before is State.GIVEN_UP)
        self._move(Event.COMMIT, now)
        if act is Act.AGAIN and not self.attached:
            return self._whole(now)
        return self._await_operations(self._end, whole=True)

    def abort(self, now: float, budget: float) -> Step | None:
        """Abort within `budget` seconds; None: share the end that is on its way, or done. Raises TransactionStateError."""
        act = TRANSITIONS[self.state, Event.ABORT].act
        if act is Act.SHARE or act is Act.DONE:
            return None
        if act is Act.REFUSE:
            raise self._not_now("abort")
        self._begins(TxnAction.ABORT, now + budget)
        self._reason = None
        self._move(Event.ABORT, now)
        return self._abort_waits(budget)

    def prepare(self, token: PreparedToken, now: float, budget: float) -> Step | None:
        """Prepare within `budget` seconds; None: it is prepared. Its id has come. Raises as `check_usable`."""
        act = TRANSITIONS[self.state, Event.PREPARE].act
        if act is Act.DONE or act is Act.SHARE:
            return None
        if act is not Act.REPEAT:
            self.check_usable(now)
        self._begins(None, now + budget)
        self._token = self.prepared or token
        self._move(Event.PREPARE, now)
        return self._await_operations(self._end, whole=True)

    def check_leavable(self) -> None:
        """Raise TransactionStateError unless it can be left to its group."""
        if self.options.check_group is None:
            raise TransactionStateError(
                "nobody would be asked for the outcome: the transaction has no check group",
                txn_id=self.id,
                hint="begin it with check_group=, or commit() or abort() it",
            )
        if TRANSITIONS[self.state, Event.LEAVE].act is Act.REFUSE:
            raise TransactionStateError(f"the transaction is {self.shown.value}", txn_id=self.id)

    def leave(self, now: float, *, is_opening: bool) -> None:
        """Leave it to its group, open. Nothing is left where the coordinator was never asked for an id."""
        self._move(Event.LEAVE if self.id is not None or is_opening else Event.IS_ABORTED, now)

    def recall(self, now: float, budget: float) -> Step | None:
        """Abort it if an operation failed, and say why, though no commit was asked for; None: it is whole."""
        if not self.failures:
            return None
        self._begins(None, now + budget)
        return self._recall(self._operation_failed(), now, budget, operations_ended=True)

    def close(self, error: PulsarError, now: float, budget: float, *, is_opening: bool) -> Step | None:
        """Its client closes: leave alone what others decide on, abort what is open. None: there is nothing to abort."""
        state, prepares = self.state, self.state is State.PREPARING
        on_its_way = self.is_on_its_way and not prepares
        if on_its_way or self.shown is TransactionState.UNKNOWN or (self.attached and self.usable) or self.shown in FINAL:
            return None
        if self.is_left_to_others and not prepares:
            if state is not State.PREPARED:
                self.leave(now, is_opening=is_opening)
            return None
        self.closed_by = error
        self.fail(error)
        return self.abort(now, budget)

    def run_out(self, error: PulsarError, now: float, *, is_opening: bool) -> None:
        """Its client closes, and has no time to abort it: the coordinator does at its timeout."""
        if not self.usable or self.attached:
            return
        if self.is_left_to_others:
            self.leave(now, is_opening=is_opening)
        else:
            self.closed_by = error
            self.drop(error, now)

    @property
    def is_left_to_others(self) -> bool:
        """True if the close of its client leaves it as it is, because somebody else decides on it."""
        if self.state is State.PREPARED:
            return True
        return self.options.check_group is not None and self.id is not None and not self.failures

    # --- steps ------------------------------------------------------------------------------------------------------

    def commit_together(self, group: Sequence[TxnId], *, aborts_others: bool) -> None:
        """Its commit is also that of these."""
        self.group, self.aborts_others = group, aborts_others

    def answer_early(self) -> None:
        """Its commit is answered at the decision, and readers may see it later."""
        self.visible = False

    def operation_repeated(self) -> None:
        """An operation was written once more on another connection: the first one may still reach its broker, late."""
        self.may_come_late = True

    def looks_for_input(self) -> None:
        """The program has asked for input in it, also when none came."""
        self.looked_for_input = True

    def operations_ended(self, all_ended: bool, now: float) -> Step:
        """The operations were waited for."""
        self._note_unanswered(all_ended)
        return self._id_or_abort(now) if self.state in _WANTED_ABORT else self._whole(now)

    def waited(self, all_ended: bool, now: float, budget: float) -> Step | None:
        """The operations were waited for, before it is left; None: it is whole. The step aborts it."""
        self._note_unanswered(all_ended)
        return self.recall(now, budget)

    def id_awaited(self, now: float) -> Step:
        """The id was waited for."""
        return self._end_abort(now)

    def broken(self, step: Step, now: float) -> None:
        """A step ended in a way that says nothing, for instance because the event loop ends."""
        if step is not self.step:
            return
        self.step = None
        lost = {State.PREPARING: Event.MAYBE_PREPARED, State.COMMITTING: Event.MAYBE_COMMITTED}
        self._move(lost.get(self.state, Event.UNANSWERED), now)

    def answered(self, error: PulsarError | None, now: float, *, left: bool) -> Step:
        """The coordinator has answered the step's request, or could not be asked. `left`: the request was sent."""
        step = self.step
        if isinstance(step, PrepareTxn):
            return self._prepare_answered(error, now)
        if isinstance(step, EndTxn) and step.action is TxnAction.COMMIT:
            self._commit_left |= left
            return self._next(self._commit_answered(error, now, left=left))
        return self._abort_answered(error, now)

    def _begins(self, action: TxnAction | None, end: float) -> None:
        self._from, self._end, self._repeated, self._recalls, self._token = self.state, end, False, False, None
        if action is not None:
            self.effects.append(Ending(action))

    def _next(self, step: Step) -> Step:
        self.step = None if isinstance(step, Answer) else step
        return step

    def _await_operations(self, until: float, *, whole: bool) -> Step:
        return self._next(AwaitOperations(until if self.deadline is None else min(until, self.deadline), whole))

    def _note_unanswered(self, all_ended: bool) -> None:
        if not all_ended:
            self.fail(
                TransactionTimedOut(
                    f"{self.in_flight} operations were not confirmed in time",
                    txn_id=self.id,
                    hint="run the unit again; a larger commit_timeout= or timeout= waits longer",
                )
            )

    def _whole(self, now: float) -> Step:
        """Go on with a commit or prepare if all operations have worked."""
        left = self._end - now
        if self.failures:
            return self._recall(self._operation_failed(), now, left, operations_ended=True)
        if self._token is not None:
            self._repeated, self.prepared = self.prepared is not None, self._token
            return self._next(PrepareTxn(self._token, max(0.001, left)))
        if self.options.force_abort:
            return self._recall(None, now, left, operations_ended=True)
        if self.id is None:
            if self.is_empty:
                self.effects.append(WarnEmpty())
            self._move(Event.IS_COMMITTED, now)
            return self._next(Answer())
        return self._next(self._end_commit(self.id, max(0.001, left)))

    def _end_commit(self, txn_id: TxnId, timeout: float) -> EndTxn:
        return EndTxn(
            txn_id,
            TxnAction.COMMIT,
            timeout,
            group=self.group,
            abort_others=self.aborts_others,
            prepared=self.prepared,
            at_decision=not self.visible,
            all_answered=not (self.group or self.aborts_others or self.prepared or self.may_come_late),
        )

    # --- commit -----------------------------------------------------------------------------------------------------

    def _commit_answered(self, error: PulsarError | None, now: float, *, left: bool) -> Answer:
        if error is None:
            self._move(Event.IS_COMMITTED, now)
            return Answer()
        again = self._from in {State.COMMIT_UNKNOWN, State.LEFT} or self.attached
        if isinstance(error, TransactionNotFound | InvalidTransactionStatus):
            if (again or error.maybe_processed or self._ended_by_somebody(error, now)) and not self._never_happened(error):
                return self._unknown(error, now)
            self._move(Event.IS_ABORTED, now)
            return Answer(_caused_by(error, self._ended_elsewhere(error, now)))
        never_left = not left or isinstance(error, TimeoutError | ConnectionError)
        if again or error.maybe_processed or not never_left:
            if not self._never_happened(error):
                return self._unknown(error, now)
            never_left = False
        if never_left and self._from in _WAITS_FOR_TOKEN:  # it has no timeout, so it can wait for the next attempt
            self._move(Event.IS_PREPARED if self._from is State.PREPARED else Event.MAYBE_PREPARED, now)
            return Answer(error)
        if never_left and self.may_be_ended_elsewhere:
            return self._unknown(error, now)
        # When it never left, the coordinator cannot have committed: it aborts at its timeout.
        self._move(Event.UNANSWERED if never_left else Event.IS_ABORTED, now)
        if isinstance(error, UsageError | TransactionFenced):  # the client was closed, or has a successor
            return Answer(error)
        late = TransactionTimedOut(f"the commit could not be sent: {error.message}", txn_id=self.id)
        return Answer(_caused_by(error, late))

    def _ended_by_somebody(self, error: PulsarError, now: float) -> bool:
        """True if the transaction is gone although its time is not over: the client that ended it may have committed it."""
        if not isinstance(error, TransactionNotFound):
            return False
        return self._is_known_to_others or (self.deadline is not None and now < self.deadline)

    def _never_happened(self, error: PulsarError) -> bool:
        """True if a refused commit cannot be the repeat of one that was carried out.

        A client that was fenced does not hear what others have decided on its transaction.
        """
        if isinstance(error, TransactionFenced):
            return error.definite and not self.may_be_ended_elsewhere
        return isinstance(error, InvalidTransactionStatus) and error.definite

    def _unknown(self, cause: PulsarError, now: float) -> Answer:
        self._move(Event.MAYBE_COMMITTED, now)
        return Answer(_caused_by(cause, self._outcome_unknown(cause)))

    def _outcome_unknown(self, cause: PulsarError) -> CommitOutcomeUnknown:
        return CommitOutcomeUnknown(
            f"the commit may have happened: {cause.message or type(cause).__name__}",
            txn_id=self.id,
            hint="call error.resolve() to find out, before you do the work again",
        )

    # --- abort ------------------------------------------------------------------------------------------------------

    def _recall(self, reason: TransactionAborted | None, now: float, budget: float, *, operations_ended: bool) -> Step:
        """Abort in place of the commit or prepare that cannot be; `reason` is None for a dry run."""
        budget = max(ABORT_WAIT_SECONDS, budget)
        self._recalls, self._reason, self._end, self._repeated = True, reason, now + budget, False
        self._move(Event.COMMIT if self.state is State.GIVEN_UP else Event.RECALL, now)
        return self._id_or_abort(now) if operations_ended else self._abort_waits(budget)

    def _abort_waits(self, budget: float) -> Step:
        """Wait for the operations, but leave END_TXN the time that it needs."""
        return self._await_operations(self._end - min(ABORT_WAIT_SECONDS, budget) / 2, whole=False)

    def _id_or_abort(self, now: float) -> Step:
        return self._end_abort(now) if self.id is not None else self._next(AwaitId(self._end))

    def _end_abort(self, now: float) -> Step:
        self._abort_left = True
        if self.id is None:
            return self._abort_answered(None, now)
        return self._next(EndTxn(self.id, TxnAction.ABORT, max(0.001, self._end - now), prepared=self.prepared))

    def _abort_answered(self, error: PulsarError | None, now: float) -> Step:
        if isinstance(error, InvalidTransactionStatus) and not error.definite and not self._repeated:
            # A stock coordinator refuses an abort in the moment in which its own timeout aborts; it takes the next one.
            self._repeated = True
            return self._end_abort(now)
        event = self._abort_says(error)
        if event is Event.IS_ABORTED:
            error = None
        elif isinstance(error, TransactionNotFound) and event is not Event.UNANSWERED:
            error.with_details(hint=_MAYBE_COMMITTED)
        return self._next(self._recalled(event, error, now) if self._recalls else self._told(event, error, now))

    def _abort_says(self, error: PulsarError | None) -> Event:
        if error is None:
            return Event.IS_ABORTED
        if isinstance(error, TransactionNotFound | TransactionFenced):
            if self._commit_left:
                return Event.MAYBE_COMMITTED
            return Event.MAYBE_ABORTED if self._is_known_to_others else Event.IS_ABORTED
        if not isinstance(error, InvalidTransactionStatus):
            return Event.UNANSWERED
        if not self._is_known_to_others:
            return Event.REFUSED
        return Event.IS_COMMITTED if self._says_committed(error) else Event.MAYBE_ABORTED

    def _says_committed(self, error: InvalidTransactionStatus) -> bool:
        """True if a refused abort means that somebody has committed. A stock coordinator may just be aborting it itself."""
        return error.definite or self.may_be_ended_elsewhere

    def _told(self, event: Event, error: PulsarError | None, now: float) -> Answer:
        self._move(event, now)
        return Answer(error)

    def _recalled(self, event: Event, failed: PulsarError | None, now: float) -> Answer:
        """Tell why it could not be committed, whatever became of the abort; or nothing, when its group had committed it."""
        reason = self._reason
        if failed is None or reason is None:
            self._move(event, now)
            return Answer(reason or failed)
        if event is Event.IS_COMMITTED:
            self._move(event, now)
            return Answer(_caused_by(reason, failed) if self.failures else None)
        maybe = event is Event.MAYBE_COMMITTED or event is Event.MAYBE_ABORTED
        if self.options.check_group is not None or (self.attached and maybe):
            self._move(Event.GIVE_UP, now)
            return Answer(_caused_by(reason, self._outcome_unknown(failed)))
        self._move(event, now)
        reason.add_note(self.unaborted(failed))
        return Answer(reason)

    def unaborted(self, failed: BaseException) -> str:
        """Say what an abort that failed means."""
        if self.shown is TransactionState.UNKNOWN:
            return f"its coordinator does not know the transaction, so nobody knows here how it has ended: {failed}"
        return f"the abort failed, so its coordinator aborts it at its timeout: {str(failed) or 'no answer in time'}"

    # --- prepare ----------------------------------------------------------------------------------------------------

    def _prepare_answered(self, error: PulsarError | None, now: float) -> Step:
        if error is None:
            self.deadline = None
            self._move(Event.IS_PREPARED, now)
            return self._next(Answer())
        if isinstance(error, FeatureUnsupported):
            self.prepared = None
        elif isinstance(error, InvalidTransactionStatus | TransactionNotFound | TransactionFenced):
            others = self.options.check_group is not None or self.attached or self.id_shown
            if not (others or error.maybe_processed or self._repeated):
                self.prepared = None
                self._move(Event.IS_ABORTED, now)
                return self._next(Answer(error if isinstance(error, TransactionFenced) else self._gone_before_prepare(error)))
            # A member, or whoever knows its id, may have said commit; or it was prepared, and ended since.
            error.with_details(hint="call commit(): what it says is how the transaction has ended")
        self._move(Event.MAYBE_PREPARED, now)
        return self._next(Answer(error))

    def _gone_before_prepare(self, error: PulsarError) -> TransactionAborted:
        gone = TransactionAborted(
            "the coordinator had ended the transaction before the prepare reached it", txn_id=self.id, hint="run the unit again"
        )
        return _caused_by(error, gone)

    # --- the outcome, asked for -------------------------------------------------------------------------------------

    def question(self, timeout: float) -> EndTxn | None:
        """Request that asks for the outcome: the same end again. None: it is known. Raises TransactionStateError."""
        if self.shown in FINAL or self.id is None:
            return None
        if self.shown is not TransactionState.UNKNOWN and not self.attached:
            raise TransactionStateError(
                f"the outcome of a transaction that is {self.shown.value} cannot be asked for: the question would commit it",
                txn_id=self.id,
                hint="commit() or abort() it; resolve() is for one whose commit was sent",
            )
        if self.state is State.LEFT:
            raise TransactionStateError(
                "the outcome was left to the check of its group, and asking for it here would decide it",
                txn_id=self.id,
                hint="wait for the group, or call commit() or abort()",
            )
        if self.state is State.GIVEN_UP or (self.state in _WANTED_ABORT and not self._commit_left):
            return EndTxn(self.id, TxnAction.ABORT, timeout, prepared=self.prepared)
        return self._end_commit(self.id, timeout)

    def question_answered(self, asked: EndTxn, error: PulsarError | None, now: float, *, left: bool) -> TransactionState:
        """Return the outcome that the coordinator knows, UNKNOWN if it knows none; raises what stood in the question's way."""
        commits = asked.action is TxnAction.COMMIT
        self._commit_left |= commits and left
        if error is None:
            self._move(Event.IS_COMMITTED if commits else Event.IS_ABORTED, now)
        elif commits and isinstance(error, InvalidTransactionStatus | TransactionNotFound | TransactionFenced):
            if not self._never_happened(error):
                return TransactionState.UNKNOWN
            self._move(Event.IS_ABORTED, now)
        elif not commits and isinstance(error, InvalidTransactionStatus) and self._says_committed(error):
            self._move(Event.IS_COMMITTED, now)
        elif not commits and isinstance(error, InvalidTransactionStatus | TransactionNotFound | TransactionFenced):
            return TransactionState.UNKNOWN
        else:
            raise error
        return self.shown

    # --- errors -----------------------------------------------------------------------------------------------------

    def _not_now(self, asked: str) -> TransactionStateError:
        unknown = self.shown is TransactionState.UNKNOWN
        return TransactionStateError(
            f"{asked} of a transaction that is {self.shown.value}",
            txn_id=self.id,
            hint="ask the error's resolve() for the outcome" if unknown else "begin a new transaction for further work",
        )

    def _timed_out(self) -> TransactionTimedOut:
        over = f"the transaction's {self.options.timeout:g} s are over"
        return TransactionTimedOut(
            over if self._left_by is None else self._left_by.message,
            txn_id=self.id,
            hint="run the unit again, in smaller pieces or with a larger timeout=",
        )

    def _ended_elsewhere(self, error: PulsarError, now: float) -> TransactionAborted:
        if self.deadline is not None and now >= self.deadline:
            return self._timed_out()
        return TransactionAborted(
            "the coordinator had ended the transaction before the commit reached it",
            txn_id=self.id,
            hint=f"run the unit again ({type(error).__name__}: {error.message})",
        )

    def _operation_failed(self) -> TransactionAborted:
        first = self.failures[0]
        if isinstance(first, TransactionTimedOut):
            return first
        error = TransactionOperationFailed(
            f"{len(self.failures)} operations failed, so the transaction was aborted; first: {first}",
            txn_id=self.id,
            hint="run the unit again, in a new transaction",
            failures=self.failures,
        )
        return _caused_by(first, error)

    # --- moving -----------------------------------------------------------------------------------------------------

    def _move(self, event: Event, now: float) -> None:
        """Look the event up, and do what entering the next state means."""
        before = self.state
        cell = TRANSITIONS[before, event]
        self.state = cell.to
        if cell.to is before:
            return
        self.usable = cell.to in _USABLE
        if self.usable:
            return
        shown, was = _SHOWN[cell.to], _SHOWN[before]
        effects = self.effects
        if before in _USABLE and self.deadline is not None:
            effects.append(StopTimer())
        if shown is TransactionState.COMMITTED:
            effects.append(ForgetInput())
        if shown in FINAL:
            self.ended_at = now
        if shown in _CANNOT_COMMIT:
            effects.append(BringInputBack())
        if shown in _TOLD:
            effects.append(TellEnd(_OUTCOMES.get(shown), shown in FINAL))
            if self.id is not None and shown is not was:
                effects.append(Ended())


_MAYBE_COMMITTED: Final = (
    "it never was, belongs to another role, or has ended and is forgotten, so it may be committed: look for its output"
)


E = TypeVar("E", bound=BaseException)


def _caused_by(cause: BaseException, error: E) -> E:
    error.__cause__ = cause
    return error
