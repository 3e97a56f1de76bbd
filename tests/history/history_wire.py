"""On the wire (K17): every frame parses, requests have numbers of their own, every reply belongs to a request that was made on
that connection and has one of its kinds, and has the fields that it must have.

The input is a list of frames for each connection, in the order in which a tap in the middle saw them:
`(direction, t_ns, type, request_id, fields)`. The direction is `to_broker` or `to_client`, the type the name in Pulsar's
`BaseCommand.Type` ("NEW_TXN"), or `UNPARSED` for a frame that the tap could not parse. `request_id` is None in commands without
one; `fields` are the others by name, those that are not set are absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from history_reader import Op
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Frame = tuple[str, int, str, int | None, dict[str, Any]]
Found = tuple[str, tuple[int, ...]]

# What may answer a request beside ERROR. A request that is not here has no number, or its answer has none.
REPLIES: dict[str, frozenset[str]] = {
    request: frozenset(replies.split())
    for request, replies in {
        "SUBSCRIBE": "SUCCESS",
        "UNSUBSCRIBE": "SUCCESS",
        "SEEK": "SUCCESS",
        "CLOSE_PRODUCER": "SUCCESS",
        "CLOSE_CONSUMER": "SUCCESS",
        "WATCH_TOPIC_LIST_CLOSE": "SUCCESS",
        "PRODUCER": "PRODUCER_SUCCESS",
        "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE",
        "LOOKUP": "LOOKUP_RESPONSE",
        "CONSUMER_STATS": "CONSUMER_STATS_RESPONSE",
        "GET_LAST_MESSAGE_ID": "GET_LAST_MESSAGE_ID_RESPONSE",
        "GET_TOPICS_OF_NAMESPACE": "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        "GET_SCHEMA": "GET_SCHEMA_RESPONSE",
        "GET_OR_CREATE_SCHEMA": "GET_OR_CREATE_SCHEMA_RESPONSE",
        "ACK": "ACK_RESPONSE",
        "NEW_TXN": "NEW_TXN_RESPONSE",
        "ADD_PARTITION_TO_TXN": "ADD_PARTITION_TO_TXN_RESPONSE",
        "ADD_SUBSCRIPTION_TO_TXN": "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
        "END_TXN": "END_TXN_RESPONSE",
        "END_TXN_ON_PARTITION": "END_TXN_ON_PARTITION_RESPONSE",
        "END_TXN_ON_SUBSCRIPTION": "END_TXN_ON_SUBSCRIPTION_RESPONSE",
        "TC_CLIENT_CONNECT_REQUEST": "TC_CLIENT_CONNECT_RESPONSE",
        "WATCH_TOPIC_LIST": "WATCH_TOPIC_LIST_SUCCESS",
    }.items()
}
ANSWERS = frozenset().union(*REPLIES.values()) | {"ERROR"}

# Fields that must be there; for transactional replies those of success, unless `error` is there.
NEEDED: dict[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "CONNECT": "client_version",
        "CONNECTED": "server_version",
        "SEND": "producer_id sequence_id",
        "SEND_RECEIPT": "producer_id sequence_id message_id",
        "SEND_ERROR": "producer_id sequence_id error message",
        "MESSAGE": "consumer_id message_id",
        "ACK": "consumer_id ack_type",
        "FLOW": "consumer_id messagePermits",
        "SUBSCRIBE": "topic subscription subType consumer_id",
        "PRODUCER": "topic producer_id",
        "PRODUCER_SUCCESS": "producer_name",
        "ERROR": "error message",
        "END_TXN": "txnid_least_bits txnid_most_bits txn_action",
    }.items()
}
NEEDED_OR_ERROR: dict[str, frozenset[str]] = {
    "NEW_TXN_RESPONSE": frozenset({"txnid_least_bits", "txnid_most_bits"}),
    "LOOKUP_RESPONSE": frozenset({"response"}),
    "PARTITIONED_METADATA_RESPONSE": frozenset({"response"}),
    "GET_LAST_MESSAGE_ID_RESPONSE": frozenset({"last_message_id"}),
}


def k17_wire(connections: Mapping[str, Sequence[Frame]]) -> Verdict:
    """The frames of each connection obey the protocol."""
    bad: list[tuple[str, str, tuple[int, ...]]] = []
    frames = 0
    for name, tapped in connections.items():
        frames += len(tapped)
        for check in (_fields, _numbers, _receipts):
            bad += [(name, what, where) for what, where in check(tapped)]
    if bad:
        name, what, where = bad[0]
        return invalid(
            "K17", f"connection {name}: {what}", [_op(name, connections[name], number) for number in where], len(bad)
        )
    if not frames:
        return unknown("K17", "no frame was tapped")
    return valid("K17", f"{frames} frames on {len(connections)} connections")


def _op(name: str, frames: Sequence[Frame], number: int) -> Op:
    direction, t_ns, kind, request_id, fields = frames[number]
    op = Op(f"{name} {direction}", kind, "ok", {"request_id": request_id, **fields}, t_ns, t_ns)
    op.index = number
    return op


def _fields(frames: Sequence[Frame]) -> Iterator[Found]:
    for number, (_, _, kind, _, fields) in enumerate(frames):
        if kind == "UNPARSED":
            yield "a frame does not parse", (number,)
            continue
        missing = NEEDED.get(kind, frozenset()) - fields.keys()
        if "error" not in fields:
            missing |= NEEDED_OR_ERROR.get(kind, frozenset()) - fields.keys()
        if missing:
            yield f"{kind} lacks {', '.join(sorted(missing))}", (number,)


def _numbers(frames: Sequence[Frame]) -> Iterator[Found]:
    asked: dict[int, int] = {}  # request id: number of the frame
    answered: dict[int, int] = {}
    for number, (direction, _, kind, request_id, fields) in enumerate(frames):
        if request_id is None:
            if direction == "to_client" and kind in ANSWERS:
                yield f"{kind} has no request id", (number,)
        elif direction == "to_broker":
            if request_id in asked:
                yield f"request id {request_id} is used twice", (asked[request_id], number)
            asked[request_id] = number
        elif kind in ANSWERS:
            if request_id not in asked:
                yield f"{kind} answers request {request_id}, which nobody made", (number,)
                continue
            request = frames[asked[request_id]][2]
            if kind != "ERROR" and kind not in REPLIES.get(request, frozenset()):
                yield f"{kind} answers {request}", (asked[request_id], number)
            if request_id in answered:
                yield f"request {request_id} is answered twice", (asked[request_id], answered[request_id], number)
            # A producer that waits for its turn hears that it must wait, and later that it has it.
            if not (kind == "PRODUCER_SUCCESS" and fields.get("producer_ready") is False):
                answered[request_id] = number


def _receipts(frames: Sequence[Frame]) -> Iterator[Found]:
    """Each receipt answers one send that is under way; receipts of a producer come in the order of its sends."""
    under_way: dict[int, dict[tuple[int, int], int]] = {}
    for number, (direction, _, kind, _, fields) in enumerate(frames):
        if kind == "SEND" and direction == "to_broker":
            # Chunks of one message share its sequence id.
            key = fields.get("sequence_id", -1), fields.get("chunk_id", 0)
            under_way.setdefault(fields.get("producer_id", -1), {})[key] = number
        elif kind in ("SEND_RECEIPT", "SEND_ERROR") and direction == "to_client":
            waiting = under_way.get(fields.get("producer_id", -1), {})
            found = next((key for key in waiting if key[0] == fields.get("sequence_id")), None)
            if found is None:
                yield f"{kind} answers no send that is under way", (number,)
                continue
            if kind == "SEND_RECEIPT" and next(iter(waiting)) != found:
                yield "a receipt overtakes that of an earlier send", (next(iter(waiting.values())), waiting[found], number)
            del waiting[found]
