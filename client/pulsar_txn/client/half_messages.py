"""Half messages with a back-check: producers, the check group, its questions and answers."""

from pulsar_txn.client.send.half_messages import AsyncTransactionalProducer, HalfMessage, HalfSent
from pulsar_txn.client.sync import CheckGroup, TransactionalProducer
from pulsar_txn.client.txn.check_groups import (
    AsyncCheckGroup,
    CheckDecision,
    CheckedMessage,
    CheckQuestion,
    Decision,
    LocalOutcome,
)

__all__ = [
    "AsyncCheckGroup",
    "AsyncTransactionalProducer",
    "CheckDecision",
    "CheckGroup",
    "CheckQuestion",
    "CheckedMessage",
    "Decision",
    "HalfMessage",
    "HalfSent",
    "LocalOutcome",
    "TransactionalProducer",
]
