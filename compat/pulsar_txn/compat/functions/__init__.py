"""`pulsar.functions` under its official layout; what runs functions is `pulsar_txn.pipeline.functions`."""

from pulsar_txn.compat.functions.context import Context
from pulsar_txn.compat.functions.function import Function
from pulsar_txn.compat.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"]
