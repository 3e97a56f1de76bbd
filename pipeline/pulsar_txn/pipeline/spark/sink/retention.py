"""Whether anybody keeps what the sink writes: a warning for topics whose messages Pulsar may delete at once.

A topic without a subscription keeps its messages for the time of its retention, which by default is no time at all. The
binary protocol cannot ask for either, so this needs the option `admin.url`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.spark.options import Options

logger = logging.getLogger(__name__)

_SECONDS: Final = 5.0
_ADVICE: Final = (
    "create the subscription of the reader before the query starts (a stream with subscriptionName=… that has started once, or "
    "pulsar-admin topics create-subscription), or set retention on the namespace"
)


async def warn_if_nobody_keeps(topics: Iterable[str], options: Options) -> None:
    """Log a warning for each of these topics that has neither a subscription nor retention, or may have neither."""
    for topic in topics:
        text = await asyncio.to_thread(warning, topic, options)
        if text is not None:
            logger.warning("%s", text)


def warning(topic: str, options: Options) -> str | None:
    """What to say about a topic; None when a subscription, or retention for ever, keeps its messages."""
    if options.admin_url is None:
        return (
            f"{topic}: unless it has a subscription, Pulsar deletes its messages when its retention is over, which by default "
            f"is at once: {_ADVICE}. With the option admin.url this is looked up instead"
        )
    name = parse_topic(topic)
    path = str(name).replace("://", "/", 1)
    namespace = path.split("/", 1)[1].rsplit("/", 1)[0]
    try:
        if _get(options, f"{path}/subscriptions") or _get(options, f"{path}-partition-0/subscriptions"):
            return None
        retention = _get(options, f"{path}/retention") or _get(options, f"namespaces/{namespace}/retention") or {}
    except (OSError, ValueError) as error:
        return f"{topic}: {options.admin_url} does not say whether anybody keeps its messages ({error}): {_ADVICE}"
    minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
    if minutes < 0 and megabytes < 0:
        return None
    if minutes and megabytes:
        return f"{topic} has no subscription, and retention keeps {minutes} minutes and {megabytes} MB of it: {_ADVICE}"
    return f"{topic} has no subscription and no retention, so Pulsar deletes what is written at once: {_ADVICE}"


def _get(options: Options, path: str) -> Any:
    """The answer as JSON; None for nothing, or for what is not there."""
    quoted = urllib.parse.quote(path)
    request = urllib.request.Request(f"{(options.admin_url or '').rstrip('/')}/admin/v2/{quoted}")  # noqa: S310  # the user's URL
    token = Path(options.token_file).read_text(encoding="utf-8").strip() if options.token_file else options.token
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=options.tls_trust_certs_file) if request.type == "https" else None
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:  # noqa: S310  # the user's URL
            body = answer.read()
    except urllib.error.HTTPError as error:
        if error.code == 404:  # no such topic yet, or no such policy
            return None
        raise
    return json.loads(body) if body else None
