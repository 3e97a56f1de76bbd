"""Which messages are acknowledged: collected for a moment, merged per entry, and known while a transaction is open.

Ack sets are ints: bit i is set while index i of a batch is *not* acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import Position, full_ack_set

Place: TypeAlias = tuple[Position, int, int]
"""`(position, batch_index, batch_size)`; index -1 is an entry that is one message."""

PARTIAL_LIMIT: Final = 100_000
"""Entries of which part is acknowledged that are remembered; beyond it the oldest are forgotten (the broker knows them)."""


class AckTracker:
    """Acknowledgements outside transactions that wait to be sent together.

    They are only collected while they come, and merged by entry when they are taken: neighbours in a batch cost hardly more
    than one of them then.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        """What waits and is not merged yet."""
        self._individual: dict[Position, tuple[int | None, int]] = {}
        self._left: dict[Position, int] = {}
        self._cumulative: Place | None = None

    def __len__(self) -> int:
        return len(self.places) + len(self._individual) + (self._cumulative is not None)

    def add(self, place: Place) -> None:
        """One message was acknowledged. The last index of an entry makes it an acknowledgement of the whole entry."""
        self.places.append(place)

    def add_all(self, places: Iterable[Place]) -> None:
        """Many were."""
        self.places.extend(places)

    def _merge(self) -> None:
        places, self.places = self.places, []
        at: Position | None = None
        first = following = size = 0
        for position, index, size_here in places:
            if index == following and (position is at or position == at):
                following += 1
                continue
            if at is not None:
                self._merge_bits(at, None if first < 0 else (1 << following) - (1 << first), size)
            at, first, following, size = position, index, index + 1 if index >= 0 else -2, size_here
        if at is not None:
            self._merge_bits(at, None if first < 0 else (1 << following) - (1 << first), size)

    def _merge_bits(self, position: Position, bits: int | None, size: int) -> None:
        """Indexes of an entry, None: all of it."""
        waiting = self._individual.get(position)
        if bits is None or (waiting is not None and waiting[0] is None):
            self._individual[position] = (None, size)
            return
        known = self._left.get(position)
        left = (full_ack_set(size) if known is None else known) & ~bits
        if left:
            if known is None and len(self._left) >= PARTIAL_LIMIT:
                del self._left[next(iter(self._left))]
            self._left[position] = left
            self._individual[position] = (left, size)
        else:
            self._left.pop(position, None)
            self._individual[position] = (None, size)

    def add_cumulative(self, place: Place) -> None:
        """Everything up to and with this message was acknowledged."""
        if self._cumulative is None or place[:2] > self._cumulative[:2]:
            self._cumulative = place

    def take(self) -> tuple[list[AckId], list[AckId]]:
        """What waits, as `(individual, cumulative)` ids for `wire.hot.encode_ack`; nothing waits afterwards."""
        self._merge()
        cumulative = [] if self._cumulative is None else [cumulative_id(self._cumulative)]
        individual = [(*position, left, size) for position, (left, size) in self._individual.items()]
        self._individual, self._cumulative = {}, None
        return individual, cumulative

    def clear(self) -> None:
        """Forget everything: the subscription was moved."""
        self.places = []
        self._individual, self._cumulative = {}, None
        self._left.clear()

    def forget_partial(self) -> None:
        """Forget which entries are partly acknowledged: the broker says it anew with the next delivery."""
        self._merge()
        self._left.clear()


def cumulative_id(place: Place) -> AckId:
    """The id of a cumulative acknowledgement: up to and with an index of a batch, or the whole entry."""
    (ledger_id, entry_id), index, size = place
    if index < 0 or index >= size - 1:
        return (ledger_id, entry_id, None, size)
    return (ledger_id, entry_id, full_ack_set(size) & ~full_ack_set(index + 1), size)


def merged_ids(places: Iterable[Place]) -> list[AckId]:
    """Individual acknowledgements of one request in a transaction: the indexes of one entry merged, and all of them named.

    A batch is never acknowledged as a whole, also when all its indexes are here: "the whole entry" does not say which
    messages are meant, so stock brokers take it when another transaction has committed some of them, and both commit.
    """
    left: dict[Position, tuple[int | None, int]] = {}
    for position, index, size in places:
        if index < 0:
            left[position] = (None, 0)
        else:
            before = left.get(position, (full_ack_set(size), size))[0]
            left[position] = ((before or 0) & ~(1 << index), size)
    return [(*position, mask, size) for position, (mask, size) in left.items()]


class Claim:
    """Messages acknowledged by one request of a transaction that is still open.

    `up_to` is set for a cumulative one: everything up to and with it. `answer` is the request's future once it has left;
    `dropped` are entries of which copies came in before its answer and were dropped. `ids` is how the request said it.
    `conflicts`: it was refused, and its messages were tried one by one.
    `abandoned`: nobody here will learn how its transaction ends. `unit`: all claims of its consumer in its transaction.
    """

    __slots__ = ("abandoned", "answer", "conflicts", "dropped", "ids", "places", "unit", "up_to")

    def __init__(self, places: Iterable[Place], up_to: Place | None = None) -> None:
        self.places = [place[:2] for place in places]
        self.ids: Sequence[AckId] = ()
        self.up_to = None if up_to is None else up_to[:2]
        self.answer: asyncio.Future[Any] | None = None
        self.dropped: list[Position] = []
        self.unit: list[Claim] | None = None
        self.abandoned = self.conflicts = False

    @property
    def is_answered(self) -> bool:
        """Whether the broker has said what it makes of it."""
        return self.answer is not None and self.answer.done()

    @property
    def is_taken(self) -> bool:
        """Whether the broker has said yes."""
        answer = self.answer
        if answer is None or not answer.done() or answer.cancelled() or self.conflicts:
            return False
        return answer.exception() is None


class PartlyAcknowledged:
    """Which messages of a batch are acknowledged by committed transactions, while others of the batch are not.

    Around a reconnect a message may come twice, and the second copy may reach the program after the first was settled. Its
    acknowledgement would conflict, and doom its transaction: here it is known, and refused before it leaves.

    What the broker delivers later is not acknowledged, whatever is known here: the subscription was moved.
    """

    def __init__(self) -> None:
        self._done: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._done)

    def add(self, ids: Iterable[AckId]) -> None:
        """These were acknowledged."""
        for ledger_id, entry_id, left, size in ids:
            done = self._done.pop((ledger_id, entry_id), 0)
            if left is not None:
                done |= full_ack_set(size) & ~left
                if done != full_ack_set(size):
                    self._done[ledger_id, entry_id] = done
        while len(self._done) > PARTIAL_LIMIT:
            del self._done[next(iter(self._done))]

    def holds(self, position: Position, index: int) -> bool:
        """Whether this message was acknowledged."""
        return index >= 0 and bool(self._done.get(position, 0) >> index & 1)

    def delivered(self, position: Position, live: int) -> None:
        """The broker delivers these indexes of a batch."""
        done = self._done.pop(position, 0) & ~live
        if done:
            self._done[position] = done


class OpenTransactionAcks:
    """Which messages are acknowledged in transactions that are still open.

    Nobody may acknowledge them a second time: stock brokers let that happen once a whole batch is pending, so it is
    refused here. And when such a message comes in again:

    * before the acknowledgement was answered, it left the broker before the acknowledgement got there: the copy is dropped;
    * after it was answered, the broker does not hold it as pending any more, because the transaction has aborted: it is
      a message like any other, and the claim on it is gone.

    What a cumulative acknowledgement covers comes again after a reconnect, and whenever another transaction aborts, and stock
    brokers would then take it into a second transaction beside the open one. So a copy says nothing of its claim, as long as
    somebody here can learn how the transaction ends; with nobody left (`abandon`) it is the only sign that there is.
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[Position, int], Claim] = {}
        self._cumulative: list[Claim] = []
        self._abandoned: deque[Sequence[Claim]] = deque()

    def __len__(self) -> int:
        return len(self._claims) + len(self._cumulative)

    def holds(self, place: Place) -> bool:
        """Whether this message is acknowledged in an open transaction."""
        if self._abandoned:
            self._let_go()
        if place[:2] in self._claims:
            return True
        return bool(self._cumulative) and any(
            claim.up_to is not None and place[:2] <= claim.up_to for claim in self._cumulative
        )

    def holds_in(self, place: tuple[Position, int], unit: list[Claim]) -> bool:
        """Whether this message is acknowledged by one of these claims, which are all of one transaction."""
        claim = self._claims.get(place)
        if claim is not None and claim.unit is unit:
            return True
        return any(claim.unit is unit and claim.up_to is not None and place <= claim.up_to for claim in self._cumulative)

    def add(self, claim: Claim) -> None:
        """These are now."""
        for place in claim.places:
            self._claims[place] = claim
        if claim.up_to is not None:
            self._cumulative.append(claim)

    def remove(self, claim: Claim) -> None:
        """Their transaction has ended, or the acknowledgement failed."""
        for place in claim.places:
            if self._claims.get(place) is claim:
                del self._claims[place]
        if claim in self._cumulative:
            self._cumulative.remove(claim)

    def abandon(self, claims: Sequence[Claim]) -> None:
        """The program has dropped their transaction, which it did not end. Safe in any thread, as the collector needs it."""
        if claims:
            self._abandoned.append(claims)

    def supersede(self, claims: Sequence[Claim]) -> None:
        """The broker has taken a cumulative one of these: it takes those of one open transaction at a time."""
        self._cumulative = [claim for claim in self._cumulative if claim in claims or not claim.is_answered]

    def admits(self, position: Position, index: int) -> bool:
        """A message came in: whether it is to be handed out."""
        if self._abandoned:
            self._let_go()
        if self._cumulative:
            self._cumulative = [claim for claim in self._cumulative if not _is_over(claim, (position, index))]
        claim = self._claims.get((position, index))
        if claim is None:
            return True
        if claim.is_answered:
            del self._claims[position, index]
            return True
        claim.dropped.append(position)
        return False

    def _let_go(self) -> None:
        while self._abandoned:
            for claim in self._abandoned.popleft():
                claim.abandoned = True
                if claim.up_to is None:
                    self.remove(claim)


def _is_over(claim: Claim, copy: tuple[Position, int]) -> bool:
    """Whether a copy of this message is all that will ever be heard of a cumulative claim's transaction."""
    return claim.abandoned and claim.up_to is not None and copy <= claim.up_to
