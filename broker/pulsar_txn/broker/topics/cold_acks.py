"""ACKs that wait until the size of a batch is read: of entries that were delivered long ago, or by another broker process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Position

from .ack_reader import AckReader

MAX_WAITING: Final = 1000
"""ACKs of one subscription that wait; more are refused."""


class ColdAcks:
    """Reads for them one after the other, in the order of their coming."""

    def __init__(self, reader: AckReader) -> None:
        self._reader = reader
        self._waiting: deque[tuple[Sequence[Position], Callable[[], None], Answer | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, positions: Sequence[Position], again: Callable[[], None], answer: Answer | None) -> None:
        """Call `again` once the sizes of these entries are known; when they cannot be read, `answer` says why."""
        if len(self._waiting) >= MAX_WAITING:
            if answer is not None:
                text = f"{MAX_WAITING} acknowledgements of this subscription wait for their batches to be read; retry"
                answer(None, ServerError.TooManyRequests, text)
            return
        self._waiting.append((positions, again, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._waiting:
                positions, again, answer = self._waiting[0]
                try:
                    await self._reader.fetch(positions)
                except LedgerError as error:
                    self._waiting.popleft()
                    if answer is not None:
                        answer(None, ServerError.PersistenceError, str(error))
                else:
                    self._waiting.popleft()
                    again()
        finally:
            self._task = None

    async def close(self) -> None:
        """Stop reading; those that wait are told to try again."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, answer in waiting:
            if answer is not None:
                answer(None, ServerError.ServiceNotReady, "the subscription is closed; retry")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
