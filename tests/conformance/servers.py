"""Getting a server ready for the stories: which version it is, and that it has several coordinators."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final

import attrs
from targets import Target

COORDINATORS: Final = 3
"""How many a stock standalone is scaled up to, so that taking them in turn shows; it starts with one."""

_TRANSACTIONS: Final = "/admin/v3/transactions"


def identified(pulsar: Target) -> Target:
    """The same server with its kind and version, asked from it where only its address was given."""
    if pulsar.kind != "outside":
        return pulsar
    version = str(_ask(pulsar, "/admin/v2/brokers/version"))
    is_stock = version.partition(".")[0] >= "2"
    return attrs.evolve(pulsar, kind="stock" if is_stock else "ours", version=version if is_stock else "")


def grow_coordinators(pulsar: Target) -> None:
    """Scale the coordinators up to `COORDINATORS` where there are fewer; several processes may do so at once."""
    if count_coordinators(pulsar) >= COORDINATORS:
        return
    try:
        _ask(pulsar, f"{_TRANSACTIONS}/transactionCoordinator/replicas", str(COORDINATORS).encode())
    except urllib.error.HTTPError:
        if count_coordinators(pulsar) < COORDINATORS:  # otherwise another process was quicker
            raise


def count_coordinators(pulsar: Target) -> int:
    """How many coordinators the server has."""
    return len(_ask(pulsar, f"{_TRANSACTIONS}/coordinators"))


def _ask(pulsar: Target, path: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(pulsar.admin_url + path, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20.0) as answer:
        text = answer.read().decode()
    return json.loads(text) if text[:1] in ("[", "{") else text
