"""Tracebacks of failed calls: the frames inside the client and the event loop tell a program nothing.

Errors of the program's own code that are tried again and again are told once for each kind, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

E = TypeVar("E", bound=BaseException)

Kind: TypeAlias = tuple[type[BaseException], str, int]
"""A class, and the place that raised it."""

MOST_KINDS: Final = 1000
"""Kinds of errors that are remembered; beyond it the oldest are forgotten, and told again."""

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


class ErrorKinds:
    """The errors that a loop has met: the first one of each kind is a warning with its traceback, repeats are counted.

    Errors are of one kind when they have the same class and were raised by the same line.
    """

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}

    def tell(self, logger: logging.Logger, what: str, error: BaseException) -> None:
        """Log `what`, with the error. The 10th, the 100th, … of a kind is a warning as well, with the count."""
        kind = _kind_of(error)
        count = self._counts[kind] = self._counts.pop(kind, 0) + 1
        if len(self._counts) > MOST_KINDS:
            del self._counts[next(iter(self._counts))]
        if count == 1:
            logger.warning("%s: %s: %s", what, type(error).__name__, error, exc_info=error)
        else:
            level = logging.WARNING if str(count).strip("0") == "1" else logging.INFO
            logger.log(level, "%s: %s, number %d of its kind: %s", what, type(error).__name__, count, error)


def _kind_of(error: BaseException) -> Kind:
    here = error.__traceback__
    while here is not None and here.tb_next is not None:
        here = here.tb_next
    place = ("", 0) if here is None else (here.tb_frame.f_code.co_filename, here.tb_lineno)
    return type(error), *place
