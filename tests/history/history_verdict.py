"""What a check says about a history: VALID, INVALID with the operations that contradict each other, or UNKNOWN.

UNKNOWN means that the history lacks what the check needs, or that a search used up its budget. It is not a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from history_reader import Op

VALID, INVALID, UNKNOWN = "VALID", "INVALID", "UNKNOWN"
SHOWN_OPS = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one check.

    `witness` are the operations without which there is no contradiction; `context` are others about the same transactions
    and messages, for the person who looks for the cause. `found` counts contradictions of this kind; the witness is of one.
    """

    check: str
    status: str
    reason: str
    witness: tuple[Op, ...] = ()
    context: tuple[Op, ...] = ()
    found: int = 0

    def __str__(self) -> str:
        more = f" ({self.found} of this kind in all)" if self.found > 1 else ""
        lines = [f"{self.check} {self.status}: {self.reason}{more}"]
        lines += [f"    {op!r}" for op in self.witness[:SHOWN_OPS]]
        if len(self.witness) > SHOWN_OPS:
            lines.append(f"    and {len(self.witness) - SHOWN_OPS} more")
        if self.context:
            lines.append("  other operations about the same transactions and messages:")
            lines += [f"    {op!r}" for op in self.context[:SHOWN_OPS]]
        return "\n".join(lines)


def valid(check: str, reason: str) -> Verdict:
    """The history has what the check needs, and nothing contradicts."""
    return Verdict(check, VALID, reason)


def unknown(check: str, reason: str) -> Verdict:
    """The check cannot judge this history: `reason` says what it lacks."""
    return Verdict(check, UNKNOWN, reason)


def invalid(check: str, reason: str, witness: Iterable[Op | None], found: int = 1) -> Verdict:
    """The operations `witness` (None is left out) contradict each other."""
    ops = {id(op): op for op in witness if op is not None}
    return Verdict(check, INVALID, reason, tuple(sorted(ops.values(), key=lambda op: (op.start, op.index))), (), found)
