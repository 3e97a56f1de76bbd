"""The consumer of one topic partition: what arrives, what it becomes, permits, and reconnecting.

Permits count messages. The broker may send `receiver_queue_size` of them; every message that leaves the queue, however it
leaves, gives its permit back, and half a queue of them travel in one FLOW.

What is in the queue is dropped when the server starts over, because all of it comes again: after a reconnect, after our
own REDELIVER (told by the consumer epoch), after a seek, and when an Exclusive or Failover subscription is rewound by the
server without a word (stock brokers do so when a transaction with acknowledgements aborts), which shows as a position that
is not beyond the last one.

It has a `line` to the broker, a table of `owners`, its acknowledgements (`acks`), what it asks for again (`recall`), its
messages in chunks (`chunks`), and its `place` in the subscription.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from google.protobuf.message import DecodeError

from pulsar_txn.client.errors import (
    ConnectionLost,
    CryptoError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.acknowledging import Acknowledgements
from pulsar_txn.client.receive.chunks import Chunking
from pulsar_txn.client.receive.dead_letters import DeadLetters
from pulsar_txn.client.receive.entry_checks import BeyondUsError, checked, decompressed, permits_of, why_discarded
from pulsar_txn.client.receive.inbox import Inbox, Post
from pulsar_txn.client.receive.line import Line
from pulsar_txn.client.receive.message import Entry, Message, single_row
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType
from pulsar_txn.client.receive.owed import Turn
from pulsar_txn.client.receive.owners import Owners, Place
from pulsar_txn.client.receive.permits import Permits
from pulsar_txn.client.receive.place import Seeking
from pulsar_txn.client.receive.recall import Bits, Recall
from pulsar_txn.client.receive.redelivery import AckTimeouts
from pulsar_txn.client.receive.subscribe_fields import subscribe_fields
from pulsar_txn.client.receive.writer_schemas import WriterSchemas
from pulsar_txn.client.schema.base import PairSchema, Schema, WrittenSchema
from pulsar_txn.client.schema.crypto import CryptoFailureAction, Decryptor, KeyComing
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.entries import BROKER_MAGIC, broker_metadata, split_entry
from pulsar_txn.wire.errors import MalformedBatch, WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Position, ack_set_from_words

logger = logging.getLogger("pulsar_txn.client.consumer")

MAX_OVERRUN: Final = 10_000
"""Entries in a row (one more for each 50 KiB of theirs) that may come while the queue is full already."""


@attrs.frozen(kw_only=True)
class Common:
    """State that the partitions of one consumer share."""

    core: Core
    inbox: Inbox[Any]
    subscription: str
    consumer_name: str
    schema: Schema[Any]
    timeouts: AckTimeouts | None
    letters: DeadLetters | None
    failed: Callable[[PartitionConsumer, PulsarError], None]
    """Called with a partition that will never receive again."""


class PartitionConsumer:
    """Receives from one partition (or a topic without partitions, `partition` -1) into the inbox of its consumer."""

    def __init__(self, common: Common, topic: str, partition: int, options: ConsumerOptions) -> None:
        core = common.core
        self.topic = topic
        self.partition = partition
        self.schema = common.schema
        self.reached_end = False
        self.last: Message[Any] | None = None
        self.taken_beside = 0
        """Messages that threads of the blocking client have taken, and whose permits nobody has given back yet."""
        self.inbox = common.inbox
        self.line = Line(
            core,
            topic,
            partition,
            common.subscription,
            options,
            open_on=self._open_on,
            on_lost=self._on_lost,
            on_failed=self._on_failed,
        )
        self.id = self.line.id
        self.owners = Owners()
        self.chunks = Chunking(
            self.line, acknowledge=lambda place: self.acks.soon(place), again=lambda those: self.recall.entries(those)
        )
        self.recall = Recall(
            self.line,
            self.owners,
            start_over=self._all_comes_again,
            go_on=self._missing_comes_again,
            before=lambda: self.acks.flush(),
            with_chunks=self.chunks.messages.with_chunks,
            hand_out=self._hand_out_again,
            has_some=lambda: bool(self._waiting()),
        )
        self.recall.is_active = options.consumer_type is not ConsumerType.FAILOVER
        self.acks = Acknowledgements(self.line, self.owners, self.chunks.messages, self.recall, common.timeouts)
        begin = self.chunks.messages.begin
        self.place = Seeking(
            self.line, self, begin=begin, start_over=self._start_elsewhere, forget=self._forget, skip=self._skip
        )
        self._common = common
        self._options = options
        self._permits_back = 0
        self._overrun = 0
        self._flow_at = self._beside_at = max(1, options.receiver_queue_size // 2)
        self._sizes = (
            Permits(options.receiver_queue_size, options.receiver_queue_bytes) if options.receiver_queue_bytes else None
        )
        """How many messages may be here by their size, with a bound of bytes."""
        self._kept_back = 0
        """Permits that the broker is not given, because messages are too large for all of them."""
        self._keep_back()
        self._moved_by_us = False
        self._decryptor = Decryptor(options.crypto_keys)
        self._held: deque[hot.Message] = deque()
        self.pairs: PairSchema | None = self.schema if isinstance(self.schema, PairSchema) else None
        self.writers: WriterSchemas[Any] | None = None
        if isinstance(self.schema, WrittenSchema):
            self.writers = WriterSchemas(core, topic, self.schema, self.line.connected, self._queue)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe; raises the last error when the operation timeout is over."""
        try:
            await self.line.attachment.start()
        except BaseException:
            self.line.attachment.close()
            raise

    @property
    def is_connected(self) -> bool:
        """True if the broker knows this consumer at this moment."""
        return self.line.connection is not None

    @property
    def is_active(self) -> bool:
        """True if the broker delivers to this consumer; on Failover only to one of them."""
        return self.recall.is_active

    async def close(self) -> None:
        """Send the acknowledgements that wait and leave the broker; idempotent."""
        self.acks.flush()
        connection, self.line.connection = self.line.connection, None
        self.line.attachment.close()
        self.recall.close()
        self._drop_held()
        if self.writers is not None:
            self.writers.drop()
        self.acks.close()
        self.chunks.close()
        if connection is None or connection.consumers.pop(self.id, None) is None:
            return
        request = connection.request("close_consumer", self.line.core.next_request_id(), consumer_id=self.id)
        await asyncio.wait([request])
        if not request.cancelled():
            request.exception()  # whatever it says: the consumer is gone, or its connection is

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription; raises the broker's error when other consumers use it."""
        connection = await self.line.connected("unsubscribe")
        await self.line.ask(connection, "unsubscribe", force=force)

    async def _open_on(self, connection: Connection) -> None:
        if self.place.seeking is not None:
            await asyncio.shield(self.place.seeking)  # the broker refuses subscribers while it moves the subscription
        self._start_over()
        moved, self._moved_by_us = self._moved_by_us, False
        connection.consumers[self.id] = self
        subscribed = False
        try:
            await connection.request("subscribe", self.line.core.next_request_id(), **self._subscribe_fields())
            subscribed = True
            if not moved:
                await self.place.return_to_time(connection)
        except BaseException as error:
            connection.consumers.pop(self.id, None)
            if subscribed or isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still do it, and an exclusive subscription would then stay taken by nobody.
                request_id = self.line.core.next_request_id()
                connection.write([command("close_consumer", consumer_id=self.id, request_id=request_id)])
            raise
        if connection.closed or connection.consumers.get(self.id) is not self:
            raise ConnectionLost("the consumer was closed while it opened", endpoint=connection.endpoint)
        self.line.connection = connection
        self.line.server_version = connection.server_version
        self._permits_back = self._kept_back
        connection.write([hot.encode_flow(self.id, self.room)])
        self.acks.flush()

    def _subscribe_fields(self) -> dict[str, Any]:
        line = self.line
        names = {"topic": line.topic, "subscription": line.subscription, "consumer_name": self._common.consumer_name}
        options = subscribe_fields(self._options, self.schema.info, self.place.start_field())
        epoch = {"consumer_epoch": self.recall.epoch} if line.single else {}
        return names | {"consumer_id": self.id} | options | epoch

    def _start_over(self) -> None:
        """A new connection: all that is queued will come again."""
        self.recall.tenure += 1
        self.recall.owed.clear()
        with self.inbox.guard:
            self.place.subscribes_again()
            self.drop_queued()
            self._permits_back = self.taken_beside = 0
        self.chunks.start_over()
        self.acks.tracker.forget_partial()
        if self._common.timeouts is not None:
            self._common.timeouts.forget(self.id)

    def _all_comes_again(self) -> None:
        """All was asked for again."""
        self._missing_comes_again()
        self.acks.tracker.forget_partial()
        if self._common.timeouts is not None:
            self._common.timeouts.forget(self.id)

    def _missing_comes_again(self) -> None:
        """All was asked for, for the sake of what is missing."""
        self.place.last_position = None
        self._drop_what_comes_again()

    def _start_elsewhere(self) -> None:
        """The subscription is about to be moved."""
        self.recall.keep_nothing_back()
        self.recall.owed.clear()
        self.drop_queued()

    def _forget(self) -> None:
        """The subscription is being moved: nothing that was acknowledged stays so."""
        self.acks.tracker.clear()
        self.owners.move()

    def _skip(self, places: Sequence[Place]) -> None:
        self.acks.all_soon(places)
        self.acks.flush()

    def _drop_what_comes_again(self) -> None:
        """The program keeps what it has; all else is dropped, also chunks of messages that are not complete."""
        waiting = self._waiting()
        self.drop_queued()
        self.recall.owed.come_again(waiting.union(self.chunks.messages.left.owed))

    def drop_queued(self) -> None:
        """All that is queued will come again, or is not wanted any more."""
        self.owners.new_generation()
        self.chunks.messages.clear()
        dropped = self.inbox.drop(self) + self._drop_held()
        if self.writers is not None:
            dropped += self.writers.drop()
        self.give_permits_back(dropped)

    def _on_lost(self, _error: PulsarError) -> None:
        self.line.connection = None
        if self._options.consumer_type is ConsumerType.FAILOVER:
            self.recall.is_active = False

    def _on_failed(self, error: PulsarError) -> None:
        self.recall.close()
        self._common.failed(self, error)

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves, or the subscription was moved; subscribe again."""
        self._moved_by_us = self.place.seeking is not None
        self.line.attachment.detach(ConnectionLost("the broker closed the consumer"), planned=self._moved_by_us)

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        self.recall.tenure += 1
        self.recall.is_active = is_active
        if not is_active:
            self.recall.owed.clear()

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
        count = max(batch_size, 1)
        self._came(count, len(data))
        if self._is_of_before(epoch, position, _live_bits(batch_size, ack_words)):
            self.give_permits_back(count)
            return
        if self.line.single and not self._is_its_turn(position, _live_bits(batch_size, ack_words), count):
            return
        if self.chunks.messages.left.owed:
            self.chunks.messages.left.came(position)
        if metadata.encryption_keys:
            opened = self._decrypted(frame, metadata, payload, count)
            if opened is None:
                return
            payload = opened  # type: ignore[assignment]  # a view or bytes
        if metadata.num_chunks_from_msg > 1:
            begins_here = self.place.start is None or self.place.passed is not None
            skipped = not begins_here and not self.place.wanted(position, 0)
            whole = None if skipped else self.chunks.add(position, metadata, payload)
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

    def _is_of_before(self, epoch: int | None, position: Position, live: int) -> bool:
        """True if an entry was sent before the subscription was moved, or before everything was asked for."""
        if self.place.seeking is not None:
            return True
        if epoch is None or epoch >= self.recall.epoch:
            return False
        if self.recall.keeps_account:
            self.recall.owed.came_too_early(position, live)
        return True

    def _is_its_turn(self, position: Position, live: int, count: int) -> bool:
        """True if an entry comes in the order of the partition, with nothing missing before it."""
        last, owed = self.place.last_position, self.recall.owed
        if position in self.owners.wanted.entries:
            owed.come_again([position])
        if last is not None and position <= last and not owed.has_past(position):
            logger.info("%s was rewound by the server; what was queued is dropped, it comes again", self.topic)
            self._drop_what_comes_again()
        turn = owed.came(position, live) if self.recall.keeps_account else Turn.NOW
        if turn is Turn.LATER:
            self.recall.keep_back(count)
        elif turn is Turn.PAST:
            self.give_permits_back(count)
        else:
            self.place.last_position = position
        return turn is Turn.NOW

    def _rows(
        self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, batch_size: int
    ) -> Sequence[Any] | None:
        """The messages of an entry; None when it is damaged, and discarded, or not for us, and left."""
        try:
            plain = decompressed(metadata, payload, self._options.max_uncompressed_bytes)
            return decode_batch(plain, batch_size) if batch_size else [single_row(metadata, bytes(plain))]
        except BeyondUsError as error:
            self.chunks.leave(position, error)
        except (MalformedBatch, UnicodeDecodeError) as error:
            reason = pb.CommandAck.DecompressionError if metadata.compression else pb.CommandAck.BatchDeSerializeError
            self._discard(position, reason, 0, error)
        return None

    def _decrypted(self, frame: hot.Message, metadata: pb.MessageMetadata, payload: memoryview, count: int) -> bytes | None:
        """The payload; None when it has to wait for its key, or cannot be had."""
        try:
            return self._decryptor.open(metadata, payload)
        except KeyComing as coming:
            self.recall.owed.forget((frame[1], frame[2]))  # it will come once more, from here
            self._hold(frame)
            waiting = asyncio.gather(*coming.answers, return_exceptions=True)
            waiting.add_done_callback(functools.partial(self._release, self._held))
        except CryptoError as error:
            entry = Entry(self, (frame[1], frame[2]), metadata, 0, frame[4])
            self._undecrypted(entry, payload, count, error)
        return None

    def _hold(self, frame: hot.Message) -> None:
        """A key is being fetched: this one and those after it wait, so that their order is kept."""
        self._held.append(frame)
        self._on_overrun(len(frame[7]))

    def _release(self, held: deque[hot.Message], _answers: object) -> None:
        if held is self._held:  # else they were dropped, and come again
            self._held = deque()
            self.place.last_position = None  # that of the first of them, which is no rewind
            for frame in held:
                self.on_message(frame)

    def _drop_held(self) -> int:
        """Forget what waits for a key, or for others that come first; how many permits that were."""
        held, self._held = self._held, deque()
        withheld = self.recall.permits()
        return withheld + sum(permits_of(frame[7]) for frame in held)

    def _came(self, messages: int, size: int) -> None:
        """An entry has come."""
        if self._sizes is not None:
            self._sizes.arrived(messages, size)
            self._keep_back()
        self._on_overrun(size)

    def _on_overrun(self, size: int) -> None:
        """More than was allowed. A little is usual, because brokers estimate; a lot would fill the memory."""
        queue_size = self._options.receiver_queue_size
        queued = len(self.inbox.queue) + len(self._held) + min(self._permits_back, 0)
        if queued < queue_size or queued < queue_size * self.inbox.sources:
            self._overrun = 0
            return
        self._overrun += 1 + size // (50 * 1024)
        if self._overrun > MAX_OVERRUN and self.line.connection is not None:
            self._overrun = 0
            endpoint = self.line.connection.endpoint
            failure = RemoteProtocolError(f"{self.topic}: the broker sends far more than it was allowed", endpoint=endpoint)
            failure.retriable = True
            self.line.connection.close(failure)

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
        self.chunks.messages.left.add([entry.position])
        self.give_permits_back(count)

    def _queue(self, entry: Entry, rows: Sequence[Any], ack_words: tuple[int, ...]) -> None:
        size, position = entry.batch_size, entry.position
        live = _live_bits(size, ack_words)
        if self.place.start is not None:
            live &= self.place.wanted(position, size)
        entry.delivery = (self.owners.generation, live)
        if self.owners:
            live = self.owners.admit(position, live, size)
            if not live:
                self.recall.owed.forget(position)  # acknowledged, or on its way to be
        if not size:
            messages: list[Message[Any]] = [Message(entry, -1, rows[0])] if live else []
        elif live == (1 << size) - 1:
            messages = [Message(entry, index, row) for index, row in enumerate(rows) if not row[7]]
        else:
            messages = [Message(entry, index, row) for index, row in enumerate(rows) if live >> index & 1 and not row[7]]
        if messages and self._is_buried(entry, messages):
            messages = []
        skipped = len(rows) - len(messages)
        if messages and self.recall.admits(messages):
            self.inbox.put(messages)
        if skipped:
            self.give_permits_back(skipped)

    def _is_buried(self, entry: Entry, messages: Sequence[Message[Any]]) -> bool:
        """True if these have come often enough, so that they are dead letters."""
        letters = self._common.letters
        if letters is None or entry.redelivery_count <= letters.limit:
            return False
        letters.bury_soon(self, entry.position, messages, functools.partial(self.acks.with_receipt, cumulative=False))
        if self.inbox.keys is not None:
            self.inbox.keys.left(messages)
        return True

    def _hand_out_again(self, messages: Sequence[Message[Any]]) -> None:
        """Messages of an entry come again without the broker: one delivery more, after what is queued.

        They had given their permits back when they left the queue, and take them again.
        """
        entry = messages[0].entry.once_more()
        again = [message.of(entry) for message in messages]
        if not self._is_buried(entry, again):
            self.give_permits_back(-len(again))
            self.inbox.put(again)

    def _waiting(self) -> set[Position]:
        """Entries of this partition of which messages wait for the program, or for a key or a schema."""
        held = {(frame[1], frame[2]) for frame in self._held}
        return held | self.inbox.positions(self) | (set() if self.writers is None else self.writers.positions)

    def _discard(self, position: Position, reason: int, count: int, error: Exception) -> None:
        """An entry that cannot be read: tell the broker why, and go on."""
        logger.error("%s %s cannot be read and was discarded: %s", self.topic, position, error)
        if self.line.connection is not None:
            place = {"ledgerId": position[0], "entryId": position[1]}
            self.line.connection.write(
                [command("ack", consumer_id=self.id, ack_type=0, message_id=[place], validation_error=reason)]
            )
            self.recall.owed.forget(position)
        self.give_permits_back(count)

    # --- what the queue tells -----------------------------------------------------------------------------------------

    def took_beside(self, message: Message[Any], post: Post) -> None:
        """A thread of the blocking client has taken a message, and holds the queue's guard."""
        self.last = message
        self.taken_beside += 1
        if self.taken_beside == self._beside_at or (self._sizes is not None and self.taken_beside > self._beside_at):
            post(self.flush_permits)

    def give_permits_back(self, count: int) -> None:
        """Messages have left the queue; fewer than none have come into it without a permit."""
        self._permits_back += count
        if self._permits_back >= self._flow_at:
            self.flush_permits()

    @property
    def room(self) -> int:
        """The number of messages that may be here."""
        return self._options.receiver_queue_size - self._kept_back

    def _keep_back(self) -> None:
        """Let as many messages come as there is room for, by the sizes that came."""
        if self._sizes is not None:
            allowed = self._sizes.allowed
            self._kept_back = self._options.receiver_queue_size - allowed
            self._beside_at = max(1, allowed // 2)
            self._flow_at = self._kept_back + self._beside_at

    def flush_permits(self) -> None:
        """Send the permits that wait; at once, so that the broker goes on while the program works on what it took."""
        if self.taken_beside:
            with self.inbox.guard:
                self._permits_back += self.taken_beside
                self.taken_beside = 0
        if self._permits_back > self._kept_back and self.line.connection is not None:
            self.line.connection.write_now([hot.encode_flow(self.id, self._permits_back - self._kept_back)])
            self._permits_back = self._kept_back

    def deliver_again(self, entries: Mapping[Position, Bits], copies: Iterable[Message[Any]] = ()) -> None:
        """Have messages again, see `Recall.these`."""
        self.recall.these(entries, copies)


def _live_bits(batch_size: int, ack_words: tuple[int, ...]) -> int:
    """The messages of an entry that are not acknowledged."""
    live = (1 << (batch_size or 1)) - 1
    return live & ack_set_from_words(ack_words) if ack_words and batch_size else live
