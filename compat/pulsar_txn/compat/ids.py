"""Message ids with the official methods."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from pulsar_txn import client as ids
from pulsar_txn.client import EARLIEST_ID, LATEST_ID, deserialize_message_id, serialize_message_id
from pulsar_txn.client import Message as OurMessage
from pulsar_txn.compat.exceptions import mapped


@functools.total_ordering
class MessageId:
    """A message's place: ledger, entry, partition, index in its batch; -1 if absent.

    Ordered by ledger, entry, batch index and partition; hashable, which the official one is not.
    """

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1) -> None:
        self._id = ids.MessageId(ledger_id, entry_id, partition, batch_index, 0)
        self._topic = ""
        self._message: OurMessage[Any] | None = None

    @classmethod
    def wrap(cls, msg_id: ids.MessageId | MessageId, topic: str = "", message: OurMessage[Any] | None = None) -> MessageId:
        """For the client: one of its ids as an official one; `message` is the received message that it is the id of."""
        self = cls()
        self._id = msg_id.native() if isinstance(msg_id, MessageId) else msg_id
        self._topic = topic
        self._message = message
        return self

    def native(self) -> ids.MessageId:
        """For the client: its id."""
        return self._id

    def acknowledged(self) -> OurMessage[Any] | ids.MessageId:
        """For the client: what an acknowledgement names, the received message where that is known."""
        return self._id if self._message is None else self._message

    def ledger_id(self) -> int:
        """The ledger."""
        return self._id.ledger_id

    def entry_id(self) -> int:
        """The entry in its ledger."""
        return self._id.entry_id

    def batch_index(self) -> int:
        """The index in its batch; -1 for a message of its own."""
        return self._id.batch_index

    def partition(self) -> int:
        """The partition; -1 for a topic without partitions."""
        return self._id.partition

    def topic_name(self, name: str | None = None) -> str:
        """The full name of its topic partition where that is known, else empty; with `name` it is set."""
        if name is not None:
            self._topic = name
        return self._topic

    def serialize(self) -> bytes:
        """Pulsar's MessageIdData."""
        return serialize_message_id(self._id)

    @staticmethod
    @mapped
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """The id of what `serialize` returned, here or in another client. ValueError for anything else."""
        return MessageId.wrap(deserialize_message_id(message_id_bytes), topic or "")

    def _key(self) -> tuple[int, int, int, int]:
        mine = self._id
        return (mine.ledger_id, mine.entry_id, mine.batch_index, mine.partition)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        mine = self._id
        return f"({mine.ledger_id},{mine.entry_id},{mine.partition},{mine.batch_index})"

    def __repr__(self) -> str:
        return f"MessageId{self}"


MessageId.earliest = MessageId.wrap(EARLIEST_ID)
MessageId.latest = MessageId.wrap(LATEST_ID)
