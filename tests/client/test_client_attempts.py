"""Attempts: what is tried again, for how long, which error a program gets, and that one loop attaches a resource."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, OperationTimeout, ServiceNotReady, TopicNotFound
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.txn.transactions import core_of


async def tried(retries, *errors):
    """Attempts that fail with these errors, then succeed; the number of attempts."""
    left = list(errors)
    count = 0
    while True:
        async with retries:
            count += 1
            if left:
                raise left.pop(0)
            return count


async def test_errors_that_are_retriable_are_followed_by_another_attempt():
    async with fake_client(FakeBroker()) as client:
        assert await tried(Retries(core_of(client), "trying"), ServiceNotReady("soon"), ConnectionLost("gone")) == 3


async def test_an_error_that_is_not_retriable_is_raised_as_it_is():
    final = TopicNotFound("no such topic")
    async with fake_client(FakeBroker()) as client:
        with pytest.raises(TopicNotFound) as caught:
            await tried(Retries(core_of(client), "trying"), ServiceNotReady("soon"), final, ServiceNotReady("never tried"))
    assert caught.value is final
    assert not hasattr(final, "__notes__")


async def test_the_last_error_is_raised_with_a_note_when_the_time_is_over():
    async with fake_client(FakeBroker()) as client:
        with pytest.raises(ServiceNotReady) as caught:
            await tried(Retries(core_of(client), "trying", 0.03), *(ServiceNotReady(f"number {each}") for each in range(1000)))
    assert caught.value.__notes__ == ["trying: given up after 0.03 s of attempts"]


async def test_an_attempt_that_hangs_ends_with_the_time_and_with_the_error_before_it():
    async with fake_client(FakeBroker()) as client:
        retries, first = Retries(core_of(client), "trying", 0.05), True
        with pytest.raises(ServiceNotReady, match="the one that was met"):
            while True:
                async with retries:
                    if first:
                        first = False
                        raise ServiceNotReady("the one that was met")
                    await asyncio.sleep(60)


@pytest.mark.parametrize("error", [None, TimeoutError("of the attempt's own")])
async def test_a_timeout_without_any_error_of_the_client_is_an_operation_timeout(error):
    async with fake_client(FakeBroker()) as client:
        retries = Retries(core_of(client), "trying", 0.02)
        with pytest.raises(OperationTimeout, match="trying did not finish in time"):
            async with retries:
                if error is not None:
                    raise error
                await asyncio.sleep(60)


async def test_a_cancelled_attempt_is_not_repeated():
    async with fake_client(FakeBroker()) as client:
        retries, entered = Retries(core_of(client), "trying"), []

        async def work():
            while True:
                async with retries:
                    entered.append(1)
                    await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert entered == [1]


async def test_a_client_that_was_closed_tries_nothing():
    async with fake_client(FakeBroker()) as client:
        retries = Retries(core_of(client), "trying")
    with pytest.raises(AlreadyClosed):
        await tried(retries)


class Owner:
    """A resource that attaches at once, and is lost in the middle of being told so."""

    def __init__(self, core) -> None:
        self.tie = Attachment(core, "persistent://public/default/t", self)
        self.attached = 0
        self.loses = 0

    def on_connection_lost(self, connection, error):
        """The connection has ended."""
        if self.tie.lost(connection):
            self.tie.run(self.attach(self.tie.attempts()))

    async def attach(self, attempts):
        """Attach as producers and consumers do."""
        while self.tie.is_wanted:
            async with attempts:
                async with self.tie.opening() as connection:
                    await asyncio.sleep(0)
                self.attached += 1
                if self.attached <= self.loses:
                    connection.close(ConnectionLost("at this moment"))
                return


async def test_a_connection_that_ends_before_its_answer_was_seen_is_not_taken():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        owner = Owner(core_of(client))
        retries = Retries(core_of(client), "opening")
        with pytest.raises(ConnectionLost, match="broke while opening"):
            async with owner.tie.opening() as connection:
                connection.close(ConnectionLost("at this moment"))
        await owner.attach(retries)
        assert owner.tie.connection is not None
        assert owner.tie.connection is not connection


async def test_a_tie_that_is_lost_while_its_owner_is_told_is_made_again_once():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        owner = Owner(core_of(client))
        owner.loses = 3
        await owner.attach(Retries(core_of(client), "opening"))
        await broker.until(lambda: owner.tie.connection is not None)
        assert owner.attached == 4
        assert len(broker.all("lookupTopic")) == 4


async def test_a_tie_that_is_attached_answers_without_a_timer(monkeypatch):
    async with fake_client(FakeBroker()) as client:
        owner = Owner(core_of(client))
        await owner.attach(Retries(core_of(client), "opening"))
        # A timer would be made for each acknowledgement, and the loop keeps a cancelled one with the context of its caller.
        monkeypatch.setattr(asyncio, "timeout_at", None)
        assert await owner.tie.connected("acknowledge") is owner.tie.connection


async def test_a_closed_tie_ends_its_attempts_and_tells_who_waits():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        owner = Owner(core_of(client))
        waiting = asyncio.create_task(owner.tie.connected("sending"))
        await asyncio.sleep(0)
        assert owner.tie.close() is None
        with pytest.raises(AlreadyClosed, match="sending: persistent://public/default/t is closed"):
            await waiting
        await owner.attach(Retries(core_of(client), "opening"))
        assert not broker.all("lookupTopic")
