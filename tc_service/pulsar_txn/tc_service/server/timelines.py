"""The timelines of the coordinators of one service: each follows the records of its coordinator.

They are in memory, and bounded: what is open, and the transactions that ended last. After a restart, or where another instance
leads from now on, they are what the log has from its snapshot on. The times at which participants were told are not in the log.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from itertools import repeat
from typing import Any, Final

from pulsar_txn.broker.serving import Histogram
from pulsar_txn.tc.ids import most_of_lane
from pulsar_txn.tc.records import (
    ADD_PARTITION,
    ADD_SUBSCRIPTION,
    CHECKED,
    NEW,
    PARKED,
    PREPARED,
    RESUMED,
    UPDATE,
    Entry,
    Record,
)
from pulsar_txn.wire.ids import EARLIEST, Participant, Position, TxnId, TxnStatus, coordinator_of

from .recent_ends import End, RecentEnds
from .stories import (
    Begun,
    Checked,
    Decided,
    Done,
    Event,
    Held,
    Parked,
    Prepared,
    Registered,
    Resumed,
    Story,
    Told,
    participants_of,
)

logger = logging.getLogger("pulsar_txn.tc_service")

_EVENTS_PER_STORY: Final = 16
"""How many events the stories of what has ended may have, on average: one of a thousand participants is a long one."""
_new: Final = tuple.__new__
"""Makes an event of all its fields: a third of what a call of its class takes, eight times in a transaction."""
_WAITS: Final[dict[int, Callable[[int], Event]]] = {PREPARED: Prepared, PARKED: Parked, RESUMED: Resumed}
_DECISIONS: Final = (TxnStatus.COMMITTING, TxnStatus.ABORTING)
_HOLDS: Final = (TxnStatus.HELD, TxnStatus.OPEN)


class Ended:
    """The stories that ended last, of all coordinators. The oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._stories: deque[tuple[dict[int, Story], int, int]] = deque()
        self._events = 0

    def add(self, stories: dict[int, Story], least: int, size: int) -> None:
        """The transaction `least` of `stories` has ended. `size`: its events and participants."""
        self._stories.append((stories, least, size))
        self._events += size
        while len(self._stories) > self._most or self._events > self._most * _EVENTS_PER_STORY:
            oldest, number, size = self._stories.popleft()
            oldest.pop(number, None)
            self._events -= size


class Timeline:
    """The stories of one coordinator. Implements `broker.txn.coordinator_host.CoordinatorWatch`.

    `decisions` counts them by status and cause. `append_seconds`: how long records took until they were durable; a sample.
    """

    def __init__(self, tc_id: int, ended: Ended, recent: RecentEnds, folded: Callable[[], None], seconds: Callable[[], float]):
        self.decisions: Counter[tuple[int, int]] = Counter()
        self.append_seconds = Histogram()
        self.recent = recent
        self._tc_id = tc_id
        self._ended = ended
        self._folded = folded
        self._seconds = seconds
        self._sample: tuple[Position, float] = (EARLIEST, 0.0)
        self.is_sampling = False
        self._stories: dict[int, Story] = {}

    def story(self, txn_id: TxnId) -> Story | None:
        """Return what is known of a transaction; None for nothing."""
        story = self._stories.get(txn_id.least)
        first = None if not story else story[0]
        return story if isinstance(first, Begun) and first.txn_id == txn_id else None

    def told(self, txn_id: TxnId, cluster: str, participant: Participant, attempts: int, now_ms: int) -> None:
        """A participant holds the outcome."""
        story = self._stories.get(txn_id.least)
        if story is not None and type(begun := story[0]) is Begun and begun.txn_id == txn_id:
            story.append(_new(Told, (now_ms, cluster, participant, attempts)))

    def ends(self) -> list[End]:
        """Return what has ended, of what is remembered."""
        stories = list(self._stories.values())
        return [end for end in map(end_of, stories) if end is not None]

    # ---- the watch

    def restored(self, machine: Any, data: bytes) -> None:
        """See `CoordinatorWatch`."""
        self.recent.restore(data)
        for info in machine.transactions():
            owner = (info.principal, info.identity)
            story: Story = [Begun(info.start_time_ms, info.txn_id, owner, info.timeout_ms, None, info.check_group)]
            if info.participants:
                story.append(Registered(0, tuple((each.topic, each.subscription) for each in info.participants)))
            if info.check_count:
                story.append(Checked(0, info.check_count))
            if info.prepared:
                story.append(Prepared(0))
            if info.status is TxnStatus.HELD:
                story.append(Held(0, info.held, is_over=False))
            if info.parked_ms is not None:
                story.append(Parked(info.parked_ms))
            if info.status in _DECISIONS:
                story.append(Decided(0, info.status, None))
            self._stories[info.txn_id.least] = story

    def applied(self, record: Record) -> None:
        """See `CoordinatorWatch`."""
        if not isinstance(record, Entry):
            return
        operation, least = record.operation, record.least
        if operation == UPDATE:
            self._moved(least, record)
            for further in record.group:
                self._moved(further, record)
        elif operation == NEW:
            most = self._tc_id if record.lane is None else most_of_lane(self._tc_id, record.lane)
            txn_id, extras = _new(TxnId, (most, least)), record.extras
            group = None if extras is None else extras.group
            begun = (record.modified_ms, txn_id, record.owner, record.timeout_ms, record.incarnation, group)
            opened: Story = [_new(Begun, begun)]
            if record.partitions or record.subscriptions:
                opened.append(_registered(record))
            self._stories[least] = opened
        elif operation in (ADD_PARTITION, ADD_SUBSCRIPTION):
            story = self._stories.get(least)
            if story is not None:
                story.append(_registered(record))
        elif operation == CHECKED:
            for each in (least, *record.group):
                self._checked(each, record.modified_ms)
        elif operation in _WAITS:
            self._waits(_WAITS[operation](record.modified_ms), (least, *record.group))

    def _waits(self, event: Event, leasts: tuple[int, ...]) -> None:
        for story in filter(None, map(self._stories.get, leasts)):
            story.append(event)

    def _checked(self, least: int, at_ms: int) -> None:
        """One event for all questions: a prepared transaction may be asked for during months."""
        story = self._stories.get(least)
        if story is None:
            return
        for at, event in enumerate(story):
            if type(event) is Checked:
                story[at] = Checked(at_ms, event.times + 1)
                return
        story.append(Checked(at_ms, 1))

    def _moved(self, least: int, record: Entry) -> None:
        story = self._stories.get(least)
        if story is None:
            return
        if record.new_status in _DECISIONS:
            story.append(_new(Decided, (record.modified_ms, record.new_status, record.cause)))
            self.decisions[record.new_status, record.cause] += 1
            return
        if record.new_status in _HOLDS:
            story.append(Held(record.modified_ms, record.cause, is_over=record.new_status != TxnStatus.HELD))
            return
        story.append(_new(Done, (record.modified_ms,)))
        begun = story[0]
        participants = tuple([each for event in story if type(event) is Registered for each in event.participants])
        if type(begun) is Begun:
            self.recent.add(End(record.modified_ms, begun.txn_id, record.new_status == TxnStatus.COMMITTED, participants))
        self._ended.add(self._stories, least, len(story) + len(participants))

    def folded(self) -> None:
        """See `CoordinatorWatch`."""
        self.decisions.clear()  # they count since the start of this process
        self._folded()

    def stored(self) -> bytes:
        """See `CoordinatorWatch`."""
        return self.recent.stored()

    def appended(self, position: Position) -> None:
        """See `CoordinatorWatch`."""
        if not self.is_sampling:
            self.is_sampling = True
            self._sample = (position, self._seconds())

    def confirmed(self, position: Position) -> None:
        """See `CoordinatorWatch`."""
        if self.is_sampling and position >= self._sample[0]:
            self.is_sampling = False
            self.append_seconds.note(self._seconds() - self._sample[1])


def _registered(record: Entry) -> Registered:
    return _new(Registered, (record.modified_ms, (*zip(record.partitions, repeat(None)), *record.subscriptions)))


def end_of(story: Story) -> End | None:
    """Return how a transaction has ended; None while it has not."""
    begun, done = story[0], story[-1]
    decided = next((event for event in story if isinstance(event, Decided)), None)
    if not isinstance(begun, Begun) or not isinstance(done, Done) or decided is None:
        return None
    return End(done.at_ms, begun.txn_id, decided.status == TxnStatus.COMMITTING, tuple(participants_of(story)))


class Timelines:
    """The timelines of coordinators of one kind. `repeat`: called with ends that may not have been told once more, and when."""

    def __init__(self, ended: Ended, delay_ms: int, seconds: Callable[[], float], repeat: Callable[[End, int], None]) -> None:
        self.of: dict[int, Timeline] = {}
        self._ended = ended
        self._delay_ms = delay_ms
        self._seconds = seconds
        self._repeat = repeat

    def watch(self, tc_id: int) -> Timeline:
        """A new one for a coordinator that is opened."""
        recent = RecentEnds(self._delay_ms)
        found = self.of[tc_id] = Timeline(tc_id, self._ended, recent, lambda: self._folded(recent), self._seconds)
        return found

    def _folded(self, recent: RecentEnds) -> None:
        """Ends that the process before may not have repeated."""
        for end, due_ms in recent.not_repeated():
            self._repeat(end, due_ms)

    def story(self, txn_id: TxnId) -> Story | None:
        """Return what is known of a transaction; None for nothing."""
        timeline = self.of.get(coordinator_of(txn_id.most))
        return None if timeline is None else timeline.story(txn_id)

    def told(self, txn_id: TxnId, cluster: str, participant: Participant, attempts: int, now_ms: int) -> None:
        """A participant holds the outcome."""
        timeline = self.of.get(coordinator_of(txn_id.most))
        if timeline is not None:
            timeline.told(txn_id, cluster, participant, attempts, now_ms)
