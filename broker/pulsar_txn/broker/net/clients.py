"""The connections of one server: how they are kept alive, held back while the store is full, and sent away at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from pulsar_txn.broker.base.repeating import Repeating
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn

from .intake import LOOKS

_logger = logging.getLogger(__name__)

_DRAIN_LOOK_SECONDS: Final = 0.005


class Client(Protocol):
    """A connection, as it is looked after; see `connection.Connection`."""

    @property
    def is_busy(self) -> bool:
        """True if something that this client asked for is not answered yet."""

    def pressure(self, *, high: bool) -> None:
        """The store has too much in flight, or has room again."""

    def tick(self) -> None:
        """Keep-alive."""

    def look(self) -> None:
        """From time to time: away with it if it does not say what it began to say."""

    def drain(self) -> None:
        """Take no further request; what was taken goes on."""

    def close(self) -> None:
        """Write what is collected and close."""


class Clients:
    """Those that are connected, in the order in which they came: `connections`, which the connections themselves keep."""

    def __init__(self, config: BrokerConfig, turn: Turn) -> None:
        self.connections: dict[Client, None] = {}
        self.under_pressure = False
        self._config = config
        self._turn = turn

    def start(self, repeating: Repeating) -> None:
        """Look after them from now on."""
        repeating.every(self._config.keep_alive_interval_seconds, self.keep_alive)
        repeating.every(self._config.incomplete_frame_timeout_seconds / LOOKS, self.look)

    def pressure(self, high: bool) -> None:
        """The store has too much in flight, or has room again."""
        self.under_pressure = high
        for connection in self.connections:
            connection.pressure(high=high)

    async def keep_alive(self) -> None:
        """Ask clients that were silent for long for a sign of life, and close those that gave none."""
        async for connection in self._turn.budget.each(list(self.connections)):
            connection.tick()

    async def look(self) -> None:
        """Away with clients that do not say what they began to say."""
        async for connection in self._turn.budget.each(list(self.connections)):
            connection.look()

    @property
    def is_busy(self) -> bool:
        """True if any of them waits for an answer."""
        return any(connection.is_busy for connection in self.connections)

    async def drain(self, is_busy: Callable[[], bool]) -> None:
        """Read nothing more and answer what was read, for half of `brokerShutdownTimeoutMs` at most.

        `is_busy`: whether any answer of the server is still to come.
        """
        for connection in self.connections:
            connection.drain()
        try:
            async with asyncio.timeout(self._config.broker_shutdown_timeout_ms / 2000):
                while is_busy():  # noqa: ASYNC110 - once per life; an event would cost every answer
                    await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        except TimeoutError:
            _logger.warning("the broker closed with unanswered requests; clients repeat them after a reconnect")

    def close(self) -> None:
        """Send all away."""
        for connection in list(self.connections):
            connection.close()
