"""KeyboardInterrupt wherever one can come: at every place of the client's code at which CPython looks for signals."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

LOOKED_BEHIND: Final = frozenset({"CALL", "RESUME", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})
"""Instructions behind which signals are looked for (CPython 3.11 and later)."""

OURS: Final = ("pulsar_txn/client", "asyncio/", "concurrent/")


class Interruption(KeyboardInterrupt):
    """One that a test has made."""


def interrupted(function: Callable[[], object], at: int) -> str | None:
    """Call the function and interrupt it at the place of this number; where that was, None when it has fewer."""
    left, where = at, ""
    last: dict[int, str] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, where
        if not any(part in frame.f_code.co_filename for part in OURS):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            last.pop(id(frame), None)
        if event != "opcode":
            return trace
        before = last.get(id(frame))
        last[id(frame)] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if before in LOOKED_BEHIND:
            if left == 0:
                where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)
                raise Interruption
            left -= 1
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except Interruption:
        return where
    finally:
        sys.settrace(traced)
    return None
