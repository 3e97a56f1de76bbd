"""Asyncio host of a machine.

What a host owes its machine is `ledger.hosting.Host`. A `MachineHost` adds timers, the turn of the loop and the reads of a
recovery. Each kind of machine has a host of its own, since each carries out other effects: `coordinator_host`,
`topics.buffer_host` and `topics.pending_ack_host`. No host decides anything of a transaction, and none calls who uses it:
answers, and the news that it has failed, leave at the end of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from pulsar_txn.broker.base.slices import SLICE_SECONDS
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.hosting import Answer, Host, Registration
from pulsar_txn.ledger.machine import Machine
from pulsar_txn.ledger.protocols import LedgerError, Log, LogClosed
from pulsar_txn.ledger.snapshots import Recovery
from pulsar_txn.wire.errors import Refusal, ServerError

_OWED_SECONDS: Final = 0.5

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


News: TypeAlias = Callable[[Any, None, str], None]
"""Called with a host; an `Answer` in form, because the turn gives it with the answers, in their order."""


class MachineHost(Host[RequestT, RecordT]):
    """One machine with its open logs. `recover()` first; then `submit` requests.

    `looks`: the machine's deadline may be nearer than the timer, so `look` at it when the turn ends.
    `on_news` is called with the host by the turn, when the host has something for its owner. That is at least its failure, when
    a log fails after the recovery: then it is of no more use, its owner calls `close_failed` and recovers a new one (H4).
    """

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, Log],
        turn: Turn,
        on_news: News,
        *,
        registration: Registration | None = None,
    ) -> None:
        super().__init__(machine, logs, turn, turn.answer, registration=registration)
        self.logs = dict(logs)
        self.turn = turn
        self.looks = True
        self._on_news = on_news
        self._is_owned = False  # until it is recovered, failures go to the caller of `recover`
        self._owed_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    # ---- in its own way

    def begin_turn(self) -> None:
        """Take part in the turn."""
        self.turn.enter(self)

    def owes(self) -> None:
        """Pay in a while."""
        self._owed_timer = self.turn.runtime.call_later(_OWED_SECONDS, self.pay)

    def slice(self) -> Callable[[], bool]:
        """A few milliseconds."""
        monotonic = self.turn.runtime.monotonic
        until = monotonic() + SLICE_SECONDS
        return lambda: monotonic() >= until

    def failed(self, error: Exception) -> None:
        """Tell the owner when the turn ends."""
        self._stop_timers()
        if self._is_owned:
            self.turn.answer(self._on_news, self, None, "")

    # ---- time

    def look(self) -> None:
        """The turn ends: set the timer to the machine's deadline (H6)."""
        deadline = self.machine.deadline()
        if deadline is None or self.failure is not None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - self.turn.clock.now_ms()) / 1000
        self._timer = self.turn.runtime.call_later(delay, self.turn.defer, self.expire_soon)

    def expire(self) -> bool:
        """Carry out what is due, in slices: what is left after some milliseconds is done in the next turn."""
        self._timer = None
        if not self.ready:
            return True
        is_done = super().expire()
        if not is_done:
            self._timer_at = 0
            self._timer = self.turn.runtime.call_later(_OWED_SECONDS, self.turn.defer, self.expire_soon)
        return is_done

    def expire_soon(self) -> None:
        """The deadline has come."""
        self.expire()

    # ---- recovery and end

    async def recover(self) -> None:
        """The newest snapshot, then every entry after it, in slices. Raises LedgerError or WireError.

        A recovery that fails, or is cancelled, leaves no log open, and calls nobody: its owner has the error.
        """
        try:
            await self._recover()
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else LogClosed("recovery was cancelled"))
            await self.close_failed()
            raise
        self._is_owned = True

    async def _recover(self) -> None:
        pause = self.turn.budget.pause
        stored = {name: await log.latest_snapshot() for name, log in self.logs.items()}
        recovery = Recovery(self.places, {name: snapshot for name, snapshot in stored.items() if snapshot is not None})
        for part in recovery.slices():
            await pause()
            self.machine.restore(part)
        if recovery.extra is not None:
            self.restore_extra(recovery.extra)
        while (wanted := recovery.wanted()) is not None:
            name, start = wanted
            await pause()
            entries = await self.logs[name].read(start, max_entries=256)
            self.fold_all(name, entries)
            recovery.read(entries)
        self.start()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Stop timers, let what is under way become durable, close the logs. Raises LedgerError when a log failed."""
        self._stop_timers()
        while self.snapshots.is_under_way:
            for log in self.logs.values():
                await log.flush()
            self.go_on_with_snapshots()
        for log in self.logs.values():
            await log.close()
        self.ready = False

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._owed_timer):
            if timer is not None:
                timer.cancel()

    async def close_failed(self) -> None:
        """Close the logs of a host that failed: their names are free for its successor when this returns."""
        for result in await asyncio.gather(*(log.close() for log in self.logs.values()), return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, LedgerError):
                raise result


async def asked(ask: Callable[[Answer], None]) -> Any:
    """The value that a machine answers with. Raises the Refusal it answers with. If cancelled: it goes on."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(value: Any, error: ServerError | None, message: str) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(Refusal(error, message))

    ask(answer)
    return await future
