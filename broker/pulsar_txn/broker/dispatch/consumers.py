"""A consumer as its subscription sees it: permits, what it holds unacknowledged, and the way to its connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.wire.hot import AckId, encode_message
from pulsar_txn.wire.ids import AckKey, Position, TxnId
from pulsar_txn.wire.topics import TopicName

from .position_notes import PositionNotes


class ConsumerOwner(Protocol):
    """The connection of a consumer."""

    async def is_alive(self) -> bool:
        """True if the client answers; if not, this connection and what it holds are gone afterwards."""

    writable: bool

    def write_many(self, buffers: Sequence[bytes]) -> None:
        """Add to what is written at the end of this turn."""

    def consumer_closed(self, consumer: Consumer) -> None:
        """The broker closed the consumer: tell the client to reconnect."""

    def active_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""


class ConsumerCursor(Protocol):
    """Cursor of a subscription."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""

    def backlog(self) -> int:
        """Return how many entries are not."""


class ConsumerDispatcher(Protocol):
    """Dispatcher that sends messages to a consumer."""

    def wake(self) -> None:
        """There may be something to send."""

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """Send these again; None: all that the consumer holds."""


class BatchSizes(Protocol):
    """Reader of acknowledgements, which knows sizes of batches for that."""

    def batch_delivered(self, position: Position, size: int) -> None:
        """A batch was sent."""


class ConsumerTopic(Protocol):
    """The topic of a consumer."""

    @property
    def name(self) -> TopicName:
        """Its full name."""

    async def last_message(self) -> tuple[Position, int]:
        """The last entry that readers may see, and its batch size (-1: one message)."""

    async def unsubscribe(self, subscription: Any) -> None:
        """Delete a subscription of its own."""


class ConsumerSubscription(Protocol):
    """The subscription of a consumer, as its connection sees it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> int:
        """Exclusive, Shared, Failover or Key_Shared, by their numbers."""

    @property
    def topic(self) -> ConsumerTopic:
        """Its topic."""

    @property
    def consumers(self) -> list[Consumer]:
        """Those that are connected."""

    @property
    def cursor(self) -> ConsumerCursor:
        """Return where it is."""

    @property
    def dispatcher(self) -> ConsumerDispatcher:
        """Return who sends."""

    @property
    def reader(self) -> BatchSizes:
        """Return who reads acknowledgements."""

    def acknowledge(self, consumer: Consumer, ids: Sequence[AckId], answer: Answer | None, *, cumulative: bool) -> None:
        """An ACK outside transactions."""

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
        """An ACK in a transaction. A request that is sent again has the key of the first one."""

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""


class Consumer:
    """One consumer of one connection.

    `unacked` is kept for Shared and Key_Shared: which batch indexes of an entry (bit set; 1 for a single message) this
    consumer was sent and has not settled; `pledged` which of them an open transaction acknowledged, so that they are not in
    `unacked_count`. `given` says what the consumer was given, as (indexes, batch size), of entries that it was not given as a
    whole: that is what its acknowledgement of the whole entry means. `pending_acks`: acknowledgements with a
    receipt that is not written yet. `returning`: requests to deliver again that are still being carried out; nothing
    is sent meanwhile. `epoch` is None unless the client counts its redelivery requests (PIP-84).

    `settled_elsewhere`, on Failover: the first message that another consumer acknowledged since this one was given everything
    again. A cumulative acknowledgement in a transaction that reaches it would name what is not this consumer's any more.
    """

    subscription: ConsumerSubscription
    """Set when it joins one."""

    __slots__ = (
        "consumer_id",
        "delivered",
        "epoch",
        "given",
        "key_ranges",
        "name",
        "owner",
        "partition",
        "pending_acks",
        "permits",
        "pledged",
        "priority",
        "read_compacted",
        "returning",
        "settled_elsewhere",
        "subscription",
        "unacked",
        "unacked_count",
    )  # fmt: skip

    def __init__(
        self,
        owner: ConsumerOwner,
        consumer_id: int,
        name: str,
        *,
        priority: int = 0,
        partition: int = -1,
        epoch: int | None = None,
    ) -> None:
        self.owner = owner
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.partition = partition
        self.epoch = epoch
        self.key_ranges: tuple[tuple[int, int], ...] | None = None
        self.read_compacted = False
        self.permits = 0
        self.pending_acks = 0
        self.unacked: dict[Position, int] = {}
        self.unacked_count = 0
        self.returning = 0
        self.pledged: dict[Position, int] = {}
        self.given: PositionNotes[tuple[int, int]] = PositionNotes(_never)  # its subscription puts in one that forgets
        self.settled_elsewhere: Position | None = None
        self.delivered = 0

    def send(
        self, position: Position, data: bytes, messages: int, ack_set: int | None, batch_size: int, redeliveries: int
    ) -> None:
        """Write a MESSAGE and take its permits."""
        self.permits -= messages
        self.delivered += messages
        if batch_size:
            self.subscription.reader.batch_delivered(position, batch_size)
        if ack_set is not None:
            self._give_part(position, ack_set, batch_size)
        elif self.given:
            self.given.discard(position)
        self.owner.write_many(
            encode_message(
                self.consumer_id,
                position[0],
                position[1],
                data,
                partition=self.partition,
                redelivery_count=redeliveries,
                ack_set=ack_set,
                batch_size=batch_size,
                consumer_epoch=self.epoch,
            )
        )

    def _give_part(self, position: Position, indexes: int, batch_size: int) -> None:
        """Note a delivery of less than the whole entry, together with what the consumer has in its hands of it already.

        The note stays when the consumer gives the entry back, or somebody else settles it: an acknowledgement may be on its
        way.
        """
        in_hand = self.unacked.get(position, 0) & ~self.pledged.get(position, 0)
        self.given.put(position, (in_hand | indexes, batch_size))

    def hold(self, position: Position, indexes: int) -> int:
        """Note what was sent; returns how many messages it holds more."""
        known = self.unacked.get(position, 0)
        self.unacked[position] = known | indexes
        more = (indexes & ~known).bit_count()
        self.unacked_count += more
        return more

    def settle(self, position: Position, indexes: int | None) -> None:
        """Indexes (None: all) of an entry are not this consumer's any more."""
        known = self.unacked.get(position)
        if known is None:
            return
        left = 0 if indexes is None else known & ~indexes
        if left:
            self.unacked[position] = left
        else:
            del self.unacked[position]
        gone = known & ~left
        if self.pledged and (pledged := self.pledged.pop(position, 0)):
            gone &= ~pledged
            if pledged & left:
                self.pledged[position] = pledged & left
        self.unacked_count -= gone.bit_count()

    def pledge(self, position: Position, indexes: int | None) -> int:
        """An open transaction acknowledged indexes (None: all) of an entry: still held, for its keys, but counted no more.

        Returns how many messages were counted until now.
        """
        known = self.unacked.get(position)
        if known is None:
            return 0
        before = self.pledged.get(position, 0)
        after = before | (known if indexes is None else known & indexes)
        self.pledged[position] = after
        fewer = (after & ~before).bit_count()
        self.unacked_count -= fewer
        return fewer


def _never(_: Position) -> bool:
    return False
