"""A client at a coordinator that is beside its clusters, and not in a broker: `pulsar-txn coordinator`.

What goes over the wire are fields of our own in TC_CLIENT_CONNECT, after a feature flag of CONNECTED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.runtime import Runtime

GOODBYE_SECONDS: Final = 1.0
"""How long closing a client waits for the coordinators to know it. Without a goodbye they do when its lease is over."""


class Guest:
    """One life of a client: the coordinator tells it from every other one by its `incarnation`, over all its connections."""

    def __init__(self, runtime: Runtime) -> None:
        self.incarnation = f"{int(runtime.random() * 2**52):013x}{int(runtime.random() * 2**52):013x}"

        self.has_left: Callable[[], bool] = lambda: False
        """Whether all its producers and consumers are closed, so that nothing more of its transactions can arrive anywhere."""

    def check(self, connection: Connection) -> None:
        """InvalidConfiguration where a broker answers, which would end transactions at its own topics only."""
        if not connection.features.supports_clusters:
            raise InvalidConfiguration(
                f"{connection.server_version} at {connection.endpoint} is no coordinator beside clusters",
                hint="give coordinator= the address of `pulsar-txn coordinator`, or leave it out: brokers have their own",
            )

    def fields(self) -> dict[str, Any]:
        """Of TC_CLIENT_CONNECT."""
        return {"incarnation": self.incarnation}

    def goodbye(self) -> dict[str, Any]:
        """The same, when it ends: another client may have its lanes."""
        return {"incarnation": self.incarnation, "goodbye": True}
