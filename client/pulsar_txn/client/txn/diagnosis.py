"""Reasons why a cluster has no transactions, and remedies: the sentences of the client's errors and of `pulsar-txn doctor`."""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.errors import AuthorizationError, CoordinatorUnavailable, PulsarError

NO_ASSIGN_TOPIC: Final = (
    "set transactionCoordinatorEnabled=true on every broker, and make the coordinators once: bin/pulsar "
    "initialize-transaction-coordinator-metadata -cs <metadata store> -c <cluster> --initial-num-transaction-coordinators 16. "
    "`pulsar-txn doctor --cluster <URL>` says which of the two is missing"
)
TRANSACTIONS_OFF: Final = (
    "set transactionCoordinatorEnabled=true in broker.conf (standalone.conf) on every broker, and restart them one by one"
)
NO_GRANT: Final = (
    "transactions need a grant on the namespace of the coordinators as well: pulsar-admin namespaces grant-permission "
    "pulsar/system --role <role> --actions produce,consume"
)
NOT_LOADED: Final = (
    "the coordinator is not loaded at the broker that it belongs to (apache/pulsar#20851); `pulsar-txn doctor --cluster <URL>` "
    "says which and what to do"
)


def explained(error: PulsarError) -> PulsarError:
    """The error that kept a client from the coordinators, with what to do as its hint."""
    if isinstance(error, CoordinatorUnavailable):
        error.hint = NOT_LOADED
    elif isinstance(error, AuthorizationError):
        error.hint = NO_GRANT
    return error
