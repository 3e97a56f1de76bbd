"""Messages in chunks: put together where their last chunk is, also when they began before the range."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_txn.client.encoded import OpenedEntry, join_chunks

Parts = dict[int, bytes]
"""Chunks of one message by their number."""


class Chunks:
    """Collects the chunks of one range. A message belongs to the range that has its last chunk."""

    def __init__(self, earlier: Callable[[str, int], Parts]) -> None:
        """`earlier(uuid, first)`: the chunks before number `first`, from before the range; without those that are gone."""
        self._earlier = earlier
        self._parts: dict[str, Parts] = {}

    def whole(self, entry: OpenedEntry) -> OpenedEntry | None:
        """The message as an entry when this is its last chunk; None before, and where a part of it is gone."""
        metadata = entry.metadata
        number, total = metadata.chunk_id, metadata.num_chunks_from_msg
        if number == 0:
            self._parts[metadata.uuid] = {}
        parts = self._parts.setdefault(metadata.uuid, {})
        parts[number] = bytes(entry.payload)
        if number < total - 1:
            return None
        del self._parts[metadata.uuid]
        first = min(parts)
        if first > 0:
            parts = self._earlier(metadata.uuid, first) | parts
        if len(parts) < total:
            return None
        return OpenedEntry(metadata, join_chunks(metadata, [parts[number] for number in range(total)]), 0)
