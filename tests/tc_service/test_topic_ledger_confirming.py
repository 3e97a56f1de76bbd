"""When a leader may believe that a frame counts, with the broker played by the test: a receipt alone does not say it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import pytest

from pulsar_txn.client.inside import AsyncioRuntime
from pulsar_txn.ledger.handles import OpenLogs
from pulsar_txn.ledger.limits import Pressure
from pulsar_txn.ledger.protocols import EntryTooLarge, LeaseLost, LedgerError, LogDamaged, LogListener
from pulsar_txn.ledger.testing import Recorder
from pulsar_txn.tc_service.topic_ledger.candidate import ClaimedLog
from pulsar_txn.tc_service.topic_ledger.frames import Frame, Kind, LogFold, Record, decode, encode
from pulsar_txn.tc_service.topic_ledger.log import TopicLog
from pulsar_txn.tc_service.topic_ledger.topic import Message, Receipt
from pulsar_txn.wire.ids import Position

US: Final = "us"
CLAIM: Final = Frame(5, 0, 0, 0, 0, (Record(Kind.CLAIM, 0, b"pulsar://us"),))


class PlayedWriter:
    """A producer whose sends go to the test."""

    name, epoch, max_message_size, is_attached = US, 5, 5 << 20, True

    def __init__(self, news: asyncio.Event) -> None:
        self.sent: list[bytes] = []
        self.lost: LeaseLost | None = None
        self.receipts: deque[Receipt] = deque()
        self._news = news

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)

    def next_receipt(self) -> Receipt | None:
        return self.receipts.popleft() if self.receipts else None

    def give_up(self, why: str) -> None:
        self.lost = LeaseLost(why)
        self._news.set()

    async def close(self) -> None:
        """Nothing is open."""


class PlayedTail:
    """A reader that is at message (1, 0), the CLAIM."""

    def __init__(self) -> None:
        self.last: Position = (1, 0)
        self.failure: LedgerError | None = None
        self.messages: deque[Message] = deque()

    def next_message(self) -> Message | None:
        if not self.messages:
            return None
        message = self.messages.popleft()
        self.last = message.where
        return message

    def skip(self, where: Position) -> None:
        self.last = where

    async def close(self) -> None:
        """Nothing is open."""


class Played:
    """A log that has just been claimed."""

    def __init__(self, lease_seconds: float = 60) -> None:
        self.news = asyncio.Event()
        self.writer, self.tail, self.heard = PlayedWriter(self.news), PlayedTail(), Recorder()
        fold = LogFold("log", 1)
        assert fold.take((1, 0), US, encode(CLAIM))
        runtime = AsyncioRuntime()
        place: Any = None
        claimed = ClaimedLog(fold, self.writer, self.tail, self.news, place, runtime.monotonic())  # type: ignore[arg-type]  # played
        self.log = TopicLog(claimed, runtime, lease_seconds, Pressure(), OpenLogs())
        listener: LogListener = self.heard
        self.log.listen(listener)

    async def send(self, data: bytes) -> bytes:
        """Append one entry, whose frame leaves at once."""
        self.log.append(data)
        await asyncio.sleep(0)
        return self.writer.sent[-1]

    async def receipt(self, number: int, where: Position | None) -> None:
        self.writer.receipts.append(Receipt(number, where))
        await self.tell()

    async def read(self, where: Position, producer: str, payload: bytes) -> None:
        self.tail.messages.append(Message(where, producer, memoryview(payload)))
        await self.tell()

    async def tell(self) -> None:
        self.news.set()
        for _ in range(4):
            await asyncio.sleep(0)


async def test_receipts_without_a_gap_confirm() -> None:
    played = Played()
    for number in (1, 2, 3):
        await played.send(b"%d" % number)
        await played.receipt(number, (1, number))
        assert played.heard.confirmed == [(1, each) for each in range(number)]
    assert await played.log.read((1, 0)) == [((1, 0), b"1"), ((1, 1), b"2"), ((1, 2), b"3")]
    await played.read((1, 4), US, played.writer.sent[2])
    assert len(played.heard.confirmed) == 3, "what was confirmed is not new when it is read"
    await played.log.close()


@pytest.mark.parametrize("where", [(1, 2), (2, 0), None], ids=["a message between", "another ledger", "no place"])
async def test_a_receipt_that_leaves_a_gap_waits_until_the_gap_was_read(where: Position | None) -> None:
    played = Played()
    first, second = await played.send(b"1"), await played.send(b"2")
    await played.receipt(1, where)
    await played.receipt(2, (1, 3) if where is None else (where[0], where[1] + 1))
    assert played.heard.confirmed == []
    await played.read((1, 1), "a stranger", b"not ours")
    assert played.heard.confirmed == []
    await played.read((1, 2), US, first)
    assert played.heard.confirmed == [(1, 0)]
    await played.read((1, 3), US, second)
    assert played.heard.confirmed[-1] == (1, 1)
    await played.send(b"3")
    await played.receipt(3, (1, 4))
    assert played.heard.confirmed[-1] == (1, 2), "and without a gap it goes on"
    await played.log.close()


async def test_the_receipt_of_a_copy_confirms_no_later_frame() -> None:
    """Named after decisions that counted before they were stored: a frame was sent again, and its first copy had been read."""
    played = Played()
    first = await played.send(b"1")
    second = await played.send(b"2")
    await played.read((1, 1), US, first)  # after a lost connection; both are sent again
    await played.receipt(1, (1, 2))
    assert played.heard.confirmed == [(1, 0)]
    await played.read((1, 2), US, first)
    await played.receipt(2, (1, 3))
    assert played.heard.confirmed == [(1, 0), (1, 1)]
    assert await played.log.read((1, 0)) == [((1, 0), b"1"), ((1, 1), b"2")]
    await played.receipt(2, (1, 4))
    await played.read((1, 5), US, second)
    assert len(played.heard.confirmed) == 2
    await played.log.close()


async def test_a_claim_in_the_gap_ends_it_though_the_broker_gave_receipts() -> None:
    """Stock 4.2.4 may let two candidates in that send a leader away at the same moment."""
    played = Played()
    ours = await played.send(b"of a leader that is none")
    await played.receipt(1, (1, 2))
    await played.read((1, 1), "them", encode(CLAIM._replace(epoch=6)))
    assert [type(error) for error in played.heard.failures] == [LeaseLost]
    await played.read((1, 2), US, ours)
    assert played.heard.confirmed == []
    with pytest.raises(LeaseLost, match="has claimed it, in epoch 6"):
        played.log.append(b"more")
    with pytest.raises(LeaseLost):
        await played.log.flush()


async def test_a_claim_of_an_older_epoch_is_not_followed() -> None:
    played = Played()
    await played.read((1, 1), "them", encode(CLAIM._replace(epoch=4)))
    await played.send(b"1")
    await played.receipt(1, (1, 2))
    assert (played.heard.failures, played.heard.confirmed) == ([], [(1, 0)])
    await played.log.close()


async def test_a_topic_that_cannot_be_read_any_more_fails_the_log() -> None:
    played = Played()
    await played.send(b"1")
    played.tail.failure = LogDamaged("log", (1, 0), "a hole")
    await played.tell()
    assert [type(error) for error in played.heard.failures] == [LogDamaged]
    with pytest.raises(LogDamaged):
        await played.log.flush()


async def test_entries_that_are_too_large_for_a_message_are_refused_and_large_ones_have_frames_of_their_own() -> None:
    played = Played()
    with pytest.raises(EntryTooLarge, match="maxMessageSize leaves"):
        played.log.append(bytes(5 << 20))
    for _ in range(3):
        played.log.append(bytes(700_000))
    await asyncio.sleep(0)
    assert [len(decode(payload).records) for payload in played.writer.sent] == [1, 1, 1]
    assert [decode(payload).next_entry for payload in played.writer.sent] == [0, 1, 2]
    for number in (1, 2, 3):
        await played.receipt(number, (1, number))
    await played.log.close()


async def test_frames_in_flight_are_bounded_and_later_ones_grow() -> None:
    played = Played()
    for number in range(16):
        await played.send(b"%d" % number)
    for number in range(100):
        played.log.append(b"%d" % number)
        await asyncio.sleep(0)
    assert len(played.writer.sent) == 16
    await played.receipt(1, (1, 1))
    assert len(played.writer.sent) == 17
    assert len(decode(played.writer.sent[-1]).records) == 100
    for number in range(2, 18):
        await played.receipt(number, (1, number))
    await played.log.flush()
    assert played.log.last_confirmed == (1, 115)
    await played.log.close()
