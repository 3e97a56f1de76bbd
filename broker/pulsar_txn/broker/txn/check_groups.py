"""Check groups: which connections are members of each, who is asked next, and whether a coordinator may ask at all.

A coordinator asks a member of a transaction's group for its outcome (`docs/adr/0043`). Any member will do that is
connected, takes what it is sent, and has fewer questions than it takes at once; they are asked in turn. Groups of different
principals do not meet. A group lives at a coordinator while it has a member. The coordinator is told that, and how many
questions the members take at once: so questions wait at the coordinator, which knows the one that is due first, and not at a
member that is busy.

Here waits only what found no member, because one has left meanwhile, or its room is used by another coordinator of this server.
The coordinator hears what became of each question: a member has begun to answer it, has answered it, or is at it no more.

Members of earlier releases do not say that they begin. A question to such a one counts when it has answered, or when its
connection has ended. It is asked at most `_ROOM_OF_OLD` at once, which is what such a client works on by default.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import attrs

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import AskProducer, TellGroup
from pulsar_txn.tc.requests import CheckBegun, CheckReturned, GroupJoined, GroupLeft
from pulsar_txn.tc.timed import Timed
from pulsar_txn.wire.ids import TxnId, coordinator_of

from .coordinator_host import CoordinatorHost

ASKED_PER_TURN: Final = 256
MOST_ROOM: Final = 1_024
"""Questions of one group that one member takes at once, whatever it says."""
PATIENCE_MS: Final = 60_000
"""Time within which a member has to begin its check; a member of an earlier release, to answer."""
_SLACK_MS: Final = 30_000
_LONGEST_MS: Final = 24 * 3_600_000
_ROOM_OF_OLD: Final = 8
_BESIDE_OTHERS: Final = 32
_BYTES_PER_TURN: Final = 1 << 20
_LOOK_SECONDS: Final = 5.0
MOST_NOTICES: Final = 10_000
"""Decisions that wait for a member to hear of them; the oldest are forgotten."""


class GroupKey(NamedTuple):
    """One group at one coordinator."""

    tc_id: int
    principal: str | None
    group: str


@attrs.frozen
class Terms:
    """Terms that a member says of itself. `room`: how many questions it takes at once; None: it is of an earlier release.

    `timeout_ms`: how long it is at one question at the longest; 0: it does not say.
    """

    room: int | None = None
    timeout_ms: int = 0


class Seat:
    """A member's place in one group, at all coordinators of this server. `at`: its questions, and whether it has begun."""

    __slots__ = ("at", "begins", "keys", "longest_ms", "room")

    def __init__(self, terms: Terms) -> None:
        self.keys: dict[GroupKey, None] = {}
        self.at: dict[TxnId, bool] = {}
        self.begins = terms.room is not None
        self.room = _ROOM_OF_OLD if terms.room is None else min(max(1, terms.room), MOST_ROOM)
        self.longest_ms = min(terms.timeout_ms + _SLACK_MS, _LONGEST_MS) if terms.timeout_ms else _LONGEST_MS


class Member(Protocol):
    """A client that has joined groups. `groups`: those; `seats`: its place in each, by name."""

    groups: dict[GroupKey, None]
    seats: dict[str, Seat]

    @property
    def is_writable(self) -> bool:
        """True if it takes what it is sent."""

    def ask(self, question: AskProducer, begins: bool) -> None:
        """Send a question. `begins`: it has to say when it begins."""

    def tell(self, decided: TellGroup) -> None:
        """Send what was decided."""


class _Group:
    """`members`: each with the room that it gives. `ready`: those that may have some left, whoever is asked next first.

    `told`: what the coordinator was told last; 0 or more: that it lives, None: that it does not.
    """

    __slots__ = ("members", "questions", "ready", "room", "told")

    def __init__(self) -> None:
        self.members: dict[Member, int] = {}
        self.ready: dict[Member, None] = {}
        self.questions: dict[TxnId, AskProducer] = {}
        self.room = 0
        self.told: int | None = None

    def has_room(self, member: Member) -> None:
        """A member may take a question, after those that have room already."""
        self.ready[member] = None

    def has_no_room(self, member: Member) -> None:
        """A member takes nothing more, or is gone."""
        self.ready.pop(member, None)

    def next(self, group: str) -> Member | None:
        """The member whose turn it is. Those that have no room left are passed over until they have."""
        for member in list(self.ready):
            del self.ready[member]
            seat = member.seats[group]
            if len(seat.at) < seat.room:
                self.ready[member] = None
                return member
        return None


class CheckGroups:
    """All groups of one server. Coordinators that are `serving` are told what becomes of them and of questions.

    `max_of_member`, `max_of_all`: how many groups one connection, and all together, may have joined. For metrics: `asked`,
    questions that have left, and `begun`, by coordinator; `answered`, what came back, by outcome, or `refused`.
    """

    def __init__(self, turn: Turn, serving: Mapping[int, CoordinatorHost], max_of_member: int, max_of_all: int) -> None:
        self._turn = turn
        self._serving = serving
        self._max_of_member = max_of_member
        self._max_of_all = max_of_all
        self._groups: dict[GroupKey, _Group] = {}
        self._count = 0
        self._changed: dict[GroupKey, None] = {}
        self._to_send: deque[tuple[GroupKey, TxnId]] = deque()
        self._works = False
        self._patience: Timed[tuple[Member, TxnId]] = Timed()
        self._looks = False
        self._kept: dict[TxnId, GroupKey] = {}  # of the questions that found no member yet
        self._notices: dict[GroupKey, deque[TellGroup]] = {}
        self._notice_count = 0
        self.asked: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.answered: Counter[str] = Counter()

    @property
    def memberships(self) -> int:
        """Number of memberships, of all members together."""
        return self._count

    # ---- members

    def join(self, key: GroupKey, member: Member, terms: Terms | None = None) -> None:
        """Let it be a member until it leaves, or is gone. A repeat does nothing. LimitReached."""
        if key in member.groups:
            return
        if self._max_of_member and len(member.groups) >= self._max_of_member:
            what = f"this connection is in {len(member.groups)} check groups, counted at each coordinator"
            raise LimitReached("maxCheckGroupsPerConnection", what)
        if self._max_of_all and self._count >= self._max_of_all:
            raise LimitReached("maxCheckGroupMembers", f"check groups have {self._count} members")
        member.groups[key] = None
        self._count += 1
        seat = member.seats.get(key.group)
        if seat is None:
            seat = member.seats[key.group] = Seat(terms or Terms())
        seat.keys[key] = None
        group = self._groups.setdefault(key, _Group())
        group.members[member] = 0
        self._change(key)
        self._count_room(key, group, member)

    def leave(self, key: GroupKey, member: Member, *, is_gone: bool = False) -> None:
        """Let it leave: it is asked no more, and what it was asked is at nobody.

        A repeat does nothing. `is_gone`: its connection is.
        """
        if key not in member.groups:
            return
        del member.groups[key]
        self._count -= 1
        group, seat = self._groups[key], member.seats[key.group]
        for txn_id in [each for each in seat.at if coordinator_of(each.most) == key.tc_id]:
            del seat.at[txn_id]
            self._patience.drop((member, txn_id))
            if is_gone and not seat.begins:
                self.counts(txn_id, key.group, key.principal)
            self.returned(txn_id)
        del seat.keys[key]
        if not seat.keys:
            del member.seats[key.group]
        group.room -= group.members.pop(member)
        group.has_no_room(member)
        self._change(key)

    def gone(self, member: Member) -> None:
        """Its connection has ended."""
        for key in list(member.groups):
            self.leave(key, member, is_gone=True)

    def writable_changed(self, member: Member) -> None:
        """Note that it takes what it is sent again, or does not any more."""
        for key in member.groups:
            self._count_room(key, self._groups[key], member)

    def _count_room(self, key: GroupKey, group: _Group, member: Member) -> None:
        room = member.seats[key.group].room if member.is_writable else 0
        if room == group.members[member]:
            return
        group.room += room - group.members[member]
        group.members[member] = room
        if room:
            group.has_room(member)
            self._to_send += [(key, txn_id) for txn_id in group.questions]
            self._tell_notices(key, member)
        else:
            group.has_no_room(member)
        self._change(key)

    # ---- what becomes of questions

    def begins(self, member: Member, txn_id: TxnId, group: str) -> bool:
        """A member says that it begins; False where it was not asked, or has said so before."""
        seat = member.seats.get(group)
        if seat is None or not seat.begins or seat.at.get(txn_id) is not False:
            return False
        seat.at[txn_id] = True
        self._patience.put((member, txn_id), self._now_ms() + seat.longest_ms)
        self.begun[coordinator_of(txn_id.most)] += 1
        return True

    def answers(self, member: Member, txn_id: TxnId, group: str) -> bool:
        """A member answers; False where it was not asked, or has not said that it begins. It has room again."""
        seat = member.seats.get(group)
        if seat is None or txn_id not in seat.at or seat.at[txn_id] is not seat.begins:
            self.answered["refused"] += 1
            return False
        if not seat.begins:
            self.begun[coordinator_of(txn_id.most)] += 1
        self._frees(member, seat, txn_id)
        return True

    def skips(self, member: Member, txn_id: TxnId, group: str) -> None:
        """The coordinator has told a member that nobody has to answer."""
        seat = member.seats.get(group)
        if seat is not None and txn_id in seat.at:
            self._frees(member, seat, txn_id)

    def over(self, txn_id: TxnId) -> None:
        """A transaction is over: a question about it that found no member is void."""
        key = self._kept.pop(txn_id, None)
        group = None if key is None else self._groups.get(key)
        if group is not None:
            group.questions.pop(txn_id, None)

    def _frees(self, member: Member, seat: Seat, txn_id: TxnId) -> None:
        del seat.at[txn_id]
        self._patience.drop((member, txn_id))
        for key in seat.keys:
            group = self._groups[key]
            if group.members[member]:
                group.has_room(member)
                if group.questions:
                    self._to_send.append((key, next(iter(group.questions))))
                    self._go_on()

    def _look(self) -> None:
        """Take questions back that a member has had for too long."""
        for member, txn_id in self._patience.due(self._now_ms(), ASKED_PER_TURN):
            self._patience.drop((member, txn_id))
            for seat in member.seats.values():
                if txn_id in seat.at:
                    self._frees(member, seat, txn_id)
                    self.returned(txn_id)
                    break
        self._looks = bool(self._patience)
        if self._looks:
            self._turn.runtime.call_later(_LOOK_SECONDS, self._look)

    # ---- coordinators

    def counts(self, txn_id: TxnId, group: str, principal: str | None) -> None:
        """A member that does not say so has begun to answer a question, as far as can be known."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.submit(CheckBegun(_unheard, txn_id, group, principal), reserve=True)

    def returned(self, txn_id: TxnId) -> None:
        """Return a question: nobody is at it any more."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.submit_timed(CheckReturned(txn_id), reserve=True)

    def _lives(self, key: GroupKey, room: int | None) -> None:
        """The members of a group take so many questions at once; None: there is none any more."""
        host = self._serving.get(key.tc_id)
        if host is not None:
            host.submit_timed(
                GroupLeft(key.group, key.principal) if room is None else GroupJoined(key.group, key.principal, room)
            )

    def opened(self, tc_id: int) -> None:
        """A coordinator serves, and knows nobody yet."""
        for key, group in self._groups.items():
            if key.tc_id == tc_id:
                group.told = None
                self._void(group)
                self._change(key)

    def ask(self, tc_id: int, question: AskProducer) -> None:
        """Hand a question to a member, in this turn or a later one."""
        key = GroupKey(tc_id, question.principal, question.group)
        group = self._groups.get(key)
        if group is None:
            self.returned(question.txn_id)  # the last member has left at this moment
            return
        group.questions[question.txn_id] = question
        self._kept[question.txn_id] = key
        self._to_send.append((key, question.txn_id))
        self._go_on()

    def _void(self, group: _Group) -> None:
        for txn_id in group.questions:
            self._kept.pop(txn_id, None)
        group.questions.clear()

    def decided(self, tc_id: int, notice: TellGroup) -> None:
        """Tell a member what was decided, now or when there is one."""
        key = GroupKey(tc_id, notice.principal, notice.group)
        self._notices.setdefault(key, deque()).append(notice)
        self._notice_count += 1
        group = self._groups.get(key)
        for member in () if group is None else list(group.members):
            if self._tell_notices(key, member):
                return
        if self._notice_count > MOST_NOTICES:
            self._take_notice(next(iter(self._notices)))

    def _tell_notices(self, key: GroupKey, member: Member) -> bool:
        if key not in self._notices or not member.seats[key.group].begins:
            return False
        while key in self._notices and member.is_writable:
            member.tell(self._take_notice(key))
        return key not in self._notices

    def _take_notice(self, key: GroupKey) -> TellGroup:
        waiting = self._notices[key]
        self._notice_count -= 1
        notice = waiting.popleft()
        if not waiting:
            del self._notices[key]
        return notice

    # ---- in slices

    def _now_ms(self) -> int:
        return int(self._turn.runtime.monotonic() * 1000)

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
        """Tell the coordinator whether the group lives, and its room, where that is news."""
        group = self._groups.get(key)
        if group is None:
            return
        room = group.room if group.members else None
        if room is None:
            for txn_id in group.questions:
                self.returned(txn_id)
            self._void(group)
            del self._groups[key]
        if room != group.told:
            group.told = room
            self._lives(key, room)

    def _send(self, key: GroupKey, txn_id: TxnId) -> int:
        """Bytes that were sent."""
        group = self._groups.get(key)
        question = None if group is None else group.questions.get(txn_id)
        if group is None or question is None:
            return 0
        member = group.next(key.group)
        if member is None:
            return 0
        del group.questions[txn_id]
        self._kept.pop(txn_id, None)
        self.asked[key.tc_id] += 1
        seat = member.seats[key.group]
        seat.keys[key] = seat.keys.pop(key)  # what waits at other coordinators goes first next time
        if seat.at.get(txn_id):
            return 0  # it is at it, asked by an earlier life of the coordinator: its answer comes
        seat.at[txn_id] = False
        self._patience.put((member, txn_id), self._now_ms() + PATIENCE_MS)
        if not self._looks:
            self._looks = True
            self._turn.runtime.call_later(_LOOK_SECONDS, self._look)
        member.ask(question, seat.begins)
        return len(question.data)


def _unheard(_value: object, _error: object, _message: str) -> None:
    """Do nothing: nobody waits for it."""


class CheckKeys(Protocol):
    """The part of a configuration that this needs."""

    @property
    def transaction_check_after_in_seconds(self) -> int:
        """The age at which an open transaction is asked for first, where it does not say so itself."""

    @property
    def transaction_check_interval_in_seconds(self) -> int:
        """Between two questions about one transaction."""

    @property
    def transaction_check_max(self) -> int:
        """Greatest number of questions about one transaction."""

    @property
    def transaction_check_policy(self) -> str:
        """Policy after the last question: `park`, `abort`, `commit` or `keep`."""

    @property
    def max_active_transactions_per_role(self) -> int:
        """Greatest number of active transactions of one role at a coordinator."""

    @property
    def max_prepared_transactions_per_role(self) -> int:
        """Greatest number of prepared transactions among them."""

    @property
    def max_parked_transactions_per_coordinator(self) -> int:
        """Greatest number of transactions that wait for an operator."""


def check_options(config: CheckKeys) -> dict[str, Any]:
    """Arguments of a coordinator plug-in that has `checks`."""
    return {
        "check_after_ms": config.transaction_check_after_in_seconds * 1000,
        "check_interval_ms": config.transaction_check_interval_in_seconds * 1000,
        "max_checks": config.transaction_check_max,
        "check_policy": config.transaction_check_policy,
        "max_active_of_role": config.max_active_transactions_per_role,
        "max_prepared_of_role": config.max_prepared_transactions_per_role,
        "max_parked": config.max_parked_transactions_per_coordinator,
    }
