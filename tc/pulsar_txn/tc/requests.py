"""What one may ask of a coordinator. `token` comes back in the Reply (see `pulsar_txn.ledger.machine`).

Every request names its sender: `principal` (None without authentication) and `identity`, the
(transactional_id, epoch) of a fenced client, None for plain Pulsar clients. What NewTxn named of both is the owner:
later requests must name it alike, or else the transaction is not found. What it left out is not asked for.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from pulsar_txn.ledger.machine import Machine, Token
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.values import value


@value
class NewTxn:
    """Open a transaction. Reply value: its TxnId, released once the NEW record is durable.

    `timeout_ms` 0, which an absent field reads as, is due at once: the transaction is aborted, as on stock Pulsar.

    `incarnation`: what the client calls this life of its process, where the coordinator gives lanes (`ids.LaneIds`). It is a
    sign of life as well. A client that names none has a lane for each transaction, and no lease.

    `participants` are registered by the same Step, as by AddParticipants.

    Refusals: TooManyRequests (too many open, or they hold too many bytes, or too many lanes), NotAllowedError (timeout above
    the limit, blank owner or incarnation, more participants than a transaction may have). Then nothing is opened.
    """

    token: Token
    timeout_ms: int
    principal: str | None = None
    identity: Identity | None = None
    incarnation: str | None = None
    participants: tuple[Participant, ...] = ()


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
    is aborted in the same Step, after the group's record; a repeat aborts nothing more.

    Refusals: TransactionNotFound, InvalidTxnStatus (the other outcome was decided, or a part of the group has ended),
    NotAllowedError (`abort_others` without a transactional id that is fenced here).
    """

    token: Token
    txn_id: TxnId
    action: TxnAction
    principal: str | None = None
    identity: Identity | None = None
    superuser: bool = False
    group: tuple[TxnId, ...] = ()
    abort_others: bool = False


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

    What it has open is aborted, and those lanes are retired. A client says goodbye after all its messages are answered, or
    their connections closed.
    """

    token: Token
    incarnation: str
    principal: str | None = None


@value
class Vanished:
    """The host knows that an incarnation is gone, before its lease is over: what it has open is aborted, its lanes retired.

    The coordinator does the same by itself when a lease is over (`deadline`, `expire`).
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


Request: TypeAlias = (
    NewTxn | AddParticipants | EndTxn | ParticipantsDone | IsRegistered | Renew | Goodbye | Vanished | TakeOver
)  # fmt: skip


class Coordinator(Machine[Request, Any], Protocol):
    """A coordinator plug-in. Constructed by the host as `factory(tc_id, …)` with the options of the built-in ones.

    Its deadline comes nearer only by NewTxn, by EndTxn with a group or `abort_others`, by Goodbye, Vanished and TakeOver, by
    `expire`, and in its recovery: the host asks for it after these, and not after each turn.
    """

    @property
    def newest_time_ms(self) -> int:
        """The newest time in the log, below which the host's clock must never fall (H6)."""

    def is_registered(self, txn_id: TxnId, participant: Participant) -> bool:
        """Whether the transaction is OPEN with this participant, by all records that were applied.

        The host asks it on the way of each transaction's first send and acknowledgement, instead of `IsRegistered`.
        """

    def belongs_to(self, txn_id: TxnId, principal: str | None) -> bool:
        """Whether a client with this principal opened the transaction. False for one that is not known, or not any more.

        The host asks it on the way of each send and acknowledgement of a client that has a principal.
        """
