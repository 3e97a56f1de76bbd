"""DESCRIBE_TRANSACTIONAL_ID: what its coordinator knows of a transactional id (Kafka's DescribeTransactions).

CONNECTED announces `describes_transactional_ids`, without which no client asks. An id belongs to the role that named it: to
others than operators only their own exist. One answer has at most `MAX_TRANSACTIONS` transactions and `_MAX_NAMES`
characters of participants, the first of them, and says how many there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import unsigned64

from .coordinating import TxnHandler, TxnSession

MAX_TRANSACTIONS: Final = 1000
_MAX_NAMES: Final = 256 * 1024


async def on_describe_transactional_id(session: TxnSession, body: Any) -> None:
    """Answered by the id's coordinator; elsewhere, with which one that is. Refusal."""
    coordinators, ids = session.services.coordinators, session.services.transactional_ids
    if coordinators is None or ids is None:
        text = "transactional ids are not served here; set transactionMetadataStoreProviderClassName=fencing"
        raise Refusal(ServerError.NotAllowedError, text)
    owner = (body.owner or None) if body.HasField("owner") else session.principal
    if owner != session.principal and not session.superuser:
        text = "a role sees its own transactional ids; those of another owner are for operators (superUserRoles)"
        raise Refusal(ServerError.AuthorizationError, text)
    told: dict[str, Any] = {"request_id": body.request_id}
    tc_id = await ids.find(body.transactional_id)
    if tc_id is not None:
        told["tc_id"] = tc_id
        if not body.HasField("tc_id") and coordinators.is_elsewhere(tc_id):
            told["elsewhere"] = True
        else:
            told |= await _known(session, coordinators, tc_id, owner, body.transactional_id)
    session.connection.write_command("describeTransactionalIdResponse", **told)


async def _known(session: TxnSession, coordinators: Coordinators, tc_id: int, owner: str | None, name: str) -> dict[str, Any]:
    coordinators.check_here(tc_id)
    host = coordinators.ready(tc_id)
    assert host is not None  # noqa: S101 - it is here
    machine: Any = host.machine
    if not hasattr(machine, "describe"):
        raise Refusal(ServerError.NotAllowedError, "this server's coordinator plug-in does not describe transactional ids")
    info = machine.describe(owner, name, MAX_TRANSACTIONS)
    if info is None:
        return {}
    transactions, left = [], _MAX_NAMES
    async for each in each_living(machine, info, session.services.turn.budget):
        shown, used = _participants(session, each, left)
        left -= used
        transactions.append(_shown(each, shown))
    return {
        "epoch": info.epoch,
        "last_used_millis": info.last_used_ms,
        "transaction_count": info.transaction_count,
        "transactions": transactions,
    }


async def each_living(machine: Any, info: Any, budget: LoopBudget) -> AsyncIterator[Any]:
    """The transactions of an id, each as it is when its turn comes; those that have ended meanwhile are passed over."""
    async for least in budget.each(info.living, at_a_time=1):
        found = machine.transaction(least)
        if found is not None:
            yield found


def _shown(info: Any, participants: list[pb.DescribedParticipant]) -> pb.DescribedTransaction:
    return pb.DescribedTransaction(
        txnid_least_bits=unsigned64(info.txn_id.least),
        txnid_most_bits=unsigned64(info.txn_id.most),
        status=int(info.status),
        epoch=info.identity[1],
        start_time_millis=info.start_time_ms,
        timeout_millis=info.timeout_ms,
        modified_millis=info.modified_ms,
        check_group=info.check_group,
        check_count=info.check_count,
        participant_count=len(info.participants),
        participants=participants,
    )


def _participants(session: TxnSession, info: Any, left: int) -> tuple[list[pb.DescribedParticipant], int]:
    """The first of them, in at most `left` characters, and how many those are."""
    found: list[pb.DescribedParticipant] = []
    used = 0
    for each in info.participants:
        used += len(each.topic) + len(each.subscription or "")
        if used > left:
            return found, left  # nothing more of later transactions either
        cluster, place = session.services.place(each)
        found.append(pb.DescribedParticipant(topic=place.topic, subscription=place.subscription, cluster=cluster or None))
    return found, used


HANDLERS: Final[dict[int, TxnHandler]] = {
    pb.BaseCommand.DESCRIBE_TRANSACTIONAL_ID: on_describe_transactional_id,
}
