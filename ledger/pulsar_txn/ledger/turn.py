"""The turn of a store. Whoever changed something asks for it; the store looks at all that has changed, and nobody calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turn:
    """One turn of the loop for `carry_out`, which calls `begun` first. However often it is asked for before, it is one."""

    __slots__ = ("_carry_out", "asked")

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self.asked = False
        self._carry_out = carry_out

    def ask(self) -> None:
        """Carry it out when the loop has carried out what is ready now."""
        if not self.asked:
            self.asked = True
            asyncio.get_running_loop().call_soon(self._carry_out)

    def begun(self) -> None:
        """Begin it: a change from now on needs another one."""
        self.asked = False

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()
