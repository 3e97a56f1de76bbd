"""Checks end to end: who finishes what a dead process began, with the real client, on our broker and beside a stock cluster."""

from __future__ import annotations

import asyncio

import pytest
from asking_servers import AskingServer
from frame_proxy import Fault, FrameProxy
from official_reading import read_officially
from transactions import PATIENCE, eventually_visible, visible

from pulsar_txn.client import AsyncClient, TransactionState
from pulsar_txn.client.errors import TransactionAborted
from pulsar_txn.client.half_messages import CheckDecision, CheckQuestion, Decision, HalfMessage, HalfSent, LocalOutcome

pytestmark = pytest.mark.timeout(240)

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN


class Member:
    """Answers what it is told to, and notes what it was asked."""

    def __init__(self, *answers: LocalOutcome) -> None:
        self.asked: list[CheckQuestion] = []
        self._answers = answers

    async def __call__(self, question: CheckQuestion) -> LocalOutcome:
        self.asked.append(question)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]

    async def until(self, count: int) -> None:
        """So many questions came."""
        async with asyncio.timeout(30):
            while len(self.asked) < count:  # noqa: ASYNC110 - an event would be one more thing to explain
                await asyncio.sleep(0.05)


@pytest.mark.seed_rows("A07", "A09", "A10", "A26", "A28")
@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_what_a_killed_process_began_is_ended_by_another_member_of_its_group(
    asking: AskingServer, topic: str, outcome: LocalOutcome
) -> None:
    member, stranger = Member(outcome), Member(COMMIT)
    async with asking.client() as client:
        await client.join_check_group(topic, member)
        await client.join_check_group(f"{topic}-other", stranger)
        txn_id = await asking.of_the_dead(topic, "begin", topic)
        await member.until(1)
        producer = await client.create_producer(topic)
        await producer.send(b"plain")
        expected = [b"half", b"plain"] if outcome is COMMIT else [b"plain"]
        assert await eventually_visible(client, topic, expected)
    assert [(str(each.txn_id), each.data, each.count) for each in member.asked] == [(txn_id, b"of the dead", 1)]
    assert stranger.asked == []


async def test_what_execute_does_not_know_the_check_says_later(asking: AskingServer, topic: str) -> None:
    member = Member(UNKNOWN, UNKNOWN, COMMIT)
    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=member)
        async with producer:
            assert await producer.send_in_transaction(b"m", key="k", execute=lambda _half: UNKNOWN) is UNKNOWN
            assert await visible(client, topic) == []
            assert await eventually_visible(client, topic, [b"m"])
    assert [each.count for each in member.asked] == [1, 2, 3]
    assert {each.message.key for each in member.asked if each.message is not None} == {"k"}


@pytest.mark.parametrize("when", ["opened", "asked", "decided"])
async def test_a_server_that_is_killed_after_each_record_goes_on_where_it_was(
    asking: AskingServer, topic: str, when: str
) -> None:
    member = Member(*([COMMIT] if when == "decided" else [UNKNOWN, COMMIT]))
    async with asking.client() as client:
        group = await client.join_check_group(topic, member)
        async with group:
            await asking.of_the_dead(topic, "begin", topic)
            if when != "opened":
                await member.until(1)
            await asking.kill_and_start()
            assert await eventually_visible(client, topic, [b"half"])
    counts = [each.count for each in member.asked]
    assert counts == sorted(counts), "the count outlives the server"
    assert counts[0] == 1


@pytest.mark.seed_rows("C42")
async def test_what_was_to_end_with_its_process_ends_with_it(asking: AskingServer, topic: str) -> None:
    async with asking.client() as client:
        await asking.of_the_dead(topic, "bound")
        producer = await client.create_producer(topic)
        await producer.send(b"plain")
        assert await eventually_visible(client, topic, [b"plain"])


class Book:
    """What a group knows of its orders, and what it was asked."""

    def __init__(self, *, unknown: LocalOutcome = UNKNOWN) -> None:
        self.outcomes: dict[str, LocalOutcome] = {}
        self.asked: list[CheckQuestion] = []
        self._unknown = unknown

    async def check(self, question: CheckQuestion) -> LocalOutcome:
        """Look it up by the key of the first message, or by the program's own bytes."""
        self.asked.append(question)
        key = question.message.key if question.message is not None else question.data.decode()
        return self.outcomes.get(key or "", self._unknown)

    async def was_asked(self, count: int = 1) -> None:
        """Until so many questions came."""
        async with asyncio.timeout(PATIENCE):
            while len(self.asked) < count:  # noqa: ASYNC110 - a check has no event
                await asyncio.sleep(0.02)


async def read(asking: AskingServer, topic: str, count: int) -> list[bytes]:
    """What the official client reads of a topic."""
    return await asyncio.to_thread(read_officially, asking.service_url, topic, count)


@pytest.mark.seed_rows("A01", "A26", "A27", "A28")
async def test_a_process_dies_between_its_work_and_the_commit_and_another_member_answers(
    asking: AskingServer, topic: str
) -> None:
    book = Book()
    async with asking.client() as client, await client.join_check_group(topic, book.check):
        written = await asking.of_the_dead(topic, "execute", topic)
        book.outcomes["17"] = COMMIT
        await book.was_asked()
        assert await eventually_visible(client, topic, [b"event"])
    assert await read(asking, topic, 1) == [b"event"]
    question = book.asked[0]
    assert (question.group, question.count, question.max_checks, question.prepared) == (topic, 1, 4, False)
    assert str(question.txn_id) == written


@pytest.mark.seed_rows("A09", "A14")
async def test_an_outcome_that_stays_unknown_is_parked_after_the_last_question_and_its_group_hears_of_it(
    asking: AskingServer, topic: str
) -> None:
    book, heard = Book(), asyncio.Queue[CheckDecision]()
    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=book.check, on_decided=heard.put)
        assert await producer.send_in_transaction(b"event", key="17", execute=lambda _half: UNKNOWN) is UNKNOWN
        await producer.producer.send(b"plain")
        async with asyncio.timeout(PATIENCE):
            decision = await heard.get()
        assert (decision.decision, decision.reason, decision.count) == (Decision.PARKED, "unanswered", 4)
        await client.attach_transaction(str(decision.txn_id)).abort()
        assert await eventually_visible(client, topic, [b"plain"])
    assert [question.count for question in book.asked] == [1, 2, 3, 4]


@pytest.mark.seed_rows("A05")
async def test_execute_decides_without_a_question(asking: AskingServer, topic: str) -> None:
    book = Book()
    outcomes = iter([COMMIT, ROLLBACK])
    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=book.check)
        for value in (b"yes", b"no"):
            await producer.send_in_transaction(value, execute=lambda _half: next(outcomes))
        await producer.producer.send(b"plain")
    assert await read(asking, topic, 2) == [b"yes", b"plain"]
    assert book.asked == []


@pytest.mark.seed_rows("A08", "A28")
async def test_a_hundred_transactions_of_two_groups_are_never_mixed_up(asking: AskingServer, topic: str) -> None:
    one, other = Book(), Book()
    books = {f"{topic}-one": one, f"{topic}-other": other}
    async with asking.client() as client, asking.client() as beside:
        producers = [
            await client.transactional_producer(topic, group=f"{topic}-one", check=one.check, check_after=0.2),
            await beside.transactional_producer(topic, group=f"{topic}-other", check=other.check, check_after=0.2),
        ]
        for number in range(100):
            books[producers[number % 2].group].outcomes[str(number)] = COMMIT if number % 3 else ROLLBACK
        sends = [
            producers[number % 2].send_in_transaction(b"%d" % number, execute=lambda _half: UNKNOWN, data=b"%d" % number)
            for number in range(100)
        ]
        assert set(await asyncio.gather(*sends)) == {UNKNOWN}
        expected = sorted(b"%d" % number for number in range(100) if number % 3)
        found = await read(asking, topic, len(expected))
    assert sorted(found) == expected
    for group, book in books.items():
        assert {question.group for question in book.asked} == {group}
        assert {question.data.decode() for question in book.asked} == set(book.outcomes)


async def test_messages_to_two_topics_are_seen_together_after_the_check(asking: AskingServer, topic: str) -> None:
    book = Book()
    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=book.check)
        second = await client.create_producer(f"{topic}-b")

        async def execute(half: HalfSent) -> LocalOutcome:
            book.outcomes["17"] = COMMIT
            raise OSError("the answer of the database was lost")

        with pytest.raises(OSError, match="was lost"):
            await producer.send_in_transaction(
                b"1", key="17", execute=execute, also=[HalfMessage(b"2", second), HalfMessage(b"3")]
            )
        assert await eventually_visible(client, f"{topic}-b", [b"2"])
        assert sorted(await read(asking, topic, 2)) == [b"1", b"3"]


@pytest.mark.seed_rows("A10")
async def test_a_commit_that_is_lost_on_the_wire_is_made_up_for_by_the_check(asking: AskingServer, topic: str) -> None:
    book = Book()
    async with FrameProxy(asking.coordinator or asking.service_url) as proxy, asking.client() as other:
        await other.join_check_group(topic, book.check)
        url = asking.service_url if asking.coordinator else proxy.service_url
        where = {"coordinator": proxy.service_url} if asking.coordinator else {}
        async with AsyncClient(url, operation_timeout=2, **where) as client:
            producer = await client.transactional_producer(topic, group=topic, check=book.check)
            proxy.judge = lambda command: Fault.RESET_BEFORE if command == "endTxn" else None

            def execute(_half: HalfSent) -> LocalOutcome:
                book.outcomes["17"] = COMMIT
                return COMMIT

            assert await producer.send_in_transaction(b"event", key="17", execute=execute) is COMMIT
            proxy.judge = None
        assert await eventually_visible(other, topic, [b"event"])


async def test_a_commit_after_the_group_has_said_rollback_is_an_error(asking: AskingServer, topic: str) -> None:
    book = Book(unknown=ROLLBACK)
    async with asking.client() as client:
        producer = await client.transactional_producer(topic, group=topic, check=book.check, check_after=0.2)

        async def execute(_half: HalfSent) -> LocalOutcome:
            await book.was_asked()
            await asyncio.sleep(0.3)
            return COMMIT

        with pytest.raises(TransactionAborted):
            await producer.send_in_transaction(b"event", execute=execute)


async def test_a_commit_after_the_group_has_said_commit_is_none(asking: AskingServer, topic: str) -> None:
    book = Book(unknown=COMMIT)
    async with asking.client() as client:
        await client.join_check_group(topic, book.check)
        producer = await client.create_producer(topic)
        txn = await client.begin_transaction(check_group=topic, check_after=0.2)
        await producer.send(b"event", txn=txn)
        assert await eventually_visible(client, topic, [b"event"])
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED


async def test_a_group_whose_members_are_all_away_is_asked_when_one_comes_back(asking: AskingServer, topic: str) -> None:
    """Beside a cluster, the lease of the process that began it is over by then; its group decides all the same."""
    book = Book(unknown=COMMIT)
    await asking.of_the_dead(topic, "execute", topic)
    await asyncio.sleep(4)
    async with asking.client() as client, await client.join_check_group(topic, book.check):
        assert await eventually_visible(client, topic, [b"event"])
    assert len(book.asked) == 1
