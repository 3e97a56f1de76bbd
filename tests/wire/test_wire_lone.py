"""SENDs of one payload are, byte for byte, what protobuf writes; a receipt that comes by itself is read as among others."""

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_txn.wire import entries, hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import FrameReader, command
from pulsar_txn.wire.ids import TxnId, signed64, unsigned64
from pulsar_txn.wire.lone import LoneSends

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
TXN = st.none() | st.builds(TxnId, U64.map(signed64), U64.map(signed64))


BYTES = st.binary(max_size=300)


@given(U64, st.text(max_size=200), BYTES, U64.map(signed64), st.lists(st.integers(0, 2**43), min_size=1), BYTES, TXN)
def test_a_send_is_written_as_protobuf_writes_it(
    producer_id: int, name: str, version: bytes, sequence_id: int, times: list[int], payload: bytes, txn: TxnId | None
):
    sends = LoneSends(producer_id, name, version)
    for now_ms in (*times, 0, 2**14 - 1, 2**14, 2**14 + 1):
        metadata = pb.MessageMetadata(producer_name=name, sequence_id=unsigned64(sequence_id), publish_time=now_ms)
        if version:
            metadata.schema_version = version
        if txn is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = map(unsigned64, txn)
        buffers = hot.encode_send(producer_id, sequence_id, 1, entries.encode_entry(metadata, payload), txn=txn)
        assert sends.encode(sequence_id, now_ms, payload, txn) == b"".join(buffers)


LONG = U64.map(signed64)


@given(U64, LONG, LONG, LONG, LONG, st.integers(-1, 2**31 - 1))
def test_a_receipt_that_comes_by_itself_is_read_in_one_go(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest: int, partition: int
):
    frame = hot.encode_send_receipt(
        producer_id, sequence_id, ledger_id, entry_id, highest_sequence_id=highest, partition=partition
    )
    assert hot.lone_send_receipt(frame) == (producer_id, sequence_id, ledger_id, entry_id, highest)
    for other in (frame[:-1], frame + b"\0", frame + frame, b""):
        assert hot.lone_send_receipt(other) is None


RECEIPT = hot.encode_send_receipt(1, 2, 300, 70_000, highest_sequence_id=5, partition=6)


@given(st.integers(0, len(RECEIPT) - 1), st.integers(0, 255))
@example(11, 0)
def test_a_damaged_receipt_is_read_as_among_others_or_left_to_them(at: int, value: int):
    damaged = RECEIPT[:at] + bytes((value,)) + RECEIPT[at + 1 :]
    receipt = hot.lone_send_receipt(damaged)
    if receipt is not None:
        (frame,) = FrameReader().feed(damaged)
        assert receipt == hot.decode_send_receipt(frame)


def test_what_is_no_usual_receipt_is_left_to_others():
    place = b"\x1a\x04\x08\x01\x10\x02"
    for body in (b"\x08\x01\x10\x02", b"\x10\x02\x08\x01" + place, b"\x08\x01\x10\x02" + place + b"\x28\x01"):
        frame = b"\x08\x07\x3a" + bytes((len(body),)) + body
        segment = (len(frame) + 4).to_bytes(4) + len(frame).to_bytes(4) + frame
        assert hot.lone_send_receipt(segment) is None
        assert hot.decode_send_receipt(segment[4:])[:2] == (1, 2)
    assert hot.lone_send_receipt(command("ping")) is None
