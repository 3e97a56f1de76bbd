"""Checks for policies of a namespace that would lose a log, asked of the admin API; and what to change."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pulsar_txn.client.inside import Settings
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable, open_admin

from .errors import LogTopicRefused
from .names import DEFAULT_NAMESPACE

logger = logging.getLogger("pulsar_txn.tc_service")


async def check_namespace(namespace: str, admin_url: str, settings: Settings) -> None:
    """LogTopicRefused for a namespace that would lose what is in it; a warning where that cannot be found out.

    Brokers keep what is in `pulsar/system`, whatever its policies are.
    """
    if namespace == DEFAULT_NAMESPACE:
        return
    if not admin_url:
        logger.warning(
            "whether the namespace %s keeps messages is not known without adminUrl: it needs no message TTL, no eviction of its"
            " backlog, and no expiry of subscriptions and inactive topics; %s has none",
            namespace, DEFAULT_NAMESPACE,
        )  # fmt: skip
        return
    try:
        async with open_admin(admin_url, settings) as admin:
            policies = await admin.get(f"/admin/v2/namespaces/{namespace}")
    except AdminUnreachable as error:
        logger.warning("the policies of %s are not known: %s", namespace, error)
        return
    except AdminRefused as error:
        raise LogTopicRefused(f"the namespace {namespace} cannot be used for logs: {error}") from None
    found = list(dangers(namespace, policies))
    if found:
        raise LogTopicRefused(f"the namespace {namespace} would lose logs: {'; '.join(found)}; or use {DEFAULT_NAMESPACE}")


def dangers(namespace: str, policies: Mapping[str, Any]) -> Iterator[str]:
    """Return what would lose a log, each with what to do."""
    if policies.get("message_ttl_in_seconds"):
        yield f"messages expire; pulsar-admin namespaces remove-message-ttl {namespace}"
    for kind, quota in (policies.get("backlog_quota_map") or {}).items():
        if quota.get("policy") == "consumer_backlog_eviction":
            yield f"its backlog is evicted; pulsar-admin namespaces remove-backlog-quota --type {kind} {namespace}"
    if policies.get("subscription_expiration_time_minutes"):
        yield f"subscriptions expire; pulsar-admin namespaces set-subscription-expiration-time --time 0 {namespace}"
    inactive = policies.get("inactive_topic_policies") or {}
    if inactive.get("deleteWhileInactive"):
        yield f"inactive topics are deleted; pulsar-admin namespaces remove-inactive-topic-policies {namespace}"
    if policies.get("schema_validation_enforced"):
        yield f"messages need a schema; pulsar-admin namespaces set-schema-validation-enforce --disable {namespace}"
    if policies.get("encryption_required"):
        yield f"messages must be encrypted; pulsar-admin namespaces set-encryption-required --disable {namespace}"
    if len(policies.get("replication_clusters") or ()) > 1:
        yield "it is replicated to other clusters, whose messages would come in between"
