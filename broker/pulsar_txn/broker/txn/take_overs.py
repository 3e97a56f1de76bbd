"""Epochs of transactional ids that begin: a client is told its epoch once what older epochs left behind has ended.

The coordinator aborts what older epochs have open, and carries out what they had decided; each participant has to hold that.
A participant that cannot be reached would keep the client waiting for as long, so the wait is bounded, and then the client
asks again. Meanwhile the coordinator goes on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, TypeAlias

from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.errors import Refusal, ServerError

from .coordinators import Coordinators

MOST_PENDING: Final = 64
"""Epochs of one transactional id that wait at the same time: each is a successor of the one before, which is fenced."""

_Name: TypeAlias = tuple[str | None, str]
"""Principal and transactional id."""

_Pending: TypeAlias = dict[int, "asyncio.Future[Refusal | None]"]
"""By epoch: how the beginning of each went."""


class TakeOvers:
    """Those of one server. `wait_seconds`: how long a client waits at most."""

    def __init__(self, coordinators: Coordinators, wait_seconds: float) -> None:
        self._coordinators = coordinators
        self._wait_seconds = wait_seconds
        self._pending: dict[_Name, _Pending] = {}

    async def done(self, tc_id: int, principal: str | None, identity: Identity, incarnation: str | None = None) -> None:
        """Return when all that older epochs began has ended at all participants. Who asks again for an epoch joins the first.

        Refusals: ServiceNotReady when that took too long, or too many epochs wait; ProducerFenced when a newer one has begun;
        TransactionCoordinatorNotFound. If cancelled: the epoch begins all the same.
        """
        name, epoch = (principal, identity[0]), identity[1]
        begun = self._pending.get(name, {}).get(epoch)
        if begun is None:
            begun = self._begin(tc_id, name, epoch, incarnation)
        try:
            async with asyncio.timeout(self._wait_seconds):
                refusal = await asyncio.shield(begun)
        except TimeoutError:
            raise Refusal(
                ServerError.ServiceNotReady,
                f"what older instances of transactional id {identity[0]!r} began has not ended at all its topics and "
                f"subscriptions within {self._wait_seconds:g} s; retry",
            ) from None
        if refusal is not None:
            raise refusal

    def _begin(self, tc_id: int, name: _Name, epoch: int, incarnation: str | None) -> asyncio.Future[Refusal | None]:
        pending = self._pending.setdefault(name, {})
        if len(pending) >= MOST_PENDING:
            text = f"{len(pending)} instances of transactional id {name[1]!r} wait for what older ones began; retry"
            raise Refusal(ServerError.ServiceNotReady, text)
        begun = pending[epoch] = asyncio.get_running_loop().create_future()
        answer = partial(self._answered, name, epoch)
        self._coordinators.take_over(tc_id, name[0], (name[1], epoch), answer, incarnation)
        return begun

    def _answered(self, name: _Name, epoch: int, _value: Any, error: ServerError | None, message: str) -> None:
        pending = self._pending[name]
        begun = pending.pop(epoch)
        if not pending:
            del self._pending[name]
        if not begun.done():
            begun.set_result(None if error is None else Refusal(error, message))
