"""Index of persistent topics, by namespace: kept while they come and go, so that a list need not look at every log.

The store has the truth. The index is made of it at the start and follows every change, for this broker is the only one
that changes the store. Nothing of the transaction machinery is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.base.sorted_names import Pieces, SortedNames
from pulsar_txn.wire.topics import ASSIGN_TOPIC, TopicName, is_transaction_internal, partition_name

from .lists import TopicLists

_NONE: Final[Pieces] = ()


class _Namespace:
    """Full names: `topics` have logs, `partitioned` have partitions, `listed` are both: also partitions without a log yet."""

    __slots__ = ("counts", "listed", "partitioned", "topics")

    def __init__(self) -> None:
        self.topics = SortedNames()
        self.partitioned = SortedNames()
        self.listed = SortedNames()
        self.counts: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self.listed and not self.partitioned

    def is_partition(self, name: TopicName) -> bool:
        """True if a name is one of the partitions of a partitioned topic here."""
        return 0 <= name.partition < self.counts.get(str(name.base), 0)


class TopicIndex:
    """See above. `lists` hears of everything that changes what is listed."""

    def __init__(self, lists: TopicLists) -> None:
        self._lists = lists
        self._namespaces: dict[str, dict[str, _Namespace]] = {}

    async def load(self, logs: Iterable[str], budget: LoopBudget) -> None:
        """Learn the topics from the names of all logs."""
        found: dict[tuple[str, str], list[str]] = {}
        async for log in budget.each(logs):
            parts = log.split("/")
            if len(parts) == 4 and parts[2] == "persistent":
                name = f"persistent://{parts[0]}/{parts[1]}/{unquote(parts[3])}"
                if not is_transaction_internal(name):
                    found.setdefault((parts[0], parts[1]), []).append(name)
        async for (tenant, namespace), names in budget.each(found.items()):
            here = self._make(tenant, namespace)
            for start in range(0, len(names), 1000):
                await budget.pause()
                here.topics.add_all(names[start : start + 1000])
                here.listed.add_all(names[start : start + 1000])

    # ---- questions

    def topics(self, tenant: str, namespace: str, after: str = "") -> Pieces:
        """Topics and partitions that have a log."""
        found = self._find(tenant, namespace)
        return _NONE if found is None else found.topics.pieces(after)

    def topics_and_partitions(self, tenant: str, namespace: str) -> Pieces:
        """As `topics`, with the partitions that nobody opened yet."""
        found = self._find(tenant, namespace)
        return _NONE if found is None else found.listed.pieces()

    def partitioned(self, tenant: str, namespace: str, after: str = "") -> Pieces:
        """The partitioned topics."""
        found = self._find(tenant, namespace)
        return _NONE if found is None else found.partitioned.pieces(after)

    def count(self, tenant: str, namespace: str) -> int:
        """Number of topics and partitions of a namespace that have a log."""
        found = self._find(tenant, namespace)
        return 0 if found is None else len(found.topics)

    def tenants(self) -> list[str]:
        """Those with topics."""
        return list(self._namespaces)

    def namespaces(self, tenant: str) -> list[str]:
        """Those with topics, of one tenant."""
        return list(self._namespaces.get(tenant, ()))

    def has(self, tenant: str, namespace: str) -> bool:
        """True if a namespace has topics."""
        return self._find(tenant, namespace) is not None

    # ---- changes

    def created(self, name: TopicName) -> None:
        """A topic has a log now."""
        full = str(name)
        if is_transaction_internal(full):
            return
        here = self._make(name.tenant, name.namespace)
        here.topics.add(full)
        if here.listed.add(full):
            self._lists.changed(name.tenant, name.namespace, (full,), ())

    def deleted(self, name: TopicName) -> None:
        """A topic's log is gone."""
        here, full = self._find(name.tenant, name.namespace), str(name)
        if here is None or not here.topics.discard(full):
            return
        if not here.is_partition(name):
            here.listed.discard(full)
            self._forget_if_empty(name)
            self._lists.changed(name.tenant, name.namespace, (), (full,))

    def partitions_set(self, name: TopicName, count: int) -> None:
        """A topic has so many partitions now, not fewer than before."""
        full = str(name)
        if full == ASSIGN_TOPIC or not name.is_persistent:
            return
        here = self._make(name.tenant, name.namespace)
        before = here.counts.get(full, 0)
        here.counts[full] = count
        here.partitioned.add(full)
        new = here.listed.add_all(partition_name(full, index) for index in range(before, count))
        self._lists.changed(name.tenant, name.namespace, new, ())

    def partitions_removed(self, name: TopicName) -> None:
        """A topic is not partitioned any more."""
        here, full = self._find(name.tenant, name.namespace), str(name)
        if here is None or full not in here.counts:
            return
        names = [partition_name(full, index) for index in range(here.counts.pop(full))]
        here.partitioned.discard(full)
        gone = [each for each in names if each not in here.topics and here.listed.discard(each)]
        self._forget_if_empty(name)
        self._lists.changed(name.tenant, name.namespace, (), gone)

    def _find(self, tenant: str, namespace: str) -> _Namespace | None:
        return self._namespaces.get(tenant, {}).get(namespace)

    def _make(self, tenant: str, namespace: str) -> _Namespace:
        return self._namespaces.setdefault(tenant, {}).setdefault(namespace, _Namespace())

    def _forget_if_empty(self, name: TopicName) -> None:
        here = self._find(name.tenant, name.namespace)
        if here is not None and here.is_empty:
            del self._namespaces[name.tenant][name.namespace]
            if not self._namespaces[name.tenant]:
                del self._namespaces[name.tenant]
