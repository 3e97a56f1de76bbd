"""Topics and partitions that appear and vanish while a producer or consumer lives: looked for from time to time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from re import Pattern
from typing import Final

import attrs

from pulsar_txn.client._core import Core
from pulsar_txn.client._enlist import AMBIENT
from pulsar_txn.client.errors import AlreadyClosed, InvalidTopicName, PulsarError
from pulsar_txn.wire.topics import InvalidName, TopicName, is_transaction_internal

logger = logging.getLogger("pulsar_txn.client")

_DOMAIN: Final = re.compile(r"(non-persistent|persistent)://")


async def watch(period: float, look: Callable[[], Awaitable[None]], what: str) -> None:
    """Call `look` every `period` seconds until cancelled or closed; what goes wrong is logged and tried again."""
    AMBIENT.set(None)  # the program's transaction at the time of subscribing is no concern of ours
    while True:
        await asyncio.sleep(period)
        try:
            await look()
        except AlreadyClosed:
            return
        except PulsarError as error:
            logger.warning("looking for changes of %s failed, next time in %g s: %s", what, period, error)


@attrs.frozen
class TopicPattern:
    """A regular expression for the names of topics in one namespace; matched against the whole name behind it."""

    namespace: str
    names: Pattern[str]

    @classmethod
    def parse(cls, pattern: Pattern[str]) -> TopicPattern:
        """Read `persistent://tenant/namespace/regex`, `tenant/namespace/regex` or `regex`. InvalidTopicName."""
        text = _DOMAIN.sub("", pattern.pattern, count=1)
        parts = text.split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) == 2 or not parts[2]:
            raise InvalidTopicName(f"{pattern.pattern!r} is no pattern of topics", hint="tenant/namespace/regular-expression")
        tenant, namespace, names = parts
        try:
            TopicName.parse(f"{tenant}/{namespace}/name")
        except InvalidName as error:
            raise InvalidTopicName(str(error), hint="only the name behind the namespace may be a pattern") from error
        return cls(f"{tenant}/{namespace}", re.compile(names, pattern.flags))

    def matches(self, topic: str) -> bool:
        """Whether it stands for this topic, or for the topic of this partition."""
        name = TopicName.parse(topic)
        if is_transaction_internal(topic) or name.name.startswith("__"):
            return False
        return self.names.fullmatch(name.base.name) is not None

    async def find(self, core: Core, mode: int) -> list[str]:
        """The topics and partitions that it stands for now. Raises a BrokerError, ConnectionLost, OperationTimeout."""
        what = f"listing topics of {self.namespace}"
        found = await core.retrying(lambda: core.lookup.topics(self.namespace, mode), what)
        return [topic for topic in found if self.matches(topic)]


async def new_partitions(core: Core, known: dict[TopicName, int]) -> list[tuple[str, int]]:
    """Partitions beyond those known; `known` is brought up to date. Raises as `TopicPattern.find`."""
    found = []
    for topic, before in list(known.items()):
        count = await core.lookup.partitions(str(topic), create=False)
        found += [(str(topic.with_partition(index)), index) for index in range(before, count)]
        known[topic] = max(before, count)
    return found
