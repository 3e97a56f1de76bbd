"""The whole state of a coordinator as bytes, and back. Equal states give equal bytes."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from pulsar_txn.tc._state import CoordinatorState, Transaction
from pulsar_txn.tc.outcomes import Owner, Page
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot, Subscription
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import TxnId

FORMAT_VERSION: Final = 1

OwnedT = TypeVar("OwnedT", CoordinatorSnapshot.Transaction, CoordinatorSnapshot.LateOutcome, CoordinatorSnapshot.Owner)


def write(state: CoordinatorState) -> bytes:
    """The state after the last applied record."""
    ledger_id, entry_id = state.last_applied
    return CoordinatorSnapshot(
        format_version=FORMAT_VERSION,
        tc_id=state.tc_id,
        next_local_txn_id=state.next_id,
        newest_time=state.newest_time_ms,
        covered_ledger_id=ledger_id,
        covered_entry_id=entry_id,
        transactions=map(_transaction, state.transactions.values()),
        outcome_pages=[_page(number, page) for number, page in state.outcomes.pages.items()],
        owners=[
            _own(CoordinatorSnapshot.Owner(index=index), owner) for index, owner in sorted(state.outcomes.owners.owners.items())
        ],
        late_outcomes=[
            _own(CoordinatorSnapshot.LateOutcome(least_bits=least, outcome=outcome, forgotten_at=forgotten_at), owner)
            for least, (outcome, owner, forgotten_at) in state.outcomes.late.items()
        ],
    ).SerializeToString()


def read(state: CoordinatorState, data: bytes) -> None:
    """Fill a fresh state. Raises WireError: not a snapshot, a newer format, or another coordinator's."""
    try:
        snapshot = CoordinatorSnapshot.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a coordinator snapshot ({len(data)} bytes): {error}") from error
    if snapshot.format_version != FORMAT_VERSION:
        raise WireError(f"a coordinator snapshot of format {snapshot.format_version}; this version reads {FORMAT_VERSION}")
    if snapshot.tc_id != state.tc_id:
        raise WireError(f"a snapshot of coordinator {snapshot.tc_id}, not of coordinator {state.tc_id}")
    state.next_id = snapshot.next_local_txn_id
    state.newest_time_ms = snapshot.newest_time
    state.last_applied = (snapshot.covered_ledger_id, snapshot.covered_entry_id)
    for stored in snapshot.transactions:
        state.add(_restored(state.tc_id, stored))
    _read_outcomes(state, snapshot)


def _read_outcomes(state: CoordinatorState, snapshot: CoordinatorSnapshot) -> None:
    window = state.outcomes
    for owned in snapshot.owners:
        window.owners.put(owned.index, _owner(owned))
    for stored in snapshot.outcome_pages:
        owners = bytearray(stored.owners) if stored.HasField("owners") else None
        page = window.pages[stored.number] = Page(bytearray(stored.outcomes), owners)
        window.owners.count(page.owner_indexes())
    for late in snapshot.late_outcomes:
        window.late[late.least_bits] = (late.outcome, _owner(late), late.forgotten_at)


def _transaction(txn: Transaction) -> CoordinatorSnapshot.Transaction:
    stored = CoordinatorSnapshot.Transaction(
        least_bits=txn.txn_id.least,
        status=txn.status,  # type: ignore[arg-type]  # the stub wants its own enum class; at run time it is this int
        timeout_ms=txn.timeout_ms,
        start_time=txn.start_time_ms,
        partitions=txn.topics,
        subscriptions=[Subscription(topic=topic, subscription=name) for topic, name in txn.subscriptions],
    )
    return _own(stored, txn.owner)


def _restored(tc_id: int, stored: CoordinatorSnapshot.Transaction) -> Transaction:
    txn = Transaction(TxnId(tc_id, stored.least_bits), _owner(stored), stored.start_time, stored.timeout_ms)
    txn.status = stored.status
    txn.topics = dict.fromkeys(stored.partitions)
    txn.subscriptions = {(pair.topic, pair.subscription): None for pair in stored.subscriptions}
    return txn


def _page(number: int, page: Page) -> CoordinatorSnapshot.OutcomePage:
    owners = None if page.owners is None else bytes(page.owners)
    return CoordinatorSnapshot.OutcomePage(number=number, outcomes=bytes(page.outcomes), owners=owners)


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
