"""The outbox of threads: the same blocks over a blocking client and blocking drivers."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pulsar_txn.client.errors import OutboxOutcomeUnknown
from pulsar_txn.client.net.runtime import Lock
from pulsar_txn.client.outbox.dialects import DEFAULT_TABLE
from pulsar_txn.client.outbox.door import at_once
from pulsar_txn.client.outbox.engine import BlockLife
from pulsar_txn.client.outbox.parts import OLDER_THAN, TRIM_EVERY, Parts
from pulsar_txn.client.outbox.trimming import TrimResult
from pulsar_txn.client.sync.twin import inner

if TYPE_CHECKING:
    from pulsar_txn.client.sync.twins import Client, Transaction
    from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome


class Outbox:
    """`AsyncOutbox` for threads: `with outbox.transaction(connection) as txn: …`, over a `Client`. Its threads may share it.

    Arguments as those of `AsyncOutbox`. Checks run in the client's thread for questions. Connections are those of psycopg 3,
    sqlite3, SQLAlchemy 2 (connections and sessions), or of DB-API 2.0.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        connect: Any,
        *,
        table: str = DEFAULT_TABLE,
        dialect: str | None = None,
        paramstyle: str | None = None,
        check_after: float | timedelta | None = None,
        trim_every: int | None = TRIM_EVERY,
    ) -> None:
        self._client = client
        self._group = group
        self._parts = Parts(
            client,
            inner(client).inside.runtime.wall_ms,
            group,
            connect,
            table=table,
            dialect=dialect,
            paramstyle=paramstyle,
            check_after=check_after,
            trim_every=trim_every,
            blocking=True,
        )
        self._engine = self._parts.engine
        self._membership: Any = None
        self._starting = Lock()

    def _answer(self, question: CheckQuestion) -> LocalOutcome:
        return at_once(self._engine.checking.answer(question))

    def start(self) -> None:
        """Join the group, so that this process can be asked. Blocks do it as well; call it in a process that only answers.

        It also reads the identity of the database, if that can be read now. Raises FeatureUnsupported where the coordinator has
        no checks (stock Pulsar's own), ConnectionLost, OperationTimeout, AlreadyClosed. Safe to repeat.
        """
        with self._starting:
            if self._membership is None:
                self._membership = self._client.join_check_group(self._group, self._answer)
                at_once(self._engine.read_identity_early())

    def close(self) -> None:
        """Leave the group, and remove the rows of this process's ended transactions. The client stays open."""
        with self._starting:
            membership, self._membership = self._membership, None
            if membership is not None:
                membership.close()
        at_once(self._engine.remove_ended(all_of_them=True))

    def __enter__(self) -> Self:
        """`start()`."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """`close()`."""
        self.close()

    def transaction(
        self,
        connection: Any,
        *,
        timeout: float | timedelta = 60.0,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        ambient: bool = False,
    ) -> OutboxTransaction:
        """A block over a database connection; see `AsyncOutbox.transaction`.

        KeyboardInterrupt before COMMIT rolls both back; during COMMIT the check decides.
        """
        options = {
            "timeout": timeout,
            "name": name,
            "commit_timeout": commit_timeout,
            "abort_on_disconnect": abort_on_disconnect,
            "ambient": ambient,
        }
        return OutboxTransaction(self, self._parts.block(connection, options))

    def create_table(self, connection: Any = None) -> None:
        """Create the table and the identity, and commit: with `connection`, or one of the outbox's own; see `AsyncOutbox`.

        Raises what the driver raises. `table_sql()` and `identity_sql()` are the texts for a migration.
        """
        at_once(self._parts.create_table(connection))

    def trim(self, older_than: float | timedelta = OLDER_THAN) -> TrimResult:
        """Remove rows of the group that were written more than `older_than` ago; see `AsyncOutbox.trim`."""
        return at_once(self._parts.trim(older_than))


class OutboxTransaction:
    """What `outbox.transaction(connection)` returns: a context manager, used once."""

    def __init__(self, outbox: Outbox, life: BlockLife) -> None:
        self._outbox = outbox
        self._life = life

    def __enter__(self) -> Transaction:
        """Begin both; see `AsyncOutbox.transaction`."""
        self._outbox.start()
        txn: Transaction = at_once(self._life.enter())
        return txn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """End both; see `AsyncOutbox.transaction`."""
        try:
            return at_once(self._life.leave(error))
        except OutboxOutcomeUnknown as unknown:
            resolve = unknown.resolver
            unknown.sync_resolver = lambda: at_once(resolve())
            raise
