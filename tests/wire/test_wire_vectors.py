"""The test vectors of the reference, both ways, and our enums against those of the definition."""

from __future__ import annotations

import importlib.util
from enum import IntEnum
from pathlib import Path

import pytest
from crc32c import crc32c
from google.protobuf import descriptor_pb2

from pulsar_txn.wire import entries, errors, frames, hot, ids
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import EntryHeader, TxnAction, TxnId

COMMANDS = [
    ("ping", {}, "00000009000000050812920100"),
    ("tcClientConnectRequest", {"request_id": 1, "tc_id": 0}, "0000000d00000009083ef2030408011000"),
    ("tcClientConnectResponse", {"request_id": 1}, "0000000b00000007083ffa03020801"),
    ("newTxn", {"request_id": 2, "txn_ttl_millis": 60000, "tc_id": 0}, "000000110000000d0832920308080210e0d4031800"),
    (
        "newTxnResponse",
        {"request_id": 2, "txnid_least_bits": 5, "txnid_most_bits": 0},
        "0000000f0000000b08339a0306080210051800",
    ),
    (
        "endTxn",
        {"request_id": 3, "txnid_least_bits": 5, "txnid_most_bits": 0, "txn_action": pb.COMMIT},
        "000000110000000d0838c203080803100518002000",
    ),
]
MARKER = "0e019e9f882d0000002e0a1170756c7361722e74786e2e6d61726b657210ffffffffffffffffff011880d095ffbc31a00115b00105b80100"
SEND = "000000310000000c0806320808011000200528000e01324751b3000000120a017010001880d095ffbc31b00105b8010068656c6c6f"


def test_the_checksum_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(("name", "fields", "expected"), COMMANDS, ids=[name for name, _, _ in COMMANDS])
def test_commands_have_the_bytes_of_the_reference(name: str, fields: dict[str, int], expected: str):
    assert frames.command(name, **fields).hex() == expected
    decoded = frames.decode_command(bytes.fromhex(expected)[4:])
    body = getattr(decoded, name)
    assert {field.name: value for field, value in body.ListFields()} == fields
    assert frames.encode_command(decoded).hex() == expected


def test_a_commit_marker_has_the_bytes_of_the_reference():
    marker = entries.encode_marker(TxnId(0, 5), TxnAction.COMMIT, 1_700_000_000_000)
    assert marker.hex() == MARKER
    entries.verify_checksum(marker)
    header = entries.read_header(marker)
    assert header == EntryHeader("pulsar.txn.marker", -1, -1, 1_700_000_000_000, TxnId(0, 5), ids.MarkerType.TXN_COMMIT, None)
    assert header.is_marker
    assert bytes(entries.split_entry(marker)[1]) == b""


def test_an_abort_marker_differs_in_its_type_only():
    header = entries.read_header(entries.encode_marker(TxnId(7, 2**40), TxnAction.ABORT, 5))
    assert (header.marker_type, header.txn_id, header.publish_time_ms) == (ids.MarkerType.TXN_ABORT, TxnId(7, 2**40), 5)


def test_a_transactional_send_has_the_bytes_of_the_reference():
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1_700_000_000_000, txnid_least_bits=5, txnid_most_bits=0
    )
    entry = entries.encode_entry(metadata, b"hello")
    assert b"".join(hot.encode_send(1, 0, 1, entry, txn=TxnId(0, 5))).hex() == SEND
    assert hot.decode_send(bytes.fromhex(SEND)[4:]) == (1, 0, 1, TxnId(0, 5), None, False, False, entry)
    assert entries.read_header(entry) == EntryHeader("p", 0, 0, 1_700_000_000_000, TxnId(0, 5))


def test_every_command_body_has_its_type_as_field_number():
    types = {value.number for value in pb.BaseCommand.Type.DESCRIPTOR.values}
    assert set(frames.NAMES) == types
    pulsars, ours = set(range(2, 41)) | set(range(50, 69)), set(range(100, 111))
    assert types == pulsars | ours


@pytest.mark.parametrize(("ours", "definition"), [(errors.ServerError, pb.ServerError), (TxnAction, pb.TxnAction)])
def test_our_enums_are_those_of_the_definition(ours: type[IntEnum], definition: object):
    assert {member.name: int(member) for member in ours} == dict(definition.items())


def test_the_generated_module_is_current(tmp_path: Path):
    pytest.importorskip("grpc_tools", reason="grpcio-tools writes the generated module; it is in the extra `dev`")
    room = Path(__file__).resolve().parents[2] / "wire"
    spec = importlib.util.spec_from_file_location("generate_pb2", room / "generate_pb2.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    for written in generator.generate("wire", tmp_path):
        in_tree = room / "pulsar_txn" / "wire" / written.name
        assert written.read_text() == in_tree.read_text(), "run: python wire/generate_pb2.py"


def test_the_definition_has_a_package_of_its_own():
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    assert file.package == "pulsar_txn.wire.proto"
    assert file.syntax in {"", "proto2"}
