"""A coordinator beside stock participants, in one thread: clients, zombies, reloads and crashes in any order that a test says.

The coordinator is the real machine; participants are `stock_participants`; the driver of ends is a set of telegrams that a test
delivers one by one, twice, or late. `StockWorld.settle` lets everything come to rest, and `faults` says what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stock_participants import NOTHING, StockSubscription, StockTopic

from pulsar_txn.ledger.machine import AwaitOutcome, Outcome, Reply, Step, TellParticipant, WriteSnapshot
from pulsar_txn.tc import (
    AddParticipants,
    EndTxn,
    FencingCoordinator,
    Goodbye,
    LaneIds,
    NewTxn,
    ParticipantsDone,
    PulsarIds,
    TakeOver,
    Vanished,
)
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TOPICS = ("a", "b")
SUBSCRIPTION = Participant("a", "s")
ENDED = {TxnStatus.COMMITTED: COMMIT, TxnStatus.ABORTED: ABORT}


class Work:
    """A transaction as its client knows it. `asked`: the client has asked for its end, and sends nothing more."""

    def __init__(self, txn_id: TxnId) -> None:
        self.txn_id = txn_id
        self.registered: set[Participant] = set()
        self.sent: set[tuple[str, str]] = set()
        self.acked: set[int] = set()
        self.asked: TxnAction | None = None


class Client:
    """A process that may be paused, fenced or given up, and then wakes up. `is_given_up`: nobody counts on it any more."""

    def __init__(self, incarnation: str | None, identity: tuple[str, int] | None) -> None:
        self.incarnation = incarnation
        self.identity = identity
        self.works: list[Work] = []
        self.has_left = False
        self.is_given_up = False

    def unasked(self) -> list[Work]:
        """What it believes to be open."""
        return [work for work in self.works if work.asked is None]


class StockWorld:
    """The world. `mark`: the watermark that goes with an end, when it is not the coordinator's own."""

    def __init__(
        self,
        ids: LaneIds | PulsarIds | None = None,
        *,
        mark: Callable[[TellParticipant], int] = lambda tell: tell.low_watermark,
    ) -> None:
        self.ids = LaneIds() if ids is None else ids
        self.mark = mark
        self.now_ms = 1_000
        self.topics = {name: StockTopic() for name in TOPICS}
        self.subscription = StockSubscription()
        self.clients: list[Client] = []
        self.telegrams: dict[tuple[TxnId, Participant], TellParticipant] = {}
        self.untold: dict[TxnId, set[Participant]] = {}
        self.log: list[bytes] = []
        self.confirmed = 0
        self._held: list[tuple[int, Any]] = []
        self.answers: dict[int, Any] = {}
        self._tokens = 0
        self._values = 0
        self.given: dict[TxnId, Work] = {}
        self.participants: dict[TxnId, set[Participant]] = {}
        self.machine = self._fresh()

    def _fresh(self) -> FencingCoordinator:
        return FencingCoordinator(0, ids=self.ids)

    # ---- the coordinator and its disk

    def ask(self, request: Any, *, confirm: bool = True) -> Any:
        """The answer of the coordinator; None while it waits, a Refusal, or the value."""
        try:
            step = self.machine.decide(request, self.now_ms)
        except Refusal as refusal:
            return refusal
        self._carry_out(step)
        if confirm:
            self.confirm()
        return self.answers.get(getattr(request, "token", None), None)

    def _carry_out(self, step: Step[Any]) -> None:
        for name, record in (*step.records, *step.trailing):
            data = self.machine.encode(name, record)
            self.machine.apply(name, (0, len(self.log)), record)
            self.log.append(data)
        need = 0 if step.trailing and not step.records else len(self.log) - len(step.trailing)
        self._held += [(need, effect) for effect in step.effects]

    def confirm(self) -> None:
        """Everything is durable, and what waited for it leaves."""
        self.confirmed = len(self.log)
        held, self._held = self._held, []
        for _, effect in held:
            match effect:
                case Reply(token=token, value=value):
                    self.answers[token] = value
                case TellParticipant(txn_id=txn_id, participant=participant):
                    self.telegrams[txn_id, participant] = effect
                    self.untold.setdefault(txn_id, set()).add(participant)
                    self.participants.setdefault(txn_id, set()).add(participant)
                case _:
                    assert isinstance(effect, AwaitOutcome | Outcome | WriteSnapshot)

    def crash(self, keep: int | None = None) -> None:
        """The coordinator dies with a prefix of what was not durable, and recovers."""
        kept = max(self.confirmed, len(self.log) if keep is None else min(keep, len(self.log)))
        del self.log[kept:]
        self._held.clear()
        self.telegrams.clear()
        self.untold.clear()
        self.machine = self._fresh()
        for index, data in enumerate(self.log):
            self.machine.apply("log", (0, index), self.machine.decode("log", data))
        self._carry_out(self.machine.recovered(self.now_ms))
        self.confirm()

    def token(self) -> int:
        """A new one."""
        self._tokens += 1
        return self._tokens

    # ---- clients

    def client(self, incarnation: str | None, identity: tuple[str, int] | None = None) -> Client:
        """A process starts."""
        client = Client(incarnation, identity)
        self.clients.append(client)
        return client

    def begin(self, client: Client) -> Work | None:
        """Open a transaction; None when the client is fenced."""
        txn_id = self.ask(NewTxn(self.token(), 10**9, None, client.identity, client.incarnation))
        if not isinstance(txn_id, TxnId):
            return None
        work = self.given[txn_id] = Work(txn_id)
        client.works.append(work)
        return work

    def register(self, client: Client, work: Work, participant: Participant) -> bool:
        """Before the first message or acknowledgement."""
        if participant not in work.registered:
            refused = self.ask(AddParticipants(self.token(), work.txn_id, (participant,), None, client.identity))
            if isinstance(refused, Refusal):
                return False
            work.registered.add(participant)
        return True

    def send(self, client: Client, work: Work, topic: str) -> bool:
        """Send a message straight to the topic, which asks nobody."""
        if not self.register(client, work, Participant(topic)):
            return False
        self._values += 1
        value = f"v{self._values}"
        taken = self.topics[topic].send(work.txn_id, value)
        if taken and work.asked is None:
            work.sent.add((topic, value))
        return taken

    def ack(self, client: Client, work: Work, position: int) -> None:
        """Acknowledge a message of the subscription."""
        if self.register(client, work, SUBSCRIPTION) and self.subscription.ack(work.txn_id, position):
            work.acked.add(position)

    def end(self, client: Client, work: Work, action: TxnAction, *, confirm: bool = True) -> None:
        """Commit or abort. The client sends nothing for it from now on, whatever the answer is."""
        work.asked = action
        self.ask(EndTxn(self.token(), work.txn_id, action, None, client.identity), confirm=confirm)

    def goodbye(self, client: Client) -> None:
        """The process ends in order: what it has open is aborted, and it sends nothing any more."""
        client.has_left = True
        if client.incarnation is not None:
            self.ask(Goodbye(self.token(), client.incarnation))

    def lease_is_over(self, client: Client) -> None:
        """The coordinator gives a client up. The client need not know."""
        if client.incarnation is not None:
            client.is_given_up = True
            self.ask(Vanished(client.incarnation))

    def take_over(self, client: Client) -> None:
        """A newer epoch begins; older ones are given up. The answer may have to wait."""
        if client.identity is not None:
            self.ask(TakeOver(self.token(), client.identity, client.incarnation))
            for other in self.clients:
                if other.identity is not None and other.identity[0] == client.identity[0] and other.identity < client.identity:
                    other.is_given_up = True

    def time_out(self, work: Work) -> None:
        """The coordinator aborts a transaction by itself."""
        self.ask(EndTxn(self.token(), work.txn_id, ABORT, superuser=True))

    # ---- the driver of ends

    def deliver(self, key: tuple[TxnId, Participant], *, answered: bool = True) -> None:
        """One end reaches its participant; without an answer it is told again later."""
        tell = self.telegrams[key]
        self._tell(tell.txn_id, tell.participant, tell.action, self.mark(tell))
        if answered:
            del self.telegrams[key]
            untold = self.untold[tell.txn_id]
            untold.discard(tell.participant)
            if not untold:
                del self.untold[tell.txn_id]
                self.ask(ParticipantsDone(tell.txn_id))

    def _tell(self, txn_id: TxnId, participant: Participant, action: TxnAction, mark: int) -> None:
        target = self.subscription if participant.subscription is not None else self.topics[participant.topic]
        target.end(txn_id, action, mark)

    def repeat(self, txn_id: TxnId, *, with_mark: bool = False) -> None:
        """Tell the logged outcome of what has ended once more; without a watermark, which could cover others."""
        status = self.machine.status(txn_id)
        if status in ENDED:
            for participant in self.participants.get(txn_id, ()):
                self._tell(txn_id, participant, ENDED[status], txn_id.least if with_mark else NOTHING)

    # ---- the end

    def settle(self) -> None:
        """Everybody stops; what is open is aborted, every end is delivered, and each is repeated once."""
        self.confirm()
        for info in self.machine.transactions():
            if info.status is TxnStatus.OPEN:
                self.time_out(self.given.get(info.txn_id) or Work(info.txn_id))
        self.machine.check_invariants()
        while self.telegrams:
            self.deliver(next(iter(self.telegrams)))
        for txn_id in self.given:
            self.repeat(txn_id)

    def faults(self) -> list[str]:
        """What readers, or those who wait, would complain about."""
        found = [f"{name} hangs" for name, topic in self.topics.items() if topic.is_hanging]
        found += ["the subscription hangs"] if self.subscription.is_hanging else []
        seen = {(name, *entry) for name, topic in self.topics.items() for entry in topic.visible()}
        for txn_id, work in self.given.items():
            status = self.machine.status(txn_id)
            mine = {(name, txn_id, value) for name, value in work.sent}
            if status is TxnStatus.COMMITTED:
                found += [f"committed and hidden: {each}" for each in sorted(mine - seen)]
                found += [
                    f"committed and not consumed: {each}" for each in work.acked if self.subscription.acked.get(each) != txn_id
                ]
            else:
                found += [f"{status} and shown: {each}" for each in sorted(seen) if each[1] == txn_id]
                found += [f"{status} and consumed: {each}" for each, by in self.subscription.acked.items() if by == txn_id]
        return found
