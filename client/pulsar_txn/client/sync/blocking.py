"""Base of every blocking object: an asyncio object, and the loop thread that it lives on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, TypeVar

from pulsar_txn.client._validation import no_transaction
from pulsar_txn.client.errors import AlreadyClosed, CommitOutcomeUnknown, PulsarError, UsageError
from pulsar_txn.client.net.runtime import Future, Lock
from pulsar_txn.client.net.thread_futures import ThreadFuture
from pulsar_txn.client.sync.callbacks import Callbacks
from pulsar_txn.client.sync.closing import Resident, close_at_exit, close_hastily
from pulsar_txn.client.sync.loop_thread import LoopThread
from pulsar_txn.client.txn.transaction import NOT_SAID
from pulsar_txn.client.txn.transactions import core_of

logger = logging.getLogger("pulsar_txn.client.sync")

I = TypeVar("I")  # noqa: E741 - the inner class
R = TypeVar("R", bound=Resident)
T = TypeVar("T")

AT_EXIT_SECONDS: Final = 2.2
"""Time that the end of the program waits for a client that was not closed."""

LAST_CALLS_SECONDS: Final = 0.3
"""Time that the end of the program waits after that for callbacks. An interrupted close() waits as long."""


class SyncLoop(LoopThread):
    """The loop thread of a blocking client, or of a coordinator and the clients that share it.

    `callbacks`: its threads for the program's own code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = Callbacks()
        self._residents: list[Resident] = []
        self._counting = Lock()
        self._is_over = False

    def take_in(self, make: Callable[[], R]) -> R:
        """Make an asyncio client or coordinator that lives here. AlreadyClosed after the last one has left."""
        self._check_not_over()
        resident = self.call_here_or_there(make)
        with self._counting:
            self._check_not_over()
            self._residents.append(resident)
        return resident

    def _check_not_over(self) -> None:
        if self._is_over:
            raise AlreadyClosed("the coordinator is closed", hint="make its clients before that")

    def is_left_by(self, resident: Resident) -> bool:
        """Note that it is closed; returns True if it was the last one, and the thread may end. Nobody can move in then."""
        with self._counting:
            others = [each for each in self._residents if each is not resident]
            self._is_over = not others
            self._residents = others or self._residents  # the last one stays for `last`
            return self._is_over

    def new_future(self) -> ThreadFuture[Any]:
        """As `LoopThread.new_future`; its callbacks run on the thread for callbacks."""
        return ThreadFuture(self._settled, self.callbacks.settle)

    def wait(self, future: Future[T]) -> T:
        """As `LoopThread.wait`; the error of an unknown outcome then resolves without await."""
        try:
            return super().wait(future)
        except CommitOutcomeUnknown as error:
            error.sync_resolver = functools.partial(self.run, error.resolver)
            raise

    async def last(self) -> None:
        """Fail what is left when closing was interrupted before it began."""
        left = [each for each in self._residents if not core_of(each).drained]
        if left:
            await close_hastily(left)

    def leave(self) -> None:
        """Close clients that the program has left open, within a bounded time, and say so in the log."""
        left = [each for each in self._residents if not core_of(each).closed]
        for each in left:
            logger.warning("%r was not closed before the end of the program: close() it, or use it with `with`", each)
        if left:
            try:
                self.start(lambda: close_at_exit(left)).result(AT_EXIT_SECONDS)
            except (PulsarError, TimeoutError) as error:
                logger.warning("%r could not be closed in time: %r", left[0], error)
            self.callbacks.close(LAST_CALLS_SECONDS)


class Blocking(Generic[I]):
    """A blocking object over an asyncio one. Other blocking objects make it, not programs."""

    def __init__(self, loop: SyncLoop, inner_object: I) -> None:
        self._loop = loop
        self._inner = inner_object

    def __repr__(self) -> str:
        return repr(self._inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and bool(other._inner == self._inner)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} cannot go to another process: its connections and thread stay here",
            hint="create the client in the process that uses it, for example in the function that Spark runs",
        )


class GenericBlocking(Blocking[I], Generic[I, T]):
    """A blocking object over an asyncio one with a value type."""


def inner(blocking: Any) -> Any:
    """The asyncio object of a blocking one; None for None, and what was not said stays so.

    UsageError for anything else: it was given as a transaction.
    """
    match blocking:
        case None:
            return None
        case Blocking(_inner=found):
            return found
        case _ if blocking is NOT_SAID:
            return blocking
    raise no_transaction(blocking)
