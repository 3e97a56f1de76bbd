"""For authors of coordinator plug-ins: a coordinator in memory, and the suite that every coordinator passes.

    from pulsar_txn.tc.testing import TransactionCoordinatorSuite

    class TestMyCoordinator(TransactionCoordinatorSuite):
        factory = MyCoordinator

Nothing here needs pytest but the collection of `test_*` methods; see `suite` for what is promised. Beyond that,
`HostedCoordinator` checks at every step: decisions leave no trace and repeat themselves, invariants hold, participants are
told only what is durable, and no transaction has two outcomes.
"""

from .host import HostedCoordinator
from .suite import TransactionCoordinatorSuite

__all__ = ["HostedCoordinator", "TransactionCoordinatorSuite"]
