"""Questions count when they are begun, wait at the coordinator, and nothing ends what a living group was not asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from check_client import ABORT, COMMIT, KNOWS_CHECKS, UNKNOWN, CheckClient, OldCheckClient, txn_of
from credentials import TOKENS, Speaker, token
from manual_runtime import ManualRuntime
from raw_client import FULL

from pulsar_txn.broker.txn.check_groups import MOST_NOTICES, MOST_ROOM, PATIENCE_MS
from pulsar_txn.ledger.machine import TellGroup
from pulsar_txn.tc.causes import Cause
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

TOPIC = FULL + "orders"
QUICK = {"transaction_check_after_in_seconds": 1, "transaction_check_interval_in_seconds": 1}


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


async def started(benches: Callable[..., Any], **config: Any) -> tuple[Any, ManualRuntime]:
    bench, clock = benches(**config), ManualRuntime()
    bench.runtime = clock
    return await bench.start(), clock


def member_of(bench: Any, room: int | None = 10_000, kind: type[CheckClient] = CheckClient) -> CheckClient:
    found = kind(bench.broker)
    found.room = room
    return found


def machine(bench: Any) -> Any:
    return bench.broker.coordinators.ready(0).coordinator


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return machine(bench).status(txn)  # type: ignore[no-any-return]


def counts(bench: Any) -> list[int]:
    return [each.check_count for each in machine(bench).transactions()]


async def opened(one: CheckClient, count: int, **fields: Any) -> list[TxnId]:
    return [await one.begin(**fields) for _ in range(count)]


# ---- the window of a member


async def test_a_member_has_only_as_many_questions_as_it_works_on_and_the_others_wait_at_the_coordinator(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one = member_of(bench, 3)
    await one.join()
    txns = await opened(one, 8)
    await clock.advance(20)
    assert one.asked == txns[:3]
    assert counts(bench) == [0] * 8, "nobody has begun"
    await one.begins(txns[0])
    await clock.advance(20)
    assert len(one.take()) == 3
    await one.says(txns[1], COMMIT)
    await clock.advance(0.1)
    assert [txn_of(each) for each in one.take()] == txns[3:4]
    late = member_of(bench, 2)
    await late.join()
    await clock.advance(0.1)
    assert late.asked == txns[4:6]
    assert counts(bench) == [1, 0, 0, 0, 0, 0, 0]


async def test_the_window_of_a_group_is_one_at_all_coordinators_of_a_server(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one = member_of(bench, 2)
    txns = []
    for tc_id in range(2):
        await one.join(tc_id=tc_id)
        txns += await opened(one, 5, tc_id=tc_id)
    seen = set()
    await clock.advance(2)
    while len(seen) < 10:
        asked = [txn_of(each) for each in one.take()]
        assert 1 <= len(asked) <= 2, "as many as it works on"
        for txn in asked:
            seen.add(txn)
            await one.says(txn, COMMIT)
        await clock.advance(0.1)
    assert seen == set(txns)
    assert not bench.broker.coordinators.check_groups._kept


async def test_nothing_ends_a_transaction_that_a_slow_group_was_not_asked_for(benches: Any) -> None:
    """1,000 open, a check of half a second, asked each second: 375 of 500 were rolled back, and the check ran for 288."""
    bench, clock = await started(benches, **QUICK, transaction_check_max=3, transaction_check_policy="abort")
    one = member_of(bench, 8)
    await one.join()
    await opened(one, 300, timeout_ms=5_000)
    ran = 0
    while machine(bench).active_count:
        await clock.advance(0.5)
        for question in one.take():
            await one.says(txn_of(question), COMMIT)
            ran += 1
        assert ran <= 300
    assert ran == 300
    assert bench.broker.coordinators.ready(0).ended == {TxnAction.COMMIT: 300, TxnAction.ABORT: 0}
    assert one.decided == []


async def test_checks_that_hang_take_their_places_and_no_others_and_nothing_is_lost(benches: Any) -> None:
    """200 open, of which 8 checks hang: 52 of 100 were rolled back."""
    bench, clock = await started(benches, **QUICK, transaction_check_max=3, transaction_check_policy="abort")
    one = member_of(bench, 8)
    await one.join(check_timeout_millis=5_000)
    txns = await opened(one, 60, timeout_ms=5_000)
    hanging = set(txns[:8])
    until = 0.0
    while machine(bench).active_count > 8:
        assert until < 60, "the server takes back what a member has had for longer than it said"
        await clock.advance(1)
        until += 1
        for question in one.take():
            txn = txn_of(question)
            await one.begins(txn)
            if txn not in hanging:
                one.say(txn, COMMIT)
        await one.settle()
    assert until >= 35, "and not before"
    assert bench.broker.coordinators.ready(0).ended == {TxnAction.COMMIT: 52, TxnAction.ABORT: 0}
    assert {each.txn_id for each in machine(bench).transactions()} == hanging


async def test_a_check_that_kills_its_process_counts_and_ends_in_the_parking_lot(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK, transaction_check_max=4)
    txn = (await opened(member_of(bench), 1))[0]
    for count in range(1, 5):
        victim = member_of(bench)
        await victim.join()
        await clock.advance(1.5)
        assert [each.check_count for each in victim.take()] == [count]
        await victim.begins(txn)
        victim.drop()
        await bench.crash()
    await clock.advance(5)
    assert machine(bench).transaction(txn.least).parked_ms is not None


async def test_what_a_member_does_not_begin_is_taken_back_and_given_to_another_one_uncounted(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    stuck, other = member_of(bench, 1), member_of(bench, 1)
    await stuck.join()
    txns = await opened(other, 2)
    await clock.advance(2)
    assert stuck.asked == txns[:1]
    await other.join()
    await clock.advance(0.1)
    assert other.asked == txns[1:]
    await other.says(txns[1], COMMIT)
    await clock.advance(PATIENCE_MS / 1000 + 6)
    assert txns[0] in other.asked[1:] or stuck.asked.count(txns[0]) > 1
    assert counts(bench) == [0]
    if txns[0] in other.asked[1:]:
        stuck.say(txns[0], ABORT)
        await stuck.settle()
        assert status(bench, txns[0]) is TxnStatus.OPEN, "it was taken back"


async def test_a_question_that_comes_for_what_is_decided_meanwhile_is_not_begun_and_its_place_is_free(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one = member_of(bench, 1)
    await one.join()
    first, second = await opened(one, 2)
    await clock.advance(2)
    assert [txn_of(each) for each in one.take()] == [first]
    await one.end(first)
    with pytest.raises(Exception, match="not asked for any more"):
        await one.begins(first)
    await clock.advance(0.1)
    assert [txn_of(each) for each in one.take()] == [second]
    await one.says(second, COMMIT)


async def test_what_waits_for_a_place_of_a_hanging_member_is_forgotten_when_it_is_decided(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one, groups = member_of(bench, 1), bench.broker.coordinators.check_groups
    for tc_id in range(2):
        await one.join(tc_id=tc_id)
    for _ in range(20):
        for txn in [await one.begin(tc_id=tc_id) for tc_id in range(2)]:
            await clock.advance(1.5)
            await one.end(txn)
    await one.settle()
    assert len(groups._kept) <= 1
    assert sum(len(group.questions) for group in groups._groups.values()) <= 1


async def test_a_coordinator_that_is_opened_again_takes_the_answer_of_who_had_begun(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one = member_of(bench, 4)
    await one.join()
    txn = (await opened(one, 1))[0]
    await clock.advance(2)
    await one.begins(txn)
    bench.broker.coordinators.ready(0).fail(OSError("gone"))
    await clock.advance(1)
    await one.until(lambda: bench.broker.coordinators.ready(0))
    await clock.advance(5)
    assert len(one.take()) == 1, "it is at it"
    one.say(txn, COMMIT)
    await one.settle()
    assert status(bench, txn) is TxnStatus.COMMITTED


async def test_what_a_hostile_member_says_of_itself_is_bounded(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK, max_active_transactions_per_coordinator=10_000)
    one = member_of(bench, (1 << 32) - 1)
    await one.join(check_timeout_millis=(1 << 64) - 1)
    other = member_of(bench, 0)
    await other.join("another")
    for _ in range(MOST_ROOM + 20):
        await one.begin()
    mine = await one.begin("another")
    await clock.advance(3)
    assert len(one.take()) == MOST_ROOM
    assert other.asked == [mine], "who takes nothing takes one"


# ---- members of earlier releases


async def test_a_question_to_an_old_member_counts_when_it_has_answered(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK, transaction_check_max=2)
    one = member_of(bench, None, OldCheckClient)
    await one.join()
    txns = await opened(one, 10)
    await clock.advance(50)
    assert one.asked == txns[:8], "as many as such a client works on by default"
    assert not any(each.say_begun for each in one.questions)
    assert counts(bench) == [0] * 10
    one.say(txns[0], UNKNOWN)
    one.say(txns[1], COMMIT)
    await one.settle()
    assert counts(bench) == [1] + [0] * 8
    assert status(bench, txns[1]) is TxnStatus.COMMITTED


async def test_a_question_to_an_old_member_counts_when_its_connection_ends_and_not_when_it_leaves(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK)
    one = member_of(bench, None, OldCheckClient)
    await one.join()
    txns = await opened(one, 3)
    await clock.advance(2)
    assert one.asked == txns
    await one.leave()
    await one.settle()
    assert counts(bench) == [0, 0, 0]
    await one.join()
    await clock.advance(0.1)
    one.drop()
    await clock.advance(0.1)
    assert counts(bench) == [1, 1, 1]


async def test_an_old_member_whose_checks_hang_loses_nothing(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK, transaction_check_max=2, transaction_check_policy="abort")
    old = member_of(bench, None, OldCheckClient)
    await old.join()
    txns = await opened(old, 12, timeout_ms=5_000)
    await clock.advance(600)
    assert set(old.asked) == set(txns), "what it does not answer makes room after a while"
    assert counts(bench) == [0] * 12
    new = member_of(bench)
    await new.join()
    for _ in range(100):
        await clock.advance(3)
        for question in new.take():
            await new.says(txn_of(question), COMMIT)
    assert bench.broker.coordinators.ready(0).ended == {TxnAction.COMMIT: 12, TxnAction.ABORT: 0}


# ---- what a group hears


async def test_what_the_timeout_aborts_is_told_to_the_next_member_and_to_the_log(benches: Any, caplog: Any) -> None:
    bench, clock = await started(benches)
    txn = (await opened(member_of(bench), 1, timeout_ms=2_000, check_data=b"order 7"))[0]
    with caplog.at_level(logging.WARNING):
        await clock.advance(3)
    assert status(bench, txn) is TxnStatus.ABORTED
    assert f"transaction {txn} of check group 'g' (role None) was aborted by timeout, after 0 questions" in caplog.text
    old, one = member_of(bench, None, OldCheckClient), member_of(bench)
    await old.join()
    await one.join()
    assert old.decided == []
    assert one.decided == [(txn, int(TxnAction.ABORT), Cause.TIMEOUT)]
    (body,) = [body for name, body in one.events if name == "txnCheckDecided"]
    assert (body.group, body.check_data, body.check_count) == ("g", b"order 7", 0)
    assert bench.broker.coordinators.ready(0).decided == {("aborted", "timeout"): 1}


async def test_one_member_hears_of_each_decision_and_its_own_are_not_told(benches: Any) -> None:
    bench, clock = await started(benches, **QUICK, transaction_check_max=1, transaction_check_policy="abort")
    members = [member_of(bench) for _ in range(3)]
    for each in members:
        await each.join()
    by_client, by_group, unknown = await opened(members[0], 3)
    await members[0].end(by_client)
    await clock.advance(1.5)
    for each in members:
        for question in each.take():
            await each.says(txn_of(question), COMMIT if txn_of(question) == by_group else UNKNOWN)
    await clock.advance(5)
    assert [told for each in members for told in each.decided] == [(unknown, int(TxnAction.ABORT), Cause.UNANSWERED)]


async def test_decisions_that_nobody_hears_are_bounded_and_so_are_their_lines(benches: Any, caplog: Any) -> None:
    bench, _ = await started(benches)
    groups, one = bench.broker.coordinators.check_groups, member_of(bench)
    txns = await opened(one, 30)
    host = bench.broker.coordinators.ready(0)
    with caplog.at_level(logging.WARNING):
        for txn in txns:
            await one.request("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=1)
        assert caplog.records == [], "its client has aborted these"
        for number in range(MOST_NOTICES + 5):
            host._decided(TellGroup(TxnId(0, number), "g", None, b"", TxnAction.ABORT, 1, 0))
        await one.settle()
    assert groups._notice_count == MOST_NOTICES
    assert len(caplog.records) <= 20
    await one.join()
    assert len(one.decided) + groups._notice_count == MOST_NOTICES


async def test_a_decision_is_told_to_members_of_the_role_only(benches: Any) -> None:
    bench, clock = await started(benches, **TOKENS)
    ann, bob = (GuardedClient(bench.broker, token(role), feature_flags=KNOWS_CHECKS) for role in ("ann", "bob"))
    txn = await ann.begin(timeout_ms=2_000)
    await bob.join()
    await clock.advance(70)
    assert status(bench, txn) is TxnStatus.ABORTED
    assert bob.decided == []
    await ann.join()
    assert [told[0] for told in ann.decided] == [txn]


async def test_what_waits_for_too_long_is_a_line_in_the_log(benches: Any, caplog: Any) -> None:
    bench, clock = await started(benches, **QUICK, transaction_check_max=1, transaction_wait_warning_in_seconds=300)
    one = member_of(bench)
    await one.join()
    txn, prepared = await opened(one, 2)
    await one.prepare(prepared)
    await clock.advance(1.5)
    for question in one.take():
        await one.says(txn_of(question), UNKNOWN)
    with caplog.at_level(logging.WARNING, logger="pulsar_txn.broker.txn.coordinators"):
        await clock.advance(250)
        assert [line for line in caplog.messages if "readers of its topics wait" in line] == []
        await clock.advance(150)
        lines = [line for line in caplog.messages if "readers of its topics wait" in line]
    assert any("1 transactions are prepared" in line and "transactions list --prepared" in line for line in lines)
    assert any("1 transactions are parked" in line and "transactions list --parked" in line for line in lines)
    assert len(lines) == 2
    assert machine(bench).transaction(txn.least).parked_ms is not None
