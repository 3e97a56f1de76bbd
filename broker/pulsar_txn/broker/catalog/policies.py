"""Policies that a namespace asks of its topics, and what holds for a topic in the end.

Policies are kept in the metadata store under Pulsar's path with Pulsar's keys; keys that are not obeyed here are kept as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.ledger.protocols import LogStore
from pulsar_txn.wire.ids import EntryHeader

from .index import TopicIndex

POLICIES_PATH: Final = "/admin/policies"
ENCRYPTION_REQUIRED: Final = "encryption_required"
DELAYED_DELIVERY: Final = "delayed_delivery_policies"
_ALWAYS: Final = {"public": {"default"}, "pulsar": {"system"}}


@attrs.frozen
class TopicRules:
    """Rules that hold for a topic now: the broker's settings, as far as its namespace does not say otherwise.

    `max_delay_ms` 0: no limit. `delay_tick_ms`: delayed messages are given out in steps of so much, never early.
    """

    encryption_required: bool
    delays: bool
    delay_tick_ms: int
    max_delay_ms: int

    def is_too_late(self, header: EntryHeader) -> bool:
        """True if a message asks for a longer delay than is allowed."""
        if header.hints is None or header.hints.deliver_at_ms is None or not self.delays or not self.max_delay_ms:
            return False
        return header.hints.deliver_at_ms - header.publish_time_ms > self.max_delay_ms

    @classmethod
    def of(cls, config: BrokerConfig, policies: Mapping[str, Any]) -> TopicRules:
        """From settings and the stored policies of the namespace."""
        encrypted = config.encryption_require_on_producer or bool(policies.get(ENCRYPTION_REQUIRED))
        delayed = policies.get(DELAYED_DELIVERY)
        if delayed is None:
            tick_ms, max_ms = config.delayed_delivery_tick_time_millis, config.delayed_delivery_max_delay_in_millis
            return cls(encrypted, config.delayed_delivery_enabled, tick_ms, max_ms)
        max_ms = max(0, int(delayed.get("maxDeliveryDelayInMillis", 0)))
        return cls(encrypted, bool(delayed.get("active")), max(1, int(delayed.get("tickTime", 0))), max_ms)


class Namespaces:
    """Tenants and namespaces, and their policies. Every name may be used without being made."""

    def __init__(self, store: LogStore, config: BrokerConfig, index: TopicIndex) -> None:
        self._index = index
        self._metadata = store.metadata
        self._config = config

    async def tenants(self) -> set[str]:
        """Those that always are, those that were made, and those that have topics."""
        return {*_ALWAYS, *await self._metadata.children(POLICIES_PATH), *self._index.tenants()}

    async def of_tenant(self, tenant: str) -> set[str]:
        """Its namespaces: those that always are, those that were made, and those that have topics."""
        made = await self._metadata.children(f"{POLICIES_PATH}/{tenant}")
        return {*_ALWAYS.get(tenant, ()), *made, *self._index.namespaces(tenant)}

    async def has(self, tenant: str, namespace: str) -> bool:
        """True if a namespace is one of `of_tenant`."""
        if namespace in _ALWAYS.get(tenant, ()) or self._index.has(tenant, namespace):
            return True
        return await self._metadata.get(f"{POLICIES_PATH}/{tenant}/{namespace}") is not None

    async def policies(self, tenant: str, namespace: str) -> dict[str, Any]:
        """Stored policies; empty for a namespace that nobody made."""
        stored = await self._metadata.get(f"{POLICIES_PATH}/{tenant}/{namespace}")
        found: dict[str, Any] = {} if stored is None else json.loads(stored.data)
        return found

    async def rules(self, tenant: str, namespace: str) -> TopicRules:
        """Policies in force for the topics of a namespace."""
        return TopicRules.of(self._config, await self.policies(tenant, namespace))

    async def put_policies(self, tenant: str, namespace: str, policies: Mapping[str, Any]) -> None:
        """Make a namespace, or change its policies; durable when it returns."""
        await self._metadata.put(f"{POLICIES_PATH}/{tenant}/{namespace}", json.dumps(policies).encode())

    async def put_tenant(self, tenant: str) -> None:
        """Make a tenant; durable when it returns."""
        await self._metadata.put(f"{POLICIES_PATH}/{tenant}", b"{}")

    async def delete(self, tenant: str, namespace: str) -> None:
        """Forget a namespace and its policies; durable when it returns."""
        await self._metadata.delete(f"{POLICIES_PATH}/{tenant}/{namespace}")

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant; durable when it returns."""
        await self._metadata.delete(f"{POLICIES_PATH}/{tenant}")
