"""The transaction coordinator: decisions over its state, as Steps. The table is in `table`, the fold in `_state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias, assert_never

import attrs

from pulsar_txn.ledger.machine import NOTHING, AwaitOutcome, Effect, Outcome, Reply, Step, TellParticipant, WriteSnapshot
from pulsar_txn.tc import records, records_pb2, snapshots
from pulsar_txn.tc._state import PARTICIPANT_BYTES, TRANSACTION_BYTES, CoordinatorState, Transaction
from pulsar_txn.tc.outcomes import ANYBODY, WAS_ABORTED, WAS_COMMITTED, OutcomeWindow, Owner
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.tc.requests import AddParticipants, EndTxn, Identity, IsRegistered, NewTxn, ParticipantsDone, Request
from pulsar_txn.tc.table import ACTION_OF, END_EVENT, TRANSITIONS, UNKNOWN, Event, Go, Refuse, Stay
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, Participant, Position, TxnId, TxnStatus

LOG: Final = "log"

_Records: TypeAlias = tuple[tuple[str, Record], ...]
_Effects: TypeAlias = tuple[Effect, ...]

_EFFECTS_AT_ONCE: Final = 1024
_OBJECTS_PER_RECORD: Final = 8

_STATUS: Final = tuple(TxnStatus)
_NUMBER: Final = (records_pb2.OPEN, records_pb2.COMMITTING, records_pb2.COMMITTED, records_pb2.ABORTING, records_pb2.ABORTED)
_ENDED_AS: Final = {WAS_COMMITTED: TxnStatus.COMMITTED, WAS_ABORTED: TxnStatus.ABORTED}
_WISH: Final = {Event.ADD: "take participants", Event.COMMIT: "commit", Event.ABORT: "abort", Event.DONE: "be done"}


@attrs.frozen
class TransactionInfo:
    """An open or ending transaction at a moment, for lists and stats."""

    txn_id: TxnId
    status: TxnStatus
    principal: str | None
    identity: Identity | None
    start_time_ms: int
    timeout_ms: int
    participants: tuple[Participant, ...]


class TransactionCoordinator:
    """The coordinator `tc_id`; a Machine (see `pulsar_txn.ledger.machine`) whose one log is "log".

    `max_active`: how many transactions may be open or ending; `max_participants`: how many participants one may have;
    `max_state_bytes`: what all of them may count for, names of participants mostly (0: no limit, for each of the three).
    `max_timeout_ms`: the longest timeout that NEW_TXN may ask for. `outcome_retention_count`: over how many ids at least an
    END_TXN may be repeated.
    `snapshot_every`: records between two WriteSnapshot. `expire_limit`: transactions that one `expire` aborts.
    """

    logs: Sequence[str] = (LOG,)

    def __init__(
        self,
        tc_id: int,
        *,
        max_active: int = 0,
        max_participants: int = 0,
        max_state_bytes: int = 0,
        max_timeout_ms: int = 2**63 - 1,
        outcome_retention_count: int = 1_048_576,
        snapshot_every: int = 25_000,
        expire_limit: int = 256,
    ) -> None:
        self.tc_id = tc_id
        self._max_active = max_active
        self._max_participants = max_participants
        self._max_state_bytes = max_state_bytes
        self._max_timeout_ms = max_timeout_ms
        self._snapshot_every = snapshot_every
        self._expire_limit = expire_limit
        self._state = self._new_state(OutcomeWindow(outcome_retention_count))
        self._applied = 0  # since the snapshot that this machine started from; no state, only the pace of snapshots
        self._applied_at_snapshot = 0
        self._to_drive: deque[int] = deque()  # what recovery has not carried out again yet; no state either
        self._trim_before: Position | None = None

    # ------------------------------------------------------------------ Machine

    def decide(self, request: Request, now_ms: int) -> Step[Record]:
        """See `requests` for what is answered and refused."""
        match request:
            case EndTxn():
                return self._paced(self._end(request, now_ms))
            case AddParticipants():
                return self._paced(self._add(request, now_ms))
            case NewTxn():
                return self._paced(self._new(request, now_ms))
            case ParticipantsDone():
                return self._paced(self._done(request.txn_id, now_ms))
            case IsRegistered():
                return self._is_registered(request)
            case _:
                assert_never(request)

    def apply(self, log: str, position: Position, record: Record) -> None:
        """Fold one record in; `log` is always "log"."""
        self._applied += 1
        self._state.apply(position, record)

    def encode(self, log: str, record: Record) -> bytes:
        """Pulsar's TransactionMetadataEntry with our fields from 100 up."""
        return records.encode(record)

    def decode(self, log: str, data: bytes) -> Record:
        """Also reads a stock coordinator's entries, batched or not. Raises WireError."""
        return records.decode(self.tc_id, data)

    def recovered(self, now_ms: int) -> Step[Record]:
        """Every end under way is carried out again; participants may hear of it twice. Many are left to `expire`."""
        self._to_drive = deque(sorted(self._state.ending))
        step = self._drive_again(now_ms)
        return self._paced(step, self._applied >= self._snapshot_every)

    def deadline(self) -> int | None:
        """The earliest deadline of an OPEN transaction; the past while recovery has ends to carry out again."""
        return 0 if self._has_to_drive() else self._state.next_deadline()

    def expire(self, now_ms: int) -> Step[Record]:
        """Abort OPEN transactions that are due, the earliest first, at most `expire_limit` of them."""
        if self._has_to_drive():
            return self._paced(self._drive_again(now_ms))
        decisions: list[tuple[str, Record]] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = []
        for txn in self._state.due(now_ms, self._expire_limit):
            decision, more, heard = self._leave_open(txn, Event.TIMEOUT, now_ms)
            decisions += decision
            trailing += more
            effects += heard
            if len(effects) >= _EFFECTS_AT_ONCE:
                break
        return self._paced(Step(tuple(decisions), tuple(effects), tuple(trailing)))

    def snapshot(self) -> Iterator[bytes]:
        """The whole state: next id, open and ending transactions, window of outcomes."""
        self._trim_before = _behind(self._state.last_applied)
        self._applied_at_snapshot = self._applied
        return snapshots.write(self._state)

    def restore(self, part: bytes) -> None:
        """Raises WireError when the snapshot is of a newer format or of another coordinator."""
        self._restored(snapshots.read(self._state, part))
        self._trim_before = _behind(self._state.last_applied)

    def _restored(self, part: CoordinatorSnapshot) -> None:
        """What a kind of coordinator keeps beside the state of all."""

    def trim_before(self, log: str) -> Position | None:
        """Everything that the last `snapshot` (or the restored one) covers; None before there was any."""
        return self._trim_before

    def check_invariants(self) -> None:
        """`table.INVARIANTS`."""
        self._state.check()

    # ------------------------------------------------------------------ views, for hosts and tests

    @property
    def next_local_txn_id(self) -> int:
        """The `least` of the next transaction."""
        return self._state.next_id

    @property
    def newest_time_ms(self) -> int:
        """The newest time in the log, below which the host's clock must never fall (H6)."""
        return self._state.newest_time_ms

    def is_registered(self, txn_id: TxnId, participant: Participant) -> bool:
        """Whether the transaction is OPEN here with this participant."""
        txn = self._state.transactions.get(txn_id.least) if txn_id.most == self.tc_id else None
        return txn is not None and txn.status == TxnStatus.OPEN and txn.has(participant)

    @property
    def active_count(self) -> int:
        """How many transactions are open or ending."""
        return len(self._state.transactions)

    @property
    def low_watermark(self) -> int:
        """All transactions up to here have ended (-1: none); what is open or ending is never covered."""
        return self._state.low_watermark()

    def transactions(self) -> list[TransactionInfo]:
        """All open and ending transactions, by id."""
        return [_info(txn) for txn in self._state.transactions.values()]

    def transaction(self, least: int) -> TransactionInfo | None:
        """The open or ending transaction with this number, None when it is neither."""
        txn = self._state.transactions.get(least)
        return None if txn is None else _info(txn)

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        """The status of a transaction, None when it is unknown or forgotten. For whoever may see all."""
        return self._locate(txn_id, ANYBODY, superuser=True)[0]

    # ------------------------------------------------------------------ decisions

    def _new_state(self, outcomes: OutcomeWindow) -> CoordinatorState:
        return CoordinatorState(self.tc_id, outcomes)

    def _new(self, request: NewTxn, now_ms: int) -> Step[Record]:
        state = self._state
        if self._max_active and len(state.transactions) >= self._max_active:
            raise Refusal(
                ServerError.TooManyRequests,
                f"coordinator {self.tc_id} has {self._max_active} transactions open, as many as it may"
                " (maxActiveTransactionsPerCoordinator): end some, or try later",
            )
        self._check_room(TRANSACTION_BYTES)
        timeout_ms, principal = request.timeout_ms, request.principal
        if timeout_ms < 0:
            raise Refusal(ServerError.NotAllowedError, f"a timeout of {timeout_ms} ms lies in the past: ask for 0 or more")
        if timeout_ms > self._max_timeout_ms:
            raise Refusal(
                ServerError.NotAllowedError,
                f"a transaction timeout of {timeout_ms} ms is above the limit of this broker: ask for at most"
                f" {self._max_timeout_ms} ms, or raise maxTransactionTimeoutInSeconds",
            )
        if principal is not None and not principal.strip():
            raise Refusal(ServerError.NotAllowedError, "the owner of a transaction must not be blank")
        least = state.next_id
        record = records.new_transaction(self.tc_id, least, timeout_ms, now_ms, principal, request.identity)
        return Step(((LOG, record),), (Reply(request.token, TxnId(self.tc_id, least)),))

    def _add(self, request: AddParticipants, now_ms: int) -> Step[Record]:
        txn_id = request.txn_id
        state, txn = self._locate(txn_id, (request.principal, request.identity))
        cell = TRANSITIONS[state, Event.ADD]
        if isinstance(cell, Refuse):
            raise _refusal(cell, txn_id, state, Event.ADD)
        assert txn is not None  # noqa: S101 - the table's promise: participants are added to what is OPEN
        topics: dict[str, None] = {}
        subscriptions: dict[tuple[str, str], None] = {}
        for participant in request.participants:
            topic, name = participant.topic, participant.subscription
            if name is None:
                if topic not in txn.topics:
                    topics[topic] = None
            elif (topic, name) not in txn.subscriptions:
                subscriptions[topic, name] = None
        if topics or subscriptions:
            self._check_participants(txn, topics, subscriptions)
        new: _Records = ()
        least, highest = txn_id.least, self._state.next_id - 1
        if topics:
            new = ((LOG, records.add_partitions(self.tc_id, least, topics, now_ms, highest)),)
        if subscriptions:
            new += ((LOG, records.add_subscriptions(self.tc_id, least, subscriptions, now_ms, highest)),)
        return Step(new, (Reply(request.token),))

    def _end(self, request: EndTxn, now_ms: int) -> Step[Record]:
        txn_id, token = request.txn_id, request.token
        state, txn = self._locate(txn_id, (request.principal, request.identity), request.superuser)
        event = END_EVENT[request.action]
        cell = TRANSITIONS[state, event]
        if cell is Stay.REPLY:
            return Step((), (Reply(token),))
        if cell is Stay.JOIN:
            return Step((), (AwaitOutcome(token, txn_id),))
        if isinstance(cell, Refuse):
            raise _refusal(cell, txn_id, state, event)
        assert txn is not None  # noqa: S101 - the table's promise: only what is OPEN is decided
        decision, trailing, effects = self._leave_open(txn, event, now_ms)
        return Step(decision, (AwaitOutcome(token, txn_id), *effects), trailing)

    def _done(self, txn_id: TxnId, now_ms: int) -> Step[Record]:
        state, _ = self._locate(txn_id, ANYBODY, superuser=True)
        cell = TRANSITIONS[state, Event.DONE]
        if isinstance(cell, Refuse):
            raise _refusal(cell, txn_id, state, Event.DONE)
        if cell is Stay.NOTHING or state is UNKNOWN:
            return NOTHING
        trailing, effects = self._finish(txn_id, state, now_ms)
        return Step((), effects, trailing)

    def _is_registered(self, request: IsRegistered) -> Step[Record]:
        return Step((), (Reply(request.token, self.is_registered(request.txn_id, request.participant)),))

    # ------------------------------------------------------------------ their parts

    def _locate(self, txn_id: TxnId, asker: Owner, superuser: bool = False) -> tuple[TxnStatus | None, Transaction | None]:
        """The state as `asker` may see it, and the transaction while it takes room."""
        if txn_id.most != self.tc_id:
            return UNKNOWN, None
        owner: Owner | None
        txn = self._state.transactions.get(txn_id.least)
        if txn is not None:
            state: TxnStatus | None = _STATUS[txn.status]
            owner = txn.owner
        else:
            outcome, owner = self._state.outcomes.lookup(txn_id.least)
            state = _ENDED_AS.get(outcome)
        if superuser or owner == ANYBODY or self._permits(owner, asker):
            return state, txn
        return UNKNOWN, None

    def _check_participants(
        self, txn: Transaction, topics: Collection[str], subscriptions: Collection[tuple[str, str]]
    ) -> None:
        count = txn.participant_count + len(topics) + len(subscriptions)
        if self._max_participants and count > self._max_participants:
            raise Refusal(
                ServerError.NotAllowedError,
                f"transaction {txn.txn_id} would have {count} participants; it may have {self._max_participants}"
                " (maxParticipantsPerTransaction): use several transactions",
            )
        names = sum(map(len, topics)) + sum(len(topic) + len(name) for topic, name in subscriptions)
        self._check_room(names + PARTICIPANT_BYTES * (len(topics) + len(subscriptions)))

    def _check_room(self, added: int) -> None:
        if self._max_state_bytes and self._state.bytes + added > self._max_state_bytes:
            raise Refusal(
                ServerError.TooManyRequests,
                f"the open transactions of coordinator {self.tc_id} hold {self._state.bytes} bytes, {added} more are above"
                f" {self._max_state_bytes} (maxTransactionStateSizeInMB): end some, or try later",
            )

    def _permits(self, owner: Owner | None, asker: Owner) -> bool:
        """Whether `asker` may act on what `owner` opened: what the owner has named, the asker must name alike."""
        if owner is None:
            return False
        return (owner[0] is None or owner[0] == asker[0]) and (owner[1] is None or owner[1] == asker[1])

    def _leave_open(self, txn: Transaction, event: Event, now_ms: int, told: int = 0) -> tuple[_Records, _Records, _Effects]:
        """The decision: its record, then what carries it out.

        `told`: the effects that its Step has already. Where they are many, this one is carried out by `expire`.
        """
        cell = TRANSITIONS[TxnStatus.OPEN, event]
        assert isinstance(cell, Go)  # noqa: S101 - the table's promise for the three events that end a transaction
        decision = self._update(txn.txn_id, TxnStatus.OPEN, cell.to, now_ms)
        if told >= _EFFECTS_AT_ONCE:
            self._to_drive.append(txn.txn_id.least)  # passed over when this Step is thrown away: it is not ending then
            return decision, (), ()
        return (decision, *self._carry_out(txn, cell.to, now_ms))

    def _carry_out(self, txn: Transaction, state: TxnStatus, now_ms: int) -> tuple[_Records, _Effects]:
        """Tell every participant; where there is none, the end is reached at once."""
        participants = txn.participants()
        if not participants:
            return self._finish(txn.txn_id, state, now_ms)
        txn_id, action, low_watermark = txn.txn_id, ACTION_OF[state], self._state.low_watermark()
        return (), tuple([TellParticipant(txn_id, participant, action, low_watermark) for participant in participants])

    def _has_to_drive(self) -> bool:
        waiting, ending = self._to_drive, self._state.ending
        while waiting and waiting[0] not in ending:
            waiting.popleft()
        return bool(waiting)

    def _drive_again(self, now_ms: int) -> Step[Record]:
        """The next ends that recovery found under way. Those that write a record are asked for again until it is applied."""
        waiting, transactions = self._to_drive, self._state.transactions
        again: list[int] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = []
        for _ in range(min(len(waiting), self._expire_limit)):
            least = waiting.popleft()
            txn = transactions.get(least)
            if txn is not None:  # its participants have not all answered meanwhile
                more, heard = self._carry_out(txn, _STATUS[txn.status], now_ms)
                again += [least] * len(more)
                trailing += more
                effects += heard
                if len(effects) >= _EFFECTS_AT_ONCE:
                    break
        waiting.extendleft(reversed(again))
        return Step((), tuple(effects), tuple(trailing))

    def _finish(self, txn_id: TxnId, state: TxnStatus, now_ms: int) -> tuple[_Records, _Effects]:
        """The last record, which nobody waits for: the decision and its effects are durable, recovery would drive it again."""
        cell = TRANSITIONS[state, Event.DONE]
        assert isinstance(cell, Go)  # noqa: S101 - the table's promise for what is being ended
        return self._update(txn_id, state, cell.to, now_ms), (Outcome(txn_id, ACTION_OF[state]),)

    def _update(self, txn_id: TxnId, expected: TxnStatus, new: TxnStatus, now_ms: int) -> _Records:
        highest = self._state.next_id - 1
        return ((LOG, records.update_status(self.tc_id, txn_id.least, _NUMBER[expected], _NUMBER[new], now_ms, highest)),)

    def _paced(self, step: Step[Record], overdue: bool = False) -> Step[Record]:
        """`step`, with WriteSnapshot last when one of its records completes a round of `snapshot_every`.

        Rounds are passed over until enough records were applied for the objects that there are to write: so each record
        pays for a few of them, however large the state is.
        """
        written = len(step.records) + len(step.trailing)
        if written and self._applied % self._snapshot_every + written >= self._snapshot_every:
            since = self._applied + written - self._applied_at_snapshot
            overdue = since * _OBJECTS_PER_RECORD >= self._state.weight
        if overdue:
            return attrs.evolve(step, effects=(*step.effects, WriteSnapshot(LOG)))
        return step


def _refusal(cell: Refuse, txn_id: TxnId, state: TxnStatus | None, event: Event) -> Refusal:
    if state is UNKNOWN:
        return Refusal(
            cell.code,
            f"transaction {txn_id} is not known here: it never was, ended too long ago, or belongs to somebody else",
        )
    return Refusal(cell.code, f"transaction {txn_id} is {state.name} and cannot {_WISH[event]} any more")


def _info(txn: Transaction) -> TransactionInfo:
    principal, identity = txn.owner
    return TransactionInfo(
        txn.txn_id, _STATUS[txn.status], principal, identity, txn.start_time_ms, txn.timeout_ms, tuple(txn.participants())
    )


def _behind(position: Position) -> Position | None:
    return None if position == EARLIEST else (position[0], position[1] + 1)
