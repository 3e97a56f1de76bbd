"""What a broker has left when everything is acknowledged: no backlog after a while, and no open transaction."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any, Final

from chain_schedule import Phase

SECONDS: Final = 10.0
"""A cursor may follow the end of its last transaction a moment later."""


def backlogs(admin_url: str, phase: Phase) -> list[str]:
    """A sentence for each subscription of the workers that keeps a backlog."""
    until = time.monotonic() + SECONDS
    topics = [hop.source for chain in phase.chains for hop in chain.hops]
    while (left := {topic: count for topic in topics if (count := _backlog(admin_url, topic))}) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"the backlog of {topic} stays at {count} although everything is acknowledged" for topic, count in left.items()]


def _backlog(admin_url: str, topic: str) -> int:
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    with urllib.request.urlopen(admin_url + path, timeout=30) as answer:
        return int(json.load(answer)["subscriptions"]["workers"]["msgBacklog"])


def left_open(admin_url: str) -> list[str]:
    """A sentence for each transaction that nobody has ended: its worker is gone, and readers of its topics wait."""
    until = time.monotonic() + SECONDS
    while (found := _open(admin_url)) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"transaction {txn_id} is left open: {json.dumps(about)}" for txn_id, about in found.items()]


def _open(admin_url: str) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(admin_url + "/admin/v3/transactions/slowTransactions/0", timeout=30) as answer:
        found: dict[str, dict[str, Any]] = json.load(answer)
    return found
