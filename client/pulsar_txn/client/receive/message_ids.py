"""Message ids as bytes: Pulsar's MessageIdData, which the clients of all languages read and write."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import MessageId, signed64, unsigned64


def serialize_message_id(message_id: MessageId) -> bytes:
    """The id as bytes, for a store or a program in another language."""
    data = pb.MessageIdData(ledgerId=unsigned64(message_id.ledger_id), entryId=unsigned64(message_id.entry_id))
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index
    if message_id.batch_size > 0:
        data.batch_size = message_id.batch_size
    return data.SerializeToString()


def deserialize_message_id(data: bytes) -> MessageId:
    """The id of such bytes. InvalidConfiguration, a ValueError, for anything else."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise refused("data", data, "the bytes of a message id")
    try:
        parsed = pb.MessageIdData.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidConfiguration(f"these bytes are no message id: {error}") from error
    if not (parsed.HasField("ledgerId") and parsed.HasField("entryId")):
        raise InvalidConfiguration("these bytes are no message id: ledger and entry are missing")
    place = (signed64(parsed.ledgerId), signed64(parsed.entryId))
    return MessageId(*place, parsed.partition, parsed.batch_index, parsed.batch_size)
