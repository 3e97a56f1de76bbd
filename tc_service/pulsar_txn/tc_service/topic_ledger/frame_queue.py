"""The frames of one log on their way: filled in a turn of the loop, sent in order, confirmed in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.group import CommitGroup
from pulsar_txn.ledger.handles import MAX_VALUE_BYTES
from pulsar_txn.ledger.pressure import Pressure
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.ledger.tally import Tally

from .frames import RECORD_BYTES, Frame, Record, encode

_MOST_IN_FLIGHT: Final = 16
"""Frames that are not confirmed; what comes meanwhile shares the next ones, so frames grow with the load."""

FRAME_BYTES: Final = 1 << 20
"""A frame takes no further record from here on."""


class Numbers(Protocol):
    """Numbers that a frame's header says of the log at the moment when it is closed."""

    next_entry: int
    first_entry: int
    finished_snapshot: int


class FrameGroup(CommitGroup):
    """A frame that still takes records, and what waits for it."""

    __slots__ = ("entries", "records", "size")

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.entries = 0
        self.size = 0


class _Sent(NamedTuple):
    group: FrameGroup
    frame: Frame
    at: float


class FrameQueue:
    """Implements `ledger.handles.GroupHost` for one log.

    `send` takes an encoded frame. `confirmed_at` is the time at which the newest confirmed frame was sent, `sent_at` that of
    the last one sent.
    """

    max_value_bytes = MAX_VALUE_BYTES

    def __init__(
        self,
        runtime: Runtime,
        pressure: Pressure,
        epoch: int,
        numbers: Numbers,
        send: Callable[[bytes], None],
        claimed_at: float,
    ) -> None:
        self.open_group: FrameGroup = FrameGroup()
        self.tally = Tally()
        self.confirmed_at = claimed_at
        self.sent_at = claimed_at
        self._runtime = runtime
        self._pressure = pressure
        self._epoch = epoch
        self._numbers = numbers
        self._send = send
        self._sequence = 1  # 0 was the claim
        self._ready: deque[tuple[FrameGroup, Frame]] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._awake = False
        self._ended = False

    @property
    def newest(self) -> FrameGroup | None:
        """The last group that has something to be confirmed."""
        if self.open_group:
            return self.open_group
        if self._ready:
            return self._ready[-1][0]
        return self._in_flight[-1].group if self._in_flight else None

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are not confirmed."""
        waiting = sum(group.bytes for group, _ in self._ready) + sum(sent.group.bytes for sent in self._in_flight)
        return self.open_group.bytes + waiting

    def unanswered_seconds(self) -> float:
        """Return how long the oldest frame waits for its receipt; 0 when none does."""
        return self._runtime.monotonic() - self._in_flight[0].at if self._in_flight else 0.0

    def make_room(self, size: int) -> None:
        """Close the open frame if a record of so many bytes would make it too large."""
        group = self.open_group
        if group.records and group.size + size + RECORD_BYTES > FRAME_BYTES:
            self._close_group()
            self._pump()

    def add(self, record: Record, *, is_new: bool = False) -> None:
        """One more record of the open frame; `make_room` was asked, and the log has joined it. `is_new`: a further entry."""
        group, size = self.open_group, len(record.data)
        group.records.append(record)
        group.entries += is_new
        group.size += size + RECORD_BYTES
        self.count(size)

    def count(self, size: int) -> None:
        """So many bytes joined the open group."""
        self.open_group.bytes += size
        self._pressure.enter(size)

    def wake(self) -> None:
        """Something joined: send it when the turn ends."""
        if not self._awake and not self._ended:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._awake = False
        if len(self._in_flight) < _MOST_IN_FLIGHT:
            self._close_group()
            self._pump()

    def _close_group(self) -> None:
        group = self.open_group
        if not group or self._ended:
            return
        group.seal()
        self.open_group = FrameGroup()
        numbers = self._numbers
        next_entry = numbers.next_entry - group.entries
        frame = Frame(self._epoch, self._sequence, next_entry, numbers.first_entry, numbers.finished_snapshot, group.records)
        self._sequence += 1
        self._ready.append((group, frame))

    def _pump(self) -> None:
        while self._ready and len(self._in_flight) < _MOST_IN_FLIGHT:
            group, frame = self._ready.popleft()
            self.sent_at = self._runtime.monotonic()
            self._in_flight.append(_Sent(group, frame, self.sent_at))
            self._send(encode(frame))

    @property
    def oldest(self) -> Frame | None:
        """The oldest frame that was sent and is not confirmed; its sequence is its number at the writer."""
        return self._in_flight[0].frame if self._in_flight else None

    def confirm(self, sequence: int) -> None:
        """The frames up to this one are in the topic, and count."""
        while self._in_flight and self._in_flight[0].frame.sequence <= sequence:
            sent = self._in_flight.popleft()
            self.confirmed_at = sent.at
            sent.group.confirm()
            self._pressure.leave(sent.group.bytes)
        if not self._ended:
            self._pump()
            self._turn_ends()

    def end(self, error: LedgerError) -> None:
        """Nothing more is sent or confirmed."""
        self._ended = True
        groups = [sent.group for sent in self._in_flight] + [group for group, _ in self._ready] + [self.open_group]
        self._in_flight.clear()
        self._ready.clear()
        self.open_group = FrameGroup()
        for group in groups:
            group.fail(error)
            self._pressure.leave(group.bytes)
