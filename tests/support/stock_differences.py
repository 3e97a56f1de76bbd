"""Where our broker and stock Pulsar are expected to differ: one table, by name, with what says so.

A test that meets a difference asks `expected(pulsar, name)`; nothing else in the tests of transactions depends on the
kind of server, but for what timing makes possible on stock only.
"""

from __future__ import annotations

from typing import Final

import attrs
from targets import Target


@attrs.frozen
class Difference:
    """What the same program sees on our broker and on stock 4.0.8 and 4.2.4, and which text says why."""

    ours: str
    stock: str
    source: str


DIFFERENCES: Final = {
    "a commit repeated after its end": Difference(
        ours="COMMITTED",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended",
    ),
    "an abort of what was committed": Difference(
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6; our outcomes are a window, architecture.md section 3",
    ),
    "an index of a batch that another transaction holds as a whole": Difference(
        ours="TransactionConflict",
        stock="accepted",
        source="stock-pulsar-defects.md, defect 2; pulsar-transactions.md section 5.4, C3 and C4",
    ),
    "a transactional send to a topic that keeps nothing": Difference(
        ours="NotAllowedError",
        stock="OperationTimeout",
        source="stock-pulsar-defects.md, defect 4: stock closes the connection, again at every retry",
    ),
}


def expected(pulsar: Target, name: str) -> str:
    """What this server does, by the table."""
    difference = DIFFERENCES[name]
    return difference.ours if pulsar.is_ours else difference.stock
