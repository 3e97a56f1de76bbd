"""A subscription: a cursor, a pending-ack handle and a dispatcher.

It takes acknowledgements, plain and in transactions, and answers them once they are durable. Who gets which entry is its
dispatcher's; what transactions hold is the handle's; where it is, the cursor's. It never calls its topic: the topic hears of a
failure by the one call that it gave (`on_failed`), and asks for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from pulsar_txn.broker.catalog.policies import TopicRules
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.dispatch.key_shared import KeyShared
from pulsar_txn.broker.dispatch.machine import Dispatch, SingleActive
from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.broker.dispatch.shared import Shared
from pulsar_txn.broker.txn.participants import RegistrationOf
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.machine import Reply
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
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import AckKey, Participant, Position, TxnAction, TxnId

from .ack_reader import AckReader, ColdAcks, ColdEntries
from .buffer_host import LogWatchers
from .context import TopicContext
from .dispatcher import Dispatcher
from .pending_ack_host import PendingAckHost

_logger = logging.getLogger(__name__)

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
"""Protocol enum CommandSubscribe.SubType."""

KIND_NAMES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
"""Names of the types, as Pulsar writes them."""

_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 60.0


class Subscription:
    """One subscription of one topic. Not durable ones live as long as their consumers.

    `on_failed` is called when its redo log fails: the state of its topic is not to be believed then.
    """

    def __init__(
        self,
        topic: TopicContext,
        watchers: LogWatchers,
        name: str,
        cursor: Cursor,
        rules: TopicRules,
        on_failed: Callable[[Exception], None],
        *,
        durable: bool,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.kind = EXCLUSIVE
        self.failure: Exception | None = None
        self.host: PendingAckHost | None = None
        self.ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}  # since the start, for metrics
        self.pending_ack: PendingAck | None = None
        self._topic = topic
        self._watchers = watchers
        self._on_failed = on_failed
        self.reader = AckReader(topic.log, cursor, topic.config.max_ack_state_bytes_per_subscription)
        self._cold = ColdAcks(self.reader)
        self.dispatcher = Dispatcher(name, topic, cursor, self.reader, rules, self.fail)
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._failed: PendingAckHost | None = None
        self._held: list[Request] = []
        self._receipts: deque[tuple[int, Answer]] = deque()

    @property
    def topic_name(self) -> str:
        """The full name of its topic."""
        return str(self._topic.name)

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
    def is_unused(self) -> bool:
        """True if it is not durable and has lost its consumers: it is to go."""
        return not self.durable and not self.consumers

    @property
    def consumers(self) -> list[Consumer]:
        """Those that are connected."""
        return self.dispatcher.machine.consumers

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self.cursor.mark_delete

    def backlog(self) -> int:
        """Number of entries that are not acknowledged."""
        return self.cursor.backlog()

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
            limit = self._topic.config.max_consumers_per_subscription
            if limit and len(self.consumers) >= limit:
                raise Refusal(ServerError.ConsumerBusy, f"subscription {self.name!r} has {limit} consumers, as many as it may")
        else:
            self.kind = kind
            self.dispatcher.use(self._new_machine(kind, sticky))
        self.dispatcher.add(consumer)
        consumer.join(self, PositionNotes(self.cursor.is_deleted))  # no circle: a consumer that goes is freed at once
        self._watchers.add(self)

    def _new_machine(self, kind: int, sticky: bool) -> Dispatch:
        start, config = self.dispatcher.read_position, self._topic.config
        if kind == SHARED:
            return Shared(start, config)
        if kind == KEY_SHARED:
            return KeyShared(start, config, sticky=sticky)
        return SingleActive(start, failover=kind == FAILOVER, partition=self._topic.name.partition)

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        self.dispatcher.remove(consumer)

    def room_changed(self) -> None:
        """A consumer may be sent something now that it could not be sent before."""
        self.dispatcher.wake()

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """Send these again; None: all that the consumer holds."""
        self.dispatcher.redeliver(consumer, positions)

    def set_rules(self, rules: TopicRules) -> None:
        """The namespace's policies changed."""
        self.dispatcher.set_rules(rules)

    def disconnect_all(self) -> None:
        """Close all consumers; their clients connect again."""
        for consumer in list(self.consumers):
            self.dispatcher.remove(consumer)
            consumer.owner.consumer_closed(consumer)

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
        if parts and not self._topic.config.acknowledgment_at_batch_index_level_enabled:
            parts = [part for part in parts if part[0] in consumer.given]
        whole, parts = self.reader.admitted(whole, parts, strict=strict)
        dispatcher = self.dispatcher
        if parts:
            dispatcher.delete_indexes(parts)
        if whole:
            dispatcher.delete(whole)
        dispatcher.acknowledged_by(consumer, whole, parts)
        handle = self.pending_ack
        if handle is not None and self.host is not None:
            items = [*parts, *((position, None, 0) for position in whole)]
            touched = tuple([item for item in items if handle.pending(item[0])])
            if touched:
                self.host.submit(PlainAcked(touched), reserve=True)
        return self.cursor.ticket

    def _acknowledge_upto(self, consumer: Consumer, whole: Sequence[Position], parts: Sequence[AckItem]) -> int:
        if self.dispatcher.releases_one_by_one:
            raise Refusal(
                ServerError.NotAllowedError, "Shared and Key_Shared subscriptions take no cumulative acknowledgements"
            )
        if len(whole) + len(parts) != 1:
            text = f"a cumulative acknowledgement names one message, not {len(whole) + len(parts)}"
            raise Refusal(ServerError.NotAllowedError, text)
        self.dispatcher.acknowledged_upto_by(consumer)
        item = parts[0] if parts else (whole[0], None, 0)
        self.dispatcher.delete_upto(*item)
        if self.host is not None:
            self.host.submit(PlainAcked(cumulative=item), reserve=True)
        return self.cursor.ticket

    def _when_stored(self, ticket: int, answer: Answer) -> None:
        """Call `answer` once the cursor's change `ticket` is durable, or cannot be known to be."""
        if ticket <= self.cursor.confirmed_ticket:
            answer(None, None, "")
        else:
            self._receipts.append((ticket, answer))
            self._watchers.add(self)

    def log_moved(self, *_: object) -> None:
        """A commit group of the topic's log is durable: there may be more to deliver. Who waits for nothing hears no more."""
        if self._receipts:
            self._give_receipts()
        if self.host is not None:
            self.host.cursor_moved()
        dispatcher = self.dispatcher
        if dispatcher.machine.consumers:
            dispatcher.wake()
        elif self.host is None and not self._receipts:
            self._watchers.discard(self)

    def _give_receipts(self) -> None:
        receipts, stored = self._receipts, self.cursor.confirmed_ticket
        while receipts and receipts[0][0] <= stored:
            receipts.popleft()[1](None, None, "")

    async def _end_receipts(self) -> None:
        """The last receipts: of what is durable, and of what cannot be known to be."""
        if not self._receipts:
            return
        try:
            await self._topic.log.flush()
        except LedgerError as error:
            text = "acknowledgements of subscription %r on %s may be lost, their messages may come again: %s"
            _logger.warning(text, self.name, self._topic.name, error)
        self._give_receipts()
        receipts, self._receipts = self._receipts, deque()
        for _, answer in receipts:
            answer(None, ServerError.ServiceNotReady, f"subscription {self.name!r} of {self._topic.name} is closed; retry")

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
        machine = self.dispatcher.machine
        if machine.individual or len(machine.consumers) > 1:
            noted: Answer = partial(self._note_acknowledged, consumer, whole, parts, answer, cumulative)
        else:
            noted = answer
        if not cumulative:
            return AckIndividual(noted, txn_id, items, key)
        if machine.individual or len(items) != 1:
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
        if error is not None:
            answer(value, error, message)
            return
        dispatcher = self.dispatcher
        if dispatcher.machine.individual:
            dispatcher.pledge(whole, parts)
        elif cumulative:
            dispatcher.acknowledged_upto_by(consumer)
        else:
            dispatcher.acknowledged_by(consumer, whole, parts)
        answer(value, error, message)

    def end_txn(self, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """The coordinator tells the outcome."""
        if self.host is None and self._opening is None and not self.has_pending_ack_log:
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
            _refuse(request, f"subscription {self.name!r} of {self._topic.name} is closed; retry")
            return
        self._held.append(request)
        self._open_soon()

    @property
    def has_pending_ack_log(self) -> bool:
        """True if acknowledgements in transactions were ever made here."""
        return self.durable and self._topic.pending_acks.exists(self._topic.name, self.name)

    async def recover_pending_ack(self) -> None:
        """Open the handle if there is a redo log. Raises StorageFailed.

        A log that cannot be read keeps this subscription from serving, and no other: consumers are refused with what is wrong,
        for without the log nobody knows which messages wait for the decision of a transaction. It is tried again, later and
        later, until it can be read or the subscription is closed.
        """
        if not self.has_pending_ack_log:
            return
        try:
            await self.open_pending_ack()
        except StorageFailed:
            raise
        except (LedgerError, WireError) as error:
            self.fail(error)
            self._recover_later(error, _FIRST_RETRY_SECONDS)

    def _recover_later(self, error: Exception, delay: float) -> None:
        _logger.warning("pending acks of subscription %r failed to open, next attempt in %s s: %s", self.name, delay, error)
        self._topic.turn.runtime.call_later(delay, self._recover_again, error, delay)

    def _recover_again(self, error: Exception, delay: float) -> None:
        if self._closed:
            return
        if self.host is None:
            self._open_soon()
            self._recover_later(error, min(2 * delay, _LAST_RETRY_SECONDS))
        elif self.failure is error:  # it was opened since
            self.failure = None

    def _open_soon(self) -> None:
        """Open the handle in the background, unless that is under way."""
        if self._opening is None and not self._closed:
            self._opening = asyncio.get_running_loop().create_task(self._open_in_background())

    async def _open_in_background(self) -> None:
        try:
            await self.open_pending_ack()
        except Exception as error:
            _logger.exception("pending acks of subscription %s on %s cannot be opened", self.name, self._topic.name)
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
        machine, log = await self._topic.pending_acks.open(self._topic.name, self.cursor, durable=self.durable)
        host = PendingAckHost(
            machine,
            log,
            self._topic.turn,
            self._pending_ack_failed,
            dispatcher=self.dispatcher,
            registration=RegistrationOf(
                self._topic.registrations, Participant(str(self._topic.name), self.name), self._topic.turn
            ),
        )
        try:
            self._use(machine)
            await host.recover()
        except BaseException:
            self._use(None)
            await log.close()
            raise
        self.host = host
        self._watchers.add(self)
        held, self._held = self._held, []
        for request in held:
            host.submit(request, reserve=True)

    def _use(self, handle: PendingAck | None) -> None:
        self.pending_ack = handle
        self.dispatcher.use_pending_ack(handle)

    # ---- seek

    def seek(self, mark_delete: Position, answer: Answer) -> None:
        """Read on after `mark_delete`: consumers are closed and connect again; `answer` is called once it is durable."""
        self.disconnect_all()  # the subscription stays, also one that is not durable: its consumers come back
        if self.host is not None:
            self.host.drop_moves()
        ticket = self.dispatcher.reset(mark_delete)
        if self.host is None:
            self._when_stored(ticket, answer)
            return
        self.host.submit(CursorReset(self.cursor.mark_delete), reserve=True)
        self.host.release_at_tail((Reply(lambda *_: self._when_stored(ticket, answer)),))

    # ---- end

    def fail(self, error: Exception) -> None:
        """The entries of the log cannot be delivered: consumers are closed, and new ones get the reason."""
        _logger.error("subscription %r of %s failed and its consumers are closed: %s", self.name, self._topic.name, error)
        self.failure = error
        self.disconnect_all()

    def _pending_ack_failed(self, host: PendingAckHost, _error: None, _message: str) -> None:
        self._failed, self.host = host, None
        self._use(None)
        if host.failure is not None:
            self._on_failed(host.failure)

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
                _logger.warning("pending acks of subscription %r were not closed cleanly: %s", self.name, error)
        await self._end_receipts()


def _refuse(request: Request, message: str, code: ServerError = ServerError.ServiceNotReady) -> None:
    token: Answer | None = getattr(request, "token", None)
    if token is not None:
        token(None, code, message)
