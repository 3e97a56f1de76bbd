"""Lists of a namespace's topics, and those who watch them: consumers of a pattern hear of new topics at once (PIP-145).

Patterns are matched by RE2, whose time grows with the length of a name only: a pattern is a client's word, and all
clients share one loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from crc32c import crc32c

from pulsar_txn.wire.errors import Refusal, ServerError

if TYPE_CHECKING:
    from .connection import Connection

Matches: TypeAlias = Callable[[str], bool]

_MAX_PROGRAM_BYTES: Final = 1 << 18
_SCHEME_END: Final = "://"


def pattern_of(text: str, max_length: int) -> Matches:
    """Whether a full topic name matches a pattern, wholly and without its scheme, which a pattern may have or not.

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


def hash_of(topics: Iterable[str]) -> str:
    """What a list of topics is compared by, as stock Pulsar computes it: CRC32C, low byte first, as hexadecimal text."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


class _Watcher:
    def __init__(self, connection: Connection, watcher_id: int, matches: Matches) -> None:
        self.connection = connection
        self.watcher_id = watcher_id
        self.matches = matches
        self.topics: set[str] = set()
        self.namespace: tuple[str, str] | None = None  # once it is served
        self.is_stale = False


class _Namespace:
    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.watchers: dict[tuple[Connection, int], _Watcher] = {}
        self.is_stale = False


class TopicLists:
    """Who watches which namespace. Nothing is looked at while nobody watches."""

    def __init__(
        self,
        list_topics: Callable[[str, str], Awaitable[list[str]]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        limits: tuple[int, int] = (0, 0),
    ) -> None:
        self._list_topics = list_topics
        self._spawn = spawn
        self.count = 0  # watchers of all connections
        self._changes = 0
        self._limits = limits  # per connection, and in all; 0: none
        self._namespaces: dict[tuple[str, str], _Namespace] = {}
        self._of: dict[Connection, dict[int, _Watcher]] = {}

    async def watch(self, connection: Connection, watcher_id: int, name: tuple[str, str], matches: Matches) -> set[str]:
        """The topics that match now; what changes is told. A watcher of the same id takes the place of the one before."""
        self.close(connection, watcher_id)
        self._check_room(connection)
        opening = _Watcher(connection, watcher_id, matches)
        self._of.setdefault(connection, {})[watcher_id] = opening  # its place is taken before the first await
        self.count += 1
        changes = self._changes
        names = set(await self._list_topics(*name))
        opening.topics = {each for each in names if matches(each)}
        topics = set(opening.topics)
        if self._of.get(connection, {}).get(watcher_id) is opening:  # not closed, or opened again, meanwhile
            opening.namespace = name
            namespace = self._namespaces.setdefault(name, _Namespace(names))
            namespace.watchers[connection, watcher_id] = opening
            if self._changes != changes:  # made or deleted while the list was made: nobody has told this one
                opening.is_stale = True
                self.changed(*name)
        return topics

    def _check_room(self, connection: Connection) -> None:
        of_connection = len(self._of.get(connection, ()))
        for limit, count, who, key in (
            (self._limits[0], of_connection, "this connection watches", "maxTopicListWatchersPerConnection"),
            (self._limits[1], self.count, "the clients of this broker watch", "maxTopicListWatchers"),
        ):
            if limit and count >= limit:
                text = f"{who} {limit} lists of topics, as many as may be ({key}); close some, or raise that key"
                raise Refusal(ServerError.TooManyRequests, text)

    def close(self, connection: Connection, watcher_id: int) -> None:
        """Nobody watches any more; no error when nobody did."""
        of_connection = self._of.get(connection, {})
        watcher = of_connection.pop(watcher_id, None)
        if not of_connection:
            self._of.pop(connection, None)
        self.count -= watcher is not None
        if watcher is None or watcher.namespace is None:
            return
        namespace = self._namespaces[watcher.namespace]
        del namespace.watchers[connection, watcher_id]
        if not namespace.watchers:
            del self._namespaces[watcher.namespace]

    def gone(self, connection: Connection) -> None:
        """A connection is closed, and with it its watchers."""
        for watcher_id in list(self._of.get(connection, ())):
            self.close(connection, watcher_id)

    def changed(self, tenant: str, name: str) -> None:
        """A topic of a namespace was made or deleted, or its partitions changed."""
        self._changes += 1
        namespace = self._namespaces.get((tenant, name))
        if namespace is not None and not namespace.is_stale:
            namespace.is_stale = True
            self._spawn(self._tell(tenant, name))

    async def _tell(self, tenant: str, name: str) -> None:
        namespace = self._namespaces.get((tenant, name))
        while namespace is not None and namespace.is_stale:
            namespace.is_stale = False
            names = set(await self._list_topics(tenant, name))
            added, removed = names - namespace.names, namespace.names - names
            namespace.names = names
            for watcher in namespace.watchers.values():
                if watcher.is_stale:
                    watcher.is_stale = False
                    self._tell_one(watcher, names, watcher.topics - names)
                else:
                    self._tell_one(watcher, added, removed)

    def _tell_one(self, watcher: _Watcher, added: set[str], removed: set[str]) -> None:
        new = {each for each in added if each not in watcher.topics and watcher.matches(each)}
        deleted = removed & watcher.topics
        if new or deleted:
            watcher.topics = (watcher.topics | new) - deleted
            watcher.connection.write_command(
                "watchTopicUpdate",
                watcher_id=watcher.watcher_id,
                new_topics=sorted(new),
                deleted_topics=sorted(deleted),
                topics_hash=hash_of(watcher.topics),
            )
