"""Acknowledgements of one partition: collected for a moment, and those of units.

Outside of units they are only collected while they come, and merged by entry when they leave (`AckGroup`). Ack sets are ints:
bit i is set while index i of a batch is *not* acknowledged.

`Share` is what one unit (a transaction) has of the partition: the messages that joined it when they were received, and its
acknowledgements. The table of owners says which message is whose (see `owners`).

| the unit | what joined it | what it acknowledged |
|---|---|---|
| commits | is acknowledged first, in the transaction | is settled |
| cannot commit any more | is asked for again at once | waits for the end of the transaction |
| has aborted | is asked for again | comes again by itself; on Exclusive and Failover it is asked for |
| has an unknown outcome | (everything is acknowledged by then) | a copy that comes is welcome |

Sources: CommandAck, its ack sets (PIP-54) and its transaction (PIP-31).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pulsar_txn.client.errors import TransactionConflict
from pulsar_txn.client.state.owners import (
    Delivery,
    Hold,
    MessagePosition,
    Owners,
    State,
    bit_of,
    full,
    merged,
    positions_of,
)
from pulsar_txn.client.state.redelivery import Copies, Redelivery
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import MessageId, Position, TxnAction, full_ack_set

ENTRIES_PER_REQUEST: Final = 50_000
"""Entries that one request acknowledges at the commit: a million of them would not fit into a frame."""

ENTRIES_WITH_COPIES: Final = 1000
"""Entries of which a unit keeps the messages that joined it; the broker is asked for those of others."""

COORDINATOR_SLACK: Final = 2.0
"""Seconds after a transaction's deadline after which its coordinator has surely aborted it."""

_WHY: Final = {
    State.HELD: "belongs to another transaction that is still open, or to a pipeline",
    State.ASKED: "is acknowledged already in a transaction that is still open",
    State.TAKEN: "is acknowledged already in a transaction that is still open",
    State.SETTLED: "was acknowledged before",
}


class Request(Hold):
    """Messages that one request acknowledges in a transaction."""

    __slots__ = ("ids", "is_released", "joined", "released")

    def __init__(self, share: Share, *, up_to: tuple[Position, int] | None = None) -> None:
        super().__init__(State.ASKED, share, up_to=up_to)
        self.ids: Sequence[AckId] = ()
        """Positions as the request names them."""
        self.joined: dict[Position, int] = {}
        """Messages of the request that had joined the unit when they were received."""
        self.is_released = False
        """True if copies are welcome, because the transaction's end was unknown."""
        self.released: dict[Position, tuple[int, int, Delivery]] = {}
        """Messages of the request, kept when the transaction ended before its answer came."""

    def named(self, ids: Sequence[AckId]) -> Sequence[AckId]:
        """Keep the ids by which it leaves, and return them."""
        self.ids = ids
        return ids


class Share:
    """Share of one unit in one partition."""

    def __init__(self) -> None:
        self.held = Hold(State.HELD, self)
        self.keeper: Hold | None = None
        """Owner of the held messages when the unit aborts, if they do not come again from the broker."""
        self.requests: list[Request] = []
        self.copies: dict[Position, dict[int, Any]] = {}
        """Messages that joined, by entry and index, of entries of which this consumer has others; see `Redelivery.these`."""
        self.first: tuple[Position, int] | None = None
        """The first of the messages that joined."""
        self.is_over = False
        """True if the unit cannot commit any more."""
        self.has_aborted = False

    def keep_copies(self, position: Position, delivery: Delivery, run: Mapping[int, Any]) -> None:
        """Keep messages that have joined. Nothing is kept of an entry that has joined as a whole."""
        if self.held.entries.get(position) == delivery[1]:
            self.copies.pop(position, None)
            return
        self.copies.setdefault(position, {}).update(run)
        if len(self.copies) > ENTRIES_WITH_COPIES:
            del self.copies[next(iter(self.copies))]

    def take_copies(self) -> Copies:
        """The messages that were kept, which are not any more."""
        copies, self.copies = self.copies, {}
        return copies

    def drop_copies(self, position: Position) -> None:
        """Keep none of this entry: the broker knows better who has it."""
        self.copies.pop(position, None)


class Units:
    """The units that have messages of one partition. `others` are the shares of the same unit in other consumers of the client.

    A message may be delivered to two consumers of one client: the first gave it back, or lost its place, while the program
    went on working on its copy. The acknowledgement of the second copy would work on the message twice in one transaction.
    Brokers refuse it, but not every stock broker does so in every case; here the two consumers are known, and nothing is sent.
    """

    def __init__(self, owners: Owners, redelivery: Redelivery, partition: int, topic: str, *, keeps_order: bool) -> None:
        self._owners = owners
        self._redelivery = redelivery
        self._partition = partition
        self._topic = topic
        self._keeps_order = keeps_order

    # --- what joins ---------------------------------------------------------------------------------------------------

    def join(
        self, share: Share, position: Position, size: int, delivery: Delivery, run: Mapping[int, Any], keeper: Hold | None
    ) -> int:
        """Messages of one entry, by index, that were just received join; the bits of those that do.

        Those that somebody has already do not, they are second copies. What its `keeper` holds may join.
        """
        bits = 0
        for index in run:
            bits |= bit_of(index)
        share.keeper = keeper or share.keeper
        kept = 0 if share.keeper is None else share.keeper.entries.get(position, 0) & bits
        bits = self._owners.has_free(position, bits) | kept
        if bits:
            at = (position, (bits & -bits).bit_length() - 1 if size else -1)
            share.first = at if share.first is None else min(at, share.first)
            self._owners.give(share.held, position, bits, size, delivery)
            if size > 1 and not self._keeps_order:
                share.keep_copies(position, delivery, run)
        return bits

    def bring_back(self, share: Share, seconds_left: float | None, now: float, *, keep: bool) -> None:
        """The unit cannot commit any more: what was not acknowledged in it comes again, or goes to its keeper.

        `seconds_left` is how long its coordinator may wait before it aborts by itself.
        """
        share.is_over = True
        copies = share.take_copies()
        if keep and share.keeper is not None:
            self._owners.give_all(share.held, share.keeper)
        elif share.requests and self._keeps_order and not share.has_aborted:
            # What it acknowledged is pending until its end, and what follows must not overtake it.
            self._owners.release(share.held)
            if share.first is not None:
                self._redelivery.drop_queued()
                self._redelivery.keep_back_until(share.first, wait=max(seconds_left or 0.0, 0.0) + COORDINATOR_SLACK)
        else:
            self._return_held(share, copies, now)

    def _return_held(self, share: Share, copies: Copies, now: float) -> None:
        again = self._owners.known(share.held)
        if again:
            self._redelivery.is_settled(positions_of(again.items()))
            for position, (bits, _, _) in again.items():
                self._owners.leave(position, bits)
            self._redelivery.these(again, now, copies)
            self._keep_order(share)

    def _keep_order(self, share: Share) -> None:
        if self._keeps_order and share.first is not None:
            self._redelivery.keep_back_until(share.first)

    # --- acknowledging ------------------------------------------------------------------------------------------------

    def not_done(self, share: Share, positions: Sequence[MessagePosition]) -> Sequence[MessagePosition]:
        """Those that have not joined the unit, or are not acknowledged in it yet."""
        if not share.requests:
            return positions
        return [
            (position, index, size)
            for position, index, size in positions
            if not any(each.joined.get(position, 0) & bit_of(index) for each in share.requests)
        ]

    def rest(self, share: Share) -> list[list[MessagePosition]]:
        """Places of what joined and is not acknowledged yet, in portions for a request."""
        known = list(self._owners.known(share.held).items())
        size = ENTRIES_PER_REQUEST
        return [positions_of(known[first : first + size]) for first in range(0, len(known), size)]

    def claim(self, share: Share, positions: Sequence[MessagePosition], others: Sequence[tuple[Owners, Share]]) -> Request:
        """A unit acknowledges these. Raises TransactionConflict; then nothing has changed."""
        named = merged(positions)
        if sum(bits.bit_count() for bits, _ in named.values()) != len(positions):
            # Second copies, after a redelivery: a request would name the message once, and the work on it be done twice.
            raise TransactionConflict(f"an acknowledgement on {self._topic} has the same message twice")
        for position, (bits, size) in named.items():
            named[position] = self._owners.widened(position, bits, size)
            self._check(share, position, *named[position], others)
        request = Request(share)
        for position, (bits, size) in named.items():
            joined = share.held.entries.get(position, 0) & bits
            if joined:
                request.joined[position] = joined
            self._owners.give(request, position, bits, size)
        share.requests.append(request)
        return request

    def claim_rest(self, share: Share, others: Sequence[tuple[Owners, Share]]) -> Request:
        """Acknowledge all that joined, which nobody else can have; but another consumer may have acknowledged copies."""
        if others:
            for position, (bits, size, _) in self._owners.known(share.held).items():
                self._check(share, position, bits, size, others)
        request = Request(share)
        request.joined = dict(share.held.entries)
        self._owners.give_all(share.held, request)
        share.requests.append(request)
        return request

    def claim_up_to(self, share: Share, at: MessagePosition) -> Request:
        """A unit acknowledges everything up to a place. Raises TransactionConflict; then nothing has changed."""
        if self._owners.held_up_to(at[:2], but=share):
            raise TransactionConflict(f"another transaction that is still open has messages before {self._said(*at[:2])}")
        request = Request(share, up_to=at[:2])
        request.joined = self._owners.give_held_up_to(at[:2], share.held, request)
        self._owners.add_range(request)
        share.requests.append(request)
        return request

    def _check(self, share: Share, position: Position, bits: int, size: int, others: Sequence[tuple[Owners, Share]]) -> None:
        for owners, other in others:
            found = owners.named_by(other, position, bits, size)
            if found is not None:
                said = self._said(position, found)
                raise TransactionConflict(f"message {said} is acknowledged by another consumer in this transaction")
        way = self._owners.in_the_way(position, bits, size, share)
        if way is not None:
            index, hold = way
            raise TransactionConflict(f"message {self._said(position, index)} {_WHY[hold.state]}")

    def _said(self, position: Position, index: int) -> MessageId:
        return MessageId(*position, self._partition, index)

    def answered(self, request: Request, share: Share) -> None:
        """The broker has taken an acknowledgement. A cumulative one is taken of one open unit at a time."""
        self._owners.answer(request)
        if request.up_to is not None:
            self._owners.supersede(share)

    def refused(self, request: Request, share: Share, now: float) -> None:
        """Nothing was acknowledged: what had joined is held again, and copies that were dropped are asked for again."""
        if request in share.requests:
            share.requests.remove(request)  # its error knows the transaction, which is to be collected when it is dropped
        known = self._owners.known(request)
        joined, again = request.joined, {}
        for position, (bits, size, delivery) in known.items():
            share.drop_copies(position)
            held = joined.get(position, 0) & bits
            if held and not share.is_over:
                self._owners.give(share.held, position, held, size)
            elif held or position in request.copies:
                again[position] = (bits, size, delivery)
        self._owners.release(request)
        for position, (bits, size, delivery) in request.released.items():
            missing = self._owners.wanted.entries.get(position, 0) & bits
            if missing:  # the transaction ended before, so no abort brings these back, and no copy has come
                again[position] = (missing, size, delivery)
        if again:
            self._redelivery.these(again, now)

    def ended(self, share: Share, outcome: TxnAction | None, now: float) -> None:
        """Forget an owner: what it had acknowledged is nobody's any more. `outcome` None: nobody knows it yet.

        After an abort a single consumer starts over: the server rewinds the subscription as well, but without a word, and
        what is queued here would be handed out before what has to come first. A server does nothing when it was a
        cumulative acknowledgement, so that it has to be asked anyway.
        """
        if outcome is TxnAction.COMMIT:
            for request in share.requests:
                self._commit(request)
        else:
            dropped: dict[Position, tuple[int, int, Delivery]] = {}
            for request in share.requests:
                dropped |= self._give_up(request, outcome)
            if dropped:
                self._redelivery.these(dropped, now)
        copies = share.take_copies()
        if outcome is not None:
            share.requests.clear()
        if outcome is not TxnAction.ABORT:
            return
        share.is_over = share.has_aborted = True
        if self._keeps_order:
            self._owners.release(share.held)
            self._redelivery.everything(now)
            self._keep_order(share)
        else:
            self._return_held(share, copies, now)

    def _commit(self, request: Request) -> None:
        if request.is_released or request.up_to is not None:
            for ledger_id, entry_id, left, size in request.ids:
                bits = full(size) if left is None else full_ack_set(size) & ~left
                self._owners.settle((ledger_id, entry_id), bits, size)
        self._owners.settle_all(request)

    def _give_up(self, request: Request, outcome: TxnAction | None) -> dict[Position, tuple[int, int, Delivery]]:
        """Let a request go whose transaction has not committed; copies of it that were dropped and come by nothing else."""
        request.is_released = True
        known = self._owners.known(request)
        comes_in_order = self._keeps_order and outcome is TxnAction.ABORT
        if request.state is State.ASKED and not comes_in_order:
            request.released = known
        if comes_in_order:
            self._redelivery.rewinds.given_back(request.entries)
        self._owners.release(request)
        # The abort may have overtaken the answer: nobody else knows that a copy of these was dropped here.
        return {} if self._keeps_order else {each: known[each] for each in request.copies if each in known}
