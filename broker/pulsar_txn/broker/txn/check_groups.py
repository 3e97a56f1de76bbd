"""Check groups: which connections are members of each, who is asked next, and whether a coordinator may ask at all.

A coordinator asks a member of a transaction's group for its outcome (`docs/adr/0043`). Any member will do that is connected and
takes what it is sent; they are asked in turn. A group lives at a coordinator while it has such a member, and the coordinator is
told when that changes. Groups of different principals do not meet.

A question was counted before it comes here, so it is kept while no member can take it, and goes to the first one that can. The
newest question about a transaction replaces the one before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import AskProducer
from pulsar_txn.wire.ids import TxnId

ASKED_PER_TURN: Final = 256
_BESIDE_OTHERS: Final = 32
_BYTES_PER_TURN: Final = 1 << 20


class GroupKey(NamedTuple):
    """One group at one coordinator."""

    tc_id: int
    principal: str | None
    group: str


class Member(Protocol):
    """A client that has joined groups. `groups`: those; `is_writable`: whether it takes what it is sent."""

    groups: dict[GroupKey, None]

    @property
    def is_writable(self) -> bool:
        """Whether it takes what it is sent."""

    def ask(self, question: AskProducer) -> None:
        """Send a question."""


class _Group:
    """`ready`: members that take what they are sent, whoever is asked next first. `lives`: what the coordinator was told."""

    __slots__ = ("lives", "members", "questions", "ready")

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.ready: dict[Member, None] = {}
        self.questions: dict[TxnId, AskProducer] = {}
        self.lives = False

    def next(self) -> Member | None:
        """The member whose turn it is."""
        for member in self.ready:
            del self.ready[member]
            self.ready[member] = None
            return member
        return None


class CheckGroups:
    """All groups of one server. `tell(key, lives)` tells a coordinator whether a group lives.

    `max_of_member`, `max_of_all`: how many groups one connection, and all together, may have joined. For metrics: `asked`,
    questions that have left, by coordinator; `answered`, what came back, by outcome, or `refused`.
    """

    def __init__(self, turn: Turn, tell: Callable[[GroupKey, bool], None], max_of_member: int, max_of_all: int) -> None:
        self._turn = turn
        self._tell = tell
        self._max_of_member = max_of_member
        self._max_of_all = max_of_all
        self._groups: dict[GroupKey, _Group] = {}
        self._count = 0
        self._changed: dict[GroupKey, None] = {}
        self._to_send: deque[tuple[GroupKey, TxnId]] = deque()
        self._works = False
        self.asked: Counter[int] = Counter()
        self.answered: Counter[str] = Counter()

    @property
    def memberships(self) -> int:
        """How many there are, of all members together."""
        return self._count

    # ---- members

    def join(self, key: GroupKey, member: Member) -> None:
        """It is a member until it leaves, or is gone. A repeat does nothing. LimitReached."""
        if key in member.groups:
            return
        if self._max_of_member and len(member.groups) >= self._max_of_member:
            what = f"this connection is in {len(member.groups)} check groups, counted at each coordinator"
            raise LimitReached("maxCheckGroupsPerConnection", what)
        if self._max_of_all and self._count >= self._max_of_all:
            raise LimitReached("maxCheckGroupMembers", f"check groups have {self._count} members")
        member.groups[key] = None
        self._count += 1
        group = self._groups.setdefault(key, _Group())
        group.members[member] = None
        if member.is_writable:
            self._becomes_ready(key, group, member)

    def leave(self, key: GroupKey, member: Member) -> None:
        """It is asked no more. A repeat does nothing."""
        if key not in member.groups:
            return
        del member.groups[key]
        self._count -= 1
        group = self._groups[key]
        del group.members[member]
        group.ready.pop(member, None)
        self._change(key)

    def gone(self, member: Member) -> None:
        """Its connection has ended."""
        for key in list(member.groups):
            self.leave(key, member)

    def writable_changed(self, member: Member) -> None:
        """It takes what it is sent again, or does not any more."""
        for key in member.groups:
            group = self._groups[key]
            if member.is_writable:
                self._becomes_ready(key, group, member)
            else:
                group.ready.pop(member, None)
                self._change(key)

    def _becomes_ready(self, key: GroupKey, group: _Group, member: Member) -> None:
        group.ready[member] = None
        self._to_send += [(key, txn_id) for txn_id in group.questions]
        self._change(key)

    # ---- coordinators

    def opened(self, tc_id: int) -> None:
        """A coordinator serves, and knows nobody yet."""
        for key, group in self._groups.items():
            if key.tc_id == tc_id:
                group.lives = False
                self._change(key)

    def ask(self, tc_id: int, question: AskProducer) -> None:
        """Hand a question to a member, in this turn or a later one."""
        key = GroupKey(tc_id, question.principal, question.group)
        group = self._groups.get(key)
        if group is not None:  # else the last member has left at this moment; it is asked for again
            group.questions[question.txn_id] = question
            self._to_send.append((key, question.txn_id))
            self._go_on()

    # ---- in slices

    def _change(self, key: GroupKey) -> None:
        self._changed[key] = None
        self._go_on()

    def _go_on(self) -> None:
        if not self._works:
            self._works = True
            self._turn.runtime.call_soon(self._work)

    def _work(self) -> None:
        budget, changed = self._turn.budget, self._changed
        left = _BESIDE_OTHERS if budget.waiters else ASKED_PER_TURN  # those who wait need the rest of this turn
        while changed and left and not budget.is_spent():
            left -= 1
            key = next(iter(changed))
            del changed[key]
            self._settle(key)
        size = 0
        while self._to_send and left and size < _BYTES_PER_TURN and not budget.is_spent():
            left -= 1
            size += self._send(*self._to_send.popleft())
        self._works = bool(changed or self._to_send)
        if self._works:
            self._turn.runtime.call_soon(self._work)

    def _settle(self, key: GroupKey) -> None:
        """Tell the coordinator whether the group lives, where that is news."""
        group = self._groups.get(key)
        if group is None:
            return
        lives = bool(group.ready)
        if not group.members:
            del self._groups[key]
        if lives != group.lives:
            group.lives = lives
            self._tell(key, lives)

    def _send(self, key: GroupKey, txn_id: TxnId) -> int:
        """Bytes that were sent."""
        group = self._groups.get(key)
        question = None if group is None else group.questions.get(txn_id)
        if group is None or question is None:
            return 0
        member = group.next()
        if member is None:
            return 0
        del group.questions[txn_id]
        self.asked[key.tc_id] += 1
        member.ask(question)
        return len(question.data)
