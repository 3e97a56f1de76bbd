"""What the tests of transactions do to every kind of server: make topics, read what is visible, cut connections."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from targets import Target

from pulsar_txn.client import EARLIEST_ID, Client, Consumer, Message, OperationTimeout
from pulsar_txn.client.runtime import AsyncioRuntime
from pulsar_txn.wire.frames import FrameReader, frame_type

PATIENCE: Final = 20.0
"""Seconds to wait for what has to come: servers share two cores with everything else."""
QUIET: Final = 0.3
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
    """Connections that can be cut: all of them now, or the one on which a certain frame is about to come or go.

    Each trap is a command type, works once, and is then None again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taps: set[_Tap] = set()
        self.cut_before: int | None = None
        """The first such frame that comes is lost, and its connection is cut."""
        self.swallow: int | None = None
        """The first such frame that comes is lost, and nothing else happens."""
        self.cut_instead_of: int | None = None
        """The first such frame that is to go never leaves, and its connection is cut."""
        self.cut_behind: int | None = None
        """The first such frame that is to go reaches the server, and then its connection is cut, before any answer."""
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

    def sprung(self, trap: str, frame: bytes) -> bool:
        """Whether this frame is the one that a trap waits for; then it waits no more."""
        if getattr(self, trap) != frame_type(frame):
            return False
        setattr(self, trap, None)
        return True


class _Outgoing(asyncio.Transport):
    """What the client writes to: a transport that looks at the frames that go."""

    def __init__(self, tap: _Tap, transport: asyncio.Transport) -> None:
        super().__init__()
        self._tap = tap
        self._transport = transport
        self._frames = FrameReader()

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, data: Iterable[Any]) -> None:
        for frame in self._frames.feed(b"".join(data)):
            if self._transport.is_closing():
                return
            if self._tap.runtime.sprung("cut_instead_of", frame):
                self._tap.cut()
                return
            self._transport.write(len(frame).to_bytes(4) + frame)
            if self._tap.runtime.sprung("cut_behind", frame):
                self._tap.runtime.cuts += 1
                self._tap.deaf = True
                self._transport.close()  # what was written goes out first

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class _Tap(asyncio.Protocol):
    def __init__(self, runtime: CuttingRuntime, inner: asyncio.BaseProtocol) -> None:
        self.runtime = runtime
        self.deaf = False
        self._inner = inner
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.runtime._taps.add(self)
        self._inner.connection_made(_Outgoing(self, transport))

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._inner, asyncio.Protocol)
        for frame in self._frames.feed(data):
            if self.deaf:
                return
            if self.runtime.sprung("cut_before", frame):
                self.cut()
                return
            if not self.runtime.sprung("swallow", frame):
                self._inner.data_received(len(frame).to_bytes(4) + frame)

    def cut(self) -> None:
        assert self._transport is not None
        self.runtime.cuts += 1
        self.deaf = True
        self._transport.abort()

    def eof_received(self) -> bool | None:
        assert isinstance(self._inner, asyncio.Protocol)
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.runtime._taps.discard(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
