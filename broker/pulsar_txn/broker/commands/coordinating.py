"""Needs of the transaction commands of a client and of its server: not more, so that another server can carry them out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.txn.bound import Bound
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.broker.txn.take_overs import TakeOvers
from pulsar_txn.broker.txn.transactional_ids import TransactionalIds
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.ids import Participant

from .group_member import GroupMember
from .opened import OpenedTransactions


class Coordinating(Protocol):
    """The server; see `services.Services`."""

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

    def place(self, participant: Participant) -> tuple[str, Participant]:
        """A participant as clients know it, and its cluster; that is empty where there is one cluster only."""


class TxnSession(Protocol):
    """A client.

    `identity`: the transactional id and epoch that its connection is bound to; `taking_over`: those that begin for it, while
    older epochs have something left that has not ended. `answers_checks`: whether it announced that it may be asked for
    outcomes; `member`: its check groups, once it has joined one; `bound`: what ends with its connection, once there is such.
    """

    principal: str | None
    superuser: bool
    identity: Identity | None
    taking_over: Identity | None
    incarnation: str | None
    opened: OpenedTransactions
    answers_checks: bool
    member: GroupMember | None
    bound: Bound | None

    @property
    def connection(self) -> Answering:
        """Return where it is answered."""

    @property
    def services(self) -> Coordinating:
        """The server."""


TxnFrameHandler: TypeAlias = Callable[[TxnSession, bytes], None]
TxnHandler: TypeAlias = Callable[[TxnSession, Any], Coroutine[Any, Any, None] | None]
