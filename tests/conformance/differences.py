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
        stock="TransactionAborted",
        source="docs/stock-pulsar.md: sends to non-persistent topics; stock closes the connection",
    ),
    _difference(
        0,
        "an aborted message whose transaction is in its command only",
        ours="hidden",
        stock="delivered",
        source="docs/stock-pulsar.md: the Go client sends so (apache/pulsar-client-go#1498)",
    ),
    _difference(
        0,
        "an end of a group of transactions",
        ours="all of them",
        stock="the first alone",
        source="docs/stock-pulsar.md: what is not checked; stock passes over the fields of a group",
    ),
    _difference(
        0,
        "resolve() of a transaction that was committed elsewhere",
        ours="COMMITTED",
        stock="UNKNOWN",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        30,
        "acknowledgement of a position after the last message",
        ours="NotAllowedError",
        stock="accepted",
        source="docs/stock-pulsar.md: what is not checked; the checks look for earlier acknowledgements, not for the message",
    ),
    _difference(
        33,
        "state of a transaction aborted elsewhere, after commit()",
        ours="ABORTED",
        stock="UNKNOWN",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten, and another client may have committed it",
    ),
    _difference(
        123,
        "state of a transaction aborted by the administration, after commit()",
        ours="ABORTED",
        stock="UNKNOWN",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten, and another client may have committed it",
    ),
    _difference(
        33,
        "state of a transaction committed elsewhere, after commit()",
        ours="COMMITTED",
        stock="UNKNOWN",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten; docs/errors.md, CommitOutcomeUnknown",
    ),
    _difference(
        33,
        "state of a transaction committed elsewhere, after abort()",
        ours="COMMITTED",
        stock="UNKNOWN",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten; docs/errors.md, TransactionNotFound",
    ),
    _difference(
        57,
        "last message's id over HTTP, beside an open transaction",
        ours="the last that may be read",
        stock="the last of the log",
        source="docs/stock-pulsar.md: what is reported otherwise; only GET_LAST_MESSAGE_ID asks for what may be dispatched",
    ),
    _difference(
        96,
        "a commit repeated after its end",
        ours="COMMITTED",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        96,
        "an abort of what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten, so a repeated END_TXN is not found",
    ),
    _difference(
        83,
        "state of the buffer of a topic without transactions",
        ours="Ready",
        stock="NoSnapshot",
        source="docs/stock-pulsar.md: what is reported otherwise; ours needs no snapshot before its first transaction",
    ),
    _difference(
        86,
        "a client ends a transaction on a topic without the coordinator",
        ours="NotAllowedError",
        stock="done",
        source="docs/stock-pulsar.md: what is not checked; stock asks for a superuser, and only where authentication is on",
    ),
    _difference(
        86,
        "a client ends a transaction on a subscription without the coordinator",
        ours="NotAllowedError",
        stock="done",
        source="docs/stock-pulsar.md: what is not checked; stock asks for a superuser, and only where authentication is on",
    ),
    _difference(
        90,
        "a send of an ended transaction to a topic that it never registered",
        ours="NotAllowedError",
        stock="stored",
        source="docs/stock-pulsar.md: what is not checked; stock takes any id, and gets rid of it by the low watermark",
    ),
    _difference(
        90,
        "an ack of an ended transaction on a subscription that it never registered",
        ours="NotAllowedError",
        stock="pending",
        source="docs/stock-pulsar.md: what is not checked; ours refuses acknowledgements of ended transactions",
    ),
    _difference(
        97,
        "a transaction above the limit of its coordinator",
        ours="TooManyRequests",
        stock="OperationTimeout",
        source="apache/pulsar#15133 (PIP-154): over the limit stock never answers",
    ),
    _difference(
        99,
        "the rest of a batch after a committed cumulative ack and a reload",
        ours="comes again",
        stock="is lost",
        source="docs/stock-pulsar.md: stock's log of acknowledgements keeps of a cumulative one no more than the entry",
    ),
    _difference(
        104,
        "an index of a batch that another transaction holds as a whole",
        ours="TransactionConflict",
        stock="accepted",
        source="docs/stock-pulsar.md: a batch can be acknowledged twice",
    ),
    _difference(
        113,
        "a topic added to what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a topic added to what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a subscription added to what was committed",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a subscription added to what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): a coordinator forgets a transaction once it has ended",
    ),
    _difference(
        113,
        "a commit of what was aborted",
        ours="InvalidTransactionStatus",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten, so a repeated END_TXN is not found",
    ),
    _difference(
        113,
        "an abort repeated after its end",
        ours="ABORTED",
        stock="TransactionNotFound",
        source="apache/pulsar#19744 (PIP-254): ended transactions are forgotten, so a repeated END_TXN is not found",
    ),
    _difference(
        123,
        "HTTP status of a transaction with a topic that there is not",
        ours="200",
        stock="500",
        source="docs/stock-pulsar.md: administration answers 500, with a stack trace; also the list of slow transactions",
    ),
    _difference(
        123,
        "HTTP status of the abort of a transaction that there is not",
        ours="404",
        stock="500",
        source="docs/stock-pulsar.md: administration answers 500",
    ),
    _difference(
        123,
        "HTTP status of the pending acknowledgements of a subscription that there is not",
        ours="404",
        stock="500",
        source="docs/stock-pulsar.md: administration answers 500",
    ),
    _difference(
        123,
        "HTTP status of the internal stats of a transaction buffer",
        ours="405",
        stock="200",
        source="apache/pulsar#16913 (PIP-196): stock keeps snapshots in system topics, ours in its store, so 405",
    ),
    _difference(
        123,
        "open transactions that a subscription counts beside one with a cumulative acknowledgement",
        ours="1",
        stock="0",
        source="docs/stock-pulsar.md: what is reported otherwise; stock counts individual acknowledgements only",
    ),
    _difference(
        123,
        "state of an index that was committed, in a batch that is not done",
        ours="MarkDelete",
        stock="PendingAck",
        source="docs/stock-pulsar.md: what is reported otherwise; pending indexes are kept until their whole batch is done",
    ),
    _difference(
        124,
        "metric pulsar_txn_execution_latency_le_10",
        ours="absent",
        stock="there",
        source="docs/stock-pulsar.md: what is reported otherwise; ours has no histograms, the client measures transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tb_client_commit_latency_count",
        ours="absent",
        stock="there",
        source="docs/stock-pulsar.md: what is reported otherwise; ours has no histograms, the client measures transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tp_commit_latency_count",
        ours="absent",
        stock="there",
        source="docs/stock-pulsar.md: what is reported otherwise; ours has no histograms, the client measures transactions",
    ),
    _difference(
        124,
        "metric pulsar_txn_tc_bufferedwriter_batch_records_count",
        ours="absent",
        stock="there",
        source="apache/pulsar#15370 (PIP-160); ours has no batches of records, the journal groups their syncs",
    ),
    _difference(
        124,
        "metric pulsar_txn_pending_ack_store_bufferedwriter_batch_records_count",
        ours="absent",
        stock="there",
        source="apache/pulsar#15370 (PIP-160); ours has no batches of records, the journal groups their syncs",
    ),
)

DIFFERENCES: Final = {(each.row, each.name): each for each in _LISTED}


def allowed(server: object, row: int, name: str) -> tuple[str, ...]:
    """Everything that may be seen on this server (a Target, or a server of the test's own), by the table."""
    label = targets.label_of(server)
    if label is None:
        raise TypeError(f"{server!r} is no server")
    return DIFFERENCES[row, name].on(label)
