"""What a block that is bounded in time raises: a timeout with a text when it takes too long, and what it raises itself."""

from __future__ import annotations

import asyncio
import math

import pytest

from pulsar_txn.client.errors import OperationTimeout
from pulsar_txn.client.net.bounded import bounded


async def test_a_block_that_takes_too_long_is_told_so_with_the_text_and_the_hint() -> None:
    with pytest.raises(OperationTimeout, match="it is late: go on"):
        async with bounded(0.001, "it is late", hint="go on"):
            await asyncio.Event().wait()


async def test_a_timeout_of_the_block_itself_is_passed_on() -> None:
    with pytest.raises(OperationTimeout, match="of the broker"):
        async with bounded(5, "it is late"):
            raise OperationTimeout("of the broker")


async def test_a_block_without_a_bound_and_one_that_is_cancelled_are_left_alone() -> None:
    async with bounded(math.inf, "never"):
        pass

    async def waits() -> None:
        async with bounded(math.inf, "never"):
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
