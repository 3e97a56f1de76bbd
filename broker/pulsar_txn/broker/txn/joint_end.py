"""The end of several transactions by one record, as the client that asked for it sees it: one answer, once all are over."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnId

from .host import Answer


class JointEnd:
    """Answers for a group. `decided` is the token of the request that decides it; then the end of each member is joined.

    `join(txn_id, answer)` asks for an end that is decided already. When the coordinator fails meanwhile, the answer is
    retriable, and the repeat finds the decision.
    """

    def __init__(self, members: Collection[TxnId], join: Callable[[TxnId, Answer], None], answer: Answer) -> None:
        self._members = members
        self._join = join
        self._answer = answer
        self._left = len(members)
        self._failed = False

    def decided(self, value: Any, error: ServerError | None, message: str) -> None:
        """The decision is durable, and one of the members is over; or the group was refused."""
        if error is not None:
            self._answer(value, error, message)
            return
        for txn_id in self._members:
            self._join(txn_id, self._over)

    def _over(self, value: Any, error: ServerError | None, message: str) -> None:
        self._left -= 1
        if self._failed:
            return
        if error not in (None, ServerError.TransactionNotFound):  # not found: over, and forgotten since
            self._failed = True
            self._answer(value, error, message)
        elif not self._left:
            self._answer(None, None, "")
