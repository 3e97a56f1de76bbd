"""Deduplication: the highest sequence id per producer name, folded from the entries of a topic."""

from __future__ import annotations

import json
from collections import OrderedDict

from pulsar_txn.wire.ids import EntryHeader


class Sequences:
    """Highest sequence id of each producer name, the `limit` names that published last.

    Changed only by `note`, with the header of every data entry that is appended or folded in recovery.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._highest: OrderedDict[str, int] = OrderedDict()

    def note(self, header: EntryHeader) -> None:
        """An entry is in the log."""
        name = header.producer_name
        highest = self._highest
        sequence_id = max(header.highest_sequence_id, header.sequence_id)
        if sequence_id > highest.get(name, -1):
            highest[name] = sequence_id
        if name in highest:
            highest.move_to_end(name)
        if len(highest) > self._limit:
            highest.popitem(last=False)

    def is_duplicate(self, header: EntryHeader, *, is_chunk: bool) -> bool:
        """True if the entry is in the log already. Chunks of one message share a sequence id: only older ones are known."""
        known = self._highest.get(header.producer_name, -1)
        return header.sequence_id < known if is_chunk else header.sequence_id <= known

    def missing(self, header: EntryHeader) -> int | None:
        """The sequence id that should have come before this entry; None when there is no gap, or its producer is not known."""
        known = self._highest.get(header.producer_name)
        return None if known is None or header.sequence_id <= known + 1 else known + 1

    def last(self, name: str) -> int:
        """The highest sequence id of a producer name, -1 when it is not known."""
        return self._highest.get(name, -1)

    def pack(self) -> bytes:
        """For `unpack`."""
        return json.dumps(list(self._highest.items())).encode()

    def unpack(self, data: bytes) -> None:
        """Take over what `pack` gave."""
        self._highest = OrderedDict((name, sequence_id) for name, sequence_id in json.loads(data or b"[]"))
