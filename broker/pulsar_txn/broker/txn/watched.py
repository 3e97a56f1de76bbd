"""A coordinator whose records somebody follows: live, and while it is folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pulsar_txn.ledger.machine import Machine
from pulsar_txn.wire.ids import Position

from .coordinator_host import CoordinatorHost, MakeHost


class CoordinatorWatch(Protocol):
    """Follows the records of one coordinator, from its recovery on. A coordinator that is opened again has another watch."""

    is_sampling: bool
    """Whether `appended` has been told of a record that `confirmed` has not yet."""

    def restored(self, machine: Any, data: bytes) -> None:
        """The machine has the state of its snapshot, beside which `data` was stored."""

    def applied(self, record: Any) -> None:
        """A record was applied, in recovery or live."""

    def folded(self) -> None:
        """Everything that the log holds is applied."""

    def stored(self) -> bytes:
        """Return what is stored beside a snapshot that is taken now."""

    def appended(self, position: Position) -> None:
        """A record was appended at this position."""

    def confirmed(self, position: Position) -> None:
        """Everything up to here is durable."""


class WatchedCoordinatorHost(CoordinatorHost):
    """See `CoordinatorHost`. `watch` is set before the recovery."""

    watch: CoordinatorWatch

    def applied(self, log: str, position: Position, record: Any) -> None:
        """Tell the watch."""
        watch = self.watch
        if not watch.is_sampling:
            watch.appended(position)
        watch.applied(record)

    def confirmed(self) -> None:
        """Tell the watch."""
        if self.watch.is_sampling:
            self.watch.confirmed(self.host.main.confirmed)

    def fold(self, machine: Machine[Any, Any], log: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery."""
        record = machine.decode(log, data)
        machine.apply(log, position, record)
        self.watch.applied(record)

    def snapshot_extra(self) -> bytes:
        """Return what the watch stores."""
        return self.watch.stored()

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""
        self.watch.restored(self.machine, data)

    def folded(self) -> None:
        """See `CoordinatorHost.folded`."""
        super().folded()
        self.watch.folded()


def watched_by(watch: Callable[[int], CoordinatorWatch]) -> MakeHost:
    """For `Coordinators`: each coordinator that is opened has a watch of its own."""

    def make(tc_id: int, *parts: Any) -> CoordinatorHost:
        host = WatchedCoordinatorHost(*parts)
        host.watch = watch(tc_id)
        return host

    return make
