"""The records of the coordinator's log: how they are made, written and read.

The bytes are Pulsar's TransactionMetadataEntry, with our fields from 100 up (`records.proto`). Every transaction writes five
records or so, and they are written by hand: a decision takes 0.6 us, where protobuf's objects take 0.85, and `apply` reads a
tuple. Tests compare the bytes. Protobuf reads records: its parser is quicker than Python code, and it runs in recovery only. A
record that was read keeps its bytes, so fields of a newer version survive. Batched entries of a stock coordinator's log
(PIP-160) are read too, never written.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from pulsar_txn.tc.extras import NO_EXTRAS, Extras
from pulsar_txn.tc.owners import ANYBODY, Owner
from pulsar_txn.tc.records_pb2 import BatchedTransactionMetadataEntry, TransactionMetadataEntry
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import TxnStatus
from pulsar_txn.wire.varints import cached_varint, varint

NEW: Final[int] = TransactionMetadataEntry.NEW
ADD_PARTITION: Final[int] = TransactionMetadataEntry.ADD_PARTITION
ADD_SUBSCRIPTION: Final[int] = TransactionMetadataEntry.ADD_SUBSCRIPTION
UPDATE: Final[int] = TransactionMetadataEntry.UPDATE
GOODBYE: Final[int] = TransactionMetadataEntry.GOODBYE
VANISHED: Final[int] = TransactionMetadataEntry.VANISHED
TAKEN_OVER: Final[int] = TransactionMetadataEntry.TAKEN_OVER
CHECKED: Final[int] = TransactionMetadataEntry.CHECKED
PREPARED: Final[int] = TransactionMetadataEntry.PREPARED
INCARNATION: Final[int] = TransactionMetadataEntry.INCARNATION
PARKED: Final[int] = TransactionMetadataEntry.PARKED
RESUMED: Final[int] = TransactionMetadataEntry.RESUMED
"""Operations of our own; the first three of them are about a client and not about a transaction."""

RECORD_VERSION: Final = 7
"""The newest version; a reader refuses a newer one. Stock Pulsar writes no version, which reads as 0.

Version 2 is written where a record has a group, because older readers would pass the group over; version 3 where a NEW record
has a lane, and for GOODBYE, VANISHED and TAKEN_OVER; version 4 where a NEW record has a check group, for CHECKED and PREPARED,
and for the decision about what was PREPARED; version 5 where a NEW record in a lane has participants;
version 6 for INCARNATION, and for an UPDATE to or from HELD; version 7 for PARKED and RESUMED. All others are of version 1.
"""

BATCH_PREFIX: Final = bytes.fromhex("0e010001")
"""Magic and version of a batched entry. A bare record never starts so: its first byte is a field tag."""

_VERSION_FIELD: Final = b"\xa0\x06\x01"
_GROUP_VERSION_FIELD: Final = b"\xa0\x06\x02"
_GROUP_FIELD: Final = b"\xba\x06"
_LANE_VERSION: Final = 3
_LANE_VERSION_FIELD: Final = b"\xa0\x06\x03"
_LANE_FIELD: Final = b"\xc0\x06"
_INCARNATION_FIELD: Final = b"\xca\x06"
_CAUSE_FIELD: Final = b"\xd0\x06"
_CHECK_VERSION: Final = 4
_CHECK_VERSION_FIELD: Final = b"\xa0\x06\x04"
_CHECK_GROUP_FIELD: Final = b"\xda\x06"
_CHECK_DATA_FIELD: Final = b"\xe2\x06"
_CHECK_AFTER_FIELD: Final = b"\xe8\x06"
_NONCE_FIELD: Final = b"\xf2\x06"
_NAMES_VERSION_FIELD: Final = b"\xa0\x06\x05"
_PARK_VERSION: Final = 7

_LIFE_VERSION: Final = 6

_HIGHEST_OF_PULSAR: Final = int(TxnStatus.ABORTED)


class Entry(NamedTuple):
    """One record. `max_local_txn_id` is the highest id given so far; times are in ms.

    `data`: the bytes that the record was read from. `group`: further transactions that an UPDATE moves together with `least`,
    or that a CHECKED counts a question for, or that a PARKED parks.
    `lane`: of a NEW, where the coordinator gives lanes. `incarnation`: whose lane that is, or who has gone. `cause`: of an
    UPDATE that decides, who decided (`causes.Cause`). `extras`: of a NEW, what it says beside; of a PREPARED, the token.
    """

    operation: int
    least: int
    modified_ms: int
    max_local_txn_id: int
    expected_status: int = 0
    new_status: int = 0
    partitions: Collection[str] = ()
    subscriptions: Collection[tuple[str, str]] = ()
    timeout_ms: int = 0
    start_time_ms: int = 0
    owner: Owner = ANYBODY
    data: bytes | None = None
    group: tuple[int, ...] = ()
    lane: int | None = None
    incarnation: str | None = None
    cause: int = 0
    extras: Extras | None = None


class Batch(NamedTuple):
    """Records that a stock coordinator wrote as one entry."""

    entries: tuple[Entry, ...]
    data: bytes


Record: TypeAlias = Entry | Batch

_new: Final = tuple.__new__
"""Makes an Entry of all its fields: a third of what a call of the class takes, five times in a transaction."""


def new_transaction(least: int, timeout_ms: int, now_ms: int, owner: Owner = ANYBODY, extras: Extras | None = None) -> Entry:
    """Give the id `least` to a transaction that starts at `now_ms`."""
    return _new(Entry, (NEW, least, now_ms, least, 0, 0, (), (), timeout_ms, now_ms, owner, None, (), None, None, 0, extras))


def new_in_lane(
    least: int,
    timeout_ms: int,
    now_ms: int,
    owner: Owner,
    lane: int,
    incarnation: str | None,
    extras: Extras | None = None,
    topics: Collection[str] = (),
    pairs: Collection[tuple[str, str]] = (),
) -> Entry:
    """Give the id `least` to a transaction that starts at `now_ms`, in a lane of its own, with its first participants."""
    return _new(
        Entry,
        (NEW, least, now_ms, least, 0, 0, topics, pairs, timeout_ms, now_ms, owner, None, (), lane, incarnation, 0, extras),
    )


def add_partitions(least: int, topics: Collection[str], now_ms: int, max_id: int) -> Entry:
    """Register topic partitions."""
    return _new(Entry, (ADD_PARTITION, least, now_ms, max_id, 0, 0, topics, (), 0, 0, ANYBODY, None, (), None, None, 0, None))


def add_subscriptions(least: int, subscriptions: Collection[tuple[str, str]], now_ms: int, max_id: int) -> Entry:
    """Register (topic, subscription) pairs."""
    return _new(
        Entry, (ADD_SUBSCRIPTION, least, now_ms, max_id, 0, 0, (), subscriptions, 0, 0, ANYBODY, None, (), None, None, 0, None)
    )


def update_status(least: int, expected: int, new: int, now_ms: int, max_id: int, cause: int = 0) -> Entry:
    """Move a transaction from `expected` to `new`; the record to COMMITTING or ABORTING is the decision."""
    return _new(Entry, (UPDATE, least, now_ms, max_id, expected, new, (), (), 0, 0, ANYBODY, None, (), None, None, cause, None))


def update_together(
    least: int, group: tuple[int, ...], expected: int, new: int, now_ms: int, max_id: int, cause: int = 0
) -> Entry:
    """Move several transactions from `expected` to `new`: one decision, so a crash leaves all of them decided or none."""
    return Entry(UPDATE, least, now_ms, max_id, expected, new, group=group, cause=cause)


def departed(operation: int, principal: str | None, incarnation: str, now_ms: int, max_id: int) -> Entry:
    """GOODBYE or VANISHED of an incarnation."""
    return Entry(operation, 0, now_ms, max_id, owner=(principal, None), incarnation=incarnation)


def taken_over(owner: Owner, now_ms: int, max_id: int) -> Entry:
    """The epoch of `owner` has begun."""
    return Entry(TAKEN_OVER, 0, now_ms, max_id, owner=owner)


def checked(least: int, group: tuple[int, ...], now_ms: int, max_id: int) -> Entry:
    """Count a question for each of these transactions: a member has begun to answer it."""
    return Entry(CHECKED, least, now_ms, max_id, group=group)


def parked(least: int, group: tuple[int, ...], now_ms: int, max_id: int) -> Entry:
    """These transactions wait for an operator."""
    return Entry(PARKED, least, now_ms, max_id, group=group)


def resumed(least: int, now_ms: int, max_id: int) -> Entry:
    """A parked transaction is asked for again."""
    return Entry(RESUMED, least, now_ms, max_id)


def prepared(least: int, token: bytes, now_ms: int, max_id: int) -> Entry:
    """The transaction waits for its outcome from now on."""
    return Entry(PREPARED, least, now_ms, max_id, extras=NO_EXTRAS.prepared(token, now_ms))


def incarnation(service: int, goes_on: bool, first_least: int, until_least: int, now_ms: int, max_id: int) -> Entry:
    """An incarnation of the log begins: see `log_incarnations`."""
    return Entry(INCARNATION, 0, now_ms, max_id, group=(int(goes_on), first_least, until_least), lane=service)


class Writer:
    """Writes the records of one coordinator: the bytes that do not change are put together once."""

    __slots__ = (
        "_added",
        "_decided",
        "_decided_prepared",
        "_opened",
        "_opened_in_lane",
        "_opened_with_extras",
        "_opened_with_names",
        "_tc_id",
    )

    def __init__(self, tc_id: int) -> None:
        self._tc_id = tc_id
        most = b"\x18" + varint(tc_id).replace(b"%", b"%%")  # these are formats, and 37 is a percent sign
        opened = b"\x08\x00\x10%b" + most + b"\x40%b\x48%b\x50%b\x58%b%b"
        self._opened = opened + _VERSION_FIELD + b"%b"
        self._opened_in_lane = opened + _LANE_VERSION_FIELD + b"%b%b%b%b"
        self._opened_with_extras = opened + b"%b%b%b%b"
        self._opened_with_names = (
            b"\x08\x00\x10%b" + most + b"%b\x40%b\x48%b\x50%b\x58%b%b" + _NAMES_VERSION_FIELD + b"%b%b%b%b%b"
        )
        self._added = b"\x08%c\x10%b" + most + b"%b\x50%b\x58%b" + _VERSION_FIELD
        decided = b"\x08\x03\x10%b" + most + b"\x20%c\x28%c\x50%b\x58%b"
        self._decided = decided + _VERSION_FIELD
        self._decided_prepared = decided + _CHECK_VERSION_FIELD

    def encode(self, log: str, record: Record) -> bytes:
        """The bytes of a record; the bytes it was read from, if it was read. `log` is always "log"."""
        if record.data is not None:
            return record.data
        assert isinstance(record, Entry)  # noqa: S101 - a batch has its bytes
        operation, least, now_ms, max_id, old, new, topics, pairs, timeout, start, owner, _, group, lane, whose, cause, more = (
            record
        )
        if operation == UPDATE:
            if old == _HELD or new == _HELD:
                return _held(self._tc_id, record)
            shape = self._decided if old <= _HIGHEST_OF_PULSAR else self._decided_prepared
            decided = shape % (_number(least), old, new, _number(now_ms), _number(max_id))
            if group:
                decided = _with_group(decided, group)
            return b"%b%b%b" % (decided, _CAUSE_FIELD, varint(cause)) if cause else decided
        if operation == NEW:
            principal, identity = owner
            named = b"" if principal is None else _text(b"\x62", principal)
            fenced = b"" if identity is None else b"%b\xb0\x06%b" % (_text(b"\xaa\x06", identity[0]), varint(identity[1]))
            times = _number(timeout), _number(start), _number(now_ms)
            if lane is None:
                if more is None:
                    return self._opened % (_number(least), *times, _number(max_id), named, fenced)
                parts = _version_of(more, _VERSION_FIELD), fenced, b"", _extras(more)
                return self._opened_with_extras % (_number(least), *times, _number(max_id), named, *parts)
            client = b"" if whose is None else _text(_INCARNATION_FIELD, whose)
            in_lane = fenced, _LANE_FIELD, varint(lane), client
            if topics or pairs:
                names, rest = _names(topics, pairs), b"" if more is None else _extras(more)
                return self._opened_with_names % (_number(least), names, *times, _number(max_id), named, *in_lane, rest)
            if more is None:
                return self._opened_in_lane % (_number(least), *times, _number(max_id), named, *in_lane)
            parts = _version_of(more, _LANE_VERSION_FIELD), fenced, b"".join(in_lane[1:]), _extras(more)
            return self._opened_with_extras % (_number(least), *times, _number(max_id), named, *parts)
        if operation > UPDATE:
            return _rare(self._tc_id, record)
        return self._added % (operation, _number(least), _names(topics, pairs), _number(now_ms), _number(max_id))


_number: Final = cached_varint


def _with_group(decided: bytes, group: tuple[int, ...]) -> bytes:
    data = b"".join(map(varint, group))
    return b"%b%b%b%b%b" % (decided.removesuffix(_VERSION_FIELD), _GROUP_VERSION_FIELD, _GROUP_FIELD, varint(len(data)), data)


def _version_of(extras: Extras, otherwise: bytes) -> bytes:
    return otherwise if extras.group is None else _CHECK_VERSION_FIELD


def _extras(extras: Extras) -> bytes:
    """Return what a NEW record says of them, in the order of the fields' numbers."""
    group, data, after_ms, nonce = extras.group, extras.data, extras.after_ms, extras.nonce
    parts = [] if group is None else [_text(_CHECK_GROUP_FIELD, group)]
    if data:
        parts.append(_bytes(_CHECK_DATA_FIELD, data))
    if after_ms is not None:
        parts += _CHECK_AFTER_FIELD, varint(after_ms)
    if nonce:
        parts.append(_bytes(_NONCE_FIELD, nonce))
    return b"".join(parts)


_HELD: Final = int(TxnStatus.HELD)
_LIFE_NUMBERS: Final = 3


def _held(tc_id: int, record: Entry) -> bytes:
    """The bytes of an UPDATE to or from HELD, which older readers refuse."""
    return TransactionMetadataEntry(
        metadata_op=record.operation,  # type: ignore[arg-type]  # the stub wants its own enum class; at run time it is this int
        txnid_least_bits=record.least,
        txnid_most_bits=tc_id,
        expected_status=record.expected_status,  # type: ignore[arg-type]  # as above
        new_status=record.new_status,  # type: ignore[arg-type]  # as above
        last_modification_time=record.modified_ms,
        max_local_txn_id=record.max_local_txn_id,
        record_version=_LIFE_VERSION,
        group=record.group,
        cause=record.cause or None,
    ).SerializeToString()


def _rare(tc_id: int, record: Entry) -> bytes:
    """The bytes of an operation of our own."""
    if record.operation == INCARNATION:
        return TransactionMetadataEntry(
            metadata_op=record.operation,  # type: ignore[arg-type]  # as above
            txnid_most_bits=tc_id,
            last_modification_time=record.modified_ms,
            max_local_txn_id=None if record.max_local_txn_id < 0 else record.max_local_txn_id,  # no id was given yet
            record_version=_LIFE_VERSION,
            group=record.group,
            lane=record.lane,
        ).SerializeToString()
    if record.operation not in (CHECKED, PREPARED, PARKED, RESUMED):
        return _departed(tc_id, record)
    return TransactionMetadataEntry(
        metadata_op=record.operation,  # type: ignore[arg-type]  # the stub wants its own enum class; at run time it is this int
        txnid_least_bits=record.least,
        txnid_most_bits=tc_id,
        last_modification_time=record.modified_ms,
        max_local_txn_id=record.max_local_txn_id,
        record_version=_PARK_VERSION if record.operation in (PARKED, RESUMED) else _CHECK_VERSION,
        group=record.group,
        prepared_token=None if record.extras is None else record.extras.prepared_token,
    ).SerializeToString()


def _departed(tc_id: int, record: Entry) -> bytes:
    principal, identity = record.owner
    transactional_id, epoch = (None, None) if identity is None else identity
    return TransactionMetadataEntry(
        metadata_op=record.operation,  # type: ignore[arg-type]  # the stub wants its own enum class; at run time it is this int
        txnid_most_bits=tc_id,
        last_modification_time=record.modified_ms,
        max_local_txn_id=None if record.max_local_txn_id < 0 else record.max_local_txn_id,  # no id was given yet
        owner=principal,
        record_version=_LANE_VERSION,
        transactional_id=transactional_id,
        transactional_epoch=epoch,
        incarnation=record.incarnation,
    ).SerializeToString()


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return b"%b%b%b" % (tag, varint(len(data)), data)


def _bytes(tag: bytes, data: bytes) -> bytes:
    return b"%b%b%b" % (tag, varint(len(data)), data)


def _names(topics: Collection[str], pairs: Collection[tuple[str, str]]) -> bytes:
    return b"".join([*map(_partition, topics), *map(_subscription, pairs)])


@lru_cache(1024)
def _partition(topic: str) -> bytes:
    return _text(b"\x32", topic)


@lru_cache(1024)
def _subscription(pair: tuple[str, str]) -> bytes:
    data = _text(b"\x0a", pair[0]) + _text(b"\x12", pair[1])
    return b"\x3a%b%b" % (varint(len(data)), data)


def decode(tc_id: int, data: bytes, *, lanes: bool = False) -> Record:
    """The record of an entry. Raises WireError: not a record, another coordinator's, or written by a newer version.

    `lanes`: whether the coordinator gives lanes. A log that was written the other way is refused.
    """
    try:
        if data[:2] == BATCH_PREFIX[:2]:
            return _decode_batch(tc_id, data, lanes)
        return _entry(tc_id, TransactionMetadataEntry.FromString(data), data, lanes)
    except DecodeError as error:
        raise WireError(f"not a coordinator record ({len(data)} bytes): {error}") from error


def _decode_batch(tc_id: int, data: bytes, lanes: bool) -> Batch:
    if data[:4] != BATCH_PREFIX:
        raise WireError(f"a batch of coordinator records in format {data[2:4].hex()!r}; this version reads '0001'")
    batch = BatchedTransactionMetadataEntry.FromString(data[4:])
    return Batch(tuple([_entry(tc_id, each, None, lanes) for each in batch.transaction_logs]), bytes(data))


def _entry(tc_id: int, read: TransactionMetadataEntry, data: bytes | None, lanes: bool) -> Entry:
    if read.record_version > RECORD_VERSION:
        raise WireError(f"a coordinator record of version {read.record_version}; this version reads up to {RECORD_VERSION}")
    if not read.HasField("metadata_op"):
        raise WireError("not a coordinator record: it says no known metadata_op")
    if read.txnid_most_bits != tc_id:
        raise WireError(f"a record of coordinator {read.txnid_most_bits} in the log of coordinator {tc_id}")
    operation, least, kept = read.metadata_op, read.txnid_least_bits, None if data is None else bytes(data)
    modified_ms, max_id = read.last_modification_time, read.max_local_txn_id
    if operation == UPDATE:
        if not (read.HasField("expected_status") and read.HasField("new_status")):
            raise WireError("not a coordinator record: an UPDATE without a known expected_status and new_status")
        moved, group, cause = (read.expected_status, read.new_status), tuple(read.group), read.cause
        return Entry(operation, least, modified_ms, max_id, *moved, data=kept, group=group, cause=cause)
    if operation > TAKEN_OVER:
        return _later(read, kept)
    if operation == NEW or operation > UPDATE:
        principal = read.owner if read.HasField("owner") else None
        identity = (read.transactional_id, read.transactional_epoch) if read.HasField("transactional_id") else None
        lane = read.lane if read.HasField("lane") else None
        incarnation = read.incarnation if read.HasField("incarnation") else None
        _check_texts(principal, read.transactional_id, incarnation)
        if operation != TAKEN_OVER and (lane is not None if operation == NEW else incarnation is not None) != lanes:
            raise WireError(OTHER_IDS[lanes])
        if operation > UPDATE and not read.HasField("max_local_txn_id"):
            max_id = -1
        about = (read.timeout_ms, read.start_time, (principal, identity), kept, (), lane, incarnation)
        topics, named = ((), ()) if lane is None else _names_of(read)
        return Entry(operation, least, modified_ms, max_id, 0, 0, topics, named, *about, 0, _extras_of(read))
    partitions, pairs = _names_of(read)
    return Entry(operation, least, modified_ms, max_id, 0, 0, partitions, pairs, data=kept)


def _later(read: TransactionMetadataEntry, kept: bytes | None) -> Entry:
    """An operation of our own about transactions, or an INCARNATION."""
    operation, modified_ms, max_id = read.metadata_op, read.last_modification_time, read.max_local_txn_id
    if operation in (CHECKED, PARKED, RESUMED):
        return Entry(operation, read.txnid_least_bits, modified_ms, max_id, data=kept, group=tuple(read.group))
    if operation == PREPARED:
        token = NO_EXTRAS.prepared(read.prepared_token, modified_ms)
        return Entry(operation, read.txnid_least_bits, modified_ms, max_id, data=kept, extras=token)
    if not read.HasField("lane") or len(read.group) != _LIFE_NUMBERS:
        raise WireError("not a coordinator record: an INCARNATION without its service and numbers")
    newest = max_id if read.HasField("max_local_txn_id") else -1
    return Entry(operation, 0, modified_ms, newest, data=kept, group=tuple(read.group), lane=read.lane)


def _extras_of(read: TransactionMetadataEntry) -> Extras | None:
    """Return what a NEW record says beside; None for nothing."""
    group = read.check_group if read.HasField("check_group") else None
    if group is None and not read.nonce:
        return None
    _check_texts(group)
    return Extras(read.nonce, group, read.check_data, read.check_after_ms if read.HasField("check_after_ms") else None)


def _names_of(read: TransactionMetadataEntry) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    partitions, pairs = tuple(read.partitions), tuple([(pair.topic, pair.subscription) for pair in read.subscriptions])
    _check_texts(*partitions, *chain.from_iterable(pairs))
    return partitions, pairs


OTHER_IDS: Final = {
    False: "this log has lanes: it belongs to a coordinator beside a cluster, and one of a broker cannot go on with it",
    True: "this log has no lanes: it belongs to a broker's coordinator, and one beside a cluster cannot go on with it",
}


def _check_texts(*texts: str | None) -> None:
    """Protobuf hands out as bytes what is not UTF-8."""
    if not all(text is None or isinstance(text, str) for text in texts):
        raise WireError("not a coordinator record: a name in it is not UTF-8")
