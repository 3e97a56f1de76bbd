"""Fields of SUBSCRIBE and SEEK about places and options, and the ids that answers bring."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType
from pulsar_txn.client.schema.base import SchemaInfo
from pulsar_txn.client.state.delivery import Start
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import MessageId, ack_set_to_words, full_ack_set, unsigned64


def start_field(start: Start) -> dict[str, Any]:
    """The place where a cursor without memory begins, for SUBSCRIBE.

    With a batch index the entry itself is delivered as well; what of it was not asked for is skipped by the consumer.
    """
    first, index = start.message_id, start.message_id.batch_index
    if index < 0 and start.inclusive and first not in (EARLIEST_ID, LATEST_ID):
        index = 0
    fields = {"ledgerId": unsigned64(first.ledger_id), "entryId": unsigned64(first.entry_id)}
    return fields | ({"batch_index": index} if index >= 0 else {})


def sought_ms(time: object) -> int:
    """The time that a subscription is moved to, in milliseconds since the epoch. InvalidConfiguration."""
    time_ms = time
    if isinstance(time, datetime):
        try:
            time_ms = int(time.timestamp() * 1000)
        except (ValueError, OverflowError):  # a time without a zone, in a year that the zone here does not reach
            time_ms = -1
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or not 0 <= time_ms < 1 << 63:
        raise InvalidConfiguration(f"a MessageId, a datetime, or milliseconds since the epoch are needed, not {time!r}")
    return time_ms


def subscribe_fields(options: ConsumerOptions, info: SchemaInfo | None, start: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of SUBSCRIBE that follow from the options; `start` is where a cursor without memory begins."""
    fields: dict[str, Any] = {
        "subType": int(options.consumer_type),
        "priority_level": options.priority_level,
        "durable": options.durable,
        "read_compacted": options.read_compacted,
        "initialPosition": int(options.initial_position),
        "replicate_subscription_state": options.replicate_subscription_state,
    }
    if start is not None:
        fields["start_message_id"] = start
    for name, pairs in (("metadata", options.properties), ("subscription_properties", options.subscription_properties)):
        if pairs:
            fields[name] = [{"key": key, "value": value} for key, value in pairs.items()]
    if info is not None:
        fields["schema"] = info.field()
    if options.consumer_type is ConsumerType.KEY_SHARED:
        fields["keySharedMeta"] = _key_shared_field(options)
    return fields


def _key_shared_field(options: ConsumerOptions) -> dict[str, Any]:
    policy = options.key_shared_policy
    if policy is None:
        return {"keySharedMode": pb.AUTO_SPLIT}
    ranges = [{"start": start, "end": end} for start, end in policy.sticky_ranges]
    mode = pb.STICKY if ranges else pb.AUTO_SPLIT
    return {"keySharedMode": mode, "hashRanges": ranges, "allowOutOfOrderDelivery": policy.allow_out_of_order}


def check_numbers(message_id: MessageId) -> None:
    """Raise ValueError for numbers that no message has; on the wire they would be those of another one."""
    if not all(-1 <= number < 1 << 63 for number in message_id):
        raise ValueError("its numbers are -1 and more, and have 63 bits")


def seek_field(message_id: MessageId, *, inclusive: bool) -> dict[str, Any]:
    """The entry, and within a batch the indexes that are still wanted, so that the broker counts the others as done.

    TypeError, ValueError for what is no id.
    """
    check_numbers(message_id)
    fields: dict[str, Any] = {"ledgerId": unsigned64(message_id.ledger_id), "entryId": unsigned64(message_id.entry_id)}
    index, size = message_id.batch_index, message_id.batch_size
    wanted = full_ack_set(size) & ~full_ack_set(index if inclusive else index + 1) if 0 <= index < size else 0
    return fields | ({"ack_set": ack_set_to_words(wanted, size)} if wanted else {})


def message_id_of(data: Any, partition: int) -> MessageId:
    """Return the id that protobuf's MessageIdData names."""
    ledger_id, entry_id = data.ledgerId, data.entryId
    if entry_id >= 1 << 63:
        ledger_id, entry_id = (ledger_id if ledger_id < 1 << 63 else -1), -1
    return MessageId(ledger_id, entry_id, partition, data.batch_index, data.batch_size)


def order_of(message_id: MessageId) -> tuple[int, int, int]:
    """For comparing: an id without batch index represents the whole entry, so after all of its indexes."""
    index = message_id.batch_index
    return (message_id.ledger_id, message_id.entry_id, index if index >= 0 else 1 << 31)
