"""Messages, their ids, and positions in a topic."""

from pulsar_txn.client.receive.committed import CommittedPosition
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Message, deserialize_message_id, serialize_message_id
from pulsar_txn.client.send.batching import SendTicket
from pulsar_txn.wire.ids import MessageId

__all__ = [
    "EARLIEST_ID",
    "LATEST_ID",
    "CommittedPosition",
    "Message",
    "MessageId",
    "SendTicket",
    "deserialize_message_id",
    "serialize_message_id",
]
