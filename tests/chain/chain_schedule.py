"""What a run of the black-box chain does: topics, subscriptions, workers and faults, all drawn from one seed.

A schedule is a few phases, one after the other, each with a broker of its own: without kills of the broker, and with
them. In a phase several chains run at once. A chain has the topics a → b → c → d and a hop between two of them, each
with its subscription type; workers move each message over a hop in a transaction. Every phase has all four types, each
on batched and on unbatched input. Equal seeds and options give equal schedules; what the processes make of them is
theirs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

import attrs

MODES: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")
STYLES: Final = ("single", "interleaved", "batch", "received", "pipeline", "sync")
"""How a worker consumes, processes and produces; see `chain_styles`."""
OURS: Final = "ours"
CLIENTS: Final = (OURS, "java", "go")
"""Whose client a worker uses: ours, or the official ones of Java and Go, whose programs have one style each."""
HOPS: Final = 3
CHAINS: Final = 4
"""Of each phase: the first half has batched input, the others unbatched."""
WORKERS: Final = 2
"""Processes of each chain; each works on all hops. The first one has a transactional id."""
LETTERS: Final = "abcd"
RATE: Final = {True: 25, False: 8}
"""Messages a second that enter each chain, batched or not."""
BROKER_KILL_EVERY: Final = 4.5
WORKER_FAULT_EVERY: Final = 2.5
TAKE_OVER_EVERY: Final = 3.5
"""Mean seconds between two faults of a kind."""


@attrs.frozen
class Hop:
    """From one topic to the next. `batched`: whether the messages are; `next_mode`: of the subscription of `target`."""

    source: str
    target: str
    mode: str
    batched: bool
    next_mode: str


@attrs.frozen
class Chain:
    """Hops one after the other, and how many messages enter the first."""

    name: str
    hops: tuple[Hop, ...]
    messages: int


@attrs.frozen
class Worker:
    """One process that is started again after each fault; `styles` are those of its chain's hops.

    `beats`: the topic of its own, of a worker with a transactional id; see `chain_beats`. `client`: one of CLIENTS.
    """

    name: str
    chain: str
    styles: tuple[str, ...]
    seed: int
    beats: str | None
    client: str = OURS


@attrs.frozen
class Fault:
    """`what`: kill-worker, close-worker, replace-worker, pause-worker or kill-broker. `at`: seconds after the beginning.

    A worker that is replaced works on beside its successor for a while. One that is paused sleeps until its successor has taken
    over, and works on then.
    """

    at: float
    what: str
    target: str


@attrs.frozen
class Phase:
    """Chains that run at once on one broker. After `seconds` no more faults come, and what is left has to get through."""

    name: str
    seconds: float
    deduplication: bool
    chains: tuple[Chain, ...]
    workers: tuple[Worker, ...]
    faults: tuple[Fault, ...]

    def chain_of(self, worker: Worker) -> Chain:
        """The chain that a worker works on."""
        return next(chain for chain in self.chains if chain.name == worker.chain)

    def as_json(self) -> str:
        """For the processes."""
        return json.dumps(attrs.asdict(self))


def draw(
    seed: int,
    seconds: float,
    *,
    phases: Sequence[str] = ("calm", "kills"),
    modes: Sequence[str] = MODES,
    fences: bool = True,
    batches: bool = True,
    clients: Sequence[str] = (OURS,),
) -> list[Phase]:
    """The phases of a seed. `seconds` is the time with faults of all phases together; `fences`: the server knows take-overs.

    `batches`: half of the chains have batched input. `clients`: each is on every chain, as far as a chain has workers; the
    official ones take turns from chain to chain.
    """
    how: dict[str, Any] = {"fences": fences, "batches": batches, "clients": clients}
    return [_phase(random.Random(f"{seed} {name}"), name, seconds / len(phases), modes, **how) for name in phases]


def _phase(
    rng: random.Random,
    name: str,
    seconds: float,
    modes: Sequence[str],
    *,
    fences: bool,
    batches: bool,
    clients: Sequence[str],
) -> Phase:
    chains = tuple(
        Chain(f"{name}{number}", tuple(_hops(f"{name}{number}", order, batched)), max(20, int(RATE[batched] * seconds)))
        for number, (order, batched) in enumerate(_orders(rng, modes, batches=batches))
    )
    workers = tuple(
        _worker(rng, chain, number, client, fenced=fences and not number and client == OURS)
        for place, chain in enumerate(chains)
        for number, client in enumerate(_clients(clients, place, chain))
    )
    kills = name == "kills"
    return Phase(name, seconds, kills, chains, workers, tuple(_faults(rng, seconds, workers, kills=kills)))


def _clients(clients: Sequence[str], place: int, chain: Chain) -> list[str]:
    """Those of the workers of the chain at a place: ours first, and the official ones in turn.

    Go's client acknowledges whole batches only, and conflicts for ever when another one has taken a part.
    """
    official = [each for each in clients if each != OURS] or [OURS]
    others = [official[(place + number) % len(official)] for number in range(WORKERS)]
    if chain.hops[0].batched and "go" in others:
        return ["go"] * WORKERS
    return [OURS, others[0]] if OURS in clients else others


def _worker(rng: random.Random, chain: Chain, number: int, client: str, *, fenced: bool) -> Worker:
    name = f"{chain.name}w{number}"
    styles = tuple(rng.choice(STYLES) for _ in chain.hops)
    beats = f"persistent://public/default/{name}-beats" if fenced else None
    return Worker(name, chain.name, styles, rng.randrange(2**32), beats, client)


def _orders(rng: random.Random, modes: Sequence[str], *, batches: bool) -> list[tuple[list[str], bool]]:
    """The types of each chain's hops, and whether it is batched: all types on both, and more of Shared."""
    orders = []
    for batched in (batches, False):
        more = ["Shared"] if batched and "Shared" in modes else modes
        drawn = [*modes, *(rng.choice(more) for _ in range(HOPS * CHAINS // 2 - len(modes)))]
        rng.shuffle(drawn)
        orders += [(drawn[start : start + HOPS], batched) for start in range(0, len(drawn), HOPS)]
    return orders


def _hops(chain: str, order: Sequence[str], batched: bool) -> list[Hop]:
    topics = [f"persistent://public/default/{chain}-{letter}" for letter in LETTERS]
    modes = [*order, "Exclusive"]  # the official client reads the end
    return [Hop(topics[number], topics[number + 1], mode, batched, modes[number + 1]) for number, mode in enumerate(order)]


def _faults(rng: random.Random, seconds: float, workers: Sequence[Worker], *, kills: bool) -> list[Fault]:
    """In the order of their times; none in the first moment, in which everything starts."""
    faults = []
    for at in _times(rng, WORKER_FAULT_EVERY, seconds):
        faults.append(Fault(at, rng.choice(("kill-worker", "close-worker")), rng.choice(workers).name))
    fenced = [worker.name for worker in workers if worker.beats]
    if fenced:
        take_overs = _times(rng, TAKE_OVER_EVERY, seconds)
        faults += [Fault(at, rng.choice(("replace-worker", "pause-worker")), rng.choice(fenced)) for at in take_overs]
    if kills:
        faults += [Fault(at, "kill-broker", "broker") for at in _times(rng, BROKER_KILL_EVERY, seconds)]
    return sorted(faults, key=lambda fault: fault.at)


def _times(rng: random.Random, every: float, seconds: float) -> list[float]:
    times: list[float] = []
    at = 2.0
    while (at := at + every * rng.uniform(0.5, 1.5)) < seconds:
        times.append(round(at, 3))
    return times or [round(seconds * 0.6, 3)]


def batches_by_key(hop_mode: str) -> bool:
    """Whether batches for a subscription of this type hold one key each; all others hold what comes."""
    return hop_mode == "Key_Shared"


def phase_of(data: dict[str, Any]) -> Phase:
    """A phase out of its JSON."""
    chains = tuple(Chain(each["name"], tuple(Hop(**hop) for hop in each["hops"]), each["messages"]) for each in data["chains"])
    workers = tuple(Worker(**{**each, "styles": tuple(each["styles"])}) for each in data["workers"])
    faults = tuple(Fault(**each) for each in data["faults"])
    return Phase(data["name"], data["seconds"], data["deduplication"], chains, workers, faults)
