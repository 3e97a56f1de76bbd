"""Findings on a journal, one thing that is wrong at a time: said by recovery and by `check`, and what a repair begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pulsar_txn.ledger.protocols import RESTORE_LOG, LogDamaged, ReadFailed
from pulsar_txn.wire.ids import Position

FindingKind: TypeAlias = Literal[
    "folder",
    "mark",
    "segment",
    "checkpoint",
    "frame",
    "data",
    "records",
    "order",
    "index",
    "unused",
    "log",
    "snapshot",
    "entry",
]
"""What the finding is about:

    folder      the folder, or the file FORMAT: nothing below it was looked at
    mark        the file that says which segment was begun last is missing
    segment     a segment that is needed is missing, or nothing of it can be read
    checkpoint  no frame to begin with: the state is not known
    frame       a frame whose directory is unreadable: which logs it held is not known
    data        a frame whose directory is whole and whose entries are not all so; they have findings of their own
    records     a whole frame whose records make no sense
    order       frames that do not follow each other
    index       the index or the trailer of a full segment; its frames were read instead, so nothing is lost
    unused      a part of the newest segment where nothing was written; nothing is lost
    log         entries of a log are missing
    snapshot    the snapshot of a log
    entry       one entry
"""

RESTORE_FOLDER: Final = (
    "restore the whole folder from a copy; `pulsar-txn salvage` and the page Backup and salvage say what else helps"
)


@attrs.frozen
class Finding:
    """One thing that is wrong: the log (None: not of one log), the position, a sentence; the place where it is.

    `unreadable`: the bytes could not be read, which may pass; otherwise they were read and are wrong. `fatal`: the store
    does not start because of it. `segment` and `offset` (bytes from the segment's start) are None where that says nothing.
    """

    log: str | None
    position: Position | None
    detail: str
    kind: FindingKind = "folder"
    segment: int | None = None
    offset: int | None = None
    unreadable: bool = False
    fatal: bool = False
    entries: int = 1
    """Of kind "entry": how many in a row, from `position` on."""

    def error(self) -> LogDamaged | ReadFailed:
        """The error of a store that does not start."""
        name = self.log or "(the whole journal)"
        if self.unreadable:
            return ReadFailed(name, self.position, self.detail)
        return LogDamaged(name, self.position, self.detail, RESTORE_FOLDER if self.fatal else RESTORE_LOG)


def of_error(error: LogDamaged | ReadFailed, kind: FindingKind, *, fatal: bool = False) -> Finding:
    """Return what an error says that was raised, or kept, for one log or file."""
    return Finding(error.log, error.position, str(error), kind, unreadable=isinstance(error, ReadFailed), fatal=fatal)


def first_fatal(findings: Sequence[Finding]) -> Finding | None:
    """Return why the store does not start, None when it does."""
    return next((finding for finding in findings if finding.fatal), None)
