"""Every command of a transaction meets every fault. It ends in time; it is whole or nothing; the program knows which.

A worker copies numbers from one topic to another, a number per transaction. The fault hits the first attempt. Whatever
becomes of that, the worker goes on with the same client, and in the end each number is in the output once.
"""

from __future__ import annotations

import asyncio
import enum

import pytest
from frame_proxy import Fault, FrameProxy, brisk_client
from targets import Target
from transactions import PATIENCE, stays_silent, visible

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    CommitOutcomeUnknown,
    InitialPosition,
    Message,
    OperationTimeout,
    PulsarError,
    TransactionAborted,
    TransactionState,
)


class Outcome(enum.Enum):
    """How an attempt ended, as far as the program can know without asking."""

    NOT_BEGUN = "not begun"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


OUTCOMES = {
    TransactionState.COMMITTED: Outcome.COMMITTED,
    TransactionState.ABORTED: Outcome.ABORTED,
    TransactionState.UNKNOWN: Outcome.UNKNOWN,
}
ABORT = "endTxn of an abort"
COMMANDS = (
    "tcClientConnectRequest",
    "newTxn",
    "addPartitionToTxn",
    "addSubscriptionToTxn",
    "send",
    "ack",
    "endTxn",
    ABORT,
)


BREAKS = {Fault.RESET_BEFORE, Fault.TORN, Fault.RESET_MEANWHILE, Fault.RESET_AFTER, Fault.END_AFTER, Fault.HALF_OPEN}


def expected(command: str, fault: Fault, *, ours: bool) -> set[Outcome]:
    """How the first attempt may end. What is slow, or in pieces, changes nothing, and what was lost is sent again."""
    if command == ABORT:
        return {Outcome.ABORTED}
    if command == "ack" and fault in (Fault.RESET_MEANWHILE, Fault.RESET_AFTER) and not ours:
        # It is sent again, and stock refuses what the first one has acknowledged already.
        return {Outcome.ABORTED}
    if command in ("addPartitionToTxn", "send") and fault in BREAKS:
        # A broker that has nothing of this producer yet does not show that it looks for duplicates: what left over the
        # connection that broke is not sent again.
        return {Outcome.COMMITTED, Outcome.ABORTED}
    if fault is Fault.LOST_ANSWER:
        # The connection is fine, so the answer is waited for until the operation timeout.
        if command == "endTxn":
            return {Outcome.UNKNOWN}
        if command == "newTxn":
            return {Outcome.NOT_BEGUN}
        if command == "tcClientConnectRequest":
            return {Outcome.COMMITTED, Outcome.NOT_BEGUN}  # there may be another coordinator
        return {Outcome.ABORTED}
    if command == "endTxn" and fault in (Fault.RESET_MEANWHILE, Fault.RESET_AFTER) and not ours:
        return {Outcome.COMMITTED, Outcome.UNKNOWN}  # stock forgets transactions that have ended
    return {Outcome.COMMITTED}


class Worker:
    """One transaction per message; what failed is done again when it comes again."""

    def __init__(
        self, client: AsyncClient, consumer: AsyncConsumer[bytes], producer: AsyncProducer[bytes], patience: float
    ) -> None:
        self.client = client
        self.patience = patience
        self.consumer = consumer
        self.producer = producer
        self.outcomes: list[Outcome] = []

    async def copy(self, message: Message[bytes], *, commit: bool = True) -> Outcome:
        """One attempt; each step ends within its deadline, or the test fails."""
        try:
            async with asyncio.timeout(PATIENCE):
                txn = await self.client.begin_transaction()
        except OperationTimeout:
            return Outcome.NOT_BEGUN
        try:
            async with asyncio.timeout(PATIENCE):
                await self.producer.send(message.data, txn=txn)
            async with asyncio.timeout(PATIENCE):
                await self.consumer.acknowledge(message, txn=txn)
        except PulsarError:
            commit = False
        async with asyncio.timeout(PATIENCE):
            if not commit:
                await self.abort(txn)
                return Outcome.ABORTED
            try:
                await txn.commit()
            except TransactionAborted:
                return Outcome.ABORTED
            except CommitOutcomeUnknown as unknown:
                self.outcomes.append(Outcome.UNKNOWN)
                return OUTCOMES[await unknown.resolve()]
            return Outcome.COMMITTED

    async def receive(self) -> Message[bytes]:
        """The next message. What an abort brings back may come late on stock, and only when it is asked for once more."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await self.consumer.receive(timeout=self.patience)
                except OperationTimeout:
                    self.consumer.redeliver_unacknowledged()

    async def abort(self, txn: AsyncTransaction) -> None:
        """Until it is known to be aborted."""
        try:
            await txn.abort()
        except OperationTimeout:
            await txn.abort()
        assert txn.state is TransactionState.ABORTED

    async def until_done(self, count: int, *, commit: bool = True) -> None:
        """Copy until `count` messages are."""
        done = 0
        while done < count:
            message = await self.receive()
            outcome = await self.copy(message, commit=commit)
            self.outcomes.append(outcome)
            commit = True
            done += outcome in (Outcome.COMMITTED, Outcome.UNKNOWN)
            if outcome is not Outcome.COMMITTED:
                self.consumer.redeliver_unacknowledged()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
async def test_a_transaction(deduplicating: Target, topic: str, fault: Fault) -> None:
    async def one(command: str) -> None:
        outcome = await story(deduplicating, f"{topic}-{COMMANDS.index(command)}", command, fault)
        assert outcome in expected(command, fault, ours=deduplicating.is_ours), command

    async with asyncio.TaskGroup() as stories:
        for command in COMMANDS:
            stories.create_task(one(command))


async def story(pulsar: Target, topic: str, command: str, fault: Fault) -> Outcome:
    """Two numbers through a worker that meets the fault with the first. Returns how the first attempt ended."""
    # Stock takes 5 s to give the place of a half-open connection away.
    operation_timeout = 2.0 if fault is Fault.LOST_ANSWER else 15.0
    async with AsyncClient(pulsar.service_url) as calm, FrameProxy(pulsar.service_url) as proxy:
        source = await calm.create_producer(f"{topic}-in")
        await calm.create_producer(topic)
        await source.send(b"1")
        async with brisk_client(proxy.service_url, operation_timeout) as client:
            consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
            producer = await client.create_producer(topic, send_timeout=operation_timeout)
            worker = Worker(client, consumer, producer, PATIENCE if pulsar.is_ours else 1.0)
            trap = proxy.arm(command.split()[0], fault)
            await source.send(b"2")
            await worker.until_done(2, commit=command != ABORT)
            assert trap.sprung
            assert await visible(calm, topic) == [b"1", b"2"]
            await consumer.close()
            successor = await calm.subscribe(f"{topic}-in", "s")
            assert await stays_silent(successor)
    if pulsar.is_ours:  # it remembers outcomes: whoever asks is told
        assert Outcome.UNKNOWN not in worker.outcomes[1:]
    return worker.outcomes[0]
