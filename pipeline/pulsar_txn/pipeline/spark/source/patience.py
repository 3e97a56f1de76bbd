"""Patience of the source with a cluster that does not answer: a restart of a broker ends no query."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pulsar_txn.client import OperationTimeout, PulsarError
from pulsar_txn.client.errors import ConsumerBusy

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PAUSE_SECONDS: Final = 0.5
_ATTEMPT_SECONDS: Final = 10.0
_BRIEF_SECONDS: Final = 2.0


def is_passing(error: BaseException) -> bool:
    """True if asking again may help."""
    if isinstance(error, ConsumerBusy):
        return True  # an attempt of ours that had no answer, or a monitor that looks at a subscription
    return isinstance(error, TimeoutError) or (isinstance(error, PulsarError) and error.retriable)


class Patience:
    """Knows since when a cluster has not answered, and when that is too long."""

    def __init__(self, fail_after_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = fail_after_ms / 1000
        self._now = now
        self._since: float | None = None

    @property
    def waited(self) -> float:
        """Seconds since the first failure after the last success; 0 while all is well."""
        return 0.0 if self._since is None else self._now() - self._since

    def failed(self, error: BaseException, what: str) -> None:
        """Something failed. Raises the error when it is not a passing one, or when the trouble lasts too long."""
        if not is_passing(error):
            raise error
        if self._since is None:
            self._since = self._now()
            logger.warning("%s: %s; it is tried again for %g s (failAfterMs)", what, error, self._seconds)
        if self.waited >= self._seconds:
            error.add_note(f"{what}: given up after {self.waited:.0f} s (failAfterMs)")
            raise error

    def worked(self) -> None:
        """The cluster has answered."""
        if self._since is not None:
            logger.warning("the cluster answers again, after %.1f s", self.waited)
            self._since = None

    async def attempt(self, attempt: Callable[[], Awaitable[T]], what: str) -> T | None:
        """`attempt()` once, and briefly; None, after a pause, when it fails in passing. Raises as `insist`."""
        try:
            found = await _within(_BRIEF_SECONDS, attempt)
        except Exception as error:  # noqa: BLE001  # `failed` raises what is final
            self.failed(error, what)
            await asyncio.sleep(_PAUSE_SECONDS)
            return None
        self.worked()
        return found

    async def insist(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        """`attempt()` until it succeeds, fails for good, or has failed for too long."""
        while True:
            try:
                found = await _within(min(_ATTEMPT_SECONDS, self._seconds), attempt)
            except Exception as error:  # noqa: BLE001  # `failed` raises what is final
                self.failed(error, what)
            else:
                self.worked()
                return found
            await asyncio.sleep(_PAUSE_SECONDS)


async def _within(seconds: float, attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await attempt()
    except TimeoutError as error:
        if isinstance(error, PulsarError):
            raise
        raise OperationTimeout(f"no answer within {seconds:g} s") from None
