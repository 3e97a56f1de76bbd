"""TXN_GROUP, TXN_CHECK_BEGUN and TXN_CHECK_RESPONSE: members of check groups say what became of transactions.

Nothing of it goes to a client that did not announce `supports_checks` in CONNECT.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pulsar_txn.broker.txn.check_groups import GroupKey, Terms
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.tc.requests import CheckOutcome
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId, signed64

from .txn_session import TxnHandler, TxnSession

_logger = logging.getLogger(__name__)

MAX_GROUP_LENGTH: Final = 256
NO_CHECKS: Final = (
    "this server's coordinator plug-in asks no check groups and prepares nothing; set "
    "transactionMetadataStoreProviderClassName=fencing"
)


def on_txn_group(session: TxnSession, body: Any) -> None:
    """TXN_GROUP: join a check group at one coordinator, or leave it; for the life of the connection. Refusal."""
    coordinators = _coordinators(session)
    if not session.answers_checks:
        text = "a client that joins a check group has to announce supports_checks in CONNECT"
        raise Refusal(ServerError.NotAllowedError, text)
    if not body.group.strip() or len(body.group) > MAX_GROUP_LENGTH:
        text = f"the name of a check group has 1 to {MAX_GROUP_LENGTH} characters that are not all blank"
        raise Refusal(ServerError.NotAllowedError, text)
    key = GroupKey(body.tc_id, session.principal, body.group)
    if body.leave:
        if session.transactions.member is not None:
            coordinators.check_groups.leave(key, session.transactions.member)
    else:
        coordinators.check_here(body.tc_id)
        member = session.transactions.join_groups(session.connection)
        terms = Terms(body.concurrency if body.HasField("concurrency") else None, body.check_timeout_millis)
        coordinators.check_groups.join(key, member, terms)
    session.connection.write_command("success", request_id=body.request_id)


def on_txn_check_response(session: TxnSession, body: Any) -> None:
    """TXN_CHECK_RESPONSE: there is no answer. One that nobody asked this client for, or not any more, changes nothing."""
    coordinators, member = session.services.coordinators, session.transactions.member
    if coordinators is None:
        return
    txn_id, groups = _txn_of(body), coordinators.check_groups
    begins = member is not None and body.group in member.seats and member.seats[body.group].begins
    if member is None or not groups.answers(member, txn_id, body.group):
        groups.answered["refused"] += member is None
        _logger.debug("%s answers for %s, which it was not asked for", session.connection.peer, txn_id)
        return
    if not begins:  # a member of an earlier release: what it has answered, it has begun
        groups.counts(txn_id, body.group, session.principal)
    outcome = CheckOutcome(body.outcome)
    groups.answered[outcome.name.lower()] += 1
    coordinators.check_answered(txn_id, body.group, outcome, session.principal)


def on_txn_check_begun(session: TxnSession, body: Any) -> None:
    """TXN_CHECK_BEGUN: answered once the question is counted durably; an error when nobody has to answer it. Refusal."""
    coordinators, member, txn_id = _coordinators(session), session.transactions.member, _txn_of(body)
    if member is None or not coordinators.check_groups.begins(member, txn_id, body.group):
        text = f"this client was not asked for transaction {txn_id}, or has begun to answer before"
        raise Refusal(ServerError.NotAllowedError, text)

    def answer(_value: Any, error: ServerError | None, message: str) -> None:
        if error is None:
            session.connection.write_command("success", request_id=body.request_id)
            return
        coordinators.check_groups.skips(member, txn_id, body.group)
        coordinators.check_groups.returned(txn_id)
        session.connection.write_command("error", request_id=body.request_id, error=int(error), message=message)

    coordinators.check_begun(txn_id, body.group, session.principal, answer)


def _txn_of(body: Any) -> TxnId:
    return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))


def _coordinators(session: TxnSession) -> Coordinators:
    coordinators = session.services.coordinators
    if coordinators is None:
        text = "transactions are not enabled on this broker; set transactionCoordinatorEnabled=true"
        raise Refusal(ServerError.NotAllowedError, text)
    if not session.services.checks:
        raise Refusal(ServerError.NotAllowedError, NO_CHECKS)
    return coordinators


HANDLERS: Final[dict[int, TxnHandler]] = {
    pb.BaseCommand.TXN_GROUP: on_txn_group,
    pb.BaseCommand.TXN_CHECK_BEGUN: on_txn_check_begun,
    pb.BaseCommand.TXN_CHECK_RESPONSE: on_txn_check_response,
}
