"""Search for the message of a pipeline's aborted groups that is at fault, and when it is none of them.

It is found by halving: once a message was in `max_aborts` aborted groups, its groups are cut in half at every further
abort, until it fails alone; when it has failed alone `max_aborts` times as well, it is poison. So a message that shared its
batches with a poison one is not taken for one because of one failure of its own.

When the first ten messages of a run are all poison, and nothing else was committed, the fault is not theirs: a handler with a
wrong name in it fails at every message. See `FirstMessages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pulsar_txn.client.receive.holder import Key, key_of
from pulsar_txn.client.receive.message import Message

SUSPECTS_LIMIT: Final = 100_000
"""Messages whose aborts are remembered; beyond it the oldest are forgotten (another consumer may have got them)."""


FIRST_MESSAGES: Final = 10
"""Distinct messages that a loop may give up before anything has worked."""


class FirstMessages:
    """The messages that a loop has given up since its start, until one works."""

    def __init__(self) -> None:
        self._failed: set[Key] | None = set()

    def worked(self) -> None:
        """Something was processed, so those that fail are at fault themselves."""
        self._failed = None

    def all_fail(self, message: Message[Any]) -> bool:
        """Note a message that is given up; whether nothing has worked yet, and it is the last that may fail so."""
        if self._failed is None:
            return False
        self._failed.add(key_of(message))
        return len(self._failed) >= FIRST_MESSAGES


class Suspects:
    """Counts of how often messages were in an aborted group, and how large their groups may be."""

    def __init__(self, max_aborts: int) -> None:
        self.first = FirstMessages()
        self._max_aborts = max_aborts
        self._aborts: dict[Key, int] = {}
        self._alone: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}

    def failed(self, group: Sequence[Message[Any]]) -> bool:
        """The group was aborted by what its messages did; whether it is one message that is poison."""
        keys = [key_of(message) for message in group]
        for key in keys:
            self._aborts[key] = self._aborts.pop(key, 0) + 1
        if max(self._aborts[key] for key in keys) >= self._max_aborts:
            self._sizes.update(dict.fromkeys(keys, max(1, len(keys) // 2)))
        if len(keys) == 1:
            self._alone[keys[0]] = self._alone.get(keys[0], 0) + 1
        while len(self._aborts) > SUSPECTS_LIMIT:
            oldest = next(iter(self._aborts))
            self._forget(oldest)
        return len(keys) == 1 and self._alone.get(keys[0], 0) >= self._max_aborts

    def has_shrunk(self, group: Sequence[Message[Any]]) -> bool:
        """True if the next attempt with the first message of this group, which was aborted, takes fewer messages."""
        return len(self.next_group(group)) < len(group)

    def forget(self, group: Sequence[Message[Any]]) -> None:
        """Forget messages that are committed, or removed as poison."""
        if self._aborts:
            for message in group:
                self._forget(key_of(message))

    def _forget(self, key: Key) -> None:
        for each in (self._aborts, self._alone, self._sizes):
            each.pop(key, None)

    def aborts(self, message: Message[Any]) -> int:
        """The number of its groups that were aborted."""
        return self._aborts.get(key_of(message), 0)

    def next_group(self, pending: Sequence[Message[Any]]) -> Sequence[Message[Any]]:
        """The first messages, as many as may go together."""
        if not self._sizes:
            return pending
        size = self._sizes.get(key_of(pending[0]))
        end = 1
        while end < min(size or len(pending), len(pending)) and self._sizes.get(key_of(pending[end])) == size:
            end += 1
        return pending[:end]
