"""Times of questions about transactions: the rules, the groups with a living member, and what is due next.

None of this is state. What is due follows from the records (`extras.Extras`), from the rules of the configuration, and from who
lives, which the host says (`requests.GroupJoined`). So a restart begins with nobody alive, and a change of the rules counts for
what is open already.

Questions wait here, and not at members: a group is asked only as many as its members have room for, and one that is out is not
asked again before it comes back. They lie in one heap per group, because a group without room is not asked and must not hold up
the others. The groups that have room lie in a heap by their first question. So a member that joins a group with 10^5
transactions costs one entry. What was asked for as often as it may be waits in a heap of its own: the policy decides about it,
whoever lives.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs

from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.timed import Timed

CHECK_AFTER_MS: Final = 6_000
CHECK_INTERVAL_MS: Final = 30_000
MAX_CHECKS: Final = 15
"""RocketMQ's transactionTimeOut, transactionCheckInterval and transactionCheckMax."""
ABSENCE_MS: Final = 60_000
"""Shortest time without a member after which timeouts end a group's transactions: members connect again."""

_GROUPS_AT_ONCE: Final = 64
_LOOKS: Final = 256

GroupKey: TypeAlias = tuple[str | None, str]
"""Principal and name: groups of different principals do not meet."""


class CheckPolicy(enum.Enum):
    """Fate of a transaction whose group was asked as often as it may be, and did not know."""

    PARK = "park"
    """The transaction waits for an operator, as in RocketMQ."""
    ABORT = "abort"
    COMMIT = "commit"
    KEEP = "keep"
    """Nothing more is asked; its timeout decides."""


@attrs.frozen
class CheckRules:
    """`after_ms`: the age at which an open transaction is asked for first. `max_checks`: how many questions it may cost.

    ValueError for a time in the past, no time at all between two questions, or a negative number of them.
    """

    after_ms: int = attrs.field(default=CHECK_AFTER_MS, validator=attrs.validators.ge(0))
    interval_ms: int = attrs.field(default=CHECK_INTERVAL_MS, validator=attrs.validators.ge(1))
    max_checks: int = attrs.field(default=MAX_CHECKS, validator=attrs.validators.ge(0))
    policy: CheckPolicy = attrs.field(default=CheckPolicy.PARK, converter=CheckPolicy)

    def due_ms(self, extras: Extras, since_ms: int) -> int:
        """Return when the next question is due, or the policy; `since_ms`: when it was opened, or prepared."""
        if extras.asked_ms is not None:
            return extras.asked_ms + self.interval_ms
        return since_ms + (self.after_ms if extras.after_ms is None else extras.after_ms)


DEFAULT_RULES: Final = CheckRules()


class CheckTimes:
    """Transactions that wait for a question or for the policy. `is_used`: whether anything does, or anybody lives.

    `started_ms`: when this incarnation of the coordinator began; nobody knows who lived before.
    """

    def __init__(self, rules: CheckRules) -> None:
        self.rules = rules
        self.is_used = False
        self.started_ms = 0
        self._room: dict[GroupKey, int] = {}  # of those that live: how many questions may be out at once
        self._out_of: dict[GroupKey, int] = {}
        self._left_ms: dict[GroupKey, int] = {}  # of those for which something waits: when the last member has gone
        self._waiting: dict[GroupKey, Timed[int]] = {}
        self._out: dict[int, GroupKey] = {}
        self._queue: Timed[GroupKey] = Timed()  # those that have room, by their first question, or an earlier time
        self._lapses: Timed[int] = Timed()

    # ------------------------------------------------------------------ what waits

    def start(self, now_ms: int) -> None:
        """Begin an incarnation of the coordinator."""
        self.started_ms = now_ms

    def watch(self, least: int, principal: str | None, extras: Extras, since_ms: int, is_prepared: bool) -> None:
        """The transaction waits for its next question, or for the policy, or for nothing more; not while one is out."""
        if extras.group is None or least in self._out:
            return
        rules, key = self.rules, (principal, extras.group)
        due_ms = rules.due_ms(extras, since_ms)
        if is_prepared or extras.check_count < rules.max_checks:
            self._lapses.drop(least)
            self._waiting.setdefault(key, Timed()).put(least, due_ms)
            self._queue_up(key)
        else:
            self._take_out(least, key)
            if rules.policy is not CheckPolicy.KEEP:
                self._lapses.put(least, due_ms)
        self._note_use()

    def forget(self, least: int, principal: str | None, group: str) -> None:
        """The transaction is decided, or parked."""
        self.returned(least)
        self._lapses.drop(least)
        self._take_out(least, (principal, group))
        self._note_use()

    def due_ms(self, least: int, principal: str | None, group: str) -> int | None:
        """Return when its next question, or the policy, is due; None: never, or one is out."""
        lapse = self._lapses.of(least)
        waiting = self._waiting.get((principal, group))
        return waiting.of(least) if lapse is None and waiting is not None else lapse

    def count(self) -> int:
        """Return how many transactions wait, those included for which a question is out."""
        return len(self._lapses) + len(self._out) + sum(map(len, self._waiting.values()))

    def is_out(self, least: int) -> bool:
        """True if a member has a question about it."""
        return least in self._out

    def put_off(self, least: int, until_ms: int) -> None:
        """The policy has no room for it now: it decides later."""
        self._lapses.put(least, until_ms)

    # ------------------------------------------------------------------ questions that are out

    def asked(self, least: int, key: GroupKey) -> None:
        """A question leaves; it takes room of its group."""
        self._out[least] = key
        self._out_of[key] = self._out_of.get(key, 0) + 1
        self._take_out(least, key)
        if not self._has_room(key):
            self._queue.drop(key)
        self._note_use()

    def returned(self, least: int) -> bool:
        """The question is at nobody any more; False if there was none. The caller has to `watch` the transaction."""
        key = self._out.pop(least, None)
        if key is None:
            return False
        self._out_of[key] -= 1
        if not self._out_of[key]:
            del self._out_of[key]
        self._queue_up(key)
        self._note_use()
        return True

    # ------------------------------------------------------------------ who lives

    def joined(self, key: GroupKey, room: int) -> None:
        """A member of the group lives, and its members take so many questions at once."""
        self._room[key] = room
        self._left_ms.pop(key, None)
        if self._has_room(key):
            self._queue_up(key)
        else:
            self._queue.drop(key)
        self._note_use()

    def left(self, key: GroupKey, now_ms: int) -> None:
        """No member of the group lives any more."""
        if self._room.pop(key, None) is not None and (key in self._waiting or key in self._out_of):
            self._left_ms[key] = now_ms
        self._queue.drop(key)
        self._note_use()

    def spared_until(self, txn: Transaction, now_ms: int) -> int | None:
        """Until when the timeout of an OPEN transaction that is due may not end it; None: it may.

        While a member lives, the time does not run: its group is asked before. Afterwards it begins again.
        """
        extras, least = txn.extras, txn.txn_id.least
        if extras is None or extras.group is None:
            return None
        lapse_ms = self._lapses.of(least)
        if lapse_ms is not None:
            return max(lapse_ms, now_ms + 1)  # the policy decides then
        key = (txn.owner[0], extras.group)
        if least not in self._out and extras.check_count >= self.rules.max_checks:
            return None  # kept for its timeout
        whole_ms = max(txn.timeout_ms, ABSENCE_MS)
        if key in self._room:
            return now_ms + whole_ms
        since_ms = self._left_ms.get(key, self.started_ms if txn.start_time_ms < self.started_ms else None)
        return None if since_ms is None or since_ms + whole_ms <= now_ms else since_ms + whole_ms

    # ------------------------------------------------------------------ what is due

    def deadline(self) -> int | None:
        """Return when the next question to a living group, or the policy, is due."""
        lapse_ms, question_ms = self._lapses.first_ms(), self._next_question()
        if lapse_ms is None or question_ms is None:
            return question_ms if lapse_ms is None else lapse_ms
        return min(lapse_ms, question_ms)

    def lapsed(self, now_ms: int, limit: int) -> list[int]:
        """Return what the policy decides about now, at most `limit`."""
        return self._lapses.due(now_ms, limit)

    def questions(self, now_ms: int, limit: int) -> Iterator[tuple[int, GroupKey]]:
        """Transactions to ask for now, at most `limit`, of groups that have room."""
        for key in self._queue.due(now_ms, _GROUPS_AT_ONCE):
            found = self._waiting[key].due(now_ms, min(limit, self._room[key] - self._out_of.get(key, 0)))
            yield from ((least, key) for least in found)
            limit -= len(found)
            if limit <= 0:
                return

    # ------------------------------------------------------------------ their parts

    def _next_question(self) -> int | None:
        """The time of the group in front. A group whose first question is due later is put where it belongs."""
        queued_ms = self._queue.first_ms()
        for _ in range(_LOOKS):
            front = [] if queued_ms is None else self._queue.due(queued_ms, 1)
            if not front or self._waiting[front[0]].first_ms() == queued_ms:
                break
            self._queue.drop(front[0])
            self._queue_up(front[0])
            queued_ms = self._queue.first_ms()
        return queued_ms

    def _queue_up(self, key: GroupKey) -> None:
        waiting = self._waiting.get(key)
        first_ms = None if waiting is None or not self._has_room(key) else waiting.first_ms()
        if first_ms is not None:
            queued_ms = self._queue.of(key)
            if queued_ms is None or first_ms < queued_ms:
                self._queue.put(key, first_ms)

    def _has_room(self, key: GroupKey) -> bool:
        return self._room.get(key, 0) > self._out_of.get(key, 0)

    def _take_out(self, least: int, key: GroupKey) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.drop(least)
            if not waiting:
                del self._waiting[key]
                self._queue.drop(key)
        if key not in self._waiting and key not in self._out_of:
            self._left_ms.pop(key, None)

    def _note_use(self) -> None:
        self.is_used = bool(self._waiting or self._lapses or self._room or self._out)
