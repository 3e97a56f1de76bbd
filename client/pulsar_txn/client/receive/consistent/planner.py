"""Choice of the messages that come next so that no transaction is shown in part: without IO, for any order of arrival.

What a partition shows of a transaction proves that the transaction was committed, and so that all of its messages were stored
before, in every partition. A sample of a partition's physical end that was begun later is therefore after all of them.
Where the end of the transaction has not arrived yet, readers are held back before its first message. So once a reader has
passed the sampled end, it has been given everything of the transaction there.

That holds for the partition that has shown it, too: between two of its messages there may be one of another transaction that
is open, and then readers see the first and not the second.

So a transaction is complete when each partition has passed a sample that is late enough, and when the list of partitions
itself was asked for late enough. A cut takes whole transactions and, in each partition, everything before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pulsar_txn.client.errors import CutTooLarge
from pulsar_txn.client.receive.consistent.lookahead import PartitionLookahead, Run, SeenTransaction
from pulsar_txn.wire.ids import EARLIEST, Position, TxnId


class Shown(NamedTuple):
    """An entry that a partition shows: how many messages end in it, and its bytes."""

    position: Position
    txn_id: TxnId | None
    messages: int
    size: int


class Limits(NamedTuple):
    """Limits of what a reader keeps: runs known ahead in all partitions, messages and bytes of one cut."""

    ahead: int
    messages: int
    size: int


class Plan(NamedTuple):
    """Messages that come next: of each partition (by its number) the runs in order, and how many messages they have."""

    runs: dict[int, list[Run]]
    messages: int


class Planner:
    """Knows what each partition has shown, and says what may be handed out.

    Numbers of samples grow: `begin_sample` gives one before the questions of a sample leave, and what was seen before
    needs such a number or a later one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lookaheads: list[PartitionLookahead] = []
        self.newest = 0
        """The sample of ends that the newest transaction needs."""
        self._number = 0
        self._listed = 0
        self._incomplete: deque[SeenTransaction] = deque()
        self._spreads: dict[TxnId, SeenTransaction] = {}
        self._turn = 0
        self._is_ready = False

    # --- what is told -------------------------------------------------------------------------------------------------

    def add_partition(self, since: Position | None = None) -> int:
        """One more partition; its number. Before `listed` is told of the list that it was found in."""
        self.lookaheads.append(PartitionLookahead(since))
        return len(self.lookaheads) - 1

    def begin_sample(self) -> int:
        """The number of a sample whose questions leave after this call."""
        self._number += 1
        return self._number

    def listed(self, number: int) -> None:
        """The partitions were asked for in this sample, and all of them are here. A number for ever: there never are others."""
        self._listed = max(self._listed, number)

    def show(self, index: int, entries: Iterable[Shown]) -> None:
        """A partition shows its next entries."""
        lookahead = self.lookaheads[index]
        for entry in entries:
            owner = None if entry.txn_id is None else self._seen_transaction(entry.txn_id)
            lookahead.add(owner, entry.position, entry.messages, entry.size)
            if owner is not None:
                dropped = lookahead.since is not None and entry.position <= lookahead.since
                owner.shown(index, lookahead.end - 1, dropped=dropped)

    def _seen_transaction(self, txn_id: TxnId) -> SeenTransaction:
        found = self._spreads.get(txn_id)
        if found is None:
            self.newest = self._number + 1
            found = self._spreads[txn_id] = SeenTransaction(txn_id, self.newest)
            self._incomplete.append(found)
        return found

    def sampled(self, index: int, number: int, end: Position) -> None:
        """The physical end of a partition in a sample: after all that is stored, whoever may read it. Entry -1: it is empty."""
        self.lookaheads[index].ends.add(number, end if end[1] >= 0 else EARLIEST)

    def passed(self, index: int, mark: Position) -> None:
        """Everything up to `mark` was shown."""
        self.lookaheads[index].ends.reach(mark)

    # --- what is complete ---------------------------------------------------------------------------------------------

    @property
    def incomplete(self) -> int:
        """Transactions that are not known to be complete."""
        return len(self._incomplete)

    @property
    def needs_list(self) -> bool:
        """True if a transaction waits for the list of partitions."""
        return bool(self._incomplete) and self.newest > self._listed

    def mark_complete(self) -> None:
        """Mark the transactions that are complete by the samples so far; `next` needs that."""
        reached = min([self._listed, *(lookahead.ends.reached for lookahead in self.lookaheads)])
        waiting = self._incomplete
        while waiting and waiting[0].first <= reached:
            waiting.popleft().is_complete()

    # --- what is handed out -------------------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """Runs that are known and not handed out."""
        return sum(len(lookahead) for lookahead in self.lookaheads)

    @property
    def is_ready(self) -> bool:
        """True if something can be handed out now; then it stays so until `next` is called."""
        try:
            self._is_ready = self._is_ready or any(self._closure(index) is not None for index in range(len(self.lookaheads)))
        except CutTooLarge:
            self._is_ready = True  # `next` says so to the program
        return self._is_ready

    def check_ahead(self) -> None:
        """CutTooLarge when more is known than the limit allows, and nothing of it can be handed out."""
        if self.ahead >= self.limits.ahead and not self.is_ready:
            raise CutTooLarge(
                f"{self.ahead} runs of messages wait for transactions that are not complete in all partitions; "
                f"max_ahead={self.limits.ahead}"
            )

    def next(self, messages: int) -> Plan | None:
        """Plan what comes next, about so many messages if there are; None when nothing can be handed out now.

        CutTooLarge when transactions hang together that are more than one cut may have.
        """
        runs: dict[int, list[Run]] = {}
        count = 0
        self._is_ready = False
        too_large: CutTooLarge | None = None
        for index in self._in_turn():
            try:
                while count < messages and (closure := self._closure(index)) is not None:
                    count += self._take(closure, runs)
            except CutTooLarge as error:
                too_large = error  # what can be handed out comes first
        if too_large is not None and not runs:
            raise too_large
        return Plan(runs, count) if runs else None

    def _take(self, closure: dict[int, int], runs: dict[int, list[Run]]) -> int:
        """Hand out a closure; how many messages it adds."""
        count = 0
        for index, upto in closure.items():
            for run in self.lookaheads[index].take(upto):
                runs.setdefault(index, []).append(run)
                count += 0 if run.is_dropped else run.messages
                if run.owner is not None:
                    self._spreads.pop(run.owner.txn_id, None)
        return count

    def _in_turn(self) -> Iterator[int]:
        count = len(self.lookaheads)
        self._turn += 1
        return ((self._turn + step) % count for step in range(count))

    def _closure(self, start: int) -> dict[int, int] | None:
        """The first run of a partition, and all that must come with it: up to which run of each partition.

        None when a transaction among it is not complete.
        """
        lookahead = self.lookaheads[start]
        if not len(lookahead) or lookahead.is_blocked:
            return None
        wanted = {start: lookahead.begin + 1}
        reached: dict[int, int] = {}
        together: set[SeenTransaction] = set()
        messages = size = 0
        work = [start]
        while work:
            index = work.pop()
            lookahead = self.lookaheads[index]
            number = reached.get(index, lookahead.begin)
            while number < wanted[index]:
                run = lookahead.run(number)
                number += 1
                messages += run.messages
                size += run.size
                if run.owner is None or run.owner in together:
                    continue
                if not run.owner.complete:
                    self.lookaheads[start].waits_for(run.owner)
                    return None
                together.add(run.owner)
                for other, last in run.owner.last.items():
                    if last >= wanted.get(other, self.lookaheads[other].begin):
                        wanted[other] = last + 1
                        work.append(other)
                self._check_size(messages, size)
            reached[index] = number
        self._check_size(messages, size)
        return reached

    def _check_size(self, messages: int, size: int) -> None:
        limits = self.limits
        if messages > limits.messages or size > limits.size:
            raise CutTooLarge(
                f"transactions that have to be shown together have more than {min(messages, limits.messages)} messages or "
                f"{min(size, limits.size)} bytes; max_cut_messages={limits.messages}, max_cut_bytes={limits.size}"
            )
