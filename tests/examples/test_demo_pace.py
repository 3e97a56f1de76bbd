"""The publisher's pace: never faster than asked for, slower as flights get fewer, and all at once at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pandas")

from publisher import Pace


def test_there_are_flights_left_for_as_long_as_the_demo_may_take_and_the_rate_is_not_exceeded(tmp_path: Path) -> None:
    pace = Pace(50.0, tmp_path / "finish")
    left, seconds = 2000, 0.0
    while seconds < 1200:
        count, lasting = pace.portion(left, 2000)
        assert 1 <= count <= left
        assert count / lasting <= 50.0 + 1e-9
        left -= count
        seconds += lasting
    assert left > 0


def test_all_that_is_left_comes_at_once_when_the_file_appears(tmp_path: Path) -> None:
    pace = Pace(50.0, tmp_path / "finish")
    assert pace.portion(2000, 2000)[0] < 10
    (tmp_path / "finish").touch()
    assert pace.portion(1234, 2000) == (1234, 0.0)


async def test_a_wait_ends_when_the_file_appears(tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    await Pace(1.0, tmp_path / "finish").wait(3600)
