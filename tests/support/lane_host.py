"""A coordinator that gives lanes, hosted as in `tc_host`, with short cuts for its clients."""

from __future__ import annotations

from typing import Any

from insides import lanes_of
from tc_host import TcHost

from pulsar_txn.tc import FencingCoordinator, Goodbye, LaneIds, Renew, TakeOver, TransactionCoordinator, Vanished
from pulsar_txn.tc.ids import lane_of
from pulsar_txn.tc.lane_table import LaneState
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

TOPIC = Participant("t")


class LaneHost(TcHost):
    """The host of the coordinator's tests, with lanes. `policy`: options of `LaneIds`."""

    def __init__(self, tc_id: int = 3, *, policy: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(tc_id, policy=policy or {}, **options)

    def fresh(self) -> TransactionCoordinator:
        options = dict(self.options)
        return FencingCoordinator(self.tc_id, ids=LaneIds(**options.pop("policy")), **options)

    def opened(self, incarnation: str | None = "i", **who: Any) -> TxnId:
        """A transaction with one participant."""
        txn_id = self.new(incarnation=incarnation, **who)
        who.pop("timeout_ms", None)
        self.add(txn_id, TOPIC, **who)
        return txn_id

    def finished(self, incarnation: str | None = "i", action: TxnAction = TxnAction.COMMIT, **who: Any) -> TxnId:
        """A transaction that all participants hold the outcome of."""
        txn_id = self.opened(incarnation, **who)
        self.end(txn_id, action, **who)
        self.done(txn_id)
        self.confirm()
        return txn_id

    def renew(self, incarnation: str = "i", principal: str | None = None) -> bool:
        token = object()
        written = len(self.log)
        self.ask(Renew(token, incarnation, principal))
        assert len(self.log) == written, "a renewal is no record"
        self.confirm()
        answer: bool = self.answers[token]
        return answer

    def goodbye(self, incarnation: str = "i", principal: str | None = None) -> None:
        token = object()
        self.ask(Goodbye(token, incarnation, principal))
        self.confirm()
        assert self.answers[token] is None

    def vanish(self, incarnation: str = "i", principal: str | None = None) -> None:
        self.ask(Vanished(incarnation, principal))
        self.expire()
        self.confirm()

    def take_over(self, epoch: int, name: str = "app", incarnation: str | None = None) -> object:
        """Ask once; the token."""
        token = object()
        self.ask(TakeOver(token, (name, epoch), incarnation))
        self.confirm()
        return token

    def lane(self, txn_id: TxnId) -> LaneState:
        """The state of a transaction's lane."""
        state: LaneState = lanes_of(self.tc).state(lane_of(txn_id.most))
        return state
