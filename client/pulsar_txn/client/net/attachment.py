"""Tie of one producer, consumer or coordinator session to the broker that serves its topic.

States: detached → attaching → attached → detached …, and closed. The tie decides when to try, and which errors end it; its
owner does the rest, and is what a connection tells of its end:

    attempts = Retries(core, "opening …")  # the first time; tie.attempts() later, and in the background
    while tie.is_wanted:
        async with attempts:
            async with tie.opening() as connection:
                …  # PRODUCER, SUBSCRIBE or TC_CLIENT_CONNECT
            …  # attached, unless it was closed meanwhile
            return

    if tie.lost(connection):  # or tie.leave(), for CLOSE_PRODUCER and the like
        …  # note it, and attach again: tie.run(…)

A lost connection, or a broker that asks us to leave, brings the tie back to detached, and its owner attaches again with growing
pauses, for as long as it takes (`pauses` says how soon). A connection that is lost is made again by the pool, at its pace; the
pauses here are those between refusals of a broker that is there. An error that is not retriable ends the first attempt.
After that, only what can never mend itself ends the tie (`ENDS`). A place that is taken mends itself, when the broker notices
that our former connection is dead; so do credentials and certificates that somebody is just replacing, and a topic that is
made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
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
from pulsar_txn.client.net.sides import ConnectionListener

logger = logging.getLogger("pulsar_txn.client.connection")


ENDS: Final = (AuthorizationError, TopicTerminatedError, TransactionFenced, TransactionsDisabled, UsageError)
"""Errors that end a tie for ever once it was attached."""


class Attachment:
    """Tie of one resource, its `owner`, to the broker that serves `topic`."""

    def __init__(self, core: Core, topic: str, owner: ConnectionListener) -> None:
        self.core = core
        self.topic = topic
        self.connection: Connection | None = None
        """The connection on which the broker knows the resource at this moment."""
        self.server_version = ""
        """Version of the broker that knew it last."""
        self.closed = False
        self._owner = owner
        self._failure: PulsarError | None = None
        self._was_attached = False
        self._attached_at = 0.0
        self._interrupted = False
        self._refused = False
        self._backoff = core.backoff()
        self._task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_wanted(self) -> bool:
        """True while it is neither attached nor closed."""
        return self.connection is None and not self.closed

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Connection]:
        """Block in which the owner asks the broker for its place; attached when the block ends without an error.

        Raises the errors of a lookup, and ConnectionLost when the connection ended meanwhile.
        """
        self._interrupted = False
        connection = await self.core.lookup.connection_for(self.topic)
        connection.listen(self._owner)
        try:
            yield connection
        except BaseException:
            connection.forget(self._owner)
            raise
        if self._interrupted or connection.closed:
            connection.forget(self._owner)
            raise ConnectionLost("the connection broke while opening", endpoint=connection.endpoint)
        if self.closed:
            connection.forget(self._owner)
        else:
            self.connection = connection
            self.server_version = connection.server_version
            self._attached_at = self.core.runtime.monotonic()
            self._was_attached = True
            self._wake()

    def attempts(self) -> Attempts:
        """Attempts to attach again, or in the background; their last error ends the tie."""
        return Attempts(self)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the owner's attempts in the background, unless they run already; closing the tie cancels them."""
        task = self._task
        if self.closed or self.core.drained or not (task is None or task.done() or task is asyncio.current_task()):
            work.close()
        else:  # those of the current task have just succeeded, and end
            self._task = self.core.spawn(work)

    async def connected(self, what: str) -> Connection:
        """The connection; waits until there is one; ConnectionLost after the operation timeout, safe to cancel.

        Raises what ended the tie for ever, AlreadyClosed after `close`.
        """
        if self.connection is not None:
            return self.connection  # without a timer, which would keep the context of the caller for a while
        seconds = self.core.settings.operation_timeout
        try:
            async with asyncio.timeout_at(self.core.runtime.monotonic() + seconds):
                return await self.attached(what)
        except TimeoutError as error:
            if isinstance(error, PulsarError):
                raise
            raise ConnectionLost(f"{what}: {self.topic} was not connected again within {seconds:g} s") from None

    async def attached(self, what: str) -> Connection:
        """As `connected`, without a limit of time."""
        while self.connection is None:
            if self.closed:
                if self._failure is None:
                    raise AlreadyClosed(f"{what}: {self.topic} is closed")
                raise self._failure.with_traceback(None)  # else it grows with each
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.connection

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def lost(self, connection: Connection) -> bool:
        """A connection has ended. True if the tie ended with it, and has to be made again."""
        if connection is self.connection:
            return self._ended(refused=False)
        self._interrupted = True
        return False

    def leave(self, *, planned: bool = False) -> bool:
        """The tie has ended although the connection may be fine. True if it has to be made again.

        `planned`: a request of this client ends it, so it is not a sign of trouble.
        """
        if self.connection is None:
            self._interrupted = True
            return False
        self.connection.forget(self._owner)
        return self._ended(refused=not planned)

    def _ended(self, *, refused: bool) -> bool:
        """Attach again: at once, except for a broker that has refused the resource soon after it had taken it."""
        self.connection = None
        if self.closed or self.core.drained:
            return False
        if self.core.runtime.monotonic() - self._attached_at > HEALTHY_SECONDS:
            self._backoff.reset()
            refused = False
        self._refused = refused
        return True

    async def pause(self) -> None:
        """Wait after a refusal, so that the broker is not hammered."""
        if self._refused:
            await self.core.rest(self._backoff.next())

    def failed(self, error: PulsarError) -> bool:
        """An attempt has failed. True if there will be another one."""
        if self._is_final(error):
            return False
        level = logging.INFO if error.retriable else logging.WARNING
        logger.log(level, "%s: attaching failed, trying again: %s", self.topic, error)
        self._refused = not error.paced
        return True

    def _is_final(self, error: PulsarError) -> bool:
        if self._was_attached:
            return isinstance(error, ENDS)
        return not error.retriable and not isinstance(error, ConsumerBusy | ProducerBusy)

    def fail(self, error: PulsarError) -> bool:
        """Give up for ever. True the first time, unless it was closed before."""
        if self.closed:
            return False
        logger.warning("%s: the broker refuses to attach again; create a new producer or consumer: %s", self.topic, error)
        self.close(error)
        return True

    def close(self, error: PulsarError | None = None) -> Connection | None:
        """Stop attaching; who waits gets `error` (AlreadyClosed without one). Returns the connection it had. Idempotent."""
        self.closed = True
        self._failure = self._failure or error
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self._owner)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._wake()
        return connection


class Attempts:
    """Attempts of a tie: each is a block, whose error is kept from the program while there will be another one."""

    def __init__(self, tie: Attachment) -> None:
        self._tie = tie

    async def __aenter__(self) -> None:
        await self._tie.pause()

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: TracebackType | None) -> bool:
        return isinstance(error, PulsarError) and self._tie.failed(error)
