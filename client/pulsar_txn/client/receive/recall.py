"""Recall of messages of one partition: here, or asking the broker, and waiting for what has to come.

A broker may take its own time over an abort, answer a request to deliver again as if the acknowledgements were still
pending, or lose its connection while the request is on its way. So it is asked again, in growing intervals, until what it
owes has come. After `TIMES` requests over one connection, in six seconds, somebody else has settled what is missing.

On Exclusive and Failover everything comes again in order. What a unit gave back has to come first there: whatever comes
before it is kept back, and comes again itself after the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.receive.line import Line
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.owed import Owed
from pulsar_txn.client.receive.owners import UNKNOWN, Delivery, Owners, Place, Wanted, indexes
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.client.consumer")

Bits: TypeAlias = "tuple[int, int, Delivery]"
"""`(bits, batch size, delivery)` of an entry's messages that are wanted again; bits 0 are all of it."""

TIMES: Final = 5
FIRST_PAUSE: Final = 0.1
"""Seconds before the first request, doubled after each."""
NOBODY: Final = -1
ASKED_TOGETHER: Final = 50_000
"""Entries that are asked for in one command: a million of them would not fit into a frame."""


class AskAgain:
    """Asks now and then, until cancelled.

    `ask()` returns the tenure over which it has asked, `NOBODY` when there was nobody to ask. Only requests of one tenure
    are counted together, because a new connection brings by itself what is owed. After the last of them `give_up()` is
    called.
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
        """Cancel it: it has come, or nobody waits any more."""
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
    """Asks for the messages of one partition again, or hands them out again.

    `start_over()` drops what is queued, because everything comes again; `go_on()` does so when it comes again only for the sake
    of messages that are missing, and the program keeps what it has. `before()` is called before a request leaves, for
    acknowledgements that wait; `with_chunks(positions)` adds the other entries of messages in chunks;
    `hand_out(messages)` hands messages of one entry out again, without the broker; `has_some()` says whether messages of
    the partition wait for the program.
    """

    def __init__(
        self,
        line: Line,
        owners: Owners,
        *,
        start_over: Callable[[], None],
        go_on: Callable[[], None],
        before: Callable[[], None],
        with_chunks: Callable[[Sequence[Position]], list[Position]],
        hand_out: Callable[[Sequence[Message[Any]]], None],
        has_some: Callable[[], bool],
    ) -> None:
        self.epoch = 0
        self.tenure = 0
        """How often others may have got messages of this subscription meanwhile: connections, changes of activity."""
        self.is_active = True
        """Whether the broker delivers to this consumer; on Failover only to one of them."""
        self.keeps_account = line.single and line.options.durable
        """Whether every entry that is not acknowledged has to come again, in order."""
        self._line = line
        self._owners = owners
        self._start_over = start_over
        self._start_missing = go_on
        self._before = before
        self._with_chunks = with_chunks
        self._hand_out = hand_out
        self._has_some = has_some
        self.owed = Owed(line.core.runtime, line.topic, self._what_is_missing, self._is_waiting)
        self._first: tuple[Position, int] | None = None
        self._withheld = 0
        self._asking: AskAgain | asyncio.Handle | None = None
        self._expected: dict[Wanted, tuple[AskAgain, Callable[[], None]]] = {}

    # --- asking -------------------------------------------------------------------------------------------------------

    def everything(self) -> None:
        """Ask for all that is not acknowledged. A new connection brings it without being asked."""
        if self._line.connection is None:
            self._start_over()
            return
        self._before()
        self._say_everything()
        self._start_over()
        if self.keeps_account:
            self.owed.all_comes_again()

    def _what_is_missing(self) -> None:
        self._before()
        self._say_everything()
        self._start_missing()

    def _say_everything(self) -> None:
        """The request goes before the permits of what is dropped: a broker that reads for them passes entries over."""
        fields: dict[str, Any] = {}
        if self._line.single:
            self.epoch += 1
            fields["consumer_epoch"] = self.epoch
        self._line.say("redeliverUnacknowledgedMessages", **fields)

    def these(self, entries: Mapping[Position, Bits], copies: Iterable[Message[Any]] = ()) -> None:
        """Have these messages again; on Exclusive and Failover everything is asked for, because their order is kept.

        `copies` are messages of these entries, as far as they are known here. Those of an entry of which this consumer has
        others are handed out again here: a broker that is asked for the entry may give all of it to another consumer, while
        somebody here still works on the others.
        """
        here = {} if self._line.single or self._line.connection is None else self._staying(entries, copies)
        asked = [position for position in entries if position not in here] if here else list(entries)
        for position in asked:
            self._owners.want(position, *entries[position])
        if self._line.single:
            self.everything()
        else:
            self._ask_for(asked)
        for position in sorted(here):
            self._hand_out(here[position])

    def _staying(self, entries: Mapping[Position, Bits], copies: Iterable[Message[Any]]) -> dict[Position, list[Message[Any]]]:
        """Copies by entry, in their order, of the entries that need not be asked for."""
        found: dict[Position, dict[int, Message[Any]]] = {}
        for message in copies:
            found.setdefault(message.entry.position, {})[message.index] = message
        here = {}
        for position, known in found.items():
            bits, size, _ = entries.get(position, (0, 0, UNKNOWN))
            those = [known[index] for index in indexes(bits, size) if index in known]
            if bits and len(those) == bits.bit_count() and self._owners.may_stay(position, bits):
                here[position] = those
        return here

    def entries(self, positions: Iterable[Position]) -> None:
        """Ask for whole entries."""
        self.these(dict.fromkeys(positions, (0, 0, UNKNOWN)))

    def _ask_for(self, positions: Sequence[Position]) -> None:
        if positions and self._line.connection is not None:
            self._before()
            places = [{"ledgerId": each[0], "entryId": each[1]} for each in self._with_chunks(positions)]
            for first in range(0, len(places), ASKED_TOGETHER):
                self._line.say("redeliverUnacknowledgedMessages", message_ids=places[first : first + ASKED_TOGETHER])

    # --- waiting for some of them -------------------------------------------------------------------------------------

    def expect(self, entries: Mapping[Position, Bits], lost: Callable[[Mapping[Position, int]], None]) -> None:
        """Some of these have to come again: ask for them until they do. `lost` is called, later, with those that do not."""
        runtime = self._line.core.runtime
        ticket = Wanted(lambda: self._stop_asking(ticket))
        for position, (bits, _, _) in entries.items():
            self._owners.expect(ticket, position, bits)
        if not ticket.entries:
            return

        def give_up() -> None:
            rest = dict(ticket.entries)
            self._owners.release(ticket)
            runtime.call_later(0, lost, rest)

        self._expected[ticket] = (AskAgain(runtime, lambda: self._ask_for_rest(ticket), give_up), give_up)

    def _stop_asking(self, ticket: Wanted) -> None:
        expected = self._expected.pop(ticket, None)
        if expected is not None:
            expected[0].cancel()

    def _ask_for_rest(self, ticket: Wanted) -> int:
        return self.ask_for(list(ticket.entries))

    def ask_for(self, positions: Sequence[Position]) -> int:
        """Ask for whole entries now; the tenure in which that was, NOBODY without a connection."""
        if self._line.connection is None:
            return NOBODY
        self._ask_for(positions)
        return self.tenure

    # --- keeping order ------------------------------------------------------------------------------------------------

    def keep_back_until(self, place: tuple[Position, int], *, wait: float = 0.0) -> None:
        """Hand nothing out before this comes again; ask for it after `wait` seconds, and again until it comes."""
        first = place if self._first is None else min(place, self._first)
        self.keep_nothing_back()
        self._first = first
        runtime = self._line.core.runtime
        self._asking = AskAgain(runtime, self._ask_for_first, self._give_up, first=max(wait, FIRST_PAUSE))

    def keep_nothing_back(self) -> None:
        """Hand out incoming messages again. Messages that were kept back must be asked for."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._first = None

    def admits(self, messages: Sequence[Message[Any]]) -> bool:
        """True if these may be handed out. The first messages that may end the waiting; those that may not come again."""
        if self._first is None:
            return True
        if place_of(messages[0]) > self._first:
            self._withheld += len(messages)
            return False
        self.keep_nothing_back()
        return True

    def settled(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """The program has settled these itself; if what was waited for is among them, something else comes first."""
        self.owed.settled(places, cumulative=cumulative)
        if self._first is None:
            return
        position, index = self._first
        for at, at_index, _ in places:
            if (at == position and at_index in (index, -1)) or (cumulative and (at, at_index) >= self._first):
                break
        else:
            return
        self._first = self._owners.first_wanted((at, at_index)) or self._first
        if self._first > (at, at_index):
            return
        if not self._withheld:
            self.keep_nothing_back()
        elif self._asking is not None:
            self._asking.cancel()
            after = self._line.core.runtime.call_later(FIRST_PAUSE, self._go_on)  # the acknowledgement has left by then
            self._asking = after

    def keep_back(self, messages: int) -> None:
        """So many messages that have come are dropped, and will come again after another request."""
        self._withheld += messages

    def _is_waiting(self) -> bool:
        """True if the program waits for what the broker delivers, and nobody else asks for it."""
        return self._line.connection is not None and self.is_active and self._first is None and not self._has_some()

    def permits(self) -> int:
        """The number of permits that were taken by what was kept back since this was asked last."""
        withheld, self._withheld = self._withheld, 0
        return withheld

    def close(self) -> None:
        """Close it: nobody waits any more."""
        self.keep_nothing_back()
        self.owed.clear()
        for _, give_up in list(self._expected.values()):
            give_up()

    def _ask_for_first(self) -> int:
        if self._line.connection is None or not self.is_active:
            return NOBODY
        self.everything()
        return self.tenure

    def _give_up(self) -> None:
        logger.info("%s: %s does not come again, so somebody has settled it", self._line.topic, self._first)
        self.owed.give_up()
        self._go_on()

    def _go_on(self) -> None:
        self.keep_nothing_back()
        self.everything()


def place_of(message: Message[Any]) -> tuple[Position, int]:
    """The place of a message in its partition: the order of these places is that of the partition."""
    return message.entry.position, message.index
