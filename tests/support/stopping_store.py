"""A sink's store whose process is gone, or sleeps, at one of its requests."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsar_txn.pipeline.spark.sink.store import GroupedSinkStore, PulsarSinkStore


class Stopped(BaseException):
    """The process is gone."""


class StoppingStore(PulsarSinkStore):
    """Stops at request number `stop_at`: before it when even, after it when odd; or waits there until it is `woken`."""

    stop_at = -1
    woken: asyncio.Event | None = None
    sleeps: asyncio.Event | None = None

    async def _perform(self, request: Any) -> Any:
        self.stop_at -= 2
        if self.stop_at == -2:
            await self._stop()
        reply = await super()._perform(request)
        if self.stop_at == -1:
            await self._stop()
        return reply

    async def _stop(self) -> None:
        if self.woken is None or self.sleeps is None:
            raise Stopped
        self.sleeps.set()
        await self.woken.wait()


class StoppingGroupedStore(StoppingStore, GroupedSinkStore):
    """The same for `delivery=grouped`."""
