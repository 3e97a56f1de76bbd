"""A coordinator hosted as in `tc_host`, with short cuts for check groups."""

from __future__ import annotations

from typing import Any, Final

from tc_host import TcHost

from pulsar_txn.ledger.machine import AskProducer, TellGroup
from pulsar_txn.tc import Check, CheckAnswered, CheckBegun, CheckOutcome, CheckReturned, GroupJoined, GroupLeft, records
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

GROUP: Final = Check("orders", b"order 7")
LONG: Final = 10**9
TOPIC: Final = Participant("t")


class CheckHost(TcHost):
    """With short cuts for groups."""

    def opened(self, check: Check = GROUP, **who: Any) -> TxnId:
        """A transaction with one participant and a check group, that does not time out for long."""
        txn_id = self.new(LONG, check=check, **who)
        self.add(txn_id, TOPIC, **who)
        return txn_id

    def join(self, group: str = "orders", principal: str | None = None, room: int = 1_000) -> None:
        """A member with much room."""
        self.ask(GroupJoined(group, principal, room))

    def leave(self, group: str = "orders", principal: str | None = None) -> None:
        self.ask(GroupLeft(group, principal))

    def questions(self, ms: int) -> list[AskProducer]:
        """Let time pass; the questions that left in it, which nobody begins to answer."""
        before = len(self.released)
        self.now_ms += ms
        self.expire()
        self.confirm()
        return [effect for effect in self.released[before:] if isinstance(effect, AskProducer)]

    def passes(self, ms: int) -> list[AskProducer]:
        """Let time pass; the questions that left in it. Members have begun to answer each, and are gone without an answer."""
        asked = self.questions(ms)
        for question in asked:
            self.begins(question)
            self.ask(CheckReturned(question.txn_id))
        return asked

    def begins(self, question: AskProducer) -> None:
        """A member begins to answer."""
        self.ask(CheckBegun(object(), question.txn_id, question.group, question.principal))
        self.confirm()

    def told(self) -> list[tuple[TxnId, TxnAction | None, int]]:
        """What groups were told, with the cause."""
        return [(each.txn_id, each.action, each.cause) for each in self.released if isinstance(each, TellGroup)]

    def answers_with(self, outcome: CheckOutcome, txn_id: TxnId, group: str = "orders", principal: str | None = None) -> Any:
        step = self.ask(CheckAnswered(txn_id, group, outcome, principal))
        self.confirm()
        return step

    def cause(self) -> int:
        """Who made the newest decision."""
        decoded = [self.tc.decode("log", data) for data in self.log]
        decisions = [
            record.cause
            for record in decoded
            if isinstance(record, records.Entry) and record.new_status in (TxnStatus.COMMITTING, TxnStatus.ABORTING)
        ]
        return decisions[-1]
