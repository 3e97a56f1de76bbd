"""A journal in a simulated file system, a plain model beside it, and a workload that drives both.

Every call that changes something is numbered, and the model remembers the state behind each call. What a crash leaves
must equal the state behind some call, not older than the newest one that was confirmed: a prefix, nothing torn, nothing
acknowledged lost.
"""

from __future__ import annotations

import asyncio
import copy
import random

import attrs

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.simulated import SimulatedFiles
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
        snapshot = await log.latest_snapshot()
        found.snapshot = None if snapshot is None else (snapshot.covers[1], snapshot.data)
        model.logs[name] = found
    for path in ("/a", "/b", "/c"):
        value = await store.metadata.get(path)
        if value is not None:
            model.values[path] = (value.data, value.version)
    return model


class Workload:
    """Random calls to a store and its model; remembers what was confirmed."""

    def __init__(self, store: JournalStore, seed: int) -> None:
        self.store = store
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

    async def run(self, calls: int) -> None:
        for _ in range(calls):
            await self.step()

    async def step(self) -> None:
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
        model.cursors["sub"].update(chosen)
        self._done()
        log.cursors["sub"].delete([(log.ledger_id, entry) for entry in chosen])

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

    async def _metadata(self) -> None:
        path = self.rng.choice(["/a", "/b", "/c"])
        if self.rng.random() < 0.2:
            if self.model.values.pop(path, None) is None:
                return
            self._done()
            await self.store.metadata.delete(path)
        else:
            data = self.rng.randbytes(30)
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
