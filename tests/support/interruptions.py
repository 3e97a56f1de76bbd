"""KeyboardInterrupt wherever one can come: at every place of the client's code at which CPython looks for signals."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

LOOKED_AFTER: Final = frozenset({"CALL", "CALL_KW", "RESUME", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})
"""CPython 3.11 and later looks for signals after each of these instructions."""

OURS: Final = ("pulsar_txn/client", "asyncio/", "concurrent/")


class Interruption(KeyboardInterrupt):
    """One that a test has made."""


class Countdown:
    """Raises Interruption at the place of a given number."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._before: dict[int, str] = {}
        self.where: str | None = None

    def begin(self, frame: FrameType) -> None:
        """A frame begins; another one may have had its identity before."""
        self._before.pop(id(frame), None)

    def reach(self, frame: FrameType, offset: int) -> None:
        """The frame is about to run the instruction at this offset."""
        before = self._before.get(id(frame))
        self._before[id(frame)] = dis.opname[frame.f_code.co_code[offset]]
        if before not in LOOKED_AFTER or self.where is not None:
            return
        if self._left == 0:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise Interruption
        self._left -= 1


def interrupted(function: Callable[[], object], at: int) -> str | None:
    """Call the function and interrupt it at the place of this number; where that was, None when it has fewer."""
    countdown = Countdown(at)
    watched = _monitored if sys.version_info >= (3, 12) else _traced
    try:
        watched(function, countdown)
    except Interruption:
        if countdown.where is None:
            raise
    return countdown.where


def _is_ours(code: CodeType) -> bool:
    return any(part in code.co_filename for part in OURS)


def _traced(function: Callable[[], object], countdown: Countdown) -> None:
    """With `sys.settrace`: Python 3.11 has nothing else."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not _is_ours(frame.f_code):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            countdown.begin(frame)
        elif event == "opcode":
            countdown.reach(frame, frame.f_lasti)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)


def _monitored(function: Callable[[], object], countdown: Countdown) -> None:
    """With `sys.monitoring`: since Python 3.13 trace functions miss the instructions of code that has run before."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]  # since Python 3.12
    events, thread = monitoring.events, threading.get_ident()
    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)

    def begin(code: CodeType, _offset: int) -> Any:
        if not _is_ours(code):
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            countdown.begin(sys._getframe(1))
        return None

    def reach(code: CodeType, offset: int) -> Any:
        if not _is_ours(code):
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            countdown.reach(sys._getframe(1), offset)
        return None

    monitoring.use_tool_id(tool, "interruptions")
    try:
        monitoring.register_callback(tool, events.PY_START, begin)
        monitoring.register_callback(tool, events.INSTRUCTION, reach)
        monitoring.set_events(tool, events.PY_START | events.INSTRUCTION)
        function()
    finally:
        monitoring.set_events(tool, events.NO_EVENTS)
        monitoring.free_tool_id(tool)
        monitoring.restart_events()
