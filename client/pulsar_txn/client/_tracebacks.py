"""Tracebacks of failed calls: the frames inside the client and the event loop tell a program nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

E = TypeVar("E", bound=BaseException)

_LIBRARY: Final = Path(asyncio.__file__).parents[1]
_INSIDE: Final = (str(Path(__file__).parent), str(_LIBRARY / "asyncio"), str(_LIBRARY / "concurrent"))


def shortened(error: E) -> E:
    """The error, whose traceback keeps the frames of the program's own code only: those of a handler, for instance.

    Where it is raised again, Python adds the frames that lead there.
    """
    kept: list[TracebackType] = []
    here = error.__traceback__
    while here is not None:
        if not here.tb_frame.f_code.co_filename.startswith(_INSIDE):
            kept.append(here)
        here = here.tb_next
    traceback: TracebackType | None = None
    for each in reversed(kept):
        traceback = TracebackType(traceback, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return error.with_traceback(traceback)
