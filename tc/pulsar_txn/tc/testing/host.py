"""One coordinator in memory, on a clock that is set by hand.

Nothing is confirmed until `confirm` or `settle` says so; `crashed` is the coordinator after only a prefix of what was appended
survived. Its host is `ledger.hosting.Host`, the one that serves it in a broker. Along the way this asserts what no
coordinator may break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pulsar_txn.ledger.by_hand import Asked, ByToken, HandLog, Skin, hosted
from pulsar_txn.ledger.hosting import Host
from pulsar_txn.ledger.machine import AskProducer, Effect, Step, TellGroup, TellParticipant
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.ledger.snapshots import Envelope
from pulsar_txn.tc.ids import has_lane
from pulsar_txn.tc.owners import Identity
from pulsar_txn.tc.requests import (
    AddParticipants,
    CheckAnswered,
    CheckBegun,
    CheckReturned,
    Coordinator,
    EndTxn,
    GroupJoined,
    GroupLeft,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    PrepareTxn,
    Request,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId

Factory: TypeAlias = Callable[[int], Coordinator]
Entry: TypeAlias = tuple[Position, bytes]

TC_ID: Final = 3
_EXPIRED_AT_ONCE: Final = 10_000


class HostedCoordinator:
    """A coordinator of `factory` with its log.

    `answers`: what was answered, by token; a refusal is its code. `told`: every TellParticipant that was released, in order.
    `asked`: every question to a check group that was released. `ended`: the outcomes that were carried out. `entries`: its log,
    trimmed entries included. Requests return their token. `given`: the ids of this incarnation and of earlier ones, by `least`.
    """

    def __init__(
        self, factory: Factory, entries: tuple[Entry, ...] = (), stored: Snapshot | None = None, *, now_ms: int = 1_000
    ) -> None:
        self.now_ms = now_ms
        self.answers: dict[int, Any] = {}
        self.told: list[TellParticipant] = []
        self.asked: list[AskProducer] = []
        self.parked: list[TxnId] = []
        self.ended: dict[TxnId, TxnAction] = {}
        self.given: dict[int, TxnId] = {}
        self.last_in: dict[int, TxnId] = {}
        self._snapshots: list[tuple[int, Snapshot]] | None = None
        self.machine = factory(TC_ID)
        ledger_id = 1 + max([position[0] for position, _ in entries], default=0)
        (name,) = self.machine.logs
        self.log = HandLog(name, ledger_id, entries, stored=stored)
        self._factory = factory
        self._tokens = 0
        self._seen = _CheckedCoordinator(self)
        self._host: Host[Any, Any] = hosted(self._seen, {name: self.log}, _CoordinatorSkin(self), self, start=False)
        self.now_ms = max(self.now_ms, self.machine.newest_time_ms)
        self._seen.is_live = True
        self._host.start()

    def keep_snapshots(self) -> list[tuple[int, Snapshot]]:
        """The snapshot of now, and from now on of after every record, each with the length of the log; the list grows."""
        self._snapshots = [(len(self.entries), self.covered())]
        return self._snapshots

    def recorded(self) -> None:
        """A record was applied."""
        if self._snapshots is not None:
            self._snapshots.append((len(self.entries), self.covered()))

    # ---- requests

    def new(self, timeout_ms: int = 60_000, principal: str | None = None, identity: Identity | None = None, **more: Any) -> int:
        """Open a transaction. `more`: further fields of NewTxn."""
        return self._ask(NewTxn(self._token(), timeout_ms, principal, identity, **more))

    def opened(
        self, timeout_ms: int = 60_000, principal: str | None = None, identity: Identity | None = None, **more: Any
    ) -> TxnId:
        """Open a transaction, durably; gives its id."""
        token = self.new(timeout_ms, principal, identity, **more)
        self.confirm()
        txn_id = self.answers[token]
        assert isinstance(txn_id, TxnId), f"NEW_TXN is answered {txn_id!r}"
        return txn_id

    def add(self, txn_id: TxnId, *participants: Participant, principal: str | None = None, superuser: bool = False) -> int:
        """Register participants."""
        return self._ask(AddParticipants(self._token(), txn_id, participants, principal, superuser=superuser))

    def end(
        self, txn_id: TxnId, action: TxnAction, principal: str | None = None, *, superuser: bool = False, **more: Any
    ) -> int:
        """Commit or abort. `more`: further fields of EndTxn."""
        return self._ask(EndTxn(self._token(), txn_id, action, principal, superuser=superuser, **more))

    def prepare(self, txn_id: TxnId, prepared_token: bytes, principal: str | None = None) -> int:
        """Prepare."""
        return self._ask(PrepareTxn(self._token(), txn_id, prepared_token, principal))

    def begins(self, question: AskProducer) -> int:
        """A member begins to answer a question."""
        return self._ask(CheckBegun(self._token(), question.txn_id, question.group, question.principal))

    def tell(self, fact: GroupJoined | GroupLeft | CheckAnswered | CheckReturned) -> None:
        """Something about a check group that nobody waits for an answer to."""
        self._host.submit(self._seen.asked(fact))

    def asks(self, txn_id: TxnId, participant: Participant) -> int:
        """A participant asks whether the transaction is open with it."""
        return self._ask(IsRegistered(self._token(), txn_id, participant))

    def done(self, txn_id: TxnId) -> Refusal | None:
        """Every participant holds the outcome; gives the refusal when there is one."""
        self._host.submit(self._seen.asked(ParticipantsDone(txn_id)))
        return self._seen.decided if isinstance(self._seen.decided, Refusal) else None

    # ---- time and disk

    def advance(self, ms: int) -> None:
        """Let time pass and carry out what is due (H6)."""
        self.now_ms += ms
        self._host.expire()
        due = self.machine.deadline()
        assert due is None or due > self.now_ms, "H6: expire leaves its deadline in the past for ever"

    def advance_to_question(self) -> list[AskProducer]:
        """Let time pass to the next deadline, durably; the questions that were released there."""
        due, before = self.machine.deadline(), len(self.asked)
        if due is not None:
            self.advance(max(0, due - self.now_ms))
            self.confirm()
        return self.asked[before:]

    def confirm(self, count: int | None = None) -> None:
        """The first `count` entries are durable (None: all); what waited for them is released."""
        self.log.confirm(None if count is None or not count else self.entries[count - 1][0])

    def settle(self) -> None:
        """Confirm, and let participants take every outcome, until nothing is left to do."""
        self.confirm()
        for txn_id in dict.fromkeys(tell.txn_id for tell in self.told):
            if txn_id not in self.ended:
                assert self.done(txn_id) is None, "the end of what was told cannot be refused"
        self.confirm()

    @property
    def entries(self) -> list[Entry]:
        """Return what was appended."""
        return self.log.entries

    def crashed(self, count: int | None = None, stored: Snapshot | None = None) -> HostedCoordinator:
        """The coordinator after a crash that kept `count` entries (None: those that were confirmed)."""
        if count is None:
            kept = [entry for entry in self.entries if entry[0] <= self.log.last_confirmed]
            stored = self.log.stored
        else:
            kept = self.entries[:count]
        again = HostedCoordinator(self._factory, tuple(kept), stored, now_ms=self.now_ms)
        again.given |= self.given
        return again

    def covered(self) -> Snapshot:
        """A snapshot of this moment, as a host would store it."""
        covers = self.log.last_appended
        return Snapshot(covers, (*Envelope({self.log.name: covers}, b"").parts(), *self.machine.snapshot()))

    # ----

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _ask(self, request: Request) -> int:
        asked = self._seen.asked(request)
        self._host.submit(asked)
        return self._tokens

    def answered(self, token: int, value: Any, error: ServerError | None, message: str) -> None:
        """An answer to a request."""
        assert token not in self.answers, "a request was answered twice"
        assert error is None or message, f"a refusal with {error} says nothing"
        self.answers[token] = value if error is None else error
        if isinstance(value, TxnId):
            self.given[value.least] = value
            if has_lane(value.most):
                before = self.last_in.get(value.most)
                assert before in (None, value) or before in self.ended, f"{value} is given while {before} has not ended"
                self.last_in[value.most] = value


class _CheckedCoordinator(ByToken):
    """A coordinator that is checked with every decision and every record, once `is_live`."""

    def __init__(self, host: HostedCoordinator) -> None:
        super().__init__(host.machine, host.answered)
        self.is_live = False
        self._host = host

    def decide(self, request: Asked, now_ms: int) -> Step[Any]:
        """H1: a decision leaves no trace, and repeats itself."""
        before = self._state()
        try:
            step = super().decide(request, now_ms)
            assert self.decided == self.machine.decide(request.original, now_ms), "H1: a decision does not repeat itself"
        finally:
            assert before == self._state(), "H1: a decision changed the state"
        return step

    def _state(self) -> bytes:
        return b"".join(self.machine.snapshot())

    def apply(self, log: str, position: Position, record: Any) -> None:
        """Invariants hold after every record."""
        super().apply(log, position, record)
        if self.is_live:
            self.machine.check_invariants()
            self._host.recorded()


class _CoordinatorSkin(Skin):
    """Surroundings of the host of a coordinator."""

    def __init__(self, host: HostedCoordinator) -> None:
        self._host = host

    def perform(self, effect: Effect) -> None:
        """Tell a participant, or ask a check group: the effects of a coordinator that a host does not carry out itself."""
        if isinstance(effect, AskProducer):
            self._host.asked.append(effect)
            return
        if isinstance(effect, TellGroup):
            if effect.action is None:
                self._host.parked.append(effect.txn_id)
            return
        assert isinstance(effect, TellParticipant), f"not an effect of a coordinator: {effect}"
        host = self._host
        outcomes = {tell.action for tell in host.told if tell.txn_id == effect.txn_id} | {effect.action}
        assert len(outcomes) == 1, f"S2: the participants of {effect.txn_id} are told {outcomes}"
        if not has_lane(effect.txn_id.most):
            assert effect.low_watermark < effect.txn_id.least, "a low watermark covers what is ending"
        else:
            assert effect.low_watermark == effect.txn_id.least, "the watermark of a lane is what is ending there"
        host.told.append(effect)

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """The end was carried out."""
        known = self._host.ended.setdefault(txn_id, action)
        assert known is action, f"S2: {txn_id} ended as {known} and as {action}"

    def slice(self) -> Callable[[], bool]:
        """So much work that only what never ends is cut."""
        left = iter(range(_EXPIRED_AT_ONCE))
        return lambda: next(left, None) is None

    def failed(self, error: Exception) -> None:
        """A coordinator makes no host fail."""
        raise AssertionError(str(error)) from error
