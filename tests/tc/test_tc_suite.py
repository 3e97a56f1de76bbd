"""Our coordinators pass the public suite, under both id policies, also with a snapshot after every record."""

from __future__ import annotations

from functools import partial

from pulsar_txn.tc import FencingCoordinator, LaneIds, PulsarIds, TransactionCoordinator
from pulsar_txn.tc.testing import TransactionCoordinatorSuite


class TestTransactionCoordinator(TransactionCoordinatorSuite):
    factory = TransactionCoordinator


class TestFencingCoordinator(TransactionCoordinatorSuite):
    factory = FencingCoordinator


class TestTransactionCoordinatorWithEagerSnapshots(TransactionCoordinatorSuite):
    factory = partial(TransactionCoordinator, snapshot_every=1, expire_limit=1)


class TestCoordinatorWithLanes(TransactionCoordinatorSuite):
    factory = partial(FencingCoordinator, ids=LaneIds())


class TestCoordinatorWithLanesAndEagerSnapshots(TransactionCoordinatorSuite):
    factory = partial(TransactionCoordinator, ids=LaneIds(), snapshot_every=1, expire_limit=1)


class TestCoordinatorOfUnchangedClients(TransactionCoordinatorSuite):
    factory = partial(TransactionCoordinator, ids=PulsarIds(first_least=1 << 40))
