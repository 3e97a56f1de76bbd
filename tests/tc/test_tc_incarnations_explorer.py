"""Services beside one cluster, whose logs are lost, restored, rolled back and copied: no id is given twice, no end is changed.

Each service is the real machine; participants are `stock_participants`. The cluster keeps the claims: numbers of lives, and a
register for each store. A register moves by compare-and-set, and an end leaves only after the register has come as far as its
decision. What is HELD an administrator decides in the end, as the participants were told.

The same walks without a new number for each life, and without the comparison, show the faults that these are for.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from beside_stock import ABORT, COMMIT, TOPICS, Client, StockWorld, Work
from stock_participants import StockSubscription, StockTopic

from pulsar_txn.tc import BeginIncarnation, EndTxn, FencingCoordinator, LaneIds
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.log_incarnations import FIRST_SERVICE
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId, TxnStatus

FAR_MS = 10**12


class Cluster:
    """What all services have in common. `told`: every end that a participant was told."""

    def __init__(self) -> None:
        self.topics = {name: StockTopic() for name in TOPICS}
        self.subscription = StockSubscription()
        self.services: set[int] = set()
        self.registers: dict[str, tuple[int, Position, int]] = {}
        self.given: dict[TxnId, Work] = {}
        self.twice: list[TxnId] = []
        self.told: dict[TxnId, set[TxnAction]] = {}
        self.promised: dict[TxnId, Work] = {}


class Service(StockWorld):
    """One process with a log. `draws`: each life has a number of its own; `compares`: the register is looked at."""

    def __init__(
        self, cluster: Cluster, rng: random.Random, store: str, log: list[bytes], *, draws: bool = True, compares: bool = True
    ) -> None:
        self.cluster, self.rng, self.store, self.draws, self.compares = cluster, rng, store, draws, compares
        self.is_fenced = False
        self.version = -1
        super().__init__(LaneIds())
        self.topics, self.subscription, self.given = cluster.topics, cluster.subscription, cluster.given
        self.log, self.confirmed = list(log), len(log)
        self._restart()

    def _fresh(self) -> FencingCoordinator:
        return FencingCoordinator(0, ids=self.ids, has_incarnations=self.draws)

    def crash(self, keep: int | None = None) -> None:
        kept = max(self.confirmed, len(self.log) if keep is None else min(keep, len(self.log)))
        del self.log[kept:]
        self._restart()

    def _restart(self) -> None:
        self._held.clear()
        self.telegrams.clear()
        self.untold.clear()
        self.machine = self._fresh()
        for index, data in enumerate(self.log):
            self.machine.apply("log", (0, index), self.machine.decode("log", data))
        self.is_fenced, self.version = False, self._register()[2]
        self._carry_out(self.machine.recovered(self.now_ms))
        if self.draws:
            self._begin_life()
        self.confirm()

    def _register(self) -> tuple[int, Position, int]:
        return self.cluster.registers.get(self.store, (0, (-1, -1), -1))

    def _begin_life(self) -> None:
        service, position, version = self._register()
        is_lost = self.compares and version >= 0 and not self.machine.holds(service, position)
        hold = tuple(self.machine.unfinished()) if is_lost else ()
        while True:
            number = FIRST_SERVICE + self.rng.randrange(1 << 6)  # few, so they meet
            if number not in self.cluster.services:
                break
        self.cluster.services.add(number)
        self._carry_out(self.machine.decide(BeginIncarnation(self.token(), number, hold), self.now_ms))

    def confirm(self) -> None:
        """What is durable is told once the register says so."""
        before = set(self.telegrams)
        super().confirm()
        if not self.draws or self.is_fenced:
            pass
        elif self._register()[2] != self.version:
            self.is_fenced = True
        else:
            self.version += 1
            self.cluster.registers[self.store] = (self.machine.incarnation, (0, self.confirmed - 1), self.version)
        if self.is_fenced:
            for key in set(self.telegrams) - before:
                del self.telegrams[key]

    def begin(self, client: Client) -> Work | None:
        known = set(self.given)
        work = super().begin(client)
        if work is not None and work.txn_id in known:
            self.cluster.twice.append(work.txn_id)
        return work

    def _tell(self, txn_id: TxnId, participant: Participant, action: TxnAction, mark: int) -> None:
        self.cluster.told.setdefault(txn_id, set()).add(action)
        super()._tell(txn_id, participant, action, mark)

    def deliver(self, key: tuple[TxnId, Participant], *, answered: bool = True) -> None:
        super().deliver(key, answered=answered)
        work = self.given.get(key[0])
        if work is not None and work.asked is COMMIT and self.machine.status(key[0]) is TxnStatus.COMMITTED:
            self.cluster.promised[key[0]] = work

    def time_passes(self) -> None:
        """Everything that may be ended by itself is."""
        self.now_ms += FAR_MS
        while (deadline := self.machine.deadline()) is not None and deadline <= self.now_ms:
            self._carry_out(self.machine.expire(self.now_ms))
            self.confirm()

    def deliver_all(self) -> None:
        while self.telegrams:
            self.deliver(next(iter(self.telegrams)))


class Walk:
    """Some services, their backups, and what may become of them."""

    def __init__(self, seed: int, **variant: bool) -> None:
        self.rng = random.Random(seed)
        self.variant = variant
        self.cluster = Cluster()
        self.names = itertools.count()
        self.backups: list[tuple[str, list[bytes]]] = []
        self.services = [self.made(f"store{number}", []) for number in range(2)]
        for service in self.services:
            self.client(service)

    def made(self, store: str, log: list[bytes]) -> Service:
        return Service(self.cluster, self.rng, store, log, **self.variant)

    def client(self, service: Service) -> None:
        service.client(self.rng.choice([None, f"i{next(self.names)}", f"i{next(self.names)}"]))

    def run(self, steps: int) -> list[str]:
        actions: list[Any] = [
            *[self.begin] * 6, *[self.send] * 8, *[self.end] * 6, *[self.deliver] * 8, self.join, self.time_passes, self.crash,
            *[self.back_up] * 2, self.restore, self.lose, self.copy, self.reload,
        ]  # fmt: skip
        for _ in range(steps):
            self.rng.choice(actions)(self.rng.choice(self.services))
        return self.settle()

    def join(self, service: Service) -> None:
        self.client(service)

    def begin(self, service: Service) -> None:
        if service.clients:
            service.begin(self.rng.choice(service.clients))

    def work(self, service: Service) -> tuple[Client, Work] | None:
        found = [(client, work) for client in service.clients for work in client.unasked()]
        return self.rng.choice(found) if found else None

    def send(self, service: Service) -> None:
        if (found := self.work(service)) is not None:
            service.send(*found, self.rng.choice(TOPICS))

    def end(self, service: Service) -> None:
        if (found := self.work(service)) is not None:
            service.end(*found, self.rng.choice([COMMIT, COMMIT, ABORT]), confirm=self.rng.random() < 0.8)

    def deliver(self, service: Service) -> None:
        if service.telegrams:
            service.deliver(self.rng.choice(list(service.telegrams)), answered=self.rng.random() < 0.8)

    def time_passes(self, service: Service) -> None:
        service.time_passes()

    def crash(self, service: Service) -> None:
        service.crash(self.rng.randint(service.confirmed, len(service.log)))

    def back_up(self, service: Service) -> None:
        self.backups.append((service.store, service.log[: service.confirmed]))

    def restore(self, service: Service) -> None:
        """An older backup, or a rolled-back disk, in the place of the log. Its clients go on."""
        logs = [log for store, log in self.backups if store == service.store]
        if logs:
            self.replace(service, service.store, self.rng.choice(logs))

    def lose(self, service: Service) -> None:
        self.replace(service, f"store{next(self.names)}x", [])

    def replace(self, service: Service, store: str, log: list[bytes]) -> None:
        successor = self.made(store, log)
        successor.clients = service.clients
        self.services[self.services.index(service)] = successor

    def copy(self, service: Service) -> None:
        """A copy starts beside its original, and the cluster lets it in: the original goes on until it finds out."""
        if self.backups and len(self.services) < 4:
            copy = self.made(*self.rng.choice(self.backups))
            self.client(copy)
            self.services.append(copy)

    def reload(self, _service: Service) -> None:
        self.rng.choice(list(self.cluster.topics.values())).reload()

    def settle(self) -> list[str]:
        """What ends by itself has ended; then administrators and `doctor` end the rest, as participants were told."""
        cluster = self.cluster
        for service in self.services:
            service.confirm()
            service.time_passes()
            service.deliver_all()
            service.machine.check_invariants()
        for service in self.services:
            for info in service.machine.transactions():
                if info.status is TxnStatus.HELD:
                    service.ask(self.decided(service, info.txn_id))
                    service.deliver_all()
        for topic in cluster.topics.values():
            for txn_id in list(topic.ongoing):
                topic.end(txn_id, COMMIT if COMMIT in cluster.told.get(txn_id, ()) else ABORT, -1)
        return self.faults()

    def decided(self, service: Service, txn_id: TxnId) -> Any:
        action = COMMIT if COMMIT in self.cluster.told.get(txn_id, ()) else ABORT
        return EndTxn(service.token(), txn_id, action, superuser=True)

    def faults(self) -> list[str]:
        cluster = self.cluster
        found = [f"given twice: {txn_id}" for txn_id in cluster.twice]
        found += [f"told both: {txn_id}" for txn_id, actions in cluster.told.items() if len(actions) > 1]
        seen = {(name, *entry) for name, topic in cluster.topics.items() for entry in topic.visible()}
        for txn_id, work in cluster.promised.items():
            missing = {(name, txn_id, value) for name, value in work.sent} - seen
            found += [f"committed and hidden: {each}" for each in sorted(missing)]
        return found


@pytest.mark.parametrize("count", [250, pytest.param(5_000, marks=pytest.mark.soak)])
def test_whatever_becomes_of_logs_no_id_is_given_twice_no_end_is_changed_and_nothing_committed_is_hidden(count: int) -> None:
    held = 0
    for seed in range(count):
        walk = Walk(seed)
        assert walk.run(30 + seed % 120) == [], f"seed {seed}"
        held += sum(service.machine.held_count for service in walk.services)
    assert not held, "the administrator has decided all"


@pytest.mark.parametrize(
    ("variant", "fault"),
    [({"draws": False, "compares": False}, "given twice"), ({"compares": False}, "told both")],
)
def test_the_same_walks_without_numbers_or_without_the_comparison_have_faults(variant: dict[str, bool], fault: str) -> None:
    found = (each for seed in range(300) for each in Walk(seed, **variant).run(30 + seed % 120))
    assert any(each.startswith(fault) for each in found)


def test_what_was_open_in_a_restored_log_is_held_until_an_administrator_decides() -> None:
    cluster, rng = Cluster(), random.Random(1)
    service = Service(cluster, rng, "store", [])
    client = service.client("i")
    kept, other = service.begin(client), service.begin(client)
    assert kept is not None
    assert other is not None
    service.send(client, kept, "a")
    backup = list(service.log)
    service.end(client, kept, COMMIT)
    service.deliver_all()
    restored = Service(cluster, rng, "store", backup)
    assert {info.txn_id: (info.status, info.held) for info in restored.machine.transactions()} == {
        kept.txn_id: (TxnStatus.HELD, Cause.RESTORED),
        other.txn_id: (TxnStatus.HELD, Cause.RESTORED),
    }
    restored.time_passes()
    assert not restored.telegrams
    refused = restored.ask(_end(restored, kept, ABORT))
    assert isinstance(refused, Refusal)
    assert "an administrator decides" in refused.message
    restored.crash()
    assert restored.machine.held_count == 2, "it is in the log"
    restored.ask(_end(restored, kept, COMMIT, superuser=True))
    restored.deliver_all()
    assert restored.machine.status(kept.txn_id) is TxnStatus.COMMITTED
    assert cluster.topics["a"].visible()


def _end(service: Service, work: Work, action: TxnAction, *, superuser: bool = False) -> Any:
    return EndTxn(service.token(), work.txn_id, action, superuser=superuser)
