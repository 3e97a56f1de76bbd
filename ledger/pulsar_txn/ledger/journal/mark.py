"""The mark: an entry of the folder whose name says which segment was begun last.

    begun-0000000042

A segment's first frame is confirmed to nobody before the mark names that segment, so a segment that the mark names and
that has no valid frame is damage: it was lost, or replaced by an older copy. Without the mark, the segment before it
would look like the end of a healthy journal. Segments after the mark hold nothing that was confirmed.

The name is all there is to it: it changes by one rename, and the sync of the folder that makes the next segment's name
durable covers it. No commit waits for a sync more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pulsar_txn.ledger.journal.files import Files

MARK_NAME: Final = re.compile(r"begun-(\d{10})")
_TEXT: Final = b"The name of this file says which segment was begun last. Copy it together with the segments.\n"


def marked_segment(names: Iterable[str]) -> int | None:
    """The segment that the folder's mark names; None when there is no mark."""
    return max((int(match[1]) for name in names if (match := MARK_NAME.fullmatch(name))), default=None)


def move_mark(files: Files, folder: str, old: int | None, new: int) -> None:
    """Name another segment; durable once the folder is synced."""
    path = f"{folder}/begun-{new:010d}"
    if old is not None:
        files.rename(f"{folder}/begun-{old:010d}", path)
        return
    fd = files.open(path, create=True)
    try:
        files.write(fd, [_TEXT], 0)  # for people; the journal reads the name only
    finally:
        files.close(fd)
