"""Session of one client at the coordinator: who it is, and the transactions that its connection opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pulsar_txn.broker.serving import (
    Answering,
    Authentication,
    Bound,
    BrokerConfig,
    Coordinators,
    GroupMember,
    Introduction,
    Limits,
    OpenedTransactions,
    TakeOvers,
    TransactionalIds,
    Turn,
    leave,
)
from pulsar_txn.wire.ids import Participant

from .clusters import Clusters
from .leaders import Leaders

if TYPE_CHECKING:
    from pulsar_txn.tc.owners import Identity


class Services(Protocol):
    """Services that the commands ask of the server."""

    coordinators: Coordinators
    transactional_ids: TransactionalIds | None
    take_overs: TakeOvers | None
    config: BrokerConfig
    turn: Turn
    clusters: Clusters
    leaders: Leaders
    service_url: str
    service_url_tls: str
    authentication: Authentication
    limits: Limits
    sessions: set[Session]

    @property
    def ends_groups(self) -> bool:
        """True if the coordinators end several transactions by one record."""

    @property
    def checks(self) -> bool:
        """True if the coordinators ask check groups."""

    def place(self, participant: Participant) -> tuple[str, Participant]:
        """A participant as its cluster knows it, and that cluster."""


Handler: TypeAlias = "Callable[[Session, Any], Coroutine[Any, Any, None] | None]"
FrameHandler: TypeAlias = "Callable[[Session, bytes], None]"


class Session:
    """The state of one client.

    `principal`: who it is, None without authentication, and whether that is an operator: `superuser`. `identity`: its
    transactional id; `taking_over`: see `TxnSession`. `incarnation`: what it calls this life of its process.
    """

    is_busy = False

    def __init__(
        self,
        services: Services,
        commands: Mapping[int, Handler],
        requests: Mapping[int, FrameHandler],
        connection: Answering,
    ) -> None:
        self.services = services
        self.connection = connection
        self.commands = commands
        self.frames: Mapping[int, Callable[[bytes], None]] = {}
        self.requests = {kind: partial(handler, self) for kind, handler in requests.items()}
        urls = services.service_url, services.service_url_tls
        self.introduction = Introduction(services.authentication, connection, services.turn, urls, services.limits)
        self.principal: str | None = None
        self.superuser = False
        self.identity: Identity | None = None
        self.taking_over: Identity | None = None
        self.incarnation: str | None = None
        self.coordinators: set[int] = set()
        """Those that it has connected to."""
        self.opened = OpenedTransactions()
        self.answers_checks = False
        self.member: GroupMember | None = None
        self.bound: Bound | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """A request that takes longer: it ends with the client."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def writable_changed(self, *, writable: bool) -> None:
        """Note that it takes what it is asked, or does not."""
        if self.member is not None:
            self.services.coordinators.check_groups.writable_changed(self.member)

    def ended(self) -> None:
        """This connection is gone. The client's transactions stay open until its lease, or their timeout, is over.

        Those that it opened to end with its connection are aborted.
        """
        leave(self)
        self.services.limits.leave_role(self.principal, self)
        self.services.sessions.discard(self)
        self.introduction.ended()
        for task in self._tasks:
            task.cancel()
        self.requests.clear()  # no circle is left: a connection that ends is freed at once
