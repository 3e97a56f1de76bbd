"""Segments that nobody needs are recycled, each once, whatever else goes on."""

from __future__ import annotations

import asyncio

import pytest
from journal_world import Workload, settled, simulated_store
from simulated_files import SimulatedFiles


@pytest.mark.parametrize("seed", range(8))
async def test_a_segment_that_is_not_needed_any_more_while_it_is_copied_is_recycled_once(seed):
    """Twice was a KeyError in the middle of a confirmation: what else waited for that group never heard of it."""
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with simulated_store(SimulatedFiles()) as store:
        await Workload(store, seed).run(900)
        await settled(store)
        assert failures == []
