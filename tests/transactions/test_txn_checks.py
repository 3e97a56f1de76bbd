"""Checks end to end: who finishes what a dead process began, with the real client, on our broker and beside a stock cluster."""

from __future__ import annotations

import asyncio

import pytest
from asking_servers import AskingServer
from transactions import eventually_visible, visible

from pulsar_txn.client import CheckQuestion, LocalOutcome

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
