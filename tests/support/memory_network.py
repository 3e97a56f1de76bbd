"""A client and a broker in one process: in-memory pipes, virtual time, one random source, and a record of every byte."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any


class _NothingToSelect:
    """A selector without descriptors: where a real one would wait, virtual time passes."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def register(self, *_args: Any) -> None:
        """The loop's own wake-up socket; nothing else is ever registered."""

    def unregister(self, *_args: Any) -> None:
        """As `register`."""

    def modify(self, *_args: Any) -> None:
        """As `register`."""

    def get_key(self, descriptor: Any) -> Any:
        raise KeyError(descriptor)

    def get_map(self) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits and no timer is set: this program would hang for ever")
        assert self.loop is not None
        self.loop.passed += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, and then at once."""

    def __init__(self) -> None:
        selector = _NothingToSelect()
        self.passed = 0.0
        super().__init__(selector)  # type: ignore[arg-type]  # as much of a selector as the loop uses
        selector.loop = self

    def time(self) -> float:
        return self.passed


class _Pipe(asyncio.Transport):
    """One end of a connection. Bytes arrive at the other end `latency` seconds later, in order."""

    def __init__(self, network: MemoryNetwork, label: str) -> None:
        super().__init__()
        self.network = network
        self.label = label
        self.peer: _Pipe
        self.protocol: asyncio.Protocol
        self.closed = False
        self._paused = False
        self._arriving: deque[bytes] = deque()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        if self.closed or not data:
            return
        copy = bytes(data)
        self.network.record(self.label, copy)
        self.peer._arriving.append(copy)  # timers that are due at one time come in any order, and bytes do not
        self.network.loop.call_later(self.network.latency, self.peer.receive)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def receive(self) -> None:
        """Take what came first, unless it was taken already, or waits until reading goes on."""
        if self._arriving and not self._paused:
            data = self._arriving.popleft()
            if not self.closed:
                self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        for _ in self._arriving:
            self.network.loop.call_soon(self.receive)

    def is_reading(self) -> bool:
        return not self._paused

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pipes have no bound."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.loop.call_soon(self.protocol.connection_lost, None)
            self.network.loop.call_later(self.network.latency, self.peer.close)

    abort = close


class _Listener:
    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self._network = network
        self.port = port

    async def close(self) -> None:
        self._network.listening.pop(self.port, None)


class MemoryNetwork:
    """The runtime of both rooms: `listen` for the broker, `connect` for the client, one clock and one random source."""

    def __init__(self, loop: VirtualLoop, seed: int, latency: float = 0.0005) -> None:
        self.loop = loop
        self.latency = latency
        self.listening: dict[int, Callable[[], asyncio.Protocol]] = {}
        self.pipes: list[tuple[_Pipe, _Pipe]] = []
        """Both ends of every connection: the client's, the broker's."""
        self.frames = 0
        self._random = random.Random(seed)
        self._digest = hashlib.sha256()
        self._connections = 0

    def record(self, label: str, data: bytes) -> None:
        """Part of what is compared: who wrote what, when."""
        self.frames += 1
        self._digest.update(f"{label} {self.loop.time():.9f} {len(data)} ".encode() + data)

    def digest(self) -> str:
        """Of every byte on every pipe, its direction and its time."""
        return self._digest.hexdigest()

    async def listen(self, host: str, port: int, protocol_factory: Callable[[], asyncio.Protocol]) -> _Listener:
        port = port or 6650 + len(self.listening)
        if port in self.listening:
            raise OSError(98, "Address already in use")
        self.listening[port] = protocol_factory
        return _Listener(self, port)

    async def connect(self, factory: Callable[[], Any], host: str, port: int, **_tls: Any) -> Any:
        await asyncio.sleep(self.latency)
        accept = self.listening.get(port)
        if accept is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._connections += 1
        near, far = _Pipe(self, f">{self._connections}"), _Pipe(self, f"<{self._connections}")
        near.peer, far.peer = far, near
        self.pipes.append((near, far))
        near.protocol, far.protocol = factory(), accept()
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near.protocol

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.time() * 1000)

    def monotonic(self) -> float:
        return self.loop.time()

    def random(self) -> float:
        return self._random.random()

    def secret(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def cut(self) -> list[_Pipe]:
        """Cut every connection without a word, and forget the listeners; the clients' ends, to be closed."""
        self.listening.clear()
        ends, self.pipes = self.pipes, []
        for _, far in ends:
            far.closed = True
        return [near for near, _ in ends if not near.closed]

    def descriptors(self) -> int | None:
        return None

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay, callback, *args)


def run_virtual(main: Callable[[MemoryNetwork], Coroutine[Any, Any, Any]], seed: int = 1) -> tuple[Any, MemoryNetwork]:
    """Run `main(network)` to its end on a loop of its own; returns its result and the network."""
    loop = VirtualLoop()
    network = MemoryNetwork(loop, seed)
    try:
        return loop.run_until_complete(main(network)), network
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
