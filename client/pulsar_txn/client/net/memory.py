"""Setting of how the C library deals with the large blocks that batches and entries are made of."""

from __future__ import annotations

import functools
from typing import Final

LARGEST_BLOCK: Final = 4 << 20


@functools.cache
def keep_freed_blocks() -> None:
    """Have glibc keep what it is given back for the next batch; once per process.

    By default it maps each block of more than 128 KiB again, and returns the end of its heap as soon as 128 KiB of it are
    free; the pages of every batch are then mapped and cleared again, a tenth of the CPU of a transaction of 1,000 KiB. It
    learns from the largest mapped block that is freed: from then on smaller ones stay, up to twice its size (mallopt(3),
    M_MMAP_THRESHOLD). Cheap, as nobody touches the block. Without effect on other C libraries, and where the environment
    sets these bounds.
    """
    bytes(LARGEST_BLOCK)
