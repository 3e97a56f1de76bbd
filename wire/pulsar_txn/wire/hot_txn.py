"""Codecs of the transaction commands NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN, of the two that end a
transaction at a participant, END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION, and of their responses.

As in `wire.hot`: plain values in and out, encoders put bytes together by hand, decoders know the shapes that peers
really send and ask protobuf for everything else. A transaction has four of them and as many answers, so for short
transactions they weigh more than its messages. Requests come with a `head`, the bytes of their
first fields, with which the response begins as well. Ids that are absent read as 0, as the protocol's defaults say.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from . import pulsar_pb2 as pb
from .errors import MalformedFrame
from .frames import NAMES, decode_command
from .hot import ends_of, shape_of, starts_of, txn_id_of  # the parts of which all hand-written codecs are made
from .hot_tails import (
    MAX_TAIL_BYTES,
    FirstParticipant,
    beginning,
    body_start,
    participants_of,
    subscriptions_of,
    topics_of,
)
from .ids import TxnId
from .varints import LAST, MORE, NUMBERS, cached_varint, read_varint, varint

NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN = 50, 52, 54, 56
"""Command types; the type of the response is the next number."""

NEW_TXN_RESPONSE, ADD_PARTITION_TO_TXN_RESPONSE, ADD_SUBSCRIPTION_TO_TXN_RESPONSE, END_TXN_RESPONSE = 51, 53, 55, 57
RESPONSES: Final = frozenset(
    {NEW_TXN_RESPONSE, ADD_PARTITION_TO_TXN_RESPONSE, ADD_SUBSCRIPTION_TO_TXN_RESPONSE, END_TXN_RESPONSE}
)
"""Types of the four responses."""

END_TXN_ON_PARTITION, END_TXN_ON_SUBSCRIPTION = 58, 60
END_RESPONSES: Final = frozenset({59, 61})
"""Types of the answers to END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION."""


class Checked(NamedTuple):
    """Fields of NEW_TXN beside its timeout (`docs/adr/0043`), with the protocol's names.

    `check_after_ms` None: the coordinator's own time. An empty `nonce` is none.
    """

    check_group: str | None = None
    check_data: bytes = b""
    check_after_ms: int | None = None
    nonce: bytes = b""
    abort_on_disconnect: bool = False


Response: TypeAlias = tuple[int, TxnId, int | None, str | None]
"""`(request_id, txn, error, message)`; `error` None: it was done."""

_UsualNewTxn: TypeAlias = tuple["re.Match[bytes]", tuple[FirstParticipant, ...], bytes]
_2_28: Final = 1 << 28
_LONGEST_USUAL: Final = 9
"""Bytes of a varint that is no negative number."""

_new: Final = tuple.__new__
_SIZES: Final = struct.Struct(">II").pack


def _prefix(kind: int) -> bytes:
    """Bytes before the size of the body: the type, and the tag of the field with the same number."""
    return b"\x08" + varint(kind) + varint(kind << 3 | 2)


_PREFIX: Final = {kind: _prefix(kind) for kind in range(50, 62)}
_ENDS: Final = {kind: ends_of(prefix) for kind, prefix in _PREFIX.items()}
STARTS: Final = {kind: starts_of(prefix) for kind, prefix in _PREFIX.items()}
"""By type, then by the size of the body: what comes before the body in its frame. For a response without an error, the body is
the `head` of its request (see `encode_response`)."""

_UNCHECKED: Final = Checked()
_CHECKED_TAGS: Final = tuple(varint(number << 3 | wire) for number, wire in ((101, 2), (102, 2), (103, 0), (104, 2), (105, 0)))
_NONCE_TAG: Final = varint(104 << 3 | 2)
_NONCE_BYTES: Final = 16
_USUAL_NONCE: Final = _NONCE_TAG + varint(_NONCE_BYTES)
"""Bytes before a nonce of our client."""
_SECOND_OF_TAG: Final = b"\x06"
"""Of all of them, and of no byte of most frames that say nothing of checks."""

_ALL_ANSWERED: Final = varint(104 << 3) + b"\x01"
_CLUSTER_TAG: Final = varint(100 << 3 | 2)
_FIRST_TAG: Final = _CLUSTER_TAG
"""Of NEW_TXN: the same field number."""

_BODY: Final = 9
"""Offset of a body of less than 128 bytes."""

_NEW_TXN_SHAPE: Final = shape_of(rb"(\x08N)(?:\x10N)?(?:\x18N)?")
_NEW_TXN_BEGINNING: Final = beginning(rb"(\x08N)(?:\x10N)?(?:\x18N)?")
_IDS_BEGINNING: Final = beginning(rb"(\x08N\x10N\x18N)")
_END_TXN_SHAPE: Final = shape_of(rb"(\x08N\x10N\x18N)(?:\x20([\x00\x01]))?(?:\xc0\x06([\x00\x01]))?")
_RESPONSE_SHAPE: Final = shape_of(rb"\x08N\x10N\x18N")
_PARTITION_SHAPE: Final = shape_of(rb"(\x08N\x10N\x18N)\x22([\x00-\x7f])(.*)")
_SUBSCRIPTION_SHAPE: Final = shape_of(rb"(\x08N\x10N\x18N)\x22([\x00-\x7f])(\x0a([\x00-\x7f])(.*))")


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


# ---------------------------------------------------------------- NEW_TXN and END_TXN: numbers only


def encode_new_txn(
    request_id: int, timeout_ms: int, tc_id: int, first: Iterable[FirstParticipant] = (), more: bytes = b""
) -> bytes:
    """The frame of a NEW_TXN. `first`: registered with it, by a coordinator beside clusters. `more`: see `encode_checked`."""
    numbers = b"\x08" + varint(request_id) + b"\x10" + varint(timeout_ms) + b"\x18" + varint(tc_id)
    return _frame(NEW_TXN, numbers + b"".join(map(_first_participant, first)) + more)


def encode_checked(checked: Checked) -> bytes:
    """The fields of a NEW_TXN that say this, for `encode_new_txn`."""
    group, data, after_ms, nonce, ends_with_it = checked
    if group is None and after_ms is None and not (data or ends_with_it):
        return _NONCE_TAG + varint(len(nonce)) + nonce if nonce else b""
    fields = pb.CommandNewTxn(check_group=group, check_after_millis=after_ms)
    if data:
        fields.check_data = data
    if nonce:
        fields.nonce = nonce
    if ends_with_it:
        fields.abort_on_disconnect = True
    return fields.SerializePartialToString()


def checked_of(frame: bytes) -> Checked | None:
    """Fields of a NEW_TXN beside its timeout; None without any. Raises MalformedFrame."""
    if _SECOND_OF_TAG not in frame or not any(tag in frame for tag in _CHECKED_TAGS):
        return None
    usual = _usual_new_txn(frame)
    if usual is not None:
        return _new(Checked, (None, b"", None, usual[2], False)) if usual[2] else None
    body = _body(frame, NEW_TXN).newTxn
    found = Checked(
        body.check_group if body.HasField("check_group") else None,
        body.check_data,
        body.check_after_millis if body.HasField("check_after_millis") else None,
        body.nonce,
        body.abort_on_disconnect,
    )
    return None if found == _UNCHECKED else found


@lru_cache(4096)
def _first_participant(named: FirstParticipant) -> bytes:
    topic, subscription, cluster = named
    parts = b"\x0a" + _sized(topic)
    if subscription is not None:
        parts += b"\x12" + _sized(subscription)
    if cluster:
        parts += b"\x1a" + _sized(cluster)
    return _FIRST_TAG + varint(len(parts)) + parts


def _sized(name: str) -> bytes:
    text = name.encode()
    return varint(len(text)) + text


def first_participants_of(frame: bytes) -> list[FirstParticipant]:
    """Participants that a NEW_TXN registers at once. Raises MalformedFrame."""
    if _FIRST_TAG not in frame:
        return []
    usual = _usual_new_txn(frame)
    if usual is not None:
        return list(usual[1])
    return [
        (each.topic, each.subscription if each.HasField("subscription") else None, each.cluster)
        for each in _body(frame, NEW_TXN).newTxn.participants
    ]


def decode_new_txn(frame: bytes) -> tuple[bytes, int, int]:
    """`(head, timeout_ms, tc_id)`, numbers unsigned as they travel; `head` holds the request id. MalformedFrame."""
    end = _ENDS[NEW_TXN].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _NEW_TXN_SHAPE(frame, _BODY, end)) is not None:
        head, _, timeout_ms, tc_id = found.groups(b"\0")
        return head, NUMBERS[timeout_ms], NUMBERS[tc_id]
    usual = _usual_new_txn(frame)
    if usual is not None:
        head, _, timeout_ms, tc_id = usual[0].groups(b"\0")
        return head, NUMBERS[timeout_ms], NUMBERS[tc_id]
    body = _body(frame, NEW_TXN).newTxn
    return b"\x08" + varint(body.request_id), body.txn_ttl_millis, body.tc_id


def _usual_new_txn(frame: bytes) -> _UsualNewTxn | None:
    """The numbers of a NEW_TXN, the participants with which it ends, and a nonce after them; None for any other one."""
    return _read_new_txn(frame) if len(frame) < MAX_TAIL_BYTES else None


@lru_cache(1)  # it is asked for several times while a frame is carried out
def _read_new_txn(frame: bytes) -> _UsualNewTxn | None:
    start = body_start(frame, _PREFIX[NEW_TXN])
    found = None if start is None else _NEW_TXN_BEGINNING(frame, start)
    if found is None:
        return None
    tail, nonce = frame[found.end() :], b""
    if tail[-_NONCE_BYTES - len(_USUAL_NONCE) : -_NONCE_BYTES] == _USUAL_NONCE:
        tail, nonce = tail[: -_NONCE_BYTES - len(_USUAL_NONCE)], tail[-_NONCE_BYTES:]
    first = participants_of(tail)
    return None if first is None else (found, first, nonce)


class EndTxn(NamedTuple):
    """Fields of END_TXN. `head`: as of all requests. No action means commit. An empty `prepared_token` is none."""

    head: bytes
    txn: TxnId
    action: int
    group: tuple[int, ...] = ()
    abort_others: bool = False
    prepared_token: bytes = b""
    answer_at_decision: bool = False
    all_answered: bool = False


def encode_end_txn(
    request_id: int,
    txn: TxnId,
    action: int,
    group: Iterable[int] = (),
    *,
    abort_others: bool = False,
    prepared_token: bytes = b"",
    answer_at_decision: bool = False,
    all_answered: bool = False,
) -> bytes:
    """The frame of an END_TXN; `action` is a TxnAction, `group` the `least` of further transactions of the coordinator.

    `abort_others`: whatever else the transactional id of the client has open is aborted. `prepared_token`: shows that the
    sender may end a prepared transaction. `answer_at_decision`: the answer does not wait for participants. `all_answered`:
    nothing of the transaction can come late.
    """
    further = b"".join(map(varint, group))
    together = b"\xa2\x06" + varint(len(further)) + further if further else b""
    others = b"\xa8\x06\x01" if abort_others else b""
    token = b"\xb2\x06" + varint(len(prepared_token)) + prepared_token if prepared_token else b""
    early = b"\xb8\x06\x01" if answer_at_decision else b""
    settled = _ALL_ANSWERED if all_answered else b""
    return _frame(END_TXN, _ids(request_id, txn) + b"\x20" + varint(action) + together + others + token + early + settled)


def decode_end_txn(frame: bytes) -> EndTxn:
    """See `EndTxn`. MalformedFrame."""
    end = _ENDS[END_TXN].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _END_TXN_SHAPE(frame, _BODY, end)) is not None:
        head, _, least, most, action, all_answered = found.groups(b"\0")
        txn = (
            _new(TxnId, (NUMBERS[most], NUMBERS[least]))
            if len(least) <= _LONGEST_USUAL >= len(most)
            else txn_id_of(NUMBERS[least], NUMBERS[most])
        )
        return _new(EndTxn, (head, txn, action[0], (), False, b"", False, all_answered == b"\1"))
    body = _body(frame, END_TXN).endTxn
    txn = txn_id_of(body.txnid_least_bits, body.txnid_most_bits)
    return EndTxn(
        _ids(body.request_id, txn),
        txn,
        int(body.txn_action),
        tuple(body.group_least_bits),
        body.abort_others,
        body.prepared_token,
        body.answer_at_decision,
        body.all_answered,
    )


def all_answered_of(frame: bytes) -> TxnId | None:
    """The transaction of an END_TXN that says `all_answered`; None when it does not. MalformedFrame."""
    if _ALL_ANSWERED not in frame:
        return None
    end = decode_end_txn(frame)
    return end.txn if end.all_answered else None


# ---------------------------------------------------------------- ADD_PARTITION_TO_TXN and ADD_SUBSCRIPTION_TO_TXN


def encode_add_partitions(request_id: int, txn: TxnId, topics: Iterable[str], cluster: str = "") -> bytes:
    """The frame of an ADD_PARTITION_TO_TXN. `cluster`: where the topics are, for a coordinator beside several clusters."""
    parts = [_ids(request_id, txn)]
    for topic in topics:
        text = topic.encode()
        parts.append(b"\x22" + varint(len(text)) + text)
    return _frame(ADD_PARTITION_TO_TXN, b"".join(parts) + _cluster(cluster))


def _cluster(name: str) -> bytes:
    text = name.encode()
    return _CLUSTER_TAG + varint(len(text)) + text if text else b""


def cluster_of(frame: bytes, kind: int) -> str:
    """The cluster that an ADD_PARTITION_TO_TXN or ADD_SUBSCRIPTION_TO_TXN names; empty for none. MalformedFrame."""
    if _CLUSTER_TAG not in frame:
        return ""
    usual = _usual_add(frame, kind)
    if usual is not None:
        return usual[1][1]
    name: str = getattr(_body(frame, kind), NAMES[kind]).cluster
    return name


def decode_add_partitions(frame: bytes) -> tuple[bytes, TxnId, list[str]]:
    """`(head, txn, topics)`. MalformedFrame."""
    end = _ENDS[ADD_PARTITION_TO_TXN].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _PARTITION_SHAPE(frame, _BODY, end)) is not None:
        head, _, least, most, size, topic = found.groups()
        if len(topic) == size[0] and (text := _text(topic)) is not None:
            return (
                head,
                (
                    _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                    if len(least) <= _LONGEST_USUAL >= len(most)
                    else txn_id_of(NUMBERS[least], NUMBERS[most])
                ),
                [text],
            )
    usual = _usual_add(frame, ADD_PARTITION_TO_TXN)
    if usual is not None:
        return *_ids_of(usual[0]), list(usual[1][0])
    body = _body(frame, ADD_PARTITION_TO_TXN).addPartitionToTxn
    txn = txn_id_of(body.txnid_least_bits, body.txnid_most_bits)
    return _ids(body.request_id, txn), txn, list(body.partitions)


@lru_cache(4096)
def _text(data: bytes) -> str | None:
    """A name; None when it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def encode_add_subscriptions(request_id: int, txn: TxnId, subscriptions: Iterable[tuple[str, str]], cluster: str = "") -> bytes:
    """The frame of an ADD_SUBSCRIPTION_TO_TXN; each is (topic, subscription). `cluster`: as `encode_add_partitions`."""
    parts = [_ids(request_id, txn)]
    for topic, subscription in subscriptions:
        first, second = topic.encode(), subscription.encode()
        pair = b"\x0a" + varint(len(first)) + first + b"\x12" + varint(len(second)) + second
        parts.append(b"\x22" + varint(len(pair)) + pair)
    return _frame(ADD_SUBSCRIPTION_TO_TXN, b"".join(parts) + _cluster(cluster))


def decode_add_subscriptions(frame: bytes) -> tuple[bytes, TxnId, list[tuple[str, str]]]:
    """`(head, txn, [(topic, subscription)])`. MalformedFrame."""
    end = _ENDS[ADD_SUBSCRIPTION_TO_TXN].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _SUBSCRIPTION_SHAPE(frame, _BODY, end)) is not None:
        head, _, least, most, size, pair, first, rest = found.groups()
        if len(pair) == size[0] and (named := _pair(first[0], rest)) is not None:
            return (
                head,
                (
                    _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                    if len(least) <= _LONGEST_USUAL >= len(most)
                    else txn_id_of(NUMBERS[least], NUMBERS[most])
                ),
                [named],
            )
    usual = _usual_add(frame, ADD_SUBSCRIPTION_TO_TXN)
    if usual is not None:
        return *_ids_of(usual[0]), list(usual[1][0])
    body = _body(frame, ADD_SUBSCRIPTION_TO_TXN).addSubscriptionToTxn
    txn = txn_id_of(body.txnid_least_bits, body.txnid_most_bits)
    return _ids(body.request_id, txn), txn, [(each.topic, each.subscription) for each in body.subscription]


@lru_cache(4096)
def _pair(size: int, data: bytes) -> tuple[str, str] | None:
    """The two names of a Subscription, the first of `size` bytes, the second with its tag and size before it."""
    first, second = data[:size], data[size + 2 :]
    if data[size : size + 2] != b"\x12" + bytes((len(second),)):
        return None
    try:
        return first.decode(), second.decode()
    except UnicodeDecodeError:
        return None


def _usual_add(frame: bytes, kind: int) -> tuple[re.Match[bytes], tuple[tuple[Any, ...], str]] | None:
    """The ids of an ADD command, and the names with which it ends; None for one that is put together otherwise."""
    start = body_start(frame, _PREFIX[kind])
    found = None if start is None else _IDS_BEGINNING(frame, start)
    if found is None or len(frame) - found.end() > MAX_TAIL_BYTES:
        return None
    tail = frame[found.end() :]
    named = topics_of(tail) if kind == ADD_PARTITION_TO_TXN else subscriptions_of(tail)
    return None if named is None else (found, named)


def _ids_of(found: re.Match[bytes]) -> tuple[bytes, TxnId]:
    head, _, least, most = found.groups()
    return head, txn_id_of(NUMBERS[least], NUMBERS[most])


# ---------------------------------------------------------------- END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION


def encode_end_at(request_id: int, txn: TxnId, topic: str, subscription: str | None, action: int, low_watermark: int) -> bytes:
    """The frame that ends a transaction at a topic, or at a subscription of it. `low_watermark`: -1 for none."""
    kind, named = _place(topic, subscription)
    most, least = txn
    body = b"\x08%b\x10%b\x18%b%b%b\x30%b" % (
        MORE[request_id & 16383] + LAST[request_id >> 14] if 16384 <= request_id < _2_28 else varint(request_id),
        cached_varint(least),
        cached_varint(most),
        named,
        LAST[action],
        cached_varint(low_watermark),
    )
    size = len(body)
    return STARTS[kind][size] + body if size < 128 else _frame(kind, body)


@lru_cache(4096)
def _place(topic: str, subscription: str | None) -> tuple[int, bytes]:
    """The type of the command for a participant, and the bytes that name it, up to the tag of the action."""
    if subscription is None:
        return END_TXN_ON_PARTITION, b"\x22" + _sized(topic) + b"\x28"
    pair = b"\x0a" + _sized(topic) + b"\x12" + _sized(subscription)
    return END_TXN_ON_SUBSCRIPTION, b"\x22" + varint(len(pair)) + pair + b"\x28"


# ---------------------------------------------------------------- responses


def request_id_of(head: bytes) -> int:
    """The request id at the beginning of a head."""
    return read_varint(head, 1)[0]


def with_txn(head: bytes, txn: TxnId) -> bytes:
    """The head of the response to a NEW_TXN, whose own head has no transaction yet."""
    most, least = txn
    usual = MORE[least & 16383] + LAST[least >> 14] if 16384 <= least < _2_28 else varint(least)
    return head + b"\x10" + usual + b"\x18" + (LAST[most] if 0 <= most < 16384 else varint(most))


def encode_response(kind: int, head: bytes, *, error: int | None = None, message: str | None = None) -> bytes:
    """The frame of a response; `kind` is its own type, `error` a ServerError and `message` what its user reads.

    `head` holds the request id and the transaction, as the request brought them: the bytes are the same in both.
    """
    if error is None and message is None and len(head) < len(STARTS[kind]):
        return STARTS[kind][len(head)] + head
    body = head
    if error is not None:
        body += b"\x20" + varint(error)
    if message is not None:
        text = message.encode("utf-8", "replace")
        body += b"\x2a" + varint(len(text)) + text
    return _frame(kind, body)


def decode_end_response(frame: bytes, kind: int) -> tuple[int, int | None, str | None]:
    """`(request_id, error, message)`; `kind` is the frame's type, one of END_RESPONSES. MalformedFrame."""
    end = _ENDS[kind].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _RESPONSE_SHAPE(frame, _BODY, end)) is not None:
        return NUMBERS[found[1]], None, None
    body = getattr(_body(frame, kind), NAMES[kind])
    return (
        body.request_id,
        int(body.error) if body.HasField("error") else None,
        body.message if body.HasField("message") else None,
    )


def decode_response(frame: bytes, kind: int) -> Response:
    """See `Response`; `kind` is the frame's type, one of RESPONSES. MalformedFrame."""
    end = _ENDS[kind].get(frame[:_BODY])
    if end is not None and end <= len(frame) and (found := _RESPONSE_SHAPE(frame, _BODY, end)) is not None:
        request_id, least, most = found.groups()
        return (
            NUMBERS[request_id],
            (
                _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                if len(least) <= _LONGEST_USUAL >= len(most)
                else txn_id_of(NUMBERS[least], NUMBERS[most])
            ),
            None,
            None,
        )
    body = getattr(_body(frame, kind), NAMES[kind])
    return (
        body.request_id,
        txn_id_of(body.txnid_least_bits, body.txnid_most_bits),
        int(body.error) if body.HasField("error") else None,
        body.message if body.HasField("message") else None,
    )
