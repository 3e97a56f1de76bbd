"""Findings as lines for people, and as JSON for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from .findings import Cure, Finding


def lines(finding: Finding, now_ms: int) -> list[str]:
    """Return what is wrong, since when and what it blocks; then what to do."""
    head = finding.what if finding.topic is None else f"{_place(finding)}: {finding.what}"
    facts = []
    if finding.since_ms > 1:
        facts.append(f"since {_time(finding.since_ms)} ({_age(now_ms - finding.since_ms)})")
    if finding.blocked:
        unit = "messages are not acknowledged" if finding.subscription is not None else "entries wait behind it"
        facts.append(f"{finding.blocked} {unit}")
    return [head, *(f"    {fact}" for fact in facts), f"    {finding.advice}"]


def as_dict(finding: Finding) -> dict[str, Any]:
    """The same for programs."""
    return {
        "kind": finding.kind,
        "topic": finding.topic,
        "subscription": finding.subscription,
        "txnId": None if finding.txn_id is None else str(finding.txn_id),
        "sinceMs": finding.since_ms if finding.since_ms > 1 else None,
        "blocked": finding.blocked,
        "what": finding.what,
        "advice": finding.advice,
        "cure": None if finding.cure is Cure.NOTHING else finding.cure.name.lower(),
    }


def question(finding: Finding) -> str:
    """Return what is asked before a cure."""
    what = finding.cure.value
    if finding.cure is Cure.ABORT:
        what += ", and lose its messages"
    elif finding.cure is Cure.SEARCH:
        what += ", so that their messages are delivered again"
    subject = "it" if finding.txn_id is None else f"the transaction {finding.txn_id}"
    return f"{_place(finding)}: cure {subject}? It means: {what}"


def _place(finding: Finding) -> str:
    return f"{finding.topic}" if finding.subscription is None else f"{finding.topic}, subscription {finding.subscription}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _age(age_ms: int) -> str:
    seconds = max(age_ms, 0) // 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
