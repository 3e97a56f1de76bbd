"""Lists of a namespace's topics, and those who watch them: consumers of a pattern hear of new topics at once (PIP-145).

Patterns are matched by RE2, whose time grows with the length of a name only: a pattern is a client's word, and all
clients share one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias

from crc32c import crc32c

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.base.sorted_names import Pieces, SortedNames
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.wire.errors import Refusal, ServerError

Matches: TypeAlias = Callable[[str], bool]

_MAX_PROGRAM_BYTES: Final = 1 << 18
_SCHEME_END: Final = "://"
_SHORT_SECONDS: Final = 0.005
_LONGEST_REST_SECONDS: Final = 1.0
_CHANGES_AT_ONCE: Final = 5000
"""Changes that one update tells: a frame has an end."""


def pattern_of(text: str, max_length: int) -> Matches:
    """True if a full topic name matches a pattern, wholly and without its scheme, which a pattern may have or not.

    Refusals: NotAllowedError (longer than `max_length`), InvalidTopicName (not a regular expression that RE2 takes).
    """
    if len(text) > max_length:
        raise Refusal(ServerError.NotAllowedError, f"Pattern longer than maximum: {max_length}")
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        compiled = re2.compile(text.partition(_SCHEME_END)[2] or text, options)
    except re2.error as error:
        said = error.args[0]
        reason = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise Refusal(ServerError.InvalidTopicName, f"Invalid topics pattern: {reason}") from None
    return lambda name: compiled.fullmatch(name.partition(_SCHEME_END)[2]) is not None


async def hash_of_pieces(pieces: Pieces, budget: LoopBudget) -> str:
    """Hash by which a list of topics is compared, as stock Pulsar computes it: CRC32C, low byte first, as hexadecimal text."""
    value, comma = 0, b""
    async for piece in budget.each(pieces, at_a_time=1):
        value = crc32c(comma + ",".join(piece).encode(), value)
        comma = b","
    return value.to_bytes(4, "little").hex()


async def matching(pieces: Pieces, matches: Matches, budget: LoopBudget) -> Pieces:
    """The names that match, in pieces."""
    found: list[tuple[str, ...]] = []
    async for piece in budget.each(pieces, at_a_time=1):
        kept: list[str] = [name async for name in budget.each(piece) if matches(name)]
        if kept:
            found.append(tuple(kept))
    return tuple(found)


class Connection(Protocol):
    """The way to a client that watches."""

    def write_command(self, name: str, **fields: Any) -> None:
        """Send a command."""


class Watcher:
    """Watcher of one list. `topics`: the names that the client knows. `seen`: how many changes it heard of, None: none yet."""

    def __init__(self, connection: Connection, watcher_id: int, namespace: tuple[str, str], matches: Matches) -> None:
        self.connection = connection
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.matches = matches
        self.topics = SortedNames()
        self.seen = 0
        self.is_served = False
        self.is_closed = False


class _Namespace:
    """Watchers of one namespace, and the changes that not all of them have heard of: (name, whether it is there now)."""

    def __init__(self) -> None:
        self.watchers: dict[tuple[Connection, int], Watcher] = {}
        self.changes: list[tuple[str, bool]] = []
        self.first = 0  # the number of changes[0]
        self.is_telling = False

    @property
    def end(self) -> int:
        """The number of the next change."""
        return self.first + len(self.changes)

    def note(self, added: Sequence[str], gone: Sequence[str]) -> None:
        """Topics or partitions were made or deleted."""
        self.changes += [(each, True) for each in added]
        self.changes += [(each, False) for each in gone]

    def forget_what_all_heard(self) -> None:
        heard = min((each.seen for each in self.watchers.values()), default=self.end)
        del self.changes[: heard - self.first]
        self.first = heard


class TopicLists:
    """Watchers by namespace. Nothing is looked at while nobody watches."""

    def __init__(
        self,
        turn: Turn,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        limits: tuple[int, int] = (0, 0),
    ) -> None:
        self._budget = turn.budget
        self._monotonic = turn.runtime.monotonic
        self._spawn = spawn
        self.count = 0  # watchers of all connections
        self._limits = limits  # per connection, and in all; 0: none
        self._namespaces: dict[tuple[str, str], _Namespace] = {}
        self._of: dict[Connection, dict[int, Watcher]] = {}

    async def watch(
        self, connection: Connection, watcher_id: int, name: tuple[str, str], matches: Matches, topics: Pieces
    ) -> Watcher:
        """A watcher of those of `topics`, the namespace's of this moment, that match.

        A watcher of the same id takes the place of the one before. Changes are told after `serve` only: the client has to
        have the list first. Refusal TooManyRequests.
        """
        self.close(connection, watcher_id)
        self._check_room(connection)
        watcher = Watcher(connection, watcher_id, name, matches)
        self._of.setdefault(connection, {})[watcher_id] = watcher  # its place is taken before the first await
        self.count += 1
        namespace = self._namespaces.setdefault(name, _Namespace())
        namespace.watchers[connection, watcher_id] = watcher
        watcher.seen = namespace.end
        watcher.topics = SortedNames.of(await matching(topics, matches, self._budget))
        return watcher

    def serve(self, watcher: Watcher) -> None:
        """The client has its list: tell it what has changed since, and what will."""
        watcher.is_served = True
        if not watcher.is_closed:
            self._tell_soon(watcher.namespace)

    def _check_room(self, connection: Connection) -> None:
        of_connection = len(self._of.get(connection, ()))
        for limit, count, who, key in (
            (self._limits[0], of_connection, "this connection watches", "maxTopicListWatchersPerConnection"),
            (self._limits[1], self.count, "the clients of this broker watch", "maxTopicListWatchers"),
        ):
            if limit and count >= limit:
                raise LimitReached(key, f"{who} {limit} lists of topics")

    def close(self, connection: Connection, watcher_id: int) -> None:
        """Close it, for nobody watches any more; no error when nobody did."""
        of_connection = self._of.get(connection, {})
        watcher = of_connection.pop(watcher_id, None)
        if not of_connection:
            self._of.pop(connection, None)
        if watcher is None:
            return
        self.count -= 1
        watcher.is_closed = True
        namespace = self._namespaces[watcher.namespace]
        del namespace.watchers[connection, watcher_id]
        if not namespace.watchers:
            del self._namespaces[watcher.namespace]

    def gone(self, connection: Connection) -> None:
        """A connection is closed, and with it its watchers."""
        for watcher_id in list(self._of.get(connection, ())):
            self.close(connection, watcher_id)

    def changed(self, tenant: str, name: str, added: Sequence[str], gone: Sequence[str]) -> None:
        """Topics or partitions of a namespace were made or deleted."""
        namespace = self._namespaces.get((tenant, name))
        if namespace is not None:
            namespace.note(added, gone)
            self._tell_soon((tenant, name))

    def _tell_soon(self, name: tuple[str, str]) -> None:
        namespace = self._namespaces[name]
        if not namespace.is_telling:
            namespace.is_telling = True
            self._spawn(self._tell(namespace))

    async def _tell(self, namespace: _Namespace) -> None:
        try:
            while behind := [each for each in namespace.watchers.values() if each.is_served and each.seen < namespace.end]:
                began = self._monotonic()
                for watcher in behind:
                    await self._tell_one(namespace, watcher)
                namespace.forget_what_all_heard()
                took = self._monotonic() - began
                if took > _SHORT_SECONDS:  # long lists are told less often, so that telling is a tenth of all work at most
                    await asyncio.sleep(min(9 * took, _LONGEST_REST_SECONDS))
        finally:
            namespace.is_telling = False

    async def _tell_one(self, namespace: _Namespace, watcher: Watcher) -> None:
        start = watcher.seen - namespace.first
        changes = namespace.changes[start : start + _CHANGES_AT_ONCE]
        watcher.seen += len(changes)
        new: dict[str, None] = {}
        gone: dict[str, None] = {}
        async for name, is_there in self._budget.each(changes):
            if is_there and watcher.matches(name) and watcher.topics.add(name):
                _count(name, new, gone)
            elif not is_there and watcher.topics.discard(name):
                _count(name, gone, new)
        if not new and not gone:
            return
        topics_hash = await hash_of_pieces(watcher.topics.pieces(), self._budget)
        if not watcher.is_closed:
            watcher.connection.write_command(
                "watchTopicUpdate",
                watcher_id=watcher.watcher_id,
                new_topics=sorted(new),
                deleted_topics=sorted(gone),
                topics_hash=topics_hash,
            )


def _count(name: str, here: dict[str, None], there: dict[str, None]) -> None:
    """A name changed one way; if it had changed the other way before, nothing of it is to be told."""
    if name in there:
        del there[name]
    else:
        here[name] = None
