"""Back-pressure: bytes appended and not confirmed, with a high- and a low-water mark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DEFAULT_HIGH_WATER_BYTES: Final = 64 << 20


class Pressure:
    """Counts bytes in flight; tells its listeners True above `high_bytes`, and False once they are below half of it."""

    __slots__ = ("_callbacks", "bytes", "high", "high_bytes", "low_bytes", "released")

    def __init__(self, high_bytes: int = DEFAULT_HIGH_WATER_BYTES) -> None:
        self.bytes = 0
        self.released = 0
        """How often bytes were confirmed or given up."""
        self.high = False
        self.high_bytes = high_bytes
        self.low_bytes = high_bytes // 2
        self._callbacks: list[Callable[[bool], None]] = []

    def listen(self, callback: Callable[[bool], None]) -> None:
        """Tell `callback` of every change from now on."""
        self._callbacks.append(callback)

    def enter(self, size: int) -> None:
        """`size` bytes were appended."""
        self.bytes += size
        if self.bytes > self.high_bytes and not self.high:
            self._turn(high=True)

    def leave(self, size: int) -> None:
        """`size` bytes were confirmed, or given up."""
        self.bytes -= size
        self.released += 1
        if self.high and self.bytes <= self.low_bytes:
            self._turn(high=False)

    def _turn(self, *, high: bool) -> None:
        self.high = high
        for callback in self._callbacks:
            callback(high)
