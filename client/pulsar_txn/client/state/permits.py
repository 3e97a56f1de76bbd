"""Permits for messages that a broker may send ahead, so that about so many bytes wait here."""

from __future__ import annotations

from typing import Final

LARGEST: Final = 5 * 1024 * 1024
"""Bytes that a message is taken to have before the first one has come: the most that a broker takes by default."""

_SLOWLY: Final = 0.1
"""The weight of an entry with smaller messages than those before it. Larger ones count at once."""


class Permits:
    """Permits of one subscription. The protocol counts messages, so bytes are estimated by the sizes that have come.

    `held` are the messages that the broker may send, or has sent, and that have not left the queue.
    """

    __slots__ = ("_each", "_most", "_most_bytes", "held")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._each = 0.0
        self.held = 0

    @property
    def allowed(self) -> int:
        """The number of messages that may wait here now; at least 1."""
        return min(self._most, max(1, int(self._most_bytes / (self._each or LARGEST))))

    def start_over(self, queued: int = 0) -> int:
        """The broker knows of no permit, and so many messages are queued: the permits to give first."""
        self.held = queued
        return self.due()

    def arrived(self, messages: int, size: int) -> None:
        """An entry has come."""
        each = size / messages
        self._each = each if each > self._each else self._each + (each - self._each) * _SLOWLY

    def left(self, messages: int) -> None:
        """Messages have left the queue."""
        self.held -= messages

    def due(self) -> int:
        """The permits to give now; 0 while a FLOW is not worth it."""
        free = self.allowed - self.held
        if free <= 0 or (self.held > 0 and free * 2 < self.allowed):
            return 0
        self.held += free
        return free
