"""A connection as a member of check groups."""

from __future__ import annotations

from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.txn.check_groups import GroupKey, Seat
from pulsar_txn.ledger.machine import AskProducer, TellGroup


class GroupMember:
    """A client that has joined check groups: see `check_groups.Member`."""

    def __init__(self, connection: Answering) -> None:
        self._connection = connection
        self.groups: dict[GroupKey, None] = {}
        self.seats: dict[str, Seat] = {}

    @property
    def is_writable(self) -> bool:
        """True if it takes what it is sent."""
        return self._connection.writable

    def ask(self, question: AskProducer, begins: bool) -> None:
        """Send TXN_CHECK."""
        txn_id = question.txn_id
        self._connection.write_command(
            "txnCheck",
            txnid_least_bits=txn_id.least,
            txnid_most_bits=txn_id.most,
            group=question.group,
            check_data=question.data,
            check_count=question.count,
            max_checks=question.max_checks,
            prepared=question.prepared,
            say_begun=begins or None,
        )

    def tell(self, decided: TellGroup) -> None:
        """Send TXN_CHECK_DECIDED."""
        self._connection.write_command(
            "txnCheckDecided",
            txnid_least_bits=decided.txn_id.least,
            txnid_most_bits=decided.txn_id.most,
            group=decided.group,
            check_data=decided.data,
            txn_action=None if decided.action is None else int(decided.action),
            cause=decided.cause,
            check_count=decided.count,
        )
