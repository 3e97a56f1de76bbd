"""A block that may take so long, and what the program is told when it takes longer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pulsar_txn.client.errors import OperationTimeout, PulsarError


@asynccontextmanager
async def bounded(seconds: float, text: str, hint: str | None = None) -> AsyncIterator[None]:
    """Raise OperationTimeout with this text when the block takes more than `seconds`; `math.inf` never does.

    What the block raises itself is passed on, an OperationTimeout of its own too.
    """
    try:
        async with asyncio.timeout(None if seconds == math.inf else seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, PulsarError):
            raise
        raise OperationTimeout(text, hint=hint) from None
