"""The end of a commit group: members, listeners and those who wait are told, once, on the loop."""

from __future__ import annotations

import logging

from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.protocols import LedgerError

logger = logging.getLogger(__name__)


def confirm(group: CommitGroup) -> None:
    """All of it is durable: raise what readers may see, then tell listeners, then those who wait."""
    for cursor, ticket, _ in group.tickets:
        cursor.confirm(ticket)
    for log, entry in group.marks:
        log.confirm(entry)
    for log, entry in group.marks:
        listener = log.listener
        if listener is not None and log.closed is None:
            try:
                listener.log_confirmed((log.ledger_id, entry))
            except Exception:  # its mistakes are its own and must not stop other logs
                logger.exception("the listener of log %r failed", log.name)
    for waiter in group.waiters:
        if not waiter.done():
            waiter.set_result(None)


def fail(group: CommitGroup, error: LedgerError) -> None:
    """Fail those who wait: it will never be durable. Logs are told by their store, which closes all of them."""
    for waiter in group.waiters:
        if not waiter.done():
            waiter.set_exception(error)
            waiter.exception()  # a waiter that was cancelled meanwhile will not fetch it: no warning for that
