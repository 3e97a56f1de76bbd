"""A journal in a simulated file system, a plain model beside it, and a workload that drives both.

Every call that changes something is numbered, and the model remembers the state after each call. What a crash leaves
must equal the state after some call, not older than the newest one that was confirmed: a prefix, nothing torn, nothing
acknowledged lost.
"""

from __future__ import annotations

import asyncio
import copy
import random

import attrs
from insides import logs_of
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.protocols import Snapshot

SEGMENT_BYTES = 48 << 10


def simulated_store(files: SimulatedFiles, segment_bytes: int = SEGMENT_BYTES, **options) -> JournalStore:
    return JournalStore("/data", segment_bytes=segment_bytes, files=files, **options)


@attrs.define
class LogModel:
    """A log as a test sees it."""

    first: int = 0
    entries: dict[int, bytes] = attrs.field(factory=dict)
    next: int = 0
    cursors: dict[str, set[int]] = attrs.field(factory=dict)
    partly: dict[str, dict[int, int]] = attrs.field(factory=dict)
    properties: dict[str, dict[str, str]] = attrs.field(factory=dict)
    snapshot: tuple[int, bytes] | None = None


@attrs.define
class Model:
    """A store as a test sees it."""

    logs: dict[str, LogModel] = attrs.field(factory=dict)
    values: dict[str, tuple[bytes, int]] = attrs.field(factory=dict)


async def seen(store: JournalStore) -> Model:
    """What a store shows."""
    model = Model()
    for name in store.names():
        log = await store.open(name)
        found = LogModel(first=log.first_entry, next=log.next_entry)
        position = (log.ledger_id, 0)
        while step := await log.read(position, max_entries=50):
            found.entries |= {entry: data for (_, entry), data in step}
            position = log.next_position(step[-1][0])
        for cursor_name in log.cursor_names():
            cursor = await log.open_cursor(cursor_name)
            found.cursors[cursor_name] = {e for e in range(log.next_entry) if cursor.is_deleted((log.ledger_id, e))}
            sets = {entry: ack_set for (_, entry), ack_set in cursor.ack_sets().items()}
            found.partly |= {cursor_name: sets} if sets else {}
            found.properties |= {cursor_name: cursor.properties} if cursor.properties else {}
        snapshot = await log.latest_snapshot()
        found.snapshot = None if snapshot is None else (snapshot.covers[1], snapshot.data)
        model.logs[name] = found
    for path, value in store.metadata.values.items():
        model.values[path] = (value.data, value.version)
    return model


class Workload:
    """Random calls to a store and its model; remembers what was confirmed. `rich`: with a state of many slices."""

    def __init__(self, store: JournalStore, seed: int, *, rich: bool = False) -> None:
        self.store = store
        self.rich = rich
        self.rng = random.Random(seed)
        self.model = Model()
        self.states: list[Model] = [Model()]
        self.acknowledged = 0
        self.handles: dict[str, object] = {}
        self.writers: dict[object, tuple] = {}
        """Snapshots being written: writer, parts, what it covers."""
        self._calls_of: dict[tuple[str, int], int] = {}

    def log_confirmed(self, position) -> None:
        """Of whichever log: position → the call that appended it."""
        self.acknowledged = max(self.acknowledged, self._calls_of.get(position, 0))

    def log_failed(self, error) -> None:
        """The store failed: nothing more is acknowledged."""

    async def go_on(self, store: JournalStore) -> None:
        """With a store that was just started: what it shows must agree, and is where the model goes on."""
        self.store = store
        found = await seen(store)
        await check_against(found, self.states, self.acknowledged)
        self.model = found
        self.states = [Model(), found]
        self.acknowledged = 1
        self._calls_of = {}
        self.writers = {}
        self.handles = dict(logs_of(store))
        for log in logs_of(store).values():
            log.listen(self)
            await log.open_cursor("sub")  # a crash may have come between a log and its cursor
            found.logs[log.name].cursors.setdefault("sub", set(range(log.first_entry)))
        self._done()
        self.acknowledged = 2

    async def run(self, calls: int) -> None:
        for _ in range(calls):
            await self.step()

    async def step(self) -> None:
        if self.rich and self.handles and self.rng.random() < 0.4:
            await self._enrich()
            return
        choice = self.rng.random()
        if len(self.handles) < 3 or choice < 0.01:
            await self._open(f"log-{self.rng.randrange(4)}")
        elif choice < 0.62:
            self._append()
        elif choice < 0.72:
            self._acknowledge()
        elif choice < 0.77:
            self._trim()
        elif choice < 0.82:
            self._snapshot()
        elif choice < 0.85:
            await self._metadata()
        elif choice < 0.86:
            await self._delete()
        elif choice < 0.95:
            await asyncio.sleep(0)
        else:
            await self.flush()

    async def flush(self) -> None:
        calls = len(self.states) - 1
        await self.store.durable()
        self.acknowledged = max(self.acknowledged, calls)

    def _done(self) -> None:
        self.states.append(copy.deepcopy(self.model))

    def _pick(self):
        name = self.rng.choice(sorted(self.handles))
        return self.handles[name], self.model.logs[name]

    async def _open(self, name: str) -> None:
        if name in self.handles:
            return
        self.model.logs[name] = LogModel(cursors={})
        self._done()
        self.handles[name] = log = await self.store.open(name)
        log.listen(self)
        self.model.logs[name].cursors["sub"] = set()
        self._done()
        await log.open_cursor("sub")
        self.acknowledged = len(self.states) - 1

    def _append(self) -> None:
        log, model = self._pick()
        size = self.rng.choice([0, 1, 20, 200, 200, 200, 900, 3000])
        data = self.rng.randbytes(size)
        model.entries[model.next] = data
        model.next += 1
        self._done()
        position = log.append(data)
        self._calls_of[position] = len(self.states) - 1

    def _acknowledge(self) -> None:
        log, model = self._pick()
        if not model.next:
            return
        chosen = self.rng.sample(range(model.next), min(model.next, self.rng.randint(1, 4)))
        name = self.rng.choice(sorted(model.cursors))
        model.cursors[name].update(chosen)
        self._forget_sets(model, name)
        self._done()
        log.cursors[name].delete([(log.ledger_id, entry) for entry in chosen])

    @staticmethod
    def _forget_sets(model: LogModel, name: str) -> None:
        sets = {e: ack_set for e, ack_set in model.partly.pop(name, {}).items() if e not in model.cursors[name]}
        model.partly |= {name: sets} if sets else {}

    async def _enrich(self) -> None:
        """What makes the state large, or changes what is large."""
        log, model = self._pick()
        choice, name = self.rng.random(), self.rng.choice(sorted(model.cursors))
        if choice < 0.25:
            await self._metadata(f"/{self.rng.choice('defghijkl')}", self.rng.randrange(1500))
        elif choice < 0.6 and model.next:
            entry = self.rng.randrange(model.next)
            if entry not in model.cursors[name]:
                acked = self.rng.getrandbits(4000) | 1
                old = model.partly.setdefault(name, {}).get(entry, (1 << 4000) - 1)
                model.partly[name][entry] = old & ~acked
                self._done()
                log.cursors[name].delete_indexes((log.ledger_id, entry), acked, 4000)
        elif choice < 0.75:
            model.properties[name] = {"k": "v" * self.rng.randrange(2000)}
            self._done()
            log.cursors[name].put_properties(model.properties[name])
        elif choice < 0.8 and model.next:
            mark = self.rng.randrange(model.next)
            model.cursors[name] = set(range(mark + 1))
            model.partly.pop(name, None)
            self._done()
            log.cursors[name].reset((log.ledger_id, mark))
        elif choice < 0.9 and len(model.cursors) < 5:
            await self._add_cursor(log, model)
        elif choice < 0.95 and name != "sub":
            model.partly.pop(name, None)
            model.properties.pop(name, None)
            del model.cursors[name]
            self._done()
            await log.delete_cursor(name)
            self.acknowledged = len(self.states) - 1

    async def _add_cursor(self, log, model: LogModel) -> None:
        name = self.rng.choice(["s1", "s2", "s3", "s4"])
        if name not in model.cursors:
            model.cursors[name] = set(range(model.first))
            self._done()
            await log.open_cursor(name)
            self.acknowledged = len(self.states) - 1

    def _trim(self) -> None:
        log, model = self._pick()
        before = self.rng.randint(model.first, model.next)
        if before == model.first:
            return
        for entry in range(model.first, before):
            del model.entries[entry]
        model.first = before
        self._done()
        log.trim((log.ledger_id, before))

    def _snapshot(self) -> None:
        """A whole snapshot, or the next part of one, which counts when it is finished."""
        log, model = self._pick()
        data = self.rng.randbytes(self.rng.choice([10, 500, 2500]))
        writer, parts, covers = self.writers.pop(log, (None, [], log.last_confirmed))
        if writer is None and self.rng.random() < 0.5:
            model.snapshot = (log.confirmed_entry, data)
            self._done()
            log.put_snapshot(Snapshot(log.last_confirmed, (data,)))
        elif writer is not None and self.rng.random() < 0.4:
            if self.rng.random() < 0.2:
                writer.abandon()
                return
            model.snapshot = (covers[1], b"".join(parts))
            self._done()
            writer.finish()
        else:
            writer = writer or log.write_snapshot(covers)
            writer.write(data)
            self.writers[log] = (writer, [*parts, data], covers)

    async def _metadata(self, path: str | None = None, size: int = 30) -> None:
        path = path or self.rng.choice(["/a", "/b", "/c"])
        if self.rng.random() < 0.2:
            if self.model.values.pop(path, None) is None:
                return
            self._done()
            await self.store.metadata.delete(path)
        else:
            data = self.rng.randbytes(size)
            old = self.model.values.get(path)
            self.model.values[path] = (data, 0 if old is None else old[1] + 1)
            self._done()
            await self.store.metadata.put(path, data)
        self.acknowledged = len(self.states) - 1

    async def _delete(self) -> None:
        name = self.rng.choice(sorted(self.handles))
        self.writers.pop(self.handles.pop(name), None)
        del self.model.logs[name]
        self._done()
        await self.store.delete(name)
        self.acknowledged = len(self.states) - 1


async def settled(store: JournalStore, turns: int = 60) -> None:
    """Let what goes on beside the calls (spares, promotions, copies) come to rest."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def check_against(found: Model, states: list[Model], acknowledged: int) -> None:
    """Expect a prefix of the calls that holds everything acknowledged."""
    for state in reversed(states[acknowledged:]):
        if found == state:
            return
    older = [number for number, state in enumerate(states[:acknowledged]) if found == state]
    what = f"the state behind call {older[-1]}" if older else "the state behind no call at all"
    counts = f"{acknowledged} of {len(states) - 1} were acknowledged"
    raise AssertionError(f"recovered {what}; {counts}\n{_difference(found, states)}")


def _difference(found: Model, states: list[Model]) -> str:
    last = states[-1]
    lines = []
    for name in sorted(set(found.logs) | set(last.logs)):
        ours, theirs = found.logs.get(name), last.logs.get(name)
        if ours != theirs:
            lines.append(f"{name}: {_brief(ours)} instead of {_brief(theirs)}")
    if found.values != last.values:
        lines.append(f"values {found.values} instead of {last.values}")
    return "\n".join(lines)


def _brief(log: LogModel | None) -> str:
    if log is None:
        return "nothing"
    cursors = {name: len(acknowledged) for name, acknowledged in log.cursors.items()}
    snapshot = None if log.snapshot is None else (log.snapshot[0], len(log.snapshot[1]))
    return f"[{log.first}, {log.next}) with {len(log.entries)}, cursors {cursors}, snapshot {snapshot}"
