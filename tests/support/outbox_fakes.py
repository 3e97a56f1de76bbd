"""A coordinator with checks and prepared transactions in a few lines, and blocking and asyncio clients of it.

For tests of the outbox's own rules. What our broker and `pulsar-txn coordinator` do is in tests of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs

from pulsar_txn.client.errors import InvalidTransactionStatus, TransactionAborted, TransactionNotFound
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import TransactionState
from pulsar_txn.client.sync.blocking import Blocking
from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome
from pulsar_txn.client.txn.transactions import BeginsTransactions
from pulsar_txn.wire.ids import TxnId


@attrs.define
class Held:
    """What the coordinator has of one transaction."""

    txn_id: TxnId
    group: str
    data: bytes
    state: str = "OPEN"
    secret: bytes = b""


class FakeCoordinator:
    """`faults[point]` is called before `begin`, `prepare`, `commit`, `abort`; it may raise what a client raises."""

    def __init__(self) -> None:
        self.held: dict[TxnId, Held] = {}
        self.members: dict[str, list[Callable[[CheckQuestion], Any]]] = {}
        self.faults: dict[str, Callable[[], None]] = {}
        self.asked = 0
        self._numbers = itertools.count(1)

    def at(self, point: str) -> None:
        if point in self.faults:
            self.faults[point]()

    def begin(self, group: str, data: bytes) -> Held:
        self.at("begin")
        held = Held(TxnId(0, next(self._numbers)), group, data)
        self.held[held.txn_id] = held
        return held

    def prepare(self, txn_id: TxnId, secret: bytes) -> None:
        self.at("prepare")
        held = self.held[txn_id]
        if held.state != "OPEN":
            raise InvalidTransactionStatus(f"it is {held.state}", txn_id=txn_id)
        held.state, held.secret = "PREPARED", secret

    def end(self, txn_id: TxnId, outcome: str, secret: bytes | None = None) -> None:
        self.at("commit" if outcome == "COMMITTED" else "abort")
        held = self.held.get(txn_id)
        if held is None or (secret is not None and held.secret != secret):
            raise TransactionNotFound("it is not known", txn_id=txn_id)
        if held.state in ("COMMITTED", "ABORTED") and held.state != outcome:
            raise (TransactionAborted if outcome == "COMMITTED" else InvalidTransactionStatus)(f"it is {held.state}")
        held.state = outcome

    def questions(self) -> list[CheckQuestion]:
        """What it would ask now."""
        self.asked += 1
        return [
            CheckQuestion(each.txn_id, each.group, each.data, self.asked, 15, each.state == "PREPARED")
            for each in self.held.values()
            if each.state in ("OPEN", "PREPARED")
        ]

    def answered(self, question: CheckQuestion, outcome: LocalOutcome) -> None:
        held = self.held[question.txn_id]
        if held.state in ("OPEN", "PREPARED") and outcome is not LocalOutcome.UNKNOWN:
            held.state = "COMMITTED" if outcome is LocalOutcome.COMMIT else "ABORTED"

    def ask_all(self) -> None:
        """Ask the first member of each group, a blocking one."""
        for question in self.questions():
            for check in self.members.get(question.group, [])[:1]:
                self.answered(question, check(question))

    async def ask_all_async(self) -> None:
        for question in self.questions():
            for check in self.members.get(question.group, [])[:1]:
                self.answered(question, await check(question))

    def states(self) -> list[str]:
        return [each.state for each in self.held.values()]


class FakeTransaction:
    def __init__(self, coordinator: FakeCoordinator, txn_id: TxnId, secret: bytes | None = None) -> None:
        self._coordinator = coordinator
        self._secret = secret
        self.id = txn_id
        self.state = TransactionState.OPEN

    def prepare(self, *, secret: bytes) -> None:
        self._coordinator.prepare(self.id, secret)
        self.state = TransactionState.PREPARED

    def commit(self) -> None:
        self._coordinator.end(self.id, "COMMITTED", self._secret)
        self.state = TransactionState.COMMITTED

    def abort(self, *, timeout: float | None = None) -> None:
        try:
            self._coordinator.end(self.id, "ABORTED", self._secret)
        except InvalidTransactionStatus:
            self.state = TransactionState.COMMITTED
            raise
        self.state = TransactionState.ABORTED


class FakeBlock:
    def __init__(self, coordinator: FakeCoordinator, group: str, data: bytes) -> None:
        self._coordinator = coordinator
        self._group = group
        self._data = data

    def __enter__(self) -> FakeTransaction:
        held = self._coordinator.begin(self._group, self._data)
        self._txn = FakeTransaction(self._coordinator, held.txn_id)
        return self._txn

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        """As the client's block: it leaves alone what is prepared or ended."""
        if error is None and self._txn.state is TransactionState.OPEN:
            self._txn.commit()
        return False


class _Timed(BeginsTransactions):
    """The part of an AsyncClient that the outbox looks at: its core, and the clock of that."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._core: Any = self
        self.runtime = self
        self.wall_ms = now_ms


class _Membership:
    def __init__(self, members: list[Any], check: Any) -> None:
        members.append(check)
        self.close = lambda: members.remove(check)


class FakeClient(Blocking[Any]):
    """A blocking client."""

    def __init__(self, coordinator: FakeCoordinator, now_ms: Callable[[], int] = lambda: 1_000_000) -> None:
        super().__init__(None, _Timed(now_ms))  # type: ignore[arg-type]  # it has no loop
        self._coordinator = coordinator

    def transaction(self, *, check_group: str, check_data: bytes, **options: Any) -> FakeBlock:
        assert options["eager"]
        return FakeBlock(self._coordinator, check_group, check_data)

    def join_check_group(self, group: str, check: Any) -> Any:
        return _Membership(self._coordinator.members.setdefault(group, []), check)

    def attach_prepared(self, token: PreparedToken) -> FakeTransaction:
        return FakeTransaction(self._coordinator, token.txn_id, token.secret)


class _Awaited:
    """The methods of an object, as coroutine functions; its data as it is."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return found(*args, **options)

        return call


class _AsyncBlock:
    def __init__(self, block: FakeBlock) -> None:
        self._block = block

    async def __aenter__(self) -> Any:
        return _Awaited(self._block.__enter__())

    async def __aexit__(self, *exc: Any) -> bool:
        return self._block.__exit__(*exc)


class FakeAsyncClient(_Timed):
    """An asyncio client."""

    def __init__(self, coordinator: FakeCoordinator, now_ms: Callable[[], int] = lambda: 1_000_000) -> None:
        super().__init__(now_ms)
        self._client = FakeClient(coordinator, now_ms)

    def transaction(self, **options: Any) -> _AsyncBlock:
        return _AsyncBlock(self._client.transaction(**options))

    async def join_check_group(self, group: str, check: Any) -> Any:
        return _Awaited(self._client.join_check_group(group, check))

    def attach_prepared(self, token: PreparedToken) -> Any:
        return _Awaited(self._client.attach_prepared(token))


def answer_of_commit_is_lost(block: Any, *, comes_through: bool) -> None:
    """The COMMIT of a block that was entered fails, done or not; for blocks of both kinds."""
    port = block._life._block._port
    real = port.commit

    async def commit() -> None:
        if comes_through:
            await real()
        raise ConnectionResetError("lost")

    port.commit = commit
