"""Known defects and configurations of clusters that stop transactions, as sentences: what is wrong, and what to do.

What a client meets at its first transaction is said by the client itself, in the same words.
"""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.inside import NO_ASSIGN_TOPIC, TRANSACTIONS_OFF

__all__ = [
    "BUFFER_RECOVERY_SPINS",
    "COORDINATOR_NOT_LOADED",
    "DEADLOCK",
    "NO_ASSIGN_TOPIC",
    "REPLAY_SPINS",
    "TRANSACTIONS_OFF",
]

COORDINATOR_NOT_LOADED: Final = (
    "a coordinator that is not loaded refuses its transactions (apache/pulsar#20851); run: pulsar-admin topics unload "
    "persistent://pulsar/system/transaction_coordinator_assign-partition-{number}, and restart the broker that owns this "
    "partition if that does not help"
)
REPLAY_SPINS: Final = (
    "the log of pending acknowledgements is read over and over (apache/pulsar#26368, #26374; up to 4.0.13 and 4.2.4): "
    "SUBSCRIBE hangs here and on other subscriptions, and a thread pulsar-transaction-executor of the broker uses a whole "
    "core. Restart the broker, unload topics rarely, and upgrade"
)
BUFFER_RECOVERY_SPINS: Final = (
    "the topic's transactions are recovered over and over (apache/pulsar#26379): nothing is delivered in transactions. Look "
    "for read errors of this topic in the log of the broker, mend what it names, and unload the topic"
)
DEADLOCK: Final = (
    "an abort of single acknowledgements on a Shared subscription does that on stock Pulsar, in a topic that has transactions; "
    "only a kill of the broker process helps"
)
