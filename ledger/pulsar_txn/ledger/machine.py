"""The fold over a log: what a machine is, the form of its transition table, and what its host owes it.

    request -> decide(request, now_ms) -> Step(records, effects) -> append -> apply(log, position, record)
                  | or raises Refusal                                 `-> once durable: effects are released
    recovery:  restore(slice) for every slice of the snapshot, then apply(log, position, decode(log, data)) for every
               entry after it

Duties of a host, in order of importance:

* H1. State changes only through `apply`. `decide` may be called and its Step thrown away without a trace.
* H2. A Step's records are appended in order, each to the log it names, and each is applied at once, before the
    next `decide`, with the position that `append` returned. `encode` gives the bytes to append.
* H3. Effects are released in order, and only when every record of the Step is confirmed. A Step without records,
    and a Refusal, is released when the record last applied in each of the machine's logs is confirmed (at once when
    nothing is in flight): a repeat must not be answered before the first attempt is durable, wherever it was written.
    `Step.trailing` is appended and applied directly after the records, and no effect waits for it: it notes what is durable
    elsewhere already and would be done again after a crash. A Step with trailing records only is therefore released at
    once, ahead of the tail. `AwaitOutcome` is carried out together with the Step, not on release: it shows nothing to
    anybody, and the `Outcome` that is released at once must find it.
* H4. A log that failed an append is closed with its machine: state is thrown away and recovered, never patched;
    requests in flight get a retriable error.
* H5. Recovery reads all logs of a machine from where the snapshot covers them, in the order of `logs`, then calls
    `recovered(now_ms)` once, whose Step is carried out like any other.
* H6. `deadline()` is asked after each turn that may have brought it nearer; once `now_ms` reaches it, `expire(now_ms)` is
    called until the deadline is in the future. `now_ms` never goes back, across restarts too (never below the newest time in
    the log).
* H7. After `WriteSnapshot(log)` is released, the host calls `snapshot()`, which fixes the state of *that moment*, and
    notes the positions applied last. It takes the slices one after the other, a few in each turn of its loop, and goes on
    deciding and applying meanwhile. Slices go to the store once the noted positions are confirmed, and the last one makes
    it the newest snapshot; then the host trims to `trim_before(log)`. One snapshot of a machine is under way at a time: a
    WriteSnapshot that comes meanwhile is carried out after it. A snapshot that cannot be stored (the disk is full) is no
    failure: the log keeps what it would have covered.
    A machine with several logs is snapshotted by its main log only, once the positions of all of them are confirmed;
    its snapshot names the positions it covers in the others, and its `apply` skips what it has (they are read from
    their first entry). All its logs are then trimmed.

A `token` is the host's own handle of a request (a connection and a request id, a future, …): machines carry it
from request to `Reply` and never look inside.

Each machine states its table as one constant, `TRANSITIONS`, in its own room: (state, event) -> `Cell`, with a cell for
every pair. Events are of two kinds. A request, an answer or a deadline meets `decide`: its cell says what to write, and which
state follows after that record was applied. A record of the log meets `apply`, live and in recovery. Both look their cells up,
so the table is the program and not a description of it. Tests walk every cell, and `docs/state_diagrams.py` prints the tables.
States and events are IntEnums (None may represent a state): hashing them takes no Python call, so a look-up takes about 50 ns.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId
from pulsar_txn.wire.values import value

Token: TypeAlias = Any
"""The host's handle of a request; opaque to machines."""

SLICE_BYTES: Final = 128 * 1024
"""About how many bytes a slice of a snapshot has at the most."""


@value
class Reply:
    """Answer a request. `value` is what its docstring promises; None where success says all.

    `error` set: a refusal that belongs to this token only (others of the same Step succeed).
    `position_of`: index of the record in this Step whose position is the answer (a SEND's receipt).
    """

    token: Token
    value: object = None
    error: ServerError | None = None
    message: str = ""
    position_of: int | None = None


@value
class AwaitOutcome:
    """Join the end of `txn_id` that is being carried out: `token` is answered by the `Outcome` of it.

    Carried out with its Step, not held back with the other effects (see H3).
    """

    token: Token
    txn_id: TxnId


@value
class Outcome:
    """The end of `txn_id` was carried out at all participants: answer every token that awaits it."""

    txn_id: TxnId
    action: TxnAction


@value
class TellParticipant:
    """Tell one participant the outcome, until it answers (END_TXN_ON_PARTITION / _ON_SUBSCRIPTION).

    `low_watermark` is the coordinator's at that moment (-1: none). When all participants of a transaction have
    answered, the host sends the coordinator `ParticipantsDone`.
    """

    txn_id: TxnId
    participant: Participant
    action: TxnAction
    low_watermark: int


@value
class VerifyRegistered:
    """Ask the coordinator of `txn_id` whether it is open and has this participant; send `request` again with the answer.

    The host calls `decide(Verified(request, ok))`. Requests of the same transaction that arrive meanwhile, its end
    included, wait after it: otherwise an answer could be overtaken by the end, and a late write be let in.

    A machine that has asked for one request of a type may get `Verified(request, True)` in place of the next ones, for
    transactions that it knows as well: a host that knows the answer asks the machine once and not twice.
    """

    txn_id: TxnId
    request: Any


@value
class CopyEntries:
    """Copy entries from one of the machine's logs into another, each through `decide(Copied(...))` (half messages).

    They are copied in the order of these effects, so nothing of one comes before all of those that were released earlier.
    """

    source: str
    target: str
    positions: Sequence[Position]
    txn_id: TxnId | None = None


@value
class AskProducer:
    """Ask one living member of a check group what became of its transaction (back-check).

    The member has the group's `principal`. `data` is what the transaction was opened with, for whoever answers. `count`: which
    question about this transaction it is, from 1, once the member has begun to answer. `max_checks`: after how many of them the
    coordinator decides by itself; 0: it goes on asking. `prepared`: the transaction is PREPARED.

    The machine asks nothing more about the transaction until the host says what became of the question: CheckAnswered, or
    CheckReturned when nobody is at it any more.
    """

    txn_id: TxnId
    group: str
    principal: str | None
    data: bytes
    count: int
    max_checks: int
    prepared: bool


@value
class TellGroup:
    """Tell one living member of a check group what was decided about a transaction, which it has not said itself.

    `action` None: the transaction is parked. `cause`: `pulsar_txn.tc.causes.Cause`. `count`: how many questions were begun.
    Carried out at most once.
    """

    txn_id: TxnId
    group: str
    principal: str | None
    data: bytes
    action: TxnAction | None
    cause: int
    count: int


@value
class Redeliver:
    """Give these positions to the subscription's dispatcher again. `ack_set` None: the whole entry."""

    positions: Sequence[tuple[Position, int | None]]


@value
class MoveCursor:
    """Apply acknowledgements to the subscription's cursor; idempotent.

    `individual`: (position, indexes acknowledged as a bit set, None = the whole entry; batch_size). `cumulative`:
    everything up to the position; its ack set keeps set the bits of that entry's batch indexes that stay unacknowledged.
    `sequence` grows with each one of a machine's life: once the cursor's durable state covers it, the host says so with
    `CursorStored(sequence)`.
    """

    individual: Sequence[tuple[Position, int | None, int]] = ()
    cumulative: tuple[Position, int | None, int] | None = None
    sequence: int = 0


@value
class PublishMaxRead:
    """max_read_position was set without a record (after recovery): publish it unless more was, and wake dispatchers."""

    position: Position


@value
class WriteSnapshot:
    """Request for a snapshot of this machine, covering its log `log` up to the last applied record (see H7)."""

    log: str


Effect: TypeAlias = (
    Reply | AwaitOutcome | Outcome | TellParticipant | VerifyRegistered | CopyEntries | AskProducer | TellGroup
    | Redeliver | MoveCursor | PublishMaxRead | WriteSnapshot
)  # fmt: skip
"""The closed union of effects: a host matches all of them and ends with `assert_never`."""

RecordT = TypeVar("RecordT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)


@value
class Step(Generic[RecordT]):
    """Decision of a machine: records to append (log name, record), then effects to release in order.

    `trailing`: records that go with the next group and that no effect waits for (see H3).
    """

    records: tuple[tuple[str, RecordT], ...] = ()
    effects: tuple[Effect, ...] = ()
    trailing: tuple[tuple[str, RecordT], ...] = ()


NOTHING: Final[Step[Any]] = Step()
"""The Step of a decision that has nothing to do."""


class Machine(Protocol[RequestT_contra, RecordT]):
    """A fold over one or more named logs. No IO, no clock, no randomness of its own. Implementations are plug-ins."""

    logs: Sequence[str]
    """Names of the machine's logs; the first is the main log."""

    def decide(self, request: RequestT_contra, now_ms: int) -> Step[RecordT]:
        """Read state, check, and say what to write. Raises Refusal; changes nothing."""

    def apply(self, log: str, position: Position, record: RecordT) -> None:
        """The only way state changes; the same live and in recovery."""

    def encode(self, log: str, record: RecordT) -> bytes:
        """The bytes of a record. Unknown fields of a decoded record are kept."""

    def decode(self, log: str, data: bytes) -> RecordT:
        """The record of an entry; raises WireError when the bytes are not a record of this machine."""

    def recovered(self, now_ms: int) -> Step[RecordT]:
        """Called once after the fold: what must be carried out again (COMMITTING transactions, …)."""

    def deadline(self) -> int | None:
        """The next time, in ms, at which `expire` has something to do; None when nothing is timed."""

    def expire(self, now_ms: int) -> Step[RecordT]:
        """Carry out what is due, a bounded amount a call; the host calls again while the deadline is past."""

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment in slices for `restore`. Restoring them and a replay from the start are equal states.

        The call fixes the moment: slices that are taken later show nothing of the records applied since. Neither the call
        nor a slice takes longer than a few milliseconds, whatever the state's size; a slice is of about `SLICE_BYTES`, or
        less. Several may be under way; one that is dropped needs no end.
        """

    def restore(self, part: bytes) -> None:
        """Take over the next slice of a snapshot; only on a fresh machine, all slices in order, before the first `apply`.

        Raises WireError when the bytes are no slice of this machine's, or of a newer version.
        """

    def trim_before(self, log: str) -> Position | None:
        """Entries of `log` before this position are no longer needed by this machine (None: it does not trim that log).

        The host trims only what a stored snapshot covers.
        """

    def check_invariants(self) -> None:
        """Raise AssertionError, the invariant's id first, when the state contradicts itself. For tests and simulation."""


StateT = TypeVar("StateT")
EventT = TypeVar("EventT")


class Act(enum.Enum):
    """Answer of a machine to an event."""

    WRITE = "write a record"
    ASK = "ask the coordinator"
    ANSWER = "answer without a record"
    JOIN = "wait for the end under way"
    REFUSE = "refuse"
    FOLD = "fold the record in"
    SKIP = "do nothing"


class Cell(NamedTuple, Generic[StateT]):
    """Cell of a table, for a state and an event: the act, the state after it, and for REFUSE the code of the refusal."""

    act: Act
    to: StateT
    code: ServerError | None = None


Table: TypeAlias = Mapping[tuple[StateT, EventT], Cell[StateT]]

WRITE: Final = Act.WRITE
ASK: Final = Act.ASK
ANSWER: Final = Act.ANSWER
JOIN: Final = Act.JOIN
REFUSE: Final = Act.REFUSE
FOLD: Final = Act.FOLD
SKIP: Final = Act.SKIP
