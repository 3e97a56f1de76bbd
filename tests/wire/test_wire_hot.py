"""Every hot codec against protobuf: the encoders byte for byte, the decoders on every shape that protobuf reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import hot, hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import encode_command
from pulsar_txn.wire.ids import AckKey, TxnId, ack_set_to_words, signed64, unsigned64

# Small, at the borders of varint lengths, and anything: sizes that the readers treat differently.
BORDERS = sorted({n for bits in (7, 14, 21, 28, 35, 42, 56, 63, 64) for n in ((1 << bits) - 1, (1 << bits) % (1 << 64))})
U64 = st.one_of(st.integers(0, 300), st.sampled_from(BORDERS), st.integers(0, 2**64 - 1))
U32 = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
I32 = st.one_of(st.integers(-2, 300), st.integers(-(2**31), 2**31 - 1))
I64 = st.one_of(st.integers(-2, 300), st.integers(-(2**63), 2**63 - 1))
LONG = U64.map(signed64)
TXN = st.none() | st.builds(TxnId, LONG, LONG)
ENTRY = st.binary(max_size=40).filter(lambda entry: entry[:2] != b"\x0e\x02")


def place(**fields: Any) -> st.SearchStrategy[pb.MessageIdData]:
    return st.builds(pb.MessageIdData, ledgerId=U64, entryId=U64, **fields)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def body(message_type: type[Message], required: dict[str, Any], **fields: Any) -> st.SearchStrategy[Message]:
    return st.builds(lambda must, may: message_type(**must, **may), st.fixed_dictionaries(required), optional(**fields))


PLACES = place() | place(partition=I32, batch_index=I32, ack_set=st.lists(I64, max_size=3), batch_size=I32)
TXN_FIELDS = {"txnid_least_bits": U64, "txnid_most_bits": U64}

SUBSCRIPTIONS = st.builds(pb.Subscription, topic=st.text(max_size=70), subscription=st.text(max_size=70))
FIRST = st.builds(
    lambda topic, more: pb.FirstParticipant(topic=topic, **more),
    st.text(max_size=70),
    optional(subscription=st.text(max_size=70), cluster=st.text(max_size=10)),
)
RESPONSE = {
    "required": {"request_id": U64},
    "error": st.sampled_from([0, 23, 25]),
    "message": st.text(max_size=20),
    **TXN_FIELDS,
}

BODIES: dict[str, st.SearchStrategy[Message]] = {
    "newTxn": body(
        pb.CommandNewTxn,
        {"request_id": U64},
        txn_ttl_millis=U64,
        tc_id=U64,
        scalable=st.booleans(),
        participants=st.lists(FIRST, max_size=3),
        nonce=st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
        check_group=st.text(max_size=5),
    ),
    "addPartitionToTxn": body(
        pb.CommandAddPartitionToTxn,
        {"request_id": U64},
        partitions=st.lists(st.text(max_size=150), max_size=3),
        scalable=st.booleans(),
        cluster=st.text(max_size=10),
        **TXN_FIELDS,
    ),
    "addSubscriptionToTxn": body(
        pb.CommandAddSubscriptionToTxn,
        {"request_id": U64},
        subscription=st.lists(SUBSCRIPTIONS, max_size=3),
        scalable=st.booleans(),
        cluster=st.text(max_size=10),
        **TXN_FIELDS,
    ),
    "endTxn": body(
        pb.CommandEndTxn,
        {"request_id": U64},
        txn_action=st.sampled_from([0, 1]),
        scalable=st.booleans(),
        group_least_bits=st.lists(U64, max_size=3),
        abort_others=st.booleans(),
        all_answered=st.booleans(),
        **TXN_FIELDS,
    ),
    "newTxnResponse": body(pb.CommandNewTxnResponse, **RESPONSE),
    "addPartitionToTxnResponse": body(pb.CommandAddPartitionToTxnResponse, **RESPONSE),
    "addSubscriptionToTxnResponse": body(pb.CommandAddSubscriptionToTxnResponse, **RESPONSE),
    "endTxnResponse": body(pb.CommandEndTxnResponse, **RESPONSE),
    "endTxnOnPartitionResponse": body(pb.CommandEndTxnOnPartitionResponse, **RESPONSE),
    "endTxnOnSubscriptionResponse": body(pb.CommandEndTxnOnSubscriptionResponse, **RESPONSE),
    "send": body(
        pb.CommandSend,
        {"producer_id": U64, "sequence_id": U64},
        num_messages=I32,
        highest_sequence_id=U64,
        is_chunk=st.booleans(),
        marker=st.booleans(),
        message_id=PLACES,
        **TXN_FIELDS,
    ),
    "send_receipt": body(
        pb.CommandSendReceipt, {"producer_id": U64, "sequence_id": U64}, message_id=PLACES, highest_sequence_id=U64
    ),
    "message": body(
        pb.CommandMessage,
        {"consumer_id": U64, "message_id": PLACES},
        redelivery_count=U32,
        ack_set=st.lists(I64, max_size=3),
        consumer_epoch=U64,
    ),
    "flow": body(pb.CommandFlow, {"consumer_id": U64, "messagePermits": U32}),
    "ack": body(
        pb.CommandAck,
        {"consumer_id": U64, "ack_type": st.sampled_from([0, 1]), "message_id": st.lists(PLACES, max_size=3)},
        validation_error=st.sampled_from([0, 4]),
        properties=st.lists(st.builds(pb.KeyLongValue, key=st.text(max_size=3), value=U64), max_size=2),
        request_id=U64,
        acker=U64,
        ack_number=U64,
        **TXN_FIELDS,
    ),
    "ackResponse": body(
        pb.CommandAckResponse,
        {"consumer_id": U64},
        error=st.sampled_from([0, 23, 25]),
        message=st.text(max_size=20),
        request_id=U64,
        **TXN_FIELDS,
    ),
}


def txn_of(message: Any) -> TxnId | None:
    if message.HasField("txnid_least_bits") and message.HasField("txnid_most_bits"):
        return TxnId(signed64(message.txnid_most_bits), signed64(message.txnid_least_bits))
    return None


def given_or_none(message: Any, name: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    return convert(getattr(message, name)) if message.HasField(name) else None


def word_set(words: Any) -> int | None:
    return sum(unsigned64(word) << 64 * i for i, word in enumerate(words)) if words else None


def ids_of(message: Any) -> TxnId:
    return TxnId(signed64(message.txnid_most_bits), signed64(message.txnid_least_bits))


def response_of(message: Any, _rest: bytes) -> Any:
    return message.request_id, ids_of(message), given_or_none(message, "error"), given_or_none(message, "message")


def checked(message: Any) -> hot_txn.Checked | None:
    """What a NEW_TXN says of checks."""
    after_ms = given_or_none(message, "check_after_millis")
    group = given_or_none(message, "check_group")
    found = hot_txn.Checked(group, message.check_data, after_ms, message.nonce, message.abort_on_disconnect)
    return None if found == hot_txn.Checked() else found


def end_response_of(message: Any, _rest: bytes) -> Any:
    return message.request_id, given_or_none(message, "error"), given_or_none(message, "message")


# What each decoder has to say of a message that protobuf read, and of the bytes after the command.
EXPECTED: dict[str, Callable[[Any, bytes], Any]] = {
    "newTxn": lambda m, rest: (
        m.request_id,
        m.txn_ttl_millis,
        m.tc_id,
        [(each.topic, given_or_none(each, "subscription"), each.cluster) for each in m.participants],
        checked(m),
    ),
    "addPartitionToTxn": lambda m, rest: (m.request_id, ids_of(m), list(m.partitions), m.cluster),
    "addSubscriptionToTxn": lambda m, rest: (
        m.request_id,
        ids_of(m),
        [(each.topic, each.subscription) for each in m.subscription],
        m.cluster,
    ),
    "endTxn": lambda m, rest: (
        m.request_id,
        ids_of(m),
        m.txn_action,
        tuple(m.group_least_bits),
        m.abort_others,
        m.prepared_token,
        m.answer_at_decision,
        m.all_answered,
    ),
    "newTxnResponse": response_of,
    "addPartitionToTxnResponse": response_of,
    "addSubscriptionToTxnResponse": response_of,
    "endTxnResponse": response_of,
    "endTxnOnPartitionResponse": end_response_of,
    "endTxnOnSubscriptionResponse": end_response_of,
    "send": lambda m, rest: (
        m.producer_id,
        signed64(m.sequence_id),
        m.num_messages,
        txn_of(m),
        given_or_none(m, "highest_sequence_id", signed64),
        m.is_chunk,
        m.marker,
        rest,
    ),
    "send_receipt": lambda m, rest: (
        m.producer_id,
        signed64(m.sequence_id),
        signed64(m.message_id.ledgerId) if m.HasField("message_id") else -1,
        signed64(m.message_id.entryId) if m.HasField("message_id") else -1,
        signed64(m.highest_sequence_id),
    ),
    "message": lambda m, rest: (
        m.consumer_id,
        signed64(m.message_id.ledgerId),
        signed64(m.message_id.entryId),
        m.message_id.partition,
        m.redelivery_count,
        tuple(m.ack_set),
        given_or_none(m, "consumer_epoch", signed64),
        rest,
    ),
    "flow": lambda m, rest: (m.consumer_id, m.messagePermits),
    "ack": lambda m, rest: (
        m.consumer_id,
        m.ack_type == 1,
        [(signed64(p.ledgerId), signed64(p.entryId), word_set(p.ack_set), p.batch_size) for p in m.message_id],
        txn_of(m),
        given_or_none(m, "request_id"),
        (m.acker, m.ack_number) if m.HasField("acker") and m.HasField("ack_number") else None,
    ),
    "ackResponse": lambda m, rest: (
        m.consumer_id,
        given_or_none(m, "request_id"),
        txn_of(m),
        given_or_none(m, "error"),
        given_or_none(m, "message"),
    ),
}


def by_request_id(decoded: tuple[bytes, Any, Any]) -> tuple[Any, ...]:
    """A request with its id in place of its head, which names the same transaction if it names one."""
    head, *others = decoded
    read = pb.CommandEndTxnResponse.FromString(head)
    assert not read.HasField("txnid_least_bits") or ids_of(read) == others[0]
    assert read.request_id == hot_txn.request_id_of(head)
    return (read.request_id, *others)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "send": hot.decode_send,
    "send_receipt": hot.decode_send_receipt,
    "message": hot.decode_message,
    "flow": hot.decode_flow,
    "ack": hot.decode_ack,
    "ackResponse": hot.decode_ack_response,
    "newTxn": lambda frame: (
        *by_request_id(hot_txn.decode_new_txn(frame)),
        hot_txn.first_participants_of(frame),
        hot_txn.checked_of(frame),
    ),
    "addPartitionToTxn": lambda frame: (
        *by_request_id(hot_txn.decode_add_partitions(frame)),
        hot_txn.cluster_of(frame, hot_txn.ADD_PARTITION_TO_TXN),
    ),
    "addSubscriptionToTxn": lambda frame: (
        *by_request_id(hot_txn.decode_add_subscriptions(frame)),
        hot_txn.cluster_of(frame, hot_txn.ADD_SUBSCRIPTION_TO_TXN),
    ),
    "endTxn": lambda frame: by_request_id(hot_txn.decode_end_txn(frame)),
    "newTxnResponse": lambda frame: hot_txn.decode_response(frame, 51),
    "addPartitionToTxnResponse": lambda frame: hot_txn.decode_response(frame, 53),
    "addSubscriptionToTxnResponse": lambda frame: hot_txn.decode_response(frame, 55),
    "endTxnResponse": lambda frame: hot_txn.decode_response(frame, 57),
    "endTxnOnPartitionResponse": lambda frame: hot_txn.decode_end_response(frame, 59),
    "endTxnOnSubscriptionResponse": lambda frame: hot_txn.decode_end_response(frame, 61),
}
NUMBERS = {name: pb.BaseCommand.DESCRIPTOR.fields_by_name[name].number for name in DECODERS}
UNKNOWN = st.sampled_from(
    [b"\xf8\x06\x05", b"\xfa\x06\x02ab", b"\xf9\x0612345678", b"\xfd\x061234", b"\x78\x01", b"\x70\xff\x01"]
)


def plain(value: Any) -> Any:
    """A tuple with its types named, so that 1 and True, bytes and text, a TxnId and a tuple are told apart."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [plain(item) for item in value]
    return type(value).__name__, value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def framed(name: str, data: bytes, rest: bytes = b"", *, type_last: bool = False) -> bytes:
    head = b"\x08" + varint(NUMBERS[name])
    inner = varint(NUMBERS[name] << 3 | 2) + varint(len(data)) + data
    command = inner + head if type_last else head + inner
    return len(command).to_bytes(4) + command + rest


def fields_of(message: Message) -> list[bytes]:
    """Each field of a message serialised by itself; repeated ones item by item."""
    pieces = []
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            single = type(message)()
            if field.is_repeated:
                getattr(single, field.name).append(item)
            elif field.message_type is not None:
                getattr(single, field.name).CopyFrom(item)
            else:
                setattr(single, field.name, item)
            pieces.append(single.SerializePartialToString())
    return pieces


@pytest.mark.parametrize("name", list(DECODERS))
@given(data=st.data())
def test_decoders_say_what_protobuf_says(name: str, data: st.DataObject):
    message = data.draw(BODIES[name])
    rest = data.draw(ENTRY)
    expected = EXPECTED[name](message, rest)
    assert plain(DECODERS[name](framed(name, message.SerializeToString(), rest))) == plain(expected)


@pytest.mark.parametrize("name", list(DECODERS))
@given(data=st.data())
def test_field_order_unknown_fields_and_repetition_change_nothing(name: str, data: st.DataObject):
    message = data.draw(BODIES[name])
    pieces = fields_of(message)
    pieces += data.draw(st.lists(UNKNOWN, max_size=2))
    scrambled = b"".join(data.draw(st.permutations(pieces)))
    read = type(message).FromString(scrambled)
    frame = framed(name, scrambled, type_last=data.draw(st.booleans()))
    assert plain(DECODERS[name](frame)) == plain(EXPECTED[name](read, b""))


PIECE = st.one_of(
    st.builds(lambda tag, value: varint(tag) + varint(value), st.integers(0, 90), U64),
    st.builds(lambda tag, inner: varint(tag) + varint(len(inner)) + inner, st.integers(0, 90), st.binary(max_size=12)),
    st.builds(
        lambda tag, numbers: varint(tag) + varint(sum(map(len, numbers))) + b"".join(numbers),
        st.sampled_from([0x12, 0x1A, 0x4A, 0x2A]),
        st.lists(st.builds(lambda tag, value: varint(tag) + varint(value), st.integers(0, 0x48), U64), max_size=4),
    ),
    st.sampled_from(
        [
            b"\x08\x80\x00",
            b"\x08\x81\x80\x80\x00",
            b"\x10" + b"\xff" * 9 + b"\x7f",
            b"\x10" + b"\x80" * 10,
            b"\x08",
            b"\x1a\x7f",
        ]
    ),
)


@pytest.mark.parametrize("name", list(DECODERS))
@given(pieces=st.lists(PIECE, max_size=7), required=st.booleans(), rest=ENTRY)
def test_decoders_take_and_refuse_the_same_bytes_as_protobuf(name: str, pieces: list[bytes], required: bool, rest: bytes):
    start = {"message": b"\x08\x01\x12\x04\x08\x01\x10\x02", "ackResponse": b"\x08\x01"}.get(name, b"\x08\x01\x10\x01")
    agrees_with_protobuf(name, (start if required else b"") + b"".join(pieces), rest)


def texts_of(message: Any) -> list[Any]:
    subscriptions = getattr(message, "subscription", ())
    texts = [getattr(message, name, "") for name in ("message", "cluster", "check_group")]
    texts += getattr(message, "partitions", ())
    for each in getattr(message, "participants", ()):
        texts += (each.topic, each.subscription, each.cluster)
    return [*texts, *(text for each in subscriptions for text in (each.topic, each.subscription))]


def agrees_with_protobuf(name: str, data: bytes, rest: bytes) -> None:
    frame = framed(name, data, rest)
    try:
        read = pb.BaseCommand.FromString(frame[4 : len(frame) - len(rest)])
        message = getattr(read, name)
        readable = read.IsInitialized() and all(isinstance(text, (str, Message)) for text in texts_of(message))
    except DecodeError:
        readable = False
    if readable:
        assert plain(DECODERS[name](frame)) == plain(EXPECTED[name](message, rest))
    else:
        with pytest.raises(WireError):
            DECODERS[name](frame)


# Bodies that a reader by hand could take for something else; chance does not find them.
PLACE = b"\x1a\x04\x08\x01\x10\x02"
ODD = {
    "a nonce": b"\x08\x01\x10\x01\xc2\x06\x10" + bytes(16),
    "a participant and a nonce": b"\x08\x01\xa2\x06\x03\x0a\x01a\xc2\x06\x10" + bytes(16),
    "a participant whose name ends as a nonce": b"\x08\x01\xa2\x06\x17\x0a\x15ab\xc2\x06\x10" + bytes(16),
    "a nonce before a participant": b"\x08\x01\xc2\x06\x10" + bytes(16) + b"\xa2\x06\x03\x0a\x01a",
    "two nonces": b"\x08\x01\xc2\x06\x10" + bytes(16) + b"\xc2\x06\x10" + bytes(16),
    "a participant": b"\x08\x01\x10\x01\xa2\x06\x03\x0a\x01a",
    "a participant without a topic": b"\x08\x01\x10\x01\x18\x01\xa2\x06\x03\x12\x01a",
    "a participant with a name that is not UTF-8": b"\x08\x01\xa2\x06\x03\x0a\x01\xff",
    "a participant before the numbers": b"\xa2\x06\x03\x0a\x01a\x08\x01\x10\x01",
    "a participant before another number": b"\x08\x01\x10\x01\x18\x02\xa2\x06\x03\x0a\x01a\x08\x07\x10\x08",
    "a participant and a group": b"\x08\x01\xa2\x06\x03\x0a\x01a\xaa\x06\x01g",
    "a topic and a cluster": b"\x08\x01\x10\x01\x18\x01\x22\x01a\xa2\x06\x01c",
    "a topic and a cluster that is not UTF-8": b"\x08\x01\x10\x01\x18\x01\x22\x01a\xa2\x06\x01\xff",
    "a pair and a cluster": b"\x08\x01\x10\x01\x18\x01\x22\x06\x0a\x01a\x12\x01b\xa2\x06\x01c",
    "two clusters": b"\x08\x01\x10\x01\x18\x01\x22\x01a\xa2\x06\x01c\xa2\x06\x01d",
    "field zero with a size": b"\x08\x01\x10\x01\x00\x02\x08\x01",
    "field zero first": b"\x00\x02\x08\x01\x08\x01\x10\x01",
    "fields 10 and 11 of the body": b"\x08\x01\x10\x01\x50\x05\x58\x06",
    "fields 9, 10 and 11 of the body": b"\x08\x01\x10\x01\x48\x03\x50\x05\x58\x06",
    "a number that goes on behind the body": b"\x08\x01\x10\x01\x18\x81",
    "a number of three bytes that goes on behind the body": b"\x08\x01\x10\x01\x20\x81\x82",
    "a field whose number is missing": b"\x08\x01\x10\x01\x30",
    "a nested message longer than the body": b"\x08\x01\x10\x01\x1a\x06\x08\x01\x10\x02",
    "a nested message shorter than its field": b"\x08\x01\x10\x01\x1a\x03\x08\x01\x10\x82\x01",
    "a nested message of MESSAGE longer than the body": b"\x08\x01\x12\x06\x08\x01\x10\x02",
    "a nested message in field zero of a nested one": b"\x08\x01\x10\x01\x1a\x06\x00\x01\x08\x01\x10\x02",
    "two nested messages": b"\x08\x01\x10\x01" + PLACE + b"\x1a\x04\x08\x05\x10\x06",
    "two nested messages of MESSAGE": b"\x08\x01\x12\x04\x08\x01\x10\x02\x12\x02\x10\x05",
    "an enum value of the future": b"\x08\x01\x10\x02" + PLACE,
    "an enum value of the future behind one of today": b"\x08\x01\x10\x01" + PLACE + b"\x10\x02",
    "an error of the future": b"\x08\x01\x20\x63\x30\x07",
    "a uint32 above its range": b"\x08\x01\x12\x04\x08\x01\x10\x02\x18\x85\x80\x80\x80\x20",
    "permits above their range": b"\x08\x01\x10\x85\x80\x80\x80\x20",
    "an int32 above its range": b"\x08\x01\x10\x01\x18\x85\x80\x80\x80\x20",
    "a batch size above its range": b"\x08\x01\x10\x01\x1a\x0a\x08\x01\x10\x02\x30\x85\x80\x80\x80\x20",
    "a partition above its range": b"\x08\x01\x12\x0a\x08\x01\x10\x02\x18\x85\x80\x80\x80\x28",
    "more than 64 bits": b"\x08\x01\x10" + b"\xff" * 9 + b"\x7f" + PLACE,
    "eleven bytes of nothing": b"\x08\x01\x10" + b"\x80" * 10 + b"\x00" + PLACE,
    "ten bytes of nothing": b"\x08\x01\x10" + b"\x80" * 9 + b"\x00" + PLACE,
    "half a transaction, least": b"\x08\x01\x10\x01\x20\x05\x30\x06",
    "half a transaction, most": b"\x08\x01\x10\x01\x28\x05\x38\x06\x18\x01",
    "a bool that is not 0 or 1": b"\x08\x01\x10\x01\x38\x80\x02\x40\x02",
    "a text that is not UTF-8": b"\x08\x01\x10\x01\x18\x01\x22\x02\xff\xfe",
    "a text longer than the body": b"\x08\x01\x10\x01\x22\x05ab",
    "a text of two hundred bytes": b"\x08\x01\x22\xc8\x01" + b"a" * 200,
    "a text whose length never ends": b"\x08\x01\x22\xff",
    "a pair": b"\x08\x01\x22\x06\x0a\x01a\x12\x01b",
    "a pair the other way round": b"\x08\x01\x22\x06\x12\x01b\x0a\x01a",
    "a pair that is not UTF-8": b"\x08\x01\x22\x06\x0a\x01\xff\x12\x01b",
    "a pair of one": b"\x08\x01\x22\x03\x0a\x01a",
    "a pair longer than its field": b"\x08\x01\x22\x06\x0a\x01a\x12\x02bc",
    "a pair whose first part is longer than its field": b"\x08\x01\x22\x06\x0a\x7fa\x12\x01b",
    "a pair of nothing": b"\x08\x01\x22\x04\x0a\x00\x12\x00",
    "a number behind the texts": b"\x08\x01\x22\x01a\x10\x05",
    "an action of the future": b"\x08\x01\x10\x01\x18\x01\x20\x02",
    "packed ack sets": b"\x08\x01\x12\x04\x08\x01\x10\x02\x22\x02\x05\x06",
}


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("name", list(DECODERS))
def test_odd_bodies_are_taken_and_refused_as_by_protobuf(name: str, odd: str):
    for rest in (b"", b"\x01", b"\x01\x01\x01\x01\x01\x01"):
        agrees_with_protobuf(name, ODD[odd], rest)


@pytest.mark.parametrize("name", list(DECODERS))
@given(data=st.binary(max_size=60))
def test_garbage_raises_wire_errors_only(name: str, data: bytes):
    head = framed(name, b"\x08\x01\x10\x01")
    for frame in (data, head[:7] + data, framed(name, data), head + data, head[: len(data) % len(head)]):
        try:
            DECODERS[name](frame)
        except WireError:
            continue
        assert frame[:4] != b""


@pytest.mark.parametrize("name", list(DECODERS))
def test_a_command_of_another_type_is_refused(name: str):
    other = "flow" if name != "flow" else "ackResponse"
    frame = framed(other, b"\x08\x01\x10\x01")
    with pytest.raises(WireError, match="was expected"):
        DECODERS[name](frame)


@pytest.mark.parametrize("name", list(DECODERS))
def test_every_truncation_is_refused(name: str):
    data = {
        "send": b"\x08\x01\x10\x01\x30\xff\x01\x40\x01",
        "message": b"\x08\x01\x12\x04\x08\x01\x10\x02\x28\x07",
        "ack": b"\x08\x01\x10\x01\x1a\x04\x08\x01\x10\x02\x30\x01\x38\x01\x40\x07",
        "ackResponse": b"\x08\x01\x30\xff\x01",
        "newTxn": b"\x08\x01\x10\x01\x18\x01",
        "endTxn": b"\x08\x01\x10\x01\x18\x01\x20\x01",
    }.get(name, b"\x08\x01\x10\x01")
    frame = framed(name, data)
    DECODERS[name](frame)
    for size in range(len(frame)):
        with pytest.raises(WireError):
            DECODERS[name](frame[:size])


def total(buffers: list[bytes]) -> bytes:
    return b"".join(buffers)


def with_entry(command: pb.BaseCommand, entry: bytes) -> bytes:
    frame = encode_command(command)[4:] + entry
    return len(frame).to_bytes(4) + frame


def txn_fields(txn: TxnId | None) -> dict[str, int]:
    return {} if txn is None else {"txnid_least_bits": unsigned64(txn.least), "txnid_most_bits": unsigned64(txn.most)}


@given(U64, LONG, st.integers(1, 2**31 - 1), ENTRY, TXN, st.none() | LONG, st.booleans(), st.booleans())
def test_send_is_written_as_protobuf_writes_it(
    producer_id: int,
    sequence_id: int,
    num_messages: int,
    entry: bytes,
    txn: TxnId | None,
    highest: int | None,
    is_chunk: bool,
    marker: bool,
):
    send = pb.CommandSend(producer_id=producer_id, sequence_id=unsigned64(sequence_id), **txn_fields(txn))
    if num_messages > 1:
        send.num_messages = num_messages
    if highest is not None:
        send.highest_sequence_id = unsigned64(highest)
    if is_chunk:
        send.is_chunk = True
    if marker:
        send.marker = True
    buffers = hot.encode_send(
        producer_id, sequence_id, num_messages, entry, txn=txn, highest_sequence_id=highest, is_chunk=is_chunk, marker=marker
    )
    assert total(buffers) == with_entry(pb.BaseCommand(type=6, send=send), entry)
    assert buffers[-1] is entry
    decoded = hot.decode_send(total(buffers)[4:])
    assert plain(decoded) == plain((producer_id, sequence_id, num_messages, txn, highest, is_chunk, marker, entry))


@given(U64, LONG, LONG, LONG, LONG, st.integers(-1, 2**31 - 1))
def test_send_receipt_is_written_as_protobuf_writes_it(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest: int, partition: int
):
    place = pb.MessageIdData(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id))
    if partition >= 0:
        place.partition = partition
    receipt = pb.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=unsigned64(sequence_id),
        message_id=place,
        highest_sequence_id=unsigned64(highest),
    )
    frame = hot.encode_send_receipt(
        producer_id, sequence_id, ledger_id, entry_id, highest_sequence_id=highest, partition=partition
    )
    assert frame == encode_command(pb.BaseCommand(type=7, send_receipt=receipt))
    assert hot.decode_send_receipt(frame[4:]) == (producer_id, sequence_id, ledger_id, entry_id, highest)


ACK_SETS = st.none() | st.integers(1, 2**200 - 1)


@given(U64, LONG, LONG, ENTRY, st.integers(-1, 2**31 - 1), U32, ACK_SETS, st.none() | LONG)
def test_message_is_written_as_protobuf_writes_it(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    entry: bytes,
    partition: int,
    redelivered: int,
    ack_set: int | None,
    epoch: int | None,
):
    size = ack_set.bit_length() if ack_set else 0
    words = ack_set_to_words(ack_set, size) if ack_set else []
    message = pb.CommandMessage(
        consumer_id=consumer_id,
        message_id=pb.MessageIdData(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id), partition=partition),
        ack_set=words,
    )
    if redelivered:
        message.redelivery_count = redelivered
    if epoch is not None:
        message.consumer_epoch = unsigned64(epoch)
    buffers = hot.encode_message(
        consumer_id,
        ledger_id,
        entry_id,
        entry,
        partition=partition,
        redelivery_count=redelivered,
        ack_set=ack_set,
        batch_size=size,
        consumer_epoch=epoch,
    )
    assert total(buffers) == with_entry(pb.BaseCommand(type=9, message=message), entry)
    decoded = hot.decode_message(total(buffers)[4:])
    assert decoded == (consumer_id, ledger_id, entry_id, partition, redelivered, tuple(words), epoch, entry)


ACK_IDS = st.tuples(LONG, LONG, ACK_SETS, st.integers(200, 1000)) | st.tuples(LONG, LONG, st.none(), st.just(0))


@given(U64, st.booleans(), st.lists(ACK_IDS, max_size=4), TXN, st.none() | U64, st.none() | st.tuples(U64, U64))
def test_ack_is_written_as_protobuf_writes_it(
    consumer_id: int,
    cumulative: bool,
    ids: list[hot.AckId],
    txn: TxnId | None,
    request_id: int | None,
    key: AckKey | None,
):
    ack = pb.CommandAck(consumer_id=consumer_id, ack_type=int(cumulative), **txn_fields(txn))
    for ledger_id, entry_id, ack_set, batch_size in ids:
        place = ack.message_id.add(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id))
        if ack_set is not None:
            place.ack_set.extend(ack_set_to_words(ack_set, batch_size))
        if batch_size:
            place.batch_size = batch_size
    if request_id is not None:
        ack.request_id = request_id
    if key is not None:
        ack.acker, ack.ack_number = key
    frame = hot.encode_ack(consumer_id, cumulative, ids, txn=txn, request_id=request_id, key=key)
    assert frame == encode_command(pb.BaseCommand(type=10, ack=ack))
    assert plain(hot.decode_ack(frame[4:])) == plain((consumer_id, cumulative, ids, txn, request_id, key))


@pytest.mark.parametrize("fields", [{"acker": 5}, {"ack_number": 5}, {}])
def test_half_a_key_is_none(fields: dict[str, int]):
    ack = pb.CommandAck(consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(ledgerId=1, entryId=2)], **fields)
    assert hot.decode_ack(framed("ack", ack.SerializeToString()))[5] is None


@given(U64, st.none() | U64, TXN, st.none() | st.integers(0, 25), st.none() | st.text(max_size=200))
def test_ack_response_is_written_as_protobuf_writes_it(
    consumer_id: int, request_id: int | None, txn: TxnId | None, error: int | None, message: str | None
):
    response = pb.CommandAckResponse(consumer_id=consumer_id, **txn_fields(txn))
    if error is not None:
        response.error = error
    if message is not None:
        response.message = message
    if request_id is not None:
        response.request_id = request_id
    frame = hot.encode_ack_response(consumer_id, request_id, txn=txn, error=error, message=message)
    assert frame == encode_command(pb.BaseCommand(type=38, ackResponse=response))
    assert plain(hot.decode_ack_response(frame[4:])) == plain((consumer_id, request_id, txn, error, message))


@given(U64, U32)
def test_flow_is_written_as_protobuf_writes_it(consumer_id: int, permits: int):
    frame = hot.encode_flow(consumer_id, permits)
    assert frame == encode_command(
        pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))
    )
    assert hot.decode_flow(frame[4:]) == (consumer_id, permits)


@pytest.mark.parametrize("fields", [{"txnid_least_bits": 5}, {"txnid_most_bits": 5}, {}])
def test_half_a_transaction_id_is_none(fields: dict[str, int]):
    send = pb.CommandSend(producer_id=1, sequence_id=2, **fields)
    assert hot.decode_send(framed("send", send.SerializeToString()))[3] is None
    ack = pb.CommandAck(consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(ledgerId=1, entryId=2)], **fields)
    assert hot.decode_ack(framed("ack", ack.SerializeToString()))[3] is None


def test_zero_zero_is_a_transaction():
    assert hot.decode_send(total(hot.encode_send(1, 2, 1, b"", txn=TxnId(0, 0)))[4:])[3] == TxnId(0, 0)
    assert hot.decode_ack(hot.encode_ack(1, False, [(1, 2, None, 0)], txn=TxnId(0, 0))[4:])[3] == TxnId(0, 0)


def test_a_duplicate_send_has_the_position_before_all_others():
    assert hot.decode_send_receipt(hot.encode_send_receipt(1, 2, -1, -1)[4:])[2:4] == (-1, -1)


def test_an_ack_set_with_nothing_left_stays_an_ack_set():
    ids = [(1, 2, 0, 3), (1, 3, None, 0)]
    assert hot.decode_ack(hot.encode_ack(1, False, ids)[4:])[2] == ids


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_the_brokers_own_block_before_an_entry_stays_with_it(block: bytes, entry: bytes):
    whole = b"\x0e\x02" + len(block).to_bytes(4) + block + entry
    assert hot.decode_message(total(hot.encode_message(1, 2, 3, whole))[4:])[-1] == whole


def test_an_ack_response_message_that_is_not_text_is_refused():
    with pytest.raises(WireError, match="not UTF-8"):
        hot.decode_ack_response(framed("ackResponse", b"\x08\x01\x2a\x01\xff"))
    assert hot.decode_ack_response(hot.encode_ack_response(1, 2, error=0, message="\ud800")[4:])[4] == "?"
