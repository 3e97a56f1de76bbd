"""A transaction's life, told with a scripted coordinator: what is enlisted, what dooms it, how it ends."""

import asyncio
import contextlib
import gc
import subprocess
import sys
from typing import Any

import pytest
from fake_broker import bare_core

from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthenticationError,
    CommitOutcomeUnknown,
    ConnectionLost,
    FeatureUnsupported,
    InvalidTransactionStatus,
    NotAllowedError,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    TransactionAborted,
    TransactionConflict,
    TransactionFenced,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
    UnknownError,
)
from pulsar_txn.client.state.transaction import TransactionOptions, TransactionState
from pulsar_txn.client.txn.forgotten import PLACES_LIMIT, Forgotten
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.transaction import AMBIENT, AsyncTransaction, Rollback, unit_of
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

CORE: Any = bare_core()
ID = TxnId(3, 42)


class ScriptedSessions:
    """Answers each request from a script (an exception is raised), and keeps what was asked."""

    registers_first = False
    """As coordinators beside clusters do."""

    def __init__(self, **script):
        self.script = {name: list(answers) for name, answers in script.items()}
        self.asked = []
        self.ends_with = []
        self.lacks_checks = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def _answer(self, name, *asked):
        self.asked.append((name, *asked))
        await self.gate.wait()
        answers = self.script.get(name)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, BaseException):
            raise answer

    async def new_txn(self, timeout_ms, *, tally, first=(), checked=None):
        assert self.registers_first or not first
        await self._answer("new", timeout_ms, *first)
        return ID

    async def add_partitions(self, txn_id, topics, *, tally):
        await self._answer("partitions", *topics)

    async def add_subscriptions(self, txn_id, subscriptions, *, tally):
        await self._answer("subscriptions", *subscriptions)

    async def end_txn(
        self,
        txn_id,
        action,
        *,
        timeout,
        tally,
        group=(),
        abort_others=False,
        prepared=None,
        at_decision=False,
        all_answered=False,
    ):
        assert not group
        assert not abort_others
        self.ends_with.append((prepared, at_decision))
        answers = self.script.get("end")
        tally.sent += not (answers and isinstance(answers[0], AlreadyClosed | AuthenticationError))
        await self._answer("end", action.name)

    async def prepare_txn(self, token, *, timeout, tally):
        await self._answer("prepare", token)

    may_be_fenced = False

    async def needs_checks(self, txn_id, what):
        if self.lacks_checks:
            raise FeatureUnsupported(what)

    @property
    def ends(self):
        return [asked[1] for asked in self.asked if asked[0] == "end"]


class Flushed:
    def __init__(self):
        self.flushes = 0

    def flush_nowait(self):
        self.flushes += 1

    def count_sends(self, txn):
        pass


def new_transaction(sessions, *, txn_id=None, forgotten=None, **options):
    return AsyncTransaction(Unit(CORE, sessions, TransactionOptions(**options), txn_id=txn_id, forgotten=forgotten))


def block_of(txn, *, ambient=False):
    """A managed block that opens its transaction at once."""
    return AsyncManagedTransaction(unit_of(txn), eager=True, ambient=ambient)


async def opened(sessions, **options):
    txn = new_transaction(sessions, **options)
    await unit_of(txn).open()
    return txn


async def sent(txn, topic="t", error=None, messages=1):
    registration = unit_of(txn).enlist_send(CORE, topic, messages, 10, Flushed())
    if isinstance(registration, asyncio.Future):
        try:
            await registration
        except PulsarError as failed:
            error = error or failed
    unit_of(txn).send_finished(topic, messages, error)


# --- enlisting ----------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("B27", "D26")
async def test_a_target_is_registered_once_and_before_its_operations():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    first = unit_of(txn).enlist_send(CORE, "t", 1, 10, Flushed())
    assert unit_of(txn).enlist_send(CORE, "t", 1, 10, Flushed()) is first
    assert await first == ID
    assert unit_of(txn).enlist_send(CORE, "t", 1, 10, Flushed()) == ID
    unit_of(txn).send_finished("t", 3, None)
    assert sessions.asked == [("new", 60_000), ("partitions", "t")]
    await txn.commit()


async def test_targets_of_one_turn_are_registered_together():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    futures = [unit_of(txn).enlist_send(CORE, topic, 1, 1, Flushed()) for topic in ("a", "b", "c")]
    futures += [unit_of(txn).enlist_ack(CORE, "in", name, 1, cumulative=False) for name in ("s1", "s2")]
    await asyncio.gather(*futures)
    assert sessions.asked[1:] == [("partitions", "a", "b", "c"), ("subscriptions", ("in", "s1"), ("in", "s2"))]
    for topic in ("a", "b", "c"):
        unit_of(txn).send_finished(topic, 1, None)
    for name in ("s1", "s2"):
        unit_of(txn).ack_finished("in", name, 1, None)
    await txn.commit()


async def test_what_opens_a_transaction_is_registered_by_the_same_request_where_the_coordinator_can_do_that():
    sessions = ScriptedSessions()
    sessions.registers_first = True
    txn = new_transaction(sessions)
    futures = [unit_of(txn).enlist_send(CORE, topic, 1, 1, Flushed()) for topic in ("a", "b")]
    futures.append(unit_of(txn).enlist_ack(CORE, "a", "s", 1, cumulative=False))
    assert await asyncio.gather(*futures) == [ID] * 3
    assert sessions.asked == [("new", 60_000, ("a", None), ("b", None), ("a", "s"))]
    await unit_of(txn).enlist_send(CORE, "c", 1, 1, Flushed())
    assert unit_of(txn).enlist_send(CORE, "a", 1, 1, Flushed()) == ID
    assert sessions.asked[1:] == [("partitions", "c")]
    for topic in ("a", "b", "c", "a"):
        unit_of(txn).send_finished(topic, 1, None)
    unit_of(txn).ack_finished("a", "s", 1, None)
    assert all(each.registered for each in txn.stats().partitions + txn.stats().subscriptions)
    await txn.commit()


async def test_what_cannot_be_registered_with_the_transaction_is_told_why_by_its_own_registration():
    refused = NotAllowedError("there is no such topic")
    sessions = ScriptedSessions(new=[NotAllowedError("there is no such topic"), None], partitions=[refused])
    sessions.registers_first = True
    txn = new_transaction(sessions)
    with pytest.raises(NotAllowedError, match="there is no such topic"):
        await unit_of(txn).enlist_send(CORE, "missing", 1, 1, Flushed())
    assert sessions.asked == [("new", 60_000, ("missing", None)), ("new", 60_000), ("partitions", "missing")]
    unit_of(txn).send_finished("missing", 1, refused)
    await txn.abort()


async def test_objects_of_another_client_are_refused_before_anything_is_sent():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    with pytest.raises(TransactionStateError, match="another client"):
        unit_of(txn).enlist_send(object(), "t", 1, 1, Flushed())
    await txn.abort()
    assert sessions.asked == [("new", 60_000), ("end", "ABORT")]


@pytest.mark.seed_rows("B30")
async def test_commit_waits_for_operations_and_flushes_their_producers():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    producer = Flushed()
    await unit_of(txn).enlist_send(CORE, "t", 2, 1, producer)
    commit = asyncio.ensure_future(txn.commit())
    await asyncio.sleep(0.01)
    assert (sessions.ends, producer.flushes) == ([], 1)
    unit_of(txn).send_finished("t", 2, None)
    await commit
    assert sessions.ends == ["COMMIT"]
    assert txn.state is TransactionState.COMMITTED


@pytest.mark.seed_rows("B26")
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_an_operation_behind_the_end_is_refused(end):
    txn = await opened(ScriptedSessions())
    await getattr(txn, end)()
    with pytest.raises(TransactionStateError, match=r"the transaction is (COMMITTED|ABORTED)"):
        unit_of(txn).enlist_ack(CORE, "t", "s", 1, cumulative=True)


# --- doom ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("B30", "C32")
async def test_a_failed_operation_dooms_the_transaction_even_when_it_was_looked_at():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    conflict = TransactionConflict("acknowledged elsewhere")
    await sent(txn, error=conflict)
    await sent(txn, "other")
    assert txn.doomed
    with pytest.raises(TransactionOperationFailed) as raised:
        await txn.commit()
    assert raised.value.failures == (conflict,)
    assert raised.value.__cause__ is conflict
    assert sessions.ends == ["ABORT"]
    assert txn.state is TransactionState.ABORTED


async def test_a_failed_registration_dooms_the_transaction():
    sessions = ScriptedSessions(partitions=[ConnectionLost("gone")])
    txn = await opened(sessions)
    await sent(txn)
    with pytest.raises(TransactionOperationFailed, match="gone"):
        await txn.commit()
    assert sessions.ends == ["ABORT"]


async def test_an_operation_that_never_ends_aborts_the_commit_when_its_time_is_over():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    await unit_of(txn).enlist_send(CORE, "t", 1, 1, Flushed())
    with pytest.raises(TransactionTimedOut, match="not confirmed in time"):
        await txn.commit(timeout=0.02)
    assert sessions.ends == ["ABORT"]
    assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_an_operation_that_never_ends_leaves_time_for_the_abort(end):
    """Named after a fault: the wait for the operation took the time of END_TXN, which got a millisecond."""
    sessions = ScriptedSessions()
    asked = []
    answer = sessions.end_txn

    async def end_txn(txn_id, action, *, timeout, tally, **more):
        asked.append(timeout)
        await answer(txn_id, action, timeout=timeout, tally=tally, **more)

    sessions.end_txn = end_txn
    txn = await opened(sessions)
    await unit_of(txn).enlist_send(CORE, "t", 1, 1, Flushed())
    with contextlib.suppress(TransactionTimedOut):
        await getattr(txn, end)(timeout=0.2)
    assert sessions.ends == ["ABORT"]
    assert asked[0] > 0.05


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(ProducerFenced("a successor writes"), TransactionOperationFailed), (None, TransactionTimedOut)],
)
async def test_a_failed_abort_does_not_hide_why_the_unit_was_not_committed(failure, expected):
    txn = await opened(ScriptedSessions(end=[OperationTimeout("no answer", maybe_processed=True)]))
    await unit_of(txn).enlist_send(CORE, "t", 1, 1, Flushed())
    if failure is None:
        unit_of(txn).expire()
    else:
        unit_of(txn).send_finished("t", 1, failure)
    with pytest.raises(expected) as raised:
        await txn.commit(timeout=0.1)
    assert any("no answer" in note for note in raised.value.__notes__)


async def test_a_transaction_whose_abort_failed_is_not_committed():
    sessions = ScriptedSessions(end=[OperationTimeout("no answer", maybe_processed=True)])
    txn = await opened(sessions)
    with pytest.raises(OperationTimeout):
        await txn.abort()
    with pytest.raises(TransactionStateError, match="ABORTING"):
        await txn.commit()
    await txn.abort()
    assert (sessions.ends, txn.state) == (["ABORT", "ABORT"], TransactionState.ABORTED)


async def test_what_could_not_be_started_dooms_the_transaction():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    unit_of(txn).doom(ProducerFenced("a successor writes"))
    with pytest.raises(TransactionOperationFailed, match="successor"):
        await txn.commit()
    assert sessions.ends == ["ABORT"]


# --- timeouts -----------------------------------------------------------------------------------------------------


async def test_behind_its_deadline_operations_are_refused_and_commit_aborts():
    sessions = ScriptedSessions()
    txn = await opened(sessions, timeout=0.05)
    await asyncio.sleep(0.06)
    assert txn.state is TransactionState.TIMED_OUT
    with pytest.raises(TransactionTimedOut):
        unit_of(txn).enlist_send(CORE, "t", 1, 1, Flushed())
    with pytest.raises(TransactionTimedOut):
        await txn.commit()
    assert sessions.ends == ["ABORT"]


# --- the answer to END_TXN ----------------------------------------------------------------------------------------


async def test_a_first_answer_of_wrong_status_means_aborted():
    txn = await opened(ScriptedSessions(end=[InvalidTransactionStatus("?")]))
    with pytest.raises(TransactionAborted, match="ended the transaction before"):
        await txn.commit()
    assert txn.state is TransactionState.ABORTED


async def test_a_transaction_that_is_gone_before_its_time_may_have_been_committed_by_somebody_else():
    txn = await opened(ScriptedSessions(end=[TransactionNotFound("?")]))
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()
    assert txn.state is TransactionState.UNKNOWN


async def test_a_transaction_that_is_gone_when_its_time_is_over_was_aborted():
    sessions = ScriptedSessions(end=[TransactionNotFound("?")])
    txn = await opened(sessions, timeout=0.05)
    sessions.gate.clear()
    committing = asyncio.create_task(txn.commit())
    await asyncio.sleep(0.06)
    sessions.gate.set()
    with pytest.raises(TransactionTimedOut):
        await committing
    assert txn.state is TransactionState.ABORTED


async def test_an_abort_that_meets_the_timeout_at_a_stock_coordinator_is_asked_for_again():
    """It says "expected OPEN, but it is ABORTING" once; what followed was an error instead of an abort."""
    sessions = ScriptedSessions(end=[invalid(definite=False)])
    txn = await opened(sessions)
    await txn.abort()
    assert sessions.ends == ["ABORT", "ABORT"]
    assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("refusals", [[True], [False, False]])
async def test_an_abort_of_what_was_committed_is_an_error(refusals):
    sessions = ScriptedSessions(end=[invalid(definite=definite) for definite in refusals])
    txn = await opened(sessions)
    with pytest.raises(InvalidTransactionStatus):
        await txn.abort()
    assert len(sessions.ends) == len(refusals)
    assert txn.state is TransactionState.ERROR


def invalid(*, definite: bool, maybe_processed: bool = False) -> InvalidTransactionStatus:
    error = InvalidTransactionStatus("?", maybe_processed=maybe_processed)
    error.definite = definite
    return error


# --- a transaction that its coordinator does not know -----------------------------------------------------------------


def forgotten(times: int = 1) -> ScriptedSessions:
    return ScriptedSessions(end=[TransactionNotFound("?") for _ in range(times)])


def look_at_the_id(txn: AsyncTransaction) -> object:
    return txn.id


async def test_an_abort_of_what_is_not_found_and_nobody_else_knew_is_an_abort():
    """Its coordinator aborted it at its timeout and forgot it: nobody but this object could have committed it."""
    txn = await opened(forgotten())
    await txn.abort()
    assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("look", [look_at_the_id, AsyncTransaction.stats, repr, str], ids=["id", "stats", "repr", "str"])
async def test_an_abort_of_what_is_not_found_and_whose_id_was_shown_is_unknown(look):
    sessions = forgotten()
    txn = await opened(sessions)
    look(txn)
    with pytest.raises(TransactionNotFound):
        await txn.abort()
    assert txn.state is TransactionState.UNKNOWN


async def test_an_abort_of_an_attached_transaction_that_is_not_found_is_unknown():
    sessions = forgotten()
    txn = new_transaction(sessions, txn_id=ID)
    ended = []
    unit_of(txn).when_ended(ended.append)
    with pytest.raises(TransactionNotFound):
        await txn.abort()
    assert txn.state is TransactionState.UNKNOWN
    assert ended == [None]


async def test_after_an_abort_without_an_outcome_no_commit_leaves_and_the_abort_may_be_asked_for_again():
    sessions = forgotten(2)
    txn = new_transaction(sessions, txn_id=ID)
    for _ in range(2):
        with pytest.raises(TransactionNotFound):
            await txn.abort()
    with pytest.raises(TransactionStateError, match="commit of a transaction that is UNKNOWN"):
        await txn.commit()
    assert await txn.resolve() is TransactionState.ABORTED  # it asks for the abort, and this time it is known
    assert sessions.ends == ["ABORT"] * 3


async def test_the_question_after_a_lost_abort_of_an_attached_transaction_is_an_abort():
    """It was END_TXN commit, which committed what the program had asked to abort."""
    sessions = ScriptedSessions(end=[ConnectionLost("gone", maybe_processed=True)])
    txn = new_transaction(sessions, txn_id=ID)
    with pytest.raises(ConnectionLost):
        await txn.abort()
    assert await txn.resolve() is TransactionState.ABORTED
    assert sessions.ends == ["ABORT", "ABORT"]


@pytest.mark.parametrize(("definite", "state"), [(True, TransactionState.COMMITTED), (False, TransactionState.UNKNOWN)])
async def test_a_refused_abort_of_an_attached_transaction_says_what_is_known(definite, state):
    txn = new_transaction(ScriptedSessions(end=[invalid(definite=definite) for _ in range(2)]), txn_id=ID)
    with pytest.raises(InvalidTransactionStatus):
        await txn.abort()
    assert txn.state is state


async def test_a_commit_that_was_not_found_after_its_time_is_unknown_when_others_knew_the_id():
    sessions = forgotten()
    txn = await opened(sessions, timeout=0.05)
    assert txn.id is not None
    sessions.gate.clear()
    committing = asyncio.create_task(txn.commit())
    await asyncio.sleep(0.06)
    sessions.gate.set()
    with pytest.raises(CommitOutcomeUnknown):
        await committing
    assert txn.state is TransactionState.UNKNOWN


async def test_the_commit_of_an_attached_transaction_with_a_failure_does_not_say_aborted_of_what_is_not_found():
    sessions = forgotten()
    txn = new_transaction(sessions, txn_id=ID)
    unit_of(txn).doom(ConnectionLost("a send"))
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()
    assert sessions.ends == ["ABORT"]
    assert txn.state is TransactionState.UNKNOWN
    assert await txn.resolve() is TransactionState.ABORTED
    assert sessions.ends == ["ABORT", "ABORT"]


async def test_the_users_exception_wins_over_an_abort_that_is_not_found():
    with pytest.raises(ZeroDivisionError) as raised:
        async with block_of(new_transaction(forgotten())) as txn:
            await sent(txn)
            assert txn.id is not None
            raise ZeroDivisionError
    assert txn.state is TransactionState.UNKNOWN
    assert any("does not know the transaction" in note for note in raised.value.__notes__)


async def test_a_block_that_aborted_what_is_not_found_commits_nothing_when_it_is_left():
    sessions = forgotten()
    with pytest.raises(TransactionNotFound):
        async with block_of(new_transaction(sessions, managed=True)) as txn:
            await sent(txn)
            assert txn.id is not None
            with contextlib.suppress(TransactionNotFound):
                await txn.abort()
    assert sessions.ends == ["ABORT"]


async def test_a_fenced_client_does_not_call_an_attached_transaction_aborted():
    txn = new_transaction(ScriptedSessions(end=[TransactionFenced("newer")]), txn_id=ID)
    with pytest.raises(TransactionFenced):
        await txn.abort()
    assert txn.state is TransactionState.UNKNOWN


# --- a commit whose answer was lost -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [TransactionNotFound("?", maybe_processed=True), invalid(definite=False, maybe_processed=True)]
)
async def test_a_refusal_of_a_repeated_commit_is_an_unknown_outcome(error):
    """A stock coordinator refuses the repeat of a commit that it has carried out, or is about to have."""
    txn = await opened(ScriptedSessions(end=[error]))
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()
    assert txn.state is TransactionState.UNKNOWN


async def test_a_coordinator_that_keeps_outcomes_is_believed_behind_a_lost_answer():
    txn = await opened(ScriptedSessions(end=[invalid(definite=True, maybe_processed=True)]))
    with pytest.raises(TransactionAborted):
        await txn.commit()
    assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("error", [TransactionNotFound("?"), invalid(definite=False)])
async def test_a_refused_commit_of_a_transaction_begun_elsewhere_may_be_a_repeat(error):
    txn = new_transaction(ScriptedSessions(end=[error]), txn_id=ID)
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()


@pytest.mark.seed_rows("B01")
async def test_a_lost_answer_is_unknown_and_can_be_resolved():
    sessions = ScriptedSessions(end=[OperationTimeout("no answer", maybe_processed=True)])
    txn = await opened(sessions)
    with pytest.raises(CommitOutcomeUnknown) as raised:
        await txn.commit()
    assert raised.value.txn_id == ID
    assert await raised.value.resolve() is TransactionState.COMMITTED
    assert sessions.ends == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (invalid(definite=True), TransactionState.ABORTED),
        (invalid(definite=False), TransactionState.UNKNOWN),
        (TransactionNotFound("?"), TransactionState.UNKNOWN),
    ],
)
async def test_resolve_says_what_the_coordinator_knows(answer, state):
    txn = await opened(ScriptedSessions(end=[UnknownError("participant failed"), answer]))
    with pytest.raises(CommitOutcomeUnknown) as raised:
        await txn.commit()
    assert await raised.value.resolve() is state


@pytest.mark.seed_rows("C41")
async def test_commit_may_be_called_again_behind_an_unknown_outcome_and_abort_may_not():
    txn = await opened(ScriptedSessions(end=[OperationTimeout("?", maybe_processed=True)]))
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()
    with pytest.raises(TransactionStateError, match="resolve"):
        await txn.abort()
    await txn.commit()
    assert txn.state is TransactionState.COMMITTED


async def test_a_commit_that_never_left_is_not_unknown():
    txn = await opened(ScriptedSessions(end=[ConnectionLost("no route")]))
    with pytest.raises(TransactionTimedOut):
        await txn.commit()


async def test_a_commit_that_never_left_because_of_credentials_is_not_unknown():
    txn = await opened(ScriptedSessions(end=[AuthenticationError("token expired")]))
    with pytest.raises(TransactionTimedOut, match="could not be sent: token expired"):
        await txn.commit()
    assert txn.state is TransactionState.TIMED_OUT


@pytest.mark.parametrize("definite", [True, False])
async def test_a_successor_behind_a_lost_answer_says_nothing_about_the_commit(definite):
    """Named after a fault: a commit that was carried out was taken for aborted, since the session ended meanwhile."""
    fenced = TransactionFenced("epoch 7", maybe_processed=True)
    fenced.definite = definite
    txn = await opened(ScriptedSessions(end=[fenced]))
    with pytest.raises(TransactionFenced if definite else CommitOutcomeUnknown):
        await txn.commit()
    assert txn.state is (TransactionState.ABORTED if definite else TransactionState.UNKNOWN)


async def test_a_commit_of_a_closed_client_never_left_and_is_not_unknown():
    txn = await opened(ScriptedSessions(end=[AlreadyClosed("the client is closed")]))
    with pytest.raises(AlreadyClosed):
        await txn.commit()
    assert txn.state is TransactionState.TIMED_OUT


@pytest.mark.seed_rows("B29")
async def test_a_second_commit_is_a_mistake_and_a_second_abort_is_not():
    txn = await opened(ScriptedSessions())
    await txn.commit()
    with pytest.raises(TransactionStateError, match="commit of a transaction that is COMMITTED"):
        await txn.commit()
    other = await opened(ScriptedSessions())
    await other.abort()
    await other.abort()
    assert other.state is TransactionState.ABORTED


@pytest.mark.seed_rows("B31")
async def test_concurrent_commits_share_one_request():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    await asyncio.gather(*(txn.commit() for _ in range(5)))
    assert sessions.ends == ["COMMIT"]


async def test_a_cancelled_caller_does_not_cancel_the_commit():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    sessions.gate.clear()
    commit = asyncio.ensure_future(txn.commit())
    await asyncio.sleep(0.01)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    sessions.gate.set()
    await txn.wait_closed()
    assert txn.state is TransactionState.COMMITTED


@pytest.mark.seed_rows("B32")
async def test_an_abort_of_a_transaction_that_is_over_is_done():
    txn = await opened(ScriptedSessions(end=[TransactionNotFound("?")]))
    await txn.abort()
    assert txn.state is TransactionState.ABORTED


# --- lazily opened ------------------------------------------------------------------------------------------------


async def test_a_lazy_transaction_without_operations_asks_for_nothing():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions)
    await txn.commit()
    assert (txn.id, txn.state, sessions.asked) == (None, TransactionState.COMMITTED, [])


async def test_a_lazy_transaction_begins_with_its_first_operation():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions)
    await sent(txn)
    assert txn.id == ID
    await txn.commit()
    assert [asked[0] for asked in sessions.asked] == ["new", "partitions", "end"]


# --- the managed block --------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("A05")
async def test_leaving_the_block_commits():
    sessions = ScriptedSessions()
    async with block_of(new_transaction(sessions, managed=True)) as txn:
        await sent(txn)
        with pytest.raises(TransactionStateError, match="leaving its block"):
            await txn.commit()
    assert sessions.ends == ["COMMIT"]


async def test_an_exception_aborts_and_is_what_the_caller_sees():
    sessions = ScriptedSessions()
    with pytest.raises(ZeroDivisionError):
        async with block_of(new_transaction(sessions)) as txn:
            await sent(txn)
            raise ZeroDivisionError
    assert sessions.ends == ["ABORT"]


async def test_the_users_exception_wins_over_a_failing_abort():
    sessions = ScriptedSessions(end=[ConnectionLost("gone")])
    with pytest.raises(ZeroDivisionError) as raised:
        async with block_of(new_transaction(sessions)):
            raise ZeroDivisionError
    assert any("could not be aborted" in note for note in raised.value.__notes__)


async def test_rollback_leaves_quietly():
    sessions = ScriptedSessions()
    async with block_of(new_transaction(sessions, managed=True)) as txn:
        txn.rollback()
    assert sessions.ends == ["ABORT"]


async def test_a_rollback_of_another_transaction_passes_through():
    other = await opened(ScriptedSessions(), managed=True)
    with pytest.raises(Rollback):
        async with block_of(new_transaction(ScriptedSessions())):
            other.rollback()
    await other.abort()


async def test_a_rollback_without_a_block_is_refused():
    sessions = ScriptedSessions()
    txn = await opened(sessions)
    with pytest.raises(TransactionStateError, match=r"call txn.abort\(\)"):
        txn.rollback()
    await txn.commit()
    assert sessions.ends == ["COMMIT"]


async def test_an_abort_inside_the_block_is_the_end_of_it():
    sessions = ScriptedSessions()
    async with block_of(new_transaction(sessions)) as txn:
        await txn.abort()
    assert sessions.ends == ["ABORT"]


async def test_cancellation_aborts_within_its_bound():
    sessions = ScriptedSessions()

    async def work():
        async with block_of(new_transaction(sessions)):
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sessions.ends == ["ABORT"]


async def in_commit(sessions):
    """A task that is in the commit of a block, and its transaction."""
    txn = new_transaction(sessions)

    async def work():
        async with block_of(txn):
            sessions.gate.clear()

    task = asyncio.ensure_future(work())
    while sessions.ends != ["COMMIT"]:  # noqa: ASYNC110 - a script has no event
        await asyncio.sleep(0)
    return task, txn


async def test_a_block_that_is_cancelled_while_it_commits_waits_for_the_commit():
    """Else the client would be closed under it, and nobody could say the outcome of the transaction."""
    sessions = ScriptedSessions()
    task, txn = await in_commit(sessions)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    sessions.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert txn.state is TransactionState.COMMITTED


async def test_a_second_cancellation_does_not_wait_for_the_commit():
    sessions = ScriptedSessions()
    task, txn = await in_commit(sessions)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.cancelled()
    assert txn.state is TransactionState.COMMITTING
    sessions.gate.set()
    await txn.wait_closed()
    assert txn.state is TransactionState.COMMITTED


async def test_a_cancellation_says_that_the_commit_failed():
    sessions = ScriptedSessions(end=[OperationTimeout("no answer", maybe_processed=True)])
    task, txn = await in_commit(sessions)
    task.cancel()
    sessions.gate.set()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert any("UNKNOWN" in note and "no answer" in note for note in raised.value.__notes__)
    assert txn.state is TransactionState.UNKNOWN


async def test_a_timeout_around_a_block_leaves_no_commit_behind():
    sessions = ScriptedSessions()
    asyncio.get_running_loop().call_later(0.05, sessions.gate.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), block_of(new_transaction(sessions)) as txn:
            sessions.gate.clear()
    assert txn.state is TransactionState.COMMITTED


async def test_a_rollback_whose_abort_fails_is_quiet(caplog):
    sessions = ScriptedSessions(end=[OperationTimeout("no answer", maybe_processed=True)])
    async with block_of(new_transaction(sessions, managed=True)) as txn:
        txn.rollback()
    assert "no answer" in caplog.text


async def test_a_block_that_is_cancelled_while_it_begins_leaves_no_open_transaction():
    sessions = ScriptedSessions()
    sessions.gate.clear()
    txn = new_transaction(sessions)
    task = asyncio.ensure_future(block_of(txn).__aenter__())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    sessions.gate.set()
    await txn.wait_closed()
    assert (sessions.ends, txn.state) == (["ABORT"], TransactionState.ABORTED)


async def test_an_ambient_block_that_is_left_in_another_context_ends_all_the_same():
    async def transactions():
        async with block_of(new_transaction(ScriptedSessions()), ambient=True) as txn:
            yield txn

    opening = transactions()
    txn = await asyncio.create_task(anext(opening))
    with pytest.raises(StopAsyncIteration):
        await anext(opening)
    assert txn.state is TransactionState.COMMITTED


async def test_force_abort_is_a_dry_run():
    sessions = ScriptedSessions()
    async with block_of(new_transaction(sessions, force_abort=True)) as txn:
        await sent(txn)
    assert sessions.ends == ["ABORT"]


async def test_a_block_is_entered_once():
    block = block_of(new_transaction(ScriptedSessions()))
    async with block:
        pass
    with pytest.raises(TransactionStateError, match="once"):
        async with block:
            pass


async def test_ambient_mode_sets_the_transaction_inside_the_block_only():
    async with block_of(new_transaction(ScriptedSessions()), ambient=True) as txn:
        assert AMBIENT.get() is unit_of(txn)
    assert AMBIENT.get() is None


# --- looking at it ------------------------------------------------------------------------------------------------


async def test_stats_and_repr_say_what_was_done():
    txn = await opened(ScriptedSessions(), name="daily")
    await sent(txn, "a", messages=2)
    await unit_of(txn).enlist_ack(CORE, "in", "s", 1, cumulative=True)
    stats = txn.stats()
    assert [(each.topic, each.sent, each.confirmed, each.bytes) for each in stats.partitions] == [("a", 2, 2, 10)]
    assert [(each.subscription, each.acked, each.confirmed, each.cumulative) for each in stats.subscriptions] == [
        ("s", 1, 0, True)
    ]
    assert stats.operations_in_flight == 1
    assert repr(txn).startswith("<Transaction (3,42) 'daily' OPEN 1 topics 1 subscriptions 5")
    unit_of(txn).ack_finished("in", "s", 1, None)
    await txn.commit()


async def test_a_forgotten_transaction_is_a_resource_warning():
    txn = await opened(ScriptedSessions())
    with pytest.warns(ResourceWarning, match="was never ended"):
        del txn
        gc.collect()


def test_a_transaction_left_open_at_the_end_of_the_program_is_no_error_of_the_interpreter():
    program = """
import asyncio, builtins, time
from types import SimpleNamespace
from pulsar_txn.client.state.transaction import TransactionOptions
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import TxnId

class Sessions:
    async def new_txn(self, *_, **__):
        return TxnId(0, 1)

async def main():
    settings, runtime = SimpleNamespace(operation_timeout=1.0), SimpleNamespace(monotonic=time.monotonic, secret=bytes)
    core = SimpleNamespace(settings=settings, runtime=runtime, check_here=None)
    builtins.left = Unit(core, Sessions(), TransactionOptions())
    await builtins.left.open()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Exception ignored" not in ended.stderr


async def test_consumers_are_told_when_the_transaction_is_over():
    told = []
    txn = await opened(ScriptedSessions())
    unit_of(txn).when_ended(lambda outcome: told.append(("first", outcome)))
    await txn.commit()
    unit_of(txn).when_ended(lambda outcome: told.append(("late", outcome)))
    await asyncio.sleep(0)
    assert told == [("first", TxnAction.COMMIT), ("late", TxnAction.COMMIT)]


async def test_consumers_are_told_that_the_time_is_over_and_later_of_the_abort():
    told = []
    txn = await opened(ScriptedSessions())
    unit_of(txn).when_ended(told.append)
    unit_of(txn).expire()
    await asyncio.sleep(0)
    assert told == [None]
    await txn.abort()
    assert told == [None, TxnAction.ABORT]


def test_actions_are_the_protocols():
    assert (TxnAction.COMMIT, TxnAction.ABORT) == (0, 1)


# --- nothing is opened before it is needed ----------------------------------------------------------------------------


async def test_a_block_opens_its_transaction_with_its_first_operation_and_its_clock_starts_then():
    sessions = ScriptedSessions()
    async with AsyncManagedTransaction(unit_of(new_transaction(sessions, managed=True, timeout=1))) as txn:
        await asyncio.sleep(1.1)  # an hour without a message
        assert (txn.id, txn.state, txn.deadline, sessions.asked) == (None, TransactionState.NOT_STARTED, None, [])
        await sent(txn)
        assert txn.state is TransactionState.OPEN
    assert sessions.ends == ["COMMIT"]


async def test_a_commit_with_nothing_in_it_sends_nothing_and_is_warned_of_once_per_place(caplog):
    sessions, forgotten = ScriptedSessions(), Forgotten()
    for _ in range(3):
        async with AsyncManagedTransaction(unit_of(new_transaction(sessions, forgotten=forgotten, managed=True, name="daily"))):
            pass
    await new_transaction(sessions, forgotten=forgotten).commit()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(f"with nothing in it at {__file__}:" in line and "txn= left out" in line for line in said)
    assert "'daily'" in said[0]
    assert sessions.asked == []


async def test_the_places_that_are_remembered_are_bounded(caplog):
    forgotten = Forgotten()
    for place in range(PLACES_LIMIT + 10):
        forgotten.warn(None, f"file:{place}")
    assert len(caplog.records) == PLACES_LIMIT


async def test_no_warning_of_an_empty_commit_where_it_is_meant(caplog):
    sessions = ScriptedSessions()
    looked = new_transaction(sessions)
    unit_of(looked).looks_for_input(CORE)  # and nothing came
    await looked.commit()
    await new_transaction(sessions, force_abort=True).commit()
    await new_transaction(sessions).abort()
    await (await opened(sessions)).commit()  # its id may have been handed on
    await new_transaction(sessions, txn_id=ID).commit()
    assert caplog.records == []


# --- input that joins -------------------------------------------------------------------------------------------------


class Received:
    """What a consumer received in a transaction: it is acknowledged as the script says, or brought back."""

    def __init__(self, txn, error=None):
        self.unit = unit_of(txn)
        self.error = error
        self.acknowledged = self.brought_back = 0
        unit_of(txn).join(CORE, self)

    def acknowledge(self):
        self.acknowledged += 1
        registered = self.unit.enlist_ack(CORE, "in", "s", 1, cumulative=False)
        self.task = asyncio.ensure_future(self._answered(registered))

    async def _answered(self, registered):
        try:
            if isinstance(registered, asyncio.Future):
                await registered
        except PulsarError as error:
            self.error = error
        self.unit.ack_finished("in", "s", 1, self.error)

    def bring_back(self):
        self.brought_back += 1


async def test_joined_input_opens_nothing_and_is_acknowledged_by_the_commit():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions)
    joined = Received(txn)
    unit_of(txn).join(CORE, joined)  # again, without effect
    assert (txn.id, sessions.asked) == (None, [])
    await txn.commit()
    assert (joined.acknowledged, joined.brought_back) == (1, 0)
    assert [asked[0] for asked in sessions.asked] == ["new", "subscriptions", "end"]
    assert sessions.ends == ["COMMIT"]


async def test_input_of_what_is_left_to_its_group_is_acknowledged_because_the_group_may_commit():
    txn = new_transaction(ScriptedSessions(), checked=Checked("group"))
    await unit_of(txn).open()
    joined = Received(txn)
    await txn.leave_to_check()
    assert (joined.acknowledged, joined.brought_back) == (1, 0)
    assert txn.state is TransactionState.UNKNOWN


async def test_input_of_what_nobody_was_asked_for_comes_again_when_it_is_left():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions, checked=Checked("group"))
    joined = Received(txn)
    await txn.leave_to_check()
    assert (joined.acknowledged, joined.brought_back) == (0, 1)
    assert (txn.state, sessions.asked) == (TransactionState.ABORTED, [])


@pytest.mark.parametrize("opens", [False, True])
async def test_joined_input_comes_again_after_every_other_end(opens):
    async def begun(**options):
        txn = new_transaction(ScriptedSessions(), **options)
        if opens:
            await unit_of(txn).open()
        return txn, Received(txn)

    txn, aborted = await begun()
    await txn.abort()
    txn, failed = await begun(managed=True)
    with pytest.raises(LookupError):
        async with AsyncManagedTransaction(unit_of(txn)):
            raise LookupError
    txn, cancelled = await begun(managed=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), AsyncManagedTransaction(unit_of(txn)):
            await asyncio.sleep(10)
    txn, doomed = await begun()
    unit_of(txn).doom(TransactionConflict("taken"))
    with pytest.raises(TransactionOperationFailed):
        await txn.commit()
    txn, dry = await begun(force_abort=True)
    await txn.commit()
    txn, closed = await begun()
    await unit_of(txn).close(AlreadyClosed("the client was closed"), 1.0)
    txn, left = await begun()
    unit_of(txn).drop(ConnectionLost("the client moves"))
    each = [aborted, failed, cancelled, doomed, dry, closed, left]
    assert [joined.brought_back for joined in each] == [1] * 7
    assert [joined.acknowledged for joined in each] == [0, 0, 0, 0, 1, 0, 0]


async def test_joined_input_comes_again_at_once_when_the_time_is_over():
    txn = await opened(ScriptedSessions())
    joined = Received(txn)
    unit_of(txn).expire()
    assert joined.brought_back == 1
    with pytest.raises(TransactionTimedOut):
        await txn.commit()
    assert (joined.acknowledged, joined.brought_back) == (0, 1)


async def test_a_conflict_about_joined_input_aborts_and_brings_it_back():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions)
    joined = Received(txn, TransactionConflict("acknowledged elsewhere"))
    with pytest.raises(TransactionOperationFailed) as raised:
        await txn.commit()
    assert isinstance(raised.value.__cause__, TransactionConflict)
    assert sessions.ends == ["ABORT"]
    assert joined.brought_back == 1


async def test_input_that_cannot_start_its_acknowledgement_dooms_the_unit():
    sessions = ScriptedSessions()
    txn = new_transaction(sessions)
    joined = Received(txn)
    joined.acknowledge = lambda: 1 / 0
    with pytest.raises(TransactionOperationFailed, match="division by zero"):
        await txn.commit()
    assert (sessions.asked, joined.brought_back) == ([], 1)


async def test_an_outcome_that_is_unknown_brings_nothing_back_before_it_is_known():
    txn = new_transaction(ScriptedSessions(end=[ConnectionLost("cut", maybe_processed=True), _definitely_aborted()]))
    joined = Received(txn)
    with pytest.raises(CommitOutcomeUnknown):
        await txn.commit()
    assert joined.brought_back == 0
    assert await txn.resolve() is TransactionState.ABORTED
    assert joined.brought_back == 1


def _definitely_aborted():
    error = InvalidTransactionStatus("aborted")
    error.definite = True
    return error


async def test_an_ended_transaction_takes_no_input():
    txn = new_transaction(ScriptedSessions())
    await txn.abort()
    for join in (lambda: Received(txn), lambda: unit_of(txn).looks_for_input(CORE)):
        with pytest.raises(TransactionStateError):
            join()
    with pytest.raises(TransactionStateError, match="another client"):
        unit_of(new_transaction(ScriptedSessions())).looks_for_input(object())


async def test_a_forgotten_transaction_gives_its_input_back():
    returned = []

    class Kept:
        def acknowledge(self):
            pass

        def bring_back(self):
            returned.append(self)

    txn = new_transaction(ScriptedSessions())
    unit_of(txn).join(CORE, Kept())
    with pytest.warns(ResourceWarning, match="they come again"):
        del txn
        gc.collect()
    await asyncio.sleep(0)
    assert len(returned) == 1
