"""The TLS handshakes of a listener. They are bounded in time, and each one counts as a connection of its address.

A connection that has not finished its handshake is not yet a connection of any server: nobody else would count it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from pulsar_txn.broker.base.limits import Limits

_logger = logging.getLogger(__name__)


class Handshakes:
    """Makes the protocols of a listener with TLS; `open_protocol` makes the one that goes on after the handshake.

    `context` gives the TLS of each of them.

    `seconds`: how long a handshake may take. `limits`: where it counts as a connection until it is through.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        open_protocol: Callable[[], asyncio.Protocol],
        limits: Limits,
        seconds: float,
    ) -> None:
        self.context = context
        self.open_protocol = open_protocol
        self.limits = limits
        self.seconds = seconds
        self._under_way: set[asyncio.Task[None]] = set()

    def __call__(self) -> asyncio.Protocol:
        """A protocol for a new connection."""
        return _Newcomer(self)

    def close(self) -> None:
        """Away with those that are not through."""
        for task in self._under_way:
            task.cancel()

    def begin(self, transport: asyncio.Transport, said: list[bytes]) -> None:
        """A connection has come. `said`: what it brings before its handshake is looked at."""
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport, said))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _shake_hands(self, transport: asyncio.Transport, said: list[bytes]) -> None:
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        reached = self.limits.enter(address)
        if reached is not None:
            _logger.info("connection from %s is refused: %s", peer, reached)
            transport.abort()
            return
        early = _Early()
        loop = asyncio.get_running_loop()
        try:
            handshake = loop.create_task(
                loop.start_tls(transport, early, self.context(), server_side=True, ssl_handshake_timeout=self.seconds)
            )
            await asyncio.sleep(0)  # it has begun, and its protocol is connected in the next turn, before this:
            loop.call_soon(_give, transport, said)
            secured = await handshake
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            _logger.info("connection from %s is closed: no TLS handshake: %s", peer, error)
            transport.abort()
            return
        finally:
            self.limits.leave(address)
        if secured is not None and not secured.is_closing():
            early.hand_over(secured, self.open_protocol())


class _Newcomer(asyncio.Protocol):
    """A connection before its handshake."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._said: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing before the handshake does."""
        chosen = cast("asyncio.Transport", transport)
        chosen.pause_reading()
        self._handshakes.begin(chosen, self._said)

    def data_received(self, data: bytes) -> None:
        """uvloop begins to read after `connection_made`, whatever that has asked for: the handshake gets it."""
        self._said.append(data)


def _give(transport: asyncio.Transport, said: list[bytes]) -> None:
    """Hand to the handshake what came before it."""
    protocol: Any = transport.get_protocol()
    if transport.is_closing() or isinstance(protocol, _Newcomer):
        return
    for data in said:
        room = memoryview(protocol.get_buffer(len(data)))
        room[: len(data)] = data
        protocol.buffer_updated(len(data))


class _Early(asyncio.Protocol):
    """Protocol that keeps what comes together with the end of a handshake for the one that goes on."""

    def __init__(self) -> None:
        self._said: list[bytes] = []
        self._ended = False

    def data_received(self, data: bytes) -> None:
        """Not more than one read brings: the next turn of the loop hands over."""
        self._said.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up: nobody will go on."""
        self._ended = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Let `protocol` go on."""
        if self._ended:
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._said:
            protocol.data_received(data)
