"""The check groups of a client: it is a member of each at every coordinator, for as long as it lives.

A coordinator knows its members by their connections. So the client joins (TXN_GROUP, a command of ours, `docs/adr/0043`) again
after each reconnect, after a coordinator has moved to another broker, and at coordinators that were added since. A refusal
that may mend itself is tried again for as long as the session with the coordinator lasts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, Self

from pulsar_txn.client._callables import check_takes_one
from pulsar_txn.client.errors import AlreadyClosed, CoordinatorUnavailable, InvalidConfiguration, OperationTimeout, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.checks import CheckQuestion, LocalOutcome, check_group_name, decision_of
from pulsar_txn.client.txn.encoding import check_checks
from pulsar_txn.client.txn.questions import Check, CheckTerms, Decisions, Questions
from pulsar_txn.client.txn.session import CoordinatorSession
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId, coordinator_of

logger = logging.getLogger("pulsar_txn.client.checks")

PATIENCE_SECONDS: Final = 2.0
"""How long joining waits for the other coordinators once one has answered; what is late is joined in the background."""

LEAVE_SECONDS: Final = 1.0
"""How long leaving waits for the coordinators' answers."""

GROWTH_SECONDS: Final = 60.0
"""How often a member looks for coordinators that were added."""


class Coordinators(Protocol):
    """Those of the cluster in use, as far as members need them."""

    @property
    def sessions(self) -> Sequence[CoordinatorSession]:
        """With all that are known."""
        ...

    async def start(self) -> None:
        """Connect to them; returns when the first is there."""
        ...

    async def grow(self) -> None:
        """Look for those that were added."""
        ...


class _Attempt:
    """To join at one coordinator, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_over = False
        self.error: PulsarError | None = None


class Membership:
    """One client's place in one group."""

    def __init__(self, core: Core, name: str, check: Check, terms: CheckTerms, forget: Callable[[], object]) -> None:
        self.name = name
        self.closed = False
        self._core = core
        self._forget = forget
        self._attempts: dict[int, _Attempt] = {}
        self._joined: dict[int, Connection] = {}
        self._first: dict[int, asyncio.Future[PulsarError | None]] = {}
        self._terms = terms
        self._questions = Questions(core, name, check, terms, self._answer)
        self._decisions = Decisions(core, name, terms.on_decided)

    @property
    def places(self) -> int:
        """At how many coordinators the client is a member at this moment."""
        return sum(not connection.closed for connection in self._joined.values())

    # --- joining --------------------------------------------------------------------------------------------------

    def begin(self, session: CoordinatorSession) -> None:
        """The session is connected, for the first time or again: join there. What was begun before is given up."""
        connection = session.connection
        if connection is not None and not self.closed:
            attempt = self._attempts[session.coordinator_id] = _Attempt(connection)
            self._core.spawn(self._join(session, attempt))

    async def _join(self, session: CoordinatorSession, attempt: _Attempt) -> None:
        number, connection, backoff = session.coordinator_id, attempt.connection, self._core.backoff()
        while not self.closed and self._attempts.get(number) is attempt and session.connection is connection:
            try:
                await self._ask_in(number, connection)
            except PulsarError as error:
                if not error.retriable:
                    self._refused(number, attempt, error)
                    return
                if isinstance(error, CoordinatorUnavailable):
                    session.leave(connection, error)
                    return
                logger.info("coordinator %d: joining group %r failed, trying again: %s", number, self.name, error)
            else:
                attempt.is_over = True
                self._joined[number] = connection
                self._settle(number, None)
                return
            await self._core.rest(backoff.next())

    async def _ask_in(self, number: int, connection: Connection) -> None:
        check_checks(connection, f"check group {self.name!r}")
        # Before the request: the first question may come with its answer.
        connection.checkers[number, self.name] = functools.partial(self._asked, connection)
        connection.decided[number, self.name] = self._heard
        terms = self._terms
        says: dict[str, Any] = {"concurrency": terms.concurrency, "check_timeout_millis": int(terms.timeout_seconds * 1000)}
        await connection.request("txnGroup", self._core.next_request_id(), tc_id=number, group=self.name, **says)

    def _refused(self, number: int, attempt: _Attempt, error: PulsarError) -> None:
        _forget_at(attempt.connection, number, self.name)
        attempt.is_over, attempt.error = True, error
        logger.warning("coordinator %d does not take this client into group %r: %s", number, self.name, error)
        self._settle(number, error)

    def _settle(self, number: int, error: PulsarError | None) -> None:
        first = self._first.get(number)
        if first is not None and not first.done():
            first.set_result(error)

    async def see(self, sessions: Sequence[CoordinatorSession]) -> None:
        """Wait until it is joined at one, and at the others within PATIENCE_SECONDS. Raises an error when it is at none."""
        loop, clock = asyncio.get_running_loop(), self._core.runtime.monotonic
        self._first = {session.coordinator_id: loop.create_future() for session in sessions}
        for session in sessions:
            attempt = self._attempts.get(session.coordinator_id)
            if attempt is None or attempt.connection is not session.connection:
                self.begin(session)
            elif attempt.is_over:
                self._settle(session.coordinator_id, attempt.error)
        end = clock() + self._core.settings.operation_timeout
        pending = set(self._first.values())
        failure: PulsarError | None = None
        while pending and clock() < end:
            done, pending = await asyncio.wait(pending, timeout=end - clock(), return_when=asyncio.FIRST_COMPLETED)
            failure = next(filter(None, (each.result() for each in done)), failure)
            if self._joined:
                end = min(end, clock() + PATIENCE_SECONDS)
        if not self._joined:
            raise failure or OperationTimeout(f"no coordinator took this client into group {self.name!r} in time")

    # --- being asked ----------------------------------------------------------------------------------------------

    def _asked(self, connection: Connection, body: Any) -> None:
        txn_id = TxnId(body.txnid_most_bits, body.txnid_least_bits)
        asked = CheckQuestion(txn_id, body.group, body.check_data, body.check_count, body.max_checks, body.prepared)
        self._questions.put(asked, functools.partial(self._begin, connection, asked) if body.say_begun else None)

    def _heard(self, body: Any) -> None:
        self._decisions.put(decision_of(body))

    async def _begin(self, connection: Connection, question: CheckQuestion) -> bool:
        """Have the coordinator count the question; False when it is not known that it did, so that nobody has to answer."""
        if self.closed or connection.closed:
            return False
        most, least = question.txn_id
        fields: dict[str, Any] = {"txnid_least_bits": least, "txnid_most_bits": most, "group": self.name}
        try:
            await connection.request("txnCheckBegun", self._core.next_request_id(), **fields)
        except PulsarError as error:
            logger.debug("transaction %s is not asked for here: %s", question.txn_id, error)
            return False
        return True

    def _answer(self, question: CheckQuestion, outcome: LocalOutcome) -> None:
        """To the coordinator that asked, over the connection that it knows this member by now."""
        most, least = question.txn_id
        connection = self._joined.get(coordinator_of(most))
        if self.closed or connection is None or connection.closed:
            logger.info("the answer for transaction %s cannot be sent now; its coordinator asks again", question.txn_id)
            return
        fields = {"txnid_least_bits": least, "txnid_most_bits": most, "group": self.name, "outcome": outcome.value}
        connection.write([command("txnCheckResponse", **fields)])

    # --- leaving --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave; idempotent."""
        if self.closed:
            return
        self.closed = True
        self._forget()
        self._questions.close()
        self._decisions.close()
        for number in self._first:
            self._settle(number, AlreadyClosed(f"group {self.name!r} was left before it was joined"))
        joined, self._joined = self._joined, {}
        leaving = [self._leave(number, connection) for number, connection in joined.items() if not connection.closed]
        if leaving:
            await asyncio.wait(leaving)

    def _leave(self, number: int, connection: Connection) -> asyncio.Future[Any]:
        _forget_at(connection, number, self.name)
        request_id = self._core.next_request_id()
        answer = connection.request("txnGroup", request_id, tc_id=number, group=self.name, leave=True, timeout=LEAVE_SECONDS)
        answer.add_done_callback(functools.partial(_left, self.name))
        return answer

    def moved(self) -> None:
        """The client has gone to another cluster: nothing of the former one's coordinators counts any more."""
        self._attempts.clear()
        self._joined.clear()


class AsyncCheckGroup:
    """A client's membership of a check group, made by `client.join_check_group`; an async context manager that leaves it.

    While it lasts, coordinators ask this client's `check` about transactions of the group, also about those that another
    process has begun.
    """

    def __init__(self, inside: Membership) -> None:
        self.inside = inside
        """For the client that it belongs to."""

    def __repr__(self) -> str:
        state = "left" if self.inside.closed else f"joined at {self.coordinators} coordinators"
        return f"<CheckGroup {self.name!r} {state}>"

    @property
    def name(self) -> str:
        """The group's name."""
        return self.inside.name

    @property
    def coordinators(self) -> int:
        """At how many coordinators this client is a member at this moment."""
        return self.inside.places

    async def close(self) -> None:
        """Leave the group; idempotent. Calls of `check` that are under way are cancelled, and another member is asked.

        Waits at most a second for the coordinators. If cancelled, it is left all the same.
        """
        await self.inside.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class CheckGroups:
    """All check groups that a client is a member of."""

    def __init__(self, core: Core, coordinators: Callable[[], Coordinators]) -> None:
        self._core = core
        self._coordinators = coordinators
        self._groups: dict[str, Membership] = {}
        self._growth: asyncio.Task[None] | None = None

    async def join(self, name: str, check: Check, terms: CheckTerms) -> AsyncCheckGroup:
        """See `BeginsTransactions.join_check_group`."""
        self._core.check_open()
        check_group_name("group", name)
        check_takes_one(check, "check")
        if name in self._groups:
            raise InvalidConfiguration(
                f"this client is a member of group {name!r} already",
                hint="give what join_check_group() returned to everything that needs it, or close() it first",
            )
        order = self._core.next_resource_id()
        group = Membership(self._core, name, check, terms, functools.partial(self._forget, name, order))
        self._groups[name] = group
        self._core.register(order, group)
        try:
            coordinators = self._coordinators()
            await coordinators.start()
            await group.see(coordinators.sessions)
        except BaseException:
            await group.close()
            raise
        if self._growth is None or self._growth.done():
            self._growth = self._core.spawn(self._grow())
        return AsyncCheckGroup(group)

    def connected(self, session: CoordinatorSession) -> None:
        """A coordinator is connected, for the first time or again."""
        for group in self._groups.values():
            group.begin(session)

    def moved(self) -> None:
        """The client has gone to another cluster, whose coordinators are others."""
        for group in self._groups.values():
            group.moved()
        if self._groups:
            start: Callable[[], Awaitable[None]] = self._coordinators().start
            self._core.spawn(self._core.retrying(start, "joining check groups in another cluster", timeout=math.inf))

    def _forget(self, name: str, order: int) -> None:
        self._groups.pop(name, None)
        self._core.unregister(order)

    async def _grow(self) -> None:
        while self._groups:
            await asyncio.sleep(GROWTH_SECONDS)
            try:
                await self._coordinators().grow()
            except PulsarError as error:
                logger.debug("looking for coordinators that were added failed: %s", error)


def _forget_at(connection: Connection, number: int, group: str) -> None:
    for heard in (connection.checkers, connection.decided):
        heard.pop((number, group), None)


def _left(name: str, answer: asyncio.Future[Any]) -> None:
    """Whoever does not answer notices by the connection that the member is gone."""
    if not answer.cancelled() and (error := answer.exception()) is not None:
        logger.debug("leaving group %r was not answered: %s", name, error)
