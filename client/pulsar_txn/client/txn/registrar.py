"""What a transaction touched, and how the coordinator comes to know of it before the first operation leaves.

Each topic partition and subscription is registered once (ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN); those asked for
in one turn of the loop travel together. A lazily begun transaction is opened by its first registration, and a coordinator
beside clusters takes both in one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

from pulsar_txn.client.errors import NotAllowedError, PulsarError
from pulsar_txn.client.txn.prepared import PreparedToken
from pulsar_txn.client.txn.stats import PartitionStats, RequestTally, SubscriptionStats
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

Named: TypeAlias = tuple[str, str | None]
"""A topic partition, and the subscription of it that takes part, None for the topic itself."""


class CoordinatorSessions(Protocol):
    """The requests that a transaction makes of its coordinator; errors say in `maybe_processed` whether they had left.

    `tally` counts the requests that were sent (so that one that never left is known), and has the broker that answered.
    """

    @property
    def registers_first(self) -> bool:
        """True if `new_txn` takes `first`."""
        ...

    async def new_txn(
        self, timeout_ms: int, *, tally: RequestTally, first: Sequence[Named] = (), checked: Checked | None = None
    ) -> TxnId:
        """NEW_TXN at the next coordinator, round robin. `first` is registered with it. `checked`: its check group and more."""
        ...

    async def add_partitions(self, txn_id: TxnId, topics: Iterable[str], *, tally: RequestTally) -> None:
        """ADD_PARTITION_TO_TXN."""
        ...

    async def add_subscriptions(self, txn_id: TxnId, subscriptions: Iterable[tuple[str, str]], *, tally: RequestTally) -> None:
        """ADD_SUBSCRIPTION_TO_TXN, each (topic partition, subscription)."""
        ...

    async def end_txn(
        self,
        txn_id: TxnId,
        action: TxnAction,
        *,
        timeout: float,
        tally: RequestTally,
        group: Sequence[TxnId] = (),
        abort_others: bool = False,
        prepared: PreparedToken | None = None,
        at_decision: bool = False,
        all_answered: bool = False,
    ) -> None:
        """END_TXN, sent again after a lost connection until `timeout` seconds are over.

        `group`: further transactions that end with it. `abort_others`: all else of the transactional id is aborted.
        `prepared`: the token of one that was prepared. `at_decision`: the answer need not wait for participants.
        `all_answered`: every copy of every message and acknowledgement in it was answered.
        """
        ...

    async def prepare_txn(self, token: PreparedToken, *, timeout: float, tally: RequestTally) -> None:
        """PREPARE_TXN, sent again after a lost connection until `timeout` seconds are over."""
        ...

    @property
    def may_be_fenced(self) -> bool:
        """True if the client has a transactional id."""
        ...

    async def why_refused(self, error: NotAllowedError) -> PulsarError:
        """ProducerFenced when a newer instance of the transactional id is known to have begun, else `error`."""
        ...

    async def needs_checks(self, txn_id: TxnId, what: str) -> None:
        """FeatureUnsupported when the transaction's coordinator is known to lack checks and prepare."""
        ...


class Target:
    """One registered topic partition (`subscription` None) or subscription, with its counters."""

    __slots__ = ("bytes", "confirmed", "cumulative", "failed", "registration", "started", "subscription", "topic")

    def __init__(self, topic: str, subscription: str | None) -> None:
        self.topic = topic
        self.subscription = subscription
        self.registration: asyncio.Future[TxnId] | None = None
        self.started = self.confirmed = self.failed = self.bytes = 0
        self.cumulative = False

    @property
    def in_flight(self) -> int:
        """Messages without an answer."""
        return self.started - self.confirmed - self.failed

    @property
    def registered(self) -> bool:
        """True if the coordinator knows it."""
        future = self.registration
        return future is not None and future.done() and not future.cancelled() and future.exception() is None

    def partition_stats(self) -> PartitionStats:
        """Of sends."""
        return PartitionStats(self.topic, self.registered, self.started, self.confirmed, self.failed, self.bytes)

    def subscription_stats(self) -> SubscriptionStats:
        """Of acknowledgements."""
        counts = (self.registered, self.started, self.confirmed, self.failed, self.cumulative)
        return SubscriptionStats(self.topic, self.subscription or "", *counts)


class Opens(Protocol):
    """Gets the id of the transaction; see `opening`."""

    @property
    def registered(self) -> Collection[Named]:
        """What was registered with it."""
        ...

    async def open(self, first: Sequence[Named] = ()) -> TxnId:
        """The id. Who asks first may have something registered with it."""
        ...


class Registrar:
    """Registers targets, each once; a failed registration fails everybody who waits for it."""

    def __init__(
        self,
        opening: Opens,
        coordinators: CoordinatorSessions,
        tally: RequestTally,
        monotonic: Callable[[], float],
        registered: Callable[[list[Target]], None],
    ) -> None:
        self.seconds = 0.0
        self._opening = opening
        self._coordinators = coordinators
        self._tally = tally
        self._monotonic = monotonic
        self._registered = registered
        self._waiting: list[Target] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def registration(self, target: Target) -> TxnId | asyncio.Future[TxnId]:
        """The transaction's id when `target` is registered, else a future of it, one and the same for all."""
        future = target.registration
        if future is None:
            future = target.registration = asyncio.get_running_loop().create_future()
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._register)
            self._waiting.append(target)
        elif future.done() and future.exception() is None:
            return future.result()
        return future

    def _register(self) -> None:
        targets, self._waiting = self._waiting, []
        first = [(each.topic, each.subscription) for each in targets]
        topics = [each for each in targets if each.subscription is None]
        subscriptions = [each for each in targets if each.subscription is not None]
        for group in (topics, subscriptions):
            if group:
                task = asyncio.get_running_loop().create_task(self._register_group(group, first))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _register_group(self, group: list[Target], first: list[Named]) -> None:
        before = None
        try:
            txn_id = await self._opening.open(first)
            before = self._monotonic()
            done = self._opening.registered
            left = [each for each in group if (each.topic, each.subscription) not in done] if done else group
            if left:
                await self._add(txn_id, left)
        except Exception as error:  # noqa: BLE001 - it goes to every waiter, as it is
            for future in _pending(group):
                future.set_exception(error)
                future.exception()  # a waiter may have gone; the transaction is doomed through send_finished
        else:
            for future in _pending(group):
                future.set_result(txn_id)
            self._registered(group)
        finally:
            if before is not None:
                self.seconds += self._monotonic() - before

    async def _add(self, txn_id: TxnId, group: list[Target]) -> None:
        if group[0].subscription is None:
            await self._coordinators.add_partitions(txn_id, [each.topic for each in group], tally=self._tally)
        else:
            pairs = [(each.topic, each.subscription or "") for each in group]
            await self._coordinators.add_subscriptions(txn_id, pairs, tally=self._tally)


def _pending(group: list[Target]) -> list[asyncio.Future[TxnId]]:
    return [each.registration for each in group if each.registration is not None and not each.registration.done()]
