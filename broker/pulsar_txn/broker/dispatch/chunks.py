"""Chunks of one message go to one consumer of a Shared subscription: only it can put them together again.

Whoever gets a first chunk gets the others too. When it cannot take one just now, that one waits here, and the dispatcher
goes on with other messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from pulsar_txn.wire.ids import DispatchHints, Position

from .consumers import Consumer
from .replay import Replay

MAX_INCOMPLETE: Final = 1000
"""Messages of which not every chunk was given out; the one that began first is forgotten."""

MAX_WAITING: Final = 2000
_UUID_BYTES: Final = 128


class Chunks:
    """Consumers that get the chunks of messages, and those chunks that wait for their consumer."""

    def __init__(self) -> None:
        self._takers: OrderedDict[bytes, Consumer] = OrderedDict()
        self._waiting: dict[Position, tuple[Consumer, int | None]] = {}

    def __contains__(self, position: Position) -> bool:
        return position in self._waiting

    @property
    def is_full(self) -> bool:
        """True if so many chunks wait that nothing more is read before some of them could go."""
        return len(self._waiting) >= MAX_WAITING

    def taker(
        self,
        position: Position,
        hints: DispatchHints,
        indexes: int | None,
        chosen: Consumer,
        consumers: Sequence[Consumer],
        can_take: Callable[[Consumer], bool],
    ) -> Consumer | None:
        """The consumer that gets this chunk; None when it has to wait.

        `chosen`: whose turn it is, and who gets a message that begins.
        """
        uuid = (hints.chunk_of or b"")[:_UUID_BYTES]
        taker = self._takers.get(uuid)
        if hints.chunk_id <= 0 or taker is None or taker not in consumers:
            taker = self._takers[uuid] = chosen
            if len(self._takers) > MAX_INCOMPLETE:
                self._takers.popitem(last=False)
        elif not can_take(taker):
            self._waiting[position] = (taker, indexes)
            return None
        if hints.chunk_id >= hints.chunks - 1:
            self._takers.pop(uuid, None)
        return taker

    def release(self, replay: Replay, consumers: Sequence[Consumer], can_take: Callable[[Consumer], bool]) -> None:
        """Hand chunks to the replay whose consumer can take something again, or is gone."""
        if not self._waiting:
            return
        for position, (taker, indexes) in list(self._waiting.items()):
            if taker not in consumers or can_take(taker):
                del self._waiting[position]
                replay.add(position, indexes)

    def clear(self) -> None:
        """The log is read again, or nobody is there to read."""
        self._takers.clear()
        self._waiting.clear()
