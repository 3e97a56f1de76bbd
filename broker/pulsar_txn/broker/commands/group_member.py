"""A connection as a member of check groups."""

from __future__ import annotations

from typing import Final

from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.txn.check_groups import GroupKey
from pulsar_txn.ledger.machine import AskProducer
from pulsar_txn.wire.ids import TxnId

MOST_QUESTIONS: Final = 16_384
"""That one connection was asked and has not answered; the oldest is forgotten first, and asked for again later."""


class GroupMember:
    """A client that has joined check groups. `questions`: what it was asked and has not answered, by transaction."""

    def __init__(self, connection: Answering) -> None:
        self._connection = connection
        self.groups: dict[GroupKey, None] = {}
        self.questions: dict[TxnId, str] = {}

    @property
    def is_writable(self) -> bool:
        """Whether it takes what it is sent."""
        return self._connection.writable

    def ask(self, question: AskProducer) -> None:
        """Send TXN_CHECK."""
        txn_id, questions = question.txn_id, self.questions
        questions.pop(txn_id, None)
        questions[txn_id] = question.group
        if len(questions) > MOST_QUESTIONS:
            del questions[next(iter(questions))]
        self._connection.write_command(
            "txnCheck",
            txnid_least_bits=txn_id.least,
            txnid_most_bits=txn_id.most,
            group=question.group,
            check_data=question.data,
            check_count=question.count,
            max_checks=question.max_checks,
            prepared=question.prepared,
        )
