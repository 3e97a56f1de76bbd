"""The public conformance suite of ledger providers.

A provider passes when every function of `CHECKS` returns. With pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_provider_keeps_the_promises_of_ledgers(check, tmp_path):
        await check(MyStores(tmp_path))

`MyStores` is a `Stores`: it makes an empty store, opens the same store again after a clean close, and, where it can,
after a crash in which everything not confirmed is lost. Failures are AssertionErrors that say what was promised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, TypeVar

from pulsar_txn.ledger.protocols import (
    EntryTooLarge,
    LedgerError,
    Log,
    LogClosed,
    LogExists,
    LogNotFound,
    LogStore,
    NameRefused,
    Snapshot,
    VersionConflict,
)
from pulsar_txn.wire.ids import EARLIEST, LATEST, Position

ValueT = TypeVar("ValueT")


class Stores(Protocol):
    """Makes the stores under test; each check gets its own."""

    async def new(self) -> LogStore:
        """An empty, started store."""

    async def reopened(self, store: LogStore) -> LogStore:
        """`store` closed, and opened again."""

    async def crashed(self, store: LogStore) -> LogStore | None:
        """Return what is left of `store` when its process dies now, opened again; None when the provider cannot do that."""

    async def discard(self, store: LogStore) -> None:
        """The check is over."""


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.confirmed: list[Position] = []
        self.failures: list[LedgerError] = []

    def log_confirmed(self, position: Position) -> None:
        """Remember it."""
        self.confirmed.append(position)

    def log_failed(self, error: LedgerError) -> None:
        """Remember it."""
        self.failures.append(error)


Check: TypeAlias = Callable[[Stores], Awaitable[None]]
Body: TypeAlias = Callable[[Stores, LogStore], Awaitable[LogStore]]
CHECKS: Final[list[Check]] = []
"""All checks, each `async check(stores)`."""


def _check(body: Body) -> Check:
    """Register `body`, which gets a new store and returns the one to be discarded."""

    async def check(stores: Stores) -> None:
        await stores.discard(await body(stores, await stores.new()))

    check.__name__ = body.__name__
    check.__doc__ = body.__doc__
    CHECKS.append(check)
    return check


async def raises(error: type[Exception], awaitable: Awaitable[object]) -> None:
    """Expect `awaitable` to raise `error`."""
    try:
        await awaitable
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


def refuses(error: type[Exception], function: Callable[[], object]) -> None:
    """Expect `function` to raise `error`."""
    try:
        function()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


def equal(found: ValueT, expected: ValueT, promise: str) -> None:
    """Expect equality, naming the promise."""
    assert found == expected, f"{promise}: expected {expected!r}, found {found!r}"


async def all_entries(log: Log) -> list[bytes]:
    """All readable entries, read in small steps."""
    entries: list[bytes] = []
    start = EARLIEST
    while step := await log.read(start, max_entries=7):
        entries += [data for _, data in step]
        start = log.next_position(step[-1][0])
    return entries


@_check
async def positions_are_given_at_once_and_confirmed_in_order(stores: Stores, store: LogStore) -> LogStore:
    """`append` returns a position, the confirmation comes later, never from inside `append`."""
    log = await store.open("a")
    log.listen(recorder := Recorder())
    positions = [log.append(b"%d" % number) for number in range(50)]
    equal(recorder.confirmed, [], "nothing is confirmed from inside append")
    equal([entry for _, entry in positions], list(range(50)), "entry ids count up from 0")
    equal(log.last_appended, positions[-1], "last_appended is the last position")
    equal(await log.read(positions[0]), [], "readers see nothing that is not confirmed")
    await log.flush()
    equal(recorder.confirmed[-1], positions[-1], "the listener heard of the last entry")
    equal(recorder.confirmed, sorted(recorder.confirmed), "confirmations come in order")
    equal(log.last_confirmed, positions[-1], "last_confirmed follows")
    equal(log.first, positions[0], "first is the first entry")
    return store


@_check
async def an_empty_log_has_positions_too(stores: Stores, store: LogStore) -> LogStore:
    """Before the first entry, `last_*` are `(ledger_id, -1)`."""
    log = await store.open("a")
    equal(log.first, None, "an empty log has no first entry")
    equal(log.last_appended[1], -1, "last_appended is before the first entry")
    equal(log.last_confirmed, log.last_appended, "so is last_confirmed")
    equal(await log.read(EARLIEST), [], "there is nothing to read")
    equal(log.next_position(EARLIEST), (log.last_appended[0], 0), "the next position is that of the first entry")
    equal(log.entries_between(EARLIEST, LATEST), 0, "no entries")
    return store


@_check
async def several_buffers_are_one_entry(stores: Stores, store: LogStore) -> LogStore:
    """bytes, bytearray, memoryview and sequences of them are taken; an entry may be empty."""
    log = await store.open("a")
    log.append([b"one", bytearray(b"two"), memoryview(b"three")])
    log.append(memoryview(b"view"))
    log.append(bytearray(b"array"))
    log.append(b"")
    await log.flush()
    equal(await all_entries(log), [b"onetwothree", b"view", b"array", b""], "entries are the joined buffers")
    store = await stores.reopened(store)
    equal(await all_entries(await store.open("a")), [b"onetwothree", b"view", b"array", b""], "after a restart, too")
    return store


@_check
async def reads_are_bounded_and_start_anywhere(stores: Stores, store: LogStore) -> LogStore:
    """`read` honours both limits, returns at least one entry, and an empty list at the end."""
    log = await store.open("a")
    positions = [log.append(bytes([number]) * 100) for number in range(20)]
    await log.flush()
    equal([p for p, _ in await log.read(positions[3], max_entries=5)], positions[3:8], "max_entries")
    equal([p for p, _ in await log.read(positions[3], max_bytes=250)], positions[3:5], "max_bytes")
    equal([p for p, _ in await log.read(positions[3], max_bytes=1)], positions[3:4], "at least one entry")
    equal(await log.read(log.next_position(positions[-1])), [], "the end")
    equal(await log.read(LATEST), [], "behind the end")
    equal(len(await log.read(EARLIEST)), 20, "from the start")
    equal(log.entries_between(positions[2], positions[9]), 7, "(after, upto]")
    equal(log.entries_between(EARLIEST, LATEST), 20, "all of them")
    cached = log.read_cached(positions[-1])
    assert cached in (None, bytes([19]) * 100), "read_cached gives the entry or nothing"
    return store


@_check
async def too_large_entries_are_refused_before_they_join(stores: Stores, store: LogStore) -> LogStore:
    """A refused entry leaves no trace."""
    log = await store.open("a")
    refuses(EntryTooLarge, lambda: log.append(bytes(256 << 20)))
    equal(log.append(b"small")[1], 0, "the refused entry has no position")
    await log.flush()
    return store


@_check
async def a_name_that_cannot_be_kept_is_refused_to_its_caller_alone(stores: Stores, store: LogStore) -> LogStore:
    """Names, paths and properties of any length: what else is in the commit group is written, and nothing has moved."""
    log = await store.open("a")
    cursor = await log.open_cursor("sub")
    for name in ("x" * 70_000, "/" + "ü" * 40_000, "/\udc80"):
        log.append(b"before")
        for refused in (
            store.open(name),
            log.open_cursor(name),
            store.metadata.put("/" + name, b"value"),
            store.metadata.increment("/" + name),
        ):
            await raises(NameRefused, refused)
        log.append(b"behind")
        await log.flush()
    refuses(NameRefused, lambda: cursor.put_properties({"k": "\udc80"}))
    refuses(EntryTooLarge, lambda: cursor.put_properties({"k": "v" * (65 << 20)}))
    refuses(EntryTooLarge, lambda: cursor.delete_indexes(log.last_appended, 1, 1 << 33))
    refuses(EntryTooLarge, lambda: cursor.delete_indexes(log.last_appended, -1, 2))
    equal((cursor.ticket, cursor.properties, cursor.ack_sets()), (0, {}, {}), "nothing of the cursor has moved")
    equal((store.names(), log.cursor_names()), (["a"], ["sub"]), "nothing was made")
    longest = "n" * 65_535
    await (await store.open(longest)).close()
    await log.open_cursor(longest)
    await store.metadata.put("/" + longest[1:], b"value")
    store = await stores.reopened(store)
    log = await store.open("a")
    equal(await all_entries(log), [b"before", b"behind"] * 3, "the others of the group")
    equal((store.names(), log.cursor_names()), (["a", longest], [longest, "sub"]), "the longest name is kept")
    equal(await store.metadata.children("/"), [longest[1:]], "and the longest path")
    return store


@_check
async def trimmed_entries_are_gone_and_ids_are_not_reused(stores: Stores, store: LogStore) -> LogStore:
    """Reads start at the next existing entry; a fully trimmed log counts on."""
    log = await store.open("a")
    positions = [log.append(b"%d" % number) for number in range(10)]
    await log.flush()
    log.trim(positions[4])
    equal(log.first, positions[4], "first moves")
    equal((await log.read(positions[0]))[0], (positions[4], b"4"), "a read from a trimmed entry starts at the next")
    equal(log.entries_between(EARLIEST, positions[5]), 2, "trimmed entries do not count")
    equal(log.next_position(positions[0]), positions[4], "the next position exists")
    log.trim(positions[2])
    equal(log.first, positions[4], "trim never moves back")
    log.trim(LATEST)
    equal(log.first, None, "all is trimmed")
    await log.flush()
    store = await stores.reopened(store)
    log = await store.open("a")
    equal(log.first, None, "trims are durable")
    equal(log.last_confirmed, positions[-1], "and so is the end of the log")
    equal(log.append(b"next"), (positions[-1][0], 10), "entry ids are not reused")
    await log.flush()
    equal(await all_entries(log), [b"next"], "and the log goes on")
    return store


@_check
async def logs_are_exclusive_named_and_counted_in_epochs(stores: Stores, store: LogStore) -> LogStore:
    """Names, LogExists, LogNotFound, epochs, deletion; a cancelled open keeps nothing from opening."""
    log = await store.open("b/x")
    await raises(LogExists, store.open("b/x"))
    await raises(LogNotFound, store.open("nowhere", create=False))
    await store.open("a")
    equal(store.names(), ["a", "b/x"], "names are sorted")
    equal(store.log_count, 2, "logs are counted")
    opening = asyncio.ensure_future(store.open("c"))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await (await store.open("c")).close()
    await store.delete("c")
    equal(store.names("b/"), ["b/x"], "and filtered by prefix")
    log.append(b"old")
    epoch, ledger_id = log.epoch, log.last_appended[0]
    await log.close()
    await log.close()
    refuses(LogClosed, lambda: log.append(b"more"))
    again = await store.open("b/x", create=False)
    assert again.epoch > epoch, "epochs grow"
    await store.delete("b/x")
    await store.delete("b/x")
    refuses(LogClosed, lambda: again.append(b"more"))
    assert not store.exists("b/x"), "deleted"
    fresh = await store.open("b/x")
    equal(await all_entries(fresh), [], "a log of the same name starts empty")
    fresh.append(b"new")
    await fresh.flush()
    assert fresh.last_appended[0] != ledger_id, "and its positions were never used before"
    store = await stores.reopened(store)
    equal(store.names(), ["a", "b/x"], "names are durable")
    reopened = await store.open("b/x")
    assert reopened.epoch > fresh.epoch, "epochs grow across restarts"
    equal(await all_entries(reopened), [b"new"], "only the new log's entries")
    return store


@_check
async def a_restart_keeps_everything(stores: Stores, store: LogStore) -> LogStore:
    """Entries, cursors, snapshots, metadata and counters after a clean close."""
    logs = [await store.open(f"log-{number}") for number in range(5)]
    for turn in range(40):
        for log in logs:
            log.append(f"{log.name} {turn}".encode())
        await asyncio.sleep(0)
    cursor = await logs[0].open_cursor("sub")
    cursor.delete([(logs[0].last_appended[0], entry) for entry in (0, 1, 5, 7)])
    cursor.put_properties({"k": "v"})
    await logs[1].flush()
    logs[1].put_snapshot(Snapshot(logs[1].last_confirmed, (b"state" * 1000,)))
    await store.metadata.put("/topics/a", b"value")
    store = await stores.reopened(store)
    for number in range(5):
        log = await store.open(f"log-{number}", create=False)
        equal(await all_entries(log), [f"log-{number} {turn}".encode() for turn in range(40)], "entries")
        if number == 0:
            equal(log.cursor_names(), ["sub"], "cursors")
            again = await log.open_cursor("sub")
            equal(again.mark_delete[1], 1, "mark-delete")
            equal([start[1] for start, _ in again.deleted_ranges()], [5, 7], "deleted ranges")
            equal(again.properties, {"k": "v"}, "properties")
        if number == 1:
            equal(await log.latest_snapshot(), Snapshot(log.last_confirmed, (b"state" * 1000,)), "snapshot")
    value = await store.metadata.get("/topics/a")
    equal(value.data if value else None, b"value", "metadata")
    return store


@_check
async def a_crash_keeps_what_was_confirmed_and_a_prefix_of_the_rest(stores: Stores, store: LogStore) -> LogStore:
    """Appends, cursor changes, snapshots and trims of one log become durable in the order of their calls."""
    log = await store.open("a")
    cursor = await log.open_cursor("sub", initial=EARLIEST)
    for number in range(30):
        log.append(b"%d" % number)
    await log.flush()
    for number in range(30, 60):
        position = log.append(b"%d" % number)
        cursor.delete([position])
    left = await stores.crashed(store)
    if left is None:
        return store
    log = await left.open("a", create=False)
    entries = await all_entries(log)
    equal(entries, [b"%d" % number for number in range(len(entries))], "a prefix")
    assert len(entries) >= 30, "nothing confirmed is lost"
    cursor = await log.open_cursor("sub")
    acknowledged = [end[1] for _, end in cursor.deleted_ranges()]
    assert all(entry < len(entries) for entry in acknowledged), "no acknowledgement without its entry"
    equal(log.append(b"on")[1], len(entries), "the log goes on where it ended")
    await log.flush()
    return left


@_check
async def cursors_remember_every_kind_of_acknowledgement(stores: Stores, store: LogStore) -> LogStore:
    """mark-delete, single deletes, batch indexes, reset, backlog."""
    log = await store.open("a")
    positions = [log.append(b"%d" % number) for number in range(20)]
    await log.flush()
    cursor = await log.open_cursor("sub")
    ledger_id = positions[0][0]
    equal(cursor.mark_delete, (ledger_id, -1), "a new cursor stands before the first entry")
    equal(cursor.backlog(), 20, "everything is backlog")
    cursor.delete([positions[2], positions[4], positions[3]])
    equal(cursor.deleted_ranges(), [(positions[2], positions[4])], "ranges join")
    assert cursor.is_deleted(positions[3]), "a deleted entry"
    assert not cursor.is_deleted(positions[1]), "an entry that is not deleted"
    cursor.delete_indexes(positions[6], 0b0101, 4)
    equal(cursor.ack_set(positions[6]), 0b1010, "bits of indexes not acknowledged stay set")
    equal(cursor.ack_sets(), {positions[6]: 0b1010}, "all ack sets")
    equal(cursor.backlog(), 17, "a partly acknowledged batch is backlog")
    cursor.delete(positions[:2])
    equal(cursor.mark_delete, positions[4], "contiguous entries raise mark-delete")
    cursor.delete_indexes(positions[6], 0b1010, 4)
    assert cursor.is_deleted(positions[6]), "an entry with all indexes acknowledged"
    equal(cursor.ack_set(positions[6]), None, "has no ack set")
    cursor.mark_delete_to(positions[5])
    equal(cursor.mark_delete, positions[6], "mark-delete takes ranges in")
    ticket = cursor.mark_delete_to(positions[1])
    equal((cursor.mark_delete, ticket), (positions[6], cursor.ticket), "and never moves back")
    await log.flush()
    equal(cursor.confirmed_ticket, cursor.ticket, "flush confirms the last change")
    cursor.reset(positions[2])
    equal((cursor.mark_delete, cursor.backlog()), (positions[2], 17), "reset goes back")
    cursor.reset(LATEST)
    equal((cursor.mark_delete, cursor.backlog()), (positions[-1], 0), "and forth, to the end at most")
    await log.delete_cursor("sub")
    await log.delete_cursor("sub")
    equal(log.cursor_names(), [], "deleted")
    late = await log.open_cursor("late", initial=positions[9])
    equal(late.backlog(), 10, "a cursor starts where it is told to")
    return store


@_check
async def many_random_acknowledgements_survive_restarts(stores: Stores, store: LogStore) -> LogStore:
    """The stored state equals a plain set of acknowledged entries."""
    rng = random.Random(7)  # noqa: S311 - a repeatable sample
    log = await store.open("a")
    positions = [log.append(b"x") for _ in range(300)]
    await log.flush()
    acknowledged: set[int] = set()
    for _ in range(4):
        cursor = await log.open_cursor("sub")
        for _ in range(20):
            chosen = rng.sample(range(300), 3)
            cursor.delete([positions[entry] for entry in chosen])
            acknowledged.update(chosen)
        await log.flush()
        store = await stores.reopened(store)
        log = await store.open("a")
        cursor = await log.open_cursor("sub")
        equal({entry for entry in range(300) if cursor.is_deleted(positions[entry])}, acknowledged, "acknowledged entries")
        equal(cursor.backlog(), 300 - len(acknowledged), "backlog")
    return store


@_check
async def the_newest_snapshot_wins(stores: Stores, store: LogStore) -> LogStore:
    """Snapshots of any size up to some MiB; only durable ones are given out."""
    log = await store.open("a")
    equal(await log.latest_snapshot(), None, "no snapshot yet")
    for size in (10, 100_000, 1000):
        position = log.append(b"x")
        await log.flush()
        log.put_snapshot(Snapshot(position, (bytes(size),)))
        await log.flush()
        equal(await log.latest_snapshot(), Snapshot(position, (bytes(size),)), "the newest one")
    store = await stores.reopened(store)
    log = await store.open("a")
    equal(await log.latest_snapshot(), Snapshot((position[0], 2), (bytes(1000),)), "after a restart")
    return store


@_check
async def a_snapshot_has_any_number_of_parts_and_counts_when_it_is_finished(stores: Stores, store: LogStore) -> LogStore:
    """Parts come back as they were written; one that is not finished, or given up, replaces nothing."""
    log = await store.open("a")
    position = log.append(b"x")
    await log.flush()
    log.put_snapshot(Snapshot(position, (b"old",)))
    parts = tuple(bytes([number]) * size for number, size in enumerate((0, 1, 70_000, 0, 100_000, 3)))
    writer = log.write_snapshot(position)
    for part in parts:
        writer.write(part)
        await log.flush()
        equal(await log.latest_snapshot(), Snapshot(position, (b"old",)), "the old one while the new one is written")
    refuses(EntryTooLarge, lambda: writer.write(bytes(256 << 20)))
    writer.finish()
    refuses(ValueError, lambda: writer.write(b"more"))
    refuses(ValueError, writer.finish)
    writer.abandon()
    await log.flush()
    equal(await log.latest_snapshot(), Snapshot(position, parts), "all parts, in order")
    given_up = log.write_snapshot(position)
    given_up.write(b"given up")
    given_up.abandon()
    given_up.abandon()
    refuses(ValueError, given_up.finish)
    replaced = log.write_snapshot(position)
    replaced.write(b"replaced")
    unfinished = log.write_snapshot(position)
    refuses(ValueError, replaced.finish)
    unfinished.write(b"unfinished")
    early = log.write_snapshot(log.append(b"not confirmed"))
    refuses(ValueError, early.finish)
    await log.flush()
    equal(await log.latest_snapshot(), Snapshot(position, parts), "nothing else was finished")
    store = await stores.reopened(store)
    log = await store.open("a")
    equal(await log.latest_snapshot(), Snapshot(position, parts), "after a restart")
    log.put_snapshot(Snapshot(position, ()))
    await log.flush()
    equal(await log.latest_snapshot(), Snapshot(position, ()), "a snapshot without parts")
    left = await stores.crashed(store)
    if left is None:
        return store
    equal(await (await left.open("a")).latest_snapshot(), Snapshot(position, ()), "after a crash")
    return left


@_check
async def metadata_is_versioned_with_compare_and_set(stores: Stores, store: LogStore) -> LogStore:
    """Versions, children, counters."""
    metadata = store.metadata
    equal(await metadata.get("/a"), None, "no value")
    equal(await metadata.put("/a", b"1", expected_version=-1), 0, "the first version is 0")
    await raises(VersionConflict, metadata.put("/a", b"2", expected_version=-1))
    equal(await metadata.put("/a", b"2", expected_version=0), 1, "versions grow by one")
    await raises(VersionConflict, metadata.put("/a", b"3", expected_version=0))
    equal(await metadata.put("/a", b"3"), 2, "any version")
    await raises(VersionConflict, metadata.delete("/a", expected_version=1))
    await metadata.put("/t/x/1", b"")
    await metadata.put("/t/y", b"")
    equal(await metadata.children("/t"), ["x", "y"], "direct children, sorted")
    equal(await metadata.children("/"), ["a", "t"], "of the root")
    equal(await metadata.children("/none"), [], "of nothing")
    await metadata.delete("/t/y")
    await metadata.delete("/t/y")
    equal([await metadata.increment("/id") for _ in range(3)], [0, 1, 2], "counters count")
    store = await stores.reopened(store)
    value = await store.metadata.get("/a")
    equal((value.data, value.version) if value else None, (b"3", 2), "versions are durable")
    equal(await store.metadata.children("/t"), ["x"], "so are deletions")
    equal(await store.metadata.increment("/id"), 3, "and counters")
    return store


@_check
async def watchers_hear_of_changes_below_their_prefix(stores: Stores, store: LogStore) -> LogStore:
    """`watch` yields paths as they change."""
    watcher = store.metadata.watch("/t/")
    heard = asyncio.ensure_future(anext(watcher))
    await asyncio.sleep(0)
    await store.metadata.put("/u/x", b"")
    await store.metadata.put("/t/x", b"")
    equal(await asyncio.wait_for(heard, 10), "/t/x", "the path that changed")
    return store


@_check
async def pressure_is_told_and_taken_back(stores: Stores, store: LogStore) -> LogStore:
    """The callback hears True above the high-water mark, and False when bytes in flight went down."""
    told: list[bool] = []
    store.on_pressure(told.append)
    log = await store.open("a")
    written = 0
    while not told:
        log.append(bytes(1 << 16))
        written += 1
        assert written < 1 << 12, "256 MiB in flight and no pressure"
    equal(told, [True], "pressure")
    assert store.bytes_in_flight > 0, "bytes in flight count"
    await log.flush()
    equal((told, store.bytes_in_flight), ([True, False], 0), "and no pressure afterwards")
    return store


@_check
async def a_closed_store_refuses_everything(stores: Stores, store: LogStore) -> LogStore:
    """After `close`, handles raise LogClosed; closing twice is no error."""
    log = await store.open("a")
    log.append(b"x")
    await store.close()
    await store.close()
    refuses(LogClosed, lambda: log.append(b"y"))
    await raises(LogClosed, store.open("b"))
    return store
