"""The whole state of a coordinator as slices of bytes, and back. Equal states give equal bytes.

A slice is a CoordinatorSnapshot with a part of the elements; joined, the slices are one message with all elements (protobuf's
merge). The first slice is the head: version, coordinator, ids, times. A transaction whose participants do not fit
into one element continues in further elements with the same id. Version 1 was one message with everything in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.tc import records
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Image, Transaction
from pulsar_txn.tc.extras import read_extras, write_extras
from pulsar_txn.tc.ids import has_lane, lane_of, most_of_lane
from pulsar_txn.tc.outcomes import Image as PageImage
from pulsar_txn.tc.outcomes import Late, Page
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot, Subscription
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import TxnId, TxnStatus

FORMAT_VERSION: Final = 6
"""The newest format. 6 is written while a transaction is parked, or was; otherwise 5 when the log has incarnations, or one is
HELD; otherwise 4 while a transaction has a check group or was prepared, or the token of one is kept; otherwise 3 where the
coordinator gives lanes, 2 by all others. What older readers pass over there: times of change, nonces."""

_OBJECTS_PER_SLICE: Final = 512
"""This many objects take about two milliseconds, however small they are."""
_NAMES_PER_ELEMENT: Final = 64

OwnedT = TypeVar("OwnedT", CoordinatorSnapshot.Transaction, CoordinatorSnapshot.LateOutcome, CoordinatorSnapshot.Owner)


def write(state: CoordinatorState) -> Iterator[bytes]:
    """The state after the last applied record; what is applied after this call does not show."""
    ledger_id, entry_id = state.last_applied
    head = CoordinatorSnapshot(
        format_version=_format_of(state),
        tc_id=state.tc_id,
        next_local_txn_id=state.next_id,
        newest_time=state.newest_time_ms,
        covered_ledger_id=ledger_id,
        covered_entry_id=entry_id,
        next_lane=None if state.lanes is None else state.lanes.next_lane,
        lanes_given=None if state.lanes is None or not state.incarnations.kept else state.lanes.given,
        until_least=state.incarnations.until_least,
    )
    outcomes = state.outcomes
    moments = outcomes.owners.owners.moment(), outcomes.pages.moment(), state.transactions.moment(), outcomes.late.moment()
    slices = _slices(head, *(moment.groups() for moment in moments))
    if state.incarnations.kept:
        slices = chain(slices, _gathered(state.incarnations.elements()))
    if state.lanes is not None:
        slices = chain(slices, _gathered(state.lanes.elements()))
    if state.extra.tokens:
        slices = chain(slices, _gathered(state.extra.tokens.elements()))
    return slices if state.fencing is None else chain(slices, _gathered(state.fencing.elements()))


def _format_of(state: CoordinatorState) -> int:
    if state.extra.were_parked:
        return FORMAT_VERSION
    if state.incarnations.kept or state.held:
        return 5
    if not state.extra.is_plain:
        return 4
    return 2 if state.lanes is None else 3


def _gathered(elements: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Slices of elements, each with the name of its field, as many to a slice as is quick to write."""
    part = CoordinatorSnapshot()
    count = size = 0
    for field, element in elements:
        getattr(part, field).append(element)
        count += 1
        size += element.ByteSize()
        if count >= _OBJECTS_PER_SLICE or size >= SLICE_BYTES:
            yield part.SerializeToString()
            part, count, size = CoordinatorSnapshot(), 0, 0
    if count:
        yield part.SerializeToString()


def read(state: CoordinatorState, part: bytes) -> None:
    """Fill a fresh state with the next slice. Raises WireError: not a slice, a newer format, or another coordinator's."""
    try:
        snapshot = CoordinatorSnapshot.FromString(part)
    except DecodeError as error:
        raise WireError(f"not a coordinator snapshot ({len(part)} bytes): {error}") from error
    if snapshot.HasField("format_version"):
        _read_head(state, snapshot)
    elif not state.is_restoring:
        raise WireError("not a coordinator snapshot: its first slice names no format")
    for stored in snapshot.transactions:
        _restore(state, stored)
    _read_outcomes(state, snapshot)
    state.extra.tokens.restore(snapshot)
    state.incarnations.restore(snapshot)
    if state.lanes is not None:
        state.lanes.restore(snapshot)
    if state.fencing is not None:
        state.fencing.restore(snapshot)


def _slices(
    head: CoordinatorSnapshot,
    owners: Iterator[list[tuple[int, Owner]]],
    pages: Iterator[list[tuple[int, PageImage]]],
    transactions: Iterator[list[tuple[int, Image]]],
    late: Iterator[list[tuple[int, Late]]],
) -> Iterator[bytes]:
    yield head.SerializeToString()
    yield from _gathered(
        ("owners", _own(CoordinatorSnapshot.Owner(index=index), owner)) for group in owners for index, owner in group
    )
    yield from _gathered(("outcome_pages", _page(number, image)) for group in pages for number, image in group)
    yield from _gathered(
        ("transactions", element) for group in transactions for _, image in group for element in _transaction(image)
    )
    yield from _gathered(("late_outcomes", _late(least, stored)) for group in late for least, stored in group)


def _read_head(state: CoordinatorState, snapshot: CoordinatorSnapshot) -> None:
    if not 1 <= snapshot.format_version <= FORMAT_VERSION:
        raise WireError(
            f"a coordinator snapshot of format {snapshot.format_version}; this version reads up to {FORMAT_VERSION}"
        )
    if snapshot.tc_id != state.tc_id:
        raise WireError(f"a snapshot of coordinator {snapshot.tc_id}, not of coordinator {state.tc_id}")
    if snapshot.HasField("next_lane") != (state.lanes is not None):
        raise WireError(records.OTHER_IDS[state.lanes is not None])
    if state.lanes is not None:
        state.lanes.restore_head(snapshot)
    covered = (snapshot.covered_ledger_id, snapshot.covered_entry_id)
    state.restore_head(snapshot.next_local_txn_id, snapshot.newest_time, covered)


def _read_outcomes(state: CoordinatorState, snapshot: CoordinatorSnapshot) -> None:
    window = state.outcomes
    for owned in snapshot.owners:
        window.owners.put(owned.index, _owner(owned))
    for stored in snapshot.outcome_pages:
        owners = bytearray(stored.owners) if stored.HasField("owners") else None
        window.restore_page(stored.number, Page(bytearray(stored.outcomes), owners))
    for late in snapshot.late_outcomes:
        window.late[late.least_bits] = (late.outcome, _owner(late), late.forgotten_at)


def _transaction(image: Image) -> Iterator[CoordinatorSnapshot.Transaction]:
    txn, topics, subscriptions = image.txn, image.topics(), image.subscriptions()
    first = CoordinatorSnapshot.Transaction(
        least_bits=txn.txn_id.least,
        status=image.status,  # type: ignore[arg-type]  # the stub wants its own enum class; at run time it is this int
        timeout_ms=txn.timeout_ms,
        start_time=txn.start_time_ms,
        lane=lane_of(txn.txn_id.most) if has_lane(txn.txn_id.most) else None,
        last_modification_time=image.modified_ms,
    )
    if image.extras is not None:
        write_extras(first, image.extras)
    element, left = _own(first, txn.owner), image.topic_count + image.subscription_count
    while True:
        element.partitions.extend(islice(topics, _NAMES_PER_ELEMENT))
        room = _NAMES_PER_ELEMENT - len(element.partitions)
        element.subscriptions.extend(
            Subscription(topic=topic, subscription=name) for topic, name in islice(subscriptions, room)
        )
        left -= len(element.partitions) + len(element.subscriptions)
        yield element
        if left <= 0:
            return
        element = CoordinatorSnapshot.Transaction(least_bits=txn.txn_id.least)


def _restore(state: CoordinatorState, stored: CoordinatorSnapshot.Transaction) -> None:
    txn = state.transactions.get(stored.least_bits)
    if txn is None:
        most = most_of_lane(state.tc_id, stored.lane) if stored.HasField("lane") else state.tc_id
        txn = Transaction(
            TxnId(most, stored.least_bits),
            _owner(stored),
            stored.start_time,
            stored.timeout_ms,
            read_extras(stored),
            status=TxnStatus(stored.status),
            modified_ms=stored.last_modification_time if stored.HasField("last_modification_time") else None,
        )
        state.add(txn)
    subscriptions = [(pair.topic, pair.subscription) for pair in stored.subscriptions]
    state.add_participants(txn, stored.partitions, subscriptions, txn.modified_ms)


def _page(number: int, image: PageImage) -> CoordinatorSnapshot.OutcomePage:
    outcomes, owners = image
    return CoordinatorSnapshot.OutcomePage(number=number, outcomes=outcomes, owners=owners)


def _late(least: int, late: Late) -> CoordinatorSnapshot.LateOutcome:
    outcome, owner, forgotten_at = late
    return _own(CoordinatorSnapshot.LateOutcome(least_bits=least, outcome=outcome, forgotten_at=forgotten_at), owner)


def _own(stored: OwnedT, owner: Owner) -> OwnedT:
    principal, identity = owner
    if principal is not None:
        stored.principal = principal
    if identity is not None:
        stored.transactional_id, stored.epoch = identity
    return stored


def _owner(stored: OwnedT) -> Owner:
    principal = stored.principal if stored.HasField("principal") else None
    return principal, (stored.transactional_id, stored.epoch) if stored.HasField("transactional_id") else None
