"""A database in the transaction: an outcome row in the program's own database transaction decides the Pulsar transaction."""

from pulsar_txn.client.outbox.outbox import (
    AsyncOutbox,
    AsyncOutboxTransaction,
    Outbox,
    OutboxTransaction,
    identity_sql,
    table_sql,
)
from pulsar_txn.client.outbox.rows import TrimResult

__all__ = [
    "AsyncOutbox",
    "AsyncOutboxTransaction",
    "Outbox",
    "OutboxTransaction",
    "TrimResult",
    "identity_sql",
    "table_sql",
]
