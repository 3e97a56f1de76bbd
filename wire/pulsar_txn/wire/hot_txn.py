"""Codecs of the transaction commands NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN and their responses.

As in `wire.hot`: plain values in and out, encoders put bytes together by hand, decoders know the shapes that peers
really send and ask protobuf for everything else. A transaction has four of them and as many answers, so for short
transactions they weigh more than its messages. Ids that are absent read as 0, as the protocol's defaults say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias

from . import pulsar_pb2 as pb
from ._varint import varint
from .errors import MalformedFrame
from .frames import NAMES, decode_command
from .hot import _NOT_NESTED, _ends, _flat, _txn_id  # the parts of which all hand-written codecs are made
from .ids import TxnId

NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN = 50, 52, 54, 56
"""Command types; the type of the response is the next number."""

RESPONSES: Final = frozenset({51, 53, 55, 57})
"""Types of the four responses."""

Response: TypeAlias = tuple[int, TxnId, int | None, str | None]
"""`(request_id, txn, error, message)`; `error` None: it was done."""

_SIZES: Final = struct.Struct(">II").pack


def _prefix(kind: int) -> bytes:
    """What stands before the size of the body: the type, and the tag of the field with the same number."""
    return b"\x08" + varint(kind) + varint(kind << 3 | 2)


_PREFIX: Final = {kind: _prefix(kind) for kind in range(50, 58)}
_ENDS: Final = {kind: _ends(prefix) for kind, prefix in _PREFIX.items()}
_BODY: Final = 9
"""Where a body of less than 128 bytes begins."""


def _frame(kind: int, body: bytes) -> bytes:
    head = _PREFIX[kind] + varint(len(body))
    size = len(head) + len(body)
    return _SIZES(size + 4, size) + head + body


def _body(frame: bytes, kind: int) -> pb.BaseCommand:
    command = decode_command(frame)
    if command.type != kind:
        raise MalformedFrame(f"a command of type {command.type} where a {NAMES[kind]} was expected")
    return command


def _ids(request_id: int, txn: TxnId) -> bytes:
    return b"\x08" + varint(request_id) + b"\x10" + varint(txn[1]) + b"\x18" + varint(txn[0])


def _place(frame: bytes, kind: int) -> tuple[int, int]:
    """Where the body begins and ends when the command is written in the usual way; (0, -1) when it is not."""
    prefix = _PREFIX[kind]
    if frame[4:8] != prefix or len(frame) < 10:
        return 0, -1
    size, start = frame[8], _BODY
    if size > 127:
        if frame[9] > 127:
            return 0, -1
        size, start = size - 128 + frame[9] * 128, 10
    end = start + size
    return (start, end) if end == len(frame) and int.from_bytes(frame[:4]) == end - 4 else (0, -1)


# ---------------------------------------------------------------- NEW_TXN and END_TXN: numbers only


def encode_new_txn(request_id: int, timeout_ms: int, tc_id: int) -> bytes:
    """The frame of a NEW_TXN."""
    return _frame(NEW_TXN, b"\x08" + varint(request_id) + b"\x10" + varint(timeout_ms) + b"\x18" + varint(tc_id))


def decode_new_txn(frame: bytes) -> tuple[int, int, int]:
    """`(request_id, timeout_ms, tc_id)`, unsigned as they travel. MalformedFrame."""
    end = _ENDS[NEW_TXN].get(frame[:_BODY])
    if end is not None and (fields := _flat(frame, end, _NOT_NESTED, _BODY)) is not None and end == len(frame):
        request_id, timeout_ms, tc_id = fields[1:4]
        if request_id is not None:
            return request_id, timeout_ms or 0, tc_id or 0
    body = _body(frame, NEW_TXN).newTxn
    return body.request_id, body.txn_ttl_millis, body.tc_id


def encode_end_txn(request_id: int, txn: TxnId, action: int) -> bytes:
    """The frame of an END_TXN; `action` is a TxnAction."""
    return _frame(END_TXN, _ids(request_id, txn) + b"\x20" + varint(action))


def decode_end_txn(frame: bytes) -> tuple[int, TxnId, int]:
    """`(request_id, txn, action)`; no action means commit. MalformedFrame."""
    end = _ENDS[END_TXN].get(frame[:_BODY])
    if end is not None and (fields := _flat(frame, end, _NOT_NESTED, _BODY)) is not None and end == len(frame):
        request_id, least, most, action = fields[1:5]
        if request_id is not None and (action is None or action < 2):
            return request_id, _txn_id(least or 0, most or 0), action or 0
    body = _body(frame, END_TXN).endTxn
    return body.request_id, _txn_id(body.txnid_least_bits, body.txnid_most_bits), int(body.txn_action)


# ---------------------------------------------------------------- ADD_PARTITION_TO_TXN and ADD_SUBSCRIPTION_TO_TXN


def encode_add_partitions(request_id: int, txn: TxnId, topics: Iterable[str]) -> bytes:
    """The frame of an ADD_PARTITION_TO_TXN."""
    parts = [_ids(request_id, txn)]
    for topic in topics:
        text = topic.encode()
        parts.append(b"\x22" + varint(len(text)) + text)
    return _frame(ADD_PARTITION_TO_TXN, b"".join(parts))


def decode_add_partitions(frame: bytes) -> tuple[int, TxnId, list[str]]:
    """`(request_id, txn, topics)`. MalformedFrame."""
    found = _numbers_and_texts(frame, ADD_PARTITION_TO_TXN)
    if found is not None:
        request_id, txn_id, places = found
        try:
            return request_id, txn_id, [frame[begin:until].decode() for begin, until in places]
        except UnicodeDecodeError:
            return _partitions_by_protobuf(frame)  # which says what is wrong
    return _partitions_by_protobuf(frame)


def _partitions_by_protobuf(frame: bytes) -> tuple[int, TxnId, list[str]]:
    body = _body(frame, ADD_PARTITION_TO_TXN).addPartitionToTxn
    return body.request_id, _txn_id(body.txnid_least_bits, body.txnid_most_bits), list(body.partitions)


def encode_add_subscriptions(request_id: int, txn: TxnId, subscriptions: Iterable[tuple[str, str]]) -> bytes:
    """The frame of an ADD_SUBSCRIPTION_TO_TXN; each is (topic, subscription)."""
    parts = [_ids(request_id, txn)]
    for topic, subscription in subscriptions:
        first, second = topic.encode(), subscription.encode()
        pair = b"\x0a" + varint(len(first)) + first + b"\x12" + varint(len(second)) + second
        parts.append(b"\x22" + varint(len(pair)) + pair)
    return _frame(ADD_SUBSCRIPTION_TO_TXN, b"".join(parts))


def decode_add_subscriptions(frame: bytes) -> tuple[int, TxnId, list[tuple[str, str]]]:
    """`(request_id, txn, [(topic, subscription)])`. MalformedFrame."""
    found = _numbers_and_texts(frame, ADD_SUBSCRIPTION_TO_TXN)
    if found is not None:
        request_id, txn_id, places = found
        pairs: list[tuple[str, str]] = []
        for begin, until in places:
            pair = _pair(frame, begin, until)
            if pair is None:
                return _subscriptions_by_protobuf(frame)
            pairs.append(pair)
        return request_id, txn_id, pairs
    return _subscriptions_by_protobuf(frame)


def _subscriptions_by_protobuf(frame: bytes) -> tuple[int, TxnId, list[tuple[str, str]]]:
    body = _body(frame, ADD_SUBSCRIPTION_TO_TXN).addSubscriptionToTxn
    named = [(each.topic, each.subscription) for each in body.subscription]
    return body.request_id, _txn_id(body.txnid_least_bits, body.txnid_most_bits), named


def _numbers_and_texts(frame: bytes, kind: int) -> tuple[int, TxnId, list[tuple[int, int]]] | None:
    """Fields 1 to 3, each a number in front, and where the values of field 4 lie; None for any other shape."""
    start, end = _place(frame, kind)
    if end < 0:
        return None
    at = start
    while at < end and frame[at] != 0x22:  # the texts come last: a number's bytes are looked at by `_flat`
        at = _behind_number(frame, at, end)
    fields = _flat(frame, at, _NOT_NESTED, start)
    if fields is None or fields[1] is None or any(value is not None for value in fields[4:]):
        return None
    places: list[tuple[int, int]] = []
    while at < end:
        begin = at + 2
        if begin > end or frame[at] != 0x22:
            return None
        size = frame[at + 1]
        if size > 127:
            if begin >= end or frame[begin] > 127:
                return None
            size += frame[begin] * 128 - 128
            begin += 1
        at = begin + size
        places.append((begin, at))
    if at != end:
        return None
    return fields[1], _txn_id(fields[2] or 0, fields[3] or 0), places


def _behind_number(frame: bytes, at: int, end: int) -> int:
    """The position behind a tag of one byte and its number, `end` at the most."""
    at += 1
    while at < end and frame[at] > 127:
        at += 1
    return min(at + 1, end)


def _pair(frame: bytes, begin: int, until: int) -> tuple[str, str] | None:
    """A Subscription whose two texts are shorter than 128 bytes, in order and UTF-8; None for any other."""
    if until - begin < 4 or frame[begin] != 0x0A or frame[begin + 1] > 127:
        return None
    middle = begin + 2 + frame[begin + 1]
    if middle + 2 > until or frame[middle] != 0x12 or frame[middle + 1] > 127 or middle + 2 + frame[middle + 1] != until:
        return None
    try:
        return frame[begin + 2 : middle].decode(), frame[middle + 2 : until].decode()
    except UnicodeDecodeError:
        return None


# ---------------------------------------------------------------- responses


def encode_response(kind: int, request_id: int, txn: TxnId, *, error: int | None = None, message: str | None = None) -> bytes:
    """The frame of a response; `kind` is its own type, `error` a ServerError and `message` what its user reads."""
    body = _ids(request_id, txn)
    if error is not None:
        body += b"\x20" + varint(error)
    if message is not None:
        text = message.encode("utf-8", "replace")
        body += b"\x2a" + varint(len(text)) + text
    return _frame(kind, body)


def decode_response(frame: bytes, kind: int) -> Response:
    """See `Response`; `kind` is the frame's type, one of RESPONSES. MalformedFrame."""
    end = _ENDS[kind].get(frame[:_BODY])
    if end is not None and (fields := _flat(frame, end, _NOT_NESTED, _BODY)) is not None and end == len(frame):
        request_id, least, most, error = fields[1:5]
        if request_id is not None and error is None:
            return request_id, _txn_id(least or 0, most or 0), None, None
    body = getattr(_body(frame, kind), NAMES[kind])
    return (
        body.request_id,
        _txn_id(body.txnid_least_bits, body.txnid_most_bits),
        int(body.error) if body.HasField("error") else None,
        body.message if body.HasField("message") else None,
    )
