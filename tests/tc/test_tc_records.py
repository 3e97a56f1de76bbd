"""The bytes of records: Pulsar's own, ours, those of a newer version, and those that are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tc_host import LEDGER, TcHost

from pulsar_txn.tc import TransactionCoordinator, records, records_pb2
from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot, Subscription, TransactionMetadataEntry
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

ROOT = Path(__file__).resolve().parents[2]

# What a stock coordinator 3 writes, field by field from its message definition.
STOCK_NEW = bytes.fromhex("08001005180340e0d4034880d095ffbc315080d095ffbc3158056205616c696365")
STOCK_PARTITION = bytes.fromhex("0801100518033201745081d095ffbc315806")
STOCK_SUBSCRIPTION = bytes.fromhex("0802100518033a060a01741201735082d095ffbc315806")
STOCK_COMMITTING = bytes.fromhex("080310051803200028015083d095ffbc315806")
STOCK_COMMITTED = bytes.fromhex("080310051803200128025084d095ffbc315806")
STOCK = [STOCK_NEW, STOCK_PARTITION, STOCK_SUBSCRIPTION, STOCK_COMMITTING, STOCK_COMMITTED]


def fold(*entries: bytes) -> TransactionCoordinator:
    tc = TransactionCoordinator(3)
    for index, data in enumerate(entries):
        tc.apply("log", (LEDGER, index), tc.decode("log", data))
    tc.check_invariants()
    return tc


@pytest.mark.seed_rows("D48")
@pytest.mark.parametrize("data", STOCK)
def test_a_stock_record_is_read_and_written_byte_for_byte(data: bytes) -> None:
    tc = TransactionCoordinator(3)
    assert tc.encode("log", tc.decode("log", data)) == data


def test_a_stock_log_is_folded() -> None:
    tc = fold(*STOCK[:3])
    (info,) = tc.transactions()
    assert (info.txn_id, info.status, info.principal, info.identity) == (TxnId(3, 5), TxnStatus.OPEN, "alice", None)
    assert (info.start_time_ms, info.timeout_ms) == (1_700_000_000_000, 60_000)
    assert info.participants == (Participant("t"), Participant("t", "s"))
    assert tc.next_local_txn_id == 7
    assert fold(*STOCK[:4]).status(TxnId(3, 5)) is TxnStatus.COMMITTING
    assert fold(*STOCK).status(TxnId(3, 5)) is TxnStatus.COMMITTED
    assert fold(*STOCK).newest_time_ms == 1_700_000_000_004


def test_what_a_stock_log_keeps_of_ended_transactions_raises_only_the_next_id() -> None:
    tc = fold(*STOCK[1:])
    assert tc.transactions() == []
    assert tc.status(TxnId(3, 5)) is None
    assert tc.next_local_txn_id == 7


def test_participants_that_a_stock_log_notes_after_the_decision_are_passed_over() -> None:
    late = STOCK_PARTITION.replace(b"2\x01t", b"2\x01u")
    assert fold(*STOCK[:4], late).transactions() == fold(*STOCK[:4]).transactions()
    assert fold(*STOCK[:3], late).transactions() != fold(*STOCK[:3]).transactions()


def test_a_stock_batch_is_read_written_and_folded() -> None:
    data = records.BATCH_PREFIX + b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in STOCK[:4])
    tc = TransactionCoordinator(3)
    record = tc.decode("log", data)
    assert isinstance(record, records.Batch)
    assert tc.encode("log", record) == data
    assert fold(data).transactions() == fold(*STOCK[:4]).transactions()


def test_our_records_are_pulsars_with_ours_from_100_up() -> None:
    host = TcHost()
    txn_id = host.new(60_000, principal="anna", identity=("app", 4))
    who = {"principal": "anna", "identity": ("app", 4)}
    host.add(txn_id, Participant("t"), Participant("u", "s"), **who)
    host.end(txn_id, TxnAction.ABORT, **who)
    host.done(txn_id)
    decoded = [TransactionMetadataEntry.FromString(data) for data in host.log]
    for record in decoded:
        ours = {field.name for field, _ in record.ListFields() if field.number >= 100}
        assert ours <= {"record_version", "transactional_id", "transactional_epoch"}
        assert record.record_version == 1
        assert record.txnid_most_bits == 3
        assert record.max_local_txn_id == txn_id.least
        assert record.last_modification_time == host.now_ms
    assert [record.metadata_op for record in decoded] == [0, 1, 2, 3, 3]


NUMBERS = st.one_of(
    st.integers(0, 300), st.integers(0, 2**63 - 1), st.sampled_from([2**k - 1 + d for k in range(0, 63, 7) for d in (0, 1)])
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
OWNERS = st.tuples(st.none() | TEXTS, st.none() | st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1)))
TC_IDS = st.sampled_from([0, 3, 37, 37 << 7 | 5]) | st.integers(0, 2**31)


def written(tc_id: int, record: records.Entry, version: int = 1, *, lanes: bool = False, **fields: Any) -> None:
    """Our bytes are protobuf's for the same fields, and reading them gives the record back."""
    data = records.Writer(tc_id).encode("log", record)
    common = {
        "metadata_op": record.operation,
        "txnid_least_bits": record.least,
        "txnid_most_bits": tc_id,
        "last_modification_time": record.modified_ms,
        "max_local_txn_id": record.max_local_txn_id,
        "record_version": version,
    }
    assert data == TransactionMetadataEntry(**common, **fields).SerializeToString(deterministic=True)
    assert records.decode(tc_id, data, lanes=lanes) == record._replace(data=data)


@given(TC_IDS, NUMBERS, NUMBERS, NUMBERS, OWNERS)
@example(0, 1, 1, 1, (None, ("app", -1)))
def test_a_new_record_has_the_bytes_of_protobuf(tc_id: int, least: int, timeout_ms: int, now_ms: int, owner: Any) -> None:
    principal, identity = owner
    fields = {"owner": principal, "timeout_ms": timeout_ms, "start_time": now_ms}
    fenced = {} if identity is None else {"transactional_id": identity[0], "transactional_epoch": identity[1]}
    written(tc_id, records.new_transaction(least, timeout_ms, now_ms, owner), **fields, **fenced)


@given(TC_IDS, NUMBERS, st.lists(NUMBERS, min_size=1, max_size=5), NUMBERS, NUMBERS)
def test_a_record_of_a_group_has_the_bytes_of_protobuf_and_a_version_that_older_readers_refuse(
    tc_id: int, least: int, group: list[int], now_ms: int, highest: int
) -> None:
    record = records.update_together(least, tuple(group), 0, 1, now_ms, highest)
    written(tc_id, record, 2, expected_status=0, new_status=1, group=group)


@given(TC_IDS, NUMBERS, st.lists(TEXTS, max_size=5), NUMBERS, NUMBERS)
def test_a_record_of_partitions_has_the_bytes_of_protobuf(
    tc_id: int, least: int, topics: list[str], now_ms: int, highest: int
) -> None:
    written(tc_id, records.add_partitions(least, tuple(topics), now_ms, highest), partitions=topics)


@given(TC_IDS, NUMBERS, st.lists(st.tuples(TEXTS, TEXTS), max_size=5), NUMBERS, NUMBERS)
def test_a_record_of_subscriptions_has_the_bytes_of_protobuf(
    tc_id: int, least: int, pairs: list[tuple[str, str]], now_ms: int, highest: int
) -> None:
    named = [Subscription(topic=topic, subscription=name) for topic, name in pairs]
    written(tc_id, records.add_subscriptions(least, tuple(pairs), now_ms, highest), subscriptions=named)


@given(TC_IDS, NUMBERS, st.sampled_from(TxnStatus), st.sampled_from(TxnStatus), NUMBERS, NUMBERS)
def test_a_record_of_a_status_has_the_bytes_of_protobuf(
    tc_id: int, least: int, expected: TxnStatus, new: TxnStatus, now_ms: int, highest: int
) -> None:
    record = records.update_status(least, expected, new, now_ms, highest)
    version = 6 if TxnStatus.HELD in (expected, new) else 4 if expected is TxnStatus.PREPARED else 1
    written(tc_id, record, version, expected_status=int(expected), new_status=int(new))


NONCES = st.binary(min_size=1, max_size=64)


@given(TC_IDS, NUMBERS, NUMBERS, OWNERS, NONCES | st.just(b""), st.none() | TEXTS, st.binary(max_size=300), st.none() | NUMBERS)
def test_a_new_record_with_a_group_or_a_nonce_has_the_bytes_of_protobuf(
    tc_id: int, least: int, now_ms: int, owner: Any, nonce: bytes, group: str | None, data: bytes, after_ms: int | None
) -> None:
    principal, identity = owner
    extras = Extras(nonce or b"n", None) if group is None else Extras(nonce, group, data, after_ms)
    fields: dict[str, Any] = {"owner": principal, "timeout_ms": 5, "start_time": now_ms, "nonce": extras.nonce or None}
    fields |= {} if identity is None else {"transactional_id": identity[0], "transactional_epoch": identity[1]}
    fields |= {} if group is None else {"check_group": group, "check_data": data or None, "check_after_ms": after_ms}
    version = 1 if group is None else 4
    written(tc_id, records.new_transaction(least, 5, now_ms, owner, extras), version, **fields)
    in_lane = records.new_in_lane(least, 5, now_ms, owner, 7, "i", extras)
    written(tc_id, in_lane, max(version, 3), lanes=True, lane=7, incarnation="i", **fields)
    fields |= {"partitions": ["t"], "subscriptions": [Subscription(topic="t", subscription="s")]}
    with_names = records.new_in_lane(least, 5, now_ms, owner, 7, "i", extras, ("t",), (("t", "s"),))
    written(tc_id, with_names, 5, lanes=True, lane=7, incarnation="i", **fields)


@given(TC_IDS, NUMBERS, NUMBERS, OWNERS, st.lists(TEXTS, max_size=3), st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_a_new_record_with_participants_has_the_bytes_of_protobuf_and_a_version_that_older_readers_refuse(
    tc_id: int, least: int, now_ms: int, owner: Any, topics: list[str], pairs: list[tuple[str, str]]
) -> None:
    principal, identity = owner
    fields: dict[str, Any] = {"owner": principal, "timeout_ms": 5, "start_time": now_ms, "partitions": topics}
    fields |= {} if identity is None else {"transactional_id": identity[0], "transactional_epoch": identity[1]}
    fields["subscriptions"] = [Subscription(topic=topic, subscription=name) for topic, name in pairs]
    record = records.new_in_lane(least, 5, now_ms, owner, 7, "i", None, tuple(topics), tuple(pairs))
    written(tc_id, record, 5, lanes=True, lane=7, incarnation="i", **fields)


@given(TC_IDS, NUMBERS, st.lists(NUMBERS, max_size=5), NONCES, NUMBERS, NUMBERS)
def test_records_of_questions_and_of_a_prepare_have_a_version_that_older_readers_refuse(
    tc_id: int, least: int, group: list[int], token: bytes, now_ms: int, highest: int
) -> None:
    for lanes in (False, True):
        written(tc_id, records.checked(least, tuple(group), now_ms, highest), 4, lanes=lanes, group=group)
        written(tc_id, records.prepared(least, token, now_ms, highest), 4, lanes=lanes, prepared_token=token)


@pytest.mark.parametrize(
    ("data", "name"),
    [(STOCK_NEW, b"alice"), (STOCK_PARTITION, b"\x01t"), (STOCK_SUBSCRIPTION, b"\x01t"), (STOCK_SUBSCRIPTION, b"s")],
)
def test_a_name_that_is_no_text_is_a_wire_error(data: bytes, name: bytes) -> None:
    damaged = data.replace(name, name[:-1] + b"\xff")
    with pytest.raises(WireError, match="not UTF-8"):
        TransactionCoordinator(3).decode("log", damaged)


@given(st.binary(min_size=1, max_size=30), st.integers(200, 10_000), st.sampled_from(STOCK))
def test_fields_of_a_newer_version_survive(value: bytes, number: int, data: bytes) -> None:
    tag = number << 3 | 2
    key = bytes([tag & 0x7F | 0x80, tag >> 7 & 0x7F | (0x80 if tag >> 14 else 0)]) + (bytes([tag >> 14]) if tag >> 14 else b"")
    newer = data + key + bytes([len(value)]) + value
    tc = TransactionCoordinator(3)
    assert tc.encode("log", tc.decode("log", newer)) == newer
    batch = records.BATCH_PREFIX + b"\x0a" + bytes([len(newer)]) + newer
    assert tc.encode("log", tc.decode("log", batch)) == batch


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no known metadata_op"),
        (b"\x08\x09\x18\x03", "no known metadata_op"),
        (b"\xff\xff\xff", "not a coordinator record"),
        (STOCK_NEW + b"\xa0\x06\x08", "version 8; this version reads up to 7"),
        (STOCK_NEW.replace(b"\x18\x03", b"\x18\x04"), "coordinator 4 in the log of coordinator 3"),
        (STOCK_COMMITTED.replace(b"\x28\x02", b"\x28\x0e"), "without a known expected_status and new_status"),
        (STOCK_COMMITTED.replace(b"\x20\x01", b""), "without a known expected_status and new_status"),
        (b"\x0e\x01\x00\x02" + STOCK_NEW, "format '0002'"),
        (b"\x0e\x01\x00\x01\xff\xff", "not a coordinator record"),
        (b"\x0e\x01\x00\x01\x0a\x00", "no known metadata_op"),
    ],
)
def test_bytes_that_are_no_record_of_this_coordinator_are_named(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        TransactionCoordinator(3).decode("log", data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_wire_error(data: bytes) -> None:
    tc = TransactionCoordinator(0)
    try:
        record = tc.decode("log", data)
    except WireError:
        return
    tc.apply("log", (0, 0), record)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff", "not a coordinator snapshot"),
        (b"", "first slice names no format"),
        (CoordinatorSnapshot(format_version=7, tc_id=3).SerializeToString(), "format 7; this version reads up to 6"),
        (CoordinatorSnapshot(format_version=0, tc_id=3).SerializeToString(), "format 0; this version reads up to 6"),
        (CoordinatorSnapshot(format_version=1, tc_id=4).SerializeToString(), "coordinator 4, not of coordinator 3"),
    ],
)
def test_bytes_that_are_no_snapshot_of_this_coordinator_are_named(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        TransactionCoordinator(3).restore(data)


def test_the_generated_module_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools writes the generated module; it is in the extra `dev`")
    spec = importlib.util.spec_from_file_location("generate_pb2", ROOT / "wire" / "generate_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    present = Path(str(records_pb2.__file__)).parent
    for written in generator.generate("tc", tmp_path):
        assert written.read_text() == (present / written.name).read_text(), f"python wire/generate_pb2.py, for {written.name}"
