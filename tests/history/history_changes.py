"""What faults make of the operations of a history."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from history_reader import NEVER, Op

if TYPE_CHECKING:
    from collections.abc import Iterable

Ops = list[Op]


def copied(ops: Iterable[Op]) -> Ops:
    """Operations that may be changed."""
    return [Op(op.process, op.f, op.type, copy.deepcopy(op.value), op.start, op.end) for op in ops]


def end_of(ops: Ops) -> int:
    """A moment after everything."""
    return max(op.start if op.end == NEVER else op.end for op in ops) + 1


def delivered(op: Op, start: int, **changes: object) -> Op:
    """A delivery of the message of a send or a delivery, to a reader unless `changes` say otherwise."""
    value = {"subscription": None, "consumer": None, "reader": "injected", "redeliveries": 0}
    value |= {name: copy.deepcopy(op.value[name]) for name in ("topic", "partition", "position", "payload")}
    return Op("injected", "deliver", "ok", value | changes, start, start)
