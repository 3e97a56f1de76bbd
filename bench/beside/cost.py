"""What a transaction costs our coordinator: CPU of its process, beside a cluster and clients that are made up.

    python bench/beside/cost.py                          all rows, 64 in flight and one at a time
    python bench/beside/cost.py --against DIR/bin/python the same beside the code of another environment, by turns
    python bench/beside/cost.py --profile FILE           cProfile of the coordinator, one row; calls for each transaction

The coordinator is a process as users run it, with its journal. Cluster and clients are this process: a broker that answers
every end at once, and clients of bare frames, so what is left is the coordinator's. CPU is that of its event loop's process,
without its sync helper, as the kernel counts it (`schedstat`). An end that is repeated is told once more after a second, as
in `rounds`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pstats
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests" / "support")]

from our_broker import OurBroker  # noqa: E402
from our_coordinator import OurCoordinator  # noqa: E402 - the fixtures of the tests

from pulsar_txn.broker.serving import loop_factory  # noqa: E402
from pulsar_txn.wire import hot_txn  # noqa: E402
from pulsar_txn.wire import pulsar_pb2 as pb  # noqa: E402
from pulsar_txn.wire.frames import NAMES, FrameReader, command, decode_command, frame_type  # noqa: E402
from pulsar_txn.wire.ids import TxnAction, TxnId  # noqa: E402

FIRST: Final = (
    ("persistent://public/default/cost-out", None, "it"),
    ("persistent://public/default/cost-in", "s", "it"),
)
REPEAT_SECONDS: Final = 1
ROWS: Final = {
    "produce 1 + ack 1, 64 in flight": (64, 1),
    "produce 1, 64 in flight": (64, 0),
    "produce 1 + ack 1, one at a time": (1, 1),
    "produce 1, one at a time": (1, 0),
}
_MAIN: Final = "from pulsar_txn.broker.cli import main; main()"
_PROFILED: Final = """
import cProfile, os, signal, sys, time
from pulsar_txn.broker.cli import main
profile = cProfile.Profile()
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
signal.signal(signal.SIGUSR2, lambda *_: (profile.disable(), profile.dump_stats(os.environ["COST_PROFILE"])))
main()
"""
_COMMIT: Final = partial(hot_txn.encode_end_txn, all_answered=True)
_SILENT: Final = frozenset({pb.BaseCommand.PONG})


class Stream(asyncio.Protocol):
    """Frames in, bytes out; what is written in one turn leaves together."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """The peer is there."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take each frame, then write what came of them."""
        for frame in self._reader.feed(data):
            self.take(frame_type(frame), frame)
        self.flush()

    def write(self, data: bytes) -> None:
        """At the end of the turn."""
        self._out.append(data)

    def flush(self) -> None:
        """Now."""
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def take(self, kind: int, frame: bytes) -> None:
        """A frame came."""
        raise NotImplementedError


class Broker(Stream):
    """The cluster: it owns every topic but those of the claims, which a broker of ours has, and takes every end."""

    ends = 0
    port = 0
    claims_url = ""

    def take(self, kind: int, frame: bytes) -> None:
        """Answer."""
        if kind in _SILENT:
            return
        body = getattr(decode_command(frame), NAMES[kind])
        if kind in (pb.BaseCommand.END_TXN_ON_PARTITION, pb.BaseCommand.END_TXN_ON_SUBSCRIPTION):
            Broker.ends += 1
            ids = {"txnid_least_bits": body.txnid_least_bits, "txnid_most_bits": body.txnid_most_bits}
            self.write(command(f"{NAMES[kind]}Response", request_id=body.request_id, **ids))
        elif kind == pb.BaseCommand.CONNECT:
            self.write(command("connected", server_version="cost", protocol_version=21, max_message_size=5 << 20))
        elif kind == pb.BaseCommand.PING:
            self.write(command("pong"))
        elif kind == pb.BaseCommand.LOOKUP:
            found = {"response": pb.CommandLookupTopicResponse.Connect, "authoritative": True}
            url = Broker.claims_url if "/pulsar-txn-claims" in body.topic else f"pulsar://127.0.0.1:{Broker.port}"
            self.write(command("lookupTopicResponse", request_id=body.request_id, brokerServiceUrl=url, **found))
        elif kind == pb.BaseCommand.PARTITIONED_METADATA:
            success = pb.CommandPartitionedTopicMetadataResponse.Success
            self.write(command("partitionMetadataResponse", request_id=body.request_id, partitions=0, response=success))
        else:
            self.write(command("tcClientConnectResponse", request_id=body.request_id))


class Client(Stream):
    """Clients of the coordinator: so many transactions at a time, until it is time."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0
        self._ids = 0
        self._next: dict[int, Callable[[Any], None]] = {}
        self._until = 0.0
        self._acks = 0
        self._running = 0
        self._over: asyncio.Future[None] | None = None

    async def ask(self, name: str, **fields: Any) -> None:
        """A request that is not counted."""
        answered = asyncio.get_running_loop().create_future()
        self._ids += 1
        if name == "connect":
            self._next[0] = answered.set_result
            self.write(command(name, **fields))
        else:
            self._next[self._ids] = answered.set_result
            self.write(command(name, request_id=self._ids, **fields))
        self.flush()
        await answered

    async def run(self, in_flight: int, acks: int, seconds: float) -> int:
        """How many transactions have ended."""
        self.done, self._acks, self._until = 0, acks, time.perf_counter() + seconds
        self._over = asyncio.get_running_loop().create_future()
        self._running = in_flight
        for _ in range(in_flight):
            self._begin()
        self.flush()
        await self._over
        return self.done

    def take(self, kind: int, frame: bytes) -> None:
        """Go on with the transaction whose answer it is."""
        if kind in hot_txn.RESPONSES:
            request_id, txn_id, error, message = hot_txn.decode_response(frame, kind)
            if error is not None:
                raise RuntimeError(f"{NAMES[kind]}: {error} {message}")
            self._next.pop(request_id)(txn_id)
        elif kind == pb.BaseCommand.PING:
            self.write(command("pong"))
        elif kind == pb.BaseCommand.CONNECTED:
            self._next.pop(0)(None)
        else:
            self._next.pop(getattr(decode_command(frame), NAMES[kind]).request_id)(None)

    def _send(self, then: Callable[[Any], None], encode: Callable[..., bytes], *fields: Any) -> None:
        self._ids += 1
        self._next[self._ids] = then
        self.write(encode(self._ids, *fields))

    def _begin(self) -> None:
        if time.perf_counter() >= self._until:
            self._running -= 1
            if not self._running and self._over is not None:
                self._over.set_result(None)
            return
        nonce = hot_txn.encode_checked(hot_txn.Checked(nonce=os.urandom(16)))
        self._send(self._end, hot_txn.encode_new_txn, 60_000, self._ids % 4, FIRST[: 1 + self._acks], nonce)

    def _end(self, txn_id: TxnId) -> None:
        self._send(self._ended, _COMMIT, txn_id, TxnAction.COMMIT)

    def _ended(self, _txn_id: TxnId) -> None:
        self.done += 1
        self._begin()


@attrs.frozen
class Cost:
    """Of one turn."""

    count: int
    seconds: float
    cpu_us: float
    helper_us: float
    ends: float


def cpu_ns(pid: int) -> int:
    """What the kernel has counted."""
    return sum(int(each.read_text(encoding="ascii").split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


async def connected(coordinator: OurCoordinator) -> Client:
    """A client that has introduced itself to all coordinators."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Client, "127.0.0.1", coordinator.port)
    await client.ask("connect", client_version="cost", protocol_version=21)
    for tc_id in range(4):
        await client.ask("tcClientConnectRequest", tc_id=tc_id, incarnation="cost")
    return client


async def turn(coordinator: OurCoordinator, client: Client, in_flight: int, acks: int, seconds: float) -> Cost:
    """A warm part that is longer than the delay of repeats, then the counted one."""
    pid, helper = coordinator.pids[:2]
    await client.run(in_flight, acks, REPEAT_SECONDS + 0.2)
    before, helped, ends, began = cpu_ns(pid), cpu_ns(helper), Broker.ends, time.perf_counter()
    count = await client.run(in_flight, acks, seconds)
    took = time.perf_counter() - began
    cost = Cost(
        count, took, (cpu_ns(pid) - before) / count / 1e3, (cpu_ns(helper) - helped) / count / 1e3, (Broker.ends - ends) / count
    )
    await asyncio.sleep(REPEAT_SECONDS + 0.2)
    return cost


async def measure(options: argparse.Namespace) -> None:
    """All rows, all sides by turns."""
    server = await asyncio.get_running_loop().create_server(Broker, "127.0.0.1", 0)
    Broker.port = server.sockets[0].getsockname()[1]
    url = f"pulsar://127.0.0.1:{Broker.port}"
    conf = {"transactionEndRepeatDelayInSeconds": str(REPEAT_SECONDS)}
    sides = {"here": sys.executable} | ({"against": options.against} if options.against else {})
    started = [
        (side, OurCoordinator({"it": url}, conf=conf, program=("-c", _MAIN), python=python)) for side, python in sides.items()
    ]
    loop = asyncio.get_running_loop()
    clients = {}
    for side, coordinator in started:
        await loop.run_in_executor(None, coordinator.start)
        clients[side] = (coordinator, await connected(coordinator))
    found: dict[tuple[str, str], list[Cost]] = {}
    try:
        for number in range(options.rounds):
            for row, (in_flight, acks) in ROWS.items():
                if options.row and not row.startswith(options.row):
                    continue
                for side in list(sides) if number % 2 == 0 else reversed(sides):
                    cost = await turn(*clients[side], in_flight, acks, options.seconds)
                    found.setdefault((row, side), []).append(cost)
    finally:
        for coordinator, _ in clients.values():
            await loop.run_in_executor(None, coordinator.stop)
    for (row, side), costs in found.items():
        middle = {name: statistics.median(getattr(each, name) for each in costs) for name in ("cpu_us", "helper_us", "ends")}
        rate = statistics.median(each.count / each.seconds for each in costs)
        least = min(each.cpu_us for each in costs)
        print(
            f"{row:34} {side:8} CPU {middle['cpu_us']:6.0f} us (least {least:.0f}), helper {middle['helper_us']:4.0f} us,"
            f" {middle['ends']:.2f} ends, {rate:6.0f}/s"
        )


async def profiled(options: argparse.Namespace) -> None:
    """One row under cProfile."""
    server = await asyncio.get_running_loop().create_server(Broker, "127.0.0.1", 0)
    Broker.port = server.sockets[0].getsockname()[1]
    conf = {"transactionEndRepeatDelayInSeconds": str(REPEAT_SECONDS)}
    coordinator = OurCoordinator(
        {"it": f"pulsar://127.0.0.1:{Broker.port}"},
        conf=conf,
        program=("-c", _PROFILED),
        environment={"COST_PROFILE": str(options.profile)},
    )
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, coordinator.start)
    try:
        client = await connected(coordinator)
        in_flight, acks = next(each for row, each in ROWS.items() if row.startswith(options.row or ""))
        await client.run(in_flight, acks, REPEAT_SECONDS + 0.2)
        os.kill(coordinator.pids[0], signal.SIGUSR1)
        count = await client.run(in_flight, acks, options.seconds * 3)
        os.kill(coordinator.pids[0], signal.SIGUSR2)
        await asyncio.sleep(1)
    finally:
        await loop.run_in_executor(None, coordinator.stop)
    stats: Any = pstats.Stats(str(options.profile))
    print(f"{count} transactions, {stats.total_calls / count:.0f} calls and {stats.total_tt / count * 1e6:.0f} us each")
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])
    for (file, line, name), (_, calls, own, whole, _) in rows[: options.lines]:
        where = f"{'/'.join(file.split('/')[-3:])}:{line}"
        print(f"{own / count * 1e6:7.1f} us own {whole / count * 1e6:7.1f} us {calls / count:6.2f} calls  {name}  {where}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="PYTHON", help="the interpreter of an environment with other code")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--row", help="only rows that begin so")
    parser.add_argument("--profile", type=Path, metavar="FILE")
    parser.add_argument("--lines", type=int, default=60)
    options = parser.parse_args()
    with OurBroker() as broker, asyncio.Runner(loop_factory=loop_factory()) as runner:
        Broker.claims_url = broker.service_url
        runner.run(profiled(options) if options.profile else measure(options))


if __name__ == "__main__":
    main()
