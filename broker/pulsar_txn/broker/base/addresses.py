"""The address under which others reach a server that listens."""

from __future__ import annotations

from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Addresses that only this machine reaches."""

_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - a comparison


def reachable(bind_address: str, advertised_address: str | None = None) -> str:
    """The host for URLs: what is advertised, or the address itself, or loopback where it listens on all addresses."""
    host = advertised_address or ("127.0.0.1" if bind_address in _ANY else bind_address)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
