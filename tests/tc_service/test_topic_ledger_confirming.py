"""When a leader may believe that a frame counts, with the broker played by the test: a receipt alone does not say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from pulsar_txn.client.inside import AsyncioRuntime
from pulsar_txn.ledger.limits import Pressure
from pulsar_txn.ledger.protocols import EntryTooLarge, LeaseLost, LogDamaged, LogListener
from pulsar_txn.ledger.testing import Recorder
from pulsar_txn.tc_service.topic_ledger.candidate import ClaimedLog
from pulsar_txn.tc_service.topic_ledger.frames import Frame, Kind, LogFold, Record, decode, encode
from pulsar_txn.tc_service.topic_ledger.log import TopicLog
from pulsar_txn.wire.ids import Position

US: Final = "us"
CLAIM: Final = Frame(5, 0, 0, 0, 0, (Record(Kind.CLAIM, 0, b"pulsar://us"),))


class PlayedWriter:
    """A producer whose sends go to the test."""

    name, epoch, max_message_size, is_attached = US, 5, 5 << 20, True

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.lost: LeaseLost | None = None
        self.when_written: Callable[[int, Position | None], None]
        self.when_lost: Callable[[LeaseLost], None]

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)

    def give_up(self, why: str) -> None:
        self.lost = LeaseLost(why)
        self.when_lost(self.lost)

    async def close(self) -> None:
        """Nothing is open."""


class PlayedTail:
    """A reader that is at message (1, 0), the CLAIM."""

    def __init__(self) -> None:
        self.last: Position = (1, 0)
        self.take: Callable[[Position, str, bytes], bool]
        self.when_failed: Callable[[Exception], None]

    def read(self, where: Position, producer: str, payload: bytes) -> None:
        self.take(where, producer, payload)
        self.last = where

    async def close(self) -> None:
        """Nothing is open."""


class Played:
    """A log that has just been claimed."""

    def __init__(self, lease_seconds: float = 60) -> None:
        self.writer, self.tail, self.heard = PlayedWriter(), PlayedTail(), Recorder()
        fold = LogFold("log", 1)
        assert fold.take((1, 0), US, encode(CLAIM))
        runtime = AsyncioRuntime()
        place: Any = None
        claimed = ClaimedLog(fold, self.writer, self.tail, place, runtime.monotonic())  # type: ignore[arg-type]  # played
        self.log = TopicLog(claimed, runtime, lease_seconds, Pressure(), lambda _: None)
        listener: LogListener = self.heard
        self.log.listen(listener)

    def send(self, data: bytes) -> bytes:
        """Append one entry, whose frame leaves at once."""
        self.log.append(data)
        self.log.queue._turn_ends()
        return self.writer.sent[-1]


async def test_receipts_without_a_gap_confirm() -> None:
    played = Played()
    for number in (1, 2, 3):
        played.send(b"%d" % number)
        played.writer.when_written(number, (1, number))
        assert played.heard.confirmed == [(1, each) for each in range(number)]
    assert await played.log.read((1, 0)) == [((1, 0), b"1"), ((1, 1), b"2"), ((1, 2), b"3")]
    assert not played.tail.take((1, 3), US, played.writer.sent[2]), "what was confirmed is not new when it is read"
    await played.log.close()


@pytest.mark.parametrize("where", [(1, 2), (2, 0), None], ids=["a message between", "another ledger", "no place"])
async def test_a_receipt_that_leaves_a_gap_waits_until_the_gap_was_read(where: Position | None) -> None:
    played = Played()
    first, second = played.send(b"1"), played.send(b"2")
    played.writer.when_written(1, where)
    played.writer.when_written(2, (1, 3) if where is None else (where[0], where[1] + 1))
    assert played.heard.confirmed == []
    played.tail.read((1, 1), "a stranger", b"not ours")
    assert played.heard.confirmed == []
    played.tail.read((1, 2), US, first)
    assert played.heard.confirmed == [(1, 0)]
    played.tail.read((1, 3), US, second)
    assert played.heard.confirmed[-1] == (1, 1)
    played.send(b"3")
    played.writer.when_written(3, (1, 4))
    assert played.heard.confirmed[-1] == (1, 2), "and without a gap it goes on"
    await played.log.close()


async def test_the_receipt_of_a_copy_confirms_no_later_frame() -> None:
    """Named after decisions that counted before they were stored: a frame was sent again, and its first copy had been read."""
    played = Played()
    first = played.send(b"1")
    second = played.send(b"2")
    played.tail.read((1, 1), US, first)  # after a lost connection; both are sent again
    played.writer.when_written(1, (1, 2))
    assert played.heard.confirmed == [(1, 0)]
    played.tail.read((1, 2), US, first)
    played.writer.when_written(2, (1, 3))
    assert played.heard.confirmed == [(1, 0), (1, 1)]
    assert await played.log.read((1, 0)) == [((1, 0), b"1"), ((1, 1), b"2")]
    played.writer.when_written(2, (1, 4))
    assert not played.tail.take((1, 4), US, second)
    await played.log.close()


async def test_a_claim_in_the_gap_ends_it_though_the_broker_gave_receipts() -> None:
    """Stock 4.2.4 may let two candidates in that send a leader away at the same moment."""
    played = Played()
    ours = played.send(b"of a leader that is none")
    played.writer.when_written(1, (1, 2))
    played.tail.read((1, 1), "them", encode(CLAIM._replace(epoch=6)))
    assert [type(error) for error in played.heard.failures] == [LeaseLost]
    assert not played.log._take((1, 2), US, memoryview(ours))
    assert played.heard.confirmed == []
    with pytest.raises(LeaseLost, match="has claimed it, in epoch 6"):
        played.log.append(b"more")
    with pytest.raises(LeaseLost):
        await played.log.flush()


async def test_a_claim_of_an_older_epoch_is_not_followed() -> None:
    played = Played()
    played.tail.read((1, 1), "them", encode(CLAIM._replace(epoch=4)))
    played.send(b"1")
    played.writer.when_written(1, (1, 2))
    assert (played.heard.failures, played.heard.confirmed) == ([], [(1, 0)])
    await played.log.close()


async def test_a_topic_that_cannot_be_read_any_more_fails_the_log() -> None:
    played = Played()
    played.send(b"1")
    played.tail.when_failed(LogDamaged("log", (1, 0), "a hole"))
    assert [type(error) for error in played.heard.failures] == [LogDamaged]
    with pytest.raises(LogDamaged):
        await played.log.flush()


async def test_entries_that_are_too_large_for_a_message_are_refused_and_large_ones_have_frames_of_their_own() -> None:
    played = Played()
    with pytest.raises(EntryTooLarge, match="maxMessageSize leaves"):
        played.log.append(bytes(5 << 20))
    for _ in range(3):
        played.log.append(bytes(700_000))
    played.log.queue._turn_ends()
    assert [len(decode(payload).records) for payload in played.writer.sent] == [1, 1, 1]
    assert [decode(payload).next_entry for payload in played.writer.sent] == [0, 1, 2]
    for number in (1, 2, 3):
        played.writer.when_written(number, (1, number))
    await played.log.close()


async def test_frames_in_flight_are_bounded_and_later_ones_grow() -> None:
    played = Played()
    for number in range(16):
        played.send(b"%d" % number)
    for number in range(100):
        played.log.append(b"%d" % number)
        played.log.queue._turn_ends()
    assert len(played.writer.sent) == 16
    played.writer.when_written(1, (1, 1))
    assert len(played.writer.sent) == 17
    assert len(decode(played.writer.sent[-1]).records) == 100
    for number in range(2, 18):
        played.writer.when_written(number, (1, number))
    await played.log.flush()
    assert played.log.last_confirmed == (1, 115)
    await played.log.close()
