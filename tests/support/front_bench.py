"""The front of a coordinator service in the test's own loop: raw clients on one side, scripted brokers on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from coordinator_bench import Bench
from raw_client import RawClient

from pulsar_txn.broker.serving import AsyncioRuntime
from pulsar_txn.client.inside import AsyncioRuntime as ClientRuntime
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.tc_service.front.front import ClientsFront
from pulsar_txn.wire.frames import FrameReader, command, decode_command, frame_type

CONNECT, PING = 2, 18


class BrokerPipe(asyncio.Transport):
    """The front's end of a connection to a broker. `got`: frames without their total size; `raw`: all bytes."""

    def __init__(self, broker: ScriptedBroker, protocol: Any) -> None:
        super().__init__()
        self.broker = broker
        self.protocol = protocol
        self.got: list[bytes] = []
        self.raw = b""
        self.reading = True
        self.waiting = 0
        self.is_open = True
        self._reader = FrameReader(1 << 30)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """A test says when it is full."""

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return not self.is_open

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        data = b"".join(list_of_data)
        self.raw += data
        for frame in self._reader.feed(data):
            self.got.append(frame)
            answer = self.broker.script(frame)
            if answer:
                self.say(answer)

    def say(self, data: bytes) -> None:
        """Bytes from the broker."""
        asyncio.get_running_loop().call_soon(self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.is_open:
            self.protocol.data_received(data)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def kinds(self) -> list[int]:
        """The types of the commands that came."""
        return [frame_type(each) for each in self.got]


class ScriptedBroker:
    """Answers CONNECT and PING; `answers` has more, by the type of the command."""

    def __init__(self) -> None:
        self.pipes: list[BrokerPipe] = []
        self.answers: dict[int, Callable[[Any], bytes]] = {}
        self.refuses = False

    def script(self, frame: bytes) -> bytes:
        kind = frame_type(frame)
        if kind in self.answers:
            return self.answers[kind](decode_command(frame))
        if kind == CONNECT:
            return command("connected", server_version="scripted", protocol_version=21, max_message_size=5 << 20)
        return command("pong") if kind == PING else b""


class FrontRuntime(ClientRuntime):
    """Connections lead to scripted brokers, by `host:port`."""

    def __init__(self, brokers: dict[str, ScriptedBroker]) -> None:
        super().__init__()
        self.brokers = brokers
        self.connects: list[str] = []
        self.pipes: list[BrokerPipe] = []

    async def connect(self, factory: Any, host: str, port: int, **_tls: Any) -> Any:
        self.connects.append(f"{host}:{port}")
        broker = self.brokers.get(f"{host}:{port}")
        if broker is None or broker.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        pipe = BrokerPipe(broker, protocol)
        broker.pipes.append(pipe)
        self.pipes.append(pipe)
        protocol.connection_made(pipe)
        return protocol


class FrontClient(RawClient):
    """A raw client of the front. `connect`: fields of its CONNECT."""

    def __init__(self, front: ClientsFront, **connect: Any) -> None:
        self._connect = connect
        super().__init__(front)  # type: ignore[arg-type]  # it wants connections, and nothing else of a broker

    def raw(self, data: bytes) -> None:
        if self._connect and b"raw" in data:
            fields, self._connect = self._connect, {}
            data = command("connect", client_version="raw", protocol_version=21, **fields)
        super().raw(data)

    async def ready(self) -> FrontClient:
        """The broker has let it in."""
        await self.until(lambda: any(name == "connected" for name, _ in self.events), "CONNECTED")
        return self

    @property
    def refused(self) -> str:
        """Why it was sent away; empty when it was not."""
        errors = [body.message for all_ in self._answers.values() for body in all_ if body.DESCRIPTOR.name == "CommandError"]
        return errors[0] if errors and self.pipe.closed else ""


class FrontBench(Bench):
    """A service with a front for the cluster east, whose brokers are b1:6650 and b2:6650. `config` as of the service."""

    def __init__(self, *names: str, **config: Any) -> None:
        super().__init__(*(names or ("east",)), **{"front_service_port": 0, "front_cluster": "east", **config})
        self.brokers = {"b1:6650": ScriptedBroker(), "b2:6650": ScriptedBroker()}
        self.keys = config
        self.front: ClientsFront
        self.runtime = FrontRuntime(self.brokers)

    async def start(self) -> FrontBench:
        await super().start()
        coordinators = self.service.front_coordinators
        if coordinators is not None:
            await coordinators.wait_ready()
        if self.config.has_front:
            where = {"east": ClusterConfig(service_url="pulsar://b1:6650,b2:6650")}
            self.front = ClientsFront(self.service, self.config, where, AsyncioRuntime(), self.runtime)
            self.front.services.service_url = "pulsar://front:6652"
        return self

    @property
    def broker(self) -> BrokerPipe:
        """The newest connection to a broker."""
        return self.runtime.pipes[-1]

    async def joined(self, **connect: Any) -> FrontClient:
        """A client that the broker has let in."""
        return await FrontClient(self.front, **connect).ready()
