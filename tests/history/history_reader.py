"""Histories in memory: the files of a folder joined into operations, in the order of their invocations."""

from __future__ import annotations

import contextlib
import gc
import json
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from history_format import COMPLETIONS, EVENTS, FIELDS, HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The end of an operation that never completed: later than every time of a run.
NEVER = 1 << 62


class Op:
    """One operation: an invocation and its completion, or an event.

    `start` and `end` are nanoseconds; `end` is NEVER without a completion, and equals `start` for an event. `type` is ok,
    fail or info, and info without a completion. `value` joins the fields of both lines. `index` is the place in the history.
    """

    __slots__ = ("end", "f", "index", "process", "start", "type", "value")

    def __init__(self, process: str, f: str, kind: str, value: dict[str, Any], start: int, end: int) -> None:
        self.process = process
        self.f = f
        self.type = kind
        self.value = value
        self.start = start
        self.end = end
        self.index = -1

    def __repr__(self) -> str:
        until = "never" if self.end == NEVER else f"{self.end / 1e6:.3f}"
        span = f"{self.start / 1e6:.3f} ms" if self.end == self.start else f"{self.start / 1e6:.3f}..{until} ms"
        value = json.dumps(self.value, separators=(",", ":"))
        return f"[{self.index}] {span} {self.process} {self.f} {self.type} {value}"


class History:
    """Operations in the order of their invocations, the facts about the run, and the files whose last line was torn."""

    def __init__(self, ops: Iterable[Op], torn: Iterable[str] = ()) -> None:
        # One clock stamp for two operations says nothing about their order; the sort is stable, and no check relies on it.
        self.ops = sorted(ops, key=attrgetter("start"))
        self.torn = tuple(torn)
        self.meta: dict[str, Any] = {}
        for index, op in enumerate(self.ops):
            if op.index < 0:
                op.index = index
            if op.f == "meta":
                if self.meta:
                    raise HistoryError("two meta events in one history: a folder holds one run")
                self.meta = op.value

    def __len__(self) -> int:
        return len(self.ops)


@contextlib.contextmanager
def many_objects() -> Iterator[None]:
    """Keep the cyclic collector from walking millions of live objects again and again; histories have no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_history(folder: str | Path) -> History:
    """The history in the files `*.jsonl` of a folder.

    Raises HistoryError, naming file and line, for everything but a torn last line: foreign lines, unknown operations, missing
    fields, completions without invocation, two completions, a time that decreases within a file.
    """
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise HistoryError(f"there is no history file (*.jsonl) in {folder}")
    ops: list[Op] = []
    torn = []
    with many_objects():
        for path in files:
            if _read_file(path, ops):
                torn.append(path.name)
        return History(ops, torn)


def _read_file(path: Path, ops: list[Op]) -> bool:
    """Add the operations of one file; returns whether its last line was torn."""
    *lines, rest = path.read_bytes().split(b"\n")
    joiner = _Joiner(path.name.removesuffix(".jsonl"), ops)
    for number, line in enumerate(lines, 1):
        try:
            joiner.add(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
            raise HistoryError(f"{path}:{number}: this is no line of a history: {what}: {line[:200]!r}") from error
    return bool(rest)


class _Joiner:
    """The lines of one process, joined into operations."""

    def __init__(self, process: str, ops: list[Op]) -> None:
        self._process = process
        self._ops = ops
        self._open: dict[int, Op] = {}
        self._newest_op = -1
        self._newest_ns = 0

    def add(self, line: dict[str, Any]) -> None:
        """Take one line. Raises ValueError, KeyError, TypeError or AttributeError for one that is foreign."""
        stamp, f, kind, value = line["t_mono_ns"], line["f"], line["type"], line["value"]
        if line["process"] != self._process:
            raise ValueError(f"the line is of process {line['process']!r}")
        if type(stamp) is not int or stamp < self._newest_ns:
            raise ValueError(f"time {stamp!r} is no number of nanoseconds, or lower than that of the line before")
        self._newest_ns = stamp
        number = line.get("op")
        if number is None:
            self._event(f, kind, value, stamp)
        elif kind == "invoke":
            self._invoke(number, f, value, stamp)
        else:
            self._complete(number, f, kind, value, stamp)

    def _event(self, f: str, kind: str, value: dict[str, Any], stamp: int) -> None:
        expected, needed = EVENTS[f]
        if kind != expected:
            raise ValueError(f"the event {f} has the type {expected}, not {kind}")
        _check(f, value, needed)
        self._ops.append(Op(self._process, f, kind, value, stamp, stamp))

    def _invoke(self, number: int, f: str, value: dict[str, Any], stamp: int) -> None:
        if number <= self._newest_op:
            raise ValueError(f"operation {number} was invoked before")
        _check(f, value, FIELDS[f][0])
        self._newest_op = number
        op = self._open[number] = Op(self._process, f, "info", value, stamp, NEVER)
        self._ops.append(op)

    def _complete(self, number: int, f: str, kind: str, value: dict[str, Any], stamp: int) -> None:
        op = self._open.pop(number, None)
        if op is None or op.f != f:
            raise ValueError(f"a completion of {f} number {number}, which is not under way")
        if kind not in COMPLETIONS:
            raise ValueError(f"the type {kind!r} is not known")
        if kind == "ok":
            _check(f, value, FIELDS[f][1])
        op.type, op.end = kind, stamp
        op.value |= value


def _check(f: str, value: dict[str, Any], needed: frozenset[str]) -> None:
    if not needed <= value.keys():
        raise ValueError(f"{f} lacks {sorted(needed - value.keys())}")
