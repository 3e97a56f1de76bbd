"""Names of topics: short and full forms, partitions, and the topics of the transaction machinery (reference §2.1).

The limits for the length of names are here as well. Pulsar's protocol has no limit (apache/pulsar#12023), but what
its administration cannot name cannot be managed (apache/pulsar#19826): a topic and a subscription are in the path of a
request, whose head may have 8 KiB (Jetty's default, httpMaxRequestHeaderSize). Both at their longest fit into that, as
long as their characters need no percent sign.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_plus

import attrs

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""Partitioned; partition i belongs to the broker that serves coordinator i."""

TRANSACTION_LOG_PREFIX: Final = "persistent://pulsar/system/__transaction_log_"
"""The log of coordinator i is named by this and i."""

PENDING_ACK_SUFFIX: Final = "__transaction_pending_ack"

MAX_TOPIC_BYTES: Final = 2048
"""Of a full name in UTF-8, without what names the partition."""

MAX_NAMESPACE_BYTES: Final = 1024
"""Of tenant/namespace."""

MAX_SUBSCRIPTION_BYTES: Final = 2048
"""In UTF-8; of a durable subscription this is the name of its cursor."""

SYSTEM_NAMES: Final = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    }
)
"""Names of topics that a cluster of Pulsar makes for itself in each namespace."""

_SYSTEM_NAMESPACE: Final = ("pulsar", "system")
_SYSTEM_PREFIXES: Final = ("transaction_coordinator_assign", "__transaction_log_")
_PATH_PARTS: Final = (".", "..")
_PARTITION_MARK: Final = "-partition-"
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_PARTITION_BYTES: Final = len(_PARTITION_MARK) + 10
_SHOWN: Final = 80
_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DOMAINS: Final = ("persistent", "non-persistent")
_FORMS: Final = "write name, tenant/namespace/name, or persistent://tenant/namespace/name"


class InvalidName(ValueError):  # noqa: N818 - named by what is wrong
    """Not the name of a topic, a namespace or a subscription; the message says which there are."""


@attrs.frozen
class TopicName:
    """A topic, or one partition of it. `str()` is the full name `domain://tenant/namespace/name`."""

    domain: str
    tenant: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a full or short name: `t` and `a/b/t` are persistent, `t` is in `public/default`. InvalidName."""
        _check_size("topic", text, MAX_TOPIC_BYTES, _PARTITION_BYTES)
        domain, mark, rest = text.partition("://")
        if not mark:
            domain, rest = "persistent", text
        elif domain not in _DOMAINS:
            raise InvalidName(f"topic {text!r} has the domain {domain!r}; there are persistent:// and non-persistent://")
        parts = rest.split("/")
        if not mark and len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) == 4:
            raise InvalidName(f"topic {text!r} has four parts, the old form with a cluster, which is not supported; {_FORMS}")
        if len(parts) != 3:
            raise InvalidName(f"topic {text!r} is not a name; {_FORMS}")
        tenant, namespace, name = parts
        for what, part in (("tenant", tenant), ("namespace", namespace)):
            if not part:
                raise InvalidName(f"topic {text!r} has an empty {what}; {_FORMS}")
            if _PART.fullmatch(part) is None:
                raise InvalidName(f"topic {text!r}: {part!r} may have letters, digits and any of -=:._ only")
        if not name.strip():
            raise InvalidName(f"topic {text!r} has an empty name; {_FORMS}")
        _check_characters("topic", name)
        _check_size("namespace", f"{tenant}/{namespace}", MAX_NAMESPACE_BYTES)
        found = cls(domain, tenant, namespace, name)
        _check_size("topic", str(found.base), MAX_TOPIC_BYTES)
        return found

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.name}"

    @property
    def is_persistent(self) -> bool:
        """True if entries are stored."""
        return self.domain == "persistent"

    @property
    def partition(self) -> int:
        """The index of the partition; -1 for any other topic."""
        match = _PARTITION.fullmatch(self.name)
        return -1 if match is None else int(match[2])

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this is a partition of; any other topic itself."""
        match = _PARTITION.fullmatch(self.name)
        return self if match is None else attrs.evolve(self, name=match[1])

    def with_partition(self, index: int) -> TopicName:
        """Partition `index` of this topic (of its base when it is a partition itself); ValueError below 0."""
        if index < 0:
            raise ValueError(f"partition {index} does not exist: partitions count from 0")
        return attrs.evolve(self, name=f"{self.base.name}{_PARTITION_MARK}{index}")


def check_subscription(name: str) -> None:
    """InvalidName for what cannot be the name of a subscription: nothing, blanks, control characters, or too much."""
    if not name.strip():
        raise InvalidName("a subscription needs a name")
    _check_characters("subscription", name)
    _check_size("subscription", name, MAX_SUBSCRIPTION_BYTES)


def check_namespace(tenant: str, namespace: str = "default") -> None:
    """InvalidName for what cannot be a tenant with a namespace: each has certain characters, and a topic fits after both."""
    _check_size("namespace", f"{tenant}/{namespace}", MAX_NAMESPACE_BYTES)
    for part in (tenant, namespace):
        if _PART.fullmatch(part) is None:
            raise InvalidName(f"namespace {tenant}/{namespace}: {part!r} may have letters, digits and any of -=:._ only")
        if part in _PATH_PARTS:
            raise InvalidName(f"namespace {tenant}/{namespace}: no path over HTTP can name {part!r}; choose another name")


def _check_characters(kind: str, name: str) -> None:
    """Names appear in paths, log lines and headers, where a line end or a zero would be read as something else."""
    if _CONTROL.search(name) is not None:
        raise InvalidName(f"{kind} {name[:_SHOWN]!r} holds a control character; choose a name without")


def _check_size(kind: str, text: str, most: int, beside: int = 0) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidName(f"{kind} {text[:_SHOWN]!r} is not text that UTF-8 can write; choose another name") from error
    if size > most + beside:
        raise InvalidName(f"{kind} {text[:_SHOWN]!r}… has {size} bytes, at most {most} are allowed; choose a shorter name")


def partition_name(topic: str, index: int) -> str:
    """Partition `index` of `topic`, as text; for callers that hold a full name already."""
    return f"{topic}{_PARTITION_MARK}{index}"


def pending_ack_topic(topic: str, subscription: str) -> str:
    """The topic whose log keeps the pending acks of a subscription, whose name is encoded as Java's URLEncoder does."""
    return f"{topic}-{quote_plus(subscription, safe='*').replace('~', '%7E')}{PENDING_ACK_SUFFIX}"


def why_reserved(name: TopicName) -> str | None:
    """Reason for which nobody may create this topic at a server; None for a name that is free.

    A path over HTTP loses `.` and `..` as a part. A system name in a namespace of users would be taken for the system's topic
    by tools, which look at the last part alone.
    """
    base = name.base
    if any(part in _PATH_PARTS for part in (name.tenant, name.namespace, base.name)):
        return f"{name} has a part '.' or '..', which no path over HTTP can name; choose another name"
    if (name.tenant, name.namespace) == _SYSTEM_NAMESPACE:
        return None
    if base.name in SYSTEM_NAMES or base.name.startswith(_SYSTEM_PREFIXES):
        return f"{base.name} is the name of a system topic of Pulsar, and not for a namespace of users; choose another name"
    return None


def is_transaction_internal(name: str) -> bool:
    """True if a full name belongs to the transaction machinery: clients may not create it, listings leave it out."""
    return name.startswith((ASSIGN_TOPIC, TRANSACTION_LOG_PREFIX)) or name.endswith(PENDING_ACK_SUFFIX)
