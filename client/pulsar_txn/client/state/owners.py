"""Owners of the messages of one partition: one table, keyed by entry and index.

Brokers deliver, acknowledge and redeliver entries; programs work on messages. An entry that comes again brings all its
messages that are not acknowledged, also those that somebody here is still working on. So the table says of each message
who has it, and which copies are welcome. `bits` are indexes of an entry (bit i is index i; an entry that is one message has
bit 0). `TRANSITIONS` says what an event does to a message in each of its states:

* FREE: in the queue, or with the program, which received it outside of any unit. The table has no word for it: what it
  does not name is free, or was never delivered here.
* HELD: a unit (a transaction), or a loop that makes units, has it. Nothing was asked of the broker.
* ASKED: an acknowledgement in a transaction is on its way.
* TAKEN: the broker has said yes; the transaction is open.
* SETTLED: acknowledged, while other messages of its entry are not.
* WANTED: it is to come again: the broker was asked for it, or brings it by itself after an abort.

A copy that comes of a FREE message is handed out when it is the first one in its generation. A later one is dropped where the
table knows that the message was delivered here: if nobody is named it is still with the program. What was not delivered yet,
because another consumer had it, is handed out; and so is every message of an entry that the table does not know. A copy of a
SETTLED message that comes in the generation of its delivery was sent before the broker knew of the acknowledgement, and is
dropped; in a later one the acknowledgement may be lost. A copy of what is ASKED is dropped as well, and remembered, because
nobody else knows of it if the broker refuses.

Whoever acknowledges a message in the unit that received it is not told of a conflict: it is done already. Somebody else, and a
second copy in the same unit, are.

What a unit or the program gives back is WANTED; but FREE, and handed out here again, while this consumer has others of its
entry (`may_stay`): whoever asks a broker for an entry lets go of all of it.

A *generation* ends when everything comes again that is not acknowledged: with a new connection, after a rewind, when all
is asked for. Then nothing is free here any more; what is held, asked or taken stays with its unit.

Cumulative acknowledgements cover everything up to a place; they are few, and are in a list beside the table.

Memory: entries of which nothing is held or asked are forgotten beyond `LIMIT`, oldest first. What is forgotten is handed
out like new when it comes again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from pulsar_txn.wire.ids import Position, full_ack_set

MessagePosition: TypeAlias = tuple[Position, int, int]
"""`(position, batch_index, batch_size)`; index -1 and size 0 are an entry that is one message."""

LIMIT: Final = 100_000
"""Entries of which nothing is held that are remembered; the broker knows them anyway."""

Delivery: TypeAlias = tuple[int, int]
"""The generation in which an entry was delivered here, and the bits of it that were delivered."""

UNKNOWN: Final[Delivery] = (-1, 0)
"""The time of delivery of an entry, or the delivered part of it, is unknown."""


class State(enum.IntEnum):
    """State of one message."""

    FREE = 0
    HELD = 1
    ASKED = 2
    TAKEN = 3
    SETTLED = 4
    WANTED = 5


class Event(enum.IntEnum):
    """Something that happens to a message."""

    COPY = 0
    """The broker delivers it."""
    RECEIVE = 1
    """A unit or a loop receives it."""
    ACKNOWLEDGE = 2
    """Its unit acknowledges it; of a FREE or WANTED one, any unit."""
    CLAIM = 3
    """A unit acknowledges it that has not received it."""
    ANSWER = 4
    """The broker takes the acknowledgement."""
    REFUSE = 5
    """The broker refuses it."""
    SETTLE = 6
    """The message is acknowledged outside of units."""
    LEAVE = 7
    """The program takes it out of its unit."""
    WANT = 8
    """The message is asked for again."""
    COMMIT = 9
    ABORT = 10
    """The unit of its owner has ended, or cannot commit any more."""
    MOVE = 11
    """The subscription is moved."""


class Act(enum.Enum):
    """The table's answer to an event."""

    HAND_OUT = "hand the copy out"
    FIRST = "hand the copy out if it is the first one in its generation"
    DROP = "drop the copy"
    NOTE = "drop the copy and remember it"
    GIVE = "give it to its new owner"
    CONFLICT = "refuse"
    KEEP = "do nothing"


class Cell(NamedTuple):
    """An act, and the state after it."""

    act: Act
    to: State


_FREE, _HELD, _ASKED, _TAKEN, _SETTLED, _WANTED = State


def _row(event: Event, *cells: tuple[Act, State]) -> dict[tuple[State, Event], Cell]:
    return {(state, event): Cell(*cell) for state, cell in zip(State, cells, strict=True)}


def _keeps(state: State) -> tuple[Act, State]:
    return Act.KEEP, state


def _refuses(state: State) -> tuple[Act, State]:
    return Act.CONFLICT, state


def _gives(state: State) -> tuple[Act, State]:
    return Act.GIVE, state


_AWAY: Final = (Act.HAND_OUT, _FREE)
_FIRST: Final = (Act.FIRST, _FREE)

TRANSITIONS: Final[Mapping[tuple[State, Event], Cell]] = {
    # event             FREE              HELD                ASKED               TAKEN              SETTLED             WANTED
    **_row(Event.COPY, _FIRST, (Act.DROP, _HELD), (Act.NOTE, _ASKED), _AWAY, _FIRST, _AWAY),
    **_row(
        Event.RECEIVE,
        _gives(_HELD),
        (Act.DROP, _HELD),
        (Act.DROP, _ASKED),
        (Act.DROP, _TAKEN),
        (Act.DROP, _SETTLED),
        _gives(_HELD),
    ),
    **_row(
        Event.ACKNOWLEDGE,
        _gives(_ASKED),
        _gives(_ASKED),
        _refuses(_ASKED),
        _refuses(_TAKEN),
        _refuses(_SETTLED),
        _gives(_ASKED),
    ),
    **_row(
        Event.CLAIM,
        _gives(_ASKED),
        _refuses(_HELD),
        _refuses(_ASKED),
        _refuses(_TAKEN),
        _refuses(_SETTLED),
        _gives(_ASKED),
    ),
    **_row(
        Event.ANSWER,
        _keeps(_FREE),
        _keeps(_HELD),
        _gives(_TAKEN),
        _keeps(_TAKEN),
        _keeps(_SETTLED),
        _keeps(_WANTED),
    ),
    **_row(
        Event.REFUSE,
        _keeps(_FREE),
        _keeps(_HELD),
        _gives(_WANTED),
        _gives(_WANTED),
        _keeps(_SETTLED),
        _keeps(_WANTED),
    ),
    **_row(
        Event.SETTLE,
        _gives(_SETTLED),
        _gives(_SETTLED),
        _keeps(_ASKED),
        _keeps(_TAKEN),
        _gives(_SETTLED),
        _gives(_SETTLED),
    ),
    **_row(
        Event.LEAVE,
        _keeps(_FREE),
        _gives(_FREE),
        _keeps(_ASKED),
        _keeps(_TAKEN),
        _keeps(_SETTLED),
        _keeps(_WANTED),
    ),
    **_row(
        Event.WANT,
        _gives(_WANTED),
        _keeps(_HELD),
        _keeps(_ASKED),
        _keeps(_TAKEN),
        _gives(_WANTED),
        _gives(_WANTED),
    ),
    **_row(
        Event.COMMIT,
        _keeps(_FREE),
        _keeps(_HELD),
        _gives(_SETTLED),
        _gives(_SETTLED),
        _keeps(_SETTLED),
        _keeps(_WANTED),
    ),
    **_row(
        Event.ABORT,
        _keeps(_FREE),
        _gives(_WANTED),
        _gives(_WANTED),
        _gives(_WANTED),
        _keeps(_SETTLED),
        _gives(_WANTED),
    ),
    **_row(
        Event.MOVE,
        _keeps(_FREE),
        _gives(_FREE),
        _keeps(_ASKED),
        _keeps(_TAKEN),
        _gives(_FREE),
        _gives(_FREE),
    ),
}


def _acts(event: Event) -> tuple[Act, ...]:
    return tuple(TRANSITIONS[state, event].act for state in State)


# The table by event, because looking up a pair costs more: these are used for every entry.
_COPY, _RECEIVE, _SETTLE, _LEAVE, _WANT, _MOVE = map(
    _acts, (Event.COPY, Event.RECEIVE, Event.SETTLE, Event.LEAVE, Event.WANT, Event.MOVE)
)


class Hold:
    """Messages of one partition that have one owner and one state. `unit` tells owners apart, by identity.

    `is_awaited`: somebody waits for the last of them to come; see `Owners.arrived`.
    """

    __slots__ = ("copies", "entries", "is_awaited", "state", "unit", "up_to")

    def __init__(
        self, state: State, unit: object = None, *, is_awaited: bool = False, up_to: tuple[Position, int] | None = None
    ) -> None:
        self.state = state
        self.unit = unit
        self.is_awaited = is_awaited
        self.entries: dict[Position, int] = {}
        self.copies: list[Position] = []
        """Entries of which copies were dropped while the answer was on its way."""
        self.up_to = up_to
        """The place up to which a cumulative acknowledgement goes."""


Row: TypeAlias = tuple[Delivery, int, tuple[tuple[Hold, int], ...]]
"""Delivered bits of the entry, the size of its batch, and the owners of its bits."""


class Owners:
    """The table of one partition."""

    def __init__(self) -> None:
        self.generation = 0
        self.settled = Hold(State.SETTLED)
        self.wanted = Hold(State.WANTED)
        self._rows: dict[Position, Row] = {}
        self._idle: dict[Position, None] = {}
        """Rows of which nothing is held or asked, oldest first."""
        self._ranges: list[Hold] = []
        self._abandoned: deque[Sequence[Hold]] = deque()
        self.arrived: list[Hold] = []
        """Awaited holds of which nothing is wanted any more."""

    def __bool__(self) -> bool:
        return bool(self._rows or self._ranges)

    def __len__(self) -> int:
        """The number of entries and cumulative acknowledgements that it knows."""
        return len(self._rows) + len(self._ranges)

    @property
    def open_acks(self) -> int:
        """The number of messages that are acknowledged in open transactions; a cumulative acknowledgement counts once."""
        asked = (State.ASKED, State.TAKEN)
        bits = (bits for _, _, holds in self._rows.values() for hold, bits in holds if hold.state in asked)
        return sum(each.bit_count() for each in bits) + len(self._ranges)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def admit(self, position: Position, live: int, size: int) -> int:
        """The broker delivers these messages of an entry; those that are to be handed out. See the table."""
        self._let_go()
        if self._ranges:
            self._ranges = [each for each in self._ranges if not (each.unit is None and _covers(each, position, live, size))]
        row = self._rows.get(position)
        if row is None:
            return live
        generation, seen = row[0]
        if generation != self.generation:
            seen = 0
        welcome = live & ~seen
        kept: list[tuple[Hold, int]] = []
        for hold, bits in row[2]:
            here = bits & live
            if here:
                act = _COPY[hold.state]
                if act is Act.HAND_OUT or (act is Act.FIRST and not here & seen):
                    welcome |= here
                    bits &= ~here
                    self._shrink(hold, position, bits)
                elif act is Act.FIRST:
                    if fresh := here & ~seen:
                        bits &= ~fresh
                        self._shrink(hold, position, bits)
                else:
                    welcome &= ~here
                    if act is Act.NOTE:
                        hold.copies.append(position)
            if bits:
                kept.append((hold, bits))
        self._put(position, ((self.generation, seen | live), size, tuple(kept)))
        return welcome

    def new_generation(self) -> None:
        """All that is not acknowledged comes again; nothing is free here any more."""
        self.generation += 1

    def move(self) -> None:
        """The subscription is moved: only what the broker was asked for in open transactions is still known."""
        self.new_generation()
        for position, (_, size, holds) in list(self._rows.items()):
            for hold, _ in holds:
                if _MOVE[hold.state] is not Act.KEEP:
                    self._shrink(hold, position, 0)
            kept = tuple(each for each in holds if _MOVE[each[0].state] is Act.KEEP)
            if kept:
                self._put(position, (UNKNOWN, size, kept))
            else:
                self._forget_row(position)

    # --- who has what -------------------------------------------------------------------------------------------------

    def owner(self, position: Position, index: int) -> Hold | None:
        """The owner of a message; None when it is free or unknown, or covered by a cumulative acknowledgement only."""
        row = self._rows.get(position)
        if row is not None:
            bit = bit_of(index)
            for hold, bits in row[2]:
                if bits & bit:
                    return hold
        return None

    def acknowledged_in(self, position: Position, index: int) -> Hold | None:
        """The acknowledgement in an open transaction that names or covers this message."""
        self._let_go()
        hold = self.owner(position, index)
        if hold is not None and hold.state in (State.ASKED, State.TAKEN):
            return hold
        return next((each for each in self._ranges if each.up_to is not None and (position, index) <= each.up_to), None)

    def has_free(self, position: Position, bits: int) -> int:
        """Those of the bits that nobody has: they may be received in a unit. A wanted message that is here is free."""
        row = self._rows.get(position)
        if row is not None:
            for hold, had in row[2]:
                if _RECEIVE[hold.state] is Act.DROP:
                    bits &= ~had
        return bits

    def knows(self, position: Position) -> bool:
        """True if anything is known of an entry: whether units had messages of it, and more of it is not acknowledged."""
        return position in self._rows

    def may_stay(self, position: Position, bits: int) -> bool:
        """True if messages with the program may be handed out here again, because this consumer still has others of the entry.

        To ask a broker for an entry is to let go of all of it: another consumer may get what somebody here works on.
        """
        row = self._rows.get(position)
        if row is None or row[0][0] != self.generation or bits & ~row[0][1]:
            return False
        others = row[0][1] & ~bits
        for hold, had in row[2]:
            if had & bits:
                return False
            if hold.state > State.TAKEN:
                others &= ~had
        return bool(others)

    def first_wanted(self, after: tuple[Position, int]) -> tuple[Position, int] | None:
        """The place of the first message after another one that is wanted."""
        for position in sorted(each for each in self.wanted.entries if each >= after[0]):
            bits, size = self.wanted.entries[position], self._rows[position][1]
            bits &= ~_bits_up_to(position, size, after)
            if bits:
                return position, _first_index(bits, size)
        return None

    def held_up_to(self, at: tuple[Position, int], *, but: object = None) -> bool:
        """True if a unit other than `but` holds something up to this place."""
        return any(
            hold.state is State.HELD and hold.unit is not but and bits & _bits_up_to(position, row[1], at)
            for position, row in self._rows.items()
            if position not in self._idle and position <= at[0]
            for hold, bits in row[2]
        )

    def in_the_way(self, position: Position, bits: int, size: int, unit: object) -> tuple[int, Hold] | None:
        """The first message among these that cannot be acknowledged in `unit`, by its index, and who has it."""
        self._let_go()
        row = self._rows.get(position)
        for hold, had in () if row is None else row[2]:
            both = had & bits
            event = Event.ACKNOWLEDGE if hold.unit is unit else Event.CLAIM
            if both and TRANSITIONS[hold.state, event].act is Act.CONFLICT:
                return _first_index(both, size), hold
        return next(((_first_index(bits, size), each) for each in self._ranges if _covers(each, position, bits, size)), None)

    def named_by(self, unit: object, position: Position, bits: int, size: int) -> int | None:
        """The index of the first message among these that `unit` has, or has acknowledged."""
        row = self._rows.get(position)
        holds = [(hold, had & bits) for hold, had in (() if row is None else row[2])]
        holds += [(hold, bits) for hold in self._ranges if _covers(hold, position, bits, size)]
        return next((_first_index(both, size) for hold, both in holds if both and hold.unit is unit), None)

    def known(self, hold: Hold) -> dict[Position, tuple[int, int, Delivery]]:
        """`(bits, batch size, delivery)` of everything that it has, in the order of the partition."""
        return {
            position: (bits, self._rows[position][1], self._rows[position][0])
            for position, bits in sorted(hold.entries.items())
        }

    def widened(self, position: Position, bits: int, size: int) -> tuple[int, int]:
        """Bits and size of what an id represents: one without an index is all of its entry."""
        row = self._rows.get(position)
        return (bits, size) if size or row is None else (full(row[1]), row[1])

    # --- what changes hands -------------------------------------------------------------------------------------------

    def give(self, hold: Hold, position: Position, bits: int, size: int, delivery: Delivery = UNKNOWN) -> None:
        """These messages are this owner's from now on, whoever had them before. `delivery` is that of their entry."""
        if position in self._rows or hold.state > State.TAKEN:
            self._assign(position, bits, size, hold, delivery)
        else:
            hold.entries[position] = bits
            self._rows[position] = (delivery, size, ((hold, bits),))

    def want(self, position: Position, bits: int, size: int, delivery: Delivery) -> None:
        """These are asked for again, but for what units have. Without `bits` it is all of an entry, if that is known."""
        row = self._rows.get(position)
        if row is not None:
            bits = bits or full(row[1])
            for other, had in row[2]:
                if _WANT[other.state] is Act.KEEP or other.is_awaited:
                    bits &= ~had
        if bits:
            self._assign(position, bits, size, self.wanted, delivery)

    def expect(self, by: Hold, position: Position, bits: int) -> None:
        """Note that somebody waits for those of these messages that come again after an abort, and have not come yet."""
        row = self._rows.get(position)
        coming = 0
        for hold, had in () if row is None else row[2]:
            if hold is self.wanted or hold.state is State.TAKEN:
                coming |= had & bits
        if coming:
            self._assign(position, coming, 0, by, UNKNOWN)

    def leave(self, position: Position, bits: int) -> int:
        """These leave the units that hold them, and are with the program; those that have left."""
        row = self._rows.get(position)
        held = 0
        for hold, had in () if row is None else row[2]:
            if _LEAVE[hold.state] is Act.GIVE:
                held |= had & bits
        if held:
            self._assign(position, held, 0, None, UNKNOWN)
        return held

    def give_held_up_to(self, at: tuple[Position, int], hold: Hold, to: Hold) -> dict[Position, int]:
        """Give what an owner has up to a place to another one; its bits by entry."""
        given = {}
        for position, (bits, size, _) in self.known(hold).items():
            given[position] = bits & _bits_up_to(position, size, at)
            if given[position]:
                self._assign(position, given[position], 0, to, UNKNOWN)
        return given

    def give_all(self, hold: Hold, to: Hold) -> None:
        """Everything of one owner becomes another's."""
        if to.state > State.TAKEN or to.entries:
            for position, bits in list(hold.entries.items()):
                self._assign(position, bits, 0, to, UNKNOWN)
            return
        rows = self._rows
        for position in hold.entries:
            delivery, size, holds = rows[position]
            rows[position] = (delivery, size, tuple([(to if each is hold else each, bits) for each, bits in holds]))
        to.entries, hold.entries = hold.entries, to.entries

    def answer(self, hold: Hold) -> None:
        """The broker has taken this acknowledgement."""
        hold.state = TRANSITIONS[hold.state, Event.ANSWER].to

    def release(self, hold: Hold) -> None:
        """Its messages are free, or will come again by themselves: copies of them are welcome."""
        self.give_all(hold, self.wanted)
        if hold in self._ranges:
            self._ranges.remove(hold)

    def settle(self, position: Position, bits: int, size: int) -> None:
        """These are acknowledged permanently. An entry of which all is acknowledged is forgotten."""
        if size or position in self._rows:
            self._assign(position, bits, size, self.settled, UNKNOWN)
            row = self._rows[position]
            if self.settled.entries.get(position) == full(row[1]):
                self._forget(position)

    def settle_outside(self, positions: Iterable[MessagePosition]) -> None:
        """The program acknowledges these outside of units; only what the table knows is noted."""
        for position, index, size in positions:
            row = self._rows.get(position)
            if row is not None:
                bits = full(row[1]) if index < 0 else bit_of(index)
                for hold, had in row[2]:
                    if _SETTLE[hold.state] is Act.KEEP:
                        bits &= ~had
                if bits:
                    self.settle(position, bits, size)

    def settle_up_to(self, at: tuple[Position, int]) -> None:
        """The program acknowledges everything up to this place outside of units."""
        while self._idle and (oldest := next(iter(self._idle))) < at[0]:
            self._forget(oldest)

    def held_among(self, positions: Iterable[MessagePosition]) -> MessagePosition | None:
        """The first of these that a unit, or a loop, has."""
        for at in positions:
            row = self._rows.get(at[0])
            if row is not None:
                bits = full(row[1]) if at[1] < 0 else bit_of(at[1])
                if any(hold.state is State.HELD and hold_bits & bits for hold, hold_bits in row[2]):
                    return at
        return None

    def settle_all(self, hold: Hold) -> None:
        """Its transaction has committed."""
        entries, rows = hold.entries, self._rows
        for position, bits in list(entries.items()):
            _, size, holds = rows[position]
            if len(holds) == 1 and bits == full(size):  # nobody else has anything of it, and all of it is settled
                del rows[position], entries[position]
            else:
                self.settle(position, bits, size)
        if hold in self._ranges:
            self._ranges.remove(hold)

    def add_range(self, hold: Hold) -> None:
        """A cumulative acknowledgement in an open transaction."""
        self._ranges.append(hold)

    def supersede(self, unit: object) -> None:
        """The broker has taken a cumulative acknowledgement of this unit: it takes those of one open unit at a time."""
        self._ranges = [each for each in self._ranges if each.unit is unit or each.state is State.ASKED]

    def abandon(self, holds: Sequence[Hold]) -> None:
        """Give up learning here how their transaction ends. Safe in any thread, because the collector calls it."""
        if holds:
            self._abandoned.append(holds)

    def _let_go(self) -> None:
        while self._abandoned:
            for hold in self._abandoned.popleft():
                if hold.up_to is None:
                    self.release(hold)
                else:
                    hold.unit = None  # a copy of what it covers is all that will ever be heard of its end

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _assign(self, position: Position, bits: int, size: int, to: Hold | None, delivery: Delivery) -> None:
        row = self._rows.get(position)
        if row is None:
            if to is not None:
                to.entries[position] = bits
                self._put(position, (delivery, size, ((to, bits),)))
            return
        kept: list[tuple[Hold, int]] = []
        for hold, had in row[2]:
            if hold is to:
                bits |= had
                continue
            rest = had & ~bits
            if rest != had:
                self._shrink(hold, position, rest)
            if rest:
                kept.append((hold, rest))
        if to is not None:
            to.entries[position] = bits
            kept.append((to, bits))
        self._put(position, (_both(row[0], delivery), row[1] or size, tuple(kept)))

    def _put(self, position: Position, row: Row) -> None:
        self._rows[position] = row
        for hold, _ in row[2]:
            if hold.state <= State.TAKEN:
                self._idle.pop(position, None)
                return
        if position not in self._idle:
            self._idle[position] = None
            if len(self._idle) > LIMIT:
                self._forget(next(iter(self._idle)))

    def _forget(self, position: Position) -> None:
        for hold, _ in self._forget_row(position)[2]:
            self._shrink(hold, position, 0)

    def _shrink(self, hold: Hold, position: Position, rest: int) -> None:
        if rest:
            hold.entries[position] = rest
            return
        del hold.entries[position]
        if hold.is_awaited and not hold.entries:
            self.arrived.append(hold)

    def take_arrived(self) -> list[Hold]:
        """The awaited holds of which nothing is wanted any more, once each."""
        arrived, self.arrived = self.arrived, []
        return arrived

    def _forget_row(self, position: Position) -> Row:
        self._idle.pop(position, None)
        return self._rows.pop(position)


def _both(one: Delivery, other: Delivery) -> Delivery:
    """Join two deliveries of an entry: both together, or the later one, if everything came again in between."""
    return (one[0], one[1] | other[1]) if one[0] == other[0] else max(one, other)


def _first_index(bits: int, size: int) -> int:
    return (bits & -bits).bit_length() - 1 if size else -1


def _covers(hold: Hold, position: Position, live: int, size: int) -> bool:
    return hold.up_to is not None and bool(live & _bits_up_to(position, size, hold.up_to))


def _bits_up_to(position: Position, size: int, at: tuple[Position, int]) -> int:
    """The messages of an entry up to and with a place."""
    if position != at[0] or at[1] < 0:
        return full(size) if position <= at[0] else 0
    return full_ack_set(at[1] + 1) & full(size)


def full(size: int) -> int:
    """All messages of an entry."""
    return full_ack_set(size) if size else 1


def bit_of(index: int) -> int:
    """The bit of a batch index; of an entry that is one message as well."""
    return 1 << index if index > 0 else 1


def indexes(bits: int, size: int) -> Iterable[int]:
    """The batch indexes that bits represent; -1 for an entry that is one message."""
    if not size:
        return (-1,) if bits else ()
    first, end = (bits & -bits).bit_length() - 1, min(size, bits.bit_length())  # often one message of a large batch
    return (index for index in range(first, end) if bits >> index & 1) if bits else ()


def positions_of(entries: Iterable[tuple[Position, tuple[int, int, Delivery]]]) -> list[MessagePosition]:
    """The places of what `Owners.known` says."""
    return [(position, index, size) for position, (bits, size, _) in entries for index in indexes(bits, size)]


def merged(positions: Iterable[MessagePosition]) -> dict[Position, tuple[int, int]]:
    """`(bits, size)` by entry, in the order of first mention."""
    found: dict[Position, tuple[int, int]] = {}
    for position, index, size in positions:
        before = found.get(position)
        found[position] = (bit_of(index) if before is None else before[0] | bit_of(index), size)
    return found
