"""Checks: a transaction that stays open is asked for, at a living member of its group, whoever that is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from check_client import ABORT, COMMIT, KNOWS_CHECKS, UNKNOWN, CheckClient, ids_of, txn_of
from credentials import TOKENS, Speaker, token
from manual_runtime import ManualRuntime
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.net.intake import OUTBOUND
from pulsar_txn.broker.txn.check_groups import ASKED_PER_TURN
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

TOPIC = FULL + "orders"


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.broker.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


def client(bench: Any) -> CheckClient:
    return CheckClient(bench.broker)


def info(bench: Any, txn: TxnId) -> Any:
    return bench.broker.coordinators.ready(txn.most).coordinator.transaction(txn.least)


async def started(benches: Callable[..., Any], **config: Any) -> tuple[Any, ManualRuntime]:
    bench, clock = benches(**config), ManualRuntime()
    bench.runtime = clock
    return await bench.start(), clock


async def sent(one: CheckClient, **fields: Any) -> TxnId:
    """An open transaction with a message."""
    if not one.connection.session.producers:
        await one.producer(TOPIC)
    txn = await one.begin(**fields)
    await one.add_topics(txn, TOPIC)
    await one.sent(b"half", txn=txn)
    return txn


@pytest.mark.seed_rows("A07", "A14")
async def test_a_transaction_that_stays_open_is_asked_for_by_the_timer_of_the_server_and_not_before(benches: Any) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    txn = await sent(one, check_data=b"order 17")
    await clock.advance(5.9)
    assert one.questions == []
    await clock.advance(0.2)
    (question,) = one.take()
    assert (txn_of(question), question.group, question.check_data) == (txn, "g", b"order 17")
    assert (question.check_count, question.max_checks, question.prepared) == (1, 15, False)
    await clock.advance(29)
    assert one.questions == []


@pytest.mark.seed_rows("A09", "A10", "A27")
@pytest.mark.parametrize(("outcome", "ends"), [(COMMIT, [b"half", b"plain"]), (ABORT, [b"plain"])])
async def test_the_answer_decides(benches: Any, outcome: int, ends: list[bytes]) -> None:
    bench, clock = await started(benches)
    one, reader = client(bench), client(bench)
    await one.join()
    txn = await sent(one)
    await reader.subscribe(TOPIC)
    await one.sent(b"plain")
    await clock.advance(7)
    assert one.asked == [txn]
    await reader.nothing()
    await one.says(txn, outcome)
    assert await reader.payloads(len(ends)) == ends
    await reader.nothing()
    await one.end(txn, TxnAction.COMMIT if outcome == COMMIT else TxnAction.ABORT)  # its own late end finds the same
    await clock.advance(100)
    assert one.asked == [txn], "what is decided is asked for no more"


@pytest.mark.seed_rows("A08")
async def test_a_hundred_interleaved_transactions_are_not_mixed_up(benches: Any) -> None:
    bench, clock = await started(benches)
    one, two = client(bench), client(bench)
    txns = {}
    for number in range(100):
        txns[await (one, two)[number % 2].begin(tc_id=number % 2, check_data=b"%d" % number)] = number
    for each in (one, two):
        for tc_id in range(2):
            await each.join(tc_id=tc_id)
    await clock.advance(7)
    questions = [*one.take(), *two.take()]
    assert {txn_of(each): int(each.check_data) for each in questions} == txns
    for question in questions:
        asked = one if txn_of(question) in one.connection.session.transactions.member.seats["g"].at else two
        await asked.says(txn_of(question), COMMIT if int(question.check_data) % 3 else ABORT)
    await one.settle()
    for txn, number in txns.items():
        assert status(bench, txn) is (TxnStatus.COMMITTED if number % 3 else TxnStatus.ABORTED)


@pytest.mark.seed_rows("A31", "A32")
@pytest.mark.parametrize("policy", ["park", "abort", "commit", "keep"])
async def test_one_that_never_knows_is_asked_as_often_as_the_limit_says_and_then_the_policy_decides(
    benches: Any, policy: str
) -> None:
    bench, clock = await started(benches, transaction_check_policy=policy)
    one = client(bench)
    await one.join()
    txn = await one.begin()
    for number in range(15):
        await clock.advance(7 if not number else 30.1)
        (question,) = one.take()
        assert question.check_count == number + 1
        await one.says(txn, UNKNOWN)
        assert status(bench, txn) is TxnStatus.OPEN
    await clock.advance(31)
    assert one.questions == []
    expected = {"abort": TxnStatus.ABORTED, "commit": TxnStatus.COMMITTED}
    assert status(bench, txn) is expected.get(policy, TxnStatus.OPEN)
    await clock.advance(2600)
    assert status(bench, txn) is {**expected, "keep": TxnStatus.ABORTED}.get(policy, TxnStatus.OPEN), "its timeout"
    assert one.questions == []
    action, cause = {"park": (None, 8), "abort": (1, 8), "commit": (0, 8), "keep": (1, 1)}[policy]
    assert one.decided == [(txn, action, cause)]


@pytest.mark.seed_rows("A28")
async def test_when_the_sender_is_gone_another_member_is_asked_and_never_one_of_another_group(benches: Any) -> None:
    bench, clock = await started(benches)
    sender, other, stranger = client(bench), client(bench), client(bench)
    await sender.join()
    await other.join()
    await stranger.join("another")
    txn = await sent(sender)
    sender.drop()
    await clock.advance(7)
    assert other.asked == [txn]
    assert stranger.questions == []
    await other.says(txn, COMMIT)
    assert status(bench, txn) is TxnStatus.COMMITTED


async def test_a_member_that_is_killed_when_it_was_asked_is_replaced_and_who_lives_is_asked_in_turn(benches: Any) -> None:
    bench, clock = await started(benches)
    members = [client(bench) for _ in range(3)]
    for each in members:
        await each.join()
    txn = await members[0].begin()
    await clock.advance(7)
    (asked,) = [each for each in members if each.questions]
    await asked.begins(txn)
    asked.drop()
    members.remove(asked)
    seen: list[CheckClient] = []
    for _ in range(4):
        await clock.advance(30.1)
        (next_one,) = [each for each in members if each.questions]
        assert [each.check_count for each in next_one.take()] == [len(seen) + 2]
        await next_one.says(txn, UNKNOWN if len(seen) < 3 else ABORT)
        seen.append(next_one)
    assert seen[:2] == seen[2:]
    assert seen[0] is not seen[1]
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_nobody_lives_then_nothing_is_counted_and_who_joins_is_asked_at_once(benches: Any) -> None:
    bench, clock = await started(benches, transaction_check_max=2)
    one = client(bench)
    txn = await one.begin()
    await clock.advance(100)
    assert status(bench, txn) is TxnStatus.OPEN
    late = client(bench)
    await late.join()
    await clock.advance(0)
    (question,) = late.take()
    assert question.check_count == 1
    await late.says(txn, COMMIT)
    assert status(bench, txn) is TxnStatus.COMMITTED


async def test_a_member_that_left_is_asked_no_more(benches: Any) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    txn = await one.begin()
    await one.join()
    await one.join()  # a repeat
    await clock.advance(7)
    assert one.asked == [txn]
    await one.begins(txn)
    await one.leave()
    await one.leave()
    one.say(txn, COMMIT)
    await clock.advance(100)
    assert len(one.questions) == 1
    assert status(bench, txn) is TxnStatus.OPEN, "who is no member any more decides nothing"
    assert bench.broker.coordinators.check_groups.memberships == 0


# ---- restarts


@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_the_count_outlives_the_broker_and_membership_does_not(benches: Any, how: str) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    txn = await sent(one, check_data=b"d")
    await clock.advance(7)
    assert one.take()[0].check_count == 1
    await one.begins(txn)
    await getattr(bench, how)()
    await clock.advance(100)
    again = client(bench)
    await again.join()
    await clock.advance(0.1)
    (question,) = again.take()
    assert (txn_of(question), question.check_count, question.check_data) == (txn, 2, b"d")
    await again.says(txn, COMMIT)
    await bench.crash()
    last = client(bench)
    await last.subscribe(TOPIC)
    assert (await last.receive()).payloads == [b"half"]
    await last.join()
    await clock.advance(100)
    assert last.questions == []


async def test_a_coordinator_that_is_opened_again_in_the_same_process_knows_who_lives(benches: Any) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    txn = await one.begin()
    bench.broker.coordinators.ready(0).fail(OSError("gone"))
    await clock.advance(1)
    await one.until(lambda: bench.broker.coordinators.ready(0))
    await clock.advance(7)
    assert one.asked == [txn]


# ---- slow members, and many questions


async def test_a_member_that_does_not_read_is_passed_over_and_asked_once_it_reads_again(benches: Any) -> None:
    bench, clock = await started(benches)
    slow, quick = client(bench), client(bench)
    await slow.join()
    await quick.join()
    slow.connection.pause_writing()
    txns = [await quick.begin() for _ in range(4)]
    await clock.advance(7)
    assert quick.asked == txns
    assert slow.questions == []
    quick.drop()
    await clock.advance(31)
    assert slow.questions == [], "nothing is counted while nobody takes a question"
    slow.connection.resume_writing()
    await clock.advance(0)
    assert slow.asked == txns
    assert {each.check_count for each in slow.questions} == {1}, "nobody has begun to answer before"


async def test_a_question_that_finds_nobody_is_kept_for_the_first_member_that_takes_it(benches: Any) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    txn = await one.begin()
    groups = bench.broker.coordinators.check_groups
    ask = groups.ask

    def stops_reading(tc_id: int, question: Any) -> None:
        one.connection.pause_writing()
        ask(tc_id, question)

    groups.ask = stops_reading
    await clock.advance(7)
    assert one.questions == []
    one.connection.resume_writing()
    await one.settle()
    assert one.asked == [txn]


async def test_ten_thousand_questions_at_once_leave_the_loop_to_others_between_them(benches: Any) -> None:
    bench = await benches(max_active_transactions_per_coordinator=20_000, transaction_check_after_in_seconds=3600).start()
    one, other = client(bench), client(bench)
    count = 10_000
    await one.request("tcClientConnectRequest", tc_id=0)
    asked = [
        one.start("newTxn", tc_id=0, txn_ttl_millis=3_000_000, check_group="g", check_after_millis=0) for _ in range(count)
    ]
    for each in asked:
        await one.answer(each)
    groups = bench.broker.coordinators.check_groups
    work, most = groups._work, 0

    def counted() -> None:
        nonlocal most
        before = groups.asked[0]
        work()
        most = max(most, groups.asked[0] - before)

    groups._work = counted
    members = [client(bench) for _ in range(10)]
    for each in members:
        await each.join()
    turns_of_others, longest = 0, 0.0
    while sum(len(each.questions) for each in members) < count:
        before = time.process_time()
        await other.request("partitionMetadata", topic=TOPIC)
        longest = max(longest, time.process_time() - before)
        turns_of_others += 1
    assert len({txn_of(each) for member in members for each in member.take()}) == count
    assert turns_of_others > 10  # how many depends on the speed of the machine; how long each is, the lines below say
    assert 0 < most <= ASKED_PER_TURN
    print(f"{turns_of_others} other requests meanwhile, the longest took {longest * 1000:.1f} ms of CPU")


# ---- who may what


@pytest.mark.parametrize("crashes", [False, True], ids=["live", "recovered"])
async def test_a_member_of_another_role_is_never_asked_and_never_heard(benches: Any, crashes: bool) -> None:
    bench, clock = await started(benches, **TOKENS, super_user_roles="root")
    ann = GuardedClient(bench.broker, token("ann"), feature_flags=KNOWS_CHECKS)
    txn = await ann.begin()
    if crashes:
        ann.drop()
        await bench.crash()
    others = [GuardedClient(bench.broker, token(role), feature_flags=KNOWS_CHECKS) for role in ("bob", "root")]
    for each in others:
        await each.join()
    await clock.advance(100)
    for each in others:
        assert each.questions == []
        each.say(txn, COMMIT)
        await each.settle()
    assert status(bench, txn) is TxnStatus.OPEN
    second = GuardedClient(bench.broker, token("ann"), feature_flags=KNOWS_CHECKS)
    await second.join()
    await clock.advance(0)
    assert second.asked == [txn]


async def test_who_was_not_asked_or_has_not_begun_decides_nothing(benches: Any) -> None:
    bench, clock = await started(benches)
    asked, member, group = client(bench), client(bench), client(bench)
    txn = await asked.begin()
    await asked.join()
    await clock.advance(7)
    await member.join()
    await group.join("other")
    assert asked.asked == [txn]
    member.say(txn, COMMIT)
    group.say(txn, COMMIT, "other")
    group.say(txn, COMMIT)
    asked.say(txn, COMMIT, "other")
    asked.say(TxnId(0, 4711), COMMIT)
    asked.say(TxnId(1, txn.least), COMMIT)
    RawClient(bench.broker).raw(command("txnCheckResponse", **ids_of(txn), group="g", outcome=COMMIT))
    await asked.settle()
    assert status(bench, txn) is TxnStatus.OPEN
    for wrong in (member.begins(txn), group.begins(txn, "other"), asked.begins(txn, "other"), asked.begins(TxnId(0, 4711))):
        with pytest.raises(Refused, match="was not asked"):
            await wrong
    asked.say(txn, COMMIT)  # without a beginning
    await asked.settle()
    assert status(bench, txn) is TxnStatus.OPEN
    assert bench.broker.coordinators.check_groups.answered == {"refused": 8}
    await asked.begins(txn)
    with pytest.raises(Refused, match="has begun"):
        await asked.begins(txn)
    assert info(bench, txn).check_count == 1
    asked.say(txn, ABORT)
    asked.say(txn, COMMIT)  # a second answer to one question
    await asked.settle()
    assert status(bench, txn) is TxnStatus.ABORTED


async def test_clients_that_do_not_announce_it_see_nothing_of_it(benches: Any) -> None:
    bench, clock = await started(benches)
    plain = RawClient(bench.broker)
    await plain.new_txn()
    with pytest.raises(Refused, match="announce supports_checks") as refused:
        await plain.request("txnGroup", tc_id=0, group="g")
    assert refused.value.code == ServerError.NotAllowedError
    await clock.advance(20)
    assert {name for name, _ in plain.events} <= {"connected"}


async def test_a_plug_in_without_checks_is_not_offered_and_refuses_all_of_it(benches: Any) -> None:
    bench = await benches(transaction_metadata_store_provider_class_name="check_client:plain_coordinator").start()
    one = client(bench)
    await one.until(lambda: one.events)
    assert not one.events[0][1].feature_flags.supports_checks
    txn = await one.begin(None)
    for request in (
        one.request("txnGroup", tc_id=0, group="g"),
        one.begin("g"),
        one.begin(None, nonce=b"n"),
        one.begin(None, abort_on_disconnect=True),
        one.prepare(txn),
        one.end_with(txn, answer_at_decision=True),
        one.end_with(txn, prepared_token=b"t"),
    ):
        with pytest.raises(Refused, match="ProviderClassName=fencing") as refused:
            await request
        assert refused.value.code == ServerError.NotAllowedError
    await one.end(txn)


# ---- hostile frames


async def test_names_that_say_nothing_or_too_much_are_refused(bench: Any) -> None:
    one = client(bench)
    for group in ("", "  ", "x" * 257):
        with pytest.raises(Refused):
            await one.join(group)
        with pytest.raises(Refused):
            await one.begin(group)
    for fields in ({"check_data": b"x" * (1 << 16 | 1)}, {"nonce": b"n" * 65}):
        with pytest.raises(Refused):
            await one.begin(**fields)
    with pytest.raises(Refused) as refused:
        await one.request("txnGroup", tc_id=2, group="g")
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
    txn = await one.begin(check_data=b"x" * (1 << 16), nonce=b"n" * 64)
    await one.end(txn)


async def test_membership_is_bounded_by_connection_and_in_all(benches: Any) -> None:
    bench = await benches(max_check_groups_per_connection=2, max_check_group_members=3).start()
    one, two = client(bench), client(bench)
    await one.join("a")
    await one.join("b")
    with pytest.raises(Refused, match="maxCheckGroupsPerConnection"):
        await one.join("c")
    await one.join("a")
    await two.join("a")
    with pytest.raises(Refused, match="maxCheckGroupMembers"):
        await two.join("b")
    one.drop()
    await two.join("b")
    assert bench.broker.limits.reached == {"maxCheckGroupsPerConnection": 1, "maxCheckGroupMembers": 1}


@pytest.mark.parametrize(
    "frame",
    [
        command("txnCheckResponse", group="g", outcome=COMMIT).replace(b"\x1a\x01g", b"\x1a\x02g"),
        command("txnCheck", group="g"),
        command("txnCheckDecided", group="g"),
        command("prepareTxnResponse", request_id=1),
    ],
)
async def test_frames_that_no_client_sends_close_its_connection_and_no_other(bench: Any, frame: bytes) -> None:
    one, other = client(bench), client(bench)
    await one.join()
    await other.join()
    one.raw(frame)
    assert one.pipe.closed
    one.connection.connection_lost(None)
    await other.end(await other.begin())


async def test_an_answer_for_a_transaction_that_is_over_meanwhile_changes_nothing(benches: Any) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    txn = await one.begin()
    await clock.advance(7)
    assert one.asked == [txn]
    await one.abort(txn)
    one.say(txn, COMMIT)
    await one.settle()
    assert status(bench, txn) is TxnStatus.ABORTED
    assert not one.connection._intake.reasons & OUTBOUND


# ---- every record


STEPS = ["opened", "registered", "sent", "asked", "unknown", "prepared", "asked again", "decided"]


@pytest.mark.parametrize("until", STEPS)
async def test_a_crash_after_each_record_ends_as_the_group_says(benches: Any, until: str) -> None:
    bench, clock = await started(benches)
    one = client(bench)
    await one.join()
    await one.producer(TOPIC)
    txn = TxnId(0, 0)
    for step in STEPS[: STEPS.index(until) + 1]:
        match step:
            case "opened":
                txn = await one.begin(check_data=b"d", nonce=b"n")
            case "registered":
                await one.add_topics(txn, TOPIC)
            case "sent":
                await one.sent(b"half", txn=txn)
            case "asked" | "asked again":
                await clock.advance(31)
                assert txn_of(one.take()[-1]) == txn
                await one.begins(txn)
            case "unknown":
                one.say(txn, UNKNOWN)
            case "prepared":
                await one.prepare(txn)
            case "decided":
                one.say(txn, COMMIT)
    await one.settle()
    before = len(bench.broker.coordinators.ready(0).coordinator.transactions())
    await bench.crash()
    await bench.broker.coordinators.wait_ready()
    machine = bench.broker.coordinators.ready(0).coordinator
    machine.check_invariants()
    assert len(machine.transactions()) == before
    other = client(bench)
    await other.join()
    await clock.advance(31)
    if until != "decided":
        assert other.asked[-1] == txn
        assert other.questions[-1].check_data == b"d"
        assert other.questions[-1].prepared is (STEPS.index(until) >= STEPS.index("prepared"))
        await other.says(txn, COMMIT)
    assert status(bench, txn) is TxnStatus.COMMITTED
    await other.producer(TOPIC)
    await other.sent(b"plain")
    await other.subscribe(TOPIC)
    expected = [b"half", b"plain"] if STEPS.index(until) >= STEPS.index("sent") else [b"plain"]
    assert await other.payloads(len(expected)) == expected
    await other.nothing()


@pytest.mark.parametrize("seed", range(4))
async def test_frames_with_wrong_bytes_harm_nobody_else(benches: Any, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    bench, rnd = await benches(**TOKENS).start(), random.Random(seed)
    other = GuardedClient(bench.broker, token("ann"), feature_flags=KNOWS_CHECKS)
    await other.join()
    txn = await other.begin()
    good = [
        command("txnGroup", request_id=7, tc_id=0, group="g"),
        command("txnGroup", request_id=8, tc_id=1 << 63, group="g", leave=True),
        command("txnGroup", request_id=6, tc_id=0, group="g", concurrency=1 << 31, check_timeout_millis=1 << 63),
        command("txnCheckResponse", **ids_of(txn), group="g", outcome=COMMIT),
        command("txnCheckBegun", request_id=12, **ids_of(txn), group="g"),
        command("prepareTxn", request_id=9, **ids_of(TxnId(1, 9)), token=b"t"),
        command("newTxn", request_id=10, tc_id=1, txn_ttl_millis=9, check_group="h", check_after_millis=1 << 62, nonce=b"n"),
        command("endTxn", request_id=11, **ids_of(TxnId(1, 9)), txn_action=0, prepared_token=b"t", answer_at_decision=True),
    ]
    hostile = GuardedClient(bench.broker, token("bob"), feature_flags=KNOWS_CHECKS)
    for _ in range(300):
        frame = bytearray(rnd.choice(good))
        for _ in range(rnd.randrange(3)):
            frame[rnd.randrange(8, len(frame))] = rnd.randrange(256)
        hostile.raw(bytes(frame))
        if hostile.pipe.closed:
            hostile.connection.connection_lost(None)
            hostile = GuardedClient(bench.broker, token("bob"), feature_flags=KNOWS_CHECKS)
    await other.settle()
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert status(bench, txn) is TxnStatus.OPEN, "nobody of them was asked"
    await other.end(txn)
    bench.broker.coordinators.ready(1).coordinator.check_invariants()
