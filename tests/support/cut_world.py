"""A model of partitions in which ends come late and in any order, a reader that asks at any moment, and a judge.

What happens is a list of steps `(what, a, b)`; the numbers say of what. So a test draws them at random, or has them shrunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

import attrs

from pulsar_txn.client.receive.consistent.half_topic import SampledEnds
from pulsar_txn.client.receive.consistent.planner import Limits, Planner, Shown
from pulsar_txn.client.receive.entry_reader import HalfMessageEnds
from pulsar_txn.wire.ids import EARLIEST, Position, TxnId

ROOMY: Final = Limits(10_000, 10_000, 1 << 30)
Step: TypeAlias = "tuple[str, int, int]"

WEIGHTS: Final = {
    "send": 16,
    "send_plain": 2,
    "decide": 6,
    "end_arrives": 6,
    "add_partition": 2,
    "look_for_partitions": 4,
    "read": 12,
    "ask": 4,
    "answer": 4,
    "how_far": 6,
    "mark_complete": 4,
    "hand_out": 16,
    "go_round": 16,
    "start_over": 1,
}
"""What can happen, and how often it does."""


@attrs.define
class Entry:
    """What a partition has stored: a message, of a transaction or of none; or the end of one."""

    txn: int | None
    is_end: bool = False


@attrs.define
class Partition:
    """A partition as a broker keeps it. Position n of ledger 0 is `log[n]`."""

    beside: bool = False
    """Whether transactions wait beside the topic, and come into it when their end arrives."""
    log: list[Entry] = attrs.field(factory=list)
    halves: list[int] = attrs.field(factory=list)
    ends: SampledEnds = attrs.field(factory=SampledEnds)
    ended: set[int] = attrs.field(factory=set)
    read: int = -1
    """The last entry that the reader has been given, or that was passed over for it."""

    def max_read(self) -> int:
        """The last entry that readers may see: before the first message of a transaction whose end has not come."""
        open_here = [at for at, entry in enumerate(self.log) if entry.txn is not None and entry.txn not in self.ended]
        return min(open_here, default=len(self.log)) - 1

    def visible(self, at: int, outcomes: dict[int, bool]) -> bool:
        entry = self.log[at]
        return not entry.is_end and (entry.txn is None or outcomes[entry.txn])

    def last(self, outcomes: dict[int, bool]) -> Position:
        seen = [at for at in range(self.max_read() + 1) if self.visible(at, outcomes)]
        return (0, seen[-1]) if seen else EARLIEST

    @property
    def end(self) -> Position:
        return (0, len(self.log) - 1)

    def send(self, txn: int) -> None:
        self.halves.append(txn)
        if not self.beside:
            self.log.append(Entry(txn))

    def finish(self, txn: int, *, commit: bool) -> None:
        if not self.beside:
            self.log.append(Entry(txn, is_end=True))
        elif commit:
            self.log += [Entry(txn) for each in self.halves if each == txn]
        self.ended.add(txn)

    def waiting(self) -> HalfMessageEnds | None:
        places = [(7, at) for at, txn in enumerate(self.halves) if txn not in self.ended]
        return HalfMessageEnds((7, len(self.halves) - 1), min(places, default=None)) if self.beside else None


class CutWorld:
    """Two partitions, a third one that comes later, and a consistent reader.

    `latest`: the reader begins at the end of what `before` has left. `beside`: transactions wait beside partition 1.
    """

    def __init__(self, before: Iterable[Step], *, latest: bool, beside: bool) -> None:
        self.parts = [Partition(), Partition(beside=beside)]
        self.outcomes: dict[int, bool] = {}
        self.open: dict[int, set[int]] = {}
        self.late: list[tuple[int, int]] = []
        self.next_txn = 0
        self.handed: list[list[int]] = [[], [], []]
        self.torn_apart = 0
        """Cuts that were asked for while a part of a transaction could be read and the rest of it could not."""
        self.places: list[tuple[Position, Position | None]] = [(EARLIEST, None)] * 3
        self.firsts = [-1, -1, -1]
        self.since: list[Position | None] = [None, None, None]
        self._begin_at_the_end(list(before)) if latest else self._play(before)
        self.start_over(0, 0)

    def _begin_at_the_end(self, before: list[Step]) -> None:
        """What can be read in all partitions, then their ends; and something happens between the questions."""
        quarter = 1 + len(before) // 4
        lasts = []
        for number in range(2):
            self._play(before[number * quarter : (number + 1) * quarter])
            lasts.append(self.parts[number].last(self.outcomes))
        for number in range(2):
            self._play(before[(number + 2) * quarter : (number + 3) * quarter])
            if self.parts[number].beside:
                self._let_nothing_wait(number)
            self.firsts[number] = lasts[number][1]
            self.since[number] = self.parts[number].end if self.parts[number].log else None
            self.places[number] = (lasts[number], self.since[number])

    def _let_nothing_wait(self, number: int) -> None:
        for txn in [txn for txn, parts in self.open.items() if number in parts]:
            self._decide(txn, commit=True)
        due, self.late = [each for each in self.late if each[1] == number], [each for each in self.late if each[1] != number]
        for each in due:
            self._end(each)

    def _play(self, before: Iterable[Step]) -> None:
        for what, a, b in before:
            if what in ("send", "send_plain", "decide", "end_arrives"):
                getattr(self, what)(a, b)

    def play(self, steps: Iterable[Step]) -> None:
        """Have this happen."""
        for what, a, b in steps:
            getattr(self, what)(a, b)

    # --- the cluster --------------------------------------------------------------------------------------------------

    def send(self, a: int, b: int) -> None:
        """To one of up to four open transactions, or to a new one."""
        number, ids = a % len(self.parts), list(self.open)
        if len(ids) < 4 and b % 5 >= len(ids):
            ids.append(self.next_txn)
            self.open[self.next_txn] = set()
            self.next_txn += 1
        chosen = ids[b % len(ids)]
        self.open[chosen].add(number)
        self.parts[number].send(chosen)

    def send_plain(self, a: int, _: int) -> None:
        self.parts[a % len(self.parts)].log.append(Entry(None))

    def decide(self, a: int, b: int) -> None:
        if self.open:
            self._decide(list(self.open)[a % len(self.open)], commit=b % 5 > 0)

    def _decide(self, txn: int, *, commit: bool) -> None:
        self.outcomes[txn] = commit
        self.late += [(txn, number) for number in sorted(self.open.pop(txn))]

    def end_arrives(self, a: int, _: int) -> None:
        if self.late:
            self._end(self.late.pop(a % len(self.late)))

    def _end(self, due: tuple[int, int]) -> None:
        txn, number = due
        self.parts[number].finish(txn, commit=self.outcomes[txn])

    def add_partition(self, *_: int) -> None:
        if len(self.parts) == 2:
            self.parts.append(Partition())

    # --- the reader ---------------------------------------------------------------------------------------------------

    def start_over(self, *_: int) -> None:
        """A new reader goes on at the position of the last cut."""
        self.planner, self.known = Planner(ROOMY), 0
        self.asked: dict[int, tuple[int, Position]] = {}
        for part in self.parts:
            part.ends = SampledEnds()
        self.look_for_partitions()

    def look_for_partitions(self, *_: int) -> None:
        number = self.planner.begin_sample()
        for index in range(self.known, len(self.parts)):
            after, since = self.places[index]
            self.planner.add_partition(since)
            self.parts[index].read = after[1]
        self.known = len(self.parts)
        self.planner.listed(number)

    def read(self, a: int, b: int) -> None:
        number = a % self.known
        part = self.parts[number]
        shown: list[Shown] = []
        for at in range(part.read + 1, part.max_read() + 1):
            if part.visible(at, self.outcomes):
                if len(shown) > b % 5:
                    break
                txn = part.log[at].txn
                shown.append(Shown((0, at), None if txn is None else TxnId(0, txn), 1, 10))
            part.read = at
        self.planner.show(number, shown)

    def ask(self, a: int, _: int) -> None:
        """The question for the end of a partition leaves; the end is that of this moment."""
        number = a % self.known
        if number not in self.asked:
            self.parts[number].ends.begin()
            self.asked[number] = (self.planner.begin_sample(), self.parts[number].end)

    def answer(self, a: int, _: int) -> None:
        if self.asked:
            number = sorted(self.asked)[a % len(self.asked)]
            sample, end = self.asked.pop(number)
            part = self.parts[number]
            counts = part.ends.answered(sample, part.waiting())
            if counts:
                self.planner.sampled(number, counts, end)

    def how_far(self, a: int, _: int) -> None:
        """How far the reader is."""
        read = self.parts[a % self.known].read
        self.planner.passed(a % self.known, (0, read) if read >= 0 else EARLIEST)

    def mark_complete(self, *_: int) -> None:
        self.planner.mark_complete()

    def go_round(self, a: int, b: int) -> None:
        """What a reader does as long as something is incomplete, in all partitions but perhaps one."""
        for number in range(self.known):
            if number != b:
                self.ask(number, 0)
                self.answer(a, 0)
        for number in range(self.known):
            if number != a:
                self.read(number, b)
                self.how_far(number, 0)
        if b % 2:
            self.look_for_partitions()
        self.mark_complete()

    def hand_out(self, _: int, b: int) -> bool:
        self.torn_apart += self._is_torn_apart()
        plan = self.planner.next(1 + b)
        if plan is None:
            return False
        given: Counter[int] = Counter()
        dropped: Counter[int] = Counter()
        for index, runs in plan.runs.items():
            for run in runs:
                found = self._of_run(index, run.last, run.messages)
                (txn,) = {self.parts[index].log[at].txn for at in found}  # a run has entries of one transaction, or of none
                if txn is not None:
                    (dropped if run.is_dropped else given)[txn] += len(found)
                if not run.is_dropped:
                    self.handed[index] += found
        for txn, count in given.items():
            assert count == self._messages_of(txn), f"transaction {txn} is torn: {count} of its messages came"
        for txn, count in dropped.items():
            assert count == self._messages_of(txn) - self._before(txn), f"a part of {txn} comes after it was dropped"
        return True

    # --- the judge ----------------------------------------------------------------------------------------------------

    def _is_torn_apart(self) -> bool:
        """Whether a reader of all partitions, side by side, would see a part of a transaction now."""
        ends = {txn for _, part in enumerate(self.parts) for txn in part.ended if self.outcomes[txn]}
        return any(txn in part.halves and txn not in part.ended for part in self.parts for txn in ends)

    def _of_run(self, index: int, last: Position, messages: int) -> list[int]:
        part = self.parts[index]
        seen = [at for at in range(self.places[index][0][1] + 1, last[1] + 1) if part.visible(at, self.outcomes)]
        assert len(seen) == messages, "a run has what is between the one before it and its end"
        self.places[index] = (last, self.places[index][1])
        return seen

    def _messages_of(self, txn: int) -> int:
        return sum(each == txn for part in self.parts for each in part.halves)

    def _before(self, txn: int) -> int:
        """Its messages that are before the place where the reader began."""
        logs = zip(self.parts, self.firsts, strict=False)
        return sum(entry.txn == txn and not entry.is_end for part, first in logs for entry in part.log[: first + 1])

    def finish(self) -> None:
        """All transactions end and all ends arrive; then everything that can be read has come, in order."""
        for txn in list(self.open):
            self._decide(txn, commit=True)
        while self.late:
            self._end(self.late.pop())
        for _ in range(2):
            for number in range(self.known):
                for _ in range(3):
                    self.read(number, 4)
                while self.parts[number].read < self.parts[number].max_read():
                    self.read(number, 4)
            self.look_for_partitions()
        for number in [*range(self.known)] * 2:
            self.answer(0, 0)
            self.ask(number, 0)
            self.answer(0, 0)
            self.how_far(number, 0)
        self.planner.mark_complete()
        while self.hand_out(0, 4):
            pass
        assert not self.planner.ahead
        assert not self.planner.incomplete
        for number, part in enumerate(self.parts):
            assert self.handed[number] == [at for at in range(len(part.log)) if self._is_wanted(number, at)]

    def _is_wanted(self, number: int, at: int) -> bool:
        """Whether a reader that begins where this one did gets an entry: not before its beginning, nor of what began there."""
        since = self.since[number]
        txn = self.parts[number].log[at].txn
        if not self.parts[number].visible(at, self.outcomes) or (since is not None and at <= since[1]):
            return False
        return txn is None or not any(
            entry.txn == txn and not entry.is_end
            for part, first in zip(self.parts, self.since, strict=False)
            if first is not None
            for entry in part.log[: first[1] + 1]
        )
