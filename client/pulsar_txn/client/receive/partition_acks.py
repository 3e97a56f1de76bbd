"""How the messages of one topic partition are acknowledged: grouped, with a receipt, or in a transaction."""

from __future__ import annotations

import abc
import asyncio
import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, TransactionConflict, TransactionTimedOut
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.acks import (
    AckTracker,
    Claim,
    OpenTransactionAcks,
    PartlyAcknowledged,
    Place,
    cumulative_id,
    merged_ids,
)
from pulsar_txn.client.receive.chunks import ChunkedMessages
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.recall import Recall
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.wire import hot
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import MessageId, Position, TxnAction, TxnId

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import AsyncConsumer

ACKS_PER_FRAME: Final = 1000


class PartitionAcks(abc.ABC):
    """The half of `PartitionConsumer` that acknowledges. The attributes are set there."""

    id: int
    topic: str
    partition: int
    chunks: ChunkedMessages
    open_acks: OpenTransactionAcks
    partly_acked: PartlyAcknowledged
    recall: Recall | None
    _core: Core
    _parent: AsyncConsumer[Any]
    _subscription: str
    _options: ConsumerOptions
    _single: bool
    _attachment: Attachment
    _connection: Connection | None
    _server_version: str
    _acks: AckTracker
    _claims: WeakKeyDictionary[Enlisting, list[Claim]]
    _ack_timer: asyncio.Handle | None

    @abc.abstractmethod
    def redeliver(self, positions: Sequence[Position] | None = None) -> None:
        """Ask for entries again: these, or (always on Exclusive and Failover) all that is not acknowledged."""

    def belongs_to(self, consumer: object) -> bool:
        """Whether it is, or was, a partition of this consumer."""
        return self._parent is consumer

    @property
    def is_left(self) -> bool:
        """Whether its consumer receives from its topic no more: a pattern has lost it. Nothing of it comes again."""
        return self.topic not in self._parent.topics

    def ack_soon(self, place: Place) -> None:
        """Acknowledge with the next group."""
        self._settling([place], cumulative=False)
        if self.chunks.remembers_any:
            for earlier in self.chunks.places([place])[:-1]:
                self._acks.add(earlier)
        self._acks.add(place)
        self._group()

    def ack_all_soon(self, places: Sequence[Place]) -> None:
        """Acknowledge these with the next group."""
        self._settling(places, cumulative=False)
        self._acks.add_all(self.chunks.places(places) if self.chunks.remembers_any else places)
        self._group()

    def ack_cumulative_soon(self, place: Place) -> None:
        """Acknowledge everything up to this with the next group.

        With an incomplete message in front of it that would be lost, so that only the message itself is acknowledged.
        """
        if self.chunks.holds_before(place[0]):
            self.ack_soon(place)
            return
        self._settling([place], cumulative=True)
        self._acks.add_cumulative(place)
        self._group()

    def _settling(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """The program acknowledges these: they are not late, and need not come again."""
        self._in_time(places, cumulative=cumulative)
        if self.recall is not None:
            self.recall.settled(places, cumulative=cumulative)

    def _in_time(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """These are acknowledged, as far as it is known: nobody waits for it any more."""
        if self._parent.timeouts is not None:
            self._parent.timeouts.settled(self.id, places, cumulative=cumulative)

    def _group(self) -> None:
        if len(self._acks.places) >= ACKS_PER_FRAME or not self._options.ack_group_delay:
            self.flush_acks()
        elif self._ack_timer is None:
            self._ack_timer = self._core.runtime.call_later(self._options.ack_group_delay, self._on_ack_timer)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        self.flush_acks()

    def flush_acks(self) -> None:
        """Send the group now; it is kept while there is no connection."""
        if self._connection is None or not len(self._acks):
            return
        individual, cumulative = self._acks.take()
        if cumulative:
            self._connection.write([hot.encode_ack(self.id, True, cumulative)])
        for first in range(0, len(individual), ACKS_PER_FRAME):
            self._connection.write([hot.encode_ack(self.id, False, individual[first : first + ACKS_PER_FRAME])])

    async def ack_with_receipt(self, places: Sequence[Place], *, cumulative: bool) -> None:
        """Acknowledge now and wait for ACK_RESPONSE. What is refused comes again when its time is over."""
        connection = await self._attachment.connected("acknowledge")
        if self.recall is not None:
            self.recall.settled(places, cumulative=cumulative)
        settled, up_to = places, cumulative
        cumulative = cumulative and not self.chunks.holds_before(places[-1][0])
        if self.chunks.remembers_any and not cumulative:
            places = self.chunks.places(places)
        for place in places:
            if cumulative:
                self._acks.add_cumulative(place)
            else:
                self._acks.add(place)
        individual, whole = self._acks.take()
        if cumulative and individual:
            connection.write([hot.encode_ack(self.id, False, individual)])
        elif whole and not cumulative:
            connection.write([hot.encode_ack(self.id, True, whole)])
        await self._request(connection, whole if cumulative else individual, cumulative=cumulative)
        self._in_time(settled, cumulative=up_to)

    def _request(
        self, connection: Connection, ids: Sequence[AckId], *, cumulative: bool, txn_id: TxnId | None = None
    ) -> asyncio.Future[Any]:
        request_id = self._core.next_request_id()
        frame = hot.encode_ack(self.id, cumulative, ids, txn=txn_id, request_id=request_id)
        return connection.request_frames("ack", request_id, [frame])

    async def ack_in_transaction(self, places: Sequence[Place], txn: Enlisting, *, cumulative: bool) -> None:
        """Acknowledge in a transaction: register, check for conflicts of our own, send, wait for the answer."""
        if cumulative and self.chunks.holds_before(places[-1][0]):
            raise InvalidConfiguration(
                "a message in chunks that is not complete yet would be acknowledged along", hint="acknowledge a list"
            )
        _, index, size = places[-1]
        if cumulative and 0 <= index < size - 1:
            self._core.defect_warnings.on_cumulative_in_batch(self._server_version, self.topic, self._subscription)
        registered = txn.enlist_ack(self._core, self.topic, self._subscription, len(places), cumulative=cumulative)
        claim = Claim((), places[-1]) if cumulative else Claim(places)
        finished = functools.partial(self._on_answered, places, claim, txn)
        try:
            self._claim(claim, txn)
            if not isinstance(registered, TxnId):
                # Shared with other operations: cancelling this one must not cancel the registration.
                registered = await asyncio.shield(registered)
            await self._ack_until_answered(places, registered, txn, claim, cumulative=cumulative)
        except BaseException as error:
            if claim.answer is None or claim.answer.done():
                finished(error)
            else:  # cancelled; an abort that overtook what is on its way would leave it pending for ever
                claim.answer.add_done_callback(functools.partial(finished, error))
            raise
        finished(None)

    def _on_answered(
        self,
        places: Sequence[Place],
        claim: Claim,
        txn: Enlisting,
        error: BaseException | None,
        _answer: asyncio.Future[Any] | None = None,
    ) -> None:
        """The broker has said what became of it, or has never seen it; `error` is what the program was told."""
        if not claim.is_taken:
            claims = self._claims.get(txn, [])
            if claim in claims:
                claims.remove(claim)  # its error knows the transaction, which is to be collected when it is dropped
            self._on_ack_failed(claim)
        else:
            cumulative = claim.up_to is not None
            self._in_time(places, cumulative=cumulative)
            if cumulative:
                self.open_acks.supersede(self._claims[txn])
        txn.ack_finished(self.topic, self._subscription, len(places), error)

    async def _ack_until_answered(
        self, places: Sequence[Place], txn_id: TxnId, txn: Enlisting, claim: Claim, *, cumulative: bool
    ) -> None:
        """Send it, and again when the connection was lost before the answer came. If cancelled, the request goes on.

        A broker that has not seen the first one takes the second. One that has refuses it, or says yes again; in either
        case it has done with the first, so that an abort cannot overtake that any more: a stock broker would keep the
        message as pending in a transaction that has ended. For the same reason nothing is sent once it is over.
        """
        if self.recall is not None:
            self.recall.settled(places, cumulative=cumulative)
        if self.chunks.remembers_any and not cumulative:
            places = self.chunks.places(places)
        ids = [cumulative_id(places[-1])] if cumulative else merged_ids(places)
        claim.ids = ids
        end = self._core.runtime.monotonic() + self._core.settings.operation_timeout
        lost: ConnectionLost | None = None
        while True:
            try:
                connection = await self._attachment.connected("acknowledge")
                if not txn.in_time():
                    text = "the transaction was over before the acknowledgement could leave"
                    raise TransactionTimedOut(text, txn_id=txn_id) from lost
                claim.answer = self._request(connection, ids, cumulative=cumulative, txn_id=txn_id)
                await asyncio.shield(claim.answer)
            except ConnectionLost as error:
                if not error.maybe_processed or self._core.runtime.monotonic() >= end:
                    raise
                lost = error
                claim.answer = None  # copies that come in from now on may be of what is acknowledged
            except TransactionConflict as error:
                if not self._single and len(ids) > 1:
                    await self._ack_one_by_one(ids, txn_id, claim)
                if lost is None:
                    raise
                raise lost from error
            else:
                return

    async def _ack_one_by_one(self, ids: Sequence[AckId], txn_id: TxnId, claim: Claim) -> None:
        """After a conflict about some of these: take what can be had into the transaction, for its abort to bring back.

        A stock dispatcher of Shared and Key_Shared has forgotten all of them when it says that one is in conflict, and does
        not deliver again what it has forgotten.
        """
        connection = self._connection
        if connection is not None:
            answers = [self._request(connection, [each], cumulative=False, txn_id=txn_id) for each in ids]
            claim.conflicts, claim.answer = True, asyncio.gather(*answers, return_exceptions=True)
            await asyncio.shield(claim.answer)

    def _claim(self, claim: Claim, txn: Enlisting) -> None:
        units = self._core.acks_of_units
        if len(set(claim.places)) != len(claim.places):
            # Second copies, after a redelivery: a request would name the message once, and the work on it be done twice.
            raise TransactionConflict(f"an acknowledgement on {self.topic} has the same message twice")
        for (ledger_id, entry_id), index in claim.places:
            if units.held_elsewhere(txn, self.topic, self._subscription, self.open_acks, ((ledger_id, entry_id), index)):
                message_id = MessageId(ledger_id, entry_id, self.partition, index)
                raise TransactionConflict(f"message {message_id} is acknowledged by another consumer in this transaction")
            if self.open_acks.holds(((ledger_id, entry_id), index, 0)):
                message_id = MessageId(ledger_id, entry_id, self.partition, index)
                raise TransactionConflict(f"message {message_id} is acknowledged already in a transaction that is still open")
            if self.partly_acked.holds((ledger_id, entry_id), index):
                message_id = MessageId(ledger_id, entry_id, self.partition, index)
                raise TransactionConflict(f"message {message_id} was acknowledged before")
        self.open_acks.add(claim)
        claims = self._claims.get(txn)
        if claims is None:
            claims = self._claims[txn] = []
            txn.when_ended(functools.partial(self._on_txn_ended, claims))
            # Whoever attached to a transaction may leave its end to others, and is not told of it then.
            weakref.finalize(txn, self.open_acks.abandon, claims).atexit = False
            units.begin(txn, self.topic, self._subscription, self.open_acks, claims)
        claim.unit = claims
        claims.append(claim)

    def _on_txn_ended(self, claims: list[Claim], outcome: TxnAction | None) -> None:
        """What it had acknowledged is nobody's any more.

        After an abort a single consumer starts over: the server rewinds the subscription, too, but without a word, and
        what is queued here would be handed out before what has to come first. A server does nothing when it was a
        cumulative acknowledgement, so that it has to be asked anyway.
        """
        for claim in claims:
            self.open_acks.remove(claim)
            if outcome is TxnAction.COMMIT:
                self.partly_acked.add(claim.ids)
        if outcome is not None:
            claims.clear()
        if not self._single and outcome is not TxnAction.COMMIT:  # when its time is over, its coordinator aborts it
            self._core.defect_warnings.on_abort(self._server_version, self.topic, self._subscription)
        if self._single and outcome is TxnAction.ABORT:
            self.redeliver()

    def _on_ack_failed(self, claim: Claim) -> None:
        """Nothing was acknowledged, so copies that were dropped meanwhile are asked for again."""
        self.open_acks.remove(claim)
        if claim.dropped:
            self.redeliver(claim.dropped)
