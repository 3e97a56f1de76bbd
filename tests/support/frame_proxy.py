"""A proxy between a client and a broker that knows frames, and does to them what networks do to bytes.

    async with FrameProxy(pulsar.service_url) as proxy, Client(proxy.service_url) as client:
        trap = proxy.arm("endTxn", Fault.RESET_AFTER)
        ...
        assert trap.sprung

Lookup answers are rewritten, so that a client stays behind the proxy; with `apart` each topic, and each coordinator, has an
address of its own, as if each was served by another broker. Frames are never reordered or repeated within a connection:
TCP does not do that. Commands are called by their field of BaseCommand.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from pulsar_txn.client import AsyncClient
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import NAMES, FrameReader, decode_command, encode_command, frame_type

DELAY_SECONDS: Final = 0.2
COALESCING_SECONDS: Final = 0.05
_RESET: Final = struct.pack("ii", 1, 0)


class Fault(enum.Enum):
    """What happens to a frame, and to the answer to it."""

    RESET_BEFORE = "reset before"
    """The frame is lost and both sides are reset: the other side has never seen it."""
    TORN = "torn"
    """Half of the frame gets through, and then the end of the stream; the other side is reset."""
    RESET_MEANWHILE = "reset meanwhile"
    """The frame gets through, and at once, while the other side works on it, the stream ends; this side is reset."""
    RESET_AFTER = "reset after"
    """The frame gets through; once its answer has come in, that is lost and both sides are reset."""
    END_AFTER = "end after"
    """The frame and its answer get through, and then the stream ends."""
    LOST_ANSWER = "lost answer"
    """The frame gets through, its answer is lost, and nobody notices."""
    HALF_OPEN = "half-open"
    """From this frame on nothing gets through any more, either way, and neither side is told."""
    DELAY = "delay"
    """The frame waits, and what comes after it; so does its answer."""
    SEGMENTS = "segments"
    """The frame and its answer arrive byte by byte."""
    COALESCED = "coalesced"
    """The frame waits a little for others, and goes with them in one piece; so does its answer."""


_OF_ANSWERS: Final = frozenset(
    {Fault.RESET_AFTER, Fault.END_AFTER, Fault.LOST_ANSWER, Fault.DELAY, Fault.SEGMENTS, Fault.COALESCED}
)
"""What is done to the answer, alone or together with the request."""
_OF_ANSWERS_ALONE: Final = frozenset({Fault.RESET_AFTER, Fault.END_AFTER, Fault.LOST_ANSWER})
_PASSING: Final = frozenset({Fault.TORN, Fault.RESET_MEANWHILE, Fault.END_AFTER})
"""Something gets through before the end."""
Judge: TypeAlias = Callable[[str], Fault | None]
_Key: TypeAlias = tuple[Any, ...]


class Trap:
    """Waits for one frame of a command."""

    def __init__(self, command: str, fault: Fault) -> None:
        self.command = command
        self.fault = fault
        self._sprung = asyncio.Event()

    @property
    def sprung(self) -> bool:
        """Whether the frame came."""
        return self._sprung.is_set()

    async def wait(self) -> None:
        """Until it came."""
        await self._sprung.wait()

    def spring(self) -> None:
        """The frame is there."""
        self._sprung.set()


class FrameProxy:
    """Listens on free ports of the loopback; closing it resets every connection."""

    def __init__(self, service_url: str, *, apart: bool = False) -> None:
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        self._broker = host, int(port)
        self._apart = apart
        self._servers: dict[str, asyncio.Server] = {}
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._traps: list[Trap] = []
        self.judge: Judge | None = None
        """Asked about every frame from a client that no trap waits for."""
        self.unreachable = False
        """New connections are reset."""
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.address_of("")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for clients."""
        return f"pulsar://127.0.0.1:{self._servers[''].sockets[0].getsockname()[1]}"

    async def address_of(self, topic: str) -> str:
        """The URL under which a topic is served."""
        if topic not in self._servers:
            self._servers[topic] = await asyncio.start_server(partial(self._on_client, topic), "127.0.0.1", 0)
        return f"pulsar://127.0.0.1:{self._servers[topic].sockets[0].getsockname()[1]}"

    def arm(self, command: str, fault: Fault) -> Trap:
        """Have the next frame of this command meet the fault."""
        trap = Trap(command, fault)
        self._traps.append(trap)
        return trap

    def reset_all(self) -> None:
        """Reset every connection now."""
        for link in list(self._links):
            link.reset()

    def reset(self, topic: str) -> None:
        """Reset the connections to the address of one topic."""
        for link in list(self._links):
            if link.topic == topic:
                link.reset()

    def fault_for(self, command: str, *, from_client: bool) -> Fault | None:
        """What is to happen to a frame."""
        for trap in self._traps:
            if trap.command == command:
                self._traps.remove(trap)
                trap.spring()
                return trap.fault
        return self.judge(command) if from_client and self.judge is not None else None

    async def home_of(self, topic: str) -> str:
        """What lookups of a topic are answered with."""
        return await self.address_of(topic if self._apart else "")

    async def _on_client(self, topic: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        if self.unreachable:
            reset(writer)
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
        except OSError:
            reset(writer)
            return
        link = _Link(self, topic, writer, broker_writer)
        self._links.add(link)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy is closed; asyncio's server would log it
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(link.pump(reader, broker_writer, from_client=True))
                    pumps.create_task(link.pump(broker_reader, writer))
        finally:
            self._links.discard(link)
            link.reset()


class _Link:
    """One connection of a client, and its connection to the broker."""

    def __init__(self, proxy: FrameProxy, topic: str, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.topic = topic
        self._proxy = proxy
        self._writers = client, broker
        self._answers: dict[_Key, Fault] = {}
        self._looked_up: dict[int, str] = {}
        self._over = self._frozen = False

    def reset(self) -> None:
        """RST to both sides."""
        self._over = True
        for writer in self._writers:
            reset(writer)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_client: bool = False) -> None:
        """Forward frames of one direction until its end, or until a fault ends it."""
        frames = FrameReader()
        held = b""
        with contextlib.suppress(ConnectionError):
            while True:
                try:
                    async with asyncio.timeout(COALESCING_SECONDS if held else None):
                        data = await reader.read(65536)
                except TimeoutError:
                    writer.write(held)
                    held = b""
                    continue
                for frame in frames.feed(data):
                    await self._stop()
                    fault = self._fate(frame, from_client=from_client)
                    if fault is not None and fault is not Fault.COALESCED:
                        writer.write(held)
                        held = b""
                    held += await self._pass(frame, fault, writer)
                    if fault is not Fault.COALESCED:
                        writer.write(held)
                        held = b""
                await writer.drain()
                if not data:
                    break
        if self._frozen:
            await asyncio.Event().wait()
        writer.close()

    def _fate(self, frame: bytes, *, from_client: bool) -> Fault | None:
        """What is to happen to this frame; what is to happen to its answer is remembered."""
        name = NAMES.get(frame_type(frame), "")
        fault = self._proxy.fault_for(name, from_client=from_client)
        if from_client and fault in _OF_ANSWERS:
            self._answers[_key(frame, name)] = fault
            return None if fault in _OF_ANSWERS_ALONE else fault
        if not from_client and fault is None and self._answers:
            return self._answers.pop(_key(frame, name), None)
        return fault

    async def _pass(self, frame: bytes, fault: Fault | None, writer: asyncio.StreamWriter) -> bytes:
        """Do what is to happen to a frame; returns what of it is to be written in one piece."""
        whole = await self._rewritten(frame)
        if fault is None or fault is Fault.COALESCED:
            return whole
        if fault is Fault.DELAY:
            await asyncio.sleep(DELAY_SECONDS)
            return whole
        if fault is Fault.SEGMENTS:
            for position in range(len(whole)):
                writer.write(whole[position : position + 1])
                await asyncio.sleep(0)
            return b""
        if fault is Fault.LOST_ANSWER:
            return b""
        if fault is Fault.HALF_OPEN:
            self._frozen = True
        else:
            if fault in _PASSING:
                writer.write(whole[: len(whole) // 2] if fault is Fault.TORN else whole)
                writer.close()
            self.reset()
        await self._stop()
        return b""

    async def _stop(self) -> None:
        """Raise when this connection was reset; wait for ever when it is half-open."""
        if self._frozen:
            await asyncio.Event().wait()
        if self._over:
            raise ConnectionResetError

    async def _rewritten(self, frame: bytes) -> bytes:
        """The whole frame; addresses in answers to lookups are those of the proxy."""
        kind = frame_type(frame)
        if kind == pb.BaseCommand.LOOKUP:
            body = decode_command(frame).lookupTopic
            self._looked_up[body.request_id] = body.topic
        elif kind == pb.BaseCommand.LOOKUP_RESPONSE:
            answer = decode_command(frame)
            topic = self._looked_up.pop(answer.lookupTopicResponse.request_id, "")
            if answer.lookupTopicResponse.HasField("brokerServiceUrl"):
                answer.lookupTopicResponse.brokerServiceUrl = await self._proxy.home_of(topic)
                answer.lookupTopicResponse.proxy_through_service_url = False
            return encode_command(answer)
        return len(frame).to_bytes(4) + frame


def _key(frame: bytes, name: str) -> _Key:
    """What a request and its answer have in common."""
    if name in ("connect", "connected"):
        return ("connect",)
    body = getattr(decode_command(frame), name)
    if name in ("send", "send_receipt", "send_error"):
        return body.producer_id, body.sequence_id
    return (body.request_id if "request_id" in body.DESCRIPTOR.fields_by_name else name,)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST, at once, whatever waits to be sent."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()


def brisk_client(service_url: str, operation_timeout: float) -> AsyncClient:
    """A client that notices soon, and does not wait long."""
    return AsyncClient(
        service_url,
        operation_timeout=operation_timeout,
        connection_timeout=1.0,
        keep_alive_interval=0.3,
        initial_backoff=0.02,
        max_backoff=0.5,
    )
