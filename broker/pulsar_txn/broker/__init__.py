"""The host of the plug-ins: a small broker that speaks the Pulsar binary protocol to any official client.

It knows the five rooms below it (wire, ledger, tc, rm_producer, rm_pending_ack) and how to bring their machines,
logs and connections together. It must never know the client or Spark; and clock, randomness, sockets and timers
reach it only through `runtime`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base.settings import BrokerConfig as BrokerConfig
    from .broker import Broker as Broker
    from .server import Standalone as Standalone

_WHERE = {"Broker": "broker", "BrokerConfig": "base.settings", "Standalone": "server"}

__all__ = ["Broker", "BrokerConfig", "Standalone"]


def __getattr__(name: str) -> Any:
    """Import on first use: the pytest plug-in lives in this package, and pytest loads it for everybody."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (sentence := importlib.import_module(".base.platforms", __name__).why_not_here()) is not None:
        raise ImportError(sentence)
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
