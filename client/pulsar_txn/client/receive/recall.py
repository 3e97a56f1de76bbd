"""What has to come again before anything else may be handed out: waiting for it, and asking for it.

A server may take its own time over an abort, answer a request to deliver again as if the acknowledgements were still
pending, or lose its connection with the request on the way. So it is asked again, in growing intervals, until what it owes
has come. When it has been asked `TIMES` times over one connection, in six seconds, somebody else has settled that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.receive import acks
from pulsar_txn.client.receive.message import Message
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.client.receive.partition_consumer import PartitionConsumer

logger = logging.getLogger("pulsar_txn.client.consumer")

Place: TypeAlias = tuple[Position, int]
"""Position of an entry, and index in its batch or -1: their order is that of a partition."""

TIMES: Final = 5
FIRST_PAUSE: Final = 0.1
"""Seconds before the first request, doubled behind each."""
NOBODY: Final = -1


class AskAgain:
    """Asks now and then, until cancelled.

    `ask()` returns the tenure over which it has asked, `NOBODY` when there was nobody to ask. Only requests of one tenure are
    counted together, for a new connection brings by itself what is owed. After the last of them `give_up()` is called.
    """

    def __init__(
        self, runtime: Runtime, ask: Callable[[], int], give_up: Callable[[], None], *, first: float = FIRST_PAUSE
    ) -> None:
        self._runtime = runtime
        self._ask = ask
        self._give_up = give_up
        self._asked = 0
        self._tenure = NOBODY
        self._timer: asyncio.Handle = runtime.call_later(first, self._on_due)

    def cancel(self) -> None:
        """It has come, or nobody waits any more."""
        self._timer.cancel()

    def _on_due(self) -> None:
        if self._asked == TIMES:
            self._give_up()
            return
        tenure = self._ask()
        if tenure not in (self._tenure, NOBODY):
            self._tenure, self._asked = tenure, 0
        self._asked += tenure != NOBODY
        self._timer = self._runtime.call_later(FIRST_PAUSE * 2**self._asked, self._on_due)


class Recall:
    """Keeps back what a partition of an Exclusive or Failover subscription delivers until it begins at a place or before."""

    def __init__(self, part: PartitionConsumer, runtime: Runtime, place: Place, *, wait: float) -> None:
        self._part = part
        self._place = place
        self._withheld = 0
        self._runtime = runtime
        self._asking: AskAgain | asyncio.Handle
        self._asking = AskAgain(runtime, self._ask, self._give_up, first=max(wait, FIRST_PAUSE))

    def admits(self, messages: Sequence[Message[Any]]) -> bool:
        """Whether these may be handed out; the first that may are the end of it. Those that may not come again."""
        if place_of(messages[0]) > self._place:
            self._withheld += len(messages)
            return False
        self._part.end_recall()
        return True

    def settled(self, places: Iterable[acks.Place], *, cumulative: bool) -> None:
        """The program settles these itself; if what was waited for is among them, what was kept back may follow."""
        position, index = self._place
        for at, at_index, _ in places:
            if (at == position and at_index in (index, -1)) or (cumulative and (at, at_index) >= self._place):
                break
        else:
            return
        if not self._withheld:
            self._part.end_recall()
            return
        self._asking.cancel()
        self._asking = self._runtime.call_later(FIRST_PAUSE, self._give_up)  # once the acknowledgement has left

    def drop(self) -> int:
        """What was kept back comes again; how many permits that were."""
        withheld, self._withheld = self._withheld, 0
        return withheld

    def cancel(self) -> None:
        """Nothing is waited for any more."""
        self._asking.cancel()

    def _ask(self) -> int:
        if not (self._part.is_connected and self._part.is_active):
            return NOBODY
        self._part.redeliver()
        return self._part.tenure

    def _give_up(self) -> None:
        logger.info("%s: %s does not come again, so it was settled; going on behind it", self._part.topic, self._place)
        self._part.end_recall()
        self._part.redeliver()


def place_of(message: Message[Any]) -> Place:
    """Where in its partition a message is."""
    return message.entry.position, message.index
