"""What a topic and a subscription of stock Pulsar do with transactions of a coordinator that they do not know, as a model.

Seen on 4.0.8 and 4.2.4: they keep one low watermark per upper id bits, in memory only, and abort what is open up to it; a
message of a transaction that was ended is let in when the watermark is gone; an end may be repeated any number of times; and
they believe every outcome, also a second one.
"""

from __future__ import annotations

from pulsar_txn.wire.ids import TxnAction, TxnId

NOTHING = -1
"""The watermark that covers nothing."""


class StockTopic:
    """A topic partition with its transaction buffer. `entries`: every message that was let in."""

    def __init__(self) -> None:
        self.entries: list[tuple[TxnId, str]] = []
        self.ongoing: dict[TxnId, None] = {}
        self.aborted: set[TxnId] = set()
        self.marks: dict[int, int] = {}

    def send(self, txn_id: TxnId, value: str) -> bool:
        """Let a message in, unless the watermark says that its transaction has ended."""
        if self.marks.get(txn_id.most, NOTHING) >= txn_id.least:
            return False
        self.entries.append((txn_id, value))
        if txn_id not in self.aborted:
            self.ongoing[txn_id] = None
        return True

    def end(self, txn_id: TxnId, action: TxnAction, mark: int) -> None:
        """END_TXN_ON_PARTITION: always "ok"."""
        self.ongoing.pop(txn_id, None)
        if action is TxnAction.ABORT:
            self.aborted.add(txn_id)
        self.marks[txn_id.most] = max(mark, self.marks.get(txn_id.most, NOTHING))
        for other in [each for each in self.ongoing if each.most == txn_id.most and each.least <= mark]:
            del self.ongoing[other]
            self.aborted.add(other)

    def reload(self) -> None:
        """The topic is unloaded and loaded again: its log says everything but the watermarks."""
        self.marks.clear()

    @property
    def is_hanging(self) -> bool:
        """Whether readers wait for a transaction."""
        return bool(self.ongoing)

    def visible(self) -> list[tuple[TxnId, str]]:
        """What a reader of the whole topic gets, up to the oldest transaction that is ongoing."""
        seen = []
        for txn_id, value in self.entries:
            if txn_id in self.ongoing:
                break
            if txn_id not in self.aborted:
                seen.append((txn_id, value))
        return seen


class StockSubscription:
    """A subscription with its pending acks, on individual acknowledgements. `acked`: what is consumed for good."""

    def __init__(self) -> None:
        self.pending: dict[TxnId, set[int]] = {}
        self.acked: dict[int, TxnId] = {}
        self.marks: dict[int, int] = {}

    def ack(self, txn_id: TxnId, position: int) -> bool:
        """Acknowledge in a transaction; a conflict is refused. The watermark refuses nothing here."""
        if position in self.acked or any(position in held for held in self.pending.values()):
            return False
        self.pending.setdefault(txn_id, set()).add(position)
        return True

    def end(self, txn_id: TxnId, action: TxnAction, mark: int) -> None:
        """END_TXN_ON_SUBSCRIPTION: always "ok". The watermark aborts what it covers, the oldest first."""
        held = self.pending.pop(txn_id, set())
        if action is TxnAction.COMMIT:
            self.acked |= dict.fromkeys(held, txn_id)
        self.marks[txn_id.most] = max(mark, self.marks.get(txn_id.most, NOTHING))
        while self.pending:
            oldest = next(iter(self.pending))
            if oldest.most != txn_id.most or oldest.least > mark:
                return
            del self.pending[oldest]

    def reload(self) -> None:
        """The topic is loaded again."""
        self.marks.clear()

    @property
    def is_hanging(self) -> bool:
        """Whether messages are kept back by a transaction."""
        return bool(self.pending)
