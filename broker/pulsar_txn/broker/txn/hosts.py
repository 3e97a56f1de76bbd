"""Asyncio host of a machine.

What a host owes its machine is `ledger.hosting.Host`. A `MachineHost` adds timers, the turn of the loop and the reads of a
recovery. Each kind of machine has a host of its own, since each carries out other effects: `coordinator_host`,
`topics.buffer_host` and `topics.pending_ack_host`. No host decides anything of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pulsar_txn.broker.base.slices import SLICE_SECONDS
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.hosting import Answer, Host, Registration, Skin
from pulsar_txn.ledger.machine import Machine
from pulsar_txn.ledger.protocols import LedgerError, Log, LogClosed
from pulsar_txn.ledger.snapshots import Recovery
from pulsar_txn.wire.errors import Refusal, ServerError

_OWED_SECONDS: Final = 0.5

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class MachineHost(Skin, Generic[RequestT, RecordT]):
    """One machine with its open logs. `recover()` first; then `submit` requests.

    `looks`: the machine's deadline may be nearer than the timer, so `look` at it when the turn ends.
    `on_failed` is called once when a log fails after the recovery: the host is of no more use, its owner calls `release`
    and recovers a new one (H4).
    """

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, Log],
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        registration: Registration | None = None,
        verified: Callable[[Any, bool], RequestT] | None = None,
    ) -> None:
        self.machine = machine
        self.logs = dict(logs)
        self.turn = turn
        self.host: Host[RequestT, RecordT] = Host(machine, self.logs, self, turn, registration=registration, verified=verified)
        self.submit = self.host.submit
        self.carry_out = self.host.carry_out
        self.release_at_tail = self.host.release_at_tail
        self.fail = self.host.fail
        self.verifying = self.host.verifying
        self.snapshots = self.host.snapshots
        self.looks = True
        self._on_failed = on_failed
        self._is_owned = False  # until it is recovered, failures go to the caller of `recover`
        self._owed_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    @property
    def ready(self) -> bool:
        """True if it serves."""
        return self.host.ready

    @property
    def failure(self) -> Exception | None:
        """Error that made it fail."""
        return self.host.failure

    @property
    def is_busy(self) -> bool:
        """True if somebody waits for an answer of this host."""
        return self.host.is_busy

    # ---- what the host asks for

    def turn_beginner(self) -> Callable[[], None]:
        """The host takes part in the turn."""
        return partial(self.turn.enter, self)

    def owes(self) -> None:
        """Pay in a while."""
        self._owed_timer = self.turn.runtime.call_later(_OWED_SECONDS, self.host.pay)

    def slice(self) -> Callable[[], bool]:
        """A few milliseconds."""
        monotonic = self.turn.runtime.monotonic
        until = monotonic() + SLICE_SECONDS
        return lambda: monotonic() >= until

    def failed(self, error: Exception) -> None:
        """Tell the owner."""
        self._stop_timers()
        if self._is_owned:
            self._on_failed(error)

    # ---- time

    def look(self) -> None:
        """The turn ends: set the timer to the machine's deadline (H6)."""
        deadline = self.machine.deadline()
        if deadline is None or self.host.failure is not None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - self.turn.clock.now_ms()) / 1000
        self._timer = self.turn.runtime.call_later(delay, self.turn.defer, self.expire)

    def expire(self) -> None:
        """Carry out what is due, in slices: what is left after some milliseconds is done in the next turn."""
        self._timer = None
        if self.host.ready and not self.host.expire():
            self._timer_at = 0
            self._timer = self.turn.runtime.call_later(_OWED_SECONDS, self.turn.defer, self.expire)

    # ---- recovery and end

    async def recover(self) -> None:
        """The newest snapshot, then every entry after it, in slices. Raises LedgerError or WireError.

        A recovery that fails, or is cancelled, leaves no log open, and calls nobody: its owner has the error.
        """
        try:
            await self._recover()
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else LogClosed("recovery was cancelled"))
            await self.release()
            raise
        self._is_owned = True

    async def _recover(self) -> None:
        pause = self.turn.budget.pause
        stored = {name: await log.latest_snapshot() for name, log in self.logs.items()}
        recovery = Recovery(self.host, {name: snapshot for name, snapshot in stored.items() if snapshot is not None})
        for _ in recovery.restored():
            await pause()
        while (wanted := recovery.wanted()) is not None:
            name, start = wanted
            await pause()
            recovery.fold(await self.logs[name].read(start, max_entries=256))
        self.host.start()
        await self.begin()
        if self.failure is not None:
            raise self.failure

    async def begin(self) -> None:
        """Do what is to be done at the end of a recovery, before anybody is served: nothing, by default. Raises."""

    async def close(self) -> None:
        """Stop timers, let what is under way become durable, close the logs. Raises LedgerError when a log failed."""
        self._stop_timers()
        while self.snapshots.is_under_way:
            for log in self.logs.values():
                await log.flush()
            self.snapshots.advance()
        for log in self.logs.values():
            await log.close()
        self.host.ready = False

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._owed_timer):
            if timer is not None:
                timer.cancel()

    async def release(self) -> None:
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
