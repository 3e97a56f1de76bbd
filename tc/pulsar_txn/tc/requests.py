"""Requests to a coordinator. `token` comes back in the Reply (see `pulsar_txn.ledger.machine`).

Every request names its sender: `principal` (None without authentication) and `identity`, the
(transactional_id, epoch) of a fenced client, None for plain Pulsar clients. What NewTxn named of both is the owner:
later requests must name it alike, or else the transaction is not found. What it left out is not asked for.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol, TypeAlias

from pulsar_txn.ledger.machine import Machine, Token
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.values import value


class CheckOutcome(enum.IntEnum):
    """Knowledge of a member of a check group of a transaction (protocol enum TxnCheckOutcome)."""

    COMMIT = 0
    ABORT = 1
    UNKNOWN = 2
    """Nothing yet: it is asked again later."""


@value
class Check:
    """Check group that is asked for the outcome of a transaction that stays open.

    `group`: any living member of this group of the same principal. `data`: what it is handed, at most 64 KiB. `after_ms`: the
    age at which it is asked first; None: the coordinator's own rule.
    """

    group: str
    data: bytes = b""
    after_ms: int | None = None


@value
class NewTxn:
    """Open a transaction. Reply value: its TxnId, released once the NEW record is durable.

    `timeout_ms` 0, which an absent field reads as, is due at once: the transaction is aborted, as on stock Pulsar.

    `incarnation`: the client's name for this life of its process, where the coordinator gives lanes (`ids.LaneIds`). It is a
    sign of life as well. A client that names none has a lane for each transaction, and no lease.

    `participants` are registered by the same Step, as by AddParticipants.

    `check`: who is asked for the outcome while it stays open. `nonce`: the client's own name for this request, 1 to 64 bytes,
    empty for none. While the transaction takes room, the same owner's NewTxn with the same nonce is answered the same id, also
    by a later incarnation of the coordinator; participants that it names and that are not registered yet are.

    Refusals: TooManyRequests (too many open, or they hold too many bytes, or too many lanes), NotAllowedError (timeout above
    the limit, blank owner, incarnation or group, more participants than a transaction may have, check data or a nonce that is
    too long). Then nothing is opened.
    """

    token: Token
    timeout_ms: int
    principal: str | None = None
    identity: Identity | None = None
    incarnation: str | None = None
    participants: tuple[Participant, ...] = ()
    check: Check | None = None
    nonce: bytes = b""


@value
class AddParticipants:
    """Register topic partitions and subscriptions. Reply value: None, once durable; at once when all are known already.

    Refusals: TransactionNotFound (unknown, below the window, or another owner's), InvalidTxnStatus (not OPEN),
    NotAllowedError (more participants than a transaction may have), TooManyRequests (all transactions hold too many bytes).
    """

    token: Token
    txn_id: TxnId
    participants: tuple[Participant, ...]
    principal: str | None = None
    identity: Identity | None = None
    superuser: bool = False


@value
class EndTxn:
    """Commit or abort. The token awaits the Outcome; a repeat joins it, and after the end is answered at once.

    `group`: further transactions of this coordinator that end with it, by one record. All of them are OPEN, or all were
    decided this way before (a repeat); anything else is refused and changes nothing. The token awaits the end of one of
    them; the host joins the others by an EndTxn each. `abort_others`: all else that this transactional id and epoch has open
    is aborted in the same Step, after the group's record, but for what is PREPARED; a repeat aborts nothing more.

    `prepared_token`: who shows the token of a PREPARED transaction may end it, and repeat that end, whoever owns it.
    `at_decision`: the token is answered once the decision is durable, and not after the end. `cause`: what the record says of
    who decided, where the host knows better. With DISCONNECTED only what is OPEN is aborted, and nothing is refused.

    Refusals: TransactionNotFound, InvalidTxnStatus (the other outcome was decided, or a part of the group has ended or is
    PREPARED), NotAllowedError (`abort_others` without a transactional id that is fenced here).
    """

    token: Token
    txn_id: TxnId
    action: TxnAction
    principal: str | None = None
    identity: Identity | None = None
    superuser: bool = False
    group: tuple[TxnId, ...] = ()
    abort_others: bool = False
    prepared_token: bytes = b""
    at_decision: bool = False
    cause: Cause | None = None


@value
class PrepareTxn:
    """Let an OPEN transaction wait for its outcome (KIP-939). Reply value: None, once durable.

    From then on no timeout, lease, successor, goodbye or policy ends it, and nothing more is added to it. It is ended by its
    check group, or by EndTxn of its owner, of a successor of that, of a superuser, or of whoever shows `prepared_token` (1 to
    64 bytes). A repeat with the same token is answered.

    Refusals: TransactionNotFound, InvalidTxnStatus (decided, or prepared with another token), NotAllowedError (no token, or one
    that is too long), TooManyRequests (all transactions hold too many bytes).
    """

    token: Token
    txn_id: TxnId
    prepared_token: bytes
    principal: str | None = None
    identity: Identity | None = None
    superuser: bool = False


@value
class CheckBegun:
    """A member of a check group begins to answer AskProducer. Reply value: None, once that is counted durably.

    The member waits for the reply, so a check that ends its process has been counted. Refusal: InvalidTxnStatus when nobody
    has to answer any more, as the transaction is decided, parked, or of another group or principal.
    """

    token: Token
    txn_id: TxnId
    group: str
    principal: str | None = None


@value
class CheckReturned:
    """Return of a question at which nobody is any more: its member is gone, or has not begun in time.

    No reply, and no refusal.
    """

    txn_id: TxnId


@value
class ResumeTxn:
    """Ask for a parked transaction again, from the first question on; its timeout begins again. Reply value: None.

    Refusals: TransactionNotFound, InvalidTxnStatus (it is not parked), TooManyRequests (as many are open as may be).
    """

    token: Token
    txn_id: TxnId
    principal: str | None = None
    identity: Identity | None = None
    superuser: bool = False


@value
class CheckAnswered:
    """A member of a check group has answered AskProducer. No reply, and no refusal.

    It changes nothing when the transaction is decided, was never asked for, or is of another group or principal.
    """

    txn_id: TxnId
    group: str
    outcome: CheckOutcome
    principal: str | None = None


@value
class GroupJoined:
    """A check group has a living member: what is due is asked at once. No record, no state; a repeat does nothing.

    `room`: how many questions may be out at once, of those that were asked and neither answered nor returned. The last request
    of a group says it. After a restart of the coordinator the host says it again.
    """

    group: str
    principal: str | None = None
    room: int = 1


@value
class GroupLeft:
    """No member of a check group lives any more: nothing of it is asked. The host has said CheckReturned of what was out."""

    group: str
    principal: str | None = None


@value
class ParticipantsDone:
    """The host told every participant of `txn_id` its outcome and all of them hold it durably.

    A repeat does nothing. Refusal: InvalidTxnStatus when nothing was decided yet, which is the host's mistake.
    """

    txn_id: TxnId


@value
class IsRegistered:
    """Is `txn_id` open here with `participant` registered? Reply value: bool. Asked by participants (VerifyRegistered)."""

    token: Token
    txn_id: TxnId
    participant: Participant


@value
class Renew:
    """An incarnation is alive: its lease begins again. No record. Reply value: bool, whether it holds anything here.

    False is no harm to a client that has nothing open. One that has was believed gone, and its transactions are aborted.
    """

    token: Token
    incarnation: str
    principal: str | None = None


@value
class Goodbye:
    """An incarnation ends in order and writes nothing any more: its lanes go to the pool. Reply value: None, once durable.

    What it has open is aborted, but for what has a check group or is prepared. Those lanes are retired. A client says goodbye
    after all its messages are answered, or their connections closed.
    """

    token: Token
    incarnation: str
    principal: str | None = None


@value
class Vanished:
    """The host knows that an incarnation is gone, before its lease is over: what it has open is aborted, its lanes retired.

    What has a check group, or is prepared, stays: others can end it. The coordinator does the same by itself when a lease is
    over (`deadline`, `expire`).
    """

    incarnation: str
    principal: str | None = None


@value
class TakeOver:
    """An epoch of a transactional id begins: older epochs are fenced, what they have open is aborted, what is decided ends.

    Reply value: True, once every transaction of older epochs has ended at all participants. While one has not, the token
    awaits its end (an answer of None); the host then asks again, until the answer is True.

    Refusals: ProducerFenced (a newer epoch has begun), NotAllowedError (this coordinator does not fence).
    """

    token: Token
    identity: Identity
    incarnation: str | None = None
    principal: str | None = None


@value
class BeginIncarnation:
    """An incarnation of the log begins (`log_incarnations`): after a start, a take-over of the lead, or when lanes are used up.
    Reply value: None.

    `service`: its number, which no other one has. `hold`: transactions that may have been decided in one that is lost, and
    `cause` why; those that are neither OPEN nor PREPARED are passed over. `goes_on`: the same process goes on, so its clients
    keep their lanes. `first_least`, `until_least`: the ids that are reserved, for coordinators without lanes; 0 for neither.
    """

    token: Token
    service: int
    hold: tuple[int, ...] = ()
    cause: Cause = Cause.RESTORED
    goes_on: bool = False
    first_least: int = 0
    until_least: int = 0


@value
class ReleaseHeld:
    """Let transactions that are HELD in doubt go on: nothing was lost. Reply value: None. Others are passed over."""

    token: Token
    held: tuple[int, ...]


Request: TypeAlias = (
    NewTxn | AddParticipants | EndTxn | PrepareTxn | ParticipantsDone | IsRegistered | Renew | Goodbye | Vanished | TakeOver
    | CheckBegun | CheckAnswered | CheckReturned | ResumeTxn | GroupJoined | GroupLeft | BeginIncarnation | ReleaseHeld
)  # fmt: skip


class Coordinator(Machine[Request, Any], Protocol):
    """A coordinator plug-in. Constructed by the host as `factory(tc_id, …)` with the options of the built-in ones.

    Its deadline comes nearer only by NewTxn, by EndTxn with a group or `abort_others`, by PrepareTxn, by Goodbye, Vanished,
    TakeOver, GroupJoined, CheckAnswered, CheckReturned and ResumeTxn, by `expire`, and in its recovery: the host asks for it
    after these, and not after each turn.

    A plug-in that asks check groups, prepares, and opens by a nonce says so with a class attribute `checks = True`. Others get
    none of PrepareTxn, ResumeTxn, CheckBegun, CheckAnswered, CheckReturned, GroupJoined and GroupLeft, and none of these fields
    of NewTxn and EndTxn.
    """

    @property
    def newest_time_ms(self) -> int:
        """The newest time in the log, below which the host's clock must never fall (H6)."""

    def is_registered(self, txn_id: TxnId, participant: Participant) -> bool:
        """True if the transaction is OPEN with this participant, by all records that were applied.

        The host asks it on the way of each transaction's first send and acknowledgement, instead of `IsRegistered`.
        """

    def belongs_to(self, txn_id: TxnId, principal: str | None) -> bool:
        """True if a client with this principal opened the transaction. False for one that is not known, or not any more.

        The host asks it on the way of each send and acknowledgement of a client that has a principal.
        """
