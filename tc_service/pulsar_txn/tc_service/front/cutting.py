"""A stream of frames, cut only where somebody wants to see a frame. Without IO.

What nobody wants is never put together: its bytes go on as they come, in runs as long as their segment, whatever the frames
in it are. So a message of any size costs a look at its first ten bytes, and no memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pulsar_txn.wire.errors import FrameTooLarge, MalformedFrame

PASSES: Final = -1
"""In place of a frame's type: bytes that go on."""

MAX_WANTED_BYTES: Final = 1 << 17
"""Of a frame that is put together. What is wanted are requests with names in them, and credentials."""

_START_BYTES: Final = 10
"""Total size, command size, and a type of one byte with its tag: no command is shorter."""
_LEAST_SIZE: Final = _START_BYTES - 4
_TYPE_TAG: Final = 8


class Cutter:
    """One direction of a connection. `wanted`: the types that `feed` gives as whole frames.

    `strict`: every frame has to begin with its type, as those of all known peers do; a client cannot hide a command otherwise.
    """

    __slots__ = ("_held", "_left", "_needed", "_strict", "wanted")

    def __init__(self, wanted: Collection[int], *, strict: bool) -> None:
        self.wanted = wanted
        self._strict = strict
        self._held = bytearray()
        self._needed = _START_BYTES
        self._left = 0

    @property
    def is_between(self) -> bool:
        """True if all bytes that were given so far end with a frame."""
        return not self._left

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._held)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The next segment: (PASSES, bytes) and (type, whole frame without its total size), in their order.

        MalformedFrame, FrameTooLarge: close the connection.
        """
        left, end = self._left, len(data)
        if left >= end:
            self._left = left - end
            return [(PASSES, data)] if data else []
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
            end = len(data)
        return self._cut(data, left, end)

    def _cut(self, data: bytes, at: int, end: int) -> list[tuple[int, bytes]]:
        pieces: list[tuple[int, bytes]] = []
        start, wanted = 0, self.wanted
        self._left, self._needed = 0, _START_BYTES
        while end - at >= _START_BYTES:
            size = int.from_bytes(data[at : at + 4])
            kind = data[at + 9]
            if size < _LEAST_SIZE or data[at + 8] != _TYPE_TAG or kind > 127:
                self._check(size)
                kind = PASSES
            stop = at + 4 + size
            if kind in wanted:
                if size > MAX_WANTED_BYTES:
                    raise FrameTooLarge(f"a command {kind} of {size} bytes is announced, {MAX_WANTED_BYTES} are allowed")
                if stop > end:
                    self._needed = 4 + size
                    break
                if at > start:
                    pieces.append((PASSES, data[start:at]))
                pieces.append((kind, data[at + 4 : stop]))
                start = at = stop
            elif stop > end:
                self._left = stop - end
                at = end
            else:
                at = stop
        if at > start:
            pieces.append((PASSES, data[start:at] if at - start < end else data))
        if at < end:
            self._held += data[at:]
        return pieces

    def _check(self, size: int) -> None:
        if size < _LEAST_SIZE:
            raise MalformedFrame(f"a frame of {size} bytes has no room for a command; is the peer a Pulsar client or broker?")
        if self._strict:
            raise MalformedFrame("a command does not begin with its type, or has one that no client sends")


def whole(frame: bytes) -> bytes:
    """A frame that was cut out, with its total size again."""
    return len(frame).to_bytes(4) + frame
