"""Check groups: who is asked for the outcome of a transaction that stays open, how often, and what decides in the end."""

from __future__ import annotations

from typing import Any

import pytest
from check_host import GROUP, LONG, CheckHost
from tc_host import TcHost

from pulsar_txn.ledger.machine import NOTHING, AskProducer, Outcome, TellParticipant
from pulsar_txn.tc import (
    Check,
    CheckBegun,
    CheckOutcome,
    CheckPolicy,
    CheckReturned,
    EndTxn,
    GroupJoined,
    NewTxn,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import ABSENCE_MS, CHECK_AFTER_MS, CHECK_INTERVAL_MS, MAX_CHECKS
from pulsar_txn.tc.extras import Extras
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TOPIC = Participant("t")

# ---------------------------------------------------------------------------------------------------- questions


@pytest.mark.seed_rows("A07", "A14")
def test_a_silent_transaction_is_asked_for_once_per_interval_by_the_time_of_the_coordinator() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    assert host.tc.deadline() == host.now_ms + CHECK_AFTER_MS
    assert host.passes(CHECK_AFTER_MS - 1) == []
    assert host.passes(1) == [AskProducer(txn_id, "orders", None, b"order 7", 1, MAX_CHECKS, prepared=False)]
    assert host.tc.deadline() == host.now_ms + CHECK_INTERVAL_MS
    assert host.passes(CHECK_INTERVAL_MS - 1) == []
    assert [each.count for each in host.passes(1)] == [2]


def test_a_question_counts_when_a_member_begins_to_answer_and_that_is_durable_before_it_goes_on() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    (question,) = host.questions(CHECK_AFTER_MS)
    assert question.count == 1
    assert host.tc.transactions()[0].check_count == 0
    host.ask(CheckBegun("begun", txn_id, "orders"))
    assert host.tc.transactions()[0].check_count == 1
    assert "begun" not in host.answers, "a member goes on when its question is counted"
    host.confirm()
    assert host.answers["begun"] is None


@pytest.mark.seed_rows("A31")
def test_questions_that_nobody_begins_to_answer_are_never_counted_and_end_nothing() -> None:
    host = CheckHost(max_checks=2)
    txn_id = host.opened()
    host.join()
    for _ in range(100):
        assert [each.count for each in host.questions(CHECK_INTERVAL_MS)] == [1]
        assert host.questions(100 * CHECK_INTERVAL_MS) == [], "one is out"
        host.ask(CheckReturned(txn_id))
    assert (host.tc.status(txn_id), host.tc.transactions()[0].check_count) == (TxnStatus.OPEN, 0)


def test_a_group_is_asked_only_as_much_at_once_as_its_members_take_and_what_is_due_first_goes_first() -> None:
    host = CheckHost()
    txns = [host.opened() for _ in range(10)]
    host.join(room=3)
    asked = host.questions(CHECK_AFTER_MS)
    assert [each.txn_id for each in asked] == txns[:3]
    assert host.questions(10 * CHECK_INTERVAL_MS) == []
    assert host.tc.deadline() == 1_000 + LONG, "it wakes up for nothing"
    host.begins(asked[0])
    host.answers_with(CheckOutcome.UNKNOWN, txns[0])
    host.answers_with(CheckOutcome.COMMIT, txns[1])
    assert host.tc.status(txns[1]) is TxnStatus.OPEN, "nobody has begun to answer it"
    assert [each.txn_id for each in host.questions(0)] == txns[3:5], "what was out comes after what was not"
    host.ask(EndTxn("client", txns[2], COMMIT))
    assert [each.txn_id for each in host.questions(0)] == txns[5:6]
    host.join(room=5)
    assert [each.txn_id for each in host.questions(0)] == txns[6:8]
    host.leave()
    host.join(room=6)
    assert [each.txn_id for each in host.questions(0)] == txns[8:9]
    host.tc.check_invariants()


def test_who_begins_what_is_decided_or_is_not_of_its_group_is_told_so() -> None:
    host = CheckHost()
    txn_id, plain = host.opened(principal="anna"), host.new(LONG, principal="anna")
    host.join(principal="anna")
    host.questions(CHECK_AFTER_MS)
    for wrong in (
        CheckBegun(None, txn_id, "orders"),
        CheckBegun(None, txn_id, "invoices", "anna"),
        CheckBegun(None, plain, "orders", "anna"),
        CheckBegun(None, TxnId(4, txn_id.least), "orders", "anna"),
    ):
        with pytest.raises(Refusal, match="not asked for any more") as caught:
            host.ask(wrong)
        assert caught.value.code is ServerError.InvalidTxnStatus
    host.end(txn_id, ABORT, principal="anna")
    with pytest.raises(Refusal):
        host.ask(CheckBegun(None, txn_id, "orders", "anna"))


@pytest.mark.seed_rows("A14")
def test_a_transaction_may_say_itself_when_it_is_asked_for_first() -> None:
    host = CheckHost(check_after_ms=50)
    mine, usual = host.opened(Check("orders", after_ms=7)), host.opened()
    host.join()
    assert [each.txn_id for each in host.passes(7)] == [mine]
    assert [each.txn_id for each in host.passes(43)] == [usual]


@pytest.mark.seed_rows("A28")
def test_only_members_of_the_group_and_the_principal_are_asked() -> None:
    host = CheckHost()
    host.opened(principal="anna")
    host.join("orders")
    host.join("orders", "bert")
    host.join("invoices", "anna")
    assert host.passes(LONG // 2) == []
    host.join("orders", "anna")
    (asked,) = host.passes(0)
    assert (asked.group, asked.principal) == ("orders", "anna")


@pytest.mark.seed_rows("A28")
def test_while_nobody_lives_nothing_is_asked_or_counted_and_who_joins_is_asked_at_once() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.leave()
    assert host.passes(100 * CHECK_INTERVAL_MS) == []
    assert host.tc.deadline() == 1_000 + LONG
    assert host.tc.transactions()[0].check_count == 0
    host.join()
    assert host.tc.deadline() is not None
    assert [(each.txn_id, each.count) for each in host.passes(0)] == [(txn_id, 1)]


def test_a_group_that_joins_or_leaves_twice_changes_nothing_more() -> None:
    host = CheckHost()
    host.opened()
    for _ in range(2):
        host.join()
    assert len(host.passes(CHECK_AFTER_MS)) == 1
    for _ in range(2):
        host.leave()
    assert host.passes(CHECK_INTERVAL_MS) == []
    host.leave("unheard of")
    assert host.ask(GroupJoined("unheard of")) is NOTHING
    assert host.tc.deadline() == 1_000 + LONG


@pytest.mark.seed_rows("A31")
def test_the_count_of_questions_survives_restarts_and_snapshots() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    for count in range(2, 8):
        if count % 2:
            host.take_snapshot()
        host.crash()
        assert host.tc.transactions()[0].check_count == count - 1
        host.join()
        assert host.passes(CHECK_INTERVAL_MS - 1) == [], "the time since the last question counts across a restart"
        assert [(each.txn_id, each.count, each.data) for each in host.passes(1)] == [(txn_id, count, b"order 7")]


def test_a_plain_transaction_is_never_asked_for() -> None:
    host = CheckHost()
    host.add(host.new(LONG), TOPIC)
    host.join()
    assert host.passes(LONG // 2) == []


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.seed_rows("A09", "A27")
@pytest.mark.parametrize("action", TxnAction)
def test_an_answer_ends_the_transaction_as_its_client_would_have(action: TxnAction) -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.answers_with(CheckOutcome(action), txn_id)
    (told,) = [effect for effect in host.released if isinstance(effect, TellParticipant)]
    assert (told.txn_id, told.action) == (txn_id, action)
    assert host.cause() == Cause.CHECKED
    host.done(txn_id)
    host.confirm()
    assert Outcome(txn_id, action) in host.released
    assert host.tc.deadline() is None


@pytest.mark.seed_rows("A09")
def test_who_does_not_know_yet_is_asked_again() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    assert host.answers_with(CheckOutcome.UNKNOWN, txn_id) is NOTHING
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    assert [each.count for each in host.passes(CHECK_INTERVAL_MS)] == [2]


def test_an_answer_that_nobody_asked_for_or_of_somebody_else_changes_nothing() -> None:
    host = CheckHost()
    txn_id = host.opened(principal="anna")
    host.join(principal="anna")
    assert host.answers_with(CheckOutcome.COMMIT, txn_id, principal="anna") is NOTHING, "it was not asked"
    host.passes(CHECK_AFTER_MS)
    for group, principal in (("orders", None), ("orders", "bert"), ("invoices", "anna")):
        assert host.answers_with(CheckOutcome.COMMIT, txn_id, group, principal) is NOTHING
    assert host.answers_with(CheckOutcome.COMMIT, TxnId(4, txn_id.least), principal="anna") is NOTHING
    assert host.answers_with(CheckOutcome.COMMIT, TxnId(3, 77), principal="anna") is NOTHING
    plain = host.new(principal="anna")
    assert host.answers_with(CheckOutcome.COMMIT, plain, principal="anna") is NOTHING
    assert host.tc.status(txn_id) is TxnStatus.OPEN


@pytest.mark.parametrize("first", TxnAction)
def test_an_answer_after_the_decision_changes_nothing(first: TxnAction) -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.end(txn_id, first)
    for _ in range(2):
        assert host.answers_with(CheckOutcome(1 - first), txn_id) is NOTHING
        host.done(txn_id)
        host.confirm()
    assert host.ended == {txn_id: first}
    assert host.passes(LONG // 2) == []


def test_the_client_may_end_it_between_two_questions_and_a_second_answer_is_late() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.answers_with(CheckOutcome.COMMIT, txn_id)
    host.end(txn_id, COMMIT, "client")
    host.done(txn_id)
    host.confirm()
    assert host.answers["client"] is COMMIT
    with pytest.raises(Refusal) as caught:
        host.end(txn_id, ABORT)
    assert caught.value.code is ServerError.InvalidTxnStatus


# ---------------------------------------------------------------------------------------------------- the policy


def ask_out(host: CheckHost) -> list[AskProducer]:
    """Every question there is."""
    asked = host.passes(CHECK_AFTER_MS)
    while more := host.passes(CHECK_INTERVAL_MS - 1) + host.passes(1):
        asked += more
    return asked


@pytest.mark.seed_rows("A31", "A32")
def test_after_fifteen_questions_without_an_answer_the_transaction_is_parked() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    assert [each.count for each in ask_out(host)] == list(range(1, 16))
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    assert host.tc.transactions()[0].parked_ms == host.now_ms
    assert host.told() == [(txn_id, None, Cause.UNANSWERED)]


@pytest.mark.seed_rows("A32")
@pytest.mark.parametrize(
    ("policy", "status"),
    [("abort", TxnStatus.ABORTING), ("commit", TxnStatus.COMMITTING), (CheckPolicy.KEEP, TxnStatus.OPEN)],
)
def test_the_policy_decides_when_questions_are_used_up(policy: Any, status: TxnStatus) -> None:
    host = CheckHost(check_policy=policy, max_checks=2)
    txn_id = host.opened()
    host.join()
    assert len(ask_out(host)) == 2
    assert host.tc.status(txn_id) is status
    host.tc.check_invariants()
    if status is TxnStatus.OPEN:
        assert host.tc.deadline() == 1_000 + LONG, "its timeout decides"
        host.passes(LONG)
        assert host.tc.status(txn_id) is TxnStatus.ABORTING
        assert host.cause() == Cause.TIMEOUT


def test_the_policy_decides_also_when_the_last_member_has_gone() -> None:
    host = CheckHost(max_checks=1, check_policy="abort")
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.leave()
    host.crash()
    host.passes(CHECK_INTERVAL_MS - 1)
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.passes(1)
    assert host.tc.status(txn_id) is TxnStatus.ABORTING


def test_the_deadline_is_that_of_a_question_or_of_the_policy_whichever_comes_first() -> None:
    host = CheckHost(max_checks=1)
    host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    lapses_ms = host.now_ms + CHECK_INTERVAL_MS
    host.opened(Check("orders", after_ms=10**6))
    assert host.tc.deadline() == lapses_ms
    host.opened(Check("orders", after_ms=5))
    assert host.tc.deadline() == host.now_ms + 5


def test_without_any_question_the_policy_decides_at_the_age_of_the_first() -> None:
    host = CheckHost(max_checks=0, check_policy="commit")
    txn_id = host.opened()
    assert host.passes(CHECK_AFTER_MS) == []
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING


# ---------------------------------------------------------------------------------------------------- timeouts


@pytest.mark.seed_rows("A27")
def test_without_a_member_the_timeout_of_the_transaction_ends_it_and_its_group_is_told() -> None:
    host = CheckHost()
    txn_id = host.new(CHECK_AFTER_MS + 5, check=GROUP)
    host.add(txn_id, TOPIC)
    assert host.passes(CHECK_AFTER_MS + 4) == []
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.passes(1)
    assert host.tc.status(txn_id) is TxnStatus.ABORTING
    assert host.cause() == Cause.TIMEOUT
    assert host.told() == [(txn_id, ABORT, Cause.TIMEOUT)]
    host.join()
    assert host.passes(CHECK_INTERVAL_MS) == []


@pytest.mark.parametrize("policy", ["park", "abort", "commit"])
def test_while_a_member_lives_no_timeout_ends_a_transaction_before_its_last_question(policy: str) -> None:
    host = CheckHost(max_checks=3, check_policy=policy)
    txn_id = host.new(CHECK_AFTER_MS + 5, check=GROUP)
    host.add(txn_id, TOPIC)
    host.join(room=1)
    (question,) = host.questions(CHECK_AFTER_MS)
    host.questions(LONG)
    assert host.tc.status(txn_id) is TxnStatus.OPEN, "the question waits for somebody to begin"
    for count in (1, 2, 3):
        assert question.count == count
        host.begins(question)
        host.questions(LONG)
        assert host.tc.status(txn_id) is TxnStatus.OPEN, "somebody is at work on it"
        host.answers_with(CheckOutcome.UNKNOWN, txn_id)
        host.tc.check_invariants()
        if count < 3:
            (question,) = host.questions(CHECK_INTERVAL_MS)
    host.questions(0)
    (info,) = host.tc.transactions()
    assert (info.status, info.parked_ms is None) == {
        "park": (TxnStatus.OPEN, False),
        "abort": (TxnStatus.ABORTING, True),
        "commit": (TxnStatus.COMMITTING, True),
    }[policy]
    assert len(host.told()) == 1


def test_the_last_question_may_still_be_answered_however_long_that_takes() -> None:
    host = CheckHost(max_checks=1, check_policy="abort")
    txn_id = host.opened()
    host.join()
    (question,) = host.questions(CHECK_AFTER_MS)
    host.begins(question)
    host.questions(100 * CHECK_INTERVAL_MS)
    host.answers_with(CheckOutcome.COMMIT, txn_id)
    assert host.cause() == Cause.CHECKED


def test_the_time_of_a_transaction_begins_again_when_the_last_member_of_its_group_has_gone() -> None:
    host = CheckHost()
    timeout_ms = 2 * ABSENCE_MS
    txn_id = host.new(timeout_ms, check=GROUP)
    host.join()
    host.passes(10 * timeout_ms)
    host.leave()
    host.passes(timeout_ms - 1)
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.passes(1)
    assert host.tc.status(txn_id) is TxnStatus.ABORTED


def test_a_short_timeout_does_not_end_what_a_group_left_for_a_moment_and_no_restart_does() -> None:
    host = CheckHost()
    txn_id = host.new(10, check=GROUP)
    host.add(txn_id, TOPIC)
    host.join()
    host.passes(50)
    host.leave()
    for _ in range(2):
        host.passes(ABSENCE_MS - 1)
        assert host.tc.status(txn_id) is TxnStatus.OPEN
        host.crash()
    host.passes(ABSENCE_MS)
    assert host.cause() == Cause.TIMEOUT


def test_what_is_kept_for_its_timeout_ends_by_it_while_members_live() -> None:
    host = CheckHost(max_checks=1, check_policy="keep")
    txn_id = host.new(CHECK_AFTER_MS * 2, check=GROUP)
    host.add(txn_id, TOPIC)
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.passes(CHECK_AFTER_MS)
    assert host.cause() == Cause.TIMEOUT
    assert host.tc.status(txn_id) is TxnStatus.ABORTING


@pytest.mark.parametrize("cause", [Cause.OPERATOR, Cause.DISCONNECTED])
def test_a_group_is_told_what_others_decide_and_not_what_its_client_or_itself_does(cause: Cause) -> None:
    host = CheckHost()
    by_others, by_client, by_group = host.opened(), host.opened(), host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.end(by_client, ABORT)
    host.answers_with(CheckOutcome.ABORT, by_group)
    assert host.told() == []
    host.end(by_others, ABORT, superuser=True, cause=cause)
    assert host.told() == [(by_others, ABORT, cause)]


@pytest.mark.parametrize("name", ["check_after_ms", "check_interval_ms", "max_checks"])
def test_rules_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name.removeprefix("check_")):
        TcHost(**{name: -1})
    with pytest.raises(ValueError, match="CheckPolicy"):
        TcHost(check_policy="perhaps")


# ---------------------------------------------------------------------------------------------------- limits, many


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (Check("  "), "not all blank"),
        (Check("g" * 257), "1 to 256 characters"),
        (Check("g", b"x" * 65_537), "at most 65536 bytes"),
        (Check("g", after_ms=-1), "in the past"),
    ],
)
def test_a_check_that_makes_no_sense_opens_nothing(check: Check, says: str) -> None:
    host = TcHost()
    with pytest.raises(Refusal, match=says) as caught:
        host.ask(NewTxn("token", LONG, check=check))
    assert caught.value.code is ServerError.NotAllowedError
    assert host.tc.active_count == 0
    assert host.new(LONG, check=Check("g" * 256, b"x" * 65_536)).least == 0


def test_check_data_counts_for_the_limit_of_bytes_until_the_end() -> None:
    host = CheckHost(max_state_bytes=70_000)
    full = host.new(LONG, check=Check("g", b"x" * 65_536))
    with pytest.raises(Refusal) as caught:
        host.new(LONG, check=Check("g", b"x" * 8_000))
    assert caught.value.code is ServerError.TooManyRequests
    host.take_snapshot()
    host.crash()
    with pytest.raises(Refusal):
        host.new(LONG, check=Check("g", b"x" * 8_000))
    host.end(full, ABORT)
    with pytest.raises(Refusal):
        host.ask(NewTxn(None, LONG, check=Check("g", b"x" * 65_500), participants=(Participant("t" * 4_000),)))
    host.new(LONG, check=Check("g", b"x" * 65_536))
    host.tc.check_invariants()


def test_many_questions_come_a_bounded_number_at_a_time() -> None:
    host = CheckHost(expire_limit=4)
    for number in range(10):
        host.opened(Check(f"g{number % 3}"))
    for name in ("g0", "g1", "g2"):
        host.join(name)
    host.now_ms += CHECK_AFTER_MS
    counts = []
    while (deadline := host.tc.deadline()) is not None and deadline <= host.now_ms:
        step = host.tc.expire(host.now_ms)
        assert step.records == ()
        counts.append(len(step.effects))
        host.carry_out(step)
        host.tc.check_invariants()
    assert counts == [4, 4, 2]


def test_questions_of_one_step_carry_about_a_megabyte_of_data() -> None:
    host = CheckHost()
    for _ in range(40):
        host.opened(Check("orders", b"x" * 60_000))
    host.join()
    host.now_ms += CHECK_AFTER_MS
    step = host.tc.expire(host.now_ms)
    assert len(step.effects) == 17
    host.carry_out(step)
    assert len(host.passes(0)) == 23


def test_a_hundred_thousand_transactions_of_a_living_group_are_put_off_and_not_looked_at_again_and_again() -> None:
    host = TcHost(expire_limit=256)
    tc = host.tc
    for least in range(20_000):
        tc.apply("log", (7, least), records.new_transaction(least, 1_000, 1_000, extras=Extras(group="g")))
    tc.decide(GroupJoined("g", room=1), 1_000)
    steps = 0
    while (deadline := tc.deadline()) is not None and deadline <= 10_000:
        tc.expire(10_000)
        steps += 1
    assert steps <= 20_000 / 256 + 2
    assert tc.active_count == 20_000
    tc.check_invariants()


def test_one_end_of_a_group_of_transactions_ends_their_questions() -> None:
    host = CheckHost()
    one, two = host.opened(), host.opened()
    host.join()
    host.ask(EndTxn("token", one, COMMIT, group=(two,)))
    assert host.passes(LONG // 2) == []
    host.tc.check_invariants()


def test_a_record_of_questions_passes_over_what_was_decided_before_it() -> None:
    host = CheckHost()
    one, two, plain = host.opened(), host.opened(), host.new(LONG)
    host.end(one, COMMIT)
    host.append(records.checked(one.least, (two.least, plain.least, 99), host.now_ms, plain.least))
    assert [info.check_count for info in host.tc.transactions()] == [0, 1, 0]
    host.tc.check_invariants()


def test_what_is_shown_of_a_transaction_names_its_group_and_its_questions() -> None:
    host = CheckHost()
    host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    (info,) = host.tc.transactions()
    assert (info.check_group, info.check_count, info.prepared) == ("orders", 1, False)
    assert info.modified_ms == 1_000, "a question is no change of status"
