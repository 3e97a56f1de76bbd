"""The chunks of one partition that pass by: where messages in chunks end, and where those begin that end later."""

from __future__ import annotations

from collections import deque
from typing import Final

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import Position

_PENDING: Final = 1000
"""Incomplete messages in chunks whose beginnings are known; the oldest is forgotten for one more."""


class ChunkTrail:
    """Follows the chunks as a consumer puts them together, without their payload."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[Position, int]] = {}
        self._whole: deque[tuple[Position, Position]] = deque()

    def add(self, position: Position, metadata: pb.MessageMetadata) -> bool:
        """A chunk comes next; whether a message is complete with it."""
        uuid, number = metadata.uuid, metadata.chunk_id
        if number == 0:
            self._pending.pop(uuid, None)
            if len(self._pending) >= _PENDING:
                del self._pending[next(iter(self._pending))]
            self._pending[uuid] = (position, 0)
        known = self._pending.get(uuid)
        if known is None or number > known[1]:
            self._pending.pop(uuid, None)
            return False
        if number < known[1]:
            return False  # the producer sent it twice
        first, _ = self._pending[uuid] = (known[0], number + 1)
        if number + 1 < metadata.num_chunks_from_msg:
            return False
        del self._pending[uuid]
        self._whole.append((position, first))
        return True

    def begin(self, after: Position) -> Position | None:
        """The place where reading has to begin so that messages that end after `after` are whole; None: after it.

        `after` grows.
        """
        while self._whole and self._whole[0][0] <= after:
            self._whole.popleft()
        firsts = [*(first for _, first in self._whole), *(first for first, _ in self._pending.values())]
        return min((first for first in firsts if first <= after), default=None)
