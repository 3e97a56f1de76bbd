"""Trace four walks of the architecture, and print their calls, their modules and the circles: `python tests/house/walks.py`.

A transactional send, a commit, a message that is consumed and acknowledged in a transaction, and a restart of the broker in
the middle of a commit. Client and broker are in one process with in-memory pipes and virtual time; the journal is on a
simulated disk. So every run makes the same calls.

A call leads from the module of its caller to that of the called function, properties and `__repr__` included; between them
may be code that is not ours. What the event loop calls has no caller. A coroutine is called by who awaits it. A circle is a
group of modules that reach each other, or of classes that own state: classes that assign their own fields after
construction. A function that calls for a class counts for that class.

The size of the largest circle of each room is stored in `walks.toml`, and may not grow.

--circles   the members of the circles, and the calls that close them
--update    stores what is smaller; with --accept also what is larger
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import logging
import random
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import attrs

HERE: Final = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.append(str(HERE.parent / "support"))

from memory_network import MemoryNetwork, run_virtual  # noqa: E402
from simulated_files import SimulatedFiles  # noqa: E402
from sources import BUILDERS, ROOT, Tree, circles_of, modules_of  # noqa: E402

from pulsar_txn.broker.server import Standalone  # noqa: E402
from pulsar_txn.client import AsyncClient, InitialPosition  # noqa: E402
from pulsar_txn.ledger.journal import JournalStore  # noqa: E402

STORED: Final = HERE / "walks.toml"
PORT: Final = 6650
RESUMABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

ENTRIES: Final = {
    "pulsar_txn.broker.net": "bytes of a client are cut into frames, and reach the session of the connection",
    "pulsar_txn.client.net": "bytes of the broker are cut into frames, and reach who waits for them on the connection",
}
"""Entry points of the net. What asyncio calls in such a folder leads out of it without a caller: bytes come from outside."""

DEFERRED: Final = {
    "pulsar_txn.broker.base.turn": "the end of a loop turn calls what was deferred, as the loop calls what call_soon was given",
}
"""Modules that call on behalf of the loop: what they call has no caller of ours."""

ENTRY_METHODS: Final = frozenset({"data_received", "connection_made", "connection_lost", "pause_writing", "resume_writing"})


@attrs.define
class Trace:
    """Calls of one walk, and the edges between modules and between owners of state."""

    calls: int = 0
    modules: set[str] = attrs.field(factory=set)
    edges: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    owners: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    examples: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """One call for each edge: the functions at both ends."""


class Tracer:
    """Records the calls that are made while it is on."""

    def __init__(self, files: dict[str, str], owners: frozenset[str]) -> None:
        self.trace = Trace()
        self._files = files
        """Modules by file."""
        self._owners = owners
        self._begins: dict[CodeType, int] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace this thread. The collector is off: what it finalizes differs from run to run."""
        gc.disable()
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        module = self._files.get(code.co_filename)
        if module is None:
            return
        if code.co_flags & RESUMABLE:
            begin = self._begins.setdefault(code, frame.f_lasti)
            if frame.f_lasti > begin:
                return  # it goes on
            self._begins[code] = frame.f_lasti
        self.trace.calls += 1
        self.trace.modules.add(module)
        caller = self._caller(frame)
        if caller is None:
            return
        self._edge(self.trace.edges, self._files[caller.f_code.co_filename], module, caller, frame)
        called = self._owner(frame, module)
        while called and caller is not None:
            owner = self._owner(caller, self._files[caller.f_code.co_filename])
            if owner:
                self._edge(self.trace.owners, owner, called, caller, frame)
                return
            caller = self._caller(caller)

    def _edge(self, edges: Counter[tuple[str, str]], one: str, other: str, caller: FrameType, called: FrameType) -> None:
        if one != other:
            edges[one, other] += 1
            example = f"{caller.f_code.co_qualname} -> {called.f_code.co_qualname}"
            known = self.trace.examples.setdefault((one, other), example)
            self.trace.examples[one, other] = min(known, example)  # the order of sets differs from run to run

    def _caller(self, frame: FrameType) -> FrameType | None:
        """The nearest frame of ours that led to this one; None at an entry point of the net, and for deferred work."""
        back = self._ours(frame.f_back)
        if back is None:
            return None
        caller, called = self._files[back.f_code.co_filename], self._files[frame.f_code.co_filename]
        if caller in DEFERRED and called not in DEFERRED:
            return None
        folder = caller.rpartition(".")[0]
        if folder in ENTRIES and not called.startswith(folder + "."):
            inner: FrameType | None = back
            while inner is not None and self._files[inner.f_code.co_filename].startswith(folder + "."):
                if inner.f_code.co_name in ENTRY_METHODS:
                    return None
                inner = self._ours(inner.f_back)
            if inner is None:  # a task of the folder, or a timer
                return None
        return back

    def _ours(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return frame

    def _owner(self, frame: FrameType, module: str) -> str:
        """The class that owns state and whose object a frame works for; empty if there is none."""
        code = frame.f_code
        if "self" not in code.co_varnames[: code.co_argcount] and "self" not in code.co_freevars:
            return ""
        kind = type(frame.f_locals.get("self"))
        name = f"{kind.__module__}:{kind.__qualname__}"
        return name if name in self._owners else ""


def owners_of_state(tree: Tree) -> frozenset[str]:
    """Classes that assign their own fields after construction, or inherit from one."""
    found = set()
    for each in tree.classes:
        methods = (method.name for above in each.line for writes in above.own_assignments.values() for method, _, _ in writes)
        if not each.is_frozen and any(name not in BUILDERS for name in methods):
            found.add(f"{each.module.name}:{each.qualname}")
    return frozenset(found)


# The walks


class World:
    """A client and a broker of one process, with a journal on a simulated disk."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.files = SimulatedFiles()
        self.store: JournalStore
        self.broker: Standalone

    async def start(self) -> None:
        """Start the broker on what is on the disk."""
        self.store = JournalStore("/data", segment_bytes=1 << 20, files=self.files)
        await self.store.start()
        self.broker = Standalone(None, port=PORT, runtime=self.network, store=self.store)
        await self.broker.start()

    async def kill_between_writes(self) -> list[asyncio.Transport]:
        """End the broker where it writes for the second time from now on: the first write is on the disk, and nothing after it.

        Returns the client's ends of the connections, which do not know it yet.
        """
        writes = 0
        left: list[SimulatedFiles] = []
        ends: list[asyncio.Transport] = []

        def look(operation: str) -> None:
            nonlocal writes
            writes += operation == "write"
            if writes == 2 and not left:
                left.append(self.files.after_power_loss("all", random.Random(1)))
                ends.extend(self.network.cut())

        self.files.on_operation = look
        while not left:  # noqa: ASYNC110  # in virtual time; the hook is called in the middle of a write
            await asyncio.sleep(0.0001)
        await self.broker.close()
        await self.store.close()
        self.files = left[0]
        return ends


async def four_walks(network: MemoryNetwork, tracers: dict[str, Tracer]) -> None:
    """Walk all four, each under the tracer of its name."""
    world = World(network)
    await world.start()
    async with AsyncClient(f"pulsar://127.0.0.1:{PORT}", runtime=network) as client:
        source = await client.create_producer("in")
        target = await client.create_producer("out")
        worker = await client.subscribe("in", "workers", initial_position=InitialPosition.EARLIEST)
        for number in range(4):
            await source.send(b"%d" % number)
        with tracers["send"].on():
            first = await client.begin_transaction(timeout=60)
            await target.send(b"first", txn=first)
        message = await worker.receive()
        await worker.acknowledge(message, txn=first)
        with tracers["commit"].on():
            await first.commit()
            await asyncio.sleep(1)
        with tracers["consume"].on():
            second = await client.begin_transaction(timeout=60)
            message = await worker.receive(txn=second)
            await target.send(message.value, txn=second)
            await worker.acknowledge(message, txn=second)
        await second.commit()
        third = await client.begin_transaction(timeout=60)
        await worker.acknowledge(await worker.receive(), txn=third)
        await target.send(b"third", txn=third)
        commit = asyncio.ensure_future(third.commit())
        ends = await world.kill_between_writes()  # the decision is on the disk, the markers are not
        assert not commit.done()
        with tracers["restart"].on():
            await world.start()
            for end in ends:
                end.close()
            await commit
            reader = await client.subscribe("out", "readers", initial_position=InitialPosition.EARLIEST)
            values = [(await reader.receive()).value for _ in range(3)]
        assert values == [b"first", b"1", b"third"], values
        await client.close()
        await world.broker.close()
        await world.store.close()


WALKS: Final = ("send", "commit", "consume", "restart")


def traced() -> dict[str, Trace]:
    """The trace of each walk."""
    logging.disable()
    tree = Tree()
    files = {str(file): name for name, file in modules_of(ROOT).items() if name not in tree.generated}
    owners = owners_of_state(tree)
    tracers = {walk: Tracer(files, owners) for walk in WALKS}

    async def within_an_hour(network: MemoryNetwork) -> None:
        async with asyncio.timeout(3600):
            await four_walks(network, tracers)

    run_virtual(within_an_hour)
    return {walk: tracer.trace for walk, tracer in tracers.items()}


# Circles


@attrs.frozen
class Circles:
    """The circles of all walks together, largest first, of each room by itself and of `all` rooms."""

    modules: dict[str, list[list[str]]]
    owners: dict[str, list[list[str]]]

    def sizes(self) -> dict[str, dict[str, int]]:
        """The size of the largest circle by room; 0 where there is none."""
        kinds = {"modules": self.modules, "owners": self.owners}
        return {kind: {room: max(map(len, found), default=0) for room, found in by.items()} for kind, by in kinds.items()}


def circles(traces: dict[str, Trace]) -> Circles:
    """The circles that the calls of all walks make together."""
    modules = {edge for trace in traces.values() for edge in trace.edges}
    owners = {edge for trace in traces.values() for edge in trace.owners}
    rooms = sorted({room_of(module) for trace in traces.values() for module in trace.modules})
    return Circles(*({room: among(edges, room) for room in [*rooms, "all"]} for edges in (modules, owners)))


def among(edges: set[tuple[str, str]], room: str) -> list[list[str]]:
    """The circles of these edges in one room, or in `all`."""
    graph: dict[str, set[str]] = defaultdict(set)
    for one, other in sorted(edges):
        if room in ("all", room_of(one)) and room in ("all", room_of(other)):
            graph[one].add(other)
    return sorted(circles_of(graph), key=lambda circle: (-len(circle), circle))


@cache
def room_of(name: str) -> str:
    """The room of a module, or of a class in it."""
    return name.partition(":")[0].split(".")[1]


# The list


def complaints(sizes: dict[str, dict[str, int]], stored: dict[str, dict[str, int]]) -> list[str]:
    """What differs from what is stored, each as a sentence."""
    said = []
    for kind, by_room in sizes.items():
        for room, size in by_room.items():
            most = stored.get(kind, {}).get(room, 0)
            if size > most:
                said.append(
                    f"{room}: {size} {kind} call each other in a circle, {most} are stored: return an effect or a result "
                    "instead of calling back (`python tests/house/walks.py --circles` names the calls)"
                )
            elif size < most:
                said.append(
                    f"{room}: the largest circle has {size} {kind}, {most} are stored: `--update` stores the smaller one"
                )
    return said


def read_sizes(path: Path) -> dict[str, dict[str, int]]:
    """The stored sizes; empty where there is no file."""
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_sizes(path: Path, sizes: dict[str, dict[str, int]]) -> None:
    """Write the sizes, one room a line."""
    lines = ["# The largest circle of traced calls in each room: of modules, and of classes that own state. See walks.py."]
    for kind, by_room in sizes.items():
        lines += ["", f"[{kind}]", *(f"{room} = {size}" for room, size in by_room.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(traces: dict[str, Trace], found: Circles) -> Iterator[str]:
    """Calls and modules of each walk, and the largest circles by room."""
    yield f"{'walk':12}{'calls':>8}{'modules':>9}"
    for walk, trace in traces.items():
        yield f"{walk:12}{trace.calls:>8}{len(trace.modules):>9}"
    sizes = found.sizes()
    yield f"\n{'room':16}{'modules':>9}{'owners':>8}   in the largest circle"
    for room in found.modules:
        yield f"{room:16}{sizes['modules'][room]:>9}{sizes['owners'][room]:>8}"
    yield "\nwithout a caller, as entry points of the net or of the loop:"
    yield from (f"  {name}: {reason}" for name, reason in (ENTRIES | DEFERRED).items())


def members(traces: dict[str, Trace], found: Circles) -> Iterator[str]:
    """The circles of each room, and each call in them with an example."""
    for kind, by_room in (("modules", found.modules), ("owners", found.owners)):
        edges = [(edge, trace) for trace in traces.values() for edge in (trace.edges if kind == "modules" else trace.owners)]
        for room, all_of_it in by_room.items():
            for circle in all_of_it:
                yield f"\n{room}: {len(circle)} {kind}"
                inside = {edge: trace.examples[edge] for edge, trace in edges if {*edge} <= {*circle}}
                yield from (f"  {one} -> {other}   ({example})" for (one, other), example in sorted(inside.items()))


def main(arguments: list[str] | None = None) -> int:
    """Trace, print, and compare with the stored sizes; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--circles", action="store_true", help="name the members")
    parser.add_argument("--update", action="store_true", help="store what is smaller")
    parser.add_argument("--accept", action="store_true", help="with --update: store what is larger as well")
    chosen = parser.parse_args(arguments)
    traces = traced()
    found = circles(traces)
    print(*report(traces, found), sep="\n")
    if chosen.circles:
        print(*members(traces, found), sep="\n")
    sizes, stored = found.sizes(), read_sizes(STORED)
    if chosen.update:
        kept = sizes if chosen.accept else smaller(sizes, stored)
        write_sizes(STORED, kept)
        stored = kept
    said = complaints(sizes, stored)
    print(*said, sep="\n")
    return 1 if said else 0


def smaller(sizes: dict[str, dict[str, int]], stored: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The smaller one of both, room by room."""
    return {
        kind: {room: min(size, stored.get(kind, {}).get(room, 0)) for room, size in by_room.items()}
        for kind, by_room in sizes.items()
    }


if __name__ == "__main__":
    sys.exit(main())
