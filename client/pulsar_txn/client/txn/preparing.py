"""The first phase of a commit in two: after it a transaction waits for its end, without a timeout (KIP-939's idea).

It is what a commit does before END_TXN: acknowledge the input, wait for the operations, and abort when one of them failed. Then
PREPARE_TXN gives the coordinator a token that is made here, so that the request can be repeated after a lost answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pulsar_txn.client.errors import (
    FeatureUnsupported,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionFenced,
    TransactionNotFound,
)
from pulsar_txn.client.txn.inputs import Inputs
from pulsar_txn.client.txn.life import Life
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.prepared import SECRET_BYTES, PreparedToken
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import TransactionState


class Preparing:
    """The prepare of one transaction.

    `settle(end)` waits for its operations; `check_whole(end)` aborts it and raises when one of them failed.
    """

    def __init__(
        self,
        life: Life,
        opening: Opening,
        inputs: Inputs,
        coordinators: CoordinatorSessions,
        *,
        monotonic: Callable[[], float],
        secret: Callable[[int], bytes],
        settle: Callable[[float], Awaitable[None]],
        check_whole: Callable[[float], Awaitable[None]],
    ) -> None:
        self._life = life
        self._opening = opening
        self._inputs = inputs
        self._coordinators = coordinators
        self._monotonic = monotonic
        self._secret = secret
        self._settle = settle
        self._check_whole = check_whole

    async def run(self, budget: float, secret: bytes | None = None) -> None:
        """PREPARED when it returns. Raises as `AsyncTransaction.prepare`; then it is in the state that this says.

        `secret`: of the token, unless an attempt before has one.
        """
        life, end = self._life, self._monotonic() + budget
        txn_id = await self._opening.open()
        if life.state is not TransactionState.PREPARING:  # else the answer of an attempt before was lost
            await self._coordinators.needs_checks(txn_id, "prepare()")
            life.check_usable()
            self._inputs.acknowledge()
            life.move(TransactionState.PREPARING)
        await self._settle(end)
        await self._check_whole(end)
        again = life.prepared is not None
        token = life.prepared = life.prepared or PreparedToken(txn_id, secret or self._secret(SECRET_BYTES))
        try:
            await self._coordinators.prepare_txn(token, timeout=max(0.001, end - self._monotonic()), tally=self._opening.tally)
        except FeatureUnsupported:
            life.prepared = None
            raise
        except (InvalidTransactionStatus, TransactionNotFound, TransactionFenced) as error:
            raise self._ended_elsewhere(error, again=again) from error
        life.move(TransactionState.PREPARED)

    def _ended_elsewhere(self, error: PulsarError, *, again: bool) -> PulsarError:
        """The coordinator had ended it before: at its timeout, for a successor, or as a member of its group said.

        `again`: an earlier attempt may have prepared it.
        """
        life = self._life
        if life.options.check_group is not None or error.maybe_processed or again or life.is_known_to_others:
            # A member, or whoever knows its id, may have said commit; or it was prepared, and ended since.
            error.hint = "call commit(): what it says is how the transaction has ended"
            return error
        life.prepared = None
        life.move(TransactionState.ABORTED)
        if isinstance(error, TransactionFenced):
            return error
        return TransactionAborted(
            "the coordinator had ended the transaction before the prepare reached it", txn_id=life.id, hint="run the unit again"
        )
