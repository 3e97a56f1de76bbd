"""Needs of the transaction commands of a client and of its server: not more, so that another server can carry them out.

`OpenedTransactions`: the transactions that one connection has opened, by the request that opened each. When the Java client
connects to its coordinator anew, it sends a NEW_TXN without an answer again, with the same request id, also over the same
connection. Both requests then mean one transaction: a second one would stay open until its timeout and hold readers back. A
client can name a transaction only after it had the answer, so from then on the same bytes are a new request. The memory belongs
to the connection, because request ids do, and it survives a coordinator that fails and is opened again. After a reconnect, a
client opens a new transaction, and the old one ends by its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.txn.check_groups import GroupKey, Seat
from pulsar_txn.broker.txn.coordinators import Bound, Coordinators
from pulsar_txn.broker.txn.transactional_ids import TakeOvers, TransactionalIds
from pulsar_txn.ledger.machine import AskProducer, TellGroup
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.ids import Participant, TxnId

REMEMBERED: Final = 1024
"""Largest number of transactions that a connection remembers; the oldest is forgotten first."""

Asked: TypeAlias = tuple[int, bytes, bytes]
"""Coordinator and request id of a NEW_TXN, the id as it travels; and the whole frame."""


class OpenedTransactions:
    """Remembers what NEW_TXN was answered, and how many requests wait for the answer that is under way."""

    __slots__ = ("_requests", "_waiting", "answered")

    def __init__(self) -> None:
        self.answered: dict[Asked, TxnId] = {}
        """The transactions that requests have opened and nobody has named, by request; to be read only."""
        self._requests: dict[TxnId, Asked] = {}
        self._waiting: dict[Asked, int] = {}

    def waits(self, asked: Asked) -> bool:
        """Count a request that waits for its answer; True when an equal one waits already, and only that one is carried out."""
        before = self._waiting.get(asked, 0)
        self._waiting[asked] = before + 1
        return before > 0

    def settle(self, asked: Asked, txn_id: TxnId | None) -> int:
        """Note the answer; returns how many requests waited for it. After an error (None) a repeat is a new attempt."""
        answered = self.answered
        if txn_id is not None:
            answered[asked], self._requests[txn_id] = txn_id, asked
            if len(answered) > REMEMBERED:
                del self._requests[answered.pop(next(iter(answered)))]
        return self._waiting.pop(asked)

    def named(self, txn_id: TxnId) -> None:
        """A request names the transaction: its client has the answer, and asks for it no more."""
        asked = self._requests.pop(txn_id, None)
        if asked is not None:
            del self.answered[asked]


class GroupMember:
    """A client that has joined check groups: see `check_groups.Member`."""

    def __init__(self, connection: Answering) -> None:
        self._connection = connection
        self.groups: dict[GroupKey, None] = {}
        self.seats: dict[str, Seat] = {}

    @property
    def is_writable(self) -> bool:
        """True if it takes what it is sent."""
        return self._connection.writable

    def ask(self, question: AskProducer, begins: bool) -> None:
        """Send TXN_CHECK."""
        txn_id = question.txn_id
        self._connection.write_command(
            "txnCheck",
            txnid_least_bits=txn_id.least,
            txnid_most_bits=txn_id.most,
            group=question.group,
            check_data=question.data,
            check_count=question.count,
            max_checks=question.max_checks,
            prepared=question.prepared,
            say_begun=begins or None,
        )

    def tell(self, decided: TellGroup) -> None:
        """Send TXN_CHECK_DECIDED."""
        self._connection.write_command(
            "txnCheckDecided",
            txnid_least_bits=decided.txn_id.least,
            txnid_most_bits=decided.txn_id.most,
            group=decided.group,
            check_data=decided.data,
            txn_action=None if decided.action is None else int(decided.action),
            cause=decided.cause,
            check_count=decided.count,
        )


class ClientTransactions:
    """Transactional id, opened transactions and check groups of one client; they end with its connection.

    `identity`: the transactional id and epoch that the connection is bound to; `taking_over`: those that begin for it, while
    older epochs have something left that has not ended. `member`: its check groups, once it has joined one; `bound`: what ends
    with the connection, once there is such. To be read only.
    """

    __slots__ = ("bound", "identity", "member", "opened", "taking_over")

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.taking_over: Identity | None = None
        self.opened = OpenedTransactions()
        self.member: GroupMember | None = None
        self.bound: Bound | None = None

    def take_over(self, identity: Identity) -> None:
        """Note the epoch that begins: a repeat goes on with it."""
        self.taking_over = identity

    def act_as(self, identity: Identity) -> None:
        """Bind the connection to an epoch that has begun."""
        self.identity, self.taking_over = identity, None

    def join_groups(self, connection: Answering) -> GroupMember:
        """Return the client as a member of check groups."""
        self.member = self.member or GroupMember(connection)
        return self.member

    def bind(self) -> Bound:
        """Return what ends with the connection."""
        self.bound = self.bound or Bound()
        return self.bound

    def leave(self, coordinators: Coordinators) -> None:
        """Leave all check groups, and abort what was to end with the connection, which has ended."""
        member, self.member = self.member, None
        if member is not None:
            coordinators.check_groups.gone(member)
        if self.bound is not None:
            coordinators.bound.gone(self.bound)


class Coordinating(Protocol):
    """The server; see `session.Services`."""

    @property
    def coordinators(self) -> Coordinators | None:
        """None where transactions are switched off."""

    @property
    def transactional_ids(self) -> TransactionalIds | None:
        """None where nobody fences."""

    @property
    def take_overs(self) -> TakeOvers | None:
        """None where nobody fences."""

    @property
    def turn(self) -> Turn:
        """With the budget of long work."""

    @property
    def ends_groups(self) -> bool:
        """True if the coordinators end several transactions by one record."""

    @property
    def checks(self) -> bool:
        """True if the coordinators ask check groups, prepare, and open by a nonce."""

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """A participant as clients know it, and its cluster; that is empty where there is one cluster only."""


class TxnSession(Protocol):
    """A client. `answers_checks`: whether it announced that it may be asked for outcomes."""

    principal: str | None
    superuser: bool
    incarnation: str | None
    answers_checks: bool
    transactions: ClientTransactions

    @property
    def connection(self) -> Answering:
        """Connection on which it is answered."""

    @property
    def services(self) -> Coordinating:
        """The server."""


TxnFrameHandler: TypeAlias = Callable[[TxnSession, bytes], None]
TxnHandler: TypeAlias = Callable[[TxnSession, Any], Coroutine[Any, Any, None] | None]
