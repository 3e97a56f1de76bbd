"""Intake of a client's socket: cut into frames, handed on a few at a time, and not read while there is a reason.

Frames that arrived in the same segment as the last one that could be taken wait here, and nothing more is read before
they are done. So a limit holds exactly, whatever a client sends at once, and no client has the loop for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.runtime import Runtime
from pulsar_txn.wire.frames import FrameReader

LEDGER, OUTBOUND, SENDS, DRAINING, REQUESTS, COLLECTED, TURN, INCOMING, CLOSED = (1 << bit for bit in range(9))
"""Reasons not to take frames."""

MAX_STRANGER_FRAME_BYTES: Final = 1 << 16
"""A frame of a client that has not sent CONNECT."""

LOOKS: Final = 4
"""A frame, or CONNECT, that is not there after so many looks will not come."""

FRAMES_PER_TURN: Final = 512
"""Frames of one client that are taken before others have their turn."""
_COLD_FRAMES_PER_TURN: Final = 32
_SMALL_FRAME_BYTES: Final = 1 << 16

_KEYS: Final = {
    LEDGER: "bytes in flight to the store",
    OUTBOUND: "bytes that a client does not read",
    SENDS: "maxPendingPublishRequestsPerConnection",
    REQUESTS: "maxConcurrentRequestsPerConnection",
}
"""Reasons that are limits, and what a metric calls them."""


_NONE: Final[list[bytes]] = []


def _nothing() -> None:
    """Of a connection that is closed."""


class Intake:
    """One connection's frames on their way in: what may be taken now, and what waits until there is no reason against it.

    The loop calls `go_on` when frames that wait may be taken, see `released`.
    """

    __slots__ = (
        "_cold",
        "_complete",
        "_go_on",
        "_held",
        "_limits",
        "_looks",
        "_max_frame_bytes",
        "_paused",
        "_reader",
        "_reserved",
        "_runtime",
        "_transport",
        "_wanted",
        "reasons",
    )

    def __init__(self, go_on: Callable[[], None], max_frame_bytes: int, limits: Limits, runtime: Runtime) -> None:
        self.reasons = 0
        self._go_on = go_on
        self._limits = limits
        self._runtime = runtime
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(min(max_frame_bytes, MAX_STRANGER_FRAME_BYTES))
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._paused = False
        self._cold = 0
        self._complete = False
        self._looks = 0
        self._reserved = 0  # of the limit of all connections, for a large frame that is being put together
        self._wanted = 0  # the same, but not granted yet

    def attach(self, transport: asyncio.Transport) -> None:
        """Bytes come from here."""
        self._transport = transport
        if self.reasons:
            self._pause()

    def know(self) -> None:
        """The client has said CONNECT: it may send large frames."""
        self._reader.allow(self._max_frame_bytes)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames of the next segment that may be taken now. Raises WireError of a frame that cannot be right."""
        reader = self._reader
        frames = reader.feed(data)
        if reader.needed > _SMALL_FRAME_BYTES or self._reserved:
            self._reserve(reader.needed)
        if self._held or self.reasons:  # a segment that was on its way when reading stopped
            self._held += frames
            return _NONE
        if frames:
            self._complete = True
        return frames

    def keep(self, frames: Iterator[bytes]) -> None:
        """These were not taken: there is a reason against it, or others have their turn first."""
        held = list(frames)
        if held and not self.reasons & CLOSED:
            self._held = held
            if not self.reasons:
                self._next_turn()

    def released(self) -> list[bytes]:
        """Frames that waited and may be taken now; the first of the two things to be done when the loop says `go_on`."""
        if self.reasons & TURN:
            self._cold = 0
            self.reasons &= ~TURN
        if self.reasons:
            return _NONE
        held, self._held = self._held, []
        return held

    def read_on(self) -> None:
        """Read again unless something waits; the second thing, once these frames are taken."""
        if not self.reasons and not self._held:
            self._resume()

    def cold(self) -> None:
        """A command that is not one of the few per message: after some of them others have their turn."""
        self._cold += 1
        if self._cold == _COLD_FRAMES_PER_TURN:
            self._next_turn()

    def _next_turn(self) -> None:
        self.hold(TURN, hold=True)
        self._runtime.call_soon(self._go_on)

    # ---- reasons

    def hold(self, reason: int, *, hold: bool) -> None:
        """Take frames only while there is no reason against it."""
        before = self.reasons
        self.reasons = before | reason if hold else before & ~reason
        if hold:
            if not before & reason and reason in _KEYS:
                self._limits.note_reached(_KEYS[reason])
            if not before:
                self._pause()
        elif before and not self.reasons:
            if self._held:
                self._runtime.call_soon(self._go_on)
            else:
                self._resume()

    def _pause(self) -> None:
        if self._transport is not None and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Nothing more is taken, and nothing is held."""
        self.reasons |= CLOSED
        self._held = []
        self._go_on = _nothing  # no circle is left: a connection that ends is freed at once
        self._transport = None
        if self._wanted:
            self._limits.forget_incoming(self._granted)
            self._wanted = 0
        self._reserve(0)

    # ---- large frames, and those that never end

    def _reserve(self, needed: int) -> None:
        """Bytes of the frame that is being put together, as far as it is large, out of what all connections have."""
        size = needed if needed > _SMALL_FRAME_BYTES else 0
        if self._wanted or size == self._reserved:
            return
        if self._reserved:
            released, self._reserved = self._reserved, 0
            self._limits.release_incoming(released)
        if not size:
            return
        if self._limits.reserve_incoming(size, self._granted):
            self._reserved = size
        else:
            self._wanted = size
            self.hold(INCOMING, hold=True)

    def _granted(self) -> None:
        self._reserved, self._wanted = self._wanted, 0
        self.hold(INCOMING, hold=False)

    def is_overdue(self, *, connected: bool) -> bool:
        """A look from time to time: whether a frame is not complete, or CONNECT has not come, for the last LOOKS looks.

        While nothing is read it is nobody's fault.
        """
        late = not self.reasons and (not connected or (self._reader.buffered > 0 and not self._complete))
        self._looks = self._looks + 1 if late else 0
        self._complete = False
        return self._looks >= LOOKS
