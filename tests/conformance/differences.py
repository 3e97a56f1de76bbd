"""Where our broker and stock Pulsar are expected to differ: listed by row, with what says so.

A story that meets a difference says what it saw with the fixture `observed(pulsar, row, name, actual)`, which fails the
story when the server was expected to do something else. No story depends on the kind of server in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import targets

Observed = Callable[[object, int, str, str], None]
"""The fixture `observed`: server, row, name of the difference, and what was seen."""


@attrs.frozen
class Difference:
    """What the same program sees on our broker and on stock of two lines, and which text or issue says why.

    Several values: what timing makes possible.
    """

    row: int
    name: str
    ours: tuple[str, ...]
    stock_4_0: tuple[str, ...]
    stock_4_2: tuple[str, ...]
    source: str

    def on(self, label: str) -> tuple[str, ...]:
        """What may be seen on the server with this label."""
        if label == "ours":
            return self.ours
        return self.stock_4_0 if label.startswith("stock 4.0") else self.stock_4_2


def _difference(
    row: int,
    name: str,
    *,
    ours: str | tuple[str, ...],
    stock: str | tuple[str, ...] = (),
    stock_4_0: str | tuple[str, ...] = (),
    stock_4_2: str | tuple[str, ...] = (),
    source: str,
) -> Difference:
    return Difference(row, name, _several(ours), _several(stock_4_0 or stock), _several(stock_4_2 or stock), source)


def _several(values: str | tuple[str, ...]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values


_LISTED: Final = (
    _difference(
        0,
        "a transactional send to a topic that keeps nothing",
        ours="NotAllowedError",
        stock="OperationTimeout",
        source="stock-pulsar-defects.md, defect 4: stock closes the connection, again at every retry",
    ),
    _difference(
        0,
        "an aborted message whose transaction stands in its command only",
        ours="hidden",
        stock="delivered",
        source="stock-pulsar-defects.md, defect 3: the Go client sends so (apache/pulsar-client-go#1498)",
    ),
    _difference(
        0,
        "resolve() of a transaction that was committed elsewhere",
        ours="COMMITTED",
        stock="UNKNOWN",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended (apache/pulsar#19744)",
    ),
    _difference(
        30,
        "acknowledgement of a position behind the last message",
        ours="NotAllowedError",
        stock="accepted",
        source="pulsar-transactions.md section 5.4: the checks C1 to C4 look for earlier acknowledgements, not for the message",
    ),
    _difference(
        33,
        "state of a transaction aborted elsewhere, behind commit()",
        ours="ABORTED",
        stock="UNKNOWN",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744): whoever ended it may have committed it",
    ),
    _difference(
        123,
        "state of a transaction aborted by the administration, behind commit()",
        ours="ABORTED",
        stock="UNKNOWN",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744): whoever ended it may have committed it",
    ),
    _difference(
        33,
        "state of a transaction committed elsewhere, behind commit()",
        ours="COMMITTED",
        stock="UNKNOWN",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744); style-and-client-api.md section 9.6",
    ),
    _difference(
        33,
        "state of a transaction committed elsewhere, behind abort()",
        ours="ERROR",
        stock="ABORTED",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744); pulsar-transactions.md section 6.2: the state ERROR",
    ),
    _difference(
        57,
        "last message's id over HTTP, beside an open transaction",
        ours="the last that may be read",
        stock="the last of the log",
        source="pulsar-transactions.md section 4.9: only GET_LAST_MESSAGE_ID asks for what may be dispatched",
    ),
    _difference(
        96,
        "a commit repeated after its end",
        ours="COMMITTED",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended (apache/pulsar#19744)",
    ),
    _difference(
        96,
        "an abort of what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744); pulsar-transactions.md section 13, retry of END_TXN",
    ),
    _difference(
        83,
        "state of the buffer of a topic without transactions",
        ours="Ready",
        stock="NoSnapshot",
        source="pulsar-transactions.md section 4.2: ours needs no snapshot before its first transaction",
    ),
    _difference(
        86,
        "a client ends a transaction on a topic behind the coordinator's back",
        ours="NotAllowedError",
        stock="done",
        source="pulsar-transactions.md section 1.8: stock asks for a superuser, and only where authentication is on",
    ),
    _difference(
        86,
        "a client ends a transaction on a subscription behind the coordinator's back",
        ours="NotAllowedError",
        stock="done",
        source="pulsar-transactions.md section 1.8: stock asks for a superuser, and only where authentication is on",
    ),
    _difference(
        90,
        "a send of an ended transaction to a topic that it never registered",
        ours="NotAllowedError",
        stock="stored",
        source="pulsar-transactions.md section 13: stock takes any id, and gets rid of it by the low watermark (4.7)",
    ),
    _difference(
        90,
        "an ack of an ended transaction on a subscription that it never registered",
        ours="NotAllowedError",
        stock="pending",
        source="pulsar-transactions.md section 13, low watermark in PA acks: refuse acks of finished transactions",
    ),
    _difference(
        97,
        "a transaction above the limit of its coordinator",
        ours="TooManyRequests",
        stock="OperationTimeout",
        source="stock-pulsar-defects.md, defect 6: over the limit stock never answers (apache/pulsar#15133)",
    ),
    _difference(
        99,
        "the rest of a batch behind a committed cumulative ack and a reload",
        ours="comes again",
        stock="is lost",
        source="docs/stock-pulsar.md: stock's log of acknowledgements keeps of a cumulative one no more than the entry",
    ),
    _difference(
        104,
        "an index of a batch that another transaction holds as a whole",
        ours="TransactionConflict",
        stock="accepted",
        source="stock-pulsar-defects.md, defect 2; pulsar-transactions.md section 5.4, C3 and C4",
    ),
    _difference(
        113,
        "a topic added to what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a topic added to what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a subscription added to what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a subscription added to what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6: a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a commit of what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744); pulsar-transactions.md section 13, retry of END_TXN",
    ),
    _difference(
        113,
        "an abort repeated after its end",
        ours="ABORTED",
        stock="TransactionNotFound",
        source="stock-pulsar-defects.md, defect 6 (apache/pulsar#19744); pulsar-transactions.md section 13, retry of END_TXN",
    ),
    _difference(
        123,
        "HTTP status of a transaction with a topic that there is not",
        ours="200",
        stock="500",
        source="stock-pulsar-defects.md, defect 5: 500 with a stack trace; the list of slow transactions has it, too",
    ),
    _difference(
        123,
        "HTTP status of the abort of a transaction that there is not",
        ours="404",
        stock="500",
        source="stock-pulsar-defects.md, defect 5",
    ),
    _difference(
        123,
        "HTTP status of the pending acknowledgements of a subscription that there is not",
        ours="404",
        stock="500",
        source="stock-pulsar-defects.md, defect 5",
    ),
    _difference(
        123,
        "HTTP status of the internal stats of a transaction buffer",
        ours="405",
        stock="200",
        source="pulsar-transactions.md section 4.6: stock keeps snapshots in a topic, ours in its store (section 7.1: 405)",
    ),
    _difference(
        123,
        "open transactions that a subscription counts beside one with a cumulative acknowledgement",
        ours="1",
        stock="0",
        source="pulsar-transactions.md section 7.1: stock counts individual acknowledgements only",
    ),
    _difference(
        123,
        "state of an index that was committed, in a batch that is not done",
        ours="MarkDelete",
        stock="PendingAck",
        source="pulsar-transactions.md section 5.3: stock forgets pending indexes when their whole batch is acknowledged",
    ),
    _difference(
        124,
        "metric pulsar_txn_execution_latency_le_10",
        ours="absent",
        stock="there",
        source="pulsar-transactions.md section 7.3; ours has no histograms on its page; the client measures its transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tb_client_commit_latency_count",
        ours="absent",
        stock="there",
        source="pulsar-transactions.md section 7.3; ours has no histograms on its page; the client measures its transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tp_commit_latency_count",
        ours="absent",
        stock="there",
        source="pulsar-transactions.md section 7.3; ours has no histograms on its page; the client measures its transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tc_bufferedwriter_batch_records_count",
        ours="absent",
        stock="there",
        source="pulsar-transactions.md section 7.3; ours has no batches of records, the journal groups their syncs",
    ),
    _difference(
        124,
        "metric pulsar_txn_pending_ack_store_bufferedwriter_batch_records_count",
        ours="absent",
        stock="there",
        source="pulsar-transactions.md section 7.3; ours has no batches of records, the journal groups their syncs",
    ),
)

DIFFERENCES: Final = {(each.row, each.name): each for each in _LISTED}


def allowed(server: object, row: int, name: str) -> tuple[str, ...]:
    """Everything that may be seen on this server (a Target, or a server of the test's own), by the table."""
    label = targets.label_of(server)
    if label is None:
        raise TypeError(f"{server!r} is no server")
    return DIFFERENCES[row, name].on(label)
