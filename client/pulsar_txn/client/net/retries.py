"""Attempts that are made again, and lookups that are."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

from pulsar_txn.client._tracebacks import shortened
from pulsar_txn.client.errors import OperationTimeout, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.topics import TopicName


class Retries:
    """Attempts until one succeeds, fails with an error that is not retriable, or `timeout` seconds are over.

    Then the last error is raised as it was, with a note; OperationTimeout when no error was met. The operation timeout is taken
    without `timeout`; `math.inf` never gives up. Each attempt is a block:

        retries = Retries(core, "looking up …")
        while True:
            async with retries:
                return await …
    """

    def __init__(self, core: Core, what: str, timeout: float | None = None) -> None:
        self._core = core
        self._what = what
        self._seconds = core.settings.operation_timeout if timeout is None else timeout
        self._deadline = core.runtime.monotonic() + self._seconds
        self._backoff = core.backoff()
        self._pause = 0.0
        self._last: PulsarError | None = None
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        if self._pause:
            await self._core.rest(self._pause)
        self._core.check_open()
        self._limit = asyncio.timeout_at(None if self._seconds == math.inf else self._deadline)
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        over = isinstance(error, TimeoutError) and not isinstance(error, PulsarError)
        try:
            await self._limit.__aexit__(kind, error, at)
        except TimeoutError:
            over = True
        if over:
            self._last = self._last or OperationTimeout(f"{self._what} did not finish in time")
            raise self._given_up(self._last) from None
        if not isinstance(error, PulsarError):
            return False
        if not error.retriable and not isinstance(error, TimeoutError):
            shortened(error)
            return False
        self._last = error
        self._pause = 0.0 if error.paced and not isinstance(error, TimeoutError) else self._backoff.next()
        if self._pause and self._core.runtime.monotonic() + self._pause >= self._deadline:
            self._given_up(error)
            return False
        return True

    def _given_up(self, error: PulsarError) -> PulsarError:
        error.add_note(f"{self._what}: given up after {self._seconds:g} s of attempts")
        return shortened(error)


async def count_partitions(core: Core, topic: TopicName, *, create: bool = True) -> int:
    """Count the partitions of a topic, 0 for a partition. `create`: as `Lookup.partitions`. Raises as `Retries`."""
    if topic.partition >= 0:
        return 0
    retries = Retries(core, f"looking up {topic}")
    while True:
        async with retries:
            return await core.lookup.partitions(str(topic), create=create)


async def find_schema(core: Core, topic: str, version: bytes = b"") -> pb.Schema | None:
    """The newest schema of a topic, or a version of it; None if absent. Raises as `Retries`."""
    retries = Retries(core, f"asking for {topic}'s schema")
    while True:
        async with retries:
            return await core.lookup.schema(topic, version)
