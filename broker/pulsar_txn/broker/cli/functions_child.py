"""The functions worker beside a broker: a child process that runs `pulsar-txn functions worker`.

The broker does not know what a function is. It starts a command of another room by its name, as a user would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from importlib.metadata import entry_points
from typing import Final

from pulsar_txn.broker.base.runtime import start_child

from .exits import CUT_SHORT, UNAVAILABLE, Ending

_logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_MAIN: Final = "from pulsar_txn.broker.cli import main; main()"


def check_installed() -> None:
    """Raises Ending where the command is not installed."""
    if not entry_points(group="pulsar_txn.commands", name="functions"):
        raise Ending(UNAVAILABLE, "functions are not installed; run: pip install '.[broker,functions]' in a checkout")


class FunctionsChild:
    """Keeps the worker running until `close`."""

    def __init__(self, admin_url: str, patience: float) -> None:
        """`patience`: seconds that the worker has to end its functions."""
        self._admin_url = admin_url
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            command = (sys.executable, "-c", _MAIN, "functions", "worker", "--admin-url", self._admin_url, "--with-parent")
            self._process = await start_child(*command)
            code = await self._process.wait()
            if code == CUT_SHORT:
                _logger.warning("the functions worker ended because another one has taken over")
                return
            _logger.error(
                "the functions worker ended with code %d and is started again in %g s; its error is above", code, pause
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def close(self) -> None:
        """End the worker and its functions, in an orderly way while there is time."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await process.wait()
        if process.returncode is None:
            _logger.warning("the functions worker did not end in %g s and is killed", self._patience)
            process.kill()
            await process.wait()
