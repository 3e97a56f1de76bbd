"""Epochs of transactional ids, and which coordinator serves an id. The fencing itself is the coordinator's work.

One durable counter gives the epochs of all ids, so that an epoch grows over all starts of an id though nothing is kept for
each of them. An id belongs to one coordinator for ever, since only that one knows what older epochs left open: its number
comes from a hash over as many coordinators as there were when the first id came; coordinators added later serve none.

A client is told its epoch once what older epochs left behind has ended. The coordinator aborts what they have open, and carries
out what they had decided; each participant has to hold that. A participant that cannot be reached would keep the client waiting
for as long, so the wait is bounded, and then the client asks again. Meanwhile the coordinator goes on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, TypeAlias

from pulsar_txn.ledger.protocols import MetadataStore, VersionConflict
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.hashing import murmur3_32

from .coordinators import Coordinators

_EPOCHS: Final = "/counters/transactional-epoch"
_SPREAD: Final = "/transactional-ids/coordinators"
_MAX_ID_BYTES: Final = 1024
_MAX_EPOCH: Final = (1 << 63) - 1
"""As much as the wire can say."""


class TransactionalIds:
    """Answer to a client that names a transactional id in TC_CLIENT_CONNECT."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._highest = -1  # the newest epoch given in this life of the broker
        self._spread = 0

    async def begin(self, name: str, coordinators: int) -> tuple[int, int]:
        """A new epoch for an id, above all before it, and its coordinator.

        Refusal NotAllowedError for a bad id, and when all epochs have been given.
        """
        if not name.strip() or len(name.encode()) > _MAX_ID_BYTES:
            raise Refusal(ServerError.NotAllowedError, f"a transactional id has 1 to {_MAX_ID_BYTES} bytes, not all blank")
        epoch = await self._next_epoch()
        if epoch > _MAX_EPOCH:
            text = "no epoch is left for transactional ids: all of this store are given; use a coordinator with another store"
            raise Refusal(ServerError.NotAllowedError, text)
        return epoch, await self.coordinator(name, coordinators)

    async def coordinator(self, name: str, coordinators: int) -> int:
        """The coordinator of an id, when there are so many now."""
        return murmur3_32(name.encode()) % await self._coordinators(coordinators)

    async def find(self, name: str) -> int | None:
        """The coordinator of an id; None before the first id of all has come."""
        spread = await self._settled()
        return murmur3_32(name.encode()) % spread if spread else None

    async def resume(self, name: str, epoch: int) -> None:
        """A client that has an epoch is back. Refusal NotAllowedError for an epoch that was never given here."""
        if epoch > self._highest:
            await self._next_epoch()  # there is no other way to learn what earlier lives gave
        if not 0 <= epoch <= self._highest:
            text = f"epoch {epoch} of transactional id {name!r} was not given by this cluster; start with a new client"
            raise Refusal(ServerError.NotAllowedError, text)

    async def _next_epoch(self) -> int:
        epoch = await self._metadata.increment(_EPOCHS)
        self._highest = max(self._highest, epoch)
        return epoch

    async def _coordinators(self, now: int) -> int:
        if not await self._settled():
            try:
                await self._metadata.put(_SPREAD, str(now).encode(), expected_version=-1)
            except VersionConflict:  # somebody else's first id came at the same moment
                return await self._coordinators(now)
            self._spread = now
        return self._spread

    async def _settled(self) -> int:
        """Over how many coordinators ids are spread; 0 before the first id of all has come."""
        if not self._spread:
            stored = await self._metadata.get(_SPREAD)
            if stored is not None:
                self._spread = int(stored.data)
        return self._spread


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
        """Wait until all that older epochs began has ended at all participants. Who asks again for an epoch joins the first.

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
