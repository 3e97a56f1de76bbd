"""A database in the transaction: an outcome row in the program's own database transaction decides the Pulsar transaction."""

from pulsar_txn.client.errors import OutboxAborted, OutboxDiverged, OutboxOutcomeUnknown
from pulsar_txn.client.outbox.blocking import Outbox, OutboxTransaction
from pulsar_txn.client.outbox.outbox import AsyncOutbox, AsyncOutboxTransaction, table_sql
from pulsar_txn.client.outbox.trimming import TrimResult

__all__ = [
    "AsyncOutbox",
    "AsyncOutboxTransaction",
    "Outbox",
    "OutboxAborted",
    "OutboxDiverged",
    "OutboxOutcomeUnknown",
    "OutboxTransaction",
    "TrimResult",
    "table_sql",
]
