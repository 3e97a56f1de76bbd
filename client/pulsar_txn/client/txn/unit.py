"""The inside of a transaction: what producers, consumers and loops call. Programs hold an `AsyncTransaction` over it.

* `Life` knows its id and its state, and tells others of them.
* `Opening` gets the id, `Registrar` makes the targets known to the coordinator before an operation leaves.
* `Operations` counts what is under way, `Inputs` holds what was received in it.
* `Ending` commits and aborts.

Sources: PIP-31; the protocol's transaction commands 50 to 57; the coordinator's status machine for which answer says what.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self

from pulsar_txn.client.errors import NotAllowedError, PulsarError, TransactionStateError
from pulsar_txn.client.txn.empty_commits import EmptyCommits
from pulsar_txn.client.txn.ending import Ending
from pulsar_txn.client.txn.enlist import Caller, Flushable, Input, SendCounter, WhenEnded
from pulsar_txn.client.txn.inputs import Inputs
from pulsar_txn.client.txn.life import Life, TransactionOptions
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.prepared import PreparedToken
from pulsar_txn.client.txn.registrar import CoordinatorSessions, Registrar, Target
from pulsar_txn.client.txn.stats import Phases, TransactionState, TransactionStats
from pulsar_txn.wire.ids import TxnAction, TxnId, coordinator_of


class UnitObservers(Protocol):
    """The observers of a client's units."""

    def opened(self, unit: Unit) -> None:
        """The coordinator gave it an id."""
        ...

    def registered(self, unit: Unit, targets: Sequence[tuple[str, str | None]]) -> None:
        """Targets were registered together."""
        ...

    def doomed(self, unit: Unit, error: BaseException) -> None:
        """Its first operation failed."""
        ...

    def ending(self, unit: Unit, action: TxnAction) -> None:
        """A commit or an abort has begun."""
        ...

    def ended(self, unit: Unit) -> None:
        """Nothing more can be done with it."""
        ...


class Unit:
    """One transaction. Implements `Enlisting`; hashable by identity. Not thread-safe."""

    def __init__(
        self,
        core: object,
        coordinators: CoordinatorSessions,
        options: TransactionOptions,
        *,
        operation_timeout: float,
        monotonic: Callable[[], float],
        secret: Callable[[int], bytes],
        txn_id: TxnId | None = None,
        prepared: PreparedToken | None = None,
        observers: UnitObservers | None = None,
        empty: EmptyCommits | None = None,
        check_here: Callable[[], None] = lambda: None,
        others: Collection[object] = (),
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self.check_here = check_here
        """Raises WrongEventLoop outside of the event loop of its client."""
        self.life = Life(options, monotonic, txn_id if prepared is None else prepared.txn_id, prepared)
        self.begun = False
        """Whether the program has begun it, and has not been told that this failed."""
        self._admit = admit
        self._core = core
        self._coordinators = coordinators
        self._others = others  # cores of further clients, whose producers and consumers take part
        self._monotonic = monotonic
        self._observers = observers
        self.inputs = Inputs(self.doom)
        self.opening = Opening(self.life, coordinators, monotonic)
        self._operations = Operations(self, monotonic, self.life.fail)
        self._empty = EmptyCommits() if empty is None else empty
        self.called = self._operations.called
        """See `enlist.Enlisting`."""
        self.forget_calls = self._operations.forget_calls
        """It has ended: calls that were never awaited are left to the warnings of Python."""
        self._registrar = Registrar(self.opening, coordinators, self.opening.tally, monotonic, self._note_registered)
        self.ending = Ending(
            self.life,
            self.opening,
            self._operations,
            self.inputs,
            coordinators,
            operation_timeout=operation_timeout,
            monotonic=monotonic,
            begins=self._note_ending,
            empty=self._empty,
            secret=secret,
        )
        self.life.when_lost = self.inputs.bring_back
        self.life.witness = None if observers is None else _Witness(self, observers)

    def __del__(self) -> None:
        life = self.life
        if life.state is TransactionState.OPEN and life.deadline is not None:
            # Not repr(): it asks the loop for the time, and the collector may run where no loop is.
            text = f"transaction {life.id} was never ended; its coordinator aborts it at its timeout"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        elif life.usable and len(self.inputs):
            text = "a transaction that has received messages was never ended; they come again"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        self.inputs.dropped()

    @property
    def inside(self) -> Self:
        """Itself: a unit may be given where a transaction is expected."""
        return self

    @property
    def usable(self) -> bool:
        """True if operations are taken."""
        return self.life.usable

    @property
    def options(self) -> TransactionOptions:
        """How it is opened and ended."""
        return self.life.options

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction begun elsewhere or not opened yet."""
        deadline = self.life.deadline
        return None if deadline is None else deadline - self._monotonic()

    @property
    def has_work(self) -> bool:
        """True if its coordinator has to be told of its end, or messages come again after its abort."""
        return self.life.id is not None or self.opening.is_under_way or len(self.inputs) > 0

    @property
    def is_begun_here(self) -> bool:
        """True if this client has to end it before it begins another one, when it has one at a time."""
        life = self.life
        return self.begun and (life.usable or life.state is TransactionState.PREPARING or self.ending.is_under_way)

    def begin(self) -> None:
        """The program begins it. TransactionStateError when the client has one at a time, and that has not ended."""
        self._admit()
        self.begun = True

    def belongs_to(self, core: object) -> bool:
        """True if producers and consumers of the client with this core may take part."""
        return core is self._core or core in self._others

    # --- what producers and consumers call (see `enlist`) -------------------------------------------------------------

    def enlist_send(
        self, core: object, topic: str, messages: int, size: int, flushable: Flushable
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start sends; see `enlist.Enlisting`."""
        self._check_usable(core)
        target = self._operations.start(topic, None, messages, flushable)
        target.bytes += size
        return self._registrar.registration(target)

    def sends_to(self, topic: str) -> SendCounter:
        """See `enlist.Enlisting`."""
        return self._operations.sends_to(topic)

    def enlist_ack(
        self, core: object, topic: str, subscription: str, messages: int, *, cumulative: bool
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start acknowledgements; see `enlist.Enlisting`."""
        self._check_usable(core)
        target = self._operations.start(topic, subscription, messages)
        target.cumulative |= cumulative
        return self._registrar.registration(target)

    def send_finished(self, topic: str, messages: int, error: BaseException | None) -> None:
        """Sends have their receipt, or failed."""
        self._operations.finish(topic, None, messages, error)

    def ack_finished(self, topic: str, subscription: str, messages: int, error: BaseException | None) -> None:
        """Acknowledgements are answered, or failed."""
        self._operations.finish(topic, subscription, messages, error)

    @property
    def may_be_fenced(self) -> bool:
        """See `enlist.Enlisting`."""
        return self._coordinators.may_be_fenced

    async def why_refused(self, error: NotAllowedError) -> PulsarError:
        """See `enlist.Enlisting`."""
        told = await self._coordinators.why_refused(error)
        told.txn_id = told.txn_id or self.life.id
        return told

    def sent_again(self) -> None:
        """See `enlist.Enlisting`."""
        self.life.may_come_late = True

    def looks_for_input(self, core: object) -> None:
        """See `enlist.Enlisting`."""
        self._check_usable(core)
        self.inputs.looked_for = True

    def join(self, core: object, joining: Input) -> None:
        """See `enlist.Enlisting`."""
        self._check_usable(core)
        self.inputs.join(joining)

    def when_ended(self, callback: WhenEnded) -> None:
        """See `enlist.Enlisting`."""
        self.life.when_ended(callback)

    def in_time(self) -> bool:
        """See `enlist.Enlisting`."""
        return self.life.in_time()

    def left_out(self, caller: Caller) -> None:
        """See `enlist.Enlisting`."""
        if self.usable and self.belongs_to(caller.core):
            self._empty.left_out(caller.operation)

    def doom(self, error: BaseException) -> None:
        """An operation failed before it was started, where nobody could be told: nothing of the unit is to be committed."""
        self.life.fail(error)

    def _check_usable(self, core: object) -> None:
        if core is not self._core and core not in self._others:
            raise TransactionStateError(
                "this transaction belongs to another client",
                txn_id=self.life.id,
                hint="use producers and consumers of the client that began it, or of one that shares its coordinator",
            )
        self.life.check_usable()

    async def commit_early(self) -> None:
        """Have its commit answered at the decision. FeatureUnsupported where its coordinator cannot do that."""
        if self.life.id is not None:
            await self._coordinators.needs_checks(self.life.id, "commit(visible=False)")
        self.ending.decision.visible = False

    # --- looking at it ------------------------------------------------------------------------------------------------

    def stats(self) -> TransactionStats:
        """A frozen picture of the transaction."""
        life, tally = self.life, self.opening.tally
        targets = self._operations.targets
        sends = [each for each in targets if each.subscription is None]
        acks = [each for each in targets if each.subscription is not None]
        return TransactionStats(
            id=life.id,
            name=life.options.name,
            state=life.state,
            opened_at=None if life.id is None else life.opened_at,
            age_ms=int(((life.ended_at or self._monotonic()) - life.opened_at) * 1000),
            partitions=tuple(each.partition_stats() for each in sends),
            subscriptions=tuple(each.subscription_stats() for each in acks),
            sends_in_flight=sum(each.in_flight for each in sends),
            acks_in_flight=sum(each.in_flight for each in acks),
            doomed=bool(life.failures),
            doom_cause=life.failures[0] if life.failures else None,
            phases=self._phases(),
            retries=tally.retries,
            coordinator_id=None if life.id is None else coordinator_of(life.id.most),
            coordinator_endpoint=tally.endpoint,
        )

    def _phases(self) -> Phases:
        work = self._operations
        seconds = (
            self.opening.seconds,
            self._registrar.seconds,
            work.seconds_busy,
            work.seconds_waited,
            self.ending.decision.seconds,
        )
        return Phases(*(each * 1000 for each in seconds))

    def __repr__(self) -> str:
        life, targets = self.life, self._operations.targets
        topics = sum(each.subscription is None for each in targets)
        left = "" if self.remaining is None or not life.usable else f" {self.remaining:.1f}s left"
        label = f" {life.options.name!r}" if life.options.name else ""
        counts = f"{topics} topics {len(targets) - topics} subscriptions"
        return f"<Transaction {life.id or '(not opened)'}{label} {life.state.value} {counts}{left}>"

    # --- who is told --------------------------------------------------------------------------------------------------

    def _note_registered(self, targets: list[Target]) -> None:
        if self._observers is not None:
            self._observers.registered(self, [(each.topic, each.subscription) for each in targets])

    def _note_ending(self, action: TxnAction) -> None:
        if self._observers is not None:
            self._observers.ending(self, action)


class _Witness:
    """Hands on what `Life` tells, with the unit that it is about."""

    def __init__(self, unit: Unit, observers: UnitObservers) -> None:
        self._unit = unit
        self._observers = observers

    def opened(self) -> None:
        self._observers.opened(self._unit)

    def doomed(self, error: BaseException) -> None:
        self._observers.doomed(self._unit, error)

    def ended(self) -> None:
        self._observers.ended(self._unit)
