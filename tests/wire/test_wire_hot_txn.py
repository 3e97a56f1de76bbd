"""The encoders of the transaction commands write what protobuf writes. (Their decoders are in test_wire_hot.)"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import NAMES, command
from pulsar_txn.wire.ids import TxnId, signed64, unsigned64

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
TXN = st.builds(TxnId, U64.map(signed64), U64.map(signed64))


def ids(txn: TxnId) -> dict[str, int]:
    return {"txnid_least_bits": unsigned64(txn.least), "txnid_most_bits": unsigned64(txn.most)}


def head_of(request_id: int, txn: TxnId) -> bytes:
    """The fields with which a request of a transaction and its response begin."""
    return pb.CommandEndTxnResponse(request_id=request_id, **ids(txn)).SerializeToString()


@given(U64, U64, U64)
def test_new_txn(request_id: int, timeout_ms: int, tc_id: int):
    frame = hot_txn.encode_new_txn(request_id, timeout_ms, tc_id)
    assert frame == command("newTxn", request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=tc_id)
    head, *others = hot_txn.decode_new_txn(frame[4:])
    assert others == [timeout_ms, tc_id]
    assert hot_txn.request_id_of(head) == request_id
    txn = TxnId(signed64(tc_id), signed64(timeout_ms))
    assert hot_txn.with_txn(head, txn) == head_of(request_id, txn)


FIRST = st.tuples(st.text(max_size=200), st.none() | st.text(max_size=200), st.text(max_size=20))


@given(U64, U64, U64, st.lists(FIRST, max_size=3))
def test_new_txn_with_what_it_writes_to_first(request_id: int, timeout_ms: int, tc_id: int, first: list[Any]):
    frame = hot_txn.encode_new_txn(request_id, timeout_ms, tc_id, first)
    fields = ("topic", "subscription", "cluster")
    named = [{name: value for name, value in zip(fields, each, strict=True) if value} | {"topic": each[0]} for each in first]
    for each, (_, subscription, _) in zip(named, first, strict=True):
        if subscription == "":
            each["subscription"] = ""
    assert frame == command("newTxn", request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=tc_id, participants=named)
    head, *others = hot_txn.decode_new_txn(frame[4:])
    assert others == [timeout_ms, tc_id]
    assert hot_txn.request_id_of(head) == request_id
    assert hot_txn.first_participants_of(frame[4:]) == first


@given(U64, TXN, st.sampled_from([0, 1]))
def test_end_txn(request_id: int, txn: TxnId, action: int):
    frame = hot_txn.encode_end_txn(request_id, txn, action)
    assert frame == command("endTxn", request_id=request_id, txn_action=action, **ids(txn))
    assert hot_txn.decode_end_txn(frame[4:]) == hot_txn.EndTxn(head_of(request_id, txn), txn, action)


@given(U64, TXN, st.sampled_from([0, 1]), st.lists(U64, max_size=5), st.booleans(), st.binary(max_size=40), st.booleans())
def test_end_txn_with_our_fields(
    request_id: int, txn: TxnId, action: int, group: list[int], alone: bool, token: bytes, early: bool
):
    ours: dict[str, Any] = {"abort_others": alone, "prepared_token": token, "answer_at_decision": early}
    frame = hot_txn.encode_end_txn(request_id, txn, action, group, **ours)
    fields = {"group_least_bits": group} | {name: value for name, value in ours.items() if value}
    assert frame == command("endTxn", request_id=request_id, txn_action=action, **fields, **ids(txn))
    assert hot_txn.decode_end_txn(frame[4:]) == hot_txn.EndTxn(
        head_of(request_id, txn), txn, action, tuple(group), alone, token, early
    )


CHECKED = st.builds(
    hot_txn.Checked,
    st.none() | st.text(max_size=50),
    st.binary(max_size=50),
    st.none() | U64,
    st.binary(max_size=20),
    st.booleans(),
)


@given(U64, U64, U64, st.lists(FIRST, max_size=2), CHECKED)
def test_new_txn_with_a_check(request_id: int, timeout_ms: int, tc_id: int, first: list[Any], checked: hot_txn.Checked):
    frame = hot_txn.encode_new_txn(request_id, timeout_ms, tc_id, first, hot_txn.encode_checked(checked))
    head, *others = hot_txn.decode_new_txn(frame[4:])
    assert others == [timeout_ms, tc_id]
    assert hot_txn.request_id_of(head) == request_id
    assert hot_txn.first_participants_of(frame[4:]) == first
    assert hot_txn.checked_of(frame[4:]) == (checked if checked != hot_txn.Checked() else None)


@given(U64, TXN, st.lists(st.text(max_size=200), max_size=3))
def test_add_partitions(request_id: int, txn: TxnId, topics: list[str]):
    frame = hot_txn.encode_add_partitions(request_id, txn, topics)
    assert frame == command("addPartitionToTxn", request_id=request_id, partitions=topics, **ids(txn))
    assert hot_txn.decode_add_partitions(frame[4:]) == (head_of(request_id, txn), txn, topics)


@given(U64, TXN, st.lists(st.tuples(st.text(max_size=200), st.text(max_size=200)), max_size=3))
def test_add_subscriptions(request_id: int, txn: TxnId, pairs: list[tuple[str, str]]):
    frame = hot_txn.encode_add_subscriptions(request_id, txn, pairs)
    named = [{"topic": topic, "subscription": subscription} for topic, subscription in pairs]
    assert frame == command("addSubscriptionToTxn", request_id=request_id, subscription=named, **ids(txn))
    assert hot_txn.decode_add_subscriptions(frame[4:]) == (head_of(request_id, txn), txn, pairs)


@given(U64, TXN, st.booleans(), st.binary(max_size=4))
def test_whether_everything_was_answered(request_id: int, txn: TxnId, settled: bool, token: bytes):
    frame = hot_txn.encode_end_txn(request_id, txn, 0, prepared_token=token + b"\xc0\x06\x01", all_answered=settled)
    assert hot_txn.all_answered_of(frame[4:]) == (txn if settled else None)
    frame = hot_txn.encode_end_txn(request_id, txn, 0, all_answered=settled)
    assert frame == command(
        "endTxn", request_id=request_id, txn_action=0, **ids(txn), **({"all_answered": True} if settled else {})
    )
    assert hot_txn.all_answered_of(frame[4:]) == (txn if settled else None)


@given(U64, TXN, st.text(max_size=200), st.none() | st.text(max_size=200), st.sampled_from([0, 1]), U64.map(signed64))
def test_the_end_at_a_participant(
    request_id: int, txn: TxnId, topic: str, subscription: str | None, action: int, low_watermark: int
):
    mark = {"txnid_least_bits_of_low_watermark": unsigned64(low_watermark)}
    fields: dict[str, Any] = {"request_id": request_id, **ids(txn), "txn_action": action, **mark}
    if subscription is None:
        expected = command("endTxnOnPartition", topic=topic, **fields)
    else:
        expected = command("endTxnOnSubscription", subscription={"topic": topic, "subscription": subscription}, **fields)
    assert hot_txn.encode_end_at(request_id, txn, topic, subscription, action, low_watermark) == expected


@pytest.mark.parametrize("kind", sorted(hot_txn.RESPONSES))
@given(request_id=U64, txn=TXN, error=st.none() | st.sampled_from([0, 19, 25]), message=st.none() | st.text(max_size=200))
def test_responses(kind: int, request_id: int, txn: TxnId, error: int | None, message: str | None):
    fields: dict[str, Any] = {"error": error, "message": message}
    given_fields = {name: value for name, value in fields.items() if value is not None}
    frame = hot_txn.encode_response(kind, head_of(request_id, txn), error=error, message=message)
    assert frame == command(NAMES[kind], request_id=request_id, **ids(txn), **given_fields)
    assert hot_txn.decode_response(frame[4:], kind) == (request_id, txn, error, message)
