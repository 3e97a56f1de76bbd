"""Begin and end of blocking clients and coordinators on a loop thread, and the sharing of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.coordinator import AsyncCoordinator
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.sync.blocking import LAST_CALLS_SECONDS, Blocking, SyncLoop
from pulsar_txn.client.sync.callbacks import DRAIN_SECONDS, ToldObserver, asked_authentication
from pulsar_txn.client.sync.closing import Resident, close_hastily, close_in_order
from pulsar_txn.client.txn.transactions import core_of

_NO_OPTIONS: Final = frozenset({"self", "unknown", "__class__"})


def client_on_loop(given: Mapping[str, Any]) -> tuple[SyncLoop, AsyncClient]:
    """A loop, and the asyncio client for it: its own, or that of the coordinator it shares.

    `given` has the local names of `Client.__init__`: its arguments, and what is no option. AlreadyClosed, ForkedClientError.
    """
    options = _options(given)
    match options.get("coordinator"):
        case Blocking(_inner=AsyncCoordinator() as shared, _loop=SyncLoop() as loop):
            options["coordinator"] = shared
        case AsyncCoordinator():
            raise InvalidConfiguration(
                "a blocking client cannot share an AsyncCoordinator, which lives on another loop",
                hint="make a Coordinator for blocking clients, or give the URL",
            )
        case _:
            loop = SyncLoop()
    _ask(loop, options)
    return loop, loop.take_in(lambda: AsyncClient(**options))


def coordinator_on_loop(given: Mapping[str, Any]) -> tuple[SyncLoop, AsyncCoordinator]:
    """A loop that has not started yet, and the asyncio coordinator for it. `given` as for `client_on_loop`."""
    options, loop = _options(given), SyncLoop()
    _ask(loop, options)
    return loop, loop.take_in(lambda: AsyncCoordinator(**options))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown: dict[str, Any] = given["unknown"]
    return {name: value for name, value in given.items() if name not in _NO_OPTIONS} | unknown


def _ask(loop: SyncLoop, options: dict[str, Any]) -> None:
    if options.get("authentication") is not None:
        options["authentication"] = asked_authentication(loop.callbacks, options["authentication"])


class LoopLifetime:
    """Lifetime of one client or coordinator on its loop thread. The last one that is closed ends the thread."""

    def __init__(self, loop: SyncLoop, resident: Resident) -> None:
        self._loop = loop
        self._resident = resident
        self.core = core_of(resident)
        self.core.ask = loop.callbacks.ask

    def check_open(self) -> None:
        """AlreadyClosed when it is closed, ForkedClientError in a forked child."""
        self._loop.call(self.core.check_open)

    def close(self) -> None:
        """Close it, and its threads if nobody else lives there; see `Client.close`."""
        loop = self._loop
        if not loop.is_ours or loop.stopped:
            return
        if not loop.started:
            self.core.closed = True  # there is nothing to close
            if loop.is_left_by(self._resident):
                loop.stop()
            return
        seconds = DRAIN_SECONDS
        try:
            loop.run(lambda: close_in_order(self._resident))
        except BaseException:
            seconds = LAST_CALLS_SECONDS
            loop.run(lambda: close_hastily([self._resident]))
            raise
        finally:
            loop.callbacks.drain(seconds)  # while they can still ask the client
            if loop.is_left_by(self._resident):
                loop.stop()
                loop.callbacks.close(LAST_CALLS_SECONDS)

    def observe(self, change: Callable[[object], None], observer: object, blocking_of: Callable[[Any], Any]) -> None:
        """Add or remove an observer: here before the thread starts, because a program that forks later may have observers."""
        told = ToldObserver(self._loop.callbacks, blocking_of, observer)
        self._loop.call_here_or_there(lambda: change(told))
