"""The consumer of one topic partition: what arrives, permits, acknowledgements, reconnecting.

Permits count messages. The broker may send `receiver_queue_size` of them; every message that leaves the queue, however it
leaves, gives its permit back, and half a queue of them travel in one FLOW.

What is in the queue when the server starts over is dropped, because all of it comes again: after a reconnect, after our
own REDELIVER (told by the consumer epoch), after a seek, and when an Exclusive or Failover subscription is rewound by the
server without a word (stock brokers do so when a transaction with acknowledgements aborts), which shows as a position that
is not beyond the last one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from google.protobuf.message import DecodeError

from pulsar_txn.client.errors import (
    ConnectionLost,
    CryptoError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.acks import AckTracker, Claim, OpenTransactionAcks, PartlyAcknowledged
from pulsar_txn.client.receive.chunks import ChunkedMessages
from pulsar_txn.client.receive.entry_checks import BeyondUsError, checked, decompressed, permits_of, why_discarded
from pulsar_txn.client.receive.left import LeftEntries
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Entry, Message, single_row
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_txn.client.receive.partition_chunks import watches
from pulsar_txn.client.receive.partition_seeking import PartitionSeeking
from pulsar_txn.client.receive.recall import Place, Recall
from pulsar_txn.client.receive.subscribe_fields import Start, subscribe_fields
from pulsar_txn.client.receive.writer_schemas import WriterSchemas
from pulsar_txn.client.schema.base import PairSchema, Schema, WrittenSchema
from pulsar_txn.client.schema.crypto import CryptoFailureAction, Decryptor, KeyComing
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.entries import BROKER_MAGIC, broker_metadata, split_entry
from pulsar_txn.wire.errors import MalformedBatch, WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Position, ack_set_from_words

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import AsyncConsumer

logger = logging.getLogger("pulsar_txn.client.consumer")

Post: TypeAlias = Callable[[Callable[[], object]], object]
"""Has a function called on the loop, from any thread."""

MAX_OVERRUN: Final = 10_000
"""Entries in a row (one more for each 50 KiB of theirs) that may come while the queue is full already."""


class PartitionConsumer(PartitionSeeking):
    """Receives from one partition (or a topic without partitions, `partition` -1) into the queue of its `Consumer`."""

    def __init__(
        self, core: Core, parent: AsyncConsumer[Any], topic: str, partition: int, subscription: str, options: ConsumerOptions
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.id = core.next_resource_id()
        self.schema: Schema[Any] = parent.schema
        self.is_active = options.consumer_type is not ConsumerType.FAILOVER
        self.reached_end = False
        self.tenure = 0
        """Counts how often others may have got messages of this subscription meanwhile: connections, changes of activity."""
        self.open_acks = OpenTransactionAcks()
        self.partly_acked = PartlyAcknowledged()
        self.last_dequeued: Message[Any] | None = None
        self.recall: Recall | None = None
        self._core = core
        self._parent = parent
        self._subscription = subscription
        self._options = options
        self._single = options.consumer_type.is_single
        self._connection: Connection | None = None
        self._server_version = ""
        self._epoch = 0
        self._permits_back = 0
        self.taken_beside = 0
        """Messages that threads of the sync client have taken, and whose permits nobody has given back yet."""
        self._overrun = 0
        self._flow_at = max(1, options.receiver_queue_size // 2)
        self._last_position: Position | None = None
        first = None if options.durable else options.start_message_id
        if first is None and not options.durable and options.initial_position is InitialPosition.EARLIEST:
            first = EARLIEST_ID
        self._start = None if first is None else Start(first, options.start_message_id_inclusive)
        self._seeking: asyncio.Future[None] | None = None
        self._sought_ms: int | None = None
        self._moved_by_us = False
        left = LeftEntries(watched=watches(options))
        self.chunks = ChunkedMessages(topic, options.max_pending_chunked_messages, options.max_uncompressed_bytes, left)
        self._chunk_timer: asyncio.Handle | None = None
        self._evicted: list[Position] = []
        self._evicted_timer: asyncio.Handle | None = None
        self._warned_of_beyond = False
        self._decryptor = Decryptor(options.crypto_keys)
        self._acks = AckTracker()
        self._claims: WeakKeyDictionary[Enlisting, list[Claim]] = WeakKeyDictionary()
        self._ack_timer: asyncio.Handle | None = None
        self._held: deque[hot.Message] = deque()
        self._attachment = Attachment(
            core, self.id, topic, open_on=self._open_on, on_lost=self._on_lost, on_failed=self._on_failed
        )
        self.pairs = self.schema if isinstance(self.schema, PairSchema) else None
        self.writers: WriterSchemas[Any] | None = None
        if isinstance(self.schema, WrittenSchema):
            self.writers = WriterSchemas(core, topic, self.schema, self._attachment.connected, self._queue)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe; raises what stands in the way once the operation timeout is over."""
        try:
            await self._attachment.start()
        except BaseException:
            self._attachment.close()
            raise

    @property
    def is_connected(self) -> bool:
        """Whether the broker knows this consumer at this moment."""
        return self._connection is not None

    async def close(self) -> None:
        """Send the acknowledgements that wait and leave the broker; idempotent."""
        self.flush_acks()
        connection, self._connection = self._connection, None
        self._attachment.close()
        self.end_recall()
        self.drop_held()
        if self.writers is not None:
            self.writers.drop()
        for timer in (self._ack_timer, self._chunk_timer, self._evicted_timer):
            if timer is not None:
                timer.cancel()
        if connection is None or connection.consumers.pop(self.id, None) is None:
            return
        request = connection.request("close_consumer", self._core.next_request_id(), consumer_id=self.id)
        await asyncio.wait([request])
        if not request.cancelled():
            request.exception()  # whatever it says: the consumer is gone, or its connection is

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription; raises the broker's error when other consumers use it."""
        connection = await self._attachment.connected("unsubscribe")
        await connection.request("unsubscribe", self._core.next_request_id(), consumer_id=self.id, force=force)

    async def _open_on(self, connection: Connection) -> None:
        if self._seeking is not None:
            await asyncio.shield(self._seeking)  # the broker refuses subscribers while it moves the subscription
        self._start_over()
        moved, self._moved_by_us = self._moved_by_us, False
        connection.consumers[self.id] = self
        subscribed = False
        try:
            await connection.request("subscribe", self._core.next_request_id(), **self._subscribe_fields())
            subscribed = True
            if not moved:
                await self._return_to_time(connection)
        except BaseException as error:
            connection.consumers.pop(self.id, None)
            if subscribed or isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still do it, and an exclusive subscription would then stay taken by nobody.
                request_id = self._core.next_request_id()
                connection.write([command("close_consumer", consumer_id=self.id, request_id=request_id)])
            raise
        if connection.closed or connection.consumers.get(self.id) is not self:
            raise ConnectionLost("the consumer was closed while it opened", endpoint=connection.endpoint)
        self._connection = connection
        self._server_version = connection.server_version
        connection.write([hot.encode_flow(self.id, self._options.receiver_queue_size)])
        self.flush_acks()

    def _subscribe_fields(self) -> dict[str, Any]:
        start = None if self._options.durable else (self._start or Start(LATEST_ID)).field()
        names = {"topic": self.topic, "subscription": self._subscription, "consumer_name": self._parent.consumer_name}
        fields = names | {"consumer_id": self.id} | subscribe_fields(self._options, self.schema.info, start)
        return fields | ({"consumer_epoch": self._epoch} if self._single else {})

    def _start_over(self) -> None:
        """All that is queued will come again."""
        self.tenure += 1
        with self._parent.guard:
            if not self._options.durable and self.last_dequeued is not None:
                self._start = Start(self.last_dequeued.message_id)
            self._parent.drop_queued(self)
            self._permits_back = self.taken_beside = 0
        self._evicted.clear()
        self._last_position = None
        self._acks.forget_partial()
        if self._parent.timeouts is not None:
            self._parent.timeouts.forget(self.id)

    def _on_lost(self, _error: PulsarError) -> None:
        self._connection = None
        if self._options.consumer_type is ConsumerType.FAILOVER:
            self.is_active = False

    def _on_failed(self, error: PulsarError) -> None:
        self.end_recall()
        self._parent.part_failed(self, error)

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves, or the subscription was moved; subscribe anew."""
        self._moved_by_us = self._seeking is not None
        self._attachment.detach(ConnectionLost("the broker closed the consumer"), planned=self._moved_by_us)

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        self.tenure += 1
        self.is_active = is_active

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC."""
        self.reached_end = True

    # --- receiving ----------------------------------------------------------------------------------------------------

    def on_message(self, frame: hot.Message) -> None:
        """MESSAGE: check, unpack, queue."""
        if self._held:
            self._hold(frame)
            return
        _, ledger_id, entry_id, _, redelivery_count, ack_words, epoch, data = frame
        position = (ledger_id, entry_id)
        try:
            broker = broker_metadata(data) if data[:2] == BROKER_MAGIC else None
            head, payload = split_entry(data)
            metadata = pb.MessageMetadata.FromString(head)
            batch_size = checked(metadata)
        except (WireError, DecodeError) as error:
            self._discard(position, why_discarded(error), 1, error)
            return
        self._on_overrun(len(data))
        count = max(batch_size, 1)
        if self._seeking is not None or (epoch is not None and epoch < self._epoch):
            self.give_permits_back(count)
            return
        if self._single and self._last_position is not None and position <= self._last_position:
            logger.info("%s was rewound by the server; what was queued is dropped, it comes again", self.topic)
            self._parent.drop_queued(self)
        self._last_position = position
        if self.chunks.left.owed:
            self.chunks.left.came(position)
        if metadata.encryption_keys:
            opened = self._decrypted(frame, metadata, payload, count)
            if opened is None:
                return
            payload = opened  # type: ignore[assignment]  # a view or bytes
        if metadata.num_chunks_from_msg > 1:
            skipped = self._start is not None and not self._wanted(position, 0)
            whole = None if skipped else self._on_chunk(position, metadata, payload)
            if whole is None:
                self.give_permits_back(count)
                return
            payload = whole  # type: ignore[assignment]  # a view or bytes
        rows = self._rows(position, metadata, payload, batch_size)
        if rows is None:
            self.give_permits_back(min(count, self._options.receiver_queue_size))
            return
        entry = Entry(self, position, metadata, batch_size, redelivery_count)
        entry.broker = broker
        if self.writers is None or not self.writers.holds(entry, rows, ack_words):
            self._queue(entry, rows, ack_words)

    def _rows(
        self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, batch_size: int
    ) -> Sequence[Any] | None:
        """The messages of an entry; None when it is damaged, and discarded, or not for us, and left."""
        try:
            plain = decompressed(metadata, payload, self._options.max_uncompressed_bytes)
            return decode_batch(plain, batch_size) if batch_size else [single_row(metadata, bytes(plain))]
        except BeyondUsError as error:
            self._leave(position, error)
        except (MalformedBatch, UnicodeDecodeError) as error:
            reason = pb.CommandAck.DecompressionError if metadata.compression else pb.CommandAck.BatchDeSerializeError
            self._discard(position, reason, 0, error)
        return None

    def _decrypted(self, frame: hot.Message, metadata: pb.MessageMetadata, payload: memoryview, count: int) -> bytes | None:
        """The payload; None when it has to wait for its key, or cannot be had."""
        try:
            return self._decryptor.open(metadata, payload)
        except KeyComing as coming:
            self._hold(frame)
            waiting = asyncio.gather(*coming.answers, return_exceptions=True)
            waiting.add_done_callback(functools.partial(self._release, self._held))
        except CryptoError as error:
            entry = Entry(self, (frame[1], frame[2]), metadata, 0, frame[4])
            self._undecrypted(entry, payload, count, error)
        return None

    def _hold(self, frame: hot.Message) -> None:
        """A key is being fetched: this one and those behind it wait, so that their order is kept."""
        self._held.append(frame)
        self._on_overrun(len(frame[7]))

    def _release(self, held: deque[hot.Message], _answers: object) -> None:
        if held is self._held:  # else they were dropped, and come again
            self._held = deque()
            self._last_position = None  # that of the first of them, which is no rewind
            for frame in held:
                self.on_message(frame)

    def drop_held(self) -> int:
        """Forget what waits for a key, or for others that come first; how many permits that were."""
        held, self._held = self._held, deque()
        withheld = 0 if self.recall is None else self.recall.drop()
        return withheld + sum(permits_of(frame[7]) for frame in held)

    def _drop_queued(self) -> None:
        self._parent.drop_queued(self)

    def _on_overrun(self, size: int) -> None:
        """More than was allowed. A little is usual, because brokers estimate; a lot would fill the memory."""
        queue_size = self._options.receiver_queue_size
        queued = self._parent.queued + len(self._held)
        if queued < queue_size or queued < queue_size * len(self._parent.topics):
            self._overrun = 0
            return
        self._overrun += 1 + size // (50 * 1024)
        if self._overrun > MAX_OVERRUN and self._connection is not None:
            self._overrun = 0
            endpoint = self._connection.endpoint
            failure = RemoteProtocolError(f"{self.topic}: the broker sends far more than it was allowed", endpoint=endpoint)
            failure.retriable = True
            self._connection.close(failure)

    def _undecrypted(self, entry: Entry, payload: memoryview, count: int, error: CryptoError) -> None:
        """An entry that cannot be decrypted, as `crypto_failure_action` says."""
        action = self._options.crypto_failure_action
        if action is CryptoFailureAction.DISCARD:
            self._discard(entry.position, pb.CommandAck.DecryptionError, count, error)
            return
        if action is CryptoFailureAction.CONSUME:
            entry.undecrypted = True
            self.give_permits_back(count - 1)
            self._queue(entry, [single_row(entry.metadata, bytes(payload))], ())
            return
        logger.error("%s %s stays unacknowledged: %s", self.topic, entry.position, error)
        self.chunks.left.add([entry.position])
        self.give_permits_back(count)

    def _queue(self, entry: Entry, rows: Sequence[Any], ack_words: tuple[int, ...]) -> None:
        if entry.batch_size:
            live = self._live_bits(entry, ack_words)
            if self.partly_acked:
                self.partly_acked.delivered(entry.position, live)
            if live == (1 << entry.batch_size) - 1:
                messages: list[Message[Any]] = [Message(entry, index, row) for index, row in enumerate(rows) if not row[7]]
            else:
                messages = [Message(entry, index, row) for index, row in enumerate(rows) if live >> index & 1 and not row[7]]
        elif self._start is not None and not self._wanted(entry.position, 0):
            messages = []
        else:
            messages = [Message(entry, -1, rows[0])]
        if self.open_acks:
            messages = [message for message in messages if self.open_acks.admits(entry.position, message.index)]
        letters = self._parent.letters
        if letters is not None and messages and entry.redelivery_count > letters.limit:
            letters.bury_soon(self, entry.position, messages)
            messages = []
        skipped = len(rows) - len(messages)
        if messages and (self.recall is None or self.recall.admits(messages)):
            self._parent.enqueue(messages)
        if skipped:
            self.give_permits_back(skipped)

    def _live_bits(self, entry: Entry, ack_words: tuple[int, ...]) -> int:
        """The indexes of a batch that are to be handed out."""
        live = (1 << entry.batch_size) - 1
        if ack_words:
            live &= ack_set_from_words(ack_words)
        return live if self._start is None else live & self._wanted(entry.position, entry.batch_size)

    def _discard(self, position: Position, reason: int, count: int, error: Exception) -> None:
        """An entry that cannot be read: tell the broker why, and go on."""
        logger.error("%s %s cannot be read and was discarded: %s", self.topic, position, error)
        if self._connection is not None:
            place = {"ledgerId": position[0], "entryId": position[1]}
            self._connection.write(
                [command("ack", consumer_id=self.id, ack_type=0, message_id=[place], validation_error=reason)]
            )
        self.give_permits_back(count)

    def took_beside(self, message: Message[Any], post: Post) -> None:
        """A thread of the sync client has taken a message, and holds the queue's guard."""
        self.last_dequeued = message
        self.taken_beside += 1
        if self.taken_beside == self._flow_at:
            post(self.flush_permits)

    def give_permits_back(self, count: int) -> None:
        """Messages have left the queue."""
        self._permits_back += count
        if self._permits_back >= self._flow_at:
            self.flush_permits()

    def flush_permits(self) -> None:
        """Send the permits that wait; at once, so that the broker goes on while the program works on what it took."""
        if self.taken_beside:
            with self._parent.guard:
                self._permits_back += self.taken_beside
                self.taken_beside = 0
        if self._permits_back and self._connection is not None:
            self._connection.write_now([hot.encode_flow(self.id, self._permits_back)])
            self._permits_back = 0

    def redeliver(self, positions: Sequence[Position] | None = None) -> None:
        """Ask for entries again: these, or (always on Exclusive and Failover) all that is not acknowledged."""
        if self._connection is None:  # subscribing anew brings everything again
            if self._single or positions is None:
                self._parent.drop_queued(self)
            return
        self.flush_acks()
        fields: dict[str, Any] = {"consumer_id": self.id}
        if self._single:
            self._epoch += 1
            fields["consumer_epoch"] = self._epoch
            positions = None
        if positions is None:
            self._last_position = None
            self._acks.forget_partial()
            self._parent.drop_queued(self)
            if self._parent.timeouts is not None:
                self._parent.timeouts.forget(self.id)
        else:
            positions = self.chunks.with_chunks(positions)
            fields["message_ids"] = [{"ledgerId": ledger_id, "entryId": entry_id} for ledger_id, entry_id in positions]
        self._connection.write([command("redeliverUnacknowledgedMessages", **fields)])

    def recall_from(self, place: Place, *, wait: float) -> None:
        """Hand nothing out before this comes again; ask for it after `wait` seconds, and again until it comes."""
        self.end_recall()
        self.recall = Recall(self, self._core.runtime, place, wait=wait)

    def end_recall(self) -> None:
        """Hand out what comes. What was kept back has to be asked for, but for its permits."""
        if self.recall is not None:
            self.recall.cancel()
            self._permits_back += self.recall.drop()
            self.recall = None
