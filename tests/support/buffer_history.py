"""Any history of one topic with a transaction buffer: clients, a coordinator, crashes; and what must become of each payload."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st

from pulsar_txn.rm_producer.testing import BufferHost, read_entry
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TXNS = [TxnId(most, least) for most in (0, 1) for least in range(4)]

OPS = st.one_of(
    st.just(("plain", None)),
    st.tuples(st.just("send"), st.sampled_from(TXNS)),
    st.tuples(st.sampled_from(["commit", "abort"]), st.sampled_from(TXNS)),
    st.tuples(st.sampled_from(["repeat", "forget"]), st.sampled_from(TXNS)),
    st.sampled_from([("confirm", None), ("snapshot", None)]),
    st.tuples(st.just("crash"), st.integers(0, 3)),
)


class History:
    """A coordinator and its clients around one topic; knows for each payload what must become of it."""

    def __init__(self, factory: Any) -> None:
        self.factory = factory
        self.outcomes = {}
        self.over = set()
        self.told = set()
        self.sent = {}
        self.sending = {}
        self.ending = {}
        self.receipted = set()
        self.seen = Counter()
        self.start(None)

    def start(self, disk):
        self.host = BufferHost(self.factory, disk)
        self.host.open_txns = {txn_id for txn_id in TXNS if txn_id not in self.outcomes}
        self.sending, self.ending = {}, {}
        for txn_id in sorted(set(self.outcomes) - self.over):
            self.end(txn_id)

    def low_watermark(self, most):
        return min((t.least for t in TXNS if t.most == most and t not in self.over), default=4) - 1

    def end(self, txn_id):
        token = self.host.end(txn_id, self.outcomes[txn_id], self.low_watermark(txn_id.most))
        self.ending[token] = txn_id
        self.told.add(txn_id)

    def do(self, op, argument):
        match op:
            case "plain":
                payload = f"plain {len(self.sent)}".encode()
                self.sent[payload] = None
                self.host.send_plain(payload)
            case "send":
                payload = f"{argument} {len(self.sent)}".encode()
                self.sent[payload] = argument
                self.sending[self.host.send(argument, payload)] = payload, argument in self.told
            case "commit" | "abort":
                self.outcomes.setdefault(argument, COMMIT if op == "commit" else ABORT)
                self.end(argument)
            case "repeat":
                if argument in self.outcomes:
                    self.end(argument)
            case "forget":  # it ends elsewhere, and this topic is never told
                if argument not in self.outcomes:
                    self.outcomes[argument] = ABORT
                    self.host.open_txns.discard(argument)
                    self.over.add(argument)
            case "confirm":
                self.host.confirm()
            case "snapshot":
                self.host.take_snapshot()
            case _:
                self.host.confirm() if argument == 3 else None
                self.start(self.host.crashed(argument))
        self.check()

    def check(self):
        replies = self.host.replies
        for token in [token for token in self.ending if token in replies]:
            assert replies[token].error is None
            self.over.add(self.ending.pop(token))
        for token in [token for token in self.sending if token in replies]:
            payload, late = self.sending.pop(token)
            if replies[token].error is None:
                assert not late, "a late write was accepted"
                self.receipted.add(payload)
            else:
                assert replies[token].error is ServerError.NotAllowedError
        readable = Counter(self.host.readable())
        assert not self.seen - readable, "what was seen is gone"
        assert all(self.sent[payload] is None or self.outcomes.get(self.sent[payload]) is COMMIT for payload in readable)
        self.seen = readable

    def finish(self):
        for txn_id in TXNS:
            self.do("abort", txn_id)
        for _ in range(2):
            self.host.settle()
            self.check()
            for most in (0, 1):
                self.outcomes[TxnId(most, 9)] = ABORT
                self.end(TxnId(most, 9))
        self.host.settle()
        payloads = [read_entry(data)[1] for log, _, data in self.host.journal if log == "topic"]
        visible = [p for p in payloads if p in self.sent and (self.sent[p] is None or self.outcomes[self.sent[p]] is COMMIT)]
        assert self.host.readable() == visible
        assert len(set(visible)) == len(visible), "doubled"
        mine = [[p for p in visible if self.sent[p] == txn_id] for txn_id in TXNS]
        assert mine == [[p for p in self.sent if p in each] for each in mine], "a transaction is out of order"
        assert {p for p in self.receipted if self.outcomes[self.sent[p]] is COMMIT} <= set(visible)
        assert self.host.buffer.stats().ongoing_txn_size == 0
