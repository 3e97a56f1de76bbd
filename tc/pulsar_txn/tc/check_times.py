"""When which transaction is asked for: the rules, the groups with a living member, and what is due next.

None of this is state. What is due follows from the records (`extras.Extras`), from the rules of the configuration, and from who
lives, which the host says (`requests.GroupJoined`). So a restart begins with nobody alive, and a change of the rules counts for
what is open already.

Questions lie in one heap per group, because a group without a living member is not asked and must not hold up the others. The
groups that live lie in a heap by their first question. So a member that joins a group with 10^5 transactions costs one entry.
What was asked for as often as it may be waits in a heap of its own: the policy decides about it, whoever lives.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import attrs

from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.timed import Timed

CHECK_AFTER_MS: Final = 6_000
CHECK_INTERVAL_MS: Final = 30_000
MAX_CHECKS: Final = 15
"""RocketMQ's transactionTimeOut, transactionCheckInterval and transactionCheckMax."""

_GROUPS_AT_ONCE: Final = 64
_LOOKS: Final = 256

GroupKey: TypeAlias = tuple[str | None, str]
"""Principal and name: groups of different principals do not meet."""


class CheckPolicy(enum.Enum):
    """What becomes of a transaction whose group was asked as often as it may be, and did not know."""

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
    policy: CheckPolicy = attrs.field(default=CheckPolicy.ABORT, converter=CheckPolicy)

    def due_ms(self, extras: Extras, since_ms: int) -> int:
        """When the next question is due, or the policy; `since_ms`: when it was opened, or prepared."""
        if extras.asked_ms is not None:
            return extras.asked_ms + self.interval_ms
        return since_ms + (self.after_ms if extras.after_ms is None else extras.after_ms)


DEFAULT_RULES: Final = CheckRules()


class CheckTimes:
    """What waits for a question or for the policy. `is_used`: whether anything does, or anybody lives."""

    def __init__(self, rules: CheckRules) -> None:
        self.rules = rules
        self.is_used = False
        self._alive: set[GroupKey] = set()
        self._waiting: dict[GroupKey, Timed[int]] = {}
        self._queue: Timed[GroupKey] = Timed()  # those that live, by their first question, or an earlier time
        self._lapses: Timed[int] = Timed()

    # ------------------------------------------------------------------ what waits

    def watch(self, least: int, principal: str | None, extras: Extras, since_ms: int, is_prepared: bool) -> None:
        """The transaction waits for its next question, or for the policy, or for nothing more."""
        if extras.group is None:
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
        """The transaction is decided."""
        self._lapses.drop(least)
        self._take_out(least, (principal, group))
        self._note_use()

    def due_ms(self, least: int, principal: str | None, group: str) -> int | None:
        """When its next question, or the policy, is due; None: never."""
        lapse = self._lapses.of(least)
        waiting = self._waiting.get((principal, group))
        return waiting.of(least) if lapse is None and waiting is not None else lapse

    def count(self) -> int:
        """How many transactions wait."""
        return len(self._lapses) + sum(map(len, self._waiting.values()))

    # ------------------------------------------------------------------ who lives

    def joined(self, key: GroupKey) -> None:
        """A member of the group lives."""
        self._alive.add(key)
        self._queue_up(key)
        self._note_use()

    def left(self, key: GroupKey) -> None:
        """No member of the group lives any more."""
        self._alive.discard(key)
        self._queue.drop(key)
        self._note_use()

    # ------------------------------------------------------------------ what is due

    def deadline(self) -> int | None:
        """When the next question to a living group, or the policy, is due."""
        lapse_ms, question_ms = self._lapses.first_ms(), self._next_question()
        if lapse_ms is None or question_ms is None:
            return question_ms if lapse_ms is None else lapse_ms
        return min(lapse_ms, question_ms)

    def lapsed(self, now_ms: int, limit: int) -> list[int]:
        """What the policy decides about now, at most `limit`."""
        return self._lapses.due(now_ms, limit)

    def questions(self, now_ms: int, limit: int) -> list[int]:
        """Transactions to ask for now, at most `limit`, of groups that live."""
        found: list[int] = []
        for key in self._queue.due(now_ms, _GROUPS_AT_ONCE):
            found += self._waiting[key].due(now_ms, limit - len(found))
            if len(found) >= limit:
                break
        return found

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
        first_ms = None if waiting is None or key not in self._alive else waiting.first_ms()
        if first_ms is not None:
            queued_ms = self._queue.of(key)
            if queued_ms is None or first_ms < queued_ms:
                self._queue.put(key, first_ms)

    def _take_out(self, least: int, key: GroupKey) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.drop(least)
            if not waiting:
                del self._waiting[key]
                self._queue.drop(key)

    def _note_use(self) -> None:
        self.is_used = bool(self._waiting or self._lapses or self._alive)
