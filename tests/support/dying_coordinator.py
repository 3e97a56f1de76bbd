"""`pulsar-txn` that kills itself at a record of a coordinator's log: a program for `OurCoordinator`.

DIE_AT=N: at the N-th record that this process appends, from 0 on. DIE_HOW=before: it is not written; after: it is durable, and
whether its effects have left is open. Without DIE_AT nothing happens.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import Any, Final

from pulsar_txn.broker.cli import main
from pulsar_txn.ledger.journal.log import JournalLog

_COORDINATORS: Final = "__transaction_log"


def arm(at: int, how: str) -> None:
    """Count from now on."""
    numbers, append = itertools.count(), JournalLog.append

    def counted(log: JournalLog, data: Any, *, reserve: bool = False) -> Any:
        dies = _COORDINATORS in log.name and next(numbers) == at
        if dies and how == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        position = append(log, data, reserve=reserve)
        if dies:
            asyncio.get_running_loop().create_task(_die_when_durable(log)).add_done_callback(_KEPT.append)
        return position

    JournalLog.append = counted  # type: ignore[method-assign]  # that is the purpose


async def _die_when_durable(log: JournalLog) -> None:
    await log.store.durable()
    os.kill(os.getpid(), signal.SIGKILL)


_KEPT: Final[list[Any]] = []

if "DIE_AT" in os.environ:
    arm(int(os.environ["DIE_AT"]), os.environ["DIE_HOW"])

if __name__ == "__main__":
    main()
