"""Intake of a client's socket: cut into frames, handed on a few at a time, and not read while there is a reason.

Frames that arrived in the same segment as the last one that could be taken wait here, and nothing more is read before
they are done. So a limit holds exactly, whatever a client sends at once, and no client has the loop for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.wire.frames import FrameReader

LEDGER, OUTBOUND, SENDS, DRAINING, REQUESTS, COLLECTED, TURN, INCOMING, CLOSED = (1 << bit for bit in range(9))
"""Reasons not to take frames."""

MAX_STRANGER_FRAME_BYTES: Final = 1 << 16
"""A frame of a client that has not sent CONNECT."""

LOOKS: Final = 4
"""A frame, or CONNECT, that is not there after so many looks will not come."""

_FRAMES_PER_TURN: Final = 512
_COLD_FRAMES_PER_TURN: Final = 32
_TYPE_TAG: Final = 8
_SHORTEST_USUAL: Final = 7
_SMALL_FRAME_BYTES: Final = 1 << 16

_KEYS: Final = {
    LEDGER: "bytes in flight to the store",
    OUTBOUND: "bytes that a client does not read",
    SENDS: "maxPendingPublishRequestsPerConnection",
    REQUESTS: "maxConcurrentRequestsPerConnection",
}
"""Reasons that are limits, and what a metric calls them."""


def _nothing(_: object) -> None:
    """Of a connection that is closed."""


class Intake:
    """One connection's frames on their way in. `handle` takes each; what it raises comes out of `feed` or `failed`.

    `requests`: how many were taken and are not answered; whoever answers one counts it down. At `max_requests` no further
    frame is taken.
    """

    __slots__ = (
        "_call_soon",
        "_cold",
        "_complete",
        "_counted",
        "_failed",
        "_handle",
        "_held",
        "_limits",
        "_looks",
        "_max_frame_bytes",
        "_paused",
        "_reader",
        "_reserved",
        "_takes",
        "_transport",
        "_wanted",
        "max_requests",
        "reasons",
        "requests",
    )

    def __init__(
        self,
        handle: Callable[[bytes], None],
        failed: Callable[[Exception], None],
        max_frame_bytes: int,
        max_requests: int,
        limits: Limits,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.reasons = 0
        self.requests = 0
        self.max_requests = max_requests
        self._handle = handle
        self._failed = failed
        self._limits = limits
        self._call_soon = call_soon
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(min(max_frame_bytes, MAX_STRANGER_FRAME_BYTES))
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._paused = False
        self._cold = 0
        self._complete = False
        self._looks = 0
        self._takes: Mapping[int, Callable[[bytes], None]] = {}
        self._counted: Mapping[int, Callable[[bytes], None]] = {}
        self._reserved = 0  # of the limit of all connections, for a large frame that is being put together
        self._wanted = 0  # the same, but not granted yet

    def attach(self, transport: asyncio.Transport) -> None:
        """Bytes come from here."""
        self._transport = transport
        if self.reasons:
            self._pause()

    def know(self, takes: Mapping[int, Callable[[bytes], None]], counted: Mapping[int, Callable[[bytes], None]]) -> None:
        """The client has said CONNECT: it may send large frames.

        `takes`: commands that are handed on at once, by type. `counted`: the same, for those that are counted as requests.
        """
        self._reader.max_frame_size = self._max_frame_bytes
        self._takes = takes
        self._counted = counted

    def begin_request(self) -> None:
        """A request is taken."""
        self.requests += 1
        if self.requests == self.max_requests:
            self.hold(REQUESTS, hold=True)

    def feed(self, data: bytes) -> None:
        """The next segment. What it raises closes the connection: WireError of the frames, and errors of `handle`."""
        reader = self._reader
        frames = reader.feed(data)
        if reader.needed > _SMALL_FRAME_BYTES or self._reserved:
            self._reserve(reader.needed)
        if self._held or self.reasons:  # a segment that was on its way when reading stopped
            self._held += frames
        elif len(frames) == 1:
            self._complete = True
            self._handle(frames[0])
        elif frames:
            self._complete = True
            self._take(frames)

    def _take(self, frames: list[bytes]) -> None:
        source = iter(frames)
        handle, takes, counted = self._handle, self._takes, self._counted
        for frame in islice(source, _FRAMES_PER_TURN):
            # All known peers write the type first, and sizes that agree.
            kind = frame[5] if len(frame) > _SHORTEST_USUAL and frame[4] == _TYPE_TAG else -1
            if (take := takes.get(kind)) is not None:
                take(frame)
            elif (take := counted.get(kind)) is not None:
                self.requests += 1
                if self.requests == self.max_requests:
                    self.hold(REQUESTS, hold=True)
                take(frame)
            else:
                handle(frame)
            if self.reasons:
                break
        held = list(source)
        if held and not self.reasons & CLOSED:
            self._held = held
            if not self.reasons:
                self._next_turn()

    def cold(self) -> None:
        """A command that is not one of the few per message: after some of them others have their turn."""
        self._cold += 1
        if self._cold == _COLD_FRAMES_PER_TURN:
            self._next_turn()

    def _next_turn(self) -> None:
        self.hold(TURN, hold=True)
        self._call_soon(self._turn_came)

    def _turn_came(self) -> None:
        self._cold = 0
        self.reasons &= ~TURN
        self._go_on()

    # ---- reasons

    def hold(self, reason: int, *, hold: bool) -> None:
        """Take frames only while there is no reason against it."""
        before = self.reasons
        self.reasons = before | reason if hold else before & ~reason
        if hold:
            if not before & reason and reason in _KEYS:
                self._limits.reached[_KEYS[reason]] += 1
            if not before:
                self._pause()
        elif before and not self.reasons:
            if self._held:
                self._call_soon(self._go_on)
            else:
                self._resume()

    def _go_on(self) -> None:
        if self.reasons:
            return
        held, self._held = self._held, []
        try:
            self._take(held)
        except Exception as error:  # noqa: BLE001 - the owner of the connection decides
            self._failed(error)
            return
        if not self.reasons and not self._held:
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
        self._takes = self._counted = {}
        self._handle = self._failed = _nothing  # no circle is left: a connection that ends is freed at once
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
