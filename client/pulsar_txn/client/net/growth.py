"""Topics and partitions that appear and vanish while a producer or consumer lives: looked for from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Awaitable, Callable
from re import Pattern
from typing import Any, Final

import attrs

from pulsar_txn.client.errors import AlreadyClosed, InvalidTopicName, PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.pauses import HEALTHY_SECONDS
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import InvalidName, TopicName, is_transaction_internal

logger = logging.getLogger("pulsar_txn.client")

_DOMAIN: Final = re.compile(r"(non-persistent|persistent)://")


async def watch(
    core: Core, period: float, look: Callable[[], Awaitable[None]], what: str, changed: asyncio.Event | None = None
) -> None:
    """Call `look` every `period` seconds, and when something is said to have changed, until cancelled or closed.

    What goes wrong is logged and tried again, after a pause of the client's.
    """
    event = changed or asyncio.Event()
    backoff = core.backoff()
    pause = period
    while True:
        with contextlib.suppress(TimeoutError):  # then it is time to look anyway
            async with asyncio.timeout(pause):
                await event.wait()
        event.clear()
        try:
            await look()
        except AlreadyClosed:
            return
        except PulsarError as error:
            pause = min(period, backoff.next())
            logger.warning("looking for changes of %s failed, next time in %g s: %s", what, pause, error)
        else:
            pause = period
            backoff.reset()


class _Ears:
    """Listens for the end of a connection."""

    order = 0

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection's call: it is gone."""
        del connection, error
        self.lost.set()


async def listen_to_topics(core: Core, namespace: str, changed: asyncio.Event) -> None:
    """Set `changed` whenever a broker says that topics of `tenant/namespace` have come or gone (WATCH_TOPIC_LIST).

    Returns when brokers do not tell; then only looking from time to time helps. Until cancelled otherwise.
    """
    what = f"watching topics of {namespace}"
    backoff = core.backoff()
    while True:
        begin = core.runtime.monotonic()
        try:
            connection = await _any_connection(core, what)
            if not connection.features.supports_topic_watchers:
                return
            await _listen_on(core, connection, namespace, changed)
        except PulsarError as error:
            if not error.retriable:
                logger.info("%s: the broker does not tell, so they are looked for from time to time: %s", what, error)
                return
        if core.runtime.monotonic() - begin > HEALTHY_SECONDS:
            backoff.reset()
        await core.rest(backoff.next())


async def _any_connection(core: Core, what: str) -> Connection:
    retries = Retries(core, what, math.inf)
    while True:
        async with retries:
            return await core.lookup.any_connection()


async def _listen_on(core: Core, connection: Connection, namespace: str, changed: asyncio.Event) -> None:
    """Until the connection ends."""
    watcher_id = core.next_resource_id()
    ears = _Ears()
    connection.listen(ears)
    connection.watch_topics(watcher_id, changed.set)
    # Every topic of the namespace: the pattern is matched here, by Python's rules.
    fields: dict[str, Any] = {"watcher_id": watcher_id, "namespace": namespace, "topics_pattern": ".*"}
    try:
        await connection.request("watchTopicList", core.next_request_id(), **fields)
        changed.set()  # what came before is not told
        await ears.lost.wait()
    finally:
        connection.forget(ears)
        connection.unwatch_topics(watcher_id)
        request_id = core.next_request_id()
        connection.write([command("watchTopicListClose", request_id=request_id, watcher_id=watcher_id)])


@attrs.frozen
class TopicPattern:
    """A regular expression for the names of topics in one namespace; matched against the whole name after it."""

    namespace: str
    names: Pattern[str]
    domain: str = "persistent"

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.names.pattern}"

    @classmethod
    def parse(cls, pattern: Pattern[str]) -> TopicPattern:
        """Read `persistent://tenant/namespace/regex`, `tenant/namespace/regex` or `regex`. InvalidTopicName."""
        domain = _DOMAIN.match(pattern.pattern)
        text = pattern.pattern if domain is None else pattern.pattern[domain.end() :]
        parts = text.split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) == 2 or not parts[2]:
            raise InvalidTopicName(f"{pattern.pattern!r} is no pattern of topics", hint="tenant/namespace/regular-expression")
        tenant, namespace, names = parts
        try:
            TopicName.parse(f"{tenant}/{namespace}/name")
        except InvalidName as error:
            raise InvalidTopicName(str(error), hint="only the name after the namespace may be a pattern") from None
        said = "persistent" if domain is None else domain[1]
        return cls(f"{tenant}/{namespace}", re.compile(names, pattern.flags), said)

    def matches(self, topic: str) -> bool:
        """True if it represents this topic, or for the topic of this partition."""
        try:
            name = TopicName.parse(topic)
        except InvalidName as error:
            logger.warning("a topic of %s is left out: %s", self.namespace, error)
            return False
        if is_transaction_internal(topic) or name.name.startswith("__"):
            return False
        return self.names.fullmatch(name.base.name) is not None

    async def find(self, core: Core, mode: int) -> list[str]:
        """The topics and partitions that it represents now. Raises a BrokerError, ConnectionLost, OperationTimeout."""
        retries = Retries(core, f"listing topics of {self.namespace}")
        while True:
            async with retries:
                found = await core.lookup.topics(self.namespace, mode)
                return [topic for topic in found if self.matches(topic)]


async def new_partitions(core: Core, known: dict[TopicName, int]) -> list[tuple[str, int]]:
    """Partitions beyond those known; `known` is brought up to date. Raises as `TopicPattern.find`."""
    found = []
    for topic, before in list(known.items()):
        count = await core.lookup.partitions(str(topic), create=False)
        found += [(str(topic.with_partition(index)), index) for index in range(before, count)]
        known[topic] = max(before, count)
    return found
