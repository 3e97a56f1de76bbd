"""What a task makes of the entries that come: where a range begins and ends, and what is missing. No broker, no Spark."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_txn.client import ConnectionLost, MessageId, OperationTimeout, TopicNotFound
from pulsar_txn.client.encoded import RawEntry
from pulsar_txn.client.errors import AuthorizationError
from pulsar_txn.pipeline.spark import DataLossError
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.source import ranges
from pulsar_txn.pipeline.spark.source.limits import Limit
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place
from pulsar_txn.pipeline.spark.source.ranges import Patience, Range, RangeReader
from pulsar_txn.pipeline.spark.source.tasks import entries_in, together


class Scripted:
    """A reader of a topic that has these entries now."""

    def __init__(self, there: list[Place], start: Place) -> None:
        self.left = [place for place in there if place >= start]
        self.there = there
        self.is_connected = True
        self.trouble: Exception | None = None

    async def take(self, most_bytes: int, timeout: float) -> list[RawEntry]:
        taken, self.left = self.left[:2], self.left[2:]
        return [RawEntry(*place, 1, b"") for place in taken]

    async def last_message_id(self) -> MessageId:
        return MessageId(*(self.there[-1] if self.there else (-1, -1)))

    async def close(self) -> None:
        self.left = []


def read(monkeypatch: pytest.MonkeyPatch, there: list[Place], wanted: Range, **options: str) -> list[Place]:
    async def reader_at(client: Any, topic: str, place: Place, *, queue_bytes: int, on_gap: Any) -> Any:
        return Scripted(there, place)

    async def work() -> list[Place]:
        given = read_options({"service.url": "pulsar://h", **options})
        reader = RangeReader(None, given, wanted)  # type: ignore[arg-type]  # the client is only handed on
        found: list[Place] = []
        while entries := await reader.next():
            found += [entry.position for entry in entries]
        await reader.close()
        return found

    monkeypatch.setattr(ranges, "reader_at", reader_at)
    return asyncio.run(work())


ENTRIES = [(1, number) for number in range(10)]


def test_a_range_is_after_its_start_up_to_and_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, ENTRIES, Range("t", (1, 2), (1, 5))) == [(1, 3), (1, 4), (1, 5)]
    assert read(monkeypatch, ENTRIES, Range("t", NOTHING, (1, 1))) == [(1, 0), (1, 1)]
    assert read(monkeypatch, ENTRIES, Range("t", (1, 5), (1, 5))) == []


class Silent(Scripted):
    """A topic whose reader brings nothing, although there is more."""

    async def take(self, most_bytes: int, timeout: float) -> list[RawEntry]:
        return []


@pytest.mark.parametrize(("given", "seconds"), [({}, 30), ({"pollTimeoutMs": "2000"}, 2)])
def test_an_entry_that_is_there_and_does_not_come_is_an_error_after_so_long(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], seconds: int
) -> None:
    monkeypatch.setitem(globals(), "Scripted", Silent)
    with pytest.raises(OperationTimeout, match=rf"nothing came after \(1, 2\) for {seconds} s"):
        read(monkeypatch, ENTRIES, Range("t", (1, 2), (1, 5)), **given)


def test_hidden_entries_after_a_start_that_is_there_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, [(1, 2), (1, 7), (2, 4)], Range("t", (1, 2), (2, 4))) == [(1, 7), (2, 4)]


@pytest.mark.parametrize("first", [(1, 4), (2, 0), (2, 5)])
def test_a_start_that_is_gone_is_data_loss(monkeypatch: pytest.MonkeyPatch, first: Place) -> None:
    wanted = Range("t", (1, 2), (2, 9))
    with pytest.raises(DataLossError, match=r"\(1, 2\), which was read last, is gone"):
        read(monkeypatch, [first, (2, 9)], wanted)
    assert read(monkeypatch, [first, (2, 9)], wanted, failOnDataLoss="false") == [first, (2, 9)]


def test_what_is_known_to_come_next_needs_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Range("t", (1, 2), (2, 1), next_known=(2, 0))
    assert read(monkeypatch, [(2, 0), (2, 1)], known) == [(2, 0), (2, 1)]
    assert read(monkeypatch, [(1, 3), (2, 1)], Range("t", (1, 2), (2, 1))) == [(1, 3), (2, 1)], "the very next entry"
    with pytest.raises(DataLossError):
        read(monkeypatch, [(2, 1)], known)


@pytest.mark.parametrize("there", [[(1, 2), (1, 3)], [(1, 2), (1, 3), (1, 9)], [(1, 2)], []])
def test_an_end_that_is_gone_is_data_loss(monkeypatch: pytest.MonkeyPatch, there: list[Place]) -> None:
    with pytest.raises(DataLossError, match="are missing"):
        read(monkeypatch, there, Range("t", (1, 2), (1, 5)))


def test_an_end_by_time_need_not_be_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Range("t", NOTHING, (1, 5), ends_visibly=False)
    assert read(monkeypatch, [(1, 3), (1, 9)], wanted) == [(1, 3)]


def test_limits_are_shared_and_reached_by_rows_or_bytes() -> None:
    limit = Limit(rows=10, size=1000)
    assert limit.shared(3) == Limit(3, 333)
    assert limit.less(4, 2000) == Limit(6, 0)
    assert limit.is_reached(10, 0)
    assert limit.is_reached(0, 1000)
    assert not limit.is_reached(9, 999)
    assert not Limit().is_reached(10**9, 10**9)


def test_small_ranges_share_tasks_about_evenly() -> None:
    many = [Range(f"t{number}", (1, 0), (1, size)) for number, size in enumerate([100, 1, 1, 50, 50])]
    work = together(many, 2)
    assert sorted(sum(entries_in(each) for each in one.ranges) for one in work) == [101, 101]
    assert [one.ranges for one in together(many, None)] == [(each,) for each in many]


def test_patience_ends_after_its_time_and_starts_anew_after_an_answer() -> None:
    now = 0.0
    patience = Patience(10_000, now=lambda: now)
    patience.failed(ConnectionLost("away"), "asking")
    now = 9.0
    patience.failed(ConnectionLost("away"), "asking")
    assert patience.waited == 9.0
    patience.worked()
    now = 12.0
    patience.failed(ConnectionLost("away"), "asking")
    now = 22.0
    with pytest.raises(ConnectionLost) as caught:
        patience.failed(ConnectionLost("away"), "asking")
    assert "failAfterMs" in caught.value.__notes__[0]


@pytest.mark.parametrize("error", [TopicNotFound("gone"), AuthorizationError("no"), ValueError("x")])
def test_patience_is_only_for_what_passes(error: Exception) -> None:
    with pytest.raises(type(error)):
        Patience(10_000).failed(error, "asking")
