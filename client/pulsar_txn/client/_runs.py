"""When the messages of a batch may be acknowledged with one cumulative acknowledgement per partition.

A cumulative acknowledgement takes everything in front of it along and, other than a list, conflicts with nobody. So it is
right only when nothing in front of it is unsettled and nobody else can have taken a part of it:

* the batch follows directly on what was settled before, and has no gap; messages that the program received by other
  means in between are a gap;
* all of it was delivered since the consumer last became the one that gets messages (same connection, same activity):
  what another consumer may have settled meanwhile must conflict;
* it is behind everything that was settled here, and after a rewind it begins at or before what came back;
* it ends with an entry. A stock server keeps of a cumulative acknowledgement inside a batch no more than the entry, and takes
  the whole batch for acknowledged when it loads the topic anew: the rest of it would be lost (seen on 4.0.8 and 4.2.4).

In doubt the answer is no, and a list is acknowledged.

After a rewind something else is watched: that what has to come first does come first (see `_recall`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client._recall import Place, place_of
from pulsar_txn.client.message import Message
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.client.partition_consumer import PartitionConsumer

Handed: TypeAlias = tuple[Message[Any], int]
"""A message, and its number among those handed out for batches of its partition."""

_NOWHERE: Final[Place] = ((-1, -1), -1)


class _Line:
    """The messages of one partition in the order in which they were handed out."""

    __slots__ = ("floor", "last", "must_reach", "next", "settled")

    def __init__(self) -> None:
        self.next = 0
        self.settled = -1
        self.last: Message[Any] | None = None
        self.floor: Place | None = None
        self.must_reach: Place | None = None


class Runs:
    """Watches what one consumer hands out for batches."""

    def __init__(self) -> None:
        self._lines: dict[PartitionConsumer, _Line] = {}

    def hand_out(
        self, messages: Iterable[Message[Any]], before: Mapping[PartitionConsumer, Message[Any] | None]
    ) -> list[Handed]:
        """Number messages that were just received; `before` is what each partition had handed out last, by any means.

        Of a message that is there twice the first is taken: a list acknowledges it once, whatever was done with it.
        """
        for left in self._lines.keys() - before.keys():
            del self._lines[left]  # a pattern has lost it
        handed = []
        seen: set[PartitionConsumer] = set()
        for message in distinct(messages):
            part = message.entry.consumer
            line = self._lines.setdefault(part, _Line())
            if part not in seen:
                seen.add(part)
                self._follow(line, before.get(part))
            handed.append((message, line.next))
            line.next += 1
            line.last = message
        return handed

    @staticmethod
    def _follow(line: _Line, before: Message[Any] | None) -> None:
        if before is None:
            line.settled, line.floor, line.must_reach = line.next - 1, None, None  # the first ones, or moved by a seek
        elif before is not line.last:
            line.next += 1

    def is_run(self, part: PartitionConsumer, group: Sequence[Handed]) -> bool:
        """Whether one cumulative acknowledgement of its last message says the same as a list of this partition's group."""
        line = self._lines.get(part)
        if line is None:
            return False
        first, last = group[0], group[-1]
        if first[1] != line.settled + 1 or last[1] - first[1] != len(group) - 1:
            return False
        if first[0].entry.tenure != part.tenure:
            return False
        if last[0].index >= 0 and last[0].index != last[0].entry.batch_size - 1:
            return False
        places = [place_of(message) for message, _ in group]
        if part.chunks.holds_before(places[-1][0]):
            return False  # a message that is not complete yet would be acknowledged along
        if line.floor is not None and places[0] <= line.floor:
            return False
        if line.must_reach is not None and places[0] > line.must_reach:
            return False
        return all(one < other for one, other in itertools.pairwise(places))

    def settle(self, part: PartitionConsumer, group: Sequence[Handed]) -> None:
        """The group was committed."""
        line = self._lines.get(part)
        if line is None:
            return
        if group[0][1] == line.settled + 1 and group[-1][1] - group[0][1] == len(group) - 1:
            line.settled = group[-1][1]
            line.floor = place_of(group[-1][0])
            line.must_reach = None

    def rewind(self, part: PartitionConsumer, group: Sequence[Handed], *, wait: float) -> None:
        """All that is unsettled comes again, the group too, and first, if it was the next to be settled.

        `wait`: seconds until it can come at all.
        """
        line, first = self._lines.get(part), place_of(group[0][0])
        if line is None:
            return
        if group[0][1] == line.settled + 1 or first == line.must_reach:
            line.must_reach = first
            part.recall_from(first, wait=wait)
        elif line.must_reach is None:
            line.must_reach = _NOWHERE
        line.settled = line.next - 1


def whole_entries(queued: Sequence[Message[Any]], most: int) -> int:
    """How many messages to take, at most `most`, so that the messages of an entry stay together; `most` where they cannot.

    Stock servers keep the acknowledgement of a part of an entry badly when they load a topic anew: of a cumulative one they
    lose the rest of the entry, of a list they may deliver the part again (seen on 4.0.8 and 4.2.4).
    """
    if len(queued) <= most:
        return most
    split = queued[most].entry
    count = most
    while count and queued[count - 1].entry is split:
        count -= 1
    return count or most


def distinct(messages: Iterable[Message[Any]]) -> list[Message[Any]]:
    """The first copy of each message."""
    first: dict[tuple[PartitionConsumer, Position, int], Message[Any]] = {}
    for message in messages:
        first.setdefault((message.entry.consumer, message.entry.position, message.index), message)
    return list(first.values())
