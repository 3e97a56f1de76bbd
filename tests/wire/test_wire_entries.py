"""Entries in all their forms: current, without checksum, with a broker's block before them, damaged, and markers."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_txn.wire import entries
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ChecksumMismatch, MalformedFrame, WireError
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, TxnAction, TxnId, signed64, unsigned64

U64 = st.integers(0, 300) | st.integers(0, 2**64 - 1)
PAIRS = st.lists(st.builds(pb.KeyValue, key=st.text(max_size=5), value=st.text(max_size=200)), max_size=3)
METADATA = st.builds(
    lambda must, may: pb.MessageMetadata(**must, **may),
    st.fixed_dictionaries({"producer_name": st.text(max_size=200), "sequence_id": U64, "publish_time": U64}),
    st.fixed_dictionaries(
        {},
        optional={
            "properties": PAIRS,
            "partition_key": st.text(max_size=5),
            "replicate_to": st.lists(st.text(max_size=3), max_size=2),
            "compression": st.sampled_from([0, 1, 4]),
            "num_messages_in_batch": st.integers(-1, 300) | st.integers(-(2**31), 2**31 - 1),
            "event_time": U64,
            "deliver_at_time": st.integers(-(2**63), 2**63 - 1),
            "marker_type": st.integers(-1, 30),
            "txnid_least_bits": U64,
            "txnid_most_bits": U64,
            "highest_sequence_id": U64,
            "null_value": st.booleans(),
            "uuid": st.text(max_size=3),
            "num_chunks_from_msg": st.integers(-1, 3),
            "chunk_id": st.integers(-1, 3),
            "entry_hash_max": st.integers(0, 2**32 - 1),
        },
    ),
)
SIMPLE = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
BLOCK = pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_000, index=41).SerializeToString()
BROKER_BLOCK = b"\x0e\x02" + len(BLOCK).to_bytes(4) + BLOCK


def without_checksum(entry: bytes) -> bytes:
    return entry[6:]


FORMS = {
    "current": lambda entry: entry,
    "without checksum": without_checksum,
    "behind a broker's block": lambda entry: BROKER_BLOCK + entry,
    "without checksum, behind a broker's block": lambda entry: BROKER_BLOCK + without_checksum(entry),
    "as a view": memoryview,
}


def expected_header(metadata: pb.MessageMetadata) -> EntryHeader:
    def value(name: str, convert: Any = lambda number: number) -> Any:
        return convert(getattr(metadata, name)) if metadata.HasField(name) else None

    least, most = value("txnid_least_bits", signed64), value("txnid_most_bits", signed64)
    sequence_id = signed64(metadata.sequence_id)
    highest = value("highest_sequence_id", signed64)
    return EntryHeader(
        producer_name=metadata.producer_name,
        sequence_id=sequence_id,
        highest_sequence_id=sequence_id if highest is None else max(highest, sequence_id),
        publish_time_ms=signed64(metadata.publish_time),
        txn_id=None if least is None or most is None else TxnId(most, least),
        marker_type=value("marker_type"),
        num_messages=value("num_messages_in_batch"),
        hints=expected_hints(metadata),
    )


def expected_hints(metadata: pb.MessageMetadata) -> DispatchHints | None:
    deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
    if metadata.HasField("uuid") and metadata.num_chunks_from_msg > 1:
        return DispatchHints(deliver_at_ms, metadata.uuid.encode(), metadata.chunk_id, metadata.num_chunks_from_msg)
    return None if deliver_at_ms is None else DispatchHints(deliver_at_ms)


@pytest.mark.parametrize("form", list(FORMS))
@given(metadata=METADATA, payload=st.binary(max_size=50))
def test_every_form_reads_to_the_same_metadata_header_and_payload(form: str, metadata: pb.MessageMetadata, payload: bytes):
    entry = FORMS[form](entries.encode_entry(metadata, payload))
    raw, view = entries.split_entry(entry)
    assert (raw, bytes(view)) == (metadata.SerializeToString(), payload)
    assert entries.read_metadata(entry) == metadata
    assert entries.read_header(entry) == expected_header(metadata)
    entries.verify_checksum(entry)


@given(metadata=METADATA, is_marked=st.booleans())
@example(
    metadata=pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="k" * 127), is_marked=False
)
@example(
    metadata=pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="k" * 128), is_marked=False
)
def test_the_usual_key_is_the_partition_key_or_none(metadata: pb.MessageMetadata, is_marked: bool):
    if is_marked:
        metadata.partition_key_b64_encoded = True
    key = entries.usual_key(entries.encode_entry(metadata, b"x"))
    plain = not metadata.HasField("ordering_key") and not metadata.partition_key_b64_encoded
    assert key is None or (plain and key == metadata.partition_key.encode())


def test_the_usual_key_of_a_message_with_a_short_key_is_found():
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="key-7")
    entry = entries.encode_entry(metadata, b"x")
    assert entries.usual_key(entry) == b"key-7"
    assert entries.read_header(entry) == expected_header(metadata)
    assert entries.usual_key(entries.encode_entry(SIMPLE, b"x")) is None
    assert entries.usual_key(b"") is None


@given(metadata=METADATA, payload=st.binary(max_size=50))
def test_an_entry_is_magic_checksum_size_metadata_payload(metadata: pb.MessageMetadata, payload: bytes):
    raw = metadata.SerializeToString()
    checked = len(raw).to_bytes(4) + raw + payload
    assert entries.encode_entry(metadata, memoryview(payload)) == b"\x0e\x01" + crc32c(checked).to_bytes(4) + checked


@given(data=st.data(), metadata=METADATA)
def test_the_header_is_read_from_any_field_order_and_beside_unknown_fields(data: st.DataObject, metadata: pb.MessageMetadata):
    pieces = [b"\xb8\x06\x07", b"\xba\x06\x02zz", b"\xb9\x0612345678"][: data.draw(st.integers(0, 3))]
    for field, value in metadata.ListFields():
        single = pb.MessageMetadata()
        if field.is_repeated:
            getattr(single, field.name).extend(value)
        else:
            setattr(single, field.name, value)
        pieces.append(single.SerializePartialToString())
    raw = b"".join(data.draw(st.permutations(pieces)))
    entry = len(raw).to_bytes(4) + raw
    assert entries.read_header(entry) == expected_header(pb.MessageMetadata.FromString(raw))


@given(st.binary(max_size=40), st.booleans())
@example(b"\x00\x00", True)
@example(b"\x88\x80\x00\x05", True)
@example(bytes.fromhex("90800022080518011801188101"), True)  # field 2 with a tag of three bytes
@example(b"\x10" + b"\xff" * 9 + b"\x7f", True)
@example(b"\x10" + b"\x80" * 10 + b"\x00", True)
@example(b"\xc0\x01" + b"\x80" * 9 + b"\x00", True)
def test_the_header_is_readable_whenever_protobuf_reads_the_metadata(tail: bytes, complete: bool):
    raw = (SIMPLE.SerializeToString() if complete else b"") + tail
    entry = len(raw).to_bytes(4) + raw
    try:
        metadata = pb.MessageMetadata.FromString(raw)
        readable = metadata.IsInitialized() and isinstance(metadata.producer_name, str)
    except DecodeError:
        readable = False
    if readable:
        assert entries.read_header(entry) == expected_header(metadata)
    else:
        try:
            header = entries.read_header(entry)
        except WireError:
            return
        assert isinstance(header, EntryHeader)  # what protobuf refuses is in a field that the header passes over


@pytest.mark.parametrize("tail", [b"\xb0\x01\x81", b"\xb0\x01\x81\x82", b"\xb0\x01", b"\xb0", b"\x22\x05", b"\x32\x02k"])
def test_metadata_that_goes_on_into_the_payload_is_malformed(tail: bytes):
    raw = SIMPLE.SerializeToString() + tail
    entry = len(raw).to_bytes(4) + raw + b"\x01\x01\x01\x01\x01\x01\x01"
    with pytest.raises(MalformedFrame):
        entries.read_header(entry)


@pytest.mark.parametrize("fields", [{"txnid_least_bits": 1}, {"txnid_most_bits": 1}])
def test_half_a_transaction_id_is_none(fields: dict[str, int]):
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    assert entries.read_header(entries.encode_entry(metadata, b"")).txn_id is None


def test_every_changed_byte_behind_the_magic_is_noticed():
    entry = entries.encode_entry(SIMPLE, b"payload")
    for place in range(2, len(entry)):
        damaged = entry[:place] + bytes((entry[place] ^ 0x10,)) + entry[place + 1 :]
        with pytest.raises(WireError):
            entries.verify_checksum(damaged)
        with pytest.raises(WireError):
            entries.split_entry(damaged)


def test_a_bad_checksum_names_both_numbers_and_may_be_passed_over():
    entry = entries.encode_entry(SIMPLE, b"payload")
    damaged = entry[:-1] + b"X"
    with pytest.raises(ChecksumMismatch, match=rf"says CRC32C {entry[2:6].hex()}, its bytes have [0-9a-f]{{8}}"):
        entries.split_entry(damaged)
    assert bytes(entries.split_entry(damaged, verify=False)[1]) == b"payloaX"
    assert entries.read_header(damaged).producer_name == "p"


@pytest.mark.parametrize("form", list(FORMS))
def test_every_truncation_into_the_metadata_is_malformed(form: str):
    entry = bytes(FORMS[form](entries.encode_entry(SIMPLE, b"")))
    for size in range(len(entry)):
        for read in (entries.split_entry, entries.read_header, entries.read_metadata, entries.verify_checksum):
            with pytest.raises(MalformedFrame):
                read(entry[:size])


@given(
    st.binary(max_size=60), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x03abc", b"\x0e\x01abcd\x00\x00\x00\x10"])
)
def test_garbage_raises_wire_errors_only(data: bytes, start: bytes):
    for read in (entries.split_entry, entries.read_header, entries.read_metadata, entries.verify_checksum):
        try:
            read(start + data)
        except WireError:
            continue
        assert len(start + data) >= 4
    try:
        entries.with_txn_id(start + data, TxnId(1, 2))
    except WireError:
        assert True


def test_metadata_that_is_not_text_is_malformed():
    raw = b"\x0a\x01\xff\x10\x01\x18\x01"
    entry = len(raw).to_bytes(4) + raw
    for read in (entries.read_header, entries.read_metadata):
        with pytest.raises(MalformedFrame, match="producer_name is not UTF-8"):
            read(entry)


@given(METADATA, st.binary(max_size=30), U64, U64)
def test_with_txn_id_changes_the_transaction_and_the_checksum_and_nothing_else(
    metadata: pb.MessageMetadata, payload: bytes, most: int, least: int
):
    txn_id = TxnId(signed64(most), signed64(least))
    stamped = entries.with_txn_id(entries.encode_entry(metadata, payload), txn_id)
    metadata.txnid_least_bits, metadata.txnid_most_bits = unsigned64(txn_id.least), unsigned64(txn_id.most)
    assert stamped == entries.encode_entry(metadata, payload)
    assert entries.read_header(stamped).txn_id == txn_id


def test_with_txn_id_keeps_unknown_fields_and_a_brokers_block_and_adds_a_checksum():
    raw = SIMPLE.SerializeToString() + b"\xba\x06\x02zz"
    stamped = entries.with_txn_id(memoryview(BROKER_BLOCK + len(raw).to_bytes(4) + raw + b"payload"), TxnId(3, 4))
    assert stamped.startswith(BROKER_BLOCK + b"\x0e\x01")
    metadata, payload = entries.split_entry(stamped)
    assert bytes(payload) == b"payload"
    assert b"\xba\x06\x02zz" in metadata
    assert entries.read_header(stamped).txn_id == TxnId(3, 4)


@given(U64, U64, st.sampled_from(TxnAction), st.integers(0, 2**42))
def test_a_marker_is_written_as_protobuf_writes_it(most: int, least: int, action: TxnAction, publish_time_ms: int):
    metadata = pb.MessageMetadata(
        producer_name="pulsar.txn.marker",
        sequence_id=2**64 - 1,
        publish_time=publish_time_ms,
        marker_type=21 if action is TxnAction.COMMIT else 22,
        txnid_least_bits=least,
        txnid_most_bits=most,
    )
    marker = entries.encode_marker(TxnId(signed64(most), signed64(least)), action, publish_time_ms)
    assert marker == entries.encode_entry(metadata, b"")


def test_every_kind_of_marker_is_a_marker_and_data_are_not():
    for kind in (0, 10, 13, 20, 21, 22):
        metadata = pb.MessageMetadata(producer_name="pulsar.marker", sequence_id=0, publish_time=1, marker_type=kind)
        assert entries.read_header(entries.encode_entry(metadata, b"")).is_marker
    assert not entries.read_header(entries.encode_entry(SIMPLE, b"")).is_marker


@given(st.integers(0, 2**62))
def test_a_marker_carries_its_low_watermark_one_higher_and_without_one_stays_as_stock_writes_it(low_watermark: int):
    header = entries.read_header(entries.encode_marker(TxnId(1, 2), TxnAction.ABORT, 3, low_watermark=low_watermark))
    assert header.highest_sequence_id == low_watermark + 1
    plain = entries.encode_marker(TxnId(1, 2), TxnAction.ABORT, 3)
    assert plain == entries.encode_marker(TxnId(1, 2), TxnAction.ABORT, 3, low_watermark=-1)
    assert entries.read_header(plain).highest_sequence_id == -1
    assert not entries.read_metadata(plain).HasField("highest_sequence_id")


def test_the_brokers_own_block_says_when_and_as_which_message_it_stored_the_entry():
    entry = entries.encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), b"x")
    assert entries.broker_metadata(BROKER_BLOCK + entry).index == 41
    assert entries.broker_metadata(BROKER_BLOCK + entry).broker_timestamp == 1_700_000_000_000
    assert entries.broker_metadata(entry) is None
    assert entries.split_entry(BROKER_BLOCK + entry)[1] == b"x"
    for broken in (b"\x0e\x02\x00\x00\x00\x09abc", b"\x0e\x02\x00\x00\x00\x01\xff" + entry):
        with pytest.raises(WireError):
            entries.broker_metadata(broken)
