"""Several clusters for one client: it moves to another one when the one it uses is gone for a while, and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import attrs

from pulsar_txn.client._validation import as_seconds, number
from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.net.pool import ConnectionPool
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.net.settings import Settings

logger = logging.getLogger("pulsar_txn.client")


def _url(_instance: object, _attribute: attrs.Attribute[str], url: str) -> None:
    parse_service_url(url)


def _urls(_instance: object, _attribute: attrs.Attribute[Sequence[str]], urls: Sequence[str]) -> None:
    if not urls:
        raise InvalidConfiguration("a failover needs at least one secondary cluster")
    for url in urls:
        parse_service_url(url)


def _positive(_instance: object, attribute: attrs.Attribute[float], seconds: float) -> None:
    number(_instance, attribute, seconds)
    if not seconds >= 0 or (attribute.name == "check_interval" and not seconds):
        raise InvalidConfiguration(f"{attribute.name} of {seconds!r} s makes no sense")


@attrs.frozen(kw_only=True)
class AutoClusterFailover:
    """Clusters for a client, instead of a service URL; times are seconds or timedeltas. InvalidConfiguration for bad URLs.

    Every `check_interval` the cluster in use is asked for a handshake. When it has not answered for `failover_delay`, the
    client moves to the first of the others that answers, the primary first; when it is away from the primary, and that has
    answered for `switch_back_delay`, it moves back. Moving closes all connections: producers, consumers and readers
    attach again, what has no receipt is sent again, open transactions are lost. Nothing is copied between clusters.
    """

    primary: str = attrs.field(validator=_url)
    secondaries: Sequence[str] = attrs.field(converter=tuple, validator=_urls)
    check_interval: float = attrs.field(default=5.0, converter=as_seconds, validator=_positive)
    failover_delay: float = attrs.field(default=30.0, converter=as_seconds, validator=_positive)
    switch_back_delay: float = attrs.field(default=60.0, converter=as_seconds, validator=_positive)

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, the primary first."""
        return (self.primary, *self.secondaries)


class Failover:
    """Watches the clusters of one client. `move(url)` has the client use another one."""

    def __init__(self, options: AutoClusterFailover, runtime: Runtime, settings: Settings, move: Callable[[str], None]) -> None:
        self.current = options.primary
        self._options = options
        self._runtime = runtime
        self._settings = settings
        self._move = move
        self._down_since: float | None = None
        self._primary_since: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._options.check_interval)
            await self.check()

    async def check(self) -> None:
        """Look once."""
        options, now = self._options, self._runtime.monotonic()
        if await self._answers(self.current):
            self._down_since = None
        else:
            self._down_since = now if self._down_since is None else self._down_since
            if now - self._down_since >= options.failover_delay and await self._move_away():
                return
        if self.current == options.primary or not await self._answers(options.primary):
            self._primary_since = None
            return
        self._primary_since = now if self._primary_since is None else self._primary_since
        if now - self._primary_since >= options.switch_back_delay:
            self._use(options.primary, "the primary answers again")

    async def _move_away(self) -> bool:
        for url in self._options.urls:
            if url != self.current and await self._answers(url):
                self._use(url, "it does not answer any more")
                return True
        return False

    def _use(self, url: str, why: str) -> None:
        logger.warning("the client moves from cluster %s to %s: %s", self.current, url, why)
        self.current = url
        self._down_since = self._primary_since = None
        self._move(url)

    async def _answers(self, url: str) -> bool:
        """True if any host of it makes a handshake with us."""
        return any([await self._greets(address) for address in parse_service_url(url)])

    async def _greets(self, address: Address) -> bool:
        pool = ConnectionPool(self._runtime, self._settings, outage_level=logging.DEBUG)
        try:
            await pool.get(address)
        except PulsarError as error:
            logger.debug("%s does not answer: %s", address, error)
            return False
        else:
            return True
        finally:
            await pool.close()
