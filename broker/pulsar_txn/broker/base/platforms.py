"""Platforms of the broker: Linux and macOS. This module imports nothing that another system does not have."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("fcntl", "resource")
"""Parts of Python's own library that Windows does not have: locks of files, and limits of a process."""


def why_not_here() -> str | None:
    """The sentence for a system on which there is no broker; None where it runs."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"the broker and its tools run on Linux and macOS, and this system has no {' and no '.join(missing)}; on Windows run"
        " them in WSL or in a container: the client, pulsar_txn.compat and the outbox work here"
    )
