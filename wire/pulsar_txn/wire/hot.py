"""Codecs of the commands that travel per message: SEND, SEND_RECEIPT, MESSAGE, ACK, ACK_RESPONSE, FLOW.

Plain ints, tuples and bytes in and out, no object per message. Encoders put bytes together by hand, fields in
ascending order. Decoders know the shapes that peers really send; everything else (another field order, fields
of the future, damage) goes to protobuf, so both accept the same bytes and say the same (the tests compare).

Numbers: sequence, ledger, entry and transaction ids are signed as in Java (-1 is -1). `producer_id`,
`consumer_id` and `request_id` are handles to be given back unchanged and stay unsigned. A transaction is named
only if both of its fields are present; (0, 0) is a transaction.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from . import pulsar_pb2 as pb
from .errors import MalformedFrame
from .frames import NAMES, command_end, decode_command
from .ids import AckKey, TxnId, ack_set_from_words, ack_set_to_words, signed64
from .varints import LAST, MINUS_ONE, MORE, NUMBER, NUMBERS, read_varint, signed32, varint

AckId: TypeAlias = tuple[int, int, int | None, int]
"""`(ledger_id, entry_id, ack_set, batch_size)`; in an ack set a bit that is set is an index *not* acknowledged."""

Send: TypeAlias = tuple[int, int, int, TxnId | None, int | None, bool, bool, bytes]
"""`(producer_id, sequence_id, num_messages, txn, highest_sequence_id, is_chunk, marker, entry)`."""

SendReceipt: TypeAlias = tuple[int, int, int, int, int]
"""`(producer_id, sequence_id, ledger_id, entry_id, highest_sequence_id)`."""

Message: TypeAlias = tuple[int, int, int, int, int, tuple[int, ...], int | None, bytes]
"""`(consumer_id, ledger_id, entry_id, partition, redelivery_count, ack_set_words, consumer_epoch, entry)`. The
broker's own block may come before the entry; `entries` reads it and passes over it."""

Ack: TypeAlias = tuple[int, bool, list[AckId], TxnId | None, int | None, AckKey | None]
"""`(consumer_id, cumulative, ids, txn, request_id, key)`."""

AckResponse: TypeAlias = tuple[int, int | None, TxnId | None, int | None, str | None]
"""`(consumer_id, request_id, txn, error, message)`."""

_HEAD: Final = struct.Struct(">II3s").pack
_SIZES: Final = struct.Struct(">II").pack
_2_28: Final = 1 << 28
_LONGEST_USUAL: Final = 9
"""Bytes of a varint that is no negative number."""

_new: Final = tuple.__new__

_SEND: Final = b"\x08\x06\x32"
_SEND_RECEIPT: Final = b"\x08\x07\x3a"
_MESSAGE: Final = b"\x08\x09\x4a"
_ACK: Final = b"\x08\x0a\x52"
_FLOW: Final = b"\x08\x0b\x5a"
_ACK_RESPONSE: Final = b"\x08\x26\xb2\x02"

_FULL_WORD: Final = b"\x28" + MINUS_ONE
"""Nearly every word of the ack set of a large batch."""

_2_64: Final = 1 << 64
_MAX_LONG: Final = (1 << 63) - 1
_MAX_INT: Final = (1 << 31) - 1
_MAX_UINT: Final = (1 << 32) - 1


def ends_of(prefix: bytes) -> dict[bytes, int]:
    """End of the body, by the first bytes of a frame whose body is shorter than 128 bytes.

    One look-up checks the type, that the body is in the usual place, and that both sizes agree.
    """
    start = len(prefix) + 5
    return {(start - 4 + size).to_bytes(4) + prefix + bytes((size,)): start + size for size in range(128)}


def starts_of(prefix: bytes) -> list[bytes]:
    """Bytes before the body of a whole frame, by the size of the body, which is shorter than 128 bytes."""
    head = len(prefix) + 1
    return [_SIZES(head + size + 4, head + size) + prefix + bytes((size,)) for size in range(128)]


_SEND_ENDS: Final = ends_of(_SEND)
_SEND_RECEIPT_ENDS: Final = ends_of(_SEND_RECEIPT)
_SEND_RECEIPT_HEADS: Final = {4 + end: end.to_bytes(4) + start for start, end in _SEND_RECEIPT_ENDS.items()}
_SEND_RECEIPT_STARTS: Final = starts_of(_SEND_RECEIPT)
_MESSAGE_ENDS: Final = ends_of(_MESSAGE)
_ACK_ENDS: Final = ends_of(_ACK)
_FLOW_ENDS: Final = ends_of(_FLOW)
_ACK_RESPONSE_ENDS: Final = ends_of(_ACK_RESPONSE)
_ACK_RESPONSE_STARTS: Final = starts_of(_ACK_RESPONSE)


def shape_of(*parts: bytes) -> Callable[[bytes, int, int], re.Match[bytes] | None]:
    """A matcher of bodies that are exactly these parts: called with a frame, and where its body begins and ends.

    The one engine for bytes that runs in C: it is several times faster than a loop over the fields. `N` in a part
    represents a number (a group, see `NUMBER`); what a peer may leave out is in `(?:…)?`.
    """
    return re.compile(b"".join(parts).replace(b"N", NUMBER), re.DOTALL).fullmatch


_SEND_SHAPE: Final = shape_of(rb"\x08N\x10N(?:\x18N)?(?:\x20N\x28N)?(?:\x30N)?(?:\x38([\x00\x01]))?(?:\x40([\x00\x01]))?")
_MESSAGE_SHAPE: Final = shape_of(rb"\x08N\x12(.)(\x08N\x10N(?:\x18N)?)(?:\x18N)?(?:\x20N)?(?:\x28N)?")
_FLOW_SHAPE: Final = shape_of(rb"\x08N\x10N")
_ACK_SHAPE: Final = shape_of(
    rb"\x08N\x10([\x00\x01])\x1a(.)(\x08N\x10N(?:\x28N)?(?:\x30N)?)(?:\x30N\x38N)?(?:\x40N)?"
    rb"(?:\xa1\x06(.{8})\xa8\x06N)?"
)
_ACK_RESPONSE_SHAPE: Final = shape_of(rb"\x08N(?:\x10N\x18N)?(?:\x30N)?")


def txn_id_of(least: int, most: int) -> TxnId:
    """The id from its halves on the wire; without NamedTuple's own constructor, which takes three times as long."""
    return _new(TxnId, (most if most <= _MAX_LONG else most - _2_64, least if least <= _MAX_LONG else least - _2_64))


def _frame(prefix: bytes, body: bytes, more: int = 0) -> bytes:
    """A frame head with its command; `more` bytes of an entry follow in another buffer."""
    length = varint(len(body))
    size = 3 + len(length) + len(body)
    return _HEAD(size + 4 + more, size, prefix) + length + body


def _body(frame: bytes, kind: int) -> pb.BaseCommand:
    command = decode_command(frame)
    if command.type != kind:
        raise MalformedFrame(f"a command of type {command.type} where a {NAMES[kind]} was expected")
    return command


# ---------------------------------------------------------------- SEND and its receipt


def encode_send(
    producer_id: int,
    sequence_id: int,
    num_messages: int,
    entry: bytes,
    *,
    txn: TxnId | None = None,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
) -> list[bytes]:
    """The buffers of a SEND, for `writelines`: the command, and the entry as it is. One message goes without a count."""
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence_id)
    if num_messages > 1:
        body += b"\x18" + varint(num_messages)
    if txn is not None:
        body += b"\x20" + varint(txn[1]) + b"\x28" + varint(txn[0])
    if highest_sequence_id is not None:
        body += b"\x30" + varint(highest_sequence_id)
    if is_chunk:
        body += b"\x38\x01"
    if marker:
        body += b"\x40\x01"
    return [_frame(_SEND, body, len(entry)), entry]


def decode_send(frame: bytes) -> Send:
    """See `Send`; `highest_sequence_id` is None when absent. The entry is not looked at. MalformedFrame."""
    end = _SEND_ENDS.get(frame[:8])
    if end is not None and end <= len(frame) and (found := _SEND_SHAPE(frame, 8, end)) is not None:
        producer, sequence, count, least, most, highest, is_chunk, marker = found.groups()
        sequence_id = NUMBERS[sequence]
        num_messages = 1 if count is None else NUMBERS[count]
        if num_messages <= _MAX_INT:
            return (
                NUMBERS[producer],
                sequence_id if sequence_id <= _MAX_LONG else sequence_id - _2_64,
                num_messages,
                None
                if least is None
                else _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                if len(least) <= _LONGEST_USUAL >= len(most)
                else txn_id_of(NUMBERS[least], NUMBERS[most]),
                None if highest is None else signed64(NUMBERS[highest]),
                is_chunk == b"\x01",
                marker == b"\x01",
                frame[end:],
            )
    send = _body(frame, 6).send
    has = send.HasField
    return (
        send.producer_id,
        signed64(send.sequence_id),
        send.num_messages,
        txn_id_of(send.txnid_least_bits, send.txnid_most_bits) if has("txnid_least_bits") and has("txnid_most_bits") else None,
        signed64(send.highest_sequence_id) if has("highest_sequence_id") else None,
        send.is_chunk,
        send.marker,
        frame[command_end(frame) :],
    )


def encode_send_receipt(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, *, highest_sequence_id: int = 0, partition: int = -1
) -> bytes:
    """The frame of a SEND_RECEIPT; position (-1, -1) tells the producer that its message was a duplicate."""
    if (
        0 <= producer_id < 16384
        and 0 <= sequence_id < _2_28
        and 0 <= ledger_id < _2_28
        and 0 <= entry_id < _2_28
        and 0 <= highest_sequence_id < _2_28
        and partition < 0
    ):
        place = (
            b"\x08"
            + (LAST[ledger_id] if ledger_id < 16384 else MORE[ledger_id & 16383] + LAST[ledger_id >> 14])
            + b"\x10"
            + (LAST[entry_id] if entry_id < 16384 else MORE[entry_id & 16383] + LAST[entry_id >> 14])
        )
        body = (
            b"\x08"
            + LAST[producer_id]
            + b"\x10"
            + (LAST[sequence_id] if sequence_id < 16384 else MORE[sequence_id & 16383] + LAST[sequence_id >> 14])
            + b"\x1a"
            + LAST[len(place)]
            + place
            + b"\x20"
            + (
                LAST[highest_sequence_id]
                if highest_sequence_id < 16384
                else MORE[highest_sequence_id & 16383] + LAST[highest_sequence_id >> 14]
            )
        )
        return _SEND_RECEIPT_STARTS[len(body)] + body
    place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    if partition >= 0:
        place += b"\x18" + varint(partition)
    return _frame(
        _SEND_RECEIPT,
        b"\x08"
        + varint(producer_id)
        + b"\x10"
        + varint(sequence_id)
        + b"\x1a"
        + varint(len(place))
        + place
        + b"\x20"
        + varint(highest_sequence_id),
    )


def decode_send_receipt(frame: bytes) -> SendReceipt:
    """See `SendReceipt`; a receipt without message id reads as position (-1, -1). MalformedFrame."""
    end = _SEND_RECEIPT_ENDS.get(frame[:8])
    if end is not None and end <= len(frame) and (usual := _usual_receipt(frame, 8, end)) is not None:
        return usual
    receipt = _body(frame, 7).send_receipt
    ledger_id = entry_id = -1
    if receipt.HasField("message_id"):
        ledger_id, entry_id = signed64(receipt.message_id.ledgerId), signed64(receipt.message_id.entryId)
    return receipt.producer_id, signed64(receipt.sequence_id), ledger_id, entry_id, signed64(receipt.highest_sequence_id)


def lone_send_receipt(segment: bytes) -> SendReceipt | None:
    """The receipt that is all of what came in, total size included; None for anything else and for unusual shapes."""
    if segment[:12] != _SEND_RECEIPT_HEADS.get(len(segment)):
        return None
    return _usual_receipt(segment, 12, len(segment))


def _usual_receipt(data: bytes, position: int, end: int) -> SendReceipt | None:
    """The body between two positions, if it has the shape that brokers write.

    Without a regular expression: somebody may wait for just this receipt, and after a millisecond of sleep its engine
    has to be fetched from memory again, which takes five times as long as these few lines.
    """
    try:
        producer_id, position = _field(data, position, 0x08)
        sequence_id, position = _field(data, position, 0x10)
        size, position = _field(data, position, 0x1A)
        place_end = position + size
        ledger_id, position = _field(data, position, 0x08)
        entry_id, position = _field(data, position, 0x10)
        if position < place_end:
            _, position = _field(data, position, 0x18)
        if position != place_end:
            return None
        highest = 0
        if position < end:
            highest, position = _field(data, position, 0x20)
    except (IndexError, OverflowError, _UnusualError):
        return None
    if position != end:
        return None
    return producer_id, signed64(sequence_id), signed64(ledger_id), signed64(entry_id), signed64(highest)


def _field(data: bytes, position: int, tag: int) -> tuple[int, int]:
    """The number after a tag, and the position after that."""
    if data[position] != tag:
        raise _UnusualError
    first = data[position + 1]
    return (first, position + 2) if first < 128 else read_varint(data, position + 1)


class _UnusualError(Exception):
    """Another field than the usual one."""


# ---------------------------------------------------------------- MESSAGE and FLOW


def encode_message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    entry: bytes,
    *,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: int | None = None,
    batch_size: int = 0,
    consumer_epoch: int | None = None,
) -> list[bytes]:
    """The buffers of a MESSAGE, for `writelines`. `ack_set` (of `batch_size` indexes) names those still to be taken."""
    if (
        ack_set is None
        and (consumer_epoch is None or 0 <= consumer_epoch < 16384)
        and not redelivery_count
        and -1 <= partition < 16384
        and 0 <= consumer_id < 16384
        and 0 <= ledger_id < _2_28
        and 0 <= entry_id < _2_28
    ):
        place = (
            b"\x08"
            + (LAST[ledger_id] if ledger_id < 16384 else MORE[ledger_id & 16383] + LAST[ledger_id >> 14])
            + b"\x10"
            + (LAST[entry_id] if entry_id < 16384 else MORE[entry_id & 16383] + LAST[entry_id >> 14])
            + b"\x18"
            + (LAST[partition] if partition >= 0 else MINUS_ONE)
        )
        body = b"\x08" + LAST[consumer_id] + b"\x12" + LAST[len(place)] + place
        if consumer_epoch is not None:
            body += b"\x28" + LAST[consumer_epoch]
        size = 4 + len(body)
        return [_HEAD(size + 4 + len(entry), size, _MESSAGE) + LAST[len(body)] + body, entry]
    place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id) + b"\x18" + varint(partition)
    body = b"\x08" + varint(consumer_id) + b"\x12" + varint(len(place)) + place
    if redelivery_count:
        body += b"\x18" + varint(redelivery_count)
    if ack_set is not None:
        for word in ack_set_to_words(ack_set, batch_size):
            body += b"\x20" + varint(word)
    if consumer_epoch is not None:
        body += b"\x28" + varint(consumer_epoch)
    return [_frame(_MESSAGE, body, len(entry)), entry]


def decode_message(frame: bytes) -> Message:
    """See `Message`; no `ack_set_words` means that all indexes are to be taken. MalformedFrame."""
    end = _MESSAGE_ENDS.get(frame[:8])
    if end is not None and end <= len(frame) and (found := _MESSAGE_SHAPE(frame, 8, end)) is not None:
        consumer, size, place, ledger, entry, partition, redelivered, word, epoch = found.groups()
        if len(place) == size[0]:
            ledger_id, entry_id = NUMBERS[ledger], NUMBERS[entry]
            return (
                NUMBERS[consumer],
                ledger_id if ledger_id <= _MAX_LONG else ledger_id - _2_64,
                entry_id if entry_id <= _MAX_LONG else entry_id - _2_64,
                -1 if partition is None else signed32(NUMBERS[partition]),
                0 if redelivered is None else NUMBERS[redelivered] & _MAX_UINT,
                () if word is None else (signed64(NUMBERS[word]),),
                None if epoch is None else signed64(NUMBERS[epoch]),
                frame[end:],
            )
    message = _body(frame, 9).message
    place = message.message_id
    return (
        message.consumer_id,
        signed64(place.ledgerId),
        signed64(place.entryId),
        place.partition,
        message.redelivery_count,
        tuple(message.ack_set),
        signed64(message.consumer_epoch) if message.HasField("consumer_epoch") else None,
        frame[command_end(frame) :],
    )


def encode_flow(consumer_id: int, permits: int) -> bytes:
    """The frame of a FLOW: the consumer may be sent `permits` messages more."""
    return _frame(_FLOW, b"\x08" + varint(consumer_id) + b"\x10" + varint(permits))


def decode_flow(frame: bytes) -> tuple[int, int]:
    """`(consumer_id, permits)`. MalformedFrame."""
    end = _FLOW_ENDS.get(frame[:8])
    if end is not None and end <= len(frame) and (found := _FLOW_SHAPE(frame, 8, end)) is not None:
        consumer, permits = found.groups()
        return NUMBERS[consumer], NUMBERS[permits] & _MAX_UINT
    flow = _body(frame, 11).flow
    return flow.consumer_id, flow.messagePermits


# ---------------------------------------------------------------- ACK and its response


def encode_ack(
    consumer_id: int,
    cumulative: bool,
    ids: Sequence[AckId],
    *,
    txn: TxnId | None = None,
    request_id: int | None = None,
    key: AckKey | None = None,
) -> bytes:
    """The frame of an ACK. With `request_id` the broker answers; an ack in a transaction always has one."""
    parts = [b"\x08" + varint(consumer_id) + (b"\x10\x01" if cumulative else b"\x10\x00")]
    for ledger_id, entry_id, ack_set, batch_size in ids:
        place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
        if ack_set is not None:
            words = ack_set_to_words(ack_set, batch_size)
            place += b"".join([_FULL_WORD if word == -1 else b"\x28" + varint(word) for word in words])
        if batch_size:
            place += b"\x30" + varint(batch_size)
        parts.append(b"\x1a" + varint(len(place)) + place)
    if txn is not None:
        parts.append(b"\x30" + varint(txn[1]) + b"\x38" + varint(txn[0]))
    if request_id is not None:
        parts.append(b"\x40" + varint(request_id))
    if key is not None:
        parts.append(b"\xa1\x06%b\xa8\x06%b" % (key[0].to_bytes(8, "little"), varint(key[1])))
    return _frame(_ACK, b"".join(parts))


def decode_ack(frame: bytes) -> Ack:
    """See `Ack` and `AckId`; `ack_set` is None for a whole entry. MalformedFrame."""
    end = _ACK_ENDS.get(frame[:8])
    if end is not None and end <= len(frame) and (found := _ACK_SHAPE(frame, 8, end)) is not None:
        consumer, kind, size, place, ledger, entry, word, batch_size, least, most, request_id, acker, number = found.groups()
        if len(place) == size[0]:
            ledger_id, entry_id = NUMBERS[ledger], NUMBERS[entry]
            return (
                NUMBERS[consumer],
                kind == b"\x01",
                [
                    (
                        ledger_id if ledger_id <= _MAX_LONG else ledger_id - _2_64,
                        entry_id if entry_id <= _MAX_LONG else entry_id - _2_64,
                        None if word is None else NUMBERS[word],
                        0 if batch_size is None else signed32(NUMBERS[batch_size]),
                    )
                ],
                None
                if least is None
                else _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                if len(least) <= _LONGEST_USUAL >= len(most)
                else txn_id_of(NUMBERS[least], NUMBERS[most]),
                None if request_id is None else NUMBERS[request_id],
                None if acker is None else (int.from_bytes(acker, "little"), NUMBERS[number]),
            )
    ack = _body(frame, 10).ack
    has = ack.HasField
    return (
        ack.consumer_id,
        ack.ack_type == pb.CommandAck.Cumulative,
        [
            (
                signed64(place.ledgerId),
                signed64(place.entryId),
                ack_set_from_words(tuple(place.ack_set)) if place.ack_set else None,
                place.batch_size,
            )
            for place in ack.message_id
        ],
        txn_id_of(ack.txnid_least_bits, ack.txnid_most_bits) if has("txnid_least_bits") and has("txnid_most_bits") else None,
        ack.request_id if has("request_id") else None,
        (ack.acker, ack.ack_number) if has("acker") and has("ack_number") else None,
    )


def encode_ack_response(
    consumer_id: int,
    request_id: int | None,
    *,
    txn: TxnId | None = None,
    error: int | None = None,
    message: str | None = None,
) -> bytes:
    """The frame of an ACK_RESPONSE; `error` is a ServerError and `message` what its user reads."""
    if (
        error is None
        and message is None
        and txn is not None
        and request_id is not None
        and 0 <= consumer_id < 16384
        and request_id >= 0
        and 0 <= txn[0] < 16384
        and 0 <= (least := txn[1]) < _2_28
    ):
        body = (
            b"\x08"
            + LAST[consumer_id]
            + b"\x10"
            + (LAST[least] if least < 16384 else MORE[least & 16383] + LAST[least >> 14])
            + b"\x18"
            + LAST[txn[0]]
            + b"\x30"
            + (MORE[request_id & 16383] + LAST[request_id >> 14] if 16384 <= request_id < _2_28 else varint(request_id))
        )
        return _ACK_RESPONSE_STARTS[len(body)] + body
    body = b"\x08" + varint(consumer_id)
    if txn is not None:
        body += b"\x10" + varint(txn[1]) + b"\x18" + varint(txn[0])
    if error is not None:
        body += b"\x20" + varint(error)
    if message is not None:
        text = message.encode("utf-8", "replace")
        body += b"\x2a" + varint(len(text)) + text
    if request_id is not None:
        body += b"\x30" + varint(request_id)
    head = _ACK_RESPONSE + varint(len(body))
    size = len(head) + len(body)
    return _SIZES(size + 4, size) + head + body


def decode_ack_response(frame: bytes) -> AckResponse:
    """See `AckResponse`. MalformedFrame."""
    end = _ACK_RESPONSE_ENDS.get(frame[:9])
    if end is not None and end <= len(frame) and (found := _ACK_RESPONSE_SHAPE(frame, 9, end)) is not None:
        consumer, least, most, request = found.groups()
        request_id = None if request is None else NUMBERS[request]
        return NUMBERS[consumer], request_id, None if least is None else txn_id_of(NUMBERS[least], NUMBERS[most]), None, None
    response = _body(frame, 38).ackResponse
    has = response.HasField
    return (
        response.consumer_id,
        response.request_id if has("request_id") else None,
        txn_id_of(response.txnid_least_bits, response.txnid_most_bits)
        if has("txnid_least_bits") and has("txnid_most_bits")
        else None,
        response.error if has("error") else None,
        response.message if has("message") else None,
    )
