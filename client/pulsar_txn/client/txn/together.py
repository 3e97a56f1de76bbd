"""Several transactions that are committed by one record, and one transactional id that several processes share.

A program that is spread over processes sends in a transaction of its own in each of them. One process then commits exactly
those whose work counts: all or none. They need one coordinator, which a transactional id gives them; and the next epoch of
the id aborts whatever was left open. Brokers offer it by a feature flag (`docs/adr/0023`); stock Pulsar does not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pulsar_txn.client.errors import (
    InvalidConfiguration,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
)
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.transactional_id import Epoch
from pulsar_txn.wire.ids import TxnAction, TxnId, coordinator_of

logger = logging.getLogger("pulsar_txn.client.txn")


async def take_over(core: Core) -> Epoch:
    """A new epoch for the client's transactional id; its first transaction aborts what older epochs have open.

    Raises TransactionalIdUnsupported where nobody fences, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost.
    """
    coordinators: TransactionCoordinators = core.coordinators()
    return await coordinators.take_over()


async def act_as(core: Core, epoch: Epoch) -> None:
    """Be the same instance as the process that took over. Raises TransactionFenced, and as `take_over`."""
    coordinators: TransactionCoordinators = core.coordinators()
    await coordinators.act_as(epoch)


async def commit_together(
    core: Core, txn: AsyncTransaction, others: Iterable[TxnId | str], *, abort_rest: bool = False
) -> None:
    """Commit `txn` and, by the same record, transactions that were begun elsewhere; or none of them.

    `abort_rest`: whatever else this epoch of the transactional id has open is aborted directly after that record.
    Nobody may still be sending in `others`. Raises as `txn.commit()`: TransactionAborted when one of them was ended before
    (`txn` is aborted then, the others are as they were); CommitOutcomeUnknown, whose `resolve()` asks for the whole group
    again. InvalidConfiguration when one has another coordinator, or the broker ends no groups.
    """
    unit = txn.inside
    group = [TxnId.parse(each) if isinstance(each, str) else each for each in others]
    txn_id = await unit.open()
    for each in group:
        if coordinator_of(each.most) != coordinator_of(txn_id.most):
            raise InvalidConfiguration(
                f"transaction {each} has another coordinator than {txn_id}", hint="begin all of them with one transactional id"
            )
    try:
        await unit.commit_together(group, aborts_others=abort_rest)
    except TransactionAborted:
        await _abort(core, txn_id)
        raise


async def open_for_others(core: Core, timeout_ms: int) -> TxnId:
    """Open a transaction that another process will end; `client.attach_transaction` gives the handle. Raises as `take_over`."""
    coordinators: TransactionCoordinators = core.coordinators()
    return await coordinators.new_txn(timeout_ms)


async def is_open(core: Core, txn_id: TxnId | str) -> bool:
    """True if a transaction of this epoch is neither ended nor being ended. Raises TransactionFenced, and as `take_over`."""
    coordinators: TransactionCoordinators = core.coordinators()
    try:
        await coordinators.add_partitions(TxnId.parse(txn_id) if isinstance(txn_id, str) else txn_id, ())
    except (InvalidTransactionStatus, TransactionNotFound):
        return False
    return True


async def ends_groups(core: Core) -> bool:
    """True if the cluster's coordinators offer what this module rests on. Raises TransactionsDisabled, and as `take_over`."""
    coordinators: TransactionCoordinators = core.coordinators()
    return await coordinators.end_groups()


async def abort_all(core: Core, timeout_ms: int = 10_000) -> None:
    """Abort whatever this epoch of the client's transactional id has open, and what older ones have. Raises as `take_over`."""
    coordinators: TransactionCoordinators = core.coordinators()
    txn_id = await coordinators.new_txn(timeout_ms)
    await coordinators.end_txn(txn_id, TxnAction.ABORT, abort_others=True)


async def _abort(core: Core, txn_id: TxnId) -> None:
    """A refused group leaves its members as they were: end the one that is ours."""
    coordinators: TransactionCoordinators = core.coordinators()
    try:
        await coordinators.end_txn(txn_id, TxnAction.ABORT)
    except PulsarError as error:
        logger.info("transaction %s of a refused group is left to its timeout: %s", txn_id, error)
