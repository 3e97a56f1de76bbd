"""A member of a check group is asked at every coordinator, and a slow answer stops neither the connection nor other answers."""

import asyncio
import logging
import threading
import time

import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime, fake_client

from pulsar_txn.client import sync
from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    CoordinatorUnavailable,
    FeatureUnsupported,
    InvalidConfiguration,
)
from pulsar_txn.client.half_messages import CheckDecision, Decision, LocalOutcome
from pulsar_txn.client.txn import check_groups
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
ID = TxnId(0, 7)


@pytest.fixture
def broker():
    found = FakeBroker()
    found.partitions[ASSIGN_TOPIC] = 3
    found.knows_checks = True
    return found


def says_commit(_question):
    return COMMIT


def joined_at(broker):
    return sorted((body.tc_id, body.group) for body in broker.all("txnGroup") if not body.leave)


# --- joining ------------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("A28")
async def test_a_member_joins_at_every_coordinator_before_the_call_returns(broker):
    async with fake_client(broker) as client, await client.join_check_group("orders", says_commit) as group:
        assert joined_at(broker) == [(0, "orders"), (1, "orders"), (2, "orders")]
        assert (group.name, group.coordinators) == ("orders", 3)
    assert broker.all("connect")[0].feature_flags.supports_checks


async def test_leaving_says_so_to_every_coordinator_and_forgets_who_was_asked(broker):
    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", says_commit)
        await group.close()
        await group.close()
        assert sorted(body.tc_id for body in broker.all("txnGroup") if body.leave) == [0, 1, 2]
        assert group.coordinators == 0
        broker.ask("orders", ID)
        await (await client.begin_transaction()).abort()
        assert broker.check_answers == []
        await (await client.join_check_group("orders", says_commit)).close()


async def test_a_coordinator_that_does_not_answer_the_goodbye_holds_nobody_up(broker, monkeypatch):
    monkeypatch.setattr(check_groups, "LEAVE_SECONDS", 0.01)
    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", says_commit)
        broker.on["txnGroup"] = lambda _pipe, _body: SILENCE
        async with asyncio.timeout(2):
            await group.close()


async def test_a_member_joins_again_after_a_reconnect_and_is_asked_over_the_new_connection(broker):
    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", says_commit)
        broker.pipe.cut()
        await broker.until(lambda: len(joined_at(broker)) == 6 and group.coordinators == 3)
        broker.ask("orders", ID)
        await broker.until(lambda: broker.check_answers)
    assert broker.check_answers == [(ID, 0)]


async def test_a_member_joins_at_coordinators_that_were_added(broker, monkeypatch):
    monkeypatch.setattr(check_groups, "GROWTH_SECONDS", 0.01)
    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", says_commit)
        broker.partitions[ASSIGN_TOPIC] = 5
        await broker.until(lambda: group.coordinators == 5)
    assert joined_at(broker) == [(index, "orders") for index in range(5)]


async def test_a_member_whose_coordinator_moves_is_one_at_its_next_broker(broker):
    refusals = [2]

    def group(_pipe, body):
        if body.tc_id == 1 and refusals[0]:
            refusals[0] -= 1
            return command("error", request_id=body.request_id, error=20, message="not mine any more")
        return command("success", request_id=body.request_id)

    broker.on["txnGroup"] = group
    async with fake_client(broker) as client:
        member = await client.join_check_group("orders", says_commit)
        await broker.until(lambda: member.coordinators == 3)
    assert [body.tc_id for body in broker.all("tcClientConnectRequest")].count(1) >= 2


async def test_a_refusal_that_mends_itself_is_tried_again_on_the_same_connection(broker):
    busy = [True]

    def group(_pipe, body):
        if busy.pop() if busy else False:
            return command("error", request_id=body.request_id, error=6, message="starting")
        return command("success", request_id=body.request_id)

    broker.on["txnGroup"] = group
    async with fake_client(broker) as client:
        member = await client.join_check_group("orders", says_commit)
        assert member.coordinators == 3
    assert len(broker.pipes) == 1


async def test_a_coordinator_that_is_away_is_joined_later_and_holds_nobody_up(broker, monkeypatch):
    monkeypatch.setattr(check_groups, "PATIENCE_SECONDS", 0.01)

    def connect(_pipe, body):
        refusal = {"error": 20, "message": "moving"} if body.tc_id == 1 else {}
        return command("tcClientConnectResponse", request_id=body.request_id, **refusal)

    broker.on["tcClientConnectRequest"] = connect
    async with fake_client(broker, operation_timeout=0.3) as client:
        async with asyncio.timeout(2):
            member = await client.join_check_group("orders", says_commit)
        assert member.coordinators == 2
        del broker.on["tcClientConnectRequest"]
        await broker.until(lambda: member.coordinators == 3)


async def test_a_broker_without_checks_is_said_with_a_hint_and_nothing_is_sent_to_it(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        with pytest.raises(FeatureUnsupported, match=r"back-check.*pulsar-txn coordinator") as caught:
            await client.join_check_group("orders", says_commit)
        assert caught.value.fatal
        assert broker.all("txnGroup") == []
        broker.knows_checks = True
        broker.pipe.cut()
        await client.join_check_group("orders", says_commit)


async def test_who_is_not_allowed_into_a_group_is_told_so(broker, caplog):
    broker.on["txnGroup"] = lambda _pipe, body: command("error", request_id=body.request_id, error=4, message="no")
    async with fake_client(broker) as client:
        with caplog.at_level(logging.WARNING), pytest.raises(AuthorizationError):
            await client.join_check_group("orders", says_commit)
        del broker.on["txnGroup"]
        await client.join_check_group("orders", says_commit)  # the first attempt left nothing
    assert "does not take this client into group 'orders'" in caplog.text


async def test_joining_ends_with_the_client(broker):
    broker.on["txnGroup"] = lambda _pipe, _body: SILENCE
    client = fake_client(broker, operation_timeout=5)
    joining = asyncio.create_task(client.join_check_group("orders", says_commit))
    await broker.until(lambda: broker.all("txnGroup"))
    await client.close()
    with pytest.raises(AlreadyClosed):
        await joining


async def test_a_second_membership_in_one_group_is_a_mistake(broker):
    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit)
        with pytest.raises(InvalidConfiguration, match="member of group 'orders' already"):
            await client.join_check_group("orders", says_commit)
        await client.join_check_group("payments", says_commit)


@pytest.mark.parametrize(
    ("group", "check", "more"),
    [
        ("", says_commit, {}),
        (b"g", says_commit, {}),
        ("g", None, {}),
        ("g", lambda: COMMIT, {}),
        ("g", says_commit, {"concurrency": 0}),
    ],
)
async def test_what_cannot_be_a_membership_is_refused_before_anything_is_connected(broker, group, check, more):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration):
            await client.join_check_group(group, check, **more)
    assert broker.pipes == []


# --- being asked --------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("A08", "A09")
@pytest.mark.parametrize(("outcome", "said"), [(COMMIT, 0), (ROLLBACK, 1), (UNKNOWN, 2)])
async def test_the_question_reaches_the_program_and_its_answer_the_coordinator(broker, outcome, said):
    asked = []

    async def check(question):
        asked.append(question)
        return outcome

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check)
        broker.ask("orders", TxnId(2, 9), b"order 17", check_count=3, max_checks=15, prepared=True)
        await broker.until(lambda: broker.check_answers)
    (question,) = asked
    assert (question.txn_id, question.group, question.data) == ((2, 9), "orders", b"order 17")
    assert (question.count, question.max_checks, question.prepared, question.message) == (3, 15, True, None)
    assert broker.check_answers == [(TxnId(2, 9), said)]


async def test_a_question_for_a_group_that_nobody_has_joined_is_not_answered(broker):
    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit)
        broker.ask("payments", ID)
        broker.ask("orders", TxnId(0, 8))
        await broker.until(lambda: broker.check_answers)
    assert broker.check_answers == [(TxnId(0, 8), 0)]


async def test_the_answer_goes_to_the_coordinator_that_asked_and_not_to_another_broker():
    first, second = FakeBroker("one:6650"), FakeBroker("two:6650")
    for each in (first, second):
        each.knows_checks = True
        each.partitions[ASSIGN_TOPIC] = 2

    def lookup(_pipe, body):
        where = second if body.topic.endswith("-partition-1") else first
        url = f"pulsar://{where.address}"
        return command("lookupTopicResponse", request_id=body.request_id, brokerServiceUrl=url, response=1, authoritative=True)

    first.on["lookupTopic"] = second.on["lookupTopic"] = lookup
    async with fake_client(first, second) as client:
        group = await client.join_check_group("orders", says_commit)
        await first.until(lambda: group.coordinators == 2)
        second.ask("orders", TxnId(1, 5))
        await second.until(lambda: second.check_answers)
        assert (first.check_answers, joined_at(first), joined_at(second)) == ([], [(0, "orders")], [(1, "orders")])


async def test_an_exception_and_a_wrong_answer_mean_unknown_and_are_logged(broker, caplog):
    async def check(question):
        if question.txn_id.least == 1:
            raise OSError("the database is away")
        return "commit"

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check)
        for least in (1, 2):
            broker.ask("orders", TxnId(0, least))
        await broker.until(lambda: len(broker.check_answers) == 2)
    assert {said for _, said in broker.check_answers} == {2}
    assert "the database is away" in caplog.text
    assert "'commit'" in caplog.text


async def test_a_slow_check_stops_neither_others_nor_the_connection(broker):
    gate = asyncio.Event()

    async def check(question):
        if question.txn_id.least == 1:
            await gate.wait()
        return COMMIT

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check)
        for least in range(1, 20):
            broker.ask("orders", TxnId(0, least))
        await broker.until(lambda: len(broker.check_answers) == 18)
        await (await client.begin_transaction()).commit()
        gate.set()
        await broker.until(lambda: len(broker.check_answers) == 19)


async def test_so_many_are_asked_at_once_and_the_others_wait_their_turn(broker):
    gate, running, most = asyncio.Event(), [0], [0]

    async def check(_question):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await gate.wait()
        running[0] -= 1
        return COMMIT

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check, concurrency=3)
        for least in range(50):
            broker.ask("orders", TxnId(0, least))
        await broker.until(lambda: running[0] == 3)
        gate.set()
        await broker.until(lambda: len(broker.check_answers) == 50)
    assert most == [3]
    assert sorted(txn_id.least for txn_id, _ in broker.check_answers) == list(range(50))


async def test_a_repeated_question_is_answered_once_while_its_check_runs(broker):
    gate, calls = asyncio.Event(), []

    async def check(question):
        calls.append(question.count)
        await gate.wait()
        return UNKNOWN

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check, concurrency=1)
        broker.ask("orders", ID, check_count=1)
        await broker.until(lambda: calls)
        broker.ask("orders", ID, check_count=2)
        for count in (1, 2):  # waits, and the newer one takes its place
            broker.ask("orders", TxnId(0, 8), check_count=count)
        await (await client.begin_transaction()).abort()
        gate.set()
        await broker.until(lambda: len(broker.check_answers) == 2)
        await (await client.begin_transaction()).abort()
    assert calls == [1, 2]
    assert broker.check_answers == [(ID, 2), (TxnId(0, 8), 2)]


async def test_questions_beyond_the_bound_are_left_out_with_one_warning(broker, monkeypatch, caplog):
    monkeypatch.setattr(check_groups, "MAX_WAITING", 5)
    gate, asked = asyncio.Event(), asyncio.Event()

    async def check(_question):
        asked.set()
        await gate.wait()
        return COMMIT

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check, concurrency=1)
        broker.ask("orders", ID)
        await asked.wait()
        for least in range(10, 20):
            broker.ask("orders", TxnId(0, least))
        await (await client.begin_transaction()).abort()
        gate.set()
        await broker.until(lambda: len(broker.check_answers) == 6)
    assert len([each for each in caplog.records if "too slow" in each.message]) == 1


async def test_an_answer_after_the_connection_broke_goes_over_the_next_one(broker):
    gate, asked = asyncio.Event(), asyncio.Event()

    async def check(_question):
        asked.set()
        await gate.wait()
        return COMMIT

    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", check)
        broker.ask("orders", ID)
        await asked.wait()
        broker.pipe.cut()
        await broker.until(lambda: group.coordinators == 0 or len(joined_at(broker)) == 6)
        await broker.until(lambda: group.coordinators == 3)
        gate.set()
        await broker.until(lambda: broker.check_answers)
    assert broker.check_answers == [(ID, 0)]


async def test_an_answer_with_no_way_to_the_coordinator_is_left_for_its_next_question(broker, caplog):
    caplog.set_level(logging.INFO)
    gate, asked = asyncio.Event(), asyncio.Event()

    async def check(_question):
        asked.set()
        await gate.wait()
        return COMMIT

    async with fake_client(broker) as client:
        await client.join_check_group("orders", check)
        broker.ask("orders", ID)
        await asked.wait()
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not broker.pipe.is_open)
        await asyncio.sleep(0)
        gate.set()
        await broker.until(lambda: "asks again" in caplog.text)
    assert broker.check_answers == []


async def test_leaving_cancels_the_checks_under_way(broker):
    asked, cancelled = asyncio.Event(), []

    async def check(question):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(question.txn_id)

    async with fake_client(broker) as client:
        group = await client.join_check_group("orders", check)
        broker.ask("orders", ID)
        await asked.wait()
        await group.close()
        await (await client.begin_transaction()).abort()
    assert cancelled == [ID]
    assert broker.check_answers == []


async def test_a_check_is_outside_of_the_ambient_transaction_of_who_joined(broker):
    asked = []

    async with fake_client(broker) as client:
        producer = await client.create_producer("t")

        async def check(_question):
            asked.append(await producer.send(b"x"))
            return COMMIT

        async with client.transaction(ambient=True):
            await client.join_check_group("orders", check)
            broker.ask("orders", ID)
            await broker.until(lambda: asked)
    assert broker.all("newTxn") == []


# --- the blocking client --------------------------------------------------------------------------------------------


def blocking(broker):
    runtime = FakeRuntime({broker.address: broker})
    return sync.Client(f"pulsar://{broker.address}", runtime=runtime, operation_timeout=5)


def ask_from_its_loop(client, broker, *arguments, **fields):
    client._loop.call(lambda: broker.ask(*arguments, **fields))


def wait_until(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_blocking_check_runs_beside_the_loop_and_beside_others(broker):
    gate, threads = threading.Event(), []

    def check(question):
        threads.append(threading.current_thread().name)
        if question.txn_id.least == 1:
            gate.wait()
        return COMMIT if question.data == b"yes" else ROLLBACK

    with blocking(broker) as client, client.join_check_group("orders", check) as group:
        assert (group.name, group.coordinators) == ("orders", 3)
        ask_from_its_loop(client, broker, "orders", TxnId(0, 1), b"yes")
        for least in (2, 3):
            ask_from_its_loop(client, broker, "orders", TxnId(0, least))
            wait_until(lambda least=least: len(broker.check_answers) == least - 1)
        client.begin_transaction().commit()
        gate.set()
        wait_until(lambda: len(broker.check_answers) == 3)
    assert broker.check_answers == [(TxnId(0, 2), 1), (TxnId(0, 3), 1), (TxnId(0, 1), 0)]
    assert all(name.startswith("pulsar-txn-check-") for name in threads)
    assert len(set(threads)) == 2  # a thread that is done takes the next question
    wait_until(lambda: not [each for each in threading.enumerate() if each.name in threads])


def test_what_a_blocking_check_raises_means_unknown(broker, caplog):
    def check(_question):
        raise SystemExit(3)

    with blocking(broker) as client, client.join_check_group("orders", check):
        ask_from_its_loop(client, broker, "orders", ID)
        wait_until(lambda: broker.check_answers)
    assert broker.check_answers == [(ID, 2)]
    assert "SystemExit" in caplog.text


def test_a_blocking_client_takes_no_coroutine_function_as_check(broker):
    async def check(_question):
        return COMMIT

    with blocking(broker) as client, pytest.raises(InvalidConfiguration, match="plain `def`"):
        client.join_check_group("orders", check)


def test_a_check_that_hangs_does_not_hold_up_the_close_of_its_client(broker):
    gate = threading.Event()
    began = threading.Event()

    def check(_question):
        began.set()
        gate.wait(30)
        return COMMIT

    client = blocking(broker)
    client.join_check_group("orders", check)
    ask_from_its_loop(client, broker, "orders", ID)
    assert began.wait(5)
    client.close()
    gate.set()
    assert broker.check_answers == []


@pytest.mark.parametrize("code", [20])
async def test_a_coordinator_that_takes_nobody_is_an_error_in_time(broker, code):
    broker.on["txnGroup"] = lambda _pipe, body: command("error", request_id=body.request_id, error=code, message="no")
    async with fake_client(broker, operation_timeout=0.2) as client:
        with pytest.raises((CoordinatorUnavailable, TimeoutError)):
            await client.join_check_group("orders", says_commit)


# --- questions that are begun (docs/adr/0043) -------------------------------------------------------------------------


def begun(broker):
    return [TxnId(body.txnid_most_bits, body.txnid_least_bits) for body in broker.all("txnCheckBegun")]


def answers_begun(broker, counted=()):
    """What TXN_CHECK_BEGUN is answered: an error, but for these."""

    def answer(_pipe, body):
        if body.txnid_least_bits in counted:
            return command("success", request_id=body.request_id)
        return command("error", request_id=body.request_id, error=int(ServerError.InvalidTxnStatus), message="decided")

    broker.on["txnCheckBegun"] = answer


async def test_a_member_says_how_much_it_takes_at_once_and_for_how_long(broker):
    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit, concurrency=3, check_timeout=2.5)
        await client.join_check_group("payments", says_commit)
    said = {(body.group, body.concurrency, body.check_timeout_millis) for body in broker.all("txnGroup") if not body.leave}
    assert said == {("orders", 3, 2_500), ("payments", 8, 60_000)}


async def test_the_program_is_asked_after_the_coordinator_has_counted_the_question(broker):
    held, asked = [], []

    def begins(_pipe, body):
        held.append(body)
        return SILENCE

    def check(question):
        asked.append(question.txn_id)
        return COMMIT

    broker.on["txnCheckBegun"] = begins
    async with fake_client(broker) as client:
        await client.join_check_group("orders", check)
        broker.ask("orders", ID, say_begun=True)
        await broker.until(lambda: held)
        await (await client.begin_transaction()).abort()
        assert (asked, broker.check_answers) == ([], [])
        broker.pipe.send(command("success", request_id=held[0].request_id))
        await broker.until(lambda: broker.check_answers)
    assert asked == [ID]


async def test_a_question_that_nobody_has_to_answer_any_more_is_not_asked(broker):
    asked = []

    def check(question):
        asked.append(question.txn_id.least)
        return COMMIT

    answers_begun(broker, counted=(2,))
    async with fake_client(broker) as client:
        await client.join_check_group("orders", check, concurrency=1)
        for least in (1, 2):
            broker.ask("orders", TxnId(0, least), say_begun=True)
        await broker.until(lambda: broker.check_answers)
    assert asked == [2]
    assert broker.check_answers == [(TxnId(0, 2), 0)]


async def test_a_coordinator_of_before_is_told_no_beginning(broker):
    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit)
        broker.ask("orders", ID)
        await broker.until(lambda: broker.check_answers)
    assert broker.all("txnCheckBegun") == []


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_check_that_hangs_gives_its_place_to_others_and_means_unknown(broker, caplog, blocking):
    release = threading.Event()
    asked = []

    async def hangs(question):
        asked.append(question.txn_id.least)
        if question.txn_id.least < 3:
            await asyncio.Event().wait()
        return COMMIT

    def blocks(question):
        asked.append(question.txn_id.least)
        if question.txn_id.least < 3:
            release.wait(60)
        return COMMIT

    answers_begun(broker, counted=range(100))
    async with fake_client(broker) as client:
        check = sync.check_groups.threaded(blocks) if blocking else hangs
        await client.join_check_group("orders", check, concurrency=2, check_timeout=0.5)
        for least in range(1, 20):
            broker.ask("orders", TxnId(0, least), say_begun=True)
        await broker.until(lambda: len(broker.check_answers) == 19)
        said = {txn_id.least: outcome for txn_id, outcome in broker.check_answers}
        assert said == {1: 2, 2: 2} | dict.fromkeys(range(3, 20), 0)
        assert sorted(asked) == list(range(1, 20))
        assert "has not answered for transaction (0,1) after 0.5 s" in caplog.text
        broker.ask("orders", TxnId(0, 1), say_begun=True)
        await broker.until(lambda: len(broker.check_answers) == 20)
        assert broker.check_answers[-1] == (TxnId(0, 1), 2)
        assert asked.count(1) == (1 if blocking else 2), "a thread cannot be ended, and is not joined by another one"
        release.set()
        if blocking:
            late = client._transactions.groups._groups[0]._questions._late
            await broker.until(lambda: len(late) == 2)
            broker.ask("orders", TxnId(0, 1), say_begun=True)
            await broker.until(lambda: len(broker.check_answers) == 21)
            assert broker.check_answers[-1] == (TxnId(0, 1), 0), "what it said in the end"
            assert asked.count(1) == 1


async def test_calls_that_hang_are_bounded_and_then_no_more_are_made(broker, monkeypatch, caplog):
    monkeypatch.setattr(check_groups, "MAX_HANGING", 3)
    release, asked = threading.Event(), []

    def blocks(question):
        asked.append(question.txn_id.least)
        release.wait(60)
        return COMMIT

    answers_begun(broker, counted=range(100))
    async with fake_client(broker) as client:
        await client.join_check_group("orders", sync.check_groups.threaded(blocks), concurrency=2, check_timeout=0.02)
        for least in range(20):
            broker.ask("orders", TxnId(0, least), say_begun=True)
        await broker.until(lambda: "no further question is answered until one ends" in caplog.text)
        await asyncio.sleep(0.1)
        assert 3 <= len(asked) <= 5
        release.set()
        await broker.until(lambda: len(broker.check_answers) == 20)


async def test_a_repeat_of_what_is_at_work_is_begun_after_it(broker):
    gate, calls = asyncio.Event(), []

    async def check(question):
        calls.append(question.count)
        await gate.wait()
        return UNKNOWN

    answers_begun(broker, counted=range(100))
    async with fake_client(broker) as client:
        await client.join_check_group("orders", check, concurrency=1)
        broker.ask("orders", ID, check_count=1, say_begun=True)
        await broker.until(lambda: calls)
        broker.ask("orders", ID, check_count=2, say_begun=True)
        await (await client.begin_transaction()).abort()
        assert begun(broker) == [ID]
        gate.set()
        await broker.until(lambda: len(broker.check_answers) == 2)
    assert calls == [1, 2]


@pytest.mark.parametrize("kind", ["coroutine", "function", "raises"])
async def test_what_is_decided_without_the_group_is_told_to_the_program_one_after_the_other(broker, caplog, kind):
    heard = []

    async def hears(decision):
        heard.append(decision)

    def notes(decision):
        heard.append(decision)
        if kind == "raises":
            raise OSError("away")

    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit, on_decided=hears if kind == "coroutine" else notes)
        for least, fields in ((7, {"txn_action": 1, "cause": 1}), (8, {"cause": 8, "check_count": 15}), (9, {"cause": 99})):
            broker.pipe.send(command("txnCheckDecided", group="orders", txnid_least_bits=least, check_data=b"d", **fields))
        await broker.until(lambda: len(heard) == 3)
    assert heard == [
        CheckDecision(TxnId(0, 7), "orders", Decision.ABORTED, "timeout", b"d", 0),
        CheckDecision(TxnId(0, 8), "orders", Decision.PARKED, "unanswered", b"d", 15),
        CheckDecision(TxnId(0, 9), "orders", Decision.PARKED, "unknown", b"d", 0),
    ]
    assert heard[0].message is None
    assert ("on_decided of group" in caplog.text) is (kind == "raises")


async def test_a_decision_that_no_program_hears_is_a_warning(broker, caplog):
    async with fake_client(broker) as client:
        await client.join_check_group("orders", says_commit)
        for least in range(30):
            broker.pipe.send(command("txnCheckDecided", group="orders", txnid_least_bits=least, txn_action=1, cause=1))
        broker.pipe.send(command("txnCheckDecided", group="payments", txnid_least_bits=1, txn_action=1, cause=1))
        await (await client.begin_transaction()).abort()
    lines = [each.getMessage() for each in caplog.records if "without an answer of its check group" in each.getMessage()]
    assert lines[0].startswith("transaction (0,0) was aborted without an answer of its check group 'orders' (timeout)")
    assert len(lines) == 10


async def test_terms_that_make_no_sense_are_refused(broker):
    async with fake_client(broker) as client:
        for terms in ({"check_timeout": 0}, {"check_timeout": "soon"}, {"on_decided": 3}, {"on_decided": lambda: None}):
            with pytest.raises(InvalidConfiguration):
                await client.join_check_group("orders", says_commit, **terms)
        assert broker.all("txnGroup") == []
        group = await client.join_check_group("orders", says_commit)
        with pytest.raises(InvalidConfiguration, match="belongs to a group"):
            await client.transactional_producer("t", check=group, on_decided=print)


def test_a_blocking_client_hears_decisions_in_a_thread():
    decided = sync.check_groups.threaded_hearing(print)
    assert isinstance(decided, check_groups.ClosedWithGroup)
    assert sync.check_groups.threaded_hearing(None) is None
    with pytest.raises(InvalidConfiguration, match="asynchronous"):

        async def hears(_decision):
            """Nobody would await it."""

        sync.check_groups.threaded_hearing(hears)
