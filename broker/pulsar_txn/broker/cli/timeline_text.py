"""The timeline of a transaction as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any


def lines_of(timeline: dict[str, Any]) -> Iterator[str]:
    """One line for the transaction, one for each step with the time since the one before, and one for how long it took."""
    yield f"{timeline['txnId']}\t{timeline['state']}{''.join(_whose(timeline))}"
    before = 0
    for event in timeline["events"]:
        at = event["at"]
        since = f"+{at - before} ms" if at and before else ""
        yield f"  {_time(at)}\t{since}\t{_words(event, timeline)}"
        before = at or before
    if timeline["durationsMs"]:
        yield "  " + ", ".join(f"{name} {milliseconds} ms" for name, milliseconds in timeline["durationsMs"].items())
    if not timeline["isWhole"]:
        yield "  A snapshot has taken the place of earlier records: some times, and who decided, are not known any more."


def _whose(timeline: dict[str, Any]) -> Iterator[str]:
    if "owner" in timeline:
        yield f"\towner {timeline['owner']}"
    if "transactionalId" in timeline:
        yield f"\ttransactional id {timeline['transactionalId']}, epoch {timeline['epoch']}"
    if "incarnation" in timeline:
        yield f"\tclient {timeline['incarnation']}"


def _time(at_ms: int) -> str:
    if not at_ms:
        return "(time unknown)          "
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _words(event: dict[str, Any], timeline: dict[str, Any]) -> str:
    match event["event"]:
        case "begun":
            return f"begun, timeout {timeline['timeoutMs'] / 1000:g} s"
        case "registered":
            return "registered " + "; ".join(map(_participant, event["participants"]))
        case "checked":
            return f"members of check group {timeline.get('checkGroup', '?')} have begun {event['count']} questions by then"
        case "prepared":
            return "prepared: waits for its end"
        case "held":
            return f"held ({event['because']}): waits for an administrator"
        case "released":
            return "released: goes on"
        case "parked":
            return "parked: its check group did not know, waits for an operator"
        case "resumed":
            return "resumed: its check group is asked again"
        case "decided":
            return f"{event['outcome']} decided by {event['by']}"
        case "told":
            attempts = "" if event["attempts"] == 1 else f" after {event['attempts']} attempts"
            missing = "; there is no such topic now: this part is gone with it" if event.get("topicMissing") else ""
            return f"told {_participant(event)}{attempts}{missing}"
        case other:
            return str(other)


def _participant(named: dict[str, Any]) -> str:
    subscription = f" {named['subscription']}" if "subscription" in named else ""
    return f"{named['cluster']} {named['topic']}{subscription}"
