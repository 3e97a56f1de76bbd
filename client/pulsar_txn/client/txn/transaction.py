"""A transaction as a program holds it, and the one around the running code.

What a transaction does is in `unit`, and its states are in `state.transaction`. With `client.transaction(ambient=True)`
operations without `txn=` join the transaction around them. Every unit of work hides the one around it: inside a block that is
not ambient, in the work of `run_transaction` and in the handler of a pipeline an operation without `txn=` is part of no
transaction. Mostly `txn=` was forgotten there, so the first such send or acknowledgement of a client is told in the log;
`txn=None` says that it is meant. Tasks of the client itself have no transaction around them, whichever code has started them.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn, Protocol, TypeVar

import attrs

from pulsar_txn.client._callables import marked
from pulsar_txn.client._validation import no_transaction, seconds_of
from pulsar_txn.client.errors import TransactionStateError, UsageError
from pulsar_txn.client.state.prepared import PreparedToken, check_secret
from pulsar_txn.client.state.transaction import HELD, TransactionState
from pulsar_txn.client.txn.enlist import Caller
from pulsar_txn.client.txn.observers import TransactionStats
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import MessageId, TxnAction, TxnId

V = TypeVar("V", contravariant=True)
A = TypeVar("A", contravariant=True)
Given = TypeVar("Given")
"""Messages or ids that a consumer acknowledges."""
T = TypeVar("T")
Result = TypeVar("Result")


class Sends(Protocol[V]):
    """A producer, as far as a transaction calls it for the program."""

    def send(self, value: V | None, *, txn: AsyncTransaction) -> Coroutine[Any, Any, MessageId]:
        """Send a value in a transaction."""
        ...


class Acknowledges(Protocol[A]):
    """A consumer, as far as a transaction calls it for the program."""

    def acknowledge(self, message: A | Sequence[A], *, txn: AsyncTransaction) -> Coroutine[Any, Any, None]:
        """Acknowledge in a transaction."""
        ...


class Rollback(Exception):  # noqa: N818 - control flow, not an error
    """Raised by `AsyncTransaction.rollback()`; the managed block of its transaction swallows it after the abort."""

    def __init__(self, txn: AsyncTransaction) -> None:
        super().__init__(f"rollback of {unit_of(txn)!r}")
        self.txn = txn


class AsyncTransaction:
    """A unit of sends and acknowledgements that takes effect as a whole or not at all. Not thread-safe.

    Made by `client.transaction()`, `client.begin_transaction()` or `client.attach_transaction()`. Two of these are equal
    when they show the same transaction.
    """

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncTransaction) and other._unit is self._unit

    def __hash__(self) -> int:
        return hash(self._unit)

    def __repr__(self) -> str:
        self._unit.machine.show_id()
        return repr(self._unit)

    # --- looking at it --------------------------------------------------------------------------------------------

    @property
    def id(self) -> TxnId | None:
        """The transaction's id; None before the first operation that needs one.

        Whoever knows it may send in the transaction, and end it. So a coordinator beside clusters tells each participant of
        a transaction whose id was asked for twice that it has ended (`docs/adr/0035`), and the outcome of a transaction that
        its coordinator has forgotten is unknown (`docs/adr/0045`).
        """
        return self._unit.machine.show_id()

    @property
    def name(self) -> str | None:
        """The transaction's name, for logs and statistics."""
        return self._unit.options.name

    @property
    def state(self) -> TransactionState:
        """The transaction's state, as far as this client knows."""
        return self._unit.state

    @property
    def doomed(self) -> bool:
        """True if an operation failed, so that the transaction can only be aborted."""
        return bool(self._unit.failures)

    @property
    def doom_cause(self) -> BaseException | None:
        """The first failure of an operation."""
        failures = self._unit.failures
        return failures[0] if failures else None

    @property
    def deadline(self) -> float | None:
        """The time on the clock of `loop.time()` from which operations are refused; None as for `remaining`."""
        return self._unit.machine.deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction that was begun elsewhere or has no id yet."""
        return self._unit.remaining

    def stats(self) -> TransactionStats:
        """A frozen picture of the transaction, with its `id`."""
        self._unit.machine.show_id()
        return self._unit.stats()

    # --- using it -----------------------------------------------------------------------------------------------------

    @marked
    def send(self, producer: Sends[T], value: T | None, **options: Any) -> Coroutine[Any, Any, MessageId]:
        """`producer.send(value, txn=self, **options)`."""
        send: Any = producer.send
        call: Coroutine[Any, Any, MessageId] = send(value, txn=self, **options)
        return call

    @marked
    def acknowledge(self, consumer: Acknowledges[Given], message: Given | Sequence[Given]) -> Coroutine[Any, Any, None]:
        """`consumer.acknowledge(message, txn=self)`."""
        return consumer.acknowledge(message, txn=self)

    def savepoint(self) -> NoReturn:
        """Refused with TransactionStateError: Pulsar has no savepoints."""
        raise TransactionStateError(
            "Pulsar has no savepoints: a transaction takes effect as a whole or not at all",
            txn_id=self.id,
            hint="use several transactions; one inside another is a second, independent one",
        )

    def rollback(self) -> NoReturn:
        """Leave the managed block immediately and quietly, with an abort. Raises TransactionStateError outside of a block."""
        if not self._unit.options.managed:
            raise TransactionStateError(
                "rollback() leaves a managed block, and this transaction has none", txn_id=self.id, hint="call txn.abort()"
            )
        raise Rollback(self)

    # --- ending it ----------------------------------------------------------------------------------------------------

    async def commit(self, *, timeout: float | timedelta | None = None, visible: bool = True) -> None:
        """Acknowledge the messages that were received in the transaction, wait for its operations, then commit.

        `timeout`: seconds or a timedelta for all of it (default: the commit timeout). Concurrent callers share one commit,
        and it may be called again after CommitOutcomeUnknown. If cancelled: the commit goes on, `wait_closed()` joins it.

        With `visible=False` it returns as soon as the decision is durable: the transaction is committed whatever happens
        from then on, and readers may see it a moment later. Otherwise readers see it when this returns.

        A transaction with a check group may have been committed by its group before this is called; that is no error. When
        the commit cannot be sent, the outcome of such a transaction is unknown, because its group may still commit it.

        Raises TransactionOperationFailed (aborted, because an operation had failed), TransactionTimedOut (operations were
        not answered in time, the commit could not be sent, or the coordinator had ended it), TransactionAborted,
        CommitOutcomeUnknown, TransactionStateError; FeatureUnsupported where a coordinator cannot answer early, which
        leaves the transaction as it was. When an abort is asked for instead, and fails, a note says so. The commit of a
        prepared transaction that could not be sent raises why (ConnectionLost, OperationTimeout); call it again.
        """
        self._unit.check_here()
        if self._unit.options.managed and self._unit.state not in HELD:
            raise TransactionStateError(
                "the transaction is committed by leaving its block",
                txn_id=self.id,
                hint="leave the block, or abort() inside it",
            )
        if not visible:
            await self._unit.commit_early()
        await self._unit.finish(TxnAction.COMMIT, None if timeout is None else seconds_of(timeout, "timeout"))

    async def abort(self, *, timeout: float | timedelta | None = None) -> None:
        """Abort the transaction; without effect on an aborted one. Legal in every open state. If cancelled: the abort goes on.

        When it returns, the transaction is aborted. Messages that were received in it come again. The call waits for
        operations under way, up to `timeout` (seconds or a timedelta; default: the commit timeout) less what END_TXN needs.
        Raises the error of END_TXN; the coordinator then aborts at the transaction's timeout. A prepared transaction has
        none: call it again. InvalidTransactionStatus, with the state COMMITTED, when a member of its check group, or whoever
        knows its token or its id, had committed it.

        TransactionNotFound, with the state UNKNOWN, when the coordinator does not know the transaction: it never was, it
        belongs to another role, or it has ended and is forgotten, by a commit or by an abort. A transaction that this object
        began, whose commit was never sent and whose id the program never asked for, is ABORTED then: nobody else can have
        ended it. (`id`, `stats()`, `repr()` and observers show the id.)
        """
        self._unit.check_here()
        await self._unit.finish(TxnAction.ABORT, None if timeout is None else seconds_of(timeout, "timeout"))

    async def prepare(self, *, timeout: float | timedelta | None = None, secret: bytes | None = None) -> PreparedToken:
        """The first phase of a commit in two: after it the transaction waits for its end, without a timeout.

        It waits for the operations as a commit does, then the coordinator prepares the transaction durably. From then on
        it takes no more operations, and only `commit()`, `abort()` or somebody who has the token ends it: through
        `client.attach_prepared(token)`, in any process, also after restarts. Neither the end of this client nor a successor
        with its transactional id does. Readers of its topics wait until it ends, so end it soon.

        A prepared transaction stays as it is when its managed block is left, also by an exception: who has the token may
        have decided already. `commit()` is then allowed inside the block.

        `timeout` as for `commit`. Concurrent callers share one prepare, and a repeat returns the same token. After a lost
        answer (ConnectionLost, OperationTimeout) the transaction is PREPARING: call it again, or abort.
        `secret`: that of the token, 1 to 64 bytes, for a program that stores the token before; random bytes without it.

        Raises FeatureUnsupported, which leaves the transaction open; what `commit` raises for operations that failed;
        TransactionAborted when the coordinator had ended it; TransactionTimedOut, TransactionStateError, and the errors of
        requests. Source: KIP-939. If cancelled: the prepare goes on, and calling it again joins it.
        """
        self._unit.check_here()
        return await self._unit.prepare(
            None if timeout is None else seconds_of(timeout, "timeout"), None if secret is None else check_secret(secret)
        )

    async def leave_to_check(self) -> None:
        """Give the transaction up here, open, because only its check group can tell how the work ends that it goes with.

        What was received in it is acknowledged in it, and operations under way are waited for first; one that failed aborts
        it (TransactionOperationFailed). Then its state is UNKNOWN. Its coordinator asks a member of the group, and aborts it
        by its policy or at its timeout when nobody knows. `commit()` and `abort()` still end it from here. Raises
        TransactionStateError without a check group, and after its end.
        If cancelled while it waits: nothing has changed.
        """
        self._unit.check_here()
        await self._unit.leave_to_check()

    async def wait_closed(self) -> None:
        """Wait for a commit or abort under way, and raise its error. Returns immediately if there is no such call."""
        self._unit.check_here()
        await self._unit.wait_closed()

    async def resolve(self) -> TransactionState:
        """Ask the coordinator for the outcome by asking for the commit again, which is idempotent on our broker.

        Use it only after the commit was sent. An attached transaction that is still open is committed by it. COMMITTED,
        ABORTED, or UNKNOWN: a stock coordinator forgets a transaction once it has ended, and while it ends may refuse the
        repeat of what it has done. Raises an error when it cannot ask (ConnectionLost, OperationTimeout, …), and
        TransactionStateError before the commit was sent. Safe to cancel and to repeat.
        """
        self._unit.check_here()
        return await self._unit.resolve()


def unit_of(txn: AsyncTransaction | Unit) -> Unit:
    """The unit of a transaction that a call was given, where the call begins; a unit stands for itself.

    Raises UsageError for what is no transaction of this kind of client.
    """
    if isinstance(txn, AsyncTransaction):
        return txn._unit
    if isinstance(txn, Unit):
        return txn
    raise no_transaction(txn)


class _NotSaid:
    def __repr__(self) -> str:
        return "NOT_SAID"


NOT_SAID: Final[Any] = _NotSaid()
"""The default of `txn=`, where it matters whether somebody has said None."""


@attrs.frozen(eq=False)
class Aside:
    """An open unit around the running code, which operations join by `txn=` only.

    It is held weakly: whatever was started in the block, a timer for instance, keeps for long what was around it then.
    """

    unit: weakref.ref[Unit]


AMBIENT: Final[contextvars.ContextVar[Unit | Aside | None]] = contextvars.ContextVar("pulsar_txn_ambient", default=None)
"""Surrounding unit: the one that operations without `txn=` join, or one that they do not join."""


class Surroundings:
    """Surroundings of a block of code while it runs: a unit that is ambient there, or nothing."""

    def __init__(self) -> None:
        self._reset: contextvars.Token[Unit | Aside | None] | None = None

    def enter(self, unit: Unit, *, joins: bool) -> None:
        """From here on this unit is around; operations without `txn=` join it, or are told."""
        self._reset = AMBIENT.set(unit if joins else Aside(weakref.ref(unit)))

    def leave(self) -> None:
        """Take it back. In another context, as when a generator is closed by somebody else, there is nothing to take back."""
        reset, self._reset = self._reset, None
        if reset is not None:
            with contextlib.suppress(ValueError):
                AMBIENT.reset(reset)


def within(unit: Unit, joins: bool, function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)`, with this unit around it."""
    around = Surroundings()
    around.enter(unit, joins=joins)
    try:
        return function(*arguments)
    finally:
        around.leave()


def joined_unit(txn: AsyncTransaction | Unit | None = None, caller: Caller | None = None) -> Unit | None:
    """The unit that an operation joins: that of the transaction it names, or the one around it when it names none.

    It is told in the log when its `caller` has said nothing inside a unit that it does not join. Raises as `unit_of`.
    """
    if txn is not None and txn is not NOT_SAID:
        return txn._unit if isinstance(txn, AsyncTransaction) else unit_of(txn)
    around = AMBIENT.get()
    if not isinstance(around, Aside):
        return around
    if txn is NOT_SAID and caller is not None and (unit := around.unit()) is not None:
        unit.left_out(caller)
    return None


def noted(call: Coroutine[Any, Any, Result], txn: AsyncTransaction | Unit | None) -> Coroutine[Any, Any, Result]:
    """A call that was made in a transaction and has to be awaited: the commit fails when that was forgotten."""
    try:
        unit = txn._unit if isinstance(txn, AsyncTransaction) else joined_unit(txn)
    except UsageError:
        return call  # which raises it
    if unit is not None:
        unit.called(call)
    return call


__all__ = [
    "AMBIENT",
    "NOT_SAID",
    "Aside",
    "AsyncTransaction",
    "Rollback",
    "Surroundings",
    "joined_unit",
    "noted",
    "unit_of",
    "within",
]
