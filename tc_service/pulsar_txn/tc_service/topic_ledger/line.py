"""Keeps a producer or a reader of one topic attached to the broker that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pulsar_txn.client.errors import ConnectionLost, PulsarError
from pulsar_txn.client.inside import Connection
from pulsar_txn.tc_service.cluster.brokers import Brokers, LookupFailed

logger = logging.getLogger("pulsar_txn.tc_service")

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LAST: Final = len(_PAUSES) - 1
_NEWS: Final = frozenset(5 << doubling for doubling in range(20))


def pause_seconds(failures: int) -> float:
    """Return how long to wait after so many failures in a row."""
    return _PAUSES[min(failures, _LAST)]


def level_of(failures: int) -> int:
    """Return how loudly to speak of one more failure in a row: the sixth, the eleventh and the twenty-first… are news."""
    return logging.WARNING if failures in _NEWS else logging.DEBUG


def as_pulsar_error(error: LookupFailed) -> PulsarError:
    """Return why the owner of a topic was not found."""
    cause = error.__cause__
    return cause if isinstance(cause, PulsarError) else ConnectionLost(f"the broker of {error} was not found")


class Line:
    """One tie to the owner of `topic`.

    `open_on(connection)` introduces us there. `on_lost()` is called when an established tie ends; then it is made again by
    itself, until it is there, or an error for which `is_final` says so: `on_failed(error)`, and nothing more is tried.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        *,
        open_on: Callable[[Connection], Awaitable[None]],
        on_lost: Callable[[], None],
        on_failed: Callable[[PulsarError], None],
        is_final: Callable[[PulsarError], bool],
    ) -> None:
        self.topic = topic
        self.connection: Connection | None = None
        self._brokers = brokers
        self._open_on = open_on
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._is_final = is_final
        self._broken = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def attach(self) -> None:
        """One attempt. Raises PulsarError. If cancelled: `open_on` has cleaned up after itself."""
        try:
            connection = await self._brokers.owner(self.topic)
        except LookupFailed as error:
            raise as_pulsar_error(error) from None
        self._broken = False
        connection.listeners.add(self)
        try:
            await self._open_on(connection)
        except BaseException:
            connection.listeners.discard(self)
            raise
        if self._broken or connection.closed or self._closed:
            connection.listeners.discard(self)
            raise ConnectionLost(f"the connection for {self.topic} broke while it opened", endpoint=connection.endpoint)
        self.connection = connection

    def keep_trying(self, failures: int = 0) -> None:
        """Attach in the background; not at once after failures."""
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._attach_again(failures))

    def on_connection_lost(self, connection: Connection, _error: PulsarError) -> None:
        """The connection's call: it is gone."""
        if connection is self.connection:
            self.detach()
        else:
            self._broken = True

    def detach(self, failures: int = 0) -> None:
        """The tie has ended, whatever the connection is: make another one. `failures`: ties in a row that were of no use."""
        self._broken = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listeners.discard(self)
            if not self._closed:
                self._on_lost()
                self.keep_trying(failures)

    async def close(self) -> None:
        """Stop; tells nobody. Idempotent."""
        self._closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listeners.discard(self)
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])

    async def _attach_again(self, failures: int) -> None:
        if failures:
            await asyncio.sleep(pause_seconds(failures - 1))
        while not self._closed:
            try:
                await self.attach()
            except PulsarError as error:
                if self._is_final(error):
                    self._on_failed(error)
                    return
                logger.debug("%s: attached not yet: %s", self.topic, error)
            else:
                return
            await asyncio.sleep(pause_seconds(failures))
            failures += 1
