"""`pulsar.functions` under its official layout; what runs functions is `pulsar_txn.client.functions`."""

from pulsar_txn.client.compat.functions.context import Context
from pulsar_txn.client.compat.functions.function import Function
from pulsar_txn.client.compat.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"]
