"""Knowledge of a coordinator about a transactional id: Kafka's `describeTransactions`."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from pulsar_txn.client.errors import FeatureUnsupported
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus, signed64

NAME = "describeTransactionalId"


@attrs.frozen
class DescribedTransaction:
    """A transaction of a transactional id that is open, prepared or being ended.

    `epoch`: of the instance that began it. Times are milliseconds, those of an instant since 1970: `start_time_ms`, and
    `modified_ms`, when its status changed last or a participant was registered. `timeout_ms` counts from the start.
    `participants`: topic partitions and subscriptions, the first of `participant_count`. `clusters` has the cluster of each
    of them beside clusters, and is empty elsewhere. `check_group`: who is asked for its outcome; `check_count`: how often.
    """

    txn_id: TxnId
    status: TxnStatus
    epoch: int
    start_time_ms: int
    timeout_ms: int
    modified_ms: int
    participants: tuple[Participant, ...]
    participant_count: int
    clusters: tuple[str, ...] = ()
    check_group: str | None = None
    check_count: int = 0


@attrs.frozen
class TransactionalIdInfo:
    """A transactional id at a moment.

    `epoch`: the newest one. `last_used_ms`: when that was last used, milliseconds since 1970. `transactions`: what of all
    epochs has not ended, oldest first: the first 1,000 of `transaction_count`.
    """

    transactional_id: str
    coordinator_id: int
    epoch: int
    last_used_ms: int
    transactions: tuple[DescribedTransaction, ...]
    transaction_count: int


def encoder(name: str, owner: str | None, tc_id: int | None = None) -> partial[bytes]:
    """DESCRIBE_TRANSACTIONAL_ID, which the number of a request is handed to. `tc_id`: which coordinator is asked."""
    further: dict[str, Any] = {} if owner is None else {"owner": owner}
    if tc_id is not None:
        further["tc_id"] = tc_id
    return partial(_encode, {"transactional_id": name} | further)


def _encode(fields: dict[str, Any], number: int) -> bytes:
    return command(NAME, request_id=number, **fields)


def check_describes(connection: Connection) -> None:
    """FeatureUnsupported unless the peer knows the request."""
    if not connection.features.describes_transactional_ids:
        text = f"{connection.server_version} does not describe transactional ids"
        raise FeatureUnsupported(text, endpoint=connection.endpoint)


def info_of(name: str, answer: Any) -> TransactionalIdInfo | None:
    """Read the answer; None when nothing is known of the id."""
    if not answer.HasField("epoch"):
        return None
    transactions = tuple(map(_transaction, answer.transactions))
    return TransactionalIdInfo(
        name, answer.tc_id, answer.epoch, answer.last_used_millis, transactions, answer.transaction_count
    )


def _transaction(body: Any) -> DescribedTransaction:
    places = body.participants
    return DescribedTransaction(
        TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits)),
        TxnStatus(body.status),
        body.epoch,
        body.start_time_millis,
        body.timeout_millis,
        body.modified_millis,
        tuple(Participant(each.topic, each.subscription if each.HasField("subscription") else None) for each in places),
        body.participant_count,
        tuple(each.cluster for each in places) if any(each.HasField("cluster") for each in places) else (),
        body.check_group if body.HasField("check_group") else None,
        body.check_count,
    )
