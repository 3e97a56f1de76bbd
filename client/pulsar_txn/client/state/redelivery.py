"""Redelivery of the messages of one partition: what is asked for again, from whom, and what waits until it has come.

A message comes again because its unit gave it back, because it was acknowledged negatively or not in time, or because the
broker said so. It is asked for at the broker, or handed out again here, while this consumer has others of its entry.

A broker may take its own time over an abort, answer a request to deliver again as if the acknowledgements were still
pending, or lose its connection while the request is on its way. So it is asked again, in growing intervals, until what it
owes has come. After `TIMES` requests over one connection, in six seconds, somebody else has settled what is missing.

On Exclusive and Failover everything comes again in order. What a unit gave back has to come first there: whatever comes
before it, and belongs behind it, is kept back, and comes again itself after the next request. While the end of a unit that has
acknowledged is awaited, what was given back is kept back as well, because the server may go back by itself at the end. What
else a broker may do there after it was asked says `rewinds`.

Sources: CommandRedeliverUnacknowledgedMessages; its consumer epoch (PIP-84).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pulsar_txn.client.state.ack_group import AckGroup
from pulsar_txn.client.state.chunks import ChunkedMessages
from pulsar_txn.client.state.effects import (
    AskFor,
    AskForAll,
    DropQueued,
    Effects,
    HandOut,
    Log,
    Missing,
    SendAcks,
    SetTimer,
    StopTimer,
    Timer,
)
from pulsar_txn.client.state.owners import UNKNOWN, Delivery, Hold, MessagePosition, Owners, State, bit_of, indexes
from pulsar_txn.client.state.rewinds import RewindTracker, Turn
from pulsar_txn.wire.ids import Position

Bits: TypeAlias = tuple[int, int, Delivery]
"""`(bits, batch size, delivery)` of an entry's messages that are wanted again; bits 0 are all of it."""

Copies: TypeAlias = Mapping[Position, Mapping[int, Any]]
"""Messages by entry and index, as far as they are known here."""

TIMES: Final = 5
FIRST_PAUSE: Final = 0.1
"""Seconds before the first request, doubled after each."""
NOBODY: Final = -1
"""The tenure of a request that could not be made."""
ASKED_TOGETHER: Final = 50_000
"""Entries that are asked for in one command: a million of them would not fit into a frame."""
NEGATIVE_SLACK: Final = 0.01
"""Seconds that a negative acknowledgement may be early, so that a burst of them needs one timer."""
TIMEOUT_SLACK: Final = 0.05
"""Seconds that the redelivery of a message that was not acknowledged in time may be early, for the same reason."""


class _Repeat:
    """Requests that are repeated. Those of one tenure are counted together: a new connection brings by itself what is owed."""

    __slots__ = ("_tenure", "asked")

    def __init__(self) -> None:
        self.asked = 0
        self._tenure = NOBODY

    @property
    def is_over(self) -> bool:
        """True if it was asked often enough."""
        return self.asked == TIMES

    def pause(self, tenure: int) -> float:
        """Count a request of this tenure, NOBODY for none; the seconds until the next one."""
        if tenure not in (self._tenure, NOBODY):
            self._tenure, self.asked = tenure, 0
        self.asked += tenure != NOBODY
        return FIRST_PAUSE * (1 << self.asked)


class Redelivery:
    """Messages of one partition that are to come again. `keeps_order`: one consumer at a time gets everything, in order."""

    def __init__(
        self,
        topic: str,
        effects: Effects,
        owners: Owners,
        group: AckGroup,
        chunks: ChunkedMessages,
        *,
        keeps_order: bool,
        is_durable: bool,
        is_failover: bool,
    ) -> None:
        self.epoch = 0
        self.tenure = 0
        """Number of times that others may have got messages of this subscription: connections, changes of activity."""
        self.is_connected = False
        self.is_active = not is_failover
        """True if the broker delivers to this consumer; on Failover only to one of them."""
        self._is_failover = is_failover
        self.keeps_account = keeps_order and is_durable
        """True if every entry that is not acknowledged has to come again, in order."""
        self.last_position: Position | None = None
        """The position that the broker has delivered last, since it started over."""
        self.rewinds = RewindTracker(topic, effects)
        self._topic = topic
        self._effects = effects
        self._owners = owners
        self._group = group
        self._chunks = chunks
        self._keeps_order = keeps_order
        self._first: tuple[Position, int] | None = None
        """Entries that have to come before anything is handed out."""
        self._is_shut = False
        """True if it has to be asked for first: the broker may go back by itself, and bring what is pending or acknowledged."""
        self._withheld = 0
        self._kept_back: list[Position] = []
        """Entries that came before the first ones, and have to come again."""
        self._asking: _Repeat | None = None
        """Requests for it; None while something settled it, and what comes first is asked for once more."""
        self._is_timed = False
        self._expected: dict[Hold, tuple[_Repeat, Any]] = {}
        self._negative: dict[Position, tuple[Bits, dict[int, Any]]] = {}
        self._negative_due: list[tuple[float, Position]] = []
        self._negative_at = math.inf
        self._unacked: dict[tuple[Position, int], tuple[float, Bits, Any]] = {}
        self._unacked_due: list[tuple[float, Position, int]] = []
        self._unacked_at = math.inf

    # --- asking -------------------------------------------------------------------------------------------------------

    def everything(self, now: float, *, is_timed: bool = False) -> None:
        """Ask for all that is not acknowledged. A new connection brings it without being asked.

        The request goes before the permits of what is dropped: a broker that reads for them passes entries over.
        """
        if self.is_connected:
            self.flush_acks()
            self._ask_for_all()
        self._start_over()
        self._group.forget_partial()
        self._unacked.clear()
        if self.is_connected and self.keeps_account:
            self.rewinds.all_comes_again(now, is_timed=is_timed)

    def _ask_for_all(self) -> None:
        if self._keeps_order:
            self.epoch += 1
        self._effects.append(AskForAll(self.epoch if self._keeps_order else None))

    def _ask_for_what_is_missing(self) -> None:
        """Everything comes again, for the sake of what is missing; the program keeps what it has."""
        self.flush_acks()
        self._ask_for_all()
        self._start_over()

    def _start_over(self) -> None:
        self.last_position = None
        self.drop_queued()

    def came(self, position: Position, live: int, count: int, now: float) -> Turn:
        """An entry of `count` messages came: is it its turn, or is something missing before it? See `RewindTracker.came`."""
        turn = self.rewinds.came(position, live, now) if self.keeps_account else Turn.NOW
        if turn is Turn.LATER:
            self._withheld += count  # dropped, and comes again after another request
        elif turn is Turn.NOW:
            self.last_position = position
            if self._chunks.unsettled.owed:
                self._chunks.unsettled.came(position)
        return turn

    def expect_any(self) -> None:
        """Take the position that comes next for no rewind."""
        self.last_position = None

    def drop_queued(self) -> None:
        """All that is queued comes again, or is not wanted any more; also chunks of messages that are not complete."""
        self._owners.new_generation()
        self._chunks.clear()
        self._effects.append(DropQueued())

    def queue_dropped(self, positions: Iterable[Position]) -> int:
        """These entries were queued; the permits of what was kept back, beside theirs."""
        dropped = self._chunks.with_chunks([*positions, *self._kept_back])
        self.rewinds.come_again({*dropped, *self._chunks.unsettled.owed})
        self._kept_back.clear()
        withheld, self._withheld = self._withheld, 0
        return withheld

    def these(self, entries: Mapping[Position, Bits], now: float, copies: Copies | None = None) -> None:
        """Have these messages again; on Exclusive and Failover everything is asked for, because their order is kept.

        Those of an entry of which this consumer has others are handed out again here, where their copies are known: a broker
        that is asked for the entry may give all of it to another consumer, while somebody here still works on the others.
        """
        here = {} if self._keeps_order or not self.is_connected else self._staying(entries, copies or {})
        asked = [position for position in entries if position not in here] if here else list(entries)
        for position in asked:
            self._owners.want(position, *entries[position])
        self.stop_waiting()
        if self._keeps_order:
            self.everything(now)
        else:
            self._ask_for(asked)
        for position in sorted(here):
            self._effects.append(HandOut(here[position]))

    def _staying(self, entries: Mapping[Position, Bits], copies: Copies) -> dict[Position, list[Any]]:
        """Copies by entry, in their order, of the entries that need not be asked for."""
        here = {}
        for position, known in copies.items():
            bits, size, _ = entries.get(position, (0, 0, UNKNOWN))
            those = [known[index] for index in indexes(bits, size) if index in known]
            if bits and len(those) == bits.bit_count() and self._owners.may_stay(position, bits):
                here[position] = those
        return here

    def ask_for(self, positions: Sequence[Position]) -> int:
        """Ask for whole entries now; the tenure in which that was, NOBODY without a connection."""
        if not self.is_connected:
            return NOBODY
        self._ask_for(positions)
        return self.tenure

    def _ask_for(self, positions: Sequence[Position]) -> None:
        if positions and self.is_connected:
            self.flush_acks()
            those = self._chunks.with_chunks(positions)
            for first in range(0, len(those), ASKED_TOGETHER):
                self._effects.append(AskFor(those[first : first + ASKED_TOGETHER]))

    def flush_acks(self) -> None:
        """Send the acknowledgements that were collected; they are kept while there is no connection."""
        if self.is_connected and len(self._group):
            self._effects.append(SendAcks(*self.take_acks()))

    def take_acks(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Take the acknowledgements that were collected, because they leave now: individual ids, and cumulative ones."""
        individual, cumulative = self._group.take()
        self.rewinds.acknowledged(individual)
        self.rewinds.acknowledged_up_to(cumulative)
        return individual, cumulative

    # --- what is due later --------------------------------------------------------------------------------------------

    def negatively_acknowledged(
        self, position: Position, bits: Bits, seconds: float, now: float, copies: Mapping[int, Any]
    ) -> None:
        """Have messages of an entry again later. When others of the entry wait already, these come with them."""
        waiting = self._negative.get(position)
        if waiting is not None:
            before, known = waiting
            both = bits[0] | before[0] if bits[0] and before[0] else 0
            self._negative[position] = ((both, bits[1], bits[2]), {**known, **copies})
            return
        self._negative[position] = (bits, dict(copies))
        heapq.heappush(self._negative_due, (now + seconds, position))
        self._negative_at = self._set(Timer.NEGATIVE_ACKS, self._negative_due[0][0], self._negative_at, now)

    def received(self, position: Position, index: int, bits: Bits, message: Any, due: float, now: float) -> None:
        """The program has a message, and is to acknowledge it until `due`.

        One that is acknowledged in a transaction is forgotten here as well, after the broker has said yes: if the transaction
        aborts, it comes again anyway. What the broker refuses would not.
        """
        self._unacked[position, index] = (due, bits, message)
        heapq.heappush(self._unacked_due, (due, position, index))
        self._unacked_at = self._set(Timer.ACK_TIMEOUTS, self._unacked_due[0][0], self._unacked_at, now)

    @property
    def awaited_acks(self) -> int:
        """The number of messages that the program has to acknowledge in time."""
        return len(self._unacked)

    def _set(self, timer: Timer, due: float, at: float, now: float) -> float:
        if due >= at:
            return at
        self._effects.append(SetTimer(timer, max(0.0, due - now)))
        return due

    def is_settled(self, positions: Iterable[MessagePosition], *, cumulative: bool = False) -> None:
        """These are acknowledged, as far as it is known, or will come again for another reason: nobody waits for it."""
        if not self._unacked:
            return
        if cumulative:
            last = max(at[:2] if at[1] >= 0 else (at[0], 1 << 31) for at in positions)
            for key in [key for key in self._unacked if key <= last]:
                del self._unacked[key]
            return
        for position, index, _ in positions:
            self._unacked.pop((position, index), None)

    def _negative_acks_are_due(self, now: float) -> None:
        until = max(now, self._negative_at) + NEGATIVE_SLACK
        self._negative_at = math.inf
        entries: dict[Position, Bits] = {}
        copies: dict[Position, dict[int, Any]] = {}
        while self._negative_due and self._negative_due[0][0] <= until:
            _, position = heapq.heappop(self._negative_due)
            entries[position], copies[position] = self._negative.pop(position)
        self.these(entries, now, copies)
        if self._negative_due:
            self._negative_at = self._set(Timer.NEGATIVE_ACKS, self._negative_due[0][0], math.inf, now)

    def _acks_are_late(self, now: float) -> None:
        until = max(now, self._unacked_at) + TIMEOUT_SLACK
        self._unacked_at = math.inf
        entries: dict[Position, Bits] = {}
        copies: dict[Position, dict[int, Any]] = {}
        while self._unacked_due and self._unacked_due[0][0] <= until:
            due, position, index = heapq.heappop(self._unacked_due)
            known = self._unacked.get((position, index))
            if known is not None and known[0] == due:
                del self._unacked[position, index]
                bits = entries.get(position, (0, 0, UNKNOWN))[0] | bit_of(index)
                entries[position] = (bits, *known[1][1:])
                copies.setdefault(position, {})[index] = known[2]
        if entries:
            self.these(entries, now, copies)
        if self._unacked_due:
            self._unacked_at = self._set(Timer.ACK_TIMEOUTS, self._unacked_due[0][0], math.inf, now)

    # --- waiting for some of them -------------------------------------------------------------------------------------

    def expect(self, entries: Mapping[Position, Bits], token: Any) -> None:
        """Some of these have to come again: ask for them until they do, or say with `token` that they are missing."""
        hold = Hold(State.WANTED, is_awaited=True)
        for position, (bits, _, _) in entries.items():
            self._owners.expect(hold, position, bits)
        if hold.entries:
            self._expected[hold] = (_Repeat(), token)
            self._effects.append(SetTimer(hold, FIRST_PAUSE))

    def stop_waiting(self) -> None:
        """Stop asking for what has come."""
        for hold in self._owners.take_arrived():
            if self._expected.pop(hold, None) is not None:
                self._effects.append(StopTimer(hold))

    def _ask_for_expected(self, hold: Hold) -> None:
        repeat, _ = self._expected[hold]
        if repeat.is_over:
            self._give_up_expected(hold)
        else:
            tenure = self.ask_for(list(hold.entries))
            self._effects.append(SetTimer(hold, repeat.pause(tenure)))

    def _give_up_expected(self, hold: Hold) -> None:
        _, token = self._expected[hold]
        rest = dict(hold.entries)
        self._owners.release(hold)
        self.stop_waiting()
        self._effects.append(Missing(token, rest))

    # --- keeping order ------------------------------------------------------------------------------------------------

    def keep_back_until(self, at: tuple[Position, int], *, wait: float = 0.0) -> None:
        """Hand nothing out before this comes again; ask for it after `wait` seconds, and again until it comes."""
        first = at if self._first is None else min(at, self._first)
        self.keep_nothing_back()
        self._first, self._asking, self._is_shut = first, _Repeat(), wait > 0
        self._ask_in(max(wait, FIRST_PAUSE))

    def _ask_in(self, seconds: float) -> None:
        self._is_timed = True
        self._effects.append(SetTimer(Timer.ORDER, seconds))

    def keep_nothing_back(self) -> None:
        """Hand out incoming messages again. Messages that were kept back must be asked for."""
        if self._is_timed:
            self._is_timed = False
            self._effects.append(StopTimer(Timer.ORDER))
        self._first = self._asking = None
        self._is_shut = False

    def admits(self, position: Position, bits: int, count: int) -> bool:
        """True if these messages of an entry may be handed out; else they come again. The first one ends the waiting.

        What is before it, and was put off by the program, says nothing of it.
        """
        if self._first is None:
            return True
        first, index = self._first
        if position == first and bits & bit_of(index) and not self._is_shut:
            self.keep_nothing_back()
            return True
        if position < first:
            return True
        self._withheld += count
        self._kept_back.append(position)
        return False

    def settled(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        """The program has settled these itself; if what was waited for is among them, something else comes first."""
        if self._first is None:
            return
        position, index = self._first
        for at, at_index, _ in positions:
            if (at == position and at_index in (index, -1)) or (cumulative and (at, at_index) >= self._first):
                break
        else:
            return
        self._first = self._owners.first_wanted((at, at_index)) or self._first
        if self._first > (at, at_index):
            return
        if not self._withheld:
            self.keep_nothing_back()
        else:
            self._asking = None
            self._ask_in(FIRST_PAUSE)  # the acknowledgement has left by then

    def _ask_for_first(self, now: float) -> None:
        if self._asking is None:
            self._go_on(now)
        elif self._asking.is_over:
            said = "%s: %s does not come again, so somebody has settled it"
            self._effects.append(Log("info", said, (self._topic, self._first)))
            self.rewinds.give_up()
            self._go_on(now)
        else:
            asking, tenure = self._asking, NOBODY
            if self.is_connected and self.is_active:
                self.everything(now, is_timed=True)
                self._is_shut = False
                tenure = self.tenure
            self._ask_in(asking.pause(tenure))

    def _go_on(self, now: float) -> None:
        self.keep_nothing_back()
        self.everything(now, is_timed=True)

    # --- life ---------------------------------------------------------------------------------------------------------

    def expire(self, timer: object, now: float, *, has_queued: bool) -> None:
        """A timer is due. `has_queued`: messages of the partition wait for the program."""
        match timer:
            case Timer.REWIND:
                waited = self.is_connected and self.is_active and self._first is None and not has_queued
                if self.rewinds.look(is_waited_for=waited):
                    self._ask_for_what_is_missing()
            case Timer.COPIES:
                self.rewinds.forget_settled()
            case Timer.ORDER:
                self._is_timed = False
                self._ask_for_first(now)
            case Timer.NEGATIVE_ACKS:
                self._negative_acks_are_due(now)
            case Timer.ACK_TIMEOUTS:
                self._acks_are_late(now)
            case Hold():
                self._ask_for_expected(timer)

    def opened(self) -> None:
        """The broker knows the consumer."""
        self.is_connected = True

    def lost(self) -> None:
        """The broker does not know the consumer any more, or nobody knows whether it does."""
        self.is_connected = False
        if self._is_failover:
            self.is_active = False

    def subscribes_again(self) -> None:
        """A new subscriber gets everything that is not acknowledged."""
        self.tenure += 1
        self.rewinds.clear()
        self._start_over()
        self._group.forget_partial()
        self._unacked.clear()

    def active_change(self, *, is_active: bool) -> None:
        """The broker delivers to this consumer from now on, or to another one."""
        self.tenure += 1
        self.is_active = is_active
        if not is_active:
            self.rewinds.clear()

    def move(self) -> None:
        """The subscription is about to be moved."""
        self.keep_nothing_back()
        self.rewinds.clear()
        self.drop_queued()

    def close(self) -> None:
        """End all waiting; nothing is delivered here any more."""
        self.is_connected = False
        self.keep_nothing_back()
        self.rewinds.clear()
        for hold in list(self._expected):
            self._effects.append(StopTimer(hold))
            self._give_up_expected(hold)
