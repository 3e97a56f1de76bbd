"""Check that somebody keeps what the sink writes: a warning for topics whose messages Pulsar may delete at once.

A topic without a subscription keeps its messages for the time of its retention, which by default is no time at all. The
binary protocol cannot ask for either, so this needs the option `admin.url`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.spark.admin import Admin
from pulsar_txn.pipeline.spark.options import Options

logger = logging.getLogger(__name__)

_ADVICE: Final = (
    "create the subscription of the reader before the query starts (a stream with subscriptionName=… that has started once, or "
    "pulsar-admin topics create-subscription), or set retention on the namespace"
)


async def warn_if_nobody_keeps(topics: Iterable[str], options: Options) -> None:
    """Log a warning for each of these topics that has neither a subscription nor retention, or may have neither."""
    admin = None if options.admin_url is None else Admin(options)
    for topic in topics:
        text = await _warning(topic, admin)
        if text is not None:
            logger.warning("%s", text)


async def _warning(topic: str, admin: Admin | None) -> str | None:
    """Return what to say about a topic; None when a subscription, or retention for ever, keeps its messages."""
    if admin is None:
        return (
            f"{topic}: unless it has a subscription, Pulsar deletes its messages when its retention is over, which by default "
            f"is at once: {_ADVICE}. With the option admin.url this is looked up instead"
        )
    path = f"/admin/v2/{str(parse_topic(topic)).replace('://', '/', 1)}"
    namespace = path.split("/", 4)[4].rsplit("/", 1)[0]
    try:
        if await admin.get(f"{path}/subscriptions") or await admin.get(f"{path}-partition-0/subscriptions"):
            return None
        retention = await admin.get(f"{path}/retention") or await admin.get(f"/admin/v2/namespaces/{namespace}/retention") or {}
    except (OSError, ValueError) as error:
        return f"{topic}: {admin.url} does not say whether anybody keeps its messages ({error}): {_ADVICE}"
    minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
    if minutes < 0 and megabytes < 0:
        return None
    if minutes and megabytes:
        return f"{topic} has no subscription, and retention keeps {minutes} minutes and {megabytes} MB of it: {_ADVICE}"
    return f"{topic} has no subscription and no retention, so Pulsar deletes what is written at once: {_ADVICE}"
