"""What a history says about one transaction: whose it is, what was asked for in it, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from history_reader import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from history_reader import Op

Incarnation = tuple[str, int]  # transactional id, epoch


class Txn:
    """What the history says about one transaction."""

    __slots__ = (
        "aborted",
        "aborts",
        "acks",
        "begin",
        "client_gone_ns",
        "commits",
        "committed",
        "fenced",
        "last_ns",
        "name",
        "others_ns",
        "prepares",
        "sends",
        "statuses",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin: Op | None = None
        self.commits: list[Op] = []
        self.aborts: list[Op] = []
        self.prepares: list[Op] = []
        self.statuses: list[Op] = []
        self.sends: list[Op] = []
        self.acks: list[Op] = []
        self.committed: Op | None = None  # the earliest answer that says so
        self.aborted: Op | None = None
        self.last_ns = 0  # when the client last did something in it
        self.client_gone_ns: int = NEVER  # since when somebody else may end it, because its client is gone or sleeps
        self.others_ns: int = NEVER  # since when a successor, or the check group for which it was prepared, may end it
        self.fenced: Op | None = None  # the earliest answered open of a successor that did not spare it

    def ops(self) -> Iterator[Op]:
        """All operations of the transaction."""
        if self.begin is not None:
            yield self.begin
        for ops in (self.sends, self.acks, self.prepares, self.commits, self.aborts, self.statuses):
            yield from ops

    @property
    def incarnation(self) -> Incarnation | None:
        """Whose transaction it is; None without a transactional id."""
        kind, name, epoch = ("", "", 0) if self.begin is None else self.begin.value.get("identity", ("", "", 0))
        return (name, epoch) if kind == "transactional_id" else None

    def may_be_prepared(self, moment_ns: int = NEVER) -> bool:
        """Whether it may have been prepared by a moment."""
        return any(op.type != "fail" and op.start <= moment_ns for op in self.prepares)

    def shows_abort(self) -> tuple[Op | None, ...]:
        """The operations that say together that it is aborted."""
        return (self.begin, self.aborted) if self.aborted is not None and self.aborted is self.fenced else (self.aborted,)

    @property
    def timeout_ms(self) -> int | None:
        """The timeout given at the start; None when the history does not have it."""
        return None if self.begin is None else self.begin.value.get("timeout_ms")

    def others_end_ns(self) -> int:
        """The first moment at which it may end unasked: its timeout, when its client goes, or when others come."""
        if self.begin is None or self.timeout_ms is None:
            return 0  # it may have timed out at any time
        return min(self.client_gone_ns, self.others_ns, self.begin.start + self.timeout_ms * 1_000_000)

    def end_begins_ns(self) -> int:
        """The first moment at which the transaction may end: its first end request, or what ends it unasked."""
        return min([self.others_end_ns(), *(op.start for op in (*self.commits, *self.aborts))])


def decide(txn: Txn, successor: Op | None) -> None:
    """Note how a transaction ended: by the answers, or because a successor has taken over."""
    if successor is not None and not txn.may_be_prepared(successor.end):
        txn.fenced = successor
    committed = [op for op in txn.commits if op.type == "ok"]
    committed += [op for op in txn.aborts if op.type == "fail"]
    committed += [op for op in txn.statuses if op.type == "ok" and op.value["status"] == "committed"]
    aborted = [op for op in txn.aborts if op.type == "ok"]
    aborted += [op for op in txn.commits if op.type == "fail"]
    aborted += [op for op in txn.statuses if op.type == "ok" and op.value["status"] == "aborted"]
    txn.committed = min(committed, key=_end, default=None)
    txn.aborted = min(aborted, key=_end, default=None)
    if txn.fenced is not None and txn.committed is None and all(op.start > txn.fenced.end for op in txn.commits):
        txn.aborted = txn.aborted or txn.fenced
    used = [op for op in (txn.begin, *txn.sends, *txn.acks, *txn.prepares) if op is not None]
    txn.last_ns = max((op.start if op.end == NEVER else op.end for op in used), default=0)


def _end(op: Op) -> int:
    return op.end
