"""Keeps one producer, consumer or coordinator session attached to the broker that serves its topic.

States: detached → attaching → attached → detached …, and closed. A lost connection, or a broker that asks us to leave,
brings the attachment back to detached, and a task attaches it again with growing pauses, for as long as it takes (`_pauses`
says how soon). A connection that is lost is made again by the pool, at its pace; the pauses here are those between refusals
of a broker that is there. An error
that is not retriable ends the first attempt. After that, only what can never mend itself ends it (`ENDS`): `on_failed` is
told, and nothing is tried any more. A place that is taken mends itself, when the broker notices that our former connection
is dead; so do credentials and certificates that somebody is just replacing, and a topic that is made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    ConnectionLost,
    ConsumerBusy,
    ProducerBusy,
    PulsarError,
    TopicTerminatedError,
    TransactionFenced,
    TransactionsDisabled,
    UsageError,
)
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.pauses import HEALTHY_SECONDS

logger = logging.getLogger("pulsar_txn.client.connection")


ENDS: Final = (AuthorizationError, TopicTerminatedError, TransactionFenced, TransactionsDisabled, UsageError)
"""What ends an attachment for ever that was there before."""


class Attachment:
    """One resource's tie to a broker.

    `open_on(connection)` sends PRODUCER, SUBSCRIBE or TC_CLIENT_CONNECT and raises when that fails; `on_lost(error)` is
    called when an established tie ends; `on_failed(error)` when it will never come back.
    """

    def __init__(
        self,
        core: Core,
        order: int,
        topic: str,
        *,
        open_on: Callable[[Connection], Awaitable[None]],
        on_lost: Callable[[PulsarError], None],
        on_failed: Callable[[PulsarError], None],
    ) -> None:
        self.order = order
        self.topic = topic
        self.connection: Connection | None = None
        self.closed = False
        self._core = core
        self._open_on = open_on
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._interrupted = False
        self._backoff = core.backoff()
        self._attached_at = 0.0
        self._was_attached = False
        self._task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: PulsarError | None = None

    async def start(self, timeout: float | None = None) -> None:
        """Attach for the first time; raises the last error when `timeout` (the operation timeout) is over."""
        await self._core.retrying(self._attach, f"opening {self.topic}", timeout=timeout)

    async def _attach(self) -> None:
        self._interrupted = False
        connection = await self._core.lookup.connection_for(self.topic)
        connection.listeners.add(self)
        try:
            await self._open_on(connection)
        except BaseException:
            connection.listeners.discard(self)
            raise
        if self._interrupted or connection.closed:
            connection.listeners.discard(self)
            raise ConnectionLost("the connection broke while opening", endpoint=connection.endpoint)
        if not self.closed:
            self.connection = connection
            self._attached_at = self._core.runtime.monotonic()
            self._was_attached = True
            self._wake()

    async def connected(self, what: str) -> Connection:
        """The connection; waits until there is one; ConnectionLost after the operation timeout, safe to cancel.

        Raises what ended the attachment for ever, AlreadyClosed after `close`.
        """
        seconds = self._core.settings.operation_timeout
        deadline = self._core.runtime.monotonic() + seconds
        while self.connection is None:
            if self.closed:
                raise self._failure or AlreadyClosed(f"{what}: {self.topic} is closed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                raise ConnectionLost(f"{what}: {self.topic} was not connected again within {seconds:g} s") from None
        return self.connection

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection's call: it is gone."""
        if connection is self.connection:
            self._end_tie(error, refused=False)
        else:
            self._interrupted = True

    def detach(self, error: PulsarError, *, planned: bool = False) -> None:
        """The tie has ended although the connection may be fine (CLOSE_PRODUCER and the like); attach again.

        `planned`: a request of this client ends it, so it is not a sign of trouble.
        """
        if self.connection is None:
            self._interrupted = True
            return
        self.connection.listeners.discard(self)
        self._end_tie(error, refused=not planned)

    def _end_tie(self, error: PulsarError, *, refused: bool) -> None:
        """Attach again: at once, except for a broker that has refused the resource soon after it had taken it."""
        self.connection = None
        if self.closed or self._core.drained:
            return
        if self._core.runtime.monotonic() - self._attached_at > HEALTHY_SECONDS:
            self._backoff.reset()
            refused = False
        self._on_lost(error)
        self._try(refused=refused)

    def keep_trying(self) -> None:
        """Attach in the background until it succeeds or fails for ever."""
        self._try(refused=False)

    def _try(self, *, refused: bool) -> None:
        if not self.closed and not self._core.drained and (self._task is None or self._task.done()):
            self._task = self._core.spawn(self._reattach(refused=refused))

    async def _reattach(self, *, refused: bool) -> None:
        """Until it is attached; with a pause after each refusal, so that the broker is not hammered."""
        while not self.closed:
            if refused:
                await self._core.rest(self._backoff.next())
            try:
                await self._attach()
            except PulsarError as error:
                if self._is_final(error):
                    self.fail(error)
                    return
                level = logging.INFO if error.retriable else logging.WARNING
                logger.log(level, "%s: attaching failed, trying again: %s", self.topic, error)
                refused = not error.paced
            else:
                return

    def _is_final(self, error: PulsarError) -> bool:
        if self._was_attached:
            return isinstance(error, ENDS)
        return not error.retriable and not isinstance(error, ConsumerBusy | ProducerBusy)

    def fail(self, error: PulsarError) -> None:
        """Give up for ever."""
        if self.closed:
            return
        self._failure = error
        self.close()
        logger.warning("%s: given up: %s", self.topic, error)
        self._on_failed(error)

    def close(self) -> None:
        """Stop attaching; idempotent, tells nobody."""
        self.closed = True
        if self.connection is not None:
            self.connection.listeners.discard(self)
            self.connection = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._wake()
