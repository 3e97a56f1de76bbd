"""What tests of the blocking client look at behind a twin: its loop thread, and its asyncio object."""

from __future__ import annotations

from typing import Any

from pulsar_txn.client.sync.blocking import inner
from pulsar_txn.client.sync.loop_thread import LoopThread

__all__ = ["inner", "loop_of", "pretend_looking", "put_inbox", "take_inbox"]


def loop_of(twin: Any) -> Any:
    """The loop thread of a client and of all that it hands out."""
    loop = twin._loop
    assert isinstance(loop, LoopThread)
    return loop


def pretend_looking(loop: Any, looks: bool) -> None:
    """Have a loop thread believe that it is going to look for calls by itself, or that it is not."""
    loop._looks = looks


def take_inbox(loop: Any) -> Any:
    """The calls that wait for a loop thread; it has none of them any more until `put_inbox`."""
    inbox, loop._inbox = loop._inbox, type(loop._inbox)()
    return inbox


def put_inbox(loop: Any, inbox: Any) -> None:
    """Give it the calls back."""
    loop._inbox = inbox
