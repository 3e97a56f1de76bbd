"""Both coordinators pass the public suite, also with a snapshot after every record."""

from __future__ import annotations

from functools import partial

from pulsar_txn.tc import FencingCoordinator, TransactionCoordinator
from pulsar_txn.tc.testing import TransactionCoordinatorSuite


class TestTransactionCoordinator(TransactionCoordinatorSuite):
    factory = TransactionCoordinator


class TestFencingCoordinator(TransactionCoordinatorSuite):
    factory = FencingCoordinator


class TestTransactionCoordinatorWithEagerSnapshots(TransactionCoordinatorSuite):
    factory = partial(TransactionCoordinator, snapshot_every=1, expire_limit=1)
