"""Records and snapshots: Pulsar's bytes, unknown fields, versions, damage, and the generated module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_txn.rm_pending_ack.records_pb2 as pb
from pulsar_txn.rm_pending_ack import AckItem, Op, PendingAckHandle, Record
from pulsar_txn.rm_pending_ack.records import NO_TXN, content_of, decode_record, encode_record
from pulsar_txn.rm_pending_ack.testing import ListedCursor
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import TxnId

ROOM = Path(__file__).parents[2] / "rm_pending_ack"
positions = st.tuples(st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))


@st.composite
def acks(draw: st.DrawFn) -> tuple[tuple[int, int], int | None, int]:
    size = draw(st.integers(0, 130))
    bits = draw(st.none() | st.integers(1, (1 << size) - 1)) if size else None
    return draw(positions), bits, size


txn_ids = st.builds(TxnId, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
just, whole = st.just, st.tuples(st.tuples(positions, st.none(), st.just(0)))
none, no_data = st.just(-1), st.just(None)
no_key, keys = st.just(None), st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
records = st.one_of(
    st.tuples(just(Op.ACK), txn_ids, st.lists(acks(), max_size=3).map(tuple), just(False), none, keys, no_data),
    st.tuples(just(Op.ACK), txn_ids, st.tuples(acks()), just(True), none, keys, no_data),
    st.tuples(
        st.sampled_from([Op.COMMIT, Op.ABORT]), txn_ids, just(()), st.booleans(), st.integers(-1, 2**63 - 1), no_key, no_data
    ),
    st.tuples(just(Op.PLAIN_ACK), just(NO_TXN), st.tuples(acks()), st.booleans(), none, no_key, no_data),
    st.tuples(st.sampled_from([Op.CURSOR_STORED, Op.CURSOR_RESET]), just(NO_TXN), whole, just(False), none, no_key, no_data),
).map(Record._make)


@given(records)
def test_decoded_record_is_what_was_encoded(record: Record) -> None:
    data = encode_record("log", record)
    assert decode_record(data)._replace(data=None) == record
    assert encode_record("log", decode_record(data)) == data


@given(records)
def test_a_record_has_the_bytes_that_protobuf_writes(record: Record) -> None:
    data = encode_record("log", record)
    entry = pb.PendingAckMetadataEntry.FromString(data)
    assert entry.SerializeToString(deterministic=True) == data
    named = (entry.txnid_most_bits, entry.txnid_least_bits) if entry.HasField("txnid_least_bits") else NO_TXN
    assert named == record.txn_id
    assert [item.HasField("batch_size") for item in entry.pending_ack_metadata] == [size > 0 for _, _, size in record.items]


def test_record_is_pulsars_message_with_our_fields_behind() -> None:
    data = encode_record("log", Record(Op.ACK, TxnId(0, 5), (((3, 9), 0b101, 4),)))
    entry = pb.PendingAckMetadataEntry.FromString(data)
    assert (entry.txnid_most_bits, entry.txnid_least_bits, entry.record_version) == (0, 5, 1)
    (item,) = entry.pending_ack_metadata
    assert (item.ledgerId, item.entryId, list(item.ack_set), item.batch_size) == (3, 9, [0b1010], 4)
    assert data.hex() == "080110001805" + "2000" + "2a08" + "08031009180a2004" + "a00601"


def test_record_that_pulsar_wrote_is_read() -> None:
    # ACK Individual of (0,5): entry 3:9 whole, entry 3:10 of 4 with index 1 left; no version, no batch size in the second.
    data = bytes.fromhex("0801" + "1000" + "1805" + "2000" + "2a0408031009" + "2a060803100a1802")
    record = decode_record(data)
    assert record.txn_id == TxnId(0, 5)
    assert record.items[0] == ((3, 9), None, 0)
    assert record.items[1] == ((3, 10), (1 << 64) - 1 - 2, 64)


def test_a_short_name_tells_what_an_acknowledgement_takes() -> None:
    items: list[AckItem] = [((3, 9), None, 0), ((3, 9), None, 1), ((3, 9), 1, 2), ((3, 9), 2, 2), ((2**62, 9), 2, 2)]
    many = [tuple(items[:2]), tuple(items[1::-1]), tuple(items)]
    names = {content_of(each, cumulative=kind) for each in (*((item,) for item in items), *many) for kind in (False, True)}
    assert len(names) == 2 * (len(items) + len(many))
    assert max(map(len, names)) == 32


def test_fields_of_newer_versions_are_kept() -> None:
    data = encode_record("log", Record(Op.COMMIT, TxnId(1, 2))) + bytes.fromhex("f23f0161")  # field 1022
    assert encode_record("log", decode_record(data)) == data


def without(field: str) -> bytes:
    entry = pb.PendingAckMetadataEntry.FromString(encode_record("log", Record(Op.ACK, TxnId(1, 2), (((3, 9), None, 0),))))
    entry.ClearField(field)  # type: ignore[arg-type]  # a name of the message
    return entry.SerializeToString()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "not a pending-ack record"),
        (encode_record("log", Record(Op.COMMIT, TxnId(1, 2))) + bytes.fromhex("a00602"), "version 2"),
        (without("pending_ack_op"), "does not know"),
        (without("pending_ack_op") + bytes.fromhex("0863"), "does not know"),
        (without("txnid_most_bits"), "of which transaction"),
        (without("txnid_least_bits"), "of which transaction"),
        (bytes.fromhex("0801100018052000" + "2a020803"), "its entry"),
        (encode_record("log", Record(Op.ACK, TxnId(1, 2), (), True)), "exactly one"),
        (encode_record("log", Record(Op.PLAIN_ACK, NO_TXN, (), True)), "exactly one"),
        (encode_record("log", Record(Op.CURSOR_RESET)), "exactly one"),
    ],
)
def test_bytes_that_are_no_record_are_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_record(data)


def test_snapshots_that_are_none_are_refused() -> None:
    handle = PendingAckHandle("t", "s", ListedCursor([0]))
    snapshot = pb.PendingAckSnapshot.FromString(b"".join(handle.snapshot()))
    snapshot.format_version = 3
    for data, says in [
        (b"\xff", "not a pending-ack snapshot"),
        (b"", "not a pending-ack"),
        (snapshot.SerializeToString(), "version 3"),
    ]:
        with pytest.raises(WireError, match=says):
            handle.restore(data)


def test_generated_module_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools writes the generated module; it is in the extra `dev`")
    generator = ROOM.parent / "wire" / "generate_pb2.py"
    subprocess.run([sys.executable, str(generator), "rm_pending_ack", str(tmp_path)], check=True, capture_output=True)
    for name in ("records_pb2.py", "records_pb2.pyi"):
        written = ROOM / "pulsar_txn" / "rm_pending_ack" / name
        assert (tmp_path / name).read_text() == written.read_text(), "run python wire/generate_pb2.py"
