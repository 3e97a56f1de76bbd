"""A subscription: a cursor, a pending-ack handle and a dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.dispatch.dispatcher import Dispatcher, SingleActiveDispatcher
from pulsar_txn.broker.dispatch.key_shared import KeySharedDispatcher
from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.broker.dispatch.shared import SharedDispatcher
from pulsar_txn.broker.txn.hosts import PendingAckHost
from pulsar_txn.broker.txn.participants import RegistrationOf
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.machine import MoveCursor, Reply
from pulsar_txn.ledger.protocols import Cursor, EntryTooLarge, LedgerError, NameRefused, StorageFailed
from pulsar_txn.rm_pending_ack.requests import (
    AckCumulative,
    AckIndividual,
    AckItem,
    CursorReset,
    EndTxnOnSubscription,
    PendingAck,
    PlainAcked,
    Request,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import AckKey, Participant, Position, TxnAction, TxnId, full_ack_set

from .ack_reader import AckReader, ColdEntries
from .cold_acks import ColdAcks
from .cursor_moves import CursorMoves

if TYPE_CHECKING:
    from .topic import Topic

_logger = logging.getLogger(__name__)

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
"""Protocol enum CommandSubscribe.SubType."""

KIND_NAMES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
"""How Pulsar writes them."""


class Subscription:
    """One subscription of one topic. Not durable ones live as long as their consumers."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor, *, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.kind = EXCLUSIVE
        self.moves = CursorMoves(cursor, topic.log)
        self.reader = AckReader(topic.log, cursor, topic.config.max_ack_state_bytes_per_subscription)
        self._cold = ColdAcks(self.reader)
        self.failure: Exception | None = None
        self.host: PendingAckHost | None = None
        self.ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}  # since the start, for metrics
        self.pending_ack: PendingAck | None = None
        self.dispatcher: Dispatcher = SingleActiveDispatcher(self, failover=False)
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._failed: PendingAckHost | None = None
        self._held: list[Request] = []
        self._receipts: deque[tuple[int, Answer]] = deque()

    @property
    def is_busy(self) -> bool:
        """True if an acknowledgement is not answered yet."""
        return bool(self._receipts or self._held or self._cold) or (self.host is not None and self.host.is_busy)

    @property
    def is_idle(self) -> bool:
        """True if it has no consumer, and nothing of it waits."""
        if self.consumers or not self.durable or self.is_busy or self._opening is not None:
            return False
        return self.pending_ack is None or not self.pending_ack.stats().ongoing_txn_size

    @property
    def consumers(self) -> list[Consumer]:
        """Those that are connected."""
        return self.dispatcher.consumers

    # ---- consumers

    def add(self, consumer: Consumer, kind: int, *, sticky: bool = False) -> None:
        """Connect a consumer. Refusals: ConsumerBusy (another kind, or Exclusive and taken), ConsumerAssignError."""
        if self.failure is not None:
            raise Refusal(ServerError.PersistenceError, str(self.failure))
        if self.consumers:
            if kind != self.kind:
                raise Refusal(ServerError.ConsumerBusy, f"subscription {self.name!r} has consumers of another type")
            if kind == EXCLUSIVE:
                raise Refusal(ServerError.ConsumerBusy, f"Exclusive consumer is already connected to {self.name!r}")
            limit = self.topic.config.max_consumers_per_subscription
            if limit and len(self.consumers) >= limit:
                raise Refusal(ServerError.ConsumerBusy, f"subscription {self.name!r} has {limit} consumers, as many as it may")
        else:
            self.dispatcher.close()
            self.kind = kind
            self.dispatcher = self._new_dispatcher(kind, sticky)
        self.dispatcher.add(consumer)
        consumer.subscription = self
        consumer.given = PositionNotes(self.cursor.is_deleted)  # no circle: a consumer that goes is freed at once
        self.topic.attend(self)

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        self.dispatcher.remove(consumer)
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        """A subscription that is not durable goes when it has no consumer."""
        if not self.durable and not self.consumers:
            self.topic.drop_subscription(self)

    def disconnect_all(self) -> None:
        """Close all consumers; their clients connect again."""
        for consumer in list(self.consumers):
            self.dispatcher.remove(consumer)
            consumer.owner.consumer_closed(consumer)

    def _new_dispatcher(self, kind: int, sticky: bool) -> Dispatcher:
        if kind == SHARED:
            return SharedDispatcher(self)
        if kind == KEY_SHARED:
            return KeySharedDispatcher(self, sticky=sticky)
        return SingleActiveDispatcher(self, failover=kind == FAILOVER)

    # ---- acknowledgements outside transactions

    def acknowledge(self, consumer: Consumer, ids: Sequence[AckId], answer: Answer | None, *, cumulative: bool) -> None:
        """An ACK outside transactions; answered once it is durable. Without an answer, what cannot be is left out.

        NotAllowedError: cumulative on Shared or Key_Shared, or a message that is not there. TooManyRequests: too much is
        acknowledged out of order. ServiceNotReady: the log is closed.
        """
        try:
            ticket = self._acknowledge(consumer, ids, strict=answer is not None, cumulative=cumulative)
        except ColdEntries as cold:
            self._cold.wait(cold.positions, partial(self.acknowledge, consumer, ids, answer, cumulative=cumulative), answer)
        except Refusal as refusal:
            if answer is not None:
                answer(None, refusal.code, refusal.message)
        except LedgerError as error:
            if answer is not None:
                answer(None, ServerError.ServiceNotReady, f"{error}; retry")
        else:
            if answer is not None:
                self._when_stored(ticket, answer)

    def _acknowledge(self, consumer: Consumer, ids: Sequence[AckId], *, strict: bool, cumulative: bool) -> int:
        """Returns the cursor's ticket. Raises ColdEntries, Refusal, LedgerError."""
        whole, parts = self.reader.read(ids, None if cumulative else consumer.given, strict=strict)
        if cumulative:
            return self._acknowledge_upto(consumer, whole, parts)
        if parts and not self.topic.config.acknowledgment_at_batch_index_level_enabled:
            parts = [part for part in parts if part[0] in consumer.given]
        whole, parts = self.reader.admitted(whole, parts, strict=strict)
        if parts:
            self._delete_indexes(parts)
        if whole:
            self._delete(whole)
        self._acknowledged_by(consumer, whole, parts, cumulative=False)
        handle = self.pending_ack
        if handle is not None and self.host is not None:
            items = [*parts, *((position, None, 0) for position in whole)]
            touched = tuple([item for item in items if handle.pending(item[0])])
            if touched:
                self.host.submit(PlainAcked(touched), reserve=True)
        return self.cursor.ticket

    def _acknowledge_upto(self, consumer: Consumer, whole: Sequence[Position], parts: Sequence[AckItem]) -> int:
        if self.dispatcher.individual:
            raise Refusal(
                ServerError.NotAllowedError, "Shared and Key_Shared subscriptions take no cumulative acknowledgements"
            )
        if len(whole) + len(parts) != 1:
            text = f"a cumulative acknowledgement names one message, not {len(whole) + len(parts)}"
            raise Refusal(ServerError.NotAllowedError, text)
        self._acknowledged_by(consumer, whole, parts, cumulative=True)
        item = parts[0] if parts else (whole[0], None, 0)
        self.moves.delete_upto(*item)
        if self.host is not None:
            self.host.submit(PlainAcked(cumulative=item), reserve=True)
        return self.cursor.ticket

    def _delete(self, positions: list[Position]) -> None:
        self.moves.delete(positions)
        dispatcher = self.dispatcher
        if dispatcher.individual:
            for position in positions:
                dispatcher.settled(position, None)
            dispatcher.wake()

    def _delete_indexes(self, items: Sequence[AckItem]) -> None:
        self.moves.delete_indexes(items)
        dispatcher = self.dispatcher
        if dispatcher.individual:
            for position, acked, _ in items:
                dispatcher.settled(position, None if self.cursor.is_deleted(position) else acked)
            dispatcher.wake()

    def _when_stored(self, ticket: int, answer: Answer) -> None:
        """Call `answer` once the cursor's change `ticket` is durable, or cannot be known to be."""
        if ticket <= self.cursor.confirmed_ticket:
            answer(None, None, "")
        else:
            self._receipts.append((ticket, answer))
            self.topic.attend(self)

    @property
    def is_attentive(self) -> bool:
        """True if `log_moved` may have something to do."""
        return bool(self.consumers or self._receipts) or self.host is not None

    def log_moved(self) -> None:
        """A commit group of the topic's log is durable."""
        if self._receipts:
            self._give_receipts()
        if self.host is not None:
            self.host.cursor_moved()

    def _give_receipts(self) -> None:
        receipts, stored = self._receipts, self.cursor.confirmed_ticket
        while receipts and receipts[0][0] <= stored:
            receipts.popleft()[1](None, None, "")

    async def _end_receipts(self) -> None:
        """The last receipts: of what is durable, and of what cannot be known to be."""
        if not self._receipts:
            return
        try:
            await self.topic.log.flush()
        except LedgerError as error:
            _logger.warning("acknowledgements of %r on %s are not known to be stored: %s", self.name, self.topic.name, error)
        self._give_receipts()
        receipts, self._receipts = self._receipts, deque()
        for _, answer in receipts:
            answer(None, ServerError.ServiceNotReady, f"subscription {self.name!r} of {self.topic.name} is closed; retry")

    # ---- acknowledgements in transactions

    def acknowledge_in(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        ids: Sequence[AckId],
        answer: Answer,
        *,
        cumulative: bool,
        key: AckKey | None = None,
    ) -> None:
        """An ACK in a transaction; answered once it is durable. A whole entry is what the consumer was given of it."""
        try:
            whole, parts = self.reader.read(ids, None if cumulative else consumer.given, strict=True)
            if not cumulative:
                self.reader.admitted(whole, parts, strict=True)
            request = self._request_of(consumer, txn_id, whole, parts, answer, cumulative=cumulative, key=key)
        except ColdEntries as cold:
            again = partial(self.acknowledge_in, consumer, txn_id, ids, answer, cumulative=cumulative, key=key)
            self._cold.wait(cold.positions, again, answer)
        except Refusal as refusal:
            answer(None, refusal.code, refusal.message)
        else:
            host = self.host
            if host is not None:
                host.submit(request, reserve=True)
            else:
                self._request(request)

    def _request_of(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        whole: Sequence[Position],
        parts: Sequence[AckItem],
        answer: Answer,
        *,
        cumulative: bool,
        key: AckKey | None,
    ) -> Request:
        items = (*parts, *[(position, None, 0) for position in whole]) if parts or len(whole) != 1 else ((whole[0], None, 0),)
        if not items:
            raise Refusal(ServerError.NotAllowedError, "the acknowledgement names no message")
        # The answer says first whose these messages are no more, until an abort brings them back.
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SharedDispatcher):
            noted: Answer = partial(_pledge, self, whole, parts, answer)
        elif len(dispatcher.consumers) > 1:
            noted = partial(self._note_acknowledged, consumer, whole, parts, answer, cumulative)
        else:
            noted = answer
        if not cumulative:
            return AckIndividual(noted, txn_id, items, key)
        if self.dispatcher.individual or len(items) != 1:
            text = "a cumulative acknowledgement names one message, and not on Shared or Key_Shared"
            raise Refusal(ServerError.NotAllowedError, text)
        if consumer.settled_elsewhere is not None and items[0][0] >= consumer.settled_elsewhere:
            ledger_id, entry_id = consumer.settled_elsewhere
            text = f"another consumer acknowledged {ledger_id}:{entry_id}, which this one was given as well"
            raise Refusal(ServerError.TransactionConflict, f"{text}; abort, and have everything redelivered")
        return AckCumulative(noted, txn_id, items[0], key)

    def _note_acknowledged(
        self,
        consumer: Consumer,
        whole: Sequence[Position],
        parts: Sequence[AckItem],
        answer: Answer,
        cumulative: bool,
        value: Any,
        error: ServerError | None,
        message: str,
    ) -> None:
        if error is None:
            self._acknowledged_by(consumer, whole, parts, cumulative=cumulative)
        answer(value, error, message)

    def _acknowledged_by(
        self, consumer: Consumer, whole: Sequence[Position], parts: Sequence[AckItem], *, cumulative: bool
    ) -> None:
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SingleActiveDispatcher) and len(dispatcher.consumers) > 1 and (whole or parts):
            named = [*whole, *(part[0] for part in parts)]
            first = self.topic.log.next_position(self.cursor.mark_delete) if cumulative else min(named)
            dispatcher.acknowledged_by(consumer, first)

    def end_txn(self, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """The coordinator tells the outcome."""
        if self.host is None and self._opening is None and not self.topic.has_pending_ack_log(self):
            answer(None, None, "")  # nothing was ever acknowledged in a transaction here
        else:
            request = EndTxnOnSubscription(partial(self._ended, action, answer), txn_id, action, low_watermark)
            if self.host is not None:
                self.host.submit(request, reserve=True)
            else:
                self._request(request)

    def _ended(self, action: TxnAction, answer: Answer, value: Any, error: ServerError | None, message: str) -> None:
        self.ended[action] += error is None
        answer(value, error, message)

    def _request(self, request: Request) -> None:
        if self.host is not None:
            self.host.submit(request, reserve=True)
            return
        if self._closed:  # its log may be another's by now
            _refuse(request, f"subscription {self.name!r} of {self.topic.name} is closed; retry")
            return
        self._held.append(request)
        self.open_pending_ack_soon()

    def open_pending_ack_soon(self) -> None:
        """Open the handle in the background, unless that is under way."""
        if self._opening is None and not self._closed:
            self._opening = asyncio.get_running_loop().create_task(self._open_in_background())

    async def _open_in_background(self) -> None:
        try:
            await self.open_pending_ack()
        except Exception as error:
            _logger.exception("pending acks of %s on %s cannot be opened", self.name, self.topic.name)
            held, self._held = self._held, []
            for request in held:
                if isinstance(error, (EntryTooLarge, NameRefused)):
                    _refuse(request, str(error), ServerError.NotAllowedError)
                else:
                    _refuse(request, f"{error}; retry")
        finally:
            self._opening = None

    async def open_pending_ack(self) -> None:
        """Open and recover the handle, and carry out what waits for it. Raises LedgerError."""
        machine, log = await self.topic.open_pending_ack(self)
        host = PendingAckHost(
            machine,
            log,
            self.topic.turn,
            self._pending_ack_failed,
            subscription=self,
            registration=RegistrationOf(self.topic.registrations, Participant(str(self.topic.name), self.name)),
        )
        try:
            self.pending_ack = machine
            await host.recover()
        except BaseException:
            self.pending_ack = None
            await log.close()
            raise
        self.host = host
        self.topic.attend(self)
        held, self._held = self._held, []
        for request in held:
            host.submit(request, reserve=True)

    def apply_move(self, move: MoveCursor) -> None:
        """Acknowledge what a transaction committed."""
        individual = move.individual
        if len(individual) == 1 and individual[0][1] is None:  # nearly every transaction's
            self._delete([individual[0][0]])
        else:
            whole = [position for position, acked, _ in individual if acked is None]
            if len(whole) < len(individual):
                self._delete_indexes([item for item in individual if item[1] is not None])
            if whole:
                self._delete(whole)
        if move.cumulative is not None:
            position, left, batch_size = move.cumulative
            acked = None if not left else full_ack_set(batch_size) & ~left
            self.moves.delete_upto(position, acked, batch_size)

    @property
    def releases_one_by_one(self) -> bool:
        """True if what is given back is delivered again by itself, and not everything that follows the first of it."""
        return self.dispatcher.individual

    def release(self, positions: Sequence[tuple[Position, int | None]]) -> None:
        """Deliver again what a transaction gave back."""
        if not self.dispatcher.individual:
            self.dispatcher.release(*min(positions, key=lambda each: each[0]))
            return
        for position, indexes in positions:
            self.dispatcher.release(position, indexes)

    # ---- seek

    def seek(self, mark_delete: Position, answer: Answer) -> None:
        """Read on after `mark_delete`: consumers are closed and connect again; `answer` is called once it is durable."""
        self.disconnect_all()  # the subscription stays, also one that is not durable: its consumers come back
        if self.host is not None:
            self.host.drop_moves()
        ticket = self.moves.reset(mark_delete)
        self.dispatcher.rewind()
        if self.host is None:
            self._when_stored(ticket, answer)
            return
        self.host.submit(CursorReset(self.cursor.mark_delete), reserve=True)
        self.host.release_at_tail((Reply(lambda *_: self._when_stored(ticket, answer)),))

    # ---- end

    def fail(self, error: Exception) -> None:
        """The entries of the log cannot be delivered: consumers are closed, and new ones get the reason."""
        _logger.error("subscription %r of %s cannot go on: %s", self.name, self.topic.name, error)
        self.failure = error
        self.disconnect_all()

    def _pending_ack_failed(self, error: Exception) -> None:
        self._failed, self.host, self.pending_ack = self.host, None, None
        if isinstance(error, StorageFailed):
            self.topic.storage_failed(error)
        else:
            self.topic.reopen(error)

    async def close(self) -> None:
        """Close the handle; the cursor goes with the topic's log. What comes later is refused."""
        self._closed = True
        self.dispatcher.close()
        await self._cold.close()
        if self._opening is not None:
            await asyncio.wait([self._opening])  # not cancelled: a log that is being opened would stay open
        failed, host, self.host = self._failed, self.host, None
        if failed is not None:  # its log is as open as before, and the next handle wants it
            await asyncio.gather(*(log.close() for log in failed.logs.values()), return_exceptions=True)
        if host is not None and host.failure is None:
            try:
                await host.close()
            except LedgerError as error:
                _logger.warning("pending acks of %r: %s", self.name, error)
        await self._end_receipts()


def _pledge(
    subscription: Subscription,
    whole: Sequence[Position],
    parts: Sequence[AckItem],
    answer: Answer,
    value: Any,
    error: ServerError | None,
    message: str,
) -> None:
    """Consumers hold what a transaction acknowledged for its keys only, until an abort gives it back."""
    dispatcher = subscription.dispatcher
    if error is None and isinstance(dispatcher, SharedDispatcher):
        for position in whole:
            dispatcher.pledged(position, None)
        for position, indexes, _ in parts:
            dispatcher.pledged(position, indexes)
    answer(value, error, message)


def _refuse(request: Request, message: str, code: ServerError = ServerError.ServiceNotReady) -> None:
    token: Answer | None = getattr(request, "token", None)
    if token is not None:
        token(None, code, message)
