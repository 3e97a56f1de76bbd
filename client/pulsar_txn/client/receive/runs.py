"""The order in which a consumer hands out messages for batches, and what has to come first after a rewind.

A batch acknowledges its messages by name, never cumulatively. A cumulative acknowledgement takes everything in front of it
along, and conflicts with nothing that was settled before. This client cannot know what lies in front: on Failover another
consumer may have committed a part of the batch since it was delivered here (that was doubled), and a message that was
pending in a transaction of a killed worker was not delivered here at all (that was lost). A list conflicts instead.

After a rewind it is watched that what has to come first does come first (see `_recall`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.recall import Place, place_of
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.client.receive.partition_consumer import PartitionConsumer

Handed: TypeAlias = tuple[Message[Any], int]
"""A message, and its number among those handed out for batches of its partition."""

_NOWHERE: Final[Place] = ((-1, -1), -1)


class _Line:
    """The messages of one partition in the order in which they were handed out."""

    __slots__ = ("last", "must_reach", "next", "settled")

    def __init__(self) -> None:
        self.next = 0
        self.settled = -1
        self.last: Message[Any] | None = None
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
            line.settled, line.must_reach = line.next - 1, None  # the first ones, or moved by a seek
        elif before is not line.last:
            line.next += 1

    def settle(self, part: PartitionConsumer, group: Sequence[Handed]) -> None:
        """The group was committed."""
        line = self._lines.get(part)
        if line is None:
            return
        if group[0][1] == line.settled + 1 and group[-1][1] - group[0][1] == len(group) - 1:
            line.settled = group[-1][1]
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
