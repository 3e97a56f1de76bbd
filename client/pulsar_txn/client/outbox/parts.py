"""What an outbox of either kind makes of its arguments: they are checked and used in one place, so that the kinds are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from pulsar_txn.client._checks import seconds_of
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.outbox.block import Key
from pulsar_txn.client.outbox.checking import check_data_of
from pulsar_txn.client.outbox.connections import Connections
from pulsar_txn.client.outbox.dialects import check_paramstyle, check_table, chosen_dialect
from pulsar_txn.client.outbox.doors import door_of
from pulsar_txn.client.outbox.engine import BlockLife, Engine
from pulsar_txn.client.outbox.rows import Rows
from pulsar_txn.client.outbox.trimming import TrimResult, trim
from pulsar_txn.client.txn.check_groups import check_group_name

TRIM_EVERY: Final = 500
OLDER_THAN: Final = timedelta(hours=1)


class Parts:
    """`client` is one of the outbox's kind; `wall_ms` is its clock. `blocking`: whether a check may hold up the thread.

    Raises InvalidConfiguration. The coroutines of a blocking outbox never wait (`at_once`).
    """

    def __init__(
        self,
        client: Any,
        wall_ms: Callable[[], int],
        group: str,
        connect: Any,
        *,
        table: str,
        dialect: str | None,
        paramstyle: str | None,
        check_after: float | timedelta | None,
        trim_every: int | None,
        blocking: bool,
    ) -> None:
        self._client = client
        self._wall_ms = wall_ms
        self._group = _check_group(group)
        self._check_after = None if check_after is None else seconds_of(check_after, "check_after")
        self._paramstyle = None if paramstyle is None else check_paramstyle(paramstyle)
        self._blocking = blocking
        self.connections = Connections(connect, self._paramstyle)
        self.engine = Engine(
            Rows(check_table(table), group, chosen_dialect(dialect), wall_ms),
            self.connections.use if blocking else self.connections.use_beside_loop,
            client.attach_prepared,
            paramstyle=self._paramstyle,
            trim_every=_check_trim_every(trim_every),
        )

    def block(self, connection: Any, options: Mapping[str, Any]) -> BlockLife:
        """One block over a database connection; `options` are those of the client's `transaction()`."""

        def managed_of(key: Key) -> Any:
            return self._client.transaction(
                **options,
                eager=True,
                check_group=self._group,
                check_data=check_data_of(key),
                check_after=self._check_after,
            )

        return BlockLife(self.engine, connection, managed_of, blocking=self._blocking)

    async def create_table(self, connection: Any) -> None:
        """Over `connection`, or without one over one of the outbox's own."""
        create = self.engine.rows.create
        await (self.engine.use(create) if connection is None else create(door_of(connection, self._paramstyle)))

    async def trim(self, older_than: float | timedelta) -> TrimResult:
        """Remove the rows of ended transactions that were written more than `older_than` ago."""
        before = self._wall_ms() - int(seconds_of(older_than, "older_than") * 1000)
        return await trim(self.engine, self.engine.end, before)


def _check_group(group: str) -> str:
    check_group_name("group", group)
    if len(group) > 255:
        raise InvalidConfiguration("the name of the group has more than 255 characters", hint="the column holds 255")
    return group


def _check_trim_every(trim_every: int | None) -> int | None:
    if trim_every is not None and (not isinstance(trim_every, int) or trim_every < 1):
        raise InvalidConfiguration(f"trim_every={trim_every!r} is no number from 1", hint="None removes nothing by itself")
    return trim_every
