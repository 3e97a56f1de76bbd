"""What the tests of transactions do to every kind of server: make topics, read what is visible, cut connections."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Callable
from typing import Final, TypeVar

from targets import Target

from pulsar_txn.client import EARLIEST_ID, Client, Consumer, Message, OperationTimeout
from pulsar_txn.client.runtime import AsyncioRuntime
from pulsar_txn.wire.frames import FrameReader, frame_type

PATIENCE: Final = 20.0
"""Seconds to wait for what has to come: servers share two cores with everything else."""
QUIET: Final = 0.7
"""Seconds of silence that are taken for "nothing comes"; where it matters, something sent later comes first."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def create_partitioned_topic(pulsar: Target, topic: str, partitions: int) -> None:
    """Create it over the admin interface."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(
        f"{pulsar.admin_url}/admin/v2/{path}/partitions",
        data=str(partitions).encode(),
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=PATIENCE)
    answer.close()


async def received(consumer: Consumer[bytes], count: int) -> list[Message[bytes]]:
    """The next `count` messages."""
    return [await consumer.receive(timeout=PATIENCE) for _ in range(count)]


async def data_of(consumer: Consumer[bytes], count: int) -> list[bytes]:
    """The payloads of the next `count` messages."""
    return [message.data for message in await received(consumer, count)]


async def stays_silent(consumer: Consumer[bytes]) -> bool:
    """Whether nothing comes for a while."""
    try:
        await consumer.receive(timeout=QUIET)
    except OperationTimeout:
        return True
    return False


async def visible(client: Client, topic: str) -> list[bytes]:
    """Every payload that a reader from the start finds now."""
    found = []
    async with await client.create_reader(topic, EARLIEST_ID) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next(timeout=PATIENCE)).data)
    return found


async def eventually_visible(client: Client, topic: str, expected: list[bytes]) -> bool:
    """Whether `expected` is what a reader finds, within a while; for what the server does by itself, like timeouts."""
    for _ in range(int(PATIENCE / 0.1)):
        if await visible(client, topic) == expected:
            return True
        await asyncio.sleep(0.1)
    return False


class CuttingRuntime(AsyncioRuntime):
    """Connections that can be cut: all of them now, or the one on which a certain frame is about to come or go."""

    def __init__(self) -> None:
        self._taps: set[_Tap] = set()
        self.cut_before: int | None = None
        """A command type: the first such frame is swallowed and its connection cut; then this is None again."""
        self.swallow: int | None = None
        """A command type: the first such frame is swallowed, and nothing else happens; then this is None again."""
        self.cuts = 0

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, ssl_context: ssl.SSLContext | None, server_hostname: str | None
    ) -> P:
        """Open a TCP connection through a tap."""
        protocol = factory()
        await super().connect(
            lambda: _Tap(self, protocol), host, port, ssl_context=ssl_context, server_hostname=server_hostname
        )
        return protocol

    def cut_all(self) -> None:
        """Cut every connection now."""
        for tap in list(self._taps):
            tap.cut()


class _Tap(asyncio.Protocol):
    def __init__(self, runtime: CuttingRuntime, inner: asyncio.BaseProtocol) -> None:
        self._runtime = runtime
        self._inner = inner
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._runtime._taps.add(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._inner, asyncio.Protocol)
        for frame in self._frames.feed(data):
            if frame_type(frame) == self._runtime.cut_before:
                self._runtime.cut_before = None
                self.cut()
                return
            if frame_type(frame) == self._runtime.swallow:
                self._runtime.swallow = None
                continue
            self._inner.data_received(len(frame).to_bytes(4) + frame)

    def cut(self) -> None:
        assert self._transport is not None
        self._runtime.cuts += 1
        self._transport.abort()

    def eof_received(self) -> bool | None:
        assert isinstance(self._inner, asyncio.Protocol)
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._runtime._taps.discard(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
