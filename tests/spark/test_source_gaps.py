"""Gaps in the entries that a task reads: which of them are a loss. Neither a broker nor Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsar_txn.client import ConnectionLost, MessageId
from pulsar_txn.client.encoded import AsyncEntryReader, RawEntry
from pulsar_txn.pipeline.spark import DataLossError
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.source import ranges
from pulsar_txn.pipeline.spark.source.limits import Head, Heads
from pulsar_txn.pipeline.spark.source.offsets import Place
from pulsar_txn.pipeline.spark.source.ranges import Gap, Gaps, Range, RangeReader


def settled(found: list[Gap], first_visible: Callable[[Place], Awaitable[Place | None]]) -> list[Gap]:
    async def work() -> list[Gap]:
        looked = Gaps(first_visible)
        for gap in found:
            looked.add(*gap)
        lost = await looked.settled()
        assert await looked.settled() == [], "each is told once"
        await looked.close()
        return lost

    return asyncio.run(work())


def topic_from(first: Place | None) -> Callable[[Place], Awaitable[Place | None]]:
    """A topic that has every entry from `first` on."""

    async def first_visible(place: Place) -> Place | None:
        return None if first is None else max(first, place)

    return first_visible


MARKERS = [((1, 2), (1, 4)), ((1, 9), (2, 0)), ((2, 3), (4, 7))]


def test_nothing_was_lost_while_the_entry_before_a_gap_is_there() -> None:
    assert settled(MARKERS, topic_from((1, 0))) == []
    assert settled(MARKERS, topic_from((1, 2))) == []


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        ((1, 3), [0]),
        ((1, 4), [0]),
        ((1, 5), []),
        ((1, 9), []),
        ((2, 0), [1]),
        ((3, 3), [2]),
        ((4, 7), [2]),
        ((4, 8), []),
        (None, []),
    ],
)
def test_a_topic_that_begins_in_a_gap_now_may_have_lost_what_was_there(first: Place | None, lost: list[int]) -> None:
    assert settled(MARKERS, topic_from(first)) == [MARKERS[number] for number in lost]


def test_many_gaps_cost_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with transactions has a marker, so a gap, for each of them."""
    looks = 0

    async def first_visible(place: Place) -> Place:
        nonlocal looks
        looks += 1
        return place

    monkeypatch.setattr(ranges, "_GAP_PAUSE_SECONDS", 60.0)
    assert settled([((1, number), (1, number + 2)) for number in range(0, 100_000, 2)], first_visible) == []
    assert looks <= 2


def test_what_ends_the_looking_ends_the_range() -> None:
    async def first_visible(place: Place) -> Place:
        raise ConnectionLost("away for good")

    with pytest.raises(ConnectionLost):
        settled(MARKERS, first_visible)


# ---- in a task


class Falling:
    """A reader of a topic that loses its first entries while it is read."""

    def __init__(self, on_gap: Callable[[Place, Place], None], takes: list[list[Place]]) -> None:
        self._on_gap = on_gap
        self._takes = list(takes)
        self._last: Place | None = None
        self.is_connected = True
        self.trouble: Exception | None = None

    async def take(self, most_bytes: int, timeout: float) -> list[RawEntry]:
        taken = self._takes.pop(0)
        for place in taken:
            if self._last is not None and place != (self._last[0], self._last[1] + 1):
                self._on_gap(self._last, place)
            self._last = place
        return [RawEntry(*place, 1, b"") for place in taken]

    async def last_message_id(self) -> MessageId:
        return MessageId(9, 9)

    async def close(self) -> None:
        self._takes = []


def read(monkeypatch: pytest.MonkeyPatch, takes: list[list[Place]], first_left: Place, **options: str) -> list[Place]:
    async def reader_at(
        client: Any, topic: str, place: Place, *, queue_bytes: int, on_gap: Callable[[Place, Place], None]
    ) -> Any:
        return Falling(on_gap, takes)

    async def first_visible(client: Any, topic: str, place: Place) -> Place:
        return max(place, first_left)

    async def work() -> list[Place]:
        reader = RangeReader(None, read_options({"service.url": "pulsar://h", **options}), Range("t", (1, 2), (3, 3)))  # type: ignore[arg-type]  # only handed on
        found: list[Place] = []
        while entries := await reader.next():
            found += [entry.position for entry in entries]
        await reader.close()
        return found

    monkeypatch.setattr(ranges, "reader_at", reader_at)
    monkeypatch.setattr(ranges, "first_visible", first_visible)
    return asyncio.run(work())


TAKES = [[(1, 2), (1, 3)], [(1, 7), (2, 4)], [(3, 3)]]


def test_a_trim_in_the_middle_of_a_range_is_data_loss_or_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError, match=r"\(1, 3\) is gone, the first entry now is \(1, 7\)"):
        read(monkeypatch, TAKES, (1, 6))
    found = read(monkeypatch, TAKES, (1, 6), failOnDataLoss="false")
    assert found == [(1, 3), (1, 7), (2, 4), (3, 3)]
    assert "may be missing" in caplog.text


def test_a_gap_before_the_last_entry_is_looked_at_before_the_range_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataLossError, match=r"\(2, 4\) is gone"):
        read(monkeypatch, TAKES, (3, 0))


def test_hidden_entries_and_ends_of_ledgers_in_a_range_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, TAKES, (1, 0)) == [(1, 3), (1, 7), (2, 4), (3, 3)]


# ---- a reader over its reconnects


class Held:
    """An entry reader's own part, without a connection."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self.reader = AsyncEntryReader.__new__(AsyncEntryReader)
        self.reader._away_seconds = self.reader._missed_seconds = 0.0
        self.reader._on_gap = lambda before, after: self.gaps.append((before, after))


def test_a_reader_that_reconnects_knows_whether_it_has_kept_its_place() -> None:
    held = Held()
    reader = held.reader
    assert reader._is_new((1, 5), (1, 6))
    reader._away_seconds = 9.0  # it has come back
    assert not reader._is_new((1, 6), (1, 3))
    assert reader.unsure_seconds == 9
    assert not reader._is_new((1, 6), (1, 6))
    assert reader.unsure_seconds == 0, "its last entry came again"
    reader._away_seconds = 9.0
    assert reader._is_new((1, 6), (1, 7))
    assert reader.unsure_seconds == 0, "the very next one"
    assert held.gaps == []
    reader._away_seconds = 9.0
    assert reader._is_new((1, 7), (1, 9))
    assert held.gaps == [((1, 7), (1, 9))]
    assert reader._is_new((1, 9), (1, 10))
    reader._away_seconds = 2.0
    assert not reader._is_new((1, 10), (1, 10))
    assert reader.unsure_seconds == 9, "what came later changes nothing about what may have been missed"


@pytest.mark.parametrize(("away", "known"), [(0.0, (2, 0)), (2.0, (2, 0)), (60.0, None)])
def test_a_head_that_was_away_for_long_does_not_say_what_came_next(away: float, known: Place | None) -> None:
    held = Held()
    head = Head(held.reader)
    head.seat, head._after = (1, 5), (2, 0)
    heads = Heads(None)  # type: ignore[arg-type]  # it asks nobody here
    heads._heads["t"] = head
    held.reader._missed_seconds = away
    assert heads.first_after("t", (1, 5)) == known
