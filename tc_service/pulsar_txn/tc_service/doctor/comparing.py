"""The log of a coordinator beside the cluster, compared with what brokers show: commits that are hidden, and what is HELD."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, hides
from pulsar_txn.wire.ids import TxnId

from .findings import Finding

_TRANSACTIONS: Final = "/admin/v3/transactions"
_AT_ONCE: Final = 32
_HIDDEN: Final = (
    "its id was given twice, or it was ended twice with different outcomes: the broker keeps the abort. Stop this coordinator;"
    " the messages are in the topic, and only a copy of them can bring them back"
)
_HELD: Final = (
    "decide: pulsar-txn transactions commit {txn} if another participant of it shows its messages, or its program knows that it"
    " has committed; pulsar-txn transactions abort {txn} if not. Stop every other process that has a copy of the log first"
)


async def compared(coordinator: AdminApi, brokers: AdminApi, cluster: str | None) -> list[Finding]:
    """Return what is wrong. `cluster`: the name that the coordinator has for this one; None where it has one alone.

    Raises AdminUnreachable, AdminRefused.
    """
    held: dict[str, Any] = await coordinator.get(f"{_TRANSACTIONS}/slowTransactions/0?held=true") or {}
    findings = [_held(txn_id, each) for txn_id, each in held.items()]
    ended: list[dict[str, Any]] = await coordinator.get(f"{_TRANSACTIONS}/ended") or []
    commits = [
        (TxnId.parse(each["txnId"]), where["topic"])
        for each in ended
        if each["outcome"] == "commit"
        for where in each["participants"]
        if "subscription" not in where and cluster in (None, where["cluster"])
    ]
    for start in range(0, len(commits), _AT_ONCE):
        part = commits[start : start + _AT_ONCE]
        hidden = await asyncio.gather(*(_is_hidden(brokers, topic, txn_id) for txn_id, topic in part))
        for (txn_id, topic), is_hidden in zip(part, hidden, strict=True):
            if is_hidden:
                what = f"hides the transaction {txn_id}, which the coordinator has committed"
                findings.append(Finding("hidden", what, _HIDDEN, topic=topic, txn_id=txn_id))
    return findings


async def _is_hidden(brokers: AdminApi, topic: str, txn_id: TxnId) -> bool:
    try:
        return await hides(brokers, topic, txn_id)
    except AdminRefused:  # the topic is gone, or is being moved
        return False


def _held(txn_id: str, said: dict[str, Any]) -> Finding:
    found = TxnId.parse(txn_id)
    what = f"the transaction {found} is held by its coordinator ({said.get('heldBecause', 'unknown')})"
    return Finding(
        "held",
        what,
        _HELD.format(txn=f"{found.most}:{found.least}"),
        txn_id=found,
        since_ms=said.get("openTimestamp", 0),
    )
