"""Opening of coordinators, and their coming back: their logs are opened, waited for, and opened again after a failure.

In a store of one process a log is there at once. In a store that several processes share, `open` lasts until this process
leads the log, which may be for ever: nobody waits for that, and it is no failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import LeaseLost, Log, LogStore, SharedLogStore, StorageFailed

_logger = logging.getLogger("pulsar_txn.broker.txn.coordinators")

_FIRST_REOPEN_SECONDS: Final = 1.0
_LAST_REOPEN_SECONDS: Final = 60.0
_LAST_SHARED_REOPEN_SECONDS: Final = 2.0
"""Others may be waiting for a coordinator that nobody leads."""
_LEASE_SECONDS: Final = 0.1
"""Between a lease that was lost and the next wait for it."""


def coordinator_log_name(tc_id: int) -> str:
    """The name of a coordinator's log, Pulsar's (managed ledger `pulsar/system/persistent/__transaction_log_<id>`)."""
    return f"pulsar/system/persistent/__transaction_log_{tc_id}"


class Opened(Protocol):
    """Server on an open log."""

    async def recover(self) -> None:
        """Read the log. Raises; then the log is closed again."""

    async def release(self) -> None:
        """Close the log after a failure."""


OpenedT = TypeVar("OpenedT", bound=Opened)


class Opening:
    """Opens the logs of coordinators until it is closed.

    `prepare(tc_id)` gives what makes a host of an open log; `serve(tc_id, host)` is called when the host has read it.
    """

    def __init__(
        self,
        store: LogStore,
        turn: Turn,
        prepare: Callable[[int], Callable[[Log], OpenedT]],
        serve: Callable[[int, OpenedT], None],
        on_storage_failed: Callable[[Exception], None],
        log_name: Callable[[int], str] = coordinator_log_name,
    ) -> None:
        self._store = store
        self._shared = store if isinstance(store, SharedLogStore) else None
        self._turn = turn
        self._prepare = prepare
        self._serve = serve
        self._on_storage_failed = on_storage_failed
        self._log_name = log_name
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        self._delays: dict[int, float] = {}
        self._failed: dict[int, Opened] = {}
        self._closed = False

    @property
    def is_shared(self) -> bool:
        """True if other processes may lead what this one does not."""
        return self._shared is not None

    def waits(self, tc_id: int) -> bool:
        """True if another process may lead the coordinator: this one does not."""
        return tc_id in self._waiting

    def leader(self, tc_id: int) -> str | None:
        """Return where the process is reached that leads a coordinator for which this one waits; None when nobody is known."""
        leader = None if self._shared is None else self._shared.leader_of(self._log_name(tc_id))
        return None if self._shared is None or leader == self._shared.advertised else leader

    def start(self, tc_id: int) -> None:
        """Open the log of a coordinator."""
        if not self._closed:
            if self._shared is not None:
                self._waiting.add(tc_id)
            self._tasks[tc_id] = asyncio.get_running_loop().create_task(self._open(tc_id))

    def failed(self, tc_id: int, host: Opened | None, error: Exception) -> None:
        """The coordinator's log has failed: close it, and open it again."""
        if host is not None:
            self._failed[tc_id] = host
        if isinstance(error, StorageFailed):
            self._on_storage_failed(error)
        else:
            self._again(tc_id, error)

    async def opened(self, tc_id: int) -> None:
        """Wait until the coordinator is there, or has to be opened again; not for its lease."""
        task = self._tasks.get(tc_id)
        if task is not None and tc_id not in self._waiting:
            await asyncio.wait([task])

    async def all_opened(self) -> None:
        """Wait until each coordinator is there, or has to be opened again."""
        await asyncio.gather(*(asyncio.shield(task) for task in list(self._tasks.values())), return_exceptions=True)

    async def close(self) -> None:
        """Open nothing more."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _open(self, tc_id: int) -> None:
        failed = self._failed.pop(tc_id, None)
        if failed is not None:
            await failed.release()
        try:
            make = self._prepare(tc_id)
            log = await self._store.open(self._log_name(tc_id))
            self._waiting.discard(tc_id)
            host = make(log)
            await host.recover()
            self._serve(tc_id, host)
        except StorageFailed as error:
            self._on_storage_failed(error)
        except LeaseLost as error:
            self._again(tc_id, error)
        except Exception as error:
            _logger.exception("coordinator %d cannot be opened; it is tried again", tc_id)
            self._again(tc_id, error)
        else:
            self._tasks.pop(tc_id, None)
            self._delays.pop(tc_id, None)

    def _again(self, tc_id: int, error: Exception) -> None:
        if self._closed:
            return
        if self._shared is not None:
            self._waiting.add(tc_id)  # whoever asks is not to wait for what may take long
        if isinstance(error, LeaseLost):
            _logger.warning("coordinator %d waits for its lease: %s", tc_id, error)
            self._turn.runtime.call_later(_LEASE_SECONDS, self.start, tc_id)
            return
        delay = self._delays.get(tc_id, _FIRST_REOPEN_SECONDS)
        longest = _LAST_REOPEN_SECONDS if self._shared is None else _LAST_SHARED_REOPEN_SECONDS
        self._delays[tc_id] = min(2 * delay, longest)
        _logger.warning("coordinator %d is opened again in %s s: %s", tc_id, delay, error)
        self._turn.runtime.call_later(delay, self.start, tc_id)
