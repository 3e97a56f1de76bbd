"""The measure of held loops: it counts the code under test, leaves the test's own work out, and knows slow machines."""

from __future__ import annotations

import asyncio
import time

import loop_blocks
import pytest
from loop_blocks import held_loop, work_of_the_test

SPUN_SECONDS = 0.1


def spin() -> None:
    """Use the processor so long, whatever else runs on it."""
    until = time.thread_time() + SPUN_SECONDS
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
async def test_a_turn_is_counted_in_seconds_of_a_machine_of_usual_speed(
    slowness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_blocks, "_reference_seconds", lambda: slowness * loop_blocks._USUAL_SECONDS)
    async with held_loop() as held:
        asyncio.get_running_loop().call_soon(spin)
        await asyncio.sleep(0)
    assert held.longest_seconds >= SPUN_SECONDS / max(1.0, slowness), held
    assert held.total_seconds >= held.longest_seconds


async def test_what_a_client_of_the_test_does_is_not_counted_and_what_follows_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_blocks, "_reference_seconds", lambda: loop_blocks._USUAL_SECONDS)
    async with held_loop() as held:
        with work_of_the_test(), held.not_counted():
            spin()
        await asyncio.sleep(0)
    assert 0 <= held.longest_seconds < SPUN_SECONDS, held
    async with held_loop() as held:
        with work_of_the_test():
            spin()
        spin()
    spin()
    assert SPUN_SECONDS <= held.longest_seconds < 2 * SPUN_SECONDS, held
