"""A consumer as its subscription knows it: its permits, what it holds, what it was given in part, and its connection.

All of it is changed by the methods here. Who holds which entry is `holders.Holders`' to say; each consumer has an index of it,
so that what a consumer gives back is found without looking at what all others hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class ConsumerTopic(Protocol):
    """The topic of a consumer, persistent or not."""

    @property
    def name(self) -> TopicName:
        """Its full name."""

    async def last_message(self) -> tuple[Position, int]:
        """The last entry that readers may see, and its batch size (-1: one message)."""

    async def unsubscribe(self, subscription: Any) -> None:
        """Delete a subscription of its own."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone."""


class ConsumerSubscription(Protocol):
    """The subscription of a consumer, of a persistent topic or of another one."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> int:
        """Exclusive, Shared, Failover or Key_Shared, by their numbers."""

    @property
    def consumers(self) -> list[Consumer]:
        """Those that are connected."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""

    def backlog(self) -> int:
        """Number of entries that are not acknowledged."""

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone; use `ConsumerTopic.remove_consumer`."""

    def room_changed(self) -> None:
        """A consumer may be sent something now that it could not be sent before."""

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """Send these again; None: all that the consumer holds."""

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


class Consumer:
    """One consumer of one connection.

    `unacked` is kept for Shared and Key_Shared: which indexes of an entry (bits; 1 for an entry that is one message) this
    consumer was sent and has not settled; `pledged`, which of them an open transaction acknowledged. `unacked_count`: the
    messages of the others. `given` says what the consumer was given, as (indexes, batch size), of entries that it was not given
    as a whole: that is what its acknowledgement of the whole entry means. `pending_acks`: acknowledgements with a receipt that
    is not written yet. `returning`: requests to deliver again that are still being carried out; nothing is sent meanwhile.
    `epoch` is None unless the client counts its redelivery requests (PIP-84).

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
        "is_writable",
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
        "topic",
        "unacked",
        "unacked_count",
    )  # fmt: skip

    def __init__(
        self,
        owner: ConsumerOwner,
        topic: ConsumerTopic,
        consumer_id: int,
        name: str,
        *,
        priority: int = 0,
        partition: int = -1,
        epoch: int | None = None,
        key_ranges: tuple[tuple[int, int], ...] | None = None,
        read_compacted: bool = False,
    ) -> None:
        self.owner = owner
        self.topic = topic
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.partition = partition
        self.epoch = epoch
        self.key_ranges = key_ranges
        self.read_compacted = read_compacted
        self.permits = 0
        self.is_writable = True
        self.pending_acks = 0
        self.unacked: dict[Position, int] = {}
        self.pledged: dict[Position, int] = {}
        self.unacked_count = 0
        self.returning = 0
        self.given: PositionNotes[tuple[int, int]] = PositionNotes(_never)  # its subscription puts in one that forgets
        self.settled_elsewhere: Position | None = None
        self.delivered = 0

    def join(self, subscription: ConsumerSubscription, given: PositionNotes[tuple[int, int]] | None = None) -> None:
        """Take its place in a subscription."""
        self.subscription = subscription
        self.is_writable = self.owner.writable
        if given is not None:
            self.given = given

    # ---- what it may be sent

    def can_take(self, most_unacked: int) -> bool:
        """True if it may be sent something now. `most_unacked`: messages that it may hold (0: any number)."""
        if self.permits <= 0 or self.returning or not self.is_writable:
            return False
        return not most_unacked or self.unacked_count < most_unacked

    def grant(self, permits: int) -> None:
        """FLOW."""
        self.permits += permits

    def take(self, messages: int) -> None:
        """Let so many messages go to it. What it holds of them is not noted (`hold`)."""
        self.permits -= messages
        self.delivered += messages

    def set_writable(self, *, writable: bool) -> None:
        """Its connection takes more, or does not."""
        self.is_writable = writable

    def set_epoch(self, epoch: int) -> None:
        """The client has asked for everything again for so many times (PIP-84)."""
        self.epoch = epoch

    def begin_return(self) -> None:
        """Send it nothing until all that it gives back is taken."""
        self.returning += 1

    def end_return(self, requests: int = 1) -> None:
        """So many of its requests are carried out."""
        self.returning -= requests

    # ---- what it holds

    def hold(self, position: Position, indexes: int, messages: int) -> None:
        """Let messages of an entry go to it; it holds `indexes` of the entry then."""
        self.permits -= messages
        self.delivered += messages
        self.unacked[position] = indexes
        self.unacked_count += messages

    def keep(self, position: Position, indexes: int, pledged: int, messages: int) -> None:
        """Let it hold these of an entry, some of them pledged; so many messages count no more."""
        self.unacked[position] = indexes
        if pledged:
            self.pledged[position] = pledged
        elif self.pledged:
            self.pledged.pop(position, None)
        self.unacked_count -= messages

    def let_go(self, position: Position, messages: int) -> None:
        """Forget an entry of which it holds nothing any more."""
        del self.unacked[position]
        if self.pledged:
            self.pledged.pop(position, None)
        self.unacked_count -= messages

    # ---- acknowledgements

    def begin_ack(self) -> None:
        """An acknowledgement wants a receipt."""
        self.pending_acks += 1

    def end_acks(self, requests: int) -> None:
        """So many receipts are written, or not wanted any more."""
        self.pending_acks -= requests

    def settled_by_another(self, first: Position) -> None:
        """Another consumer acknowledged something, `first` at the earliest."""
        if self.settled_elsewhere is None or first < self.settled_elsewhere:
            self.settled_elsewhere = first

    def given_all_again(self) -> None:
        """Forget what others acknowledged: everything that is not settled comes to it again."""
        self.settled_elsewhere = None

    # ---- writing

    def send(self, position: Position, data: bytes, ack_set: int | None, batch_size: int, redeliveries: int) -> None:
        """Write a MESSAGE."""
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


def by_priority(consumers: Iterable[Consumer]) -> list[Consumer]:
    """Consumers by priority and name, as Pulsar orders them."""
    return sorted(consumers, key=lambda each: (each.priority, each.name))


def _never(_: Position) -> bool:
    return False
