"""The transaction coordinator: decisions over its state, as Steps. The table is in `table`, the fold in `_state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias, assert_never

from pulsar_txn.ledger.machine import (
    ANSWER,
    JOIN,
    NOTHING,
    REFUSE,
    SKIP,
    WRITE,
    AwaitOutcome,
    Effect,
    Outcome,
    Reply,
    Step,
    TellParticipant,
    WriteSnapshot,
)
from pulsar_txn.tc import log_incarnations, records, snapshots
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import PARTICIPANT_BYTES, TRANSACTION_BYTES, Transaction
from pulsar_txn.tc.admission import Limits
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CHECK_AFTER_MS, CHECK_INTERVAL_MS, MAX_CHECKS, CheckPolicy, CheckRules
from pulsar_txn.tc.checks import Checks
from pulsar_txn.tc.checks import told as told_group
from pulsar_txn.tc.clients import Clients
from pulsar_txn.tc.extras import Extras, asked_for
from pulsar_txn.tc.fencing import ID_RETENTION_MS, Fencing
from pulsar_txn.tc.ids import IdPolicy, LaneIds, PulsarIds, check_number, lane_of, most_of_lane, numbering
from pulsar_txn.tc.info import IdInfo, TransactionInfo, id_info, ids_of, info_of
from pulsar_txn.tc.lane_info import ClientInfo, LaneCounts
from pulsar_txn.tc.lanes import Lanes
from pulsar_txn.tc.log_incarnations import service_of
from pulsar_txn.tc.outcomes import OutcomeWindow
from pulsar_txn.tc.owners import ANYBODY, Owner, is_older, is_permitted
from pulsar_txn.tc.prepared import ENDED_AS, Prepared
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import (
    AddParticipants,
    BeginIncarnation,
    CheckAnswered,
    CheckBegun,
    CheckReturned,
    EndTxn,
    Goodbye,
    GroupJoined,
    GroupLeft,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    PrepareTxn,
    ReleaseHeld,
    Renew,
    Request,
    ResumeTxn,
    TakeOver,
    Vanished,
)
from pulsar_txn.tc.table import ABORTING, ACTION_OF, END_EVENT, HELD, OPEN, PREPARED, TRANSITIONS, UNKNOWN, Cell, Event, State
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, Participant, Position, TxnId, TxnStatus

LOG: Final = "log"

_Records: TypeAlias = tuple[tuple[str, Record], ...]
_Effects: TypeAlias = tuple[Effect, ...]
_Topics: TypeAlias = tuple[str, ...]
_Pairs: TypeAlias = tuple[tuple[str, str], ...]

_EFFECTS_AT_ONCE: Final = 1024

_OBJECTS_PER_RECORD: Final = 1
"""The log grows by as many records as the state has objects before all of them are written again; so a record costs at most one
object more, and a recovery reads at most about twice the state."""

PULSAR_IDS: Final = PulsarIds()

_WRITTEN: Final = {at: cell.to for at, cell in TRANSITIONS.items() if cell.act is WRITE and cell.to is not None}
"""(state, event) -> the state to which the record of a WRITE cell leads; no record leads to UNKNOWN."""

_WISH: Final = {
    Event.ADD: "take participants",
    Event.COMMIT: "commit",
    Event.ABORT: "abort",
    Event.DONE: "be done",
    Event.PREPARE: "be prepared",
}


class UnfinishedEnds:
    """Ends that are decided and still have to be carried out: after a recovery, and where one Step would tell too many.

    Numbers of transactions, in the order in which they are carried out. No state: recovery finds them again.

    `waiting` may hold some that are not ending any more; while it is empty, nothing is left to carry out.
    """

    __slots__ = ("_ending", "waiting")

    def __init__(self, ending: Collection[int]) -> None:
        self._ending = ending
        self.waiting: deque[int] = deque()

    def find(self) -> None:
        """Begin with all that are ending now."""
        self.waiting = deque(sorted(self._ending))

    def add(self, least: int) -> None:
        """Carry this one out later. It is passed over when its decision was thrown away: then it is not ending."""
        self.waiting.append(least)

    def put_back(self, leasts: Iterable[int]) -> None:
        """Begin with these, in their order."""
        self.waiting.extendleft(reversed(list(leasts)))

    def take(self, count: int) -> Iterator[int]:
        """The next ones, `count` at most."""
        for _ in range(min(len(self.waiting), count)):
            yield self.waiting.popleft()

    def __bool__(self) -> bool:
        """True if something is left to carry out."""
        while self.waiting and self.waiting[0] not in self._ending:
            self.waiting.popleft()
        return bool(self.waiting)


class TransactionCoordinator:
    """The coordinator `tc_id`; a Machine (see `pulsar_txn.ledger.machine`) whose one log is "log".

    `max_active`, `max_participants`, `max_state_bytes`, `max_timeout_ms`, `max_active_of_role`, `max_prepared_of_role`,
    `max_parked`: see `admission.Limits`. `outcome_retention_count`: over how many ids at least an END_TXN may be repeated.
    `snapshot_every`: records between two WriteSnapshot. `expire_limit`: transactions that one `expire` aborts. `fencing`: the
    transactional ids that this coordinator fences; without it, it fences nobody. `ids`: how its transactions are numbered; a
    log goes on only with the policy that it began with. `check_after_ms`, `check_interval_ms`, `max_checks`, `check_policy` (a
    `CheckPolicy` or its value): see `check_times.CheckRules`, which raises ValueError. `has_incarnations`: after each recovery
    nothing is opened, ended or told until `BeginIncarnation`.

    With fencing, there are refusals beside those of `requests`: ProducerFenced for every request of an epoch below the
    highest of its id, except for ends: the repeat of what was decided is answered, and what is forgotten is
    TransactionNotFound.
    """

    logs: Sequence[str] = (LOG,)
    ends_groups: ClassVar = True
    """Methods a plug-in needs for the end of several transactions by one record."""
    checks: ClassVar = True
    """Methods a plug-in needs for check groups, PREPARE and nonces."""

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
        fencing: Fencing | None = None,
        ids: IdPolicy = PULSAR_IDS,
        check_after_ms: int = CHECK_AFTER_MS,
        check_interval_ms: int = CHECK_INTERVAL_MS,
        max_checks: int = MAX_CHECKS,
        check_policy: CheckPolicy | str = CheckPolicy.PARK,
        has_incarnations: bool = False,
        max_active_of_role: int = 0,
        max_prepared_of_role: int = 0,
        max_parked: int = 0,
    ) -> None:
        self.tc_id = tc_id
        of_role = (max_active_of_role, max_prepared_of_role, max_parked)
        self._limits = Limits(tc_id, max_active, max_participants, max_state_bytes, max_timeout_ms, *of_role)
        self.encode = records.Writer(tc_id).encode  # Pulsar's TransactionMetadataEntry with our fields from 100 up
        self._expire_limit = expire_limit
        self._has_incarnations = has_incarnations
        self._fencing = fencing
        self._lanes: Lanes | None = None
        if isinstance(ids, LaneIds):
            check_number(tc_id)
            self._lanes = Lanes(tc_id, ids)
        self._shift, self._number = numbering(tc_id, ids)
        self._first_least = ids.first_least if isinstance(ids, PulsarIds) else 0
        rules = CheckRules(check_after_ms, check_interval_ms, max_checks, CheckPolicy(check_policy))
        self._state = CoordinatorState(tc_id, OutcomeWindow(outcome_retention_count), fencing, self._lanes, rules)
        self._times = self._state.extra.times
        self._snapshot_every = self._left_of_round = snapshot_every
        self._applied = 0  # records of this life
        self._applied_at_snapshot = 0
        self._unfinished = UnfinishedEnds(self._state.ending)
        self._clients = Clients(self._state, self._leave_open, expire_limit)
        self._checks = Checks(self._state, self._leave_open, expire_limit, self._limits)
        self._prepared = Prepared(self._state, self._limits)
        self._trim_before: Position | None = None

    # ------------------------------------------------------------------ Machine

    def decide(self, request: Request, now_ms: int) -> Step[Record]:
        """See `requests` for what is answered and refused."""
        match request:
            case EndTxn():
                step = self._end(request, now_ms)
            case AddParticipants():
                step = self._add(request, now_ms)
            case NewTxn():
                step = self._new(request, now_ms)
            case ParticipantsDone():
                step = self._done(request.txn_id, now_ms)
            case IsRegistered():
                return Step((), (Reply(request.token, self.is_registered(request.txn_id, request.participant)),))
            case Renew():
                return self._clients.renewed(request, now_ms)
            case Goodbye() | Vanished() | TakeOver():
                step = self._clients.decide(request, now_ms)
            case PrepareTxn():
                step = self._prepare(request, now_ms)
            case CheckBegun() | CheckAnswered() | CheckReturned() | GroupJoined() | GroupLeft():
                step = self._checks.decide(request, now_ms)
            case BeginIncarnation() | ReleaseHeld():
                step = self._live(request, now_ms)
            case ResumeTxn():
                step = self._resume(request, now_ms)
            case _:
                assert_never(request)
        return self._paced(step) if len(step.records) + len(step.trailing) >= self._left_of_round else step

    def apply(self, log: str, position: Position, record: Record) -> None:
        """Fold one record in; `log` is always "log"."""
        self._applied += 1
        self._left_of_round = self._left_of_round - 1 or self._snapshot_every
        self._state.apply(position, record)

    def decode(self, log: str, data: bytes) -> Record:
        """Also reads a stock coordinator's entries, batched or not. Raises WireError."""
        return records.decode(self.tc_id, data, lanes=self._lanes is not None)

    def recovered(self, now_ms: int) -> Step[Record]:
        """Carry out every end under way again; participants may hear of it twice. Where there are many, `expire` goes on."""
        self._unfinished.find()
        self._state.incarnations.recovered(is_awaited=self._has_incarnations)
        self._times.start(now_ms)
        if self._lanes is not None:
            self._lanes.recovered(now_ms)
        step = NOTHING if self._has_incarnations else self._drive_again(now_ms)
        return self._paced(step, self._applied >= self._snapshot_every)

    def deadline(self) -> int | None:
        """The earliest deadline of an OPEN transaction, a lease or a check; the past while ends are to be carried out again."""
        if self._state.incarnations.is_awaited:
            return None
        if self._unfinished.waiting and self._unfinished:
            return 0
        entry = self._state.deadlines.first()
        due = None if entry is None else entry[0]
        if self._times.is_used and (check := self._times.deadline()) is not None:
            due = check if due is None else min(due, check)
        if self._lanes is not None and (lease := self._lanes.leases.deadline()) is not None:
            return lease if due is None else min(due, lease)
        return due

    def expire(self, now_ms: int) -> Step[Record]:
        """Abort OPEN transactions that are due, the earliest first, or of a lease that is over; at most `expire_limit`.

        What a living check group has not been asked for to the last question is put off instead. When there are no more of
        them, check groups are asked for as many.
        """
        if self._state.incarnations.is_awaited:
            return NOTHING
        if self._unfinished:
            return self._paced(self._drive_again(now_ms))
        if self._lanes is not None and (gone := self._lanes.leases.over(now_ms)) is not None:
            return self._paced(self._clients.is_gone(gone, now_ms))
        decisions: list[tuple[str, Record]] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = []
        for txn in self._state.due(now_ms, self._expire_limit):
            if txn.extras is not None and (until_ms := self._times.spared_until(txn, now_ms)) is not None:
                self._state.put_off(txn, until_ms)
                continue
            decision, more, heard = self._leave_open(txn, Event.TIMEOUT, now_ms, cause=Cause.TIMEOUT)
            decisions += decision
            trailing += more
            effects += heard
            if len(effects) >= _EFFECTS_AT_ONCE:
                break
        if not decisions and self._times.is_used:
            return self._paced(self._checks.expire(now_ms))
        return self._paced(Step(tuple(decisions), tuple(effects), tuple(trailing)))

    def snapshot(self) -> Iterator[bytes]:
        """The whole state: next id, what takes room, window of outcomes, tokens of what was prepared, epochs, lanes."""
        self._trim_before = _after(self._state.last_applied)
        self._applied_at_snapshot = self._applied
        return snapshots.write(self._state)

    def restore(self, part: bytes) -> None:
        """Raises WireError when the snapshot is of a newer format, of another coordinator, or of another id policy.

        A coordinator may take over the snapshot of one with, or without, fencing: the provider may be changed while
        transactions are open.
        """
        snapshots.read(self._state, part)
        self._trim_before = _after(self._state.last_applied)

    def trim_before(self, log: str) -> Position | None:
        """Everything that the last `snapshot` (or the restored one) covers; None before the first one."""
        return self._trim_before

    def check_invariants(self) -> None:
        """Check `table.INVARIANTS`, with lanes `lane_table.LANE_INVARIANTS`, with fencing that nobody fenced has one open."""
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
        """True if the transaction is OPEN here with this participant."""
        txn = self._state.transactions.get(txn_id.least)
        if txn is None or txn.status is not OPEN or txn.txn_id.most != txn_id.most:
            return False
        topic, subscription = participant.topic, participant.subscription
        return topic in txn.topics if subscription is None else (topic, subscription) in txn.subscriptions

    def belongs_to(self, txn_id: TxnId, principal: str | None) -> bool:
        """True if a client with this principal opened the transaction. False for one that is not known, or not any more."""
        txn = self._state.transactions.get(txn_id.least)
        if txn is not None:
            return txn.txn_id.most == txn_id.most and txn.owner[0] == principal
        if txn_id.most >> self._shift != self._number:
            return False
        outcome, owner = self._state.outcomes.lookup(txn_id.least)
        if not self._is_of_its_incarnation(txn_id):
            return False
        return outcome in ENDED_AS and owner is not None and owner[0] == principal

    @property
    def incarnation(self) -> int:
        """The service number of the newest incarnation of the log; 0 before the first one."""
        return self._state.incarnations.newest

    @property
    def position(self) -> Position:
        """The last record that was applied."""
        return self._state.last_applied

    def holds(self, service: int, position: Position) -> bool:
        """True if this log holds what an incarnation had written up to a position: see `log_incarnations`."""
        return self._state.incarnations.holds(service, position, self._state.last_applied)

    @property
    def ids_left(self) -> int | None:
        """Return how many lanes, or reserved numbers, the incarnation can still give; None where there is no end."""
        if self._lanes is not None:
            return self._lanes.lanes_left
        until = self._state.incarnations.until_least
        return None if until is None else until - self._state.next_id

    def held(self, cause: Cause | None = None) -> list[TransactionInfo]:
        """Return what is HELD, for one cause or for any."""
        transactions = self._state.transactions
        found = (transactions[least] for least in self._state.held)
        return [info_of(txn) for txn in found if cause is None or (txn.extras is not None and txn.extras.held == cause)]

    @property
    def held_count(self) -> int:
        """Return how many are HELD."""
        return len(self._state.held)

    @property
    def active_count(self) -> int:
        """Return how many transactions are open, prepared or ending."""
        return len(self._state.transactions)

    @property
    def prepared_since_ms(self) -> Collection[int]:
        """Since when each PREPARED transaction waits."""
        return self._state.extra.prepared_ms.values()

    @property
    def parked_since_ms(self) -> Collection[int]:
        """Since when each parked transaction waits for an operator."""
        return self._state.extra.parked_ms.values()

    @property
    def low_watermark(self) -> int:
        """All transactions up to here have ended (-1: none); what is open or ending is never covered."""
        return self._state.low_watermark()

    def unfinished(self) -> Iterable[int]:
        """The numbers of all transactions that take room."""
        return self._state.transactions.keys()

    def transactions(self) -> list[TransactionInfo]:
        """All open, prepared and ending transactions, by id."""
        return [info_of(txn) for txn in self._state.transactions.values()]

    def transaction(self, least: int) -> TransactionInfo | None:
        """The open, prepared or ending transaction with this number, None when it is nothing of that."""
        txn = self._state.transactions.get(least)
        return None if txn is None else info_of(txn)

    def describe(self, principal: str | None, transactional_id: str, most: int | None = None) -> IdInfo | None:
        """Return what is known of a transactional id, with its `most` oldest transactions or all; None for nothing.

        Nothing is known where the coordinator does not fence.
        """
        return id_info(self._state, principal, transactional_id, most)

    def ids(self) -> Iterator[IdInfo]:
        """The transactional ids that are remembered, the longest unused first; each as it is when its turn comes."""
        return ids_of(self._state)

    def clients(self) -> list[ClientInfo]:
        """Return who holds lanes; nobody where the coordinator gives none."""
        return [] if self._lanes is None else self._lanes.clients()

    def lane_counts(self) -> LaneCounts:
        """Return how many lanes there are. LookupError where the coordinator gives none."""
        if self._lanes is None:
            raise LookupError("this coordinator gives no lanes")
        return self._lanes.counts()

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        """The status of a transaction, None when it is unknown or forgotten; nobody is asked for a principal."""
        return self._locate(txn_id, ANYBODY, superuser=True)[0]

    # ------------------------------------------------------------------ decisions

    def _new(self, request: NewTxn, now_ms: int) -> Step[Record]:
        owner = (request.principal, request.identity)
        if self._fencing is not None and request.identity is not None:
            self._fencing.check_asker(owner)
        extras: Extras | None = None
        if request.nonce or request.check is not None:
            extras = asked_for(request)
            again = self._state.extra.nonces.get((owner, extras.nonce))
            if again is not None:
                return self._opened_before(request, self._state.transactions[again], now_ms)
            self._limits.check_bytes(self._state, TRANSACTION_BYTES + extras.size)
        self._limits.check_new(self._state, request)
        least = self._state.next_id
        topics, pairs = self._first(request.participants, extras) if request.participants else ((), ())
        if self._state.incarnations.is_awaited:
            raise Refusal(ServerError.ServiceNotReady, f"coordinator {self.tc_id} is starting; retry")
        if self._lanes is None:
            if least < self._first_least:
                least = self._first_least
            until = self._state.incarnations.until_least
            if until is not None and least >= until:
                text = f"coordinator {self.tc_id} has given all numbers that are reserved, and reserves others; retry"
                raise Refusal(ServerError.ServiceNotReady, text)
            new: _Records = ((LOG, records.new_transaction(least, request.timeout_ms, now_ms, owner, extras)),)
            if topics:
                new = (*new, (LOG, records.add_partitions(least, topics, now_ms, least)))
            if pairs:
                new = (*new, (LOG, records.add_subscriptions(least, pairs, now_ms, least)))
            reply = Reply(request.token, TxnId(self.tc_id, least))
        else:
            lane = self._lanes.choose(owner, request.incarnation)
            who = (owner, lane, request.incarnation)
            new = ((LOG, records.new_in_lane(least, request.timeout_ms, now_ms, *who, extras, topics, pairs)),)
            reply = Reply(request.token, TxnId(most_of_lane(self.tc_id, lane), least))
        if self._fencing is None or request.identity is None:
            return Step(new, (reply,))
        return self._succeed(self._fencing, owner, new, reply, now_ms)

    def _opened_before(self, request: NewTxn, txn: Transaction, now_ms: int) -> Step[Record]:
        """The answer to a repeat. Without lanes a crash may have left the transaction without its first participants."""
        reply = Reply(request.token, txn.txn_id)
        if not request.participants or txn.status is not OPEN:
            return Step((), (reply,))
        named = request.participants, request.principal, request.identity
        return Step(self._add(AddParticipants(request.token, txn.txn_id, *named), now_ms).records, (reply,))

    def _first(self, participants: tuple[Participant, ...], extras: Extras | None) -> tuple[_Topics, _Pairs]:
        """Return what is registered with the transaction that they open, each once. Refusal when it may not have them."""
        topics = tuple(dict.fromkeys([each.topic for each in participants if each.subscription is None]))
        pairs = tuple(
            dict.fromkeys([(each.topic, each.subscription) for each in participants if each.subscription is not None])
        )
        added = 0 if extras is None else extras.size
        added += sum([PARTICIPANT_BYTES + len(topic) for topic in topics])
        added += sum([PARTICIPANT_BYTES + len(topic) + len(name) for topic, name in pairs])
        self._limits.check_first(self._state, len(topics) + len(pairs), added)
        return topics, pairs

    def _succeed(self, fencing: Fencing, owner: Owner, new: _Records, reply: Reply, now_ms: int) -> Step[Record]:
        """Open a transaction of a transactional id: transactions that older epochs left open are aborted before it."""
        decisions: list[tuple[str, Record]] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = [reply]
        open_of_id = fencing.open_of(owner)
        for least in open_of_id:
            txn = self._state.transactions[least]
            if is_older(txn.owner, owner):
                decision, more, heard = self._leave_open(txn, Event.ABANDON, now_ms, told=len(effects), cause=Cause.FENCED)
                decisions += decision
                trailing += more
                effects += heard
        fencing.check_room(owner, len(open_of_id) - len(decisions), self.tc_id)
        return Step((*decisions, *new), tuple(effects), tuple(trailing))

    def _add(self, request: AddParticipants, now_ms: int) -> Step[Record]:
        asker = (request.principal, request.identity)
        if self._fencing is not None and request.identity is not None:
            self._fencing.check_asker(asker)
        txn_id = request.txn_id
        txn = self._state.transactions.get(txn_id.least)
        state: State = None if txn is None else txn.status
        if txn is None or txn.owner != ANYBODY or request.principal is not None or txn.txn_id.most != txn_id.most:
            state, txn = self._locate(txn_id, asker, request.superuser)
        cell = TRANSITIONS[state, Event.ADD]
        if cell.act is REFUSE:
            raise _refusal(cell, txn_id, state, Event.ADD)
        assert txn is not None  # noqa: S101 - the table's promise: participants are added to what is OPEN
        topics: dict[str, None] = {}
        subscriptions: dict[tuple[str, str], None] = {}
        more = added = 0
        for participant in request.participants:
            topic, name = participant.topic, participant.subscription
            if name is None:
                if topic not in txn.topics and topic not in topics:
                    topics[topic] = None
                    more += 1
                    added += PARTICIPANT_BYTES + len(topic)
            elif (pair := (topic, name)) not in txn.subscriptions and pair not in subscriptions:
                subscriptions[pair] = None
                more += 1
                added += PARTICIPANT_BYTES + len(topic) + len(name)
        limits = self._limits
        if more and (
            txn.participant_count + more > limits.max_participants or self._state.bytes + added > limits.max_state_bytes
        ):
            limits.check_participants(self._state, txn, more, added)
        new: _Records = ()
        least, highest = txn_id.least, self._state.next_id - 1
        if topics:
            new = ((LOG, records.add_partitions(least, tuple(topics), now_ms, highest)),)
        if subscriptions:
            new += ((LOG, records.add_subscriptions(least, tuple(subscriptions), now_ms, highest)),)
        return Step(new, (Reply(request.token),))

    def _end(self, request: EndTxn, now_ms: int) -> Step[Record]:
        if request.group or request.abort_others:
            return self._end_together(request, now_ms)
        txn_id, token, asker = request.txn_id, request.token, (request.principal, request.identity)
        state, txn = self._locate(txn_id, asker, request.superuser)
        if state is UNKNOWN and request.prepared_token and txn_id.most >> self._shift == self._number:
            state, txn = self._prepared.shown(txn_id, request.prepared_token)
        event = Event.ABANDON if request.cause is Cause.DISCONNECTED else END_EVENT[request.action]
        cell = TRANSITIONS[state, event]
        if state is HELD and cell.act is WRITE and not request.superuser:
            raise _is_held(txn_id)
        joined = Reply(token) if request.at_decision else AwaitOutcome(token, txn_id)
        if cell.act is ANSWER or cell.act is SKIP:
            return Step((), (Reply(token),))
        if cell.act is JOIN:
            return Step((), (joined,))
        if cell.act is REFUSE:
            raise self._end_refused(cell, txn_id, state, event, asker)
        assert txn is not None  # noqa: S101 - the table's promise: only what is OPEN or PREPARED is decided
        if (state is PREPARED or txn.is_parked) and self._fencing is not None:
            self._fencing.check_asker(asker)  # what is OPEN has no owner that is fenced
        decision, trailing, effects = self._leave_open(txn, event, now_ms, cause=_asked_by(request, txn))
        return Step(decision, (joined, *effects), trailing)

    def _prepare(self, request: PrepareTxn, now_ms: int) -> Step[Record]:
        asker = (request.principal, request.identity)
        if self._fencing is not None:
            self._fencing.check_asker(asker)
        state, txn = self._locate(request.txn_id, asker, request.superuser)
        cell = TRANSITIONS[state, Event.PREPARE]
        if cell.act is REFUSE:
            raise _refusal(cell, request.txn_id, state, Event.PREPARE)
        assert txn is not None  # noqa: S101 - the table's promise: what is OPEN is prepared
        return self._prepared.prepare(request, txn, cell, now_ms)

    def _resume(self, request: ResumeTxn, now_ms: int) -> Step[Record]:
        asker = (request.principal, request.identity)
        state, txn = self._locate(request.txn_id, asker, request.superuser)
        if state is UNKNOWN:
            raise _refusal(TRANSITIONS[state, Event.ABORT], request.txn_id, state, Event.ABORT)
        if txn is not None and self._fencing is not None and self._fencing.is_fenced(txn.owner):
            text = f"transaction {request.txn_id} is of an instance that was taken over meanwhile: commit it or abort it"
            raise Refusal(ServerError.InvalidTxnStatus, text)
        return self._checks.resume(request, txn, now_ms)

    def _end_refused(self, cell: Cell, txn_id: TxnId, state: State, event: Event, asker: Owner) -> Refusal:
        if self._fencing is not None and state is not UNKNOWN:  # the outcome of an unknown one is forgotten
            self._fencing.check_asker(asker)
        return _refusal(cell, txn_id, state, event)

    def _end_together(self, request: EndTxn, now_ms: int) -> Step[Record]:
        """End a group by one record. Each member's cell of the table says what it allows; they all have to agree."""
        asker, event = (request.principal, request.identity), END_EVENT[request.action]
        if request.abort_others and (self._fencing is None or request.identity is None):
            raise Refusal(
                ServerError.NotAllowedError, "only a client with a transactional id may abort all else that it has open"
            )
        leaving: list[Transaction] = []
        joined: TxnId | None = None
        ended: TxnId | None = None
        for txn_id in dict.fromkeys((request.txn_id, *request.group)):
            state, txn = self._locate(txn_id, asker, request.superuser)
            cell = TRANSITIONS[state, event]
            if cell.act is REFUSE:
                raise self._end_refused(cell, txn_id, state, event, asker)
            if state is HELD:
                raise _is_held(txn_id)
            if state is PREPARED:
                raise _prepared_in_group(txn_id)
            if cell.act is WRITE and txn is not None:
                leaving.append(txn)
            elif cell.act is JOIN:
                joined = joined or txn_id
            else:
                ended = txn_id
        before = joined or ended
        if before is None:
            step = self._decide_together(request, leaving, _WRITTEN[OPEN, event], now_ms)
            return self._with_others_aborted(step, leaving, asker, now_ms) if request.abort_others else step
        if leaving:
            raise _torn_group(before, leaving[0].txn_id)
        is_answered = joined is None or request.at_decision
        return Step((), (Reply(request.token) if is_answered else AwaitOutcome(request.token, before),))

    def _decide_together(self, request: EndTxn, leaving: list[Transaction], to: TxnStatus, now_ms: int) -> Step[Record]:
        """The decision about OPEN transactions. Where it has many participants, `expire` tells the rest of them."""
        token, first_id = request.token, leaving[0].txn_id
        first, *further = [txn.txn_id.least for txn in leaving]
        record = records.update_together(first, tuple(further), OPEN, to, now_ms, self._state.next_id - 1)
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = [Reply(token) if request.at_decision else AwaitOutcome(token, first_id)]
        for txn in leaving:
            if len(effects) >= _EFFECTS_AT_ONCE:
                self._unfinished.add(txn.txn_id.least)
            else:
                more, heard = self._carry_out(txn, to, now_ms)
                trailing += more
                effects += heard
        return Step(((LOG, record),), tuple(effects), tuple(trailing))

    def _with_others_aborted(self, step: Step[Record], leaving: list[Transaction], asker: Owner, now_ms: int) -> Step[Record]:
        """`step`, and then aborts of all else that the asker has open: after its decision, so a torn write keeps that."""
        spared = {txn.txn_id.least for txn in leaving}
        decisions, effects, trailing = list(step.records), list(step.effects), list(step.trailing)
        for least in () if self._fencing is None else self._fencing.open_of(asker):
            txn = self._state.transactions[least]
            if least not in spared and is_permitted(txn.owner, asker):
                decision, more, heard = self._leave_open(txn, Event.ABANDON, now_ms, told=len(effects))
                decisions += decision
                trailing += more
                effects += heard
        return Step(tuple(decisions), tuple(effects), tuple(trailing))

    def _done(self, txn_id: TxnId, now_ms: int) -> Step[Record]:
        txn = self._state.transactions.get(txn_id.least)
        is_known = txn is not None and txn.txn_id.most == txn_id.most
        state: State = txn.status if txn is not None and is_known else self._locate(txn_id, ANYBODY, superuser=True)[0]
        cell = TRANSITIONS[state, Event.DONE]
        if cell.act is REFUSE:
            raise _refusal(cell, txn_id, state, Event.DONE)
        if cell.act is SKIP:
            return NOTHING
        trailing, effects = self._finish(txn_id, state, now_ms)
        return Step((), effects, trailing)

    # ------------------------------------------------------------------ their parts

    def _locate(self, txn_id: TxnId, asker: Owner, superuser: bool = False) -> tuple[State, Transaction | None]:
        """The state as `asker` may see it, and the transaction while it takes room."""
        if txn_id.most >> self._shift != self._number:
            return UNKNOWN, None
        owner: Owner | None
        txn = self._state.transactions.get(txn_id.least)
        if txn is not None:
            if txn.txn_id.most != txn_id.most:
                return UNKNOWN, None
            state: State = txn.status
            owner = txn.owner
        elif not self._is_of_its_incarnation(txn_id):
            return UNKNOWN, None
        else:
            outcome, owner = self._state.outcomes.lookup(txn_id.least)
            state = ENDED_AS.get(outcome)
        if superuser or (owner == ANYBODY and asker[0] is None) or is_permitted(owner, asker):
            return state, txn
        if self._fencing is not None and owner is not None and is_older(owner, asker):
            return state, txn  # a successor may ask for the outcomes of those before it
        return UNKNOWN, None

    def _is_of_its_incarnation(self, txn_id: TxnId) -> bool:
        """True if the incarnation that gave this `least` gives such lanes. Else this log does not know it."""
        return self._lanes is None or self._state.incarnations.of(txn_id.least) == service_of(lane_of(txn_id.most))

    def _live(self, request: BeginIncarnation | ReleaseHeld, now_ms: int) -> Step[Record]:
        """Begin an incarnation of the log, or let what was held in doubt go on."""
        if isinstance(request, ReleaseHeld):
            in_doubt = {info.txn_id.least for info in self.held(Cause.DOUBT)}
            released = [least for least in request.held if least in in_doubt]
            return self._release(released, request.token, now_ms)
        found = ((least, self._state.transactions.get(least)) for least in request.hold)
        statuses = [(least, txn.status) for least, txn in found if txn is not None and _may_be_held(txn, request.cause)]
        return log_incarnations.begin(request, statuses, self._state.next_id, now_ms)

    def _release(self, leasts: list[int], token: Any, now_ms: int) -> Step[Record]:
        """Let these go on, but abort what a client has left behind meanwhile. `expire` tells of that."""
        going: list[int] = []
        aborted: dict[Cause, list[int]] = {Cause.FENCED: [], Cause.LEASE: []}
        effects: list[Effect] = [Reply(token)]
        for least in leasts:
            txn = self._state.transactions[least]
            cause = self._left_behind(txn)
            if cause is None:
                going.append(least)
                continue
            aborted[cause].append(least)
            self._unfinished.add(least)
            effects += told_group(txn, ACTION_OF[ABORTING], cause)
        next_id = self._state.next_id
        decisions = list(log_incarnations.release(going, next_id, now_ms))
        for cause, found in aborted.items():
            decisions += log_incarnations.moved(found, HELD, ABORTING, now_ms, next_id - 1, cause)
        return Step(tuple(decisions), tuple(effects))

    def _left_behind(self, txn: Transaction) -> Cause | None:
        """Return why nobody ends a transaction that was held, if it goes on. A check group outlives the client."""
        if self._fencing is not None and self._fencing.is_fenced(txn.owner):
            return Cause.FENCED
        has_group = txn.extras is not None and bool(txn.extras.group)
        if self._lanes is not None and not has_group and self._lanes.has_lost_client(lane_of(txn.txn_id.most)):
            return Cause.LEASE
        return None

    def _leave_open(
        self, txn: Transaction, event: Event, now_ms: int, told: int = 0, cause: Cause = Cause.CLIENT
    ) -> tuple[_Records, _Records, _Effects]:
        """The decision about an OPEN or PREPARED transaction: its record, then what carries it out.

        `told`: the effects that its Step has already. Where they are many, this end is carried out by `expire`.
        """
        status = txn.status
        to = _WRITTEN[status, event]
        decision = ((LOG, records.update_status(txn.txn_id.least, status, to, now_ms, self._state.next_id - 1, cause)),)
        heard: _Effects = () if txn.extras is None else told_group(txn, ACTION_OF[to], cause)
        if told >= _EFFECTS_AT_ONCE:
            self._unfinished.add(txn.txn_id.least)
            return decision, (), heard
        trailing, effects = self._carry_out(txn, to, now_ms)
        return decision, trailing, (*effects, *heard) if heard else effects

    def _carry_out(self, txn: Transaction, state: TxnStatus, now_ms: int) -> tuple[_Records, _Effects]:
        """Tell every participant; without participants the end is reached at once."""
        participants = txn.participants()
        if not participants:
            return self._finish(txn.txn_id, state, now_ms)
        txn_id, action = txn.txn_id, ACTION_OF[state]
        low_watermark = self._state.low_watermark() if self._lanes is None else txn_id.least
        return (), tuple([TellParticipant(txn_id, participant, action, low_watermark) for participant in participants])

    def _drive_again(self, now_ms: int) -> Step[Record]:
        """Carry out the next unfinished ends. An end that writes a record comes again until that record is applied."""
        again: list[int] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = []
        for least in self._unfinished.take(self._expire_limit):
            txn = self._state.transactions.get(least)
            if txn is not None:  # its participants have not all answered meanwhile
                more, heard = self._carry_out(txn, txn.status, now_ms)
                again += [least] * len(more)
                trailing += more
                effects += heard
                if len(effects) >= _EFFECTS_AT_ONCE:
                    break
        self._unfinished.put_back(again)
        return Step((), tuple(effects), tuple(trailing))

    def _finish(self, txn_id: TxnId, state: State, now_ms: int) -> tuple[_Records, _Effects]:
        """The last record, which nobody waits for: decision and effects are durable, recovery would carry them out again."""
        assert state is not None  # noqa: S101 - the table's promise: UNKNOWN has no way to an end
        last = records.update_status(txn_id.least, state, _WRITTEN[state, Event.DONE], now_ms, self._state.next_id - 1)
        return ((LOG, last),), (Outcome(txn_id, ACTION_OF[state]),)

    def _paced(self, step: Step[Record], overdue: bool = False) -> Step[Record]:
        """`step`, with WriteSnapshot last when it is time for one.

        A snapshot is asked for in rounds of `snapshot_every` records. A round is passed over until enough records were written
        for the objects that there are to write: so each record pays for one object, however large the state is.
        """
        written = len(step.records) + len(step.trailing)
        if written >= self._left_of_round:
            since = self._applied + written - self._applied_at_snapshot
            overdue = since * _OBJECTS_PER_RECORD >= self._state.weight
        return Step(step.records, (*step.effects, WriteSnapshot(LOG)), step.trailing) if overdue else step


class FencingCoordinator(TransactionCoordinator):
    """A coordinator that fences: the provider `fencing`.

    `id_retention_ms`, `max_active_of_id`: see `fencing.Fencing`; further options as `TransactionCoordinator`.
    """

    fences: ClassVar = True
    """Methods a plug-in needs for transactional ids."""

    def __init__(
        self, tc_id: int, *, id_retention_ms: int = ID_RETENTION_MS, max_active_of_id: int = 0, **options: Any
    ) -> None:
        self.fencing = Fencing(id_retention_ms=id_retention_ms, max_active_of_id=max_active_of_id)
        super().__init__(tc_id, fencing=self.fencing, **options)


def _asked_by(request: EndTxn, txn: Transaction) -> Cause:
    """A superuser who is not the owner, or gives no name, as over HTTP, acts as an operator."""
    if request.cause is not None:
        return request.cause
    asker = (request.principal, request.identity)
    if request.superuser and (asker == ANYBODY or not is_permitted(txn.owner, asker)):
        return Cause.OPERATOR
    return Cause.CLIENT


def _refusal(cell: Cell, txn_id: TxnId, state: State, event: Event) -> Refusal:
    assert cell.code is not None  # noqa: S101 - the table's promise for REFUSE
    if state is UNKNOWN:
        return Refusal(
            cell.code,
            f"transaction {txn_id} is not known here: it never was, ended too long ago, or belongs to somebody else",
        )
    return Refusal(cell.code, f"transaction {txn_id} is {state.name} and cannot {_WISH[event]} any more")


def _may_be_held(txn: Transaction, cause: Cause) -> bool:
    """Everything, where the log was restored; what is HELD already, if it was held in doubt."""
    if txn.status is HELD:
        return cause is Cause.RESTORED and txn.extras is not None and txn.extras.held == Cause.DOUBT
    return cause is Cause.RESTORED or txn.status is OPEN


def _is_held(txn_id: TxnId) -> Refusal:
    """Return the refusal of a held transaction. It is no outcome, and passes: an administrator decides."""
    return Refusal(
        ServerError.ServiceNotReady,
        f"transaction {txn_id} is HELD: its log was restored or rolled back, and it may have been decided before; an"
        " administrator decides (pulsar-txn transactions list --held)",
    )


def _prepared_in_group(txn_id: TxnId) -> Refusal:
    return Refusal(
        ServerError.InvalidTxnStatus, f"transaction {txn_id} of the group is PREPARED: nothing was changed; end it by itself"
    )


def _torn_group(ended: TxnId, still_open: TxnId) -> Refusal:
    return Refusal(
        ServerError.InvalidTxnStatus,
        f"transaction {ended} of the group was ended before, and {still_open} is open: nothing was changed; end each by itself",
    )


def _after(position: Position) -> Position | None:
    return None if position == EARLIEST else (position[0], position[1] + 1)
