"""Names of the topics that logs are in."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from pulsar_txn.ledger.names import check_name
from pulsar_txn.ledger.protocols import NameRefused

DEFAULT_NAMESPACE: Final = "pulsar/system"
"""Brokers never expire, evict or delete what is in it."""

DEFAULT_PREFIX: Final = "pulsar-txn"
MAX_LOG_NAME_BYTES: Final = 512

_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)


def check_log_name(name: str) -> None:
    """NameRefused for a name that no topic can have."""
    check_name("log", name)
    size = len(name.encode())
    if not 0 < size <= MAX_LOG_NAME_BYTES:
        raise NameRefused(f"log {name[:60]!r}… has {size} bytes; in a topic, names have 1 to {MAX_LOG_NAME_BYTES}")


def check_place(namespace: str, prefix: str) -> None:
    """ValueError for what is no `tenant/namespace`, or no beginning of a topic's name."""
    parts = namespace.split("/")
    if len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
        raise ValueError(f"{namespace!r} is no namespace; write tenant/namespace")
    if not _PART.fullmatch(prefix):
        raise ValueError(f"{prefix!r} cannot begin the name of a topic; use letters, digits, '-' and '_'")


def metadata_topic(namespace: str, prefix: str) -> str:
    """The topic of the metadata of a store."""
    return f"persistent://{namespace}/{prefix}-metadata"


def log_topic(namespace: str, prefix: str, ledger_id: int, name: str) -> str:
    """The topic of a log. A log that was deleted and made again has another number, and another topic."""
    readable = quote(name.rpartition("/")[2], safe="").replace("%", "=")[-100:]
    return f"persistent://{namespace}/{prefix}-log-{ledger_id}-{readable}"
