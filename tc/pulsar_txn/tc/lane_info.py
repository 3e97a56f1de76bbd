"""Pictures in lists and metrics of clients and their lanes."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class ClientInfo:
    """One life of a client that holds lanes. `lease_until_ms`: when its lease ends, if it gives no sign of life."""

    principal: str | None
    incarnation: str
    lanes: int
    open_count: int
    lease_until_ms: int


@attrs.frozen
class LaneCounts:
    """The lanes of a coordinator. `by_state`: those that are kept; `given`: all that ever were; `clients`: with a lease."""

    by_state: Mapping[str, int]
    given: int
    clients: int
