"""Promises of a coordinator that says `checks`: check groups, prepared transactions, nonces, early answers.

Each promise is a function of a maker of fresh coordinators; the suite calls them. No promise depends on the rules of a
coordinator (when it asks, how often, what its policy is): what is due is found by its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.requests import Check, CheckAnswered, CheckOutcome, CheckReturned, GroupJoined, GroupLeft
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

from .host import HostedCoordinator

MakeHost = Callable[[], HostedCoordinator]

_LONG: Final = 10**12
_MOST_QUESTIONS: Final = 1_000
_TOPIC, _OTHER = Participant("t"), Participant("u")
_CHECK: Final = Check("group", b"what to look up")
_TOKEN: Final = b"prepared"


def _opened(host: HostedCoordinator, principal: str | None = None) -> TxnId:
    txn_id = host.opened(_LONG, principal, check=_CHECK)
    host.add(txn_id, _TOPIC, principal=principal)
    host.confirm()
    return txn_id


def _prepared(host: HostedCoordinator, principal: str | None = None) -> TxnId:
    txn_id = host.opened(principal=principal)
    host.add(txn_id, _TOPIC, principal=principal)
    host.prepare(txn_id, _TOKEN, principal)
    host.confirm()
    return txn_id


def a_living_member_is_asked_and_counted_durably_before_it_goes_on(make: MakeHost) -> None:
    """And with what the transaction was opened with."""
    host = make()
    txn_id = _opened(host, "anna")
    host.tell(GroupJoined("group", "anna"))
    due = host.machine.deadline()
    assert due is not None
    host.advance(due - host.now_ms)
    host.confirm()
    (asked,) = host.asked
    assert (asked.txn_id, asked.group, asked.principal, asked.data) == (txn_id, "group", "anna", b"what to look up")
    assert (asked.count, asked.prepared) == (1, False)
    token = host.begins(asked)
    assert token not in host.answers, "the count is not durable yet"
    host.confirm()
    assert host.answers[token] is None
    host.end(txn_id, TxnAction.ABORT, "anna")
    host.confirm()
    late = host.begins(asked)
    host.confirm()
    assert host.answers[late] is ServerError.InvalidTxnStatus, "nobody has to answer any more"


def a_question_that_nobody_begins_counts_for_nothing(make: MakeHost) -> None:
    """And while a member lives no timeout ends the transaction before it was asked for."""
    host = make()
    txn_id = host.opened(1_000, check=_CHECK)
    for _ in range(_MOST_QUESTIONS // 10):
        host.tell(GroupJoined("group", room=1))
        asked = host.advance_to_question() or host.advance_to_question()
        assert [each.count for each in asked] == [1]
        host.advance(_LONG)
        host.tell(CheckReturned(txn_id))
        host.settle()
        assert host.ended == {}


def no_more_is_asked_at_once_than_there_is_room_for(make: MakeHost) -> None:
    """Check that what is answered, returned or decided makes room for the next question."""
    host = make()
    txns = [_opened(host) for _ in range(6)]
    host.tell(GroupJoined("group", room=2))
    host.advance(_LONG // 2)
    host.confirm()
    assert [asked.txn_id for asked in host.asked] == txns[:2]
    host.tell(CheckReturned(txns[0]))
    host.end(txns[1], TxnAction.COMMIT)
    host.settle()
    host.advance(0)
    host.confirm()
    assert len(host.asked) == 4


def nobody_else_is_asked_and_who_comes_later_is_asked_at_once(make: MakeHost) -> None:
    """Members of other groups and principals are none, and one that left is none any more."""
    host = make()
    _opened(host, "anna")
    host.tell(GroupJoined("group", "anna"))
    host.tell(GroupLeft("group", "anna"))
    for group, principal in (("group", None), ("group", "bert"), ("other", "anna")):
        host.tell(GroupJoined(group, principal))
    host.advance(_LONG // 2)
    host.confirm()
    assert host.asked == []
    host.tell(GroupJoined("group", "anna"))
    host.advance(0)
    host.confirm()
    assert [asked.count for asked in host.asked] == [1]


def an_answer_decides_once(make: MakeHost) -> None:
    """UNKNOWN decides nothing; answers of others, and those after the decision, change nothing."""
    for outcome, action in ((CheckOutcome.COMMIT, TxnAction.COMMIT), (CheckOutcome.ABORT, TxnAction.ABORT)):
        host = make()
        txn_id = _opened(host, "anna")
        host.tell(GroupJoined("group", "anna"))
        (asked,) = host.advance_to_question()
        host.begins(asked)
        host.tell(CheckAnswered(txn_id, "group", CheckOutcome.UNKNOWN, "anna"))
        host.tell(CheckAnswered(txn_id, "group", outcome, "bert"))
        host.tell(CheckAnswered(txn_id, "other", outcome, "anna"))
        host.settle()
        assert host.ended == {}
        assert host.told == []
        host.tell(CheckAnswered(txn_id, "group", outcome, "anna"))
        assert host.told == [], "the decision is not durable yet"
        host.settle()
        host.tell(CheckAnswered(txn_id, "group", CheckOutcome(1 - outcome), "anna"))
        host.settle()
        assert host.ended == {txn_id: action}


def questions_are_counted_across_crashes_and_come_to_an_end(make: MakeHost) -> None:
    """Then the policy decides, which may park it, or the timeout does."""
    host = make()
    txn_id = _opened(host)
    counts: list[int] = []
    while txn_id not in host.ended and host.parked != [txn_id]:
        host.tell(GroupJoined("group"))
        assert host.machine.deadline() is not None, f"after {len(counts)} questions it waits for nothing"
        for asked in host.advance_to_question():
            counts.append(asked.count)
            host.begins(asked)
            host.tell(CheckReturned(txn_id))
        host.settle()
        assert counts == list(range(1, len(counts) + 1))
        assert len(counts) <= _MOST_QUESTIONS
        ended, parked = host.ended, host.parked
        host = host.crashed()
        host.ended |= ended
        host.parked += parked
        host.asked.clear()


def what_is_prepared_waits_whatever_happens(make: MakeHost) -> None:
    """No timeout, no restart and no connection that ends decides it, and nothing is added to it."""
    host = make()
    txn_id = _prepared(host, "anna")
    for _ in range(2):
        host.advance(_LONG)
        host.end(txn_id, TxnAction.ABORT, superuser=True, cause=Cause.DISCONNECTED)
        token = host.add(txn_id, _OTHER, principal="anna")
        host.settle()
        assert host.answers[token] is ServerError.InvalidTxnStatus
        assert not host.machine.is_registered(txn_id, _TOPIC)
        assert host.ended == {}
        host = host.crashed()


def a_prepare_is_durable_before_its_answer_and_repeats_itself(make: MakeHost) -> None:
    """With another token it is refused."""
    host = make()
    txn_id = host.opened()
    token = host.prepare(txn_id, _TOKEN)
    assert token not in host.answers
    host.confirm()
    again, other = host.prepare(txn_id, _TOKEN), host.prepare(txn_id, b"another")
    host.confirm()
    assert [host.answers[each] for each in (token, again, other)] == [None, None, ServerError.InvalidTxnStatus]


def who_shows_the_token_ends_it_and_repeats_that(make: MakeHost) -> None:
    """Others, and other tokens, find nothing."""
    for action in TxnAction:
        host = make()
        txn_id = _prepared(host, "anna")
        stranger = host.end(txn_id, action, "bert"), host.end(txn_id, action, "bert", prepared_token=b"preparex")
        host.confirm()
        assert [host.answers[token] for token in stranger] == [ServerError.TransactionNotFound] * 2
        first = host.end(txn_id, action, "bert", prepared_token=_TOKEN)
        host.settle()
        assert host.answers[first] is None
        assert host.ended == {txn_id: action}
        host = host.crashed()
        late = host.end(txn_id, action, "bert", prepared_token=_TOKEN)
        host.settle()
        assert host.answers[late] is None


def what_is_prepared_is_asked_for_without_an_end(make: MakeHost) -> None:
    """More often than anything else may be."""
    host = make()
    txn_id = _opened(host)
    host.prepare(txn_id, _TOKEN)
    host.tell(GroupJoined("group"))
    host.confirm()
    for count in range(1, 40):
        (asked,) = host.advance_to_question()
        assert (asked.count, asked.prepared) == (count, True)
        host.begins(asked)
        host.tell(CheckReturned(txn_id))
    assert host.ended == {}


def a_nonce_opens_once(make: MakeHost) -> None:
    """Also after a crash, and for each owner by itself, until the transaction has ended."""
    host = make()
    first = host.opened(principal="anna", nonce=b"once")
    assert host.opened(principal="anna", nonce=b"once") == first
    assert host.opened(principal="bert", nonce=b"once") != first
    host = host.crashed()
    assert host.opened(principal="anna", nonce=b"once") == first
    host.end(first, TxnAction.ABORT, "anna")
    host.settle()
    assert host.opened(principal="anna", nonce=b"once") != first


def an_end_may_be_answered_by_its_decision(make: MakeHost) -> None:
    """Once that is durable, and before the participants hold it."""
    for action in TxnAction:
        host = make()
        txn_id = host.opened()
        host.add(txn_id, _TOPIC)
        tokens = [host.end(txn_id, action, at_decision=True) for _ in range(2)]
        assert not host.answers.keys() & set(tokens)
        host.confirm()
        assert [host.answers[token] for token in tokens] == [None] * 2
        assert host.ended == {}
        assert len(host.told) == 1
