"""`pulsar.functions.serde`. `PickleSerDe` is refused when it is made."""

from pulsar_txn.pipeline.functions import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["IdentitySerDe", "PickleSerDe", "SerDe"]
