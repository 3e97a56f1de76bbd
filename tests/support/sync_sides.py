"""What tests of the blocking client look at behind a twin: its loop thread, and its asyncio object."""

from __future__ import annotations

from typing import Any

from pulsar_txn.client.sync.loop_thread import LoopThread
from pulsar_txn.client.sync.twin import inner

__all__ = ["inner", "loop_of"]


def loop_of(twin: Any) -> Any:
    """The loop thread of a client and of all that it hands out."""
    loop = twin._loop
    assert isinstance(loop, LoopThread)
    return loop
