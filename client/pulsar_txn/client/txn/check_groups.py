"""The back-check: a coordinator asks a member of a check group what has become of the work that a transaction goes with.

A transaction with a check group that stays open is not simply aborted: its coordinator asks a living member of the group
(RocketMQ's back-check, `docs/adr/0043`). `check_data` goes with the question. For half messages it is a picture of the first
message, unless the program gives its own bytes.

A coordinator knows its members by their connections. So the client joins (TXN_GROUP, a command of ours) again after each
reconnect, after a coordinator has moved to another broker, and at coordinators that were added since. A refusal that may mend
itself is tried again for as long as the session with the coordinator lasts.

The reader of a connection only puts a question down here. Tasks of their own ask the program, at most `concurrency` of them,
so that a slow answer stops neither the connection nor other answers. Before the program is asked, the coordinator is told that
its question is begun, and counts it durably (docs/adr/0043). What cannot be answered (an exception, a wrong type, a check that
takes longer than `timeout`) is UNKNOWN, and the coordinator asks again later.

A check that is not done in time loses its place to the next question. A coroutine is cancelled; a thread cannot be. While such
a call goes on, further questions about its transaction are answered UNKNOWN, and what it returns in the end is the answer to
the next one.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import attrs

from pulsar_txn.client._callables import check_takes_one
from pulsar_txn.client._validation import refused, seconds_of, validate_text, validate_whole
from pulsar_txn.client.errors import AlreadyClosed, CoordinatorUnavailable, InvalidConfiguration, OperationTimeout, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.txn.encoding import check_checks
from pulsar_txn.client.txn.session import CoordinatorSession
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnId, coordinator_of

if TYPE_CHECKING:
    from pulsar_txn.client.txn.coordinators import TransactionCoordinators

MAX_DATA_BYTES: Final = 64 * 1024
"""Of what goes with a transaction for its check: its coordinator keeps it in memory."""

MAX_HEAD_BYTES: Final = 4096
"""Of the picture of a message: properties that do not fit are left out."""

_HEAD: Final = b"\x00msg1"
"""First bytes of the picture of a message. Text and JSON of programs never begin so."""


class LocalOutcome(enum.Enum):
    """Outcome of the work that a transaction goes with; `execute` and `check` return it."""

    COMMIT = 0
    """The work is done, so the messages are to become visible."""
    ROLLBACK = 1
    """The work is not done and never will be, so the messages are to disappear."""
    UNKNOWN = 2
    """The outcome is not known yet: ask again later."""


class Decision(enum.Enum):
    """Decision of a coordinator about a transaction of a check group, made without the group."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    PARKED = "parked"
    """Its outcome is unknown: it waits for an operator (`pulsar-txn transactions list --parked`)."""


_ACTIONS: Final = {0: Decision.COMMITTED, 1: Decision.ABORTED}
_REASONS: Final = {1: "timeout", 4: "successor", 5: "operator", 7: "disconnect", 8: "unanswered"}


@attrs.frozen
class CheckedMessage:
    """The first message of a half transaction, without its body. `complete` is False when properties were left out."""

    topic: str
    key: str | None = None
    properties: Mapping[str, str] = attrs.field(factory=dict)
    complete: bool = True


@attrs.frozen
class CheckQuestion:
    """One question of a coordinator: has the work of this transaction been done?

    `data` is what the transaction was begun with (`check_data`). `count` is 1 for the first question that a member begins to
    answer; after question `max_checks` the coordinator decides by its policy, which is to park the transaction. 0 means that it
    asks for ever, as it does when the transaction is `prepared`.
    """

    txn_id: TxnId
    group: str
    data: bytes = b""
    count: int = 1
    max_checks: int = 0
    prepared: bool = False

    @property
    def message(self) -> CheckedMessage | None:
        """The first message that was sent, when `data` is its picture; None when the program gave data of its own."""
        return message_of(self.data)


@attrs.frozen
class CheckDecision:
    """A transaction of a check group that neither its client nor the group has decided: what `on_decided` is given.

    `reason`: `timeout` (it was over while no member lived), `unanswered` (the last question brought no answer, so the policy
    decided), `operator`, `successor` (of its transactional id), `disconnect`, or `unknown`. `count`: how many questions about
    it were begun. `data`: what the transaction was begun with.
    """

    txn_id: TxnId
    group: str
    decision: Decision
    reason: str
    data: bytes = b""
    count: int = 0

    @property
    def message(self) -> CheckedMessage | None:
        """The first message that was sent, when `data` is its picture; None when the program gave data of its own."""
        return message_of(self.data)


def decision_of(body: Any) -> CheckDecision:
    """Read TXN_CHECK_DECIDED."""
    txn_id = TxnId(body.txnid_most_bits, body.txnid_least_bits)
    decision = _ACTIONS[body.txn_action] if body.HasField("txn_action") else Decision.PARKED
    reason = _REASONS.get(body.cause, "unknown")
    return CheckDecision(txn_id, body.group, decision, reason, body.check_data, body.check_count)


def data_of(topic: str, key: str | None, properties: Mapping[str, str] | None) -> bytes:
    """A picture of a message for `check_data`, at most MAX_HEAD_BYTES: its topic, its key, and the properties that fit.

    A key of more than a quarter of these bytes is left out.
    """
    head: dict[str, Any] = {"t": topic}
    if key is not None:
        head |= {"k": key} if len(key.encode()) <= MAX_HEAD_BYTES // 4 else {"c": False}
    given = dict(properties or {})
    data = _encoded(head | ({"p": given} if given else {}))
    if len(data) <= MAX_HEAD_BYTES:
        return data
    kept: dict[str, str] = {}
    head["c"] = False
    left = MAX_HEAD_BYTES - len(_encoded(head | {"p": {}}))
    for name, value in given.items():
        left -= len(_json({name: value}))  # its braces count for the comma
        if left < 0:
            break
        kept[name] = value
    return _encoded(head | {"p": kept})


def message_of(data: bytes) -> CheckedMessage | None:
    """Decode a message that `data_of` has encoded; None for any other bytes."""
    if not data.startswith(_HEAD):
        return None
    try:
        head = json.loads(data[len(_HEAD) :])
        return CheckedMessage(head["t"], head.get("k"), head.get("p", {}), head.get("c", True))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # bytes of a program that happen to begin like it


def _encoded(head: Mapping[str, Any]) -> bytes:
    return _HEAD + _json(head)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def checked(group: str | None, data: bytes | None, after: Any, *, abort_on_disconnect: bool = False) -> Checked | None:
    """Make NEW_TXN's fields about checks of a program's arguments; None when there are none. InvalidConfiguration."""
    if group is None:
        for name, value in (("check_data", data), ("check_after", after)):
            if value is not None:
                raise InvalidConfiguration(f"{name}= is for the members of a group", hint="also give check_group=")
        return Checked(abort_on_disconnect=True) if abort_on_disconnect else None
    check_group_name("check_group", group)
    after_ms = None if after is None else int(seconds_of(after, "check_after") * 1000)
    return Checked(group, check_data("check_data", data), after_ms, abort_on_disconnect=bool(abort_on_disconnect))


def check_data(what: str, data: bytes | None) -> bytes:
    """For what goes with a transaction; nothing is no bytes."""
    if data is None:
        return b""
    if not isinstance(data, bytes):
        raise refused(what, data, "bytes")
    if len(data) > MAX_DATA_BYTES:
        raise InvalidConfiguration(
            f"{what} has {len(data)} bytes, {MAX_DATA_BYTES} are allowed", hint="give a key by which the check finds the rest"
        )
    return data


def check_group_name(what: str, group: object) -> None:
    """For the name of a check group."""
    validate_text(what, group)
    if not str(group).strip():
        raise InvalidConfiguration(f"{what} is blank", hint="name what the members have in common, for instance the service")


logger = logging.getLogger("pulsar_txn.client.checks")

Check: TypeAlias = Callable[[CheckQuestion], "LocalOutcome | Awaitable[LocalOutcome]"]
"""Function of a program that looks up the outcome of the work of a transaction."""

OnDecided: TypeAlias = Callable[[CheckDecision], object]
"""Function of a program that is told of decisions that its group has not made. Its result is awaited, if it can be."""


Begin: TypeAlias = Callable[[], Awaitable[bool]]
"""Says to the coordinator that a question is begun; False: nobody has to answer it."""


class ClosedWithGroup:
    """A function of the blocking client, which has threads of its own: it is closed with the membership."""

    async def __call__(self, asked: Any) -> Any:
        """Answer a question, as the program does."""
        raise NotImplementedError

    def close(self) -> None:
        """End its threads."""
        raise NotImplementedError


MAX_WAITING: Final = 10_000
"""Questions, or decisions, of one group that wait for the program."""
MAX_HANGING: Final = 64
"""Calls of one check that were given up and go on. With more, places are not given to further questions."""
_MAX_LATE: Final = 1_000
_LINES: Final = 10
"""Decisions that are told to the log before only every ten thousandth is."""

DEFAULT_CONCURRENCY: Final = 8
DEFAULT_CHECK_TIMEOUT: Final = 60.0


@attrs.frozen
class CheckTerms:
    """Terms of questions: `concurrency` at a time, each for `timeout` at most (seconds). InvalidConfiguration."""

    concurrency: int = DEFAULT_CONCURRENCY
    timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT
    on_decided: OnDecided | None = None

    def __attrs_post_init__(self) -> None:
        validate_whole("concurrency", self.concurrency, 1)
        seconds_of(self.timeout, "check_timeout")
        if self.on_decided is not None:
            check_takes_one(self.on_decided, "on_decided")

    @property
    def timeout_seconds(self) -> float:
        """`timeout` as a number."""
        return seconds_of(self.timeout, "check_timeout")


class Questions:
    """Those of one group. `answer(question, outcome)` is called on the loop with each answer."""

    def __init__(
        self,
        core: Core,
        group: str,
        check: Check,
        terms: CheckTerms,
        answer: Callable[[CheckQuestion, LocalOutcome], object],
    ) -> None:
        self._core = core
        self._group = group
        self._check = check
        self._concurrency = terms.concurrency
        self._timeout = terms.timeout_seconds
        self._answer = answer
        self._waiting: dict[TxnId, tuple[CheckQuestion, Begin | None]] = {}
        self._again: dict[TxnId, tuple[CheckQuestion, Begin | None]] = {}
        self._at_work: set[TxnId] = set()
        self._hanging: dict[TxnId, asyncio.Future[object]] = {}
        self._late: dict[TxnId, LocalOutcome] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_out = 0

    def put(self, question: CheckQuestion, begin: Begin | None = None) -> None:
        """Have it answered, after `begin`, if it is given and says True. A repeat of one that waits takes its place.

        One about what is being answered waits for that, where its coordinator wants to know that it begins.
        """
        txn_id = question.txn_id
        if txn_id in self._at_work:
            if begin is not None:
                self._again[txn_id] = (question, begin)
            return
        if len(self._waiting) >= MAX_WAITING and txn_id not in self._waiting:
            self._leave_out()
            return
        self._waiting[txn_id] = (question, begin)
        self._work_on()

    def close(self) -> None:
        """Answer nothing more; calls of the program that are under way are cancelled."""
        self._waiting.clear()
        self._again.clear()
        for task in self._tasks:
            task.cancel()
        for call in self._hanging.values():
            call.cancel()
        if isinstance(self._check, ClosedWithGroup):
            self._check.close()

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._left_out % MAX_WAITING == 1:
            text = "%d questions to group %r were left out, because its check is too slow; the coordinators ask again"
            logger.warning(text, self._left_out, self._group)

    def _work_on(self) -> None:
        if len(self._tasks) < self._concurrency:
            task = self._core.spawn(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._waiting:
            txn_id = next(iter(self._waiting))
            question, begin = self._waiting.pop(txn_id)
            self._at_work.add(txn_id)
            try:
                if begin is None or await begin():
                    self._answer(question, await self._ask(question))
            finally:
                self._at_work.discard(txn_id)
                again = self._again.pop(txn_id, None)
                if again is not None:
                    self._waiting[txn_id] = again

    async def _ask(self, question: CheckQuestion) -> LocalOutcome:
        txn_id = question.txn_id
        late = self._late.pop(txn_id, None)
        if late is not None:
            return late
        if txn_id in self._hanging:
            return LocalOutcome.UNKNOWN
        try:
            result = self._check(question)
            outcome: object = await self._in_time(question, result) if inspect.isawaitable(result) else result
        except Exception:  # the program's own code: what it does not know is asked again
            text = "check of group %r failed for transaction %s, which stays undecided: the coordinator asks again"
            logger.exception(text, self._group, txn_id, extra=_extra(question))
            return LocalOutcome.UNKNOWN
        if isinstance(outcome, LocalOutcome):
            return outcome
        text = "check of group %r returned %r for transaction %s; return a LocalOutcome. The transaction stays undecided"
        logger.error(text, self._group, outcome, txn_id, extra=_extra(question))
        return LocalOutcome.UNKNOWN

    async def _in_time(self, question: CheckQuestion, result: Awaitable[object]) -> object:
        """Wait for the result of the check; UNKNOWN when that takes too long."""
        call = asyncio.ensure_future(result)
        try:
            done, _ = await asyncio.wait({call}, timeout=self._timeout)
            if not done and len(self._hanging) >= MAX_HANGING:
                text = "%d calls of the check of group %r hang: no further question is answered until one ends"
                logger.error(text, len(self._hanging), self._group, extra=_extra(question))
                await asyncio.wait({call})
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.done():
            return call.result()
        self._give_up(question, call)
        return LocalOutcome.UNKNOWN

    def _give_up(self, question: CheckQuestion, call: asyncio.Future[object]) -> None:
        txn_id = question.txn_id
        text = "check of group %r has not answered for transaction %s after %g s: it stays undecided, and is asked for again"
        logger.error(text, self._group, txn_id, self._timeout, extra=_extra(question))
        self._hanging[txn_id] = call
        call.add_done_callback(lambda _: self._comes_late(txn_id, call))
        if not isinstance(self._check, ClosedWithGroup):
            call.cancel()

    def _comes_late(self, txn_id: TxnId, call: asyncio.Future[object]) -> None:
        del self._hanging[txn_id]
        if call.cancelled():
            return
        error = call.exception()
        if error is not None:
            text = "check of group %r failed for transaction %s, which stays undecided: the coordinator asks again"
            logger.error(text, self._group, txn_id, exc_info=error)
            return
        outcome = call.result()
        if isinstance(outcome, LocalOutcome) and outcome is not LocalOutcome.UNKNOWN:
            self._late[txn_id] = outcome
            if len(self._late) > _MAX_LATE:
                del self._late[next(iter(self._late))]


class Decisions:
    """Tells the program, one after the other, what was decided about transactions of its group without the group."""

    def __init__(self, core: Core, group: str, on_decided: OnDecided | None) -> None:
        self._core = core
        self._group = group
        self._on_decided = on_decided
        self._waiting: list[CheckDecision] = []
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    def put(self, decided: CheckDecision) -> None:
        """Tell it. Without somebody who listens it is a line in the log."""
        self._count += 1
        is_seldom = self._count <= _LINES or self._count % MAX_WAITING == 0
        if self._on_decided is None and decided.decision is not Decision.COMMITTED and is_seldom:
            text = (
                "transaction %s was %s without an answer of its check group %r (%s); number %d here; on_decided= handles these"
            )
            logger.warning(text, decided.txn_id, decided.decision.value, self._group, decided.reason, self._count)
        if self._on_decided is None or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(decided)
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._tell(self._on_decided))

    def close(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        if isinstance(self._on_decided, ClosedWithGroup):
            self._on_decided.close()

    async def _tell(self, on_decided: OnDecided) -> None:
        while self._waiting:
            decided = self._waiting.pop(0)
            try:
                result = on_decided(decided)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # the program's own code: nothing depends on it
                logger.exception("on_decided of group %r failed for transaction %s", self._group, decided.txn_id)


def _extra(question: CheckQuestion) -> dict[str, str]:
    return {"txn_id": str(question.txn_id), "state": "check"}


PATIENCE_SECONDS: Final = 2.0
"""Time that joining waits for the other coordinators once one has answered; late ones are joined in the background."""

LEAVE_SECONDS: Final = 1.0
"""Time that leaving waits for the coordinators' answers."""

GROWTH_SECONDS: Final = 60.0
"""Interval at which a member looks for coordinators that were added."""


class _Attempt:
    """To join at one coordinator, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_over = False
        self.error: PulsarError | None = None


class Membership:
    """One client's place in one group."""

    def __init__(self, core: Core, name: str, check: Check, terms: CheckTerms) -> None:
        self.name = name
        self.closed = False
        self._core = core
        self._id = core.next_resource_id()
        core.register(self._id, self)
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
        connection.hear_group((number, self.name), functools.partial(self._asked, connection), self._heard)
        terms = self._terms
        says: dict[str, Any] = {"concurrency": terms.concurrency, "check_timeout_millis": int(terms.timeout_seconds * 1000)}
        await connection.request("txnGroup", self._core.next_request_id(), tc_id=number, group=self.name, **says)

    def _refused(self, number: int, attempt: _Attempt, error: PulsarError) -> None:
        attempt.connection.leave_group((number, self.name))
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
        self._core.unregister(self._id)
        self._questions.close()
        self._decisions.close()
        for number in self._first:
            self._settle(number, AlreadyClosed(f"group {self.name!r} was left before it was joined"))
        joined, self._joined = self._joined, {}
        leaving = [self._leave(number, connection) for number, connection in joined.items() if not connection.closed]
        if leaving:
            await asyncio.wait(leaving)

    def _leave(self, number: int, connection: Connection) -> asyncio.Future[Any]:
        connection.leave_group((number, self.name))
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

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def __repr__(self) -> str:
        state = "left" if self._membership.closed else f"joined at {self.coordinators} coordinators"
        return f"<CheckGroup {self.name!r} {state}>"

    @property
    def name(self) -> str:
        """The group's name."""
        return self._membership.name

    @property
    def coordinators(self) -> int:
        """At how many coordinators this client is a member at this moment."""
        return self._membership.places

    async def close(self) -> None:
        """Leave the group; idempotent. Calls of `check` that are under way are cancelled, and another member is asked.

        Waits at most a second for the coordinators. If cancelled, it is left all the same.
        """
        await self._membership.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class CheckGroups:
    """All check groups that a client is a member of."""

    def __init__(self, core: Core, coordinators: Callable[[], TransactionCoordinators]) -> None:
        self._core = core
        self._coordinators = coordinators
        self._groups: list[Membership] = []
        self._growth: asyncio.Task[None] | None = None

    async def join(self, name: str, check: Check, terms: CheckTerms) -> AsyncCheckGroup:
        """See `BeginsTransactions.join_check_group`."""
        self._core.check_open()
        check_group_name("group", name)
        check_takes_one(check, "check")
        if any(group.name == name for group in self._joined()):
            raise InvalidConfiguration(
                f"this client is a member of group {name!r} already",
                hint="give what join_check_group() returned to everything that needs it, or close() it first",
            )
        group = Membership(self._core, name, check, terms)
        self._groups = [*self._joined(), group]
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
        for group in self._joined():
            group.begin(session)

    def moved(self) -> None:
        """The client has gone to another cluster, whose coordinators are others."""
        for group in self._joined():
            group.moved()
        if self._joined():
            self._core.spawn(self._join_again(self._coordinators()))

    async def _join_again(self, coordinators: TransactionCoordinators) -> None:
        retries = Retries(self._core, "joining check groups in another cluster", math.inf)
        while True:
            async with retries:
                return await coordinators.start()

    def _joined(self) -> list[Membership]:
        """The memberships that were not left."""
        return [group for group in self._groups if not group.closed]

    async def _grow(self) -> None:
        while self._joined():
            await asyncio.sleep(GROWTH_SECONDS)
            try:
                await self._coordinators().grow()
            except PulsarError as error:
                logger.debug("looking for coordinators that were added failed: %s", error)


def _left(name: str, answer: asyncio.Future[Any]) -> None:
    """Whoever does not answer notices by the connection that the member is gone."""
    if not answer.cancelled() and (error := answer.exception()) is not None:
        logger.debug("leaving group %r was not answered: %s", name, error)
