"""What a request costs does not grow with what the handle holds. Processor time, in a ratio that leaves a lot of room."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_txn.ledger.machine import Step
from pulsar_txn.rm_pending_ack import PendingAckHandle, PlainAcked
from pulsar_txn.rm_pending_ack.requests import (
    AckCumulative,
    AckIndividual,
    CursorReset,
    EndTxnOnSubscription,
    Request,
    Verified,
)
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

SMALL, LARGE = 300, 30_000
ROUNDS = 100
OWN, OTHER = TxnId(1, 1), TxnId(2, 1)


class Cursor:
    mark_delete: Position = (1, -1)

    def is_deleted(self, position: Position) -> bool:
        return False

    def ack_set(self, position: Position) -> int | None:
        return None


class Log:
    """A handle and its log, where everything is durable at once."""

    def __init__(self) -> None:
        self.handle = PendingAckHandle("t", "s", Cursor(), snapshot_every=10**9)
        self.entries = 0

    def send(self, request: Request) -> Step[object] | Refusal:
        try:
            step = self.handle.decide(request, 0)
        except Refusal as refusal:
            return refusal
        for log, record in (*step.records, *step.trailing):
            self.handle.apply(log, (9, self.entries), record)
            self.entries += 1
        return step

    def ack(self, txn_id: TxnId, *entries: int) -> object:
        return self.send(Verified(AckIndividual(None, txn_id, tuple(((1, entry), None, 0) for entry in entries)), True))

    def end(self, txn_id: TxnId, low_watermark: int = -1) -> object:
        return self.send(EndTxnOnSubscription(None, txn_id, TxnAction.COMMIT, low_watermark))


def held_by_one(count: int) -> Log:
    log = Log()
    for first in range(1000, 1000 + count, 100):
        log.ack(OTHER, *range(first, first + 100))
    return log


def held_by_many(count: int) -> Log:
    log = Log()
    for number in range(count):
        log.ack(TxnId(2, number), 1000 + number)
    return log


def cumulative_conflict(log: Log, number: int) -> None:
    refused = log.send(Verified(AckCumulative(None, OWN, ((1, 10**9), None, 0)), True))
    assert isinstance(refused, Refusal)


def cumulative_before_all(log: Log, number: int) -> None:
    log.send(Verified(AckCumulative(None, OWN, ((1, 2 + number), None, 0)), True))


def cumulative_over_its_own(log: Log, number: int) -> None:
    taken = log.send(AckCumulative(None, OTHER, ((1, 10**8 + number), None, 0)))
    assert isinstance(taken, Step)


def ack_and_commit(log: Log, number: int) -> None:
    txn_id = TxnId(3, number)
    log.ack(txn_id, number)
    log.end(txn_id, number - 1)


def watermark_of_the_same_coordinator(log: Log, number: int) -> None:
    log.end(TxnId(2, 10**6 + number), number)


def plain_acks(log: Log, number: int) -> None:
    log.send(PlainAcked((((1, 1000 + number), None, 0),)))
    log.send(PlainAcked(cumulative=((1, 900), None, 0)))


def seek_before_all(log: Log, number: int) -> None:
    log.send(CursorReset((1, 900)))


def questions(log: Log, number: int) -> None:
    log.handle.position_state((1, 1000 + number))
    log.handle.trim_before("log")
    log.handle.stats()


def beginning_of_a_snapshot(log: Log, number: int) -> None:
    slices = log.handle.snapshot()
    next(slices)


def processor_time(make: Callable[[int], Log], work: Callable[[Log, int], None], count: int) -> float:
    log = make(count)
    best = float("inf")
    for round_ in range(2):
        before = time.process_time()
        for number in range(ROUNDS):
            work(log, ROUNDS * round_ + number)
        best = min(best, time.process_time() - before)
    return best


@pytest.mark.parametrize("make", [held_by_one, held_by_many], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "work",
    [
        cumulative_conflict,
        cumulative_before_all,
        cumulative_over_its_own,
        ack_and_commit,
        watermark_of_the_same_coordinator,
        plain_acks,
        seek_before_all,
        questions,
        beginning_of_a_snapshot,
    ],
    ids=lambda work: work.__name__,
)
def test_a_request_costs_the_same_among_a_hundred_times_as_many_held_messages(
    make: Callable[[int], Log], work: Callable[[Log, int], None]
) -> None:
    if work is cumulative_over_its_own and make is held_by_many:
        pytest.skip("one of many holds one message only")
    small, large = processor_time(make, work, SMALL), processor_time(make, work, LARGE)
    assert large < 15 * small + 0.01, f"{large / ROUNDS * 1e6:.0f} µs a request, and {small / ROUNDS * 1e6:.0f} µs among few"
