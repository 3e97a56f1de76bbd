"""Order of the keys of a Key_Shared consumer: while one has a key, no other unit is given messages of it.

| the unit | its keys |
|---|---|
| receives a message | no other unit is given messages of the key |
| commits, or has an unknown outcome | are free |
| cannot commit any more | stay taken until its messages have come again, and are handed out before those that follow them |
| gives a message up (`leave_out`, `negative_acknowledge`, `give_back`) | are free when it was the last one |

A message that does not come again is waited for as long as the broker is asked for it, `TIMES` times in six seconds: somebody
else has settled it then, or the key belongs to another consumer. Messages that are received outside of units are not looked
at, and those without a key have no order. A loop (`pipeline`) keeps the order of keys by its lanes, and does not come here.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.receive.message import Entry, Message
from pulsar_txn.client.state.redelivery import FIRST_PAUSE, NOBODY, TIMES
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import Position, TxnAction

if TYPE_CHECKING:
    from pulsar_txn.client.receive.inbox import Inbox
    from pulsar_txn.client.receive.partition_consumer import PartitionConsumer

Key: TypeAlias = tuple[int, str | bytes]
"""The id of a partition's consumer, and a key of its messages."""

Spot: TypeAlias = tuple[Position, int]
"""Position of a message in its partition."""

LONGEST_WAIT: Final = 15.0
"""Seconds after the deadline of a unit after which nothing of it is waited for."""


class _Taken:
    """One key that is not free."""

    __slots__ = ("lent", "spots", "unit")

    def __init__(self, unit: set[Key] | None) -> None:
        self.unit = unit
        """All keys of the unit that has it, as its sign: the unit itself is to be collected when nobody else has it.
        None: its messages are to come again."""
        self.spots: dict[Spot, Entry] = {}
        self.lent: int | None = None
        """The tenure (see `Recall`) in which the broker got a permit more for each of them. What waits behind them has the
        permits that they gave back when they were taken, and they must come before it."""


class KeyOrder:
    """The keys of one consumer, and the calls that wait for messages of free ones."""

    def __init__(self, inbox: Inbox[Any], runtime: Runtime) -> None:
        self._inbox = inbox
        self._runtime = runtime
        self._taken: dict[Key, _Taken] = {}
        self._of: weakref.WeakKeyDictionary[Unit, set[Key]] = weakref.WeakKeyDictionary()
        self._waiters: list[asyncio.Future[None]] = []

    # --- taking -------------------------------------------------------------------------------------------------------

    def _free(self, unit: Unit) -> Iterator[Message[Any]]:
        """Messages that are queued and that this unit may have."""
        taken, mine = self._taken, self._of.get(unit)
        for message in self._inbox.queue:
            key = key_of(message)
            found = None if key is None else taken.get(key)
            if found is None or (mine is not None and found.unit is mine):
                yield message

    async def wait(self, unit: Unit, messages: int, deadline: float | None) -> bool:
        """Until the unit may have so many; False when the time is over before. Raises the failure. Safe to cancel."""
        inbox, loop = self._inbox, asyncio.get_running_loop()
        while (there := len(self._first_free(unit, messages))) < messages:
            if inbox.failure is not None:
                if not there:
                    raise inbox.failure.with_traceback(None)
                return True
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return False
        return True

    def _first_free(self, unit: Unit, most: int) -> list[Message[Any]]:
        with self._inbox.guard:
            return list(itertools.islice(self._free(unit), most))

    def wake(self) -> None:
        """Something has come, or is free: those who wait look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def take(self, unit: Unit, max_messages: int, *, whole: bool) -> list[Message[Any]]:
        """As `Inbox.take` or `Inbox.take_whole`, of what this unit may have."""
        if not self._taken:
            return self._inbox.take_whole(max_messages) if whole else self._inbox.take(max_messages)
        with self._inbox.guard:
            return self._inbox.take_these(self._first_free(unit, max_messages + 1), max_messages, whole=whole)

    def given(self, unit: Unit, messages: Iterable[Message[Any]]) -> None:
        """These have joined the unit."""
        keys = self._of.get(unit)
        if keys is None:
            keys = self._of[unit] = set()
            unit.when_ended(functools.partial(self._ended, weakref.ref(unit)))
            weakref.finalize(unit, self._free_all, keys).atexit = False  # nobody ended it: its coordinator does
        for message in messages:
            key = key_of(message)
            if key is not None:
                taken = self._taken.get(key)
                if taken is None:
                    taken = self._taken[key] = _Taken(keys)
                taken.spots[spot_of(message)] = message.entry
                keys.add(key)

    # --- what becomes of them -----------------------------------------------------------------------------------------

    def left(self, messages: Iterable[Message[Any]]) -> None:
        """The program has taken these out of their unit, or they are dead letters: nobody waits for them."""
        for message in messages:
            key = key_of(message)
            if key is not None:
                self._gone(key, [spot_of(message)])

    def come_again(self, unit: Unit, seconds_left: float | None) -> None:
        """The unit cannot commit any more: what it has comes again, and comes first."""
        keys = self._of.get(unit, set())
        waited = {key: taken for key in keys if (taken := self._taken.get(key)) is not None and taken.unit is keys}
        for taken in waited.values():
            taken.unit = None
        if waited:
            self._runtime.call_later(max(seconds_left or 0.0, 0.0) + LONGEST_WAIT, self._give_up, waited)

    def came(self, messages: Sequence[Message[Any]]) -> None:
        """These were just queued."""
        if self._taken:
            for message in messages:
                key = key_of(message)
                taken = None if key is None else self._taken.get(key)
                if key is not None and taken is not None and taken.unit is None and spot_of(message) in taken.spots:
                    self._gone(key, [spot_of(message)])
        self.wake()

    def _ended(self, whose: weakref.ref[Unit], outcome: TxnAction | None) -> None:
        unit = whose()
        if unit is None:
            return
        keys = self._of.get(unit, set())
        if outcome is TxnAction.ABORT:
            self._runtime.call_later(0, self._expect, list(keys))  # once its messages are nobody's
        self._free_all(keys)
        if outcome is not None:
            keys.clear()

    def _free_all(self, keys: set[Key]) -> None:
        """Free what the unit with these keys still has."""
        for key in list(keys):
            taken = self._taken.get(key)
            if taken is not None and taken.unit is keys:
                self._release(key)

    def _expect(self, keys: Sequence[Key]) -> None:
        """The unit was aborted: its messages come by themselves, or are asked for until they do."""
        waited = {key: taken for key in keys if (taken := self._taken.get(key)) is not None and taken.unit is None}
        for taken in waited.values():
            for entry in taken.spots.values():
                part: Any = entry.consumer
                taken.lent = part.tenure
                part.give_permits_back(1)
                part.flush_permits()
        if waited:
            self._runtime.call_later(FIRST_PAUSE, self._ask_again, waited, 0)

    def _ask_again(self, waited: Mapping[Key, _Taken], times: int) -> None:
        missing: dict[PartitionConsumer, set[Position]] = {}
        for key, taken in waited.items():
            if self._taken.get(key) is taken and taken.unit is None:
                for (position, _), entry in taken.spots.items():
                    part: Any = entry.consumer
                    missing.setdefault(part, set()).add(position)
        if not missing:
            return
        if times == TIMES:
            self._give_up(waited)
            return
        asked = [part.ask_for(sorted(positions)) for part, positions in missing.items()]
        times += NOBODY not in asked
        self._runtime.call_later(FIRST_PAUSE * 2**times, self._ask_again, waited, times)

    def _give_up(self, waited: Mapping[Key, _Taken]) -> None:
        for key, taken in waited.items():
            if self._taken.get(key) is taken and taken.unit is None:
                self._release(key)

    def _gone(self, key: Key, spots: Iterable[Spot]) -> None:
        taken = self._taken.get(key)
        if taken is None:
            return
        for spot in spots:
            entry = taken.spots.pop(spot, None)
            if entry is not None:
                _take_permit(taken, entry)
        if not taken.spots:
            self._release(key)

    def _release(self, key: Key) -> None:
        """The key is free. What came again is behind what was queued before it."""
        taken = self._taken.pop(key)
        for entry in taken.spots.values():
            _take_permit(taken, entry)
        if taken.unit is None:
            self._sort(key)
        self.wake()

    def _sort(self, key: Key) -> None:
        self._inbox.sort_matching(lambda message: key_of(message) == key, spot_of)


def _take_permit(taken: _Taken, entry: Entry) -> None:
    part: Any = entry.consumer
    if taken.lent == part.tenure:  # a new connection begins with as many as there is room for
        part.give_permits_back(-1)


def key_of(message: Message[Any]) -> Key | None:
    """The key that Key_Shared keeps in order; None for a message without a key."""
    key = message.ordering_key or message.key
    return None if key is None else (message.entry.consumer.id, key)


def spot_of(message: Message[Any]) -> Spot:
    """The place of a message: the order of these is that of the partition."""
    return message.entry.position, message.index
