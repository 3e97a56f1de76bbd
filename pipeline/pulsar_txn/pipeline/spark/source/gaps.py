"""Gaps in the entries of a range, and whether something was lost there.

Positions do not tell: a gap may be the end of a ledger, transactions' markers, or entries of aborted transactions. But a topic
loses its oldest entries first. So while the entry before a gap is still there, nothing in the gap was lost. It is looked for
at once, in the background. When the topic now begins within the gap, the reader may have been too late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from pulsar_txn.pipeline.spark.source.offsets import Place

_PAUSE_SECONDS: Final = 0.25
"""Between two looks: a topic with transactions has many gaps, and one look answers for all that came meanwhile."""

Gap = tuple[Place, Place]


class Gaps:
    """The gaps of one range. Use it on the client's loop."""

    def __init__(self, first_visible: Callable[[Place], Awaitable[Place | None]]) -> None:
        """`first_visible(place)`: the first visible entry from `place` on that is there now."""
        self._first_visible = first_visible
        self._unknown: list[Gap] = []
        self._lost: list[Gap] = []
        self._looking: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def add(self, before: Place, after: Place) -> None:
        """The entry `after` came next after `before`."""
        self._unknown.append((before, after))
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._unknown:
            gaps, self._unknown = self._unknown, []
            first = await self._first_visible(gaps[0][0])
            self._lost += [gap for gap in gaps if first is not None and gap[0] < first <= gap[1]]
            if not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_SECONDS):
                        await self._hurry.wait()
        self._looking = None

    def lost(self) -> list[Gap]:
        """Gaps in which entries may be missing, as far as is known; each is told once. Raises what ended the looking."""
        if self._looking is not None and self._looking.done():
            self._looking.result()
        lost, self._lost = self._lost, []
        return lost

    async def settled(self) -> list[Gap]:
        """The same, once all gaps were looked at."""
        self._hurry.set()
        if self._looking is not None:
            await self._looking
        return self.lost()

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking.cancelled() or self._looking.exception()  # nobody asks for it any more
