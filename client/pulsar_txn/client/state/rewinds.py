"""Entries that have to come again, in order, after the broker of an Exclusive or Failover subscription has gone back.

A stock broker that is asked to deliver again goes back and reads from there, also while an earlier read is under way. That
one ends later and moves the broker forward again (seen on 4.0.8). So entries between the two places are passed over, and do
not come before somebody asks once more; others come twice. What the earlier read brings is of an old consumer epoch
(PIP-84), and dropped.

Here is known which entries have come and are not acknowledged, and which of them are due: they have to come again, each one
before anything that follows it. When one is passed over, or nothing comes while some are due, everything is asked for once
more. What the program has got since is dropped when it comes again. After `TIMES` requests in vain somebody else has settled
what is due: it has expired, or was skipped.

What a stock broker passes over may also be what it has read and never sent, because it drops what it read in an old epoch
(seen on 4.2.4). Nobody here knows of these entries. They show as a hole: the entry that comes does not follow the highest one
that is known. Holes are usual, because markers, aborted messages and what is acknowledged do not come. So only the first one
after a request is doubted: what follows it is kept back until the broker is silent, and asked for once more. That request
meets no read under way, and what its answer leaves out is not there. When what was passed over is the end of the topic,
nothing follows that shows it. So such a request is made after every other one, when nothing comes and the program waits. Only
what is published, and read, while that request is on its way may still be dropped there, until the next request. A request of
the program may meet a read at any time, and so may a rewind without a word, which an abort of others brings about: after these
holes are doubted anew.

Reads side by side may bring an entry twice in one consumer epoch (seen on 4.0.8). So what is acknowledged within `DOUBT`
seconds after a request is remembered, and dropped when it comes again.

Nothing is known of what came over an earlier connection, because a new subscriber gets all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from pulsar_txn.client.state.effects import Effects, Log, SetTimer, StopTimer, Timer
from pulsar_txn.client.state.owners import MessagePosition
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import EARLIEST, Position

LIMIT: Final = 100_000
"""Entries that are remembered; beyond it the oldest are forgotten, and are not missed."""
TIMES: Final = 5
PASSED_OVER_PAUSE: Final = 0.1
"""Seconds until a request after something was passed over, doubled for each in vain: the earlier read has ended by then."""
SILENCE: Final = 0.4
"""Seconds without anything that comes, after which it is asked for; doubled after each look, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 6.4
DOUBT: Final = 3.0
"""Seconds after a request, at most, until a read that was under way has ended: what comes after that belongs to later ones."""


class Turn(enum.Enum):
    """Decision on an entry that has come."""

    NOW = enum.auto()
    """The entry is handed out."""
    LATER = enum.auto()
    """The entry is dropped, because one before it has not come; it will come again."""
    PAST = enum.auto()
    """The entry is dropped: it was handed out and not asked for since, or it was sent before everything was asked for."""
    REWOUND = enum.auto()
    """The broker has gone back without a word. What is queued comes again; then ask for its turn."""


class RewindTracker:
    """Entries of one partition that came and are not acknowledged, and which of them have to come again."""

    def __init__(self, topic: str, effects: Effects) -> None:
        self._topic = topic
        self._effects = effects
        self._entries: dict[Position, int] = {}
        """Bits of the messages that are not acknowledged, by entry."""
        self._is_sorted = True
        self._highest: Position = EARLIEST
        self._due: set[Position] = set()
        self._queue: list[Position] = []
        """Entries that are due, the first one last; and some that are not due any more."""
        self._kept_back: Position | None = None
        """The first entry that came before its turn."""
        self._is_in_doubt = False
        """True if the next hole may be what the broker has passed over."""
        self._doubt_until = 0.0
        """Time from which an entry without a hole before it ends the doubt."""
        self._holes: dict[Position, Position] = {}
        """Entries that came with a hole before them, each with the highest one before the hole."""
        self._holes_are_doubted = False
        self._came_at = 0.0
        self._is_silent = True
        """True if nothing has come since the timer was set."""
        self._settled: dict[Position, int] = {}
        """Bits of the messages that the program has acknowledged since everything was asked for, by entry."""
        self._remembers_settled = False
        """True until no read that was under way at the request can bring them once more."""
        self._first: Position | None = None
        """First due entry at the last request, and number of requests for it."""
        self._asked = 0
        self._pause = SILENCE
        self._is_timed = False

    def __len__(self) -> int:
        """The number of entries that have come and are not acknowledged."""
        return len(self._entries)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def has_past(self, position: Position, bits: int) -> bool:
        """True if an entry was handed out, and was not asked for since, or these messages of it are acknowledged."""
        return (position in self._entries and position not in self._due) or self._has_settled(position, bits)

    def _has_settled(self, position: Position, bits: int) -> bool:
        return not bits & ~self._settled.get(position, 0)

    def came(self, position: Position, bits: int, now: float) -> Turn:
        """An entry has come: what to do with it."""
        if position > self._highest:
            if self._is_in_doubt:
                self._look_for_a_hole(position, now)
            self._note(position, bits)
            if not self._due and position not in self._holes:
                return Turn.NOW
            self._due.add(position)  # until it is handed out
            self._queue.insert(0, position)
        elif position not in self._entries:
            return self._came_late(position, bits, now)
        elif position not in self._due:
            return Turn.PAST
        else:
            self._entries[position] = bits  # an abort by others may have given back some of them
        return self._turn_of(position, now)

    def went_back(self, now: float) -> None:
        """The broker has gone back without a word: a read that was under way may be passed over."""
        self._is_in_doubt, self._doubt_until = True, now + DOUBT
        self._watch()

    def came_too_early(self, position: Position, bits: int, now: float) -> None:
        """An entry is dropped that was sent before everything was asked for: it has to come again."""
        if position > self._highest:  # else it is known, or acknowledged meanwhile
            self._look_for_a_hole(position, now)
            self._note(position, bits)
            self._due.add(position)
            self._queue.insert(0, position)
            self._watch()

    def _comes(self, now: float) -> None:
        self._came_at, self._is_silent = now, False

    def _look_for_a_hole(self, position: Position, now: float) -> None:
        self._comes(now)
        ledger_id, entry_id = self._highest
        if position == (ledger_id, entry_id + 1):
            if now >= self._doubt_until and not self._holes_are_doubted:
                self._is_in_doubt = False
        elif self._is_in_doubt:
            self._holes[position] = self._highest
            self._holes_are_doubted = True

    def _came_late(self, position: Position, bits: int, now: float) -> Turn:
        """An entry that is not known comes after higher ones: it was acknowledged meanwhile, or given back, or fills a hole."""
        self._comes(now)
        if self._has_settled(position, bits):
            return Turn.PAST
        fills = any(before < position < after for after, before in self._holes.items())
        if fills and self._holes_are_doubted:
            self._entries[position], self._is_sorted = bits, False
            self.come_again([position])
            return Turn.LATER  # the answer to the next request shows what else is in the hole
        turn = self._turn_of(position, now) if self._due else Turn.NOW
        if turn is Turn.NOW:
            self._entries[position] = bits  # until it is known that nobody gets it
            self._is_sorted = False
        return turn

    def all_comes_again(self, now: float, *, is_timed: bool) -> None:
        """Everything has to come, beginning with the first entry that is not acknowledged. `is_timed`: a timer asks for it."""
        if is_timed and self._holes_are_doubted and now - self._came_at >= PASSED_OVER_PAUSE:
            self._nothing_is_doubted()  # the broker was silent, so this request meets no read under way
        else:
            self._is_in_doubt, self._doubt_until = True, now + DOUBT
            if not is_timed:
                self._holes_are_doubted = bool(self._holes)  # an answer that was to show what is in them may be dropped
        self.starts_over()
        self.come_again(self._entries)
        self._watch()

    def starts_over(self) -> None:
        """Everything is asked for. Reads side by side may bring what is acknowledged from now on once more."""
        self._settled.clear()
        self._remembers_settled = True
        self._effects.append(SetTimer(Timer.COPIES, DOUBT))

    def forget_settled(self) -> None:
        """No copies come any more."""
        self._settled.clear()
        self._remembers_settled = False

    def come_again(self, positions: Iterable[Position]) -> None:
        """These were dropped, and have to come, with what is due already."""
        self._due.update(self._entries.keys() & positions)
        self._queue = sorted(self._due, reverse=True)
        self._kept_back = None
        if self._due:
            self._watch()

    def _note(self, position: Position, bits: int) -> None:
        self._highest = position
        self._entries[position] = bits
        if len(self._entries) > LIMIT:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._due.discard(oldest)

    def _turn_of(self, position: Position, now: float) -> Turn:
        self._comes(now)
        first = self._first_due()
        if first is not None and (first < position or (self._holes_are_doubted and position in self._holes)):
            if self._kept_back is None:
                self._kept_back = position
                self._look_after(PASSED_OVER_PAUSE * 2 ** (self._asked if first == self._first else 0))
            return Turn.LATER
        self._due.discard(position)
        if not self._due:
            self._nothing_is_due()
        return Turn.NOW

    def _first_due(self) -> Position | None:
        queue = self._queue
        while queue and queue[-1] not in self._due:
            queue.pop()
        return queue[-1] if queue else None

    # --- what is done -------------------------------------------------------------------------------------------------

    def acknowledged(self, ids: Iterable[AckId], *, is_pending: bool = False) -> None:
        """The broker is told that these are done, or in a transaction (`is_pending`); an id says which messages are left."""
        remembers = self._remembers_settled and not is_pending
        for ledger_id, entry_id, left, _ in ids if self._entries else ():
            position = (ledger_id, entry_id)
            if remembers:
                self._note_settled(position, left or 0)
            rest = self._entries.get(position, 0) & (left or 0)
            if rest:
                self._entries[position] = rest
            else:
                self.forget(position)

    def settled(self, places: Iterable[MessagePosition], *, cumulative: bool) -> None:
        """The program acknowledges these; the broker is told later, but what is due of them is not waited for."""
        if not self._due:
            return
        for (ledger_id, entry_id), index, size in places:
            done = 0 if index < 0 else (1 << index + 1) - 1 if cumulative else 1 << index
            each = (ledger_id, entry_id, ~done if done else None, size)
            (self.acknowledged_up_to if cumulative else self.acknowledged)([each])

    def acknowledged_up_to(self, ids: Iterable[AckId], *, is_pending: bool = False) -> None:
        """As `acknowledged`, with everything before."""
        for each in ids:
            if not self._is_sorted:
                self._entries, self._is_sorted = dict(sorted(self._entries.items())), True
            while self._entries and (first := next(iter(self._entries))) < each[:2]:
                if self._remembers_settled and not is_pending:
                    self._note_settled(first, 0)
                self.forget(first)
            self.acknowledged([each], is_pending=is_pending)

    def _note_settled(self, position: Position, left: int) -> None:
        if len(self._settled) < LIMIT:
            self._settled[position] = self._settled.get(position, 0) | self._entries.get(position, 0) & ~left

    def forget(self, position: Position) -> None:
        """This entry need not come again."""
        if self._entries.pop(position, 0) and self._due:
            self._due.discard(position)
            if not self._due:
                self._nothing_is_due()

    def given_back(self, entries: Mapping[Position, int]) -> None:
        """The transaction in which these were acknowledged has aborted."""
        for position, bits in entries.items():
            self._settled.pop(position, None)
            self._entries[position] = self._entries.get(position, 0) | bits
            self._highest = max(self._highest, position)
            self._is_sorted = False

    def clear(self) -> None:
        """Nothing has to come: the subscription is moved, or others may read from it, or the connection is a new one."""
        self._entries, self._is_sorted, self._highest = {}, True, EARLIEST
        self._nothing_is_doubted()
        if self._remembers_settled:
            self._effects.append(StopTimer(Timer.COPIES))
            self.forget_settled()
        self._due.clear()
        self._nothing_is_due()

    def _nothing_is_due(self) -> None:
        self._queue, self._kept_back = [], None
        self._first, self._asked = None, 0
        self._holes, self._holes_are_doubted = {}, False
        if self._is_timed:
            self._is_timed = False
            self._effects.append(StopTimer(Timer.REWIND))
        if self._is_in_doubt:
            self._watch()

    def _nothing_is_doubted(self) -> None:
        self._is_in_doubt = self._holes_are_doubted = False

    # --- asking -------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_timed:
            self._pause = SILENCE
            self._look_after(self._pause)

    def _look_after(self, seconds: float) -> None:
        self._is_timed = self._is_silent = True
        self._effects.append(SetTimer(Timer.REWIND, seconds))

    def look(self, *, is_waited_for: bool) -> bool:
        """Say, when the timer is due, whether to ask for everything once more, for the sake of what is due alone.

        `is_waited_for`: the broker is expected to deliver; it is there, delivers to this consumer, and the program has taken
        all that has come.
        """
        self._is_timed = False
        if not self._due and not self._is_in_doubt:
            return False
        kept_back = self._kept_back is not None
        if is_waited_for and (self._is_silent or (kept_back and not self._holes_are_doubted)):
            return self._asks_once_more()
        if kept_back and not self._is_silent:
            self._look_after(PASSED_OVER_PAUSE)
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._is_silent else SILENCE
            self._look_after(self._pause)
        return False

    def _asks_once_more(self) -> bool:
        if self._due and self._is_in_vain():
            return False
        self._kept_back = None
        self._nothing_is_doubted()
        self.starts_over()
        self._pause = SILENCE * 2**self._asked
        self._look_after(self._pause)
        return True

    def _is_in_vain(self) -> bool:
        """True if what is due first was asked for often enough, and nothing is due after it."""
        first = self._first_due()
        self._asked = self._asked + 1 if first == self._first else 1
        if self._asked > TIMES:
            self.give_up()
        self._first = self._first_due()
        return not self._due

    def give_up(self) -> None:
        """Give up what is due, because it does not come any more; with something that was kept back, what lies before that."""
        beyond = self._kept_back
        settled = sorted(each for each in self._due if beyond is None or each < beyond)
        said = "%s: %d entries, the first one %s, do not come again, so somebody has settled them"
        self._effects.append(Log("info", said, (self._topic, len(settled), settled[:1])))
        self._asked = 0
        for position in settled:
            self.forget(position)
