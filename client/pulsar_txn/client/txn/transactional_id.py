"""The transactional id of a client: its epoch once a coordinator gave it one, and which coordinator that is.

What goes over the wire are fields of our own in TC_CLIENT_CONNECT, after a feature flag of CONNECTED (`docs/adr/0006`).
"""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_txn.client.errors import TransactionalIdUnsupported
from pulsar_txn.client.net.connection import Connection


@attrs.frozen
class Epoch:
    """One start of a transactional id: what another process needs to act as the same instance. Can be pickled.

    `ends_groups`: whether the coordinator ends several transactions by one record (`docs/adr/0023`).
    """

    name: str
    number: int
    coordinator_id: int
    ends_groups: bool


class TransactionalId:
    """One for each client that has one; shared by its sessions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch: int | None = None
        self.coordinator = 0

    def check(self, connection: Connection) -> None:
        """Raise TransactionalIdUnsupported where nobody would fence."""
        if not connection.features.supports_transactional_ids:
            text = f"{connection.server_version} knows no transactional ids, so nothing would fence {self.name!r}"
            raise TransactionalIdUnsupported(text, endpoint=connection.endpoint)

    def took_over(self, answer: Any) -> None:
        """TC_CLIENT_CONNECT_RESPONSE to the first request that names the id."""
        self.epoch = answer.transactional_epoch
        self.coordinator = answer.tc_id

    def act_as(self, epoch: Epoch) -> None:
        """Be the instance that got this epoch in another process."""
        self.epoch = epoch.number
        self.coordinator = epoch.coordinator_id

    def fields(self) -> dict[str, Any]:
        """The fields of a request that carry the epoch; empty without an epoch."""
        return {} if self.epoch is None else {"transactional_id": self.name, "transactional_epoch": self.epoch}
