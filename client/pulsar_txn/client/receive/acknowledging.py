"""Acknowledgements of the messages of one partition: grouped, with a receipt, or in a transaction.

`Share` is what one transaction has of the partition: the messages that joined it when they were received, and its
acknowledgements. The table of owners says which message is whose (see `owners`).

| the transaction | what joined it | what it acknowledged |
|---|---|---|
| commits | is acknowledged first, in the transaction | is settled |
| cannot commit any more | is asked for again at once | waits for the end of the transaction |
| has aborted | is asked for again | comes again by itself; on Exclusive and Failover it is asked for |
| has an unknown outcome | (everything is acknowledged by then) | a copy that comes is welcome |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, TransactionConflict, TransactionTimedOut
from pulsar_txn.client.receive.acks import AckTracker, cumulative_id, named_ids
from pulsar_txn.client.receive.chunks import ChunkedMessages
from pulsar_txn.client.receive.line import Line
from pulsar_txn.client.receive.message import Message, bits_of
from pulsar_txn.client.receive.owners import Delivery, Hold, Owners, Place, State, bit_of, full, merged, places_of
from pulsar_txn.client.receive.recall import Recall
from pulsar_txn.client.receive.redelivery import AckTimeouts
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.wire import hot
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import MessageId, Position, TxnAction, TxnId, full_ack_set

ACKS_PER_FRAME: Final = 1000

ENTRIES_PER_REQUEST: Final = 50_000
"""Entries that one request acknowledges at the commit: a million of them would not fit into a frame."""

ENTRIES_WITH_COPIES: Final = 1000
"""Entries of which a transaction keeps the messages that joined it; the broker is asked for those of others."""

COORDINATOR_SLACK: Final = 2.0
"""Seconds after a transaction's deadline after which its coordinator has surely aborted it."""


class Request(Hold):
    """Messages that one request acknowledges in a transaction."""

    __slots__ = ("conflicts", "ids", "is_finished", "is_released", "joined", "released")

    answer: asyncio.Future[Any] | None

    def __init__(self, share: Share) -> None:
        super().__init__(State.ASKED, share)
        self.ids: Sequence[AckId] = ()
        """How the request names them."""
        self.joined: dict[Position, int] = {}
        """Those of them that had joined the transaction when they were received."""
        self.conflicts = False
        """Whether it was refused, and its messages were tried one by one."""
        self.is_finished = False
        """Whether the transaction was told how it ended."""
        self.is_released = False
        """Whether copies are welcome, because nobody knew how the transaction ends."""
        self.released: dict[Position, tuple[int, int, Delivery]] = {}
        """What it had when the transaction ended before its answer was there."""

    @property
    def is_taken(self) -> bool:
        """True if the broker has said yes."""
        answer = self.answer
        if answer is None or not answer.done() or answer.cancelled() or self.conflicts:
            return False
        return answer.exception() is None


class Share:
    """Share of one transaction in one partition."""

    def __init__(self) -> None:
        self.held = Hold(State.HELD, self)
        self.keeper: Hold | None = None
        """Whose the held messages are when the transaction aborts, if they do not come again from the broker."""
        self.requests: list[Request] = []
        self.copies: dict[Position, list[Message[Any]]] = {}
        """Messages that joined, of entries of which this consumer has others; see `Recall.these`."""
        self.first: tuple[Position, int] | None = None
        """The first of the messages that joined."""
        self.is_over = False
        """Whether the transaction cannot commit any more."""
        self.has_aborted = False
        self.is_known = False
        """Whether anything was acknowledged in the transaction, so that its end is told here."""

    def keep_copies(self, run: Sequence[Message[Any]]) -> None:
        """These neighbours of one entry have joined. Nothing is kept of an entry that has joined as a whole."""
        entry = run[0].entry
        if self.held.entries.get(entry.position) == entry.delivery[1]:
            self.copies.pop(entry.position, None)
            return
        self.copies.setdefault(entry.position, []).extend(run)
        if len(self.copies) > ENTRIES_WITH_COPIES:
            del self.copies[next(iter(self.copies))]

    def has_done(self, place: Place) -> bool:
        """True if this message joined the transaction, and is acknowledged in it already."""
        bit = bit_of(place[1])
        return any(request.joined.get(place[0], 0) & bit for request in self.requests)


_SHARES: Final[WeakKeyDictionary[Enlisting, list[tuple[str, str, Owners, Share]]]] = WeakKeyDictionary()
"""What each open transaction has of every partition: topic, subscription, the table of a consumer.

A message may be delivered to two consumers of one client: the first gave it back, or lost its place, while the program
went on working on its copy. The acknowledgement of the second copy would work on the message twice in one transaction. Brokers
refuse it, but not every stock broker does so in every case; here the two consumers are known, and nothing is sent.
"""


class Acknowledgements:
    """Acknowledges for one partition's consumer."""

    def __init__(
        self, line: Line, owners: Owners, chunks: ChunkedMessages, recall: Recall, timeouts: AckTimeouts | None
    ) -> None:
        self.tracker = AckTracker()
        self._line = line
        self._owners = owners
        self._chunks = chunks
        self._recall = recall
        self._timeouts = timeouts
        self._shares: WeakKeyDictionary[Enlisting, Share] = WeakKeyDictionary()
        self._timer: asyncio.Handle | None = None

    # --- outside of transactions --------------------------------------------------------------------------------------

    def soon(self, place: Place) -> None:
        """Acknowledge a message with the next group."""
        self._settle([place])
        if self._chunks.remembers_any:
            for earlier in self._chunks.places([place])[:-1]:
                self.tracker.add(earlier)
        self.tracker.add(place)
        self._group()

    def all_soon(self, places: Sequence[Place]) -> None:
        """Acknowledge these with the next group."""
        self._settle(places)
        self.tracker.add_all(self._chunks.places(places) if self._chunks.remembers_any else places)
        self._group()

    def cumulative_soon(self, place: Place) -> None:
        """Acknowledge everything up to this with the next group.

        If an incomplete message before it would be lost by that, only the message itself is acknowledged.
        """
        if self._chunks.holds_before(place[0]):
            self.soon(place)
            return
        self._settle([place], cumulative=True)
        self.tracker.add_cumulative(place)
        self._group()

    def _settle(self, places: Sequence[Place], *, cumulative: bool = False) -> None:
        """The program acknowledges these: they are not late, and need not come again."""
        self._in_time(places, cumulative=cumulative)
        self._note_settled(places, cumulative=cumulative)
        self._recall.settled(places, cumulative=cumulative)

    def _note_settled(self, places: Sequence[Place], *, cumulative: bool) -> None:
        if self._owners:
            self._owners.settle_outside(places)
            if cumulative:
                self._owners.settle_up_to(places[-1][:2])

    def _in_time(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """These are acknowledged, as far as it is known: nobody waits for that any more."""
        if self._timeouts is not None:
            self._timeouts.settled(self._line.id, places, cumulative=cumulative)

    def _group(self) -> None:
        delay = self._line.options.ack_group_delay
        if len(self.tracker.places) >= ACKS_PER_FRAME or not delay:
            self.flush()
        elif self._timer is None:
            self._timer = self._line.core.runtime.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send the group now; it is kept while there is no connection."""
        connection = self._line.connection
        if connection is None or not len(self.tracker):
            return
        individual, cumulative = self.tracker.take()
        self._recall.owed.acknowledged(individual)
        self._recall.owed.acknowledged_up_to(cumulative)
        if cumulative:
            connection.write([hot.encode_ack(self._line.id, True, cumulative)])
        for first in range(0, len(individual), ACKS_PER_FRAME):
            connection.write([hot.encode_ack(self._line.id, False, individual[first : first + ACKS_PER_FRAME])])

    def close(self) -> None:
        """Send nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()

    async def with_receipt(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """Acknowledge now and wait for ACK_RESPONSE. What is refused comes again when its time is over.

        Sent again when the consumer was closed, or its connection lost, before the answer came.
        """
        connection = await self._line.connected("acknowledge")
        self._note_settled(places, cumulative=cumulative)
        self._recall.settled(places, cumulative=cumulative)
        settled, up_to = places, cumulative
        cumulative = cumulative and not self._chunks.holds_before(places[-1][0])
        if self._chunks.remembers_any and not cumulative:
            places = self._chunks.places(places)
        for place in places:
            if cumulative:
                self.tracker.add_cumulative(place)
            else:
                self.tracker.add(place)
        individual, whole = self.tracker.take()
        self._recall.owed.acknowledged(individual)
        self._recall.owed.acknowledged_up_to(whole)
        if cumulative and individual:
            connection.write([hot.encode_ack(self._line.id, False, individual)])
        elif whole and not cumulative:
            connection.write([hot.encode_ack(self._line.id, True, whole)])
        ids = whole if cumulative else individual
        await self._line.until_answered("acknowledge", lambda each: self._line.ask_ack(each, ids, cumulative=cumulative))
        self._in_time(settled, cumulative=up_to)

    # --- what joins a transaction -------------------------------------------------------------------------------------

    def share(self, txn: Enlisting) -> Share:
        """Return the share of a transaction in this partition."""
        share = self._shares.get(txn)
        if share is None:
            share = self._shares[txn] = Share()
        return share

    def join(self, share: Share, run: Sequence[Message[Any]]) -> int:
        """Messages of one entry that were just received join; the bits of those that do.

        Those that somebody has already do not, they are second copies.
        """
        entry, bits = run[0].entry, bits_of(run)
        position, size = entry.position, entry.batch_size
        kept = 0 if share.keeper is None else share.keeper.entries.get(position, 0) & bits
        bits = self._owners.has_free(position, bits) | kept
        if bits:
            place = (position, (bits & -bits).bit_length() - 1 if size else -1)
            share.first = place if share.first is None else min(place, share.first)
            self._owners.give(share.held, position, bits, size, entry.delivery)
            if size > 1 and not self._line.single:
                share.keep_copies(run)
        return bits

    def acknowledge_rest(self, share: Share, txn: Enlisting) -> None:
        """The commit begins: acknowledge what joined and is not acknowledged yet. Raises as `Enlisting.enlist_ack`."""
        known = list(self._owners.known(share.held).items())
        for first in range(0, len(known), ENTRIES_PER_REQUEST):
            those = known[first : first + ENTRIES_PER_REQUEST]
            self._acknowledge_joined(places_of(those), txn, share, rest=len(those) == len(known))

    def _acknowledge_joined(self, places: Sequence[Place], txn: Enlisting, share: Share, *, rest: bool) -> None:
        try:
            request, work = self._begin(places, txn, share, cumulative=False, rest=rest)
        except TransactionConflict:
            return  # the transaction knows
        task = self._line.core.spawn(_quietly(work))
        task.add_done_callback(lambda _: self._on_answered(request, places, share, txn, asyncio.CancelledError()))

    def bring_back(self, share: Share, seconds_left: float | None, *, keep: bool) -> None:
        """The transaction cannot commit any more: what was not acknowledged in it comes again.

        `seconds_left` is how long its coordinator may wait before it aborts by itself.
        """
        share.is_over = True
        copies, share.copies = share.copies, {}
        if keep and share.keeper is not None:
            self._owners.give_all(share.held, share.keeper)
        elif share.requests and self._line.single and not share.has_aborted:
            # What it acknowledged is pending until its end, and what follows must not overtake it.
            self._owners.release(share.held)
            if share.first is not None:
                self._recall.keep_back_until(share.first, wait=max(seconds_left or 0.0, 0.0) + COORDINATOR_SLACK)
        else:
            self._return_held(share, copies)

    def _return_held(self, share: Share, copies: Mapping[Position, Sequence[Message[Any]]]) -> None:
        again = self._owners.known(share.held)
        if again:
            self._in_time(places_of(again.items()), cumulative=False)
            for position, (bits, _, _) in again.items():
                self._owners.leave(position, bits)
            self._recall.these(again, itertools.chain.from_iterable(copies.values()))
            self._keep_order(share)

    def _keep_order(self, share: Share) -> None:
        if self._line.single and share.first is not None:
            self._recall.keep_back_until(share.first)

    # --- in a transaction ---------------------------------------------------------------------------------------------

    async def in_transaction(self, places: Sequence[Place], txn: Enlisting, *, cumulative: bool) -> None:
        """Acknowledge in a transaction: register, check for conflicts of our own, send, wait for the answer."""
        if cumulative and self._chunks.holds_before(places[-1][0]):
            raise InvalidConfiguration(
                "a message in chunks that is not complete yet would be acknowledged along", hint="acknowledge a list"
            )
        share = self.share(txn)
        if not cumulative and share.requests:
            places = [place for place in places if not share.has_done(place)]
        if places:
            _, work = self._begin(places, txn, share, cumulative=cumulative)
            await work

    def _begin(
        self, places: Sequence[Place], txn: Enlisting, share: Share, *, cumulative: bool, rest: bool = False
    ) -> tuple[Request, Coroutine[Any, Any, None]]:
        """Start an acknowledgement: what is returned has to be awaited. Raises as `enlist_ack`, and TransactionConflict.

        `rest`: the places are all that has joined and is not acknowledged yet.
        """
        line = self._line
        _, index, size = places[-1]
        if cumulative and 0 <= index < size - 1:
            line.core.defect_warnings.on_cumulative_in_batch(line.server_version, line.topic, line.subscription)
        registered = txn.enlist_ack(line.core, line.target, line.subscription, len(places), cumulative=cumulative)
        request = Request(share)
        try:
            if cumulative:
                self._claim_up_to(request, places[-1], share)
            elif rest:
                self._claim_rest(request, txn, share)
            else:
                self._claim(request, places, txn, share)
            self._know(txn, share)
            share.requests.append(request)
        except BaseException as error:
            self._on_answered(request, places, share, txn, error)
            raise
        return request, self._carry_out(request, places, registered, txn, share)

    def _know(self, txn: Enlisting, share: Share) -> None:
        """The first acknowledgement in a transaction: hear of its end."""
        if not share.is_known:
            share.is_known = True
            line = self._line
            txn.when_ended(functools.partial(self._on_txn_ended, share))
            # Whoever attached to a transaction may leave its end to others, and is not told of it then.
            weakref.finalize(txn, self._owners.abandon, share.requests).atexit = False
            _SHARES.setdefault(txn, []).append((line.target, line.subscription, self._owners, share))

    def _claim(self, request: Request, places: Sequence[Place], txn: Enlisting, share: Share) -> None:
        named = merged(places)
        if sum(bits.bit_count() for bits, _ in named.values()) != len(places):
            # Second copies, after a redelivery: a request would name the message once, and the work on it be done twice.
            raise TransactionConflict(f"an acknowledgement on {self._line.topic} has the same message twice")
        for position, (bits, size) in named.items():
            named[position] = self._owners.widened(position, bits, size)
            self._check(position, *named[position], txn, share)
        for position, (bits, size) in named.items():
            joined = share.held.entries.get(position, 0) & bits
            if joined:
                request.joined[position] = joined
            self._owners.give(request, position, bits, size)

    def _claim_rest(self, request: Request, txn: Enlisting, share: Share) -> None:
        """Claim what nobody else can have; but another consumer of this client may have acknowledged copies."""
        if len(_SHARES.get(txn, ())) > share.is_known:
            for position, (bits, size, _) in self._owners.known(share.held).items():
                self._check(position, bits, size, txn, share)
        request.joined = dict(share.held.entries)
        self._owners.give_all(share.held, request)

    def _claim_up_to(self, request: Request, place: Place, share: Share) -> None:
        if self._owners.held_up_to(place[:2], but=share):
            raise TransactionConflict(f"another transaction that is still open has messages before {self._said(*place[:2])}")
        request.up_to = place[:2]
        request.joined = self._owners.give_held_up_to(place[:2], share.held, request)
        self._owners.add_range(request)

    def _check(self, position: Position, bits: int, size: int, txn: Enlisting, share: Share) -> None:
        line = self._line
        for topic, subscription, owners, other in _SHARES.get(txn, ()):
            if owners is not self._owners and (topic, subscription) == (line.target, line.subscription):
                found = owners.named_by(other, position, bits, size)
                if found is not None:
                    said = self._said(position, found)
                    raise TransactionConflict(f"message {said} is acknowledged by another consumer in this transaction")
        way = self._owners.in_the_way(position, bits, size, share)
        if way is not None:
            index, hold = way
            raise TransactionConflict(f"message {self._said(position, index)} {_WHY[hold.state]}")

    def _said(self, position: Position, index: int) -> MessageId:
        return MessageId(*position, self._line.partition, index)

    async def _carry_out(
        self,
        request: Request,
        places: Sequence[Place],
        registered: TxnId | asyncio.Future[TxnId],
        txn: Enlisting,
        share: Share,
    ) -> None:
        finished = functools.partial(self._on_answered, request, places, share, txn)
        try:
            if not isinstance(registered, TxnId):
                # Shared with other operations: cancelling this one must not cancel the registration.
                registered = await asyncio.shield(registered)
            await self._ask_until_answered(request, places, registered, txn)
        except BaseException as error:
            answer = request.answer
            if answer is None or answer.done():
                finished(error)
            else:  # cancelled; an abort that overtook what is on its way would leave it pending for ever
                answer.add_done_callback(functools.partial(_ignoring_answer, finished, error))
            raise
        finished(None)

    def _on_answered(
        self, request: Request, places: Sequence[Place], share: Share, txn: Enlisting, error: BaseException | None
    ) -> None:
        """The broker has said its outcome, or has never seen it; `error` is the error that the program got."""
        if request.is_finished:
            return
        if request.answer is not None and not request.answer.done():
            return  # its answer will finish it
        request.is_finished = True
        if request.is_taken:
            cumulative = request.up_to is not None
            self._in_time(places, cumulative=cumulative)
            if cumulative:
                self._owners.supersede(share)
        else:
            if request in share.requests:
                share.requests.remove(request)  # its error knows the transaction, which is to be collected when it is dropped
            self._on_refused(request, share)
        txn.ack_finished(self._line.target, self._line.subscription, len(places), error)

    def _on_refused(self, request: Request, share: Share) -> None:
        """Nothing was acknowledged: what had joined is held again, and copies that were dropped are asked for again."""
        known = self._owners.known(request)
        joined, again = request.joined, {}
        for position, (bits, size, delivery) in known.items():
            share.copies.pop(position, None)  # the broker knows better who has it
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
            self._recall.these(again)

    async def _ask_until_answered(self, request: Request, places: Sequence[Place], txn_id: TxnId, txn: Enlisting) -> None:
        """Send it, and again when the connection was lost before the answer came. If cancelled, the request goes on.

        A broker that has not seen the first one takes the second. One that has says yes again, because it knows the key, or,
        as stock brokers do, refuses it: then nobody knows whether the first one was taken, and the transaction cannot commit.
        In either case it has done with the first, so that an abort cannot overtake that any more: a stock broker would keep
        the message as pending in a transaction that has ended. For the same reason nothing is sent after it is over.
        """
        line, cumulative = self._line, request.up_to is not None
        self._recall.settled(places, cumulative=cumulative)
        if self._chunks.remembers_any and not cumulative:
            places = self._chunks.places(places)
        ids = [cumulative_id(places[-1])] if cumulative else named_ids(merged(places))
        request.ids = ids
        (self._recall.owed.acknowledged_up_to if cumulative else self._recall.owed.acknowledged)(ids)
        key = line.next_ack_key()
        end = line.core.runtime.monotonic() + line.core.settings.operation_timeout
        lost: ConnectionLost | None = None
        while True:
            try:
                connection = await line.connected("acknowledge")
                if not txn.in_time():
                    text = "the transaction was over before the acknowledgement could leave"
                    raise TransactionTimedOut(text, txn_id=txn_id) from lost
                self.flush()  # what the program acknowledged plainly before is settled before, and conflicts
                request.answer = line.ask_ack(connection, ids, cumulative=cumulative, txn_id=txn_id, key=key)
                await asyncio.shield(request.answer)
            except ConnectionLost as error:
                if not error.maybe_processed or line.core.runtime.monotonic() >= end:
                    raise
                lost = error
                txn.sent_again()
                request.answer = None  # copies that come in from now on may be of what is acknowledged
            except TransactionConflict as error:
                if not line.single and len(ids) > 1:
                    await self._ask_one_by_one(request, ids, txn_id)
                if lost is None:
                    raise
                raise lost from error
            else:
                return

    async def _ask_one_by_one(self, request: Request, ids: Sequence[AckId], txn_id: TxnId) -> None:
        """After a conflict about some of these: take what can be had into the transaction, for its abort to bring back.

        A stock dispatcher of Shared and Key_Shared has forgotten all of them when it says that one is in conflict, and does
        not deliver again what it has forgotten.
        """
        line, connection = self._line, self._line.connection
        if connection is not None:
            keys = [(each, line.next_ack_key()) for each in ids]
            answers = [line.ask_ack(connection, [each], cumulative=False, txn_id=txn_id, key=key) for each, key in keys]
            request.conflicts, request.answer = True, asyncio.gather(*answers, return_exceptions=True)
            await asyncio.shield(request.answer)

    def _on_txn_ended(self, share: Share, outcome: TxnAction | None) -> None:
        """Forget its owner: what it had acknowledged is nobody's any more.

        After an abort a single consumer starts over: the server rewinds the subscription as well, but without a word, and
        what is queued here would be handed out before what has to come first. A server does nothing when it was a
        cumulative acknowledgement, so that it has to be asked anyway.
        """
        line = self._line
        dropped: dict[Position, tuple[int, int, Delivery]] = {}
        for request in share.requests:
            if outcome is TxnAction.COMMIT:
                if request.is_released or request.up_to is not None:
                    self._settle_ids(request.ids)
                self._owners.settle_all(request)
            else:
                request.is_released = True
                known = self._owners.known(request)
                if not line.single:
                    # The abort may have overtaken the answer: nobody else knows that a copy of these was dropped here.
                    dropped |= {position: known[position] for position in request.copies if position in known}
                if not request.is_finished and not (line.single and outcome is TxnAction.ABORT):
                    request.released = known
                if line.single and outcome is TxnAction.ABORT:
                    self._recall.owed.given_back(request.entries)
                self._owners.release(request)
        if dropped:
            self._recall.these(dropped)
        copies, share.copies = share.copies, {}
        if outcome is not None:
            share.requests.clear()
        if not line.single and outcome is not TxnAction.COMMIT:  # when its time is over, its coordinator aborts it
            line.core.defect_warnings.on_abort(line.server_version, line.topic, line.subscription)
        if outcome is not TxnAction.ABORT:
            return
        share.is_over = share.has_aborted = True
        if line.single:
            self._owners.release(share.held)
            self._recall.everything()
            self._keep_order(share)
        else:
            self._return_held(share, copies)

    def _settle_ids(self, ids: Iterable[AckId]) -> None:
        for ledger_id, entry_id, left, size in ids:
            bits = full(size) if left is None else full_ack_set(size) & ~left
            self._owners.settle((ledger_id, entry_id), bits, size)


_WHY: Final = {
    State.HELD: "belongs to another transaction that is still open, or to a pipeline",
    State.ASKED: "is acknowledged already in a transaction that is still open",
    State.SETTLED: "was acknowledged before",
}


def _ignoring_answer(finished: Callable[[BaseException], None], error: BaseException, _answer: object) -> None:
    finished(error)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Carry out an acknowledgement of which the transaction hears by itself."""
    with contextlib.suppress(Exception):
        await work
