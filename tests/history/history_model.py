"""A small model of a correct system, which makes histories: producers, copiers, readers, zombies, kills, lost answers.

Every actor is a generator that yields between the invocation, the effect and the answer of each operation, so that the
operations of all actors overlap in every way. The effects are those that the promises allow. Tests judge these histories, which
must be VALID, and the same with one fault injected, which must not be.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from history_format import make_payload
from history_reader import NEVER, History, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from history_facts import Part, Position

A: Part = ("A", -1)
B: tuple[Part, ...] = (("B", 0), ("B", 1))
C: Part = ("C", -1)
PARTS = (A, *B, C)
MS = 1_000_000
TIMEOUT_MS = 300
META = {
    "seed": 0,
    "bounds": {"txn_decided_ms": 500, "unseen_ms": 1_000_000, "answer_ms": 20_000, "metrics": {"rss": {"max": 10, "last": 5}}},
    "hops": [{"from": ["A"], "to": ["B"]}],
}


class ModelTxn:
    """The coordinator's view of a transaction; `epoch` is that of the fenced name, 0 without it."""

    def __init__(self, name: str, deadline: int, epoch: int) -> None:
        self.name = name
        self.deadline = deadline
        self.epoch = epoch
        self.state = "open"

    @property
    def is_decided(self) -> bool:
        """Whether it is committed or aborted."""
        return self.state in ("committed", "aborted")


class Entry:
    """A message in a partition."""

    def __init__(self, payload: dict[str, Any], txn: ModelTxn | None, position: Position) -> None:
        self.payload = payload
        self.txn = txn
        self.position = position
        self.holder: str | None = None  # the consumer that has it
        self.pending: ModelTxn | None = None
        self.settled = False


class Model:
    """One run."""

    def __init__(self, seed: int, *, steps: int = 400, workers: int = 3) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.ops: list[Op] = []
        self.logs: dict[Part, list[Entry]] = {part: [] for part in PARTS}
        self.txns: dict[str, ModelTxn] = {}
        self.epoch = 0  # of the fenced name
        self._names = 0
        self._seq = 0
        self._steps = steps
        self._workers = workers
        self._kinds = (self.producer, *[self.copier, self.zombie] * 2, self.settler, self.reader, self.asker)

    def run(self) -> History:
        """The history of a run of so many steps, and of what follows it: all decided, copied and read."""
        self.event("harness", "meta", **META)
        actors: list[tuple[str, Iterator[None]]] = []
        for number in range(self._steps):
            if len(actors) < self._workers + 2 or not number:
                actors.append(self.spawn(self.rng.choice(self._kinds)))
            at = self.rng.randrange(len(actors))
            name, actor = actors[at]
            if self.rng.random() < 0.004:
                actors.pop(at)
                self.event("harness", "kill", target=name, how="SIGKILL")
                self.forget(name)
            elif next(actor, StopIteration) is StopIteration:
                actors.pop(at)
        for name, _ in actors:
            self.event("harness", "kill", target=name, how="SIGKILL")
            self.forget(name)
        self.event("harness", "heal")
        self.now += (TIMEOUT_MS + 600) * MS
        self.event("harness", "metrics", source="broker", values={"rss": 3})
        for actor in (self.token_holder("tokens"), self.last_copier("last"), self.last_reads("end")):
            for _ in actor:
                pass
        return History(self.ops)

    def spawn(self, kind: Callable[[str], Iterator[None]]) -> tuple[str, Iterator[None]]:
        """A new actor with a name that nobody had."""
        self._names += 1
        name = f"{kind.__name__}.{self._names}"
        return name, kind(name)

    # -- time, operations --

    def tick(self) -> int:
        """The time; it moves on, not always."""
        self.now += self.rng.choice((0, MS // 2, MS, 3 * MS))
        for txn in self.txns.values():
            if txn.state == "open" and self.now > txn.deadline:
                self.end(txn, "aborted")
        return self.now

    def event(self, process: str, f: str, **value: object) -> Op:
        """An event now."""
        kind = "ok" if f == "deliver" else "info"
        now = self.tick()
        op = Op(process, f, kind, dict(value), now, now)
        self.ops.append(op)
        return op

    def invoke(self, process: str, f: str, **value: object) -> Op:
        """An operation that begins."""
        op = Op(process, f, "info", dict(value), self.tick(), NEVER)
        self.ops.append(op)
        return op

    def complete(self, op: Op, kind: str, **value: object) -> None:
        """The answer; sometimes it is lost."""
        op.end = self.tick()
        op.type = kind
        op.value |= value

    def lost(self) -> bool:
        """Whether this answer is lost."""
        return self.rng.random() < 0.05

    # -- the system --

    def append(self, part: Part, payload: dict[str, Any], txn: ModelTxn | None) -> Position:
        """A message at the end of a partition, now and then as a further one of a batch."""
        log = self.logs[part]
        position = (7, log[-1].position[1] + 1 if log else 0, self.rng.choice((-1, 0)))
        if log and log[-1].position[2] >= 0 and log[-1].txn is txn and self.rng.random() < 0.6:
            position = (7, log[-1].position[1], log[-1].position[2] + 1)
        log.append(Entry(payload, txn, position))
        return position

    def visible(self, part: Part) -> list[Entry]:
        """What readers may see."""
        found = []
        for entry in self.logs[part]:
            if entry.txn is not None and not entry.txn.is_decided:
                break
            if entry.txn is None or entry.txn.state == "committed":
                found.append(entry)
        return found

    def end(self, txn: ModelTxn, state: str) -> None:
        """The decision and all its effects."""
        txn.state = state
        for entry in (*self.logs[A], *self.logs[C]):
            if entry.pending is txn:
                entry.pending = None
                entry.settled = state == "committed"
                if not entry.settled:
                    entry.holder = None

    def forget(self, name: str) -> None:
        """The broker sees that a consumer is gone."""
        for entry in (*self.logs[A], *self.logs[C]):
            if entry.holder == name:
                entry.holder = None

    # -- what actors do --

    def begin(self, who: str, epoch: int = 0) -> Generator[None, None, ModelTxn | None]:
        """Begin a transaction and return it; None for one who has a successor."""
        self._names += 1
        name = f"{who}/{self._names}"
        op = self.invoke(who, "begin", txn=name, timeout_ms=TIMEOUT_MS)
        if epoch:
            op.value["identity"] = ["transactional_id", "z", epoch]
        yield
        if epoch and epoch != self.epoch:
            self.complete(op, "fail")
            return None
        txn = self.txns[name] = ModelTxn(name, self.tick() + TIMEOUT_MS * MS, epoch)
        yield
        self.complete(op, "ok")
        return txn

    def send(self, who: str, part: Part, txn: ModelTxn | None, **payload: Any) -> Generator[None, None, bool]:
        """Send a message; returns whether it is known to be there."""
        self._seq += 1
        content = make_payload(who, self._seq, txn=txn.name if txn else None, **payload)
        op = self.invoke(
            who, "send", topic=part[0], partition=part[1], producer=who, seq=self._seq, txn=content["txn"], payload=content
        )
        yield
        if txn is not None and txn.state != "open":
            self.complete(op, "fail")
            return False
        position = self.append(part, content, txn)
        yield
        if self.lost():
            self.complete(op, "info")
            return False
        self.complete(op, "ok", position=list(position))
        return True

    def finish(self, who: str, txn: ModelTxn, f: str) -> Iterator[None]:
        """Commit or abort; a lost answer may have had its effect, or not; some ask again."""
        wanted = "committed" if f == "commit" else "aborted"
        for _ in range(2):
            op = self.invoke(who, f, txn=txn.name)
            yield
            lost = self.lost()
            if not (lost and self.rng.random() < 0.5) and not txn.is_decided:
                self.end(txn, wanted)
            state = txn.state
            yield
            if not lost:
                self.complete(op, "ok" if state == wanted else "fail")
                return
            self.complete(op, "info")

    def prepare(self, who: str, txn: ModelTxn) -> Generator[None, None, bool]:
        """Prepare a transaction; returns whether that is known to be done."""
        op = self.invoke(who, "prepare", txn=txn.name)
        yield
        if txn.state != "open":
            self.complete(op, "fail")
            return False
        txn.state = "prepared"
        yield
        lost = self.lost()
        self.complete(op, "info" if lost else "ok")
        return not lost

    def producer(self, who: str) -> Iterator[None]:
        """Sends to A and C, with and without transactions."""
        for _ in range(4):
            if self.rng.random() < 0.4:
                yield from self.send(who, self.rng.choice((A, C)), None)
            else:
                yield from self.produce(who)

    def produce(self, who: str, epoch: int = 0) -> Iterator[None]:
        """One transaction of a producer."""
        txn = yield from self.begin(who, epoch)
        if txn is not None:
            parts = [self.rng.choice((A, C)) for _ in range(self.rng.randint(1, 4))]
            yield from self.fill(who, txn, parts, [()] * len(parts), self.rng.random() < 0.7)

    def fill(self, who: str, txn: ModelTxn, parts: list[Part], inputs: list[Any], commit: bool) -> Iterator[None]:
        """Send the messages of a transaction and end it; a failed or unknown send means abort. Some are prepared before."""
        sure = True
        for i, part in enumerate(parts):
            sure = (
                yield from self.send(who, part, txn, i=i, n=len(parts), parts=sorted(set(parts)), inputs=inputs[i])
            ) and sure
        commit = sure and commit
        if commit and txn.epoch and self.rng.random() < 0.4:
            commit = yield from self.prepare(who, txn)
        yield from self.finish(who, txn, "commit" if commit else "abort")

    def copier(self, who: str) -> Iterator[None]:
        """Copies messages of A to B in transactions that acknowledge them."""
        yield from self.subscribe(who)
        for _ in range(3):
            yield from self.copy(who, self.rng.randint(1, 3), self.rng.random() < 0.7)
        self.forget(who)

    def settler(self, who: str) -> Iterator[None]:
        """Acknowledges messages of C in transactions, aborts these, and acknowledges the messages without one."""
        yield from self.subscribe(who, C)
        for _ in range(3):
            txn = yield from self.begin(who)
            assert txn is not None
            taken = self.take(who, C, 2)
            for entry in taken:
                self.deliver(who, C, entry, subscription="s", consumer=who)
                yield from self.acknowledge(who, entry, txn, C)
            yield from self.finish(who, txn, "abort")
            for entry in taken:
                if self.rng.random() < 0.8:
                    yield from self.acknowledge(who, entry, None, C)
        self.forget(who)

    def subscribe(self, who: str, part: Part = A) -> Iterator[None]:
        """Join the subscription of a partition."""
        value = {"subscription": "s", "consumer": who, "mode": "Shared", "initial": "earliest"}
        op = self.invoke(who, "subscribe", topic=part[0], partition=part[1], **value)
        yield
        self.complete(op, "ok")

    def copy(self, who: str, most: int, commit: bool, epoch: int = 0) -> Iterator[None]:
        """One transaction of a copier."""
        txn = yield from self.begin(who, epoch)
        if txn is None:
            return
        taken = self.take(who, A, most)
        for entry in taken:
            self.deliver(who, A, entry, subscription="s", consumer=who)
            yield
        for entry in taken:
            commit = (yield from self.acknowledge(who, entry, txn)) and commit
        parts = [self.rng.choice(B) for _ in taken]
        yield from self.fill(who, txn, parts, [[(e.payload["producer"], e.payload["seq"])] for e in taken], commit)
        for entry in taken:
            if entry.holder == who and not entry.settled and entry.pending is None:
                entry.holder = None

    def take(self, who: str, part: Part, most: int) -> list[Entry]:
        """What a consumer is given of a partition."""
        taken: list[Entry] = []
        for entry in self.visible(part):
            if entry.holder is None and not entry.settled and entry.pending is None and len(taken) < most:
                entry.holder = who
                taken.append(entry)
        return taken

    def acknowledge(self, who: str, entry: Entry, txn: ModelTxn | None, part: Part = A) -> Generator[None, None, bool]:
        """Acknowledge, in a transaction or plainly; returns whether that is known to be done."""
        value = {
            "subscription": "s",
            "consumer": who,
            "positions": [list(entry.position)],
            "kind": "individual",
            "txn": None if txn is None else txn.name,
        }
        op = self.invoke(who, "ack", topic=part[0], partition=part[1], **value)
        yield
        if txn is None:
            entry.settled, entry.pending = True, None
        elif txn.state != "open" or entry.settled or entry.pending is not None:
            self.complete(op, "fail")
            return False
        else:
            entry.pending = txn
        yield
        lost = self.lost()
        self.complete(op, "info" if lost else "ok")
        return not lost

    def deliver(
        self,
        who: str,
        part: Part,
        entry: Entry,
        *,
        subscription: str | None = None,
        consumer: str | None = None,
        reader: str | None = None,
    ) -> None:
        """A message reaches an application."""
        value = {"subscription": subscription, "consumer": consumer, "reader": reader, "redeliveries": 0}
        self.event(
            who, "deliver", topic=part[0], partition=part[1], position=list(entry.position), payload=entry.payload, **value
        )

    def reader(self, who: str) -> Iterator[None]:
        """Reads a partition from its start, to its end or a part of the way, and asks for the last position."""
        part = self.rng.choice(PARTS)
        where = {"topic": part[0], "partition": part[1], "reader": who}
        op = self.invoke(who, "reader", start="earliest", **where)
        yield
        self.complete(op, "ok")
        if self.rng.random() < 0.5:
            yield from self.read_all(who, part, who)
            return
        for entry in self.visible(part)[: self.rng.randint(0, 8)]:
            self.deliver(who, part, entry, reader=who)
            yield
        op = self.invoke(who, "last_id", **where)
        yield
        found = self.visible(part)
        yield
        self.complete(op, "ok", position=list(found[-1].position if found else (-1, -1, -1)))

    def read_all(self, who: str, part: Part, reader: str) -> Iterator[None]:
        """A full read."""
        op = self.invoke(who, "final_read", topic=part[0], partition=part[1], reader=reader)
        yield
        seen = 0
        while len(found := self.visible(part)) > seen:
            self.deliver(who, part, found[seen], reader=reader)
            seen += 1
            yield
        self.complete(op, "ok")

    def asker(self, who: str) -> Iterator[None]:
        """Asks for the status of any transaction."""
        for _ in range(3):
            if not self.txns:
                return
            txn = self.rng.choice(list(self.txns.values()))
            op = self.invoke(who, "status", txn=txn.name)
            yield
            state = txn.state if txn.is_decided else "open"
            yield
            self.complete(op, "ok", status=state)

    def zombie(self, who: str) -> Iterator[None]:
        """Takes a fenced name over, and works as long as nobody else took it; in what it has open it goes on even then."""
        op = self.invoke(who, "open", transactional_id="z")
        yield
        self.epoch += 1
        mine = self.epoch
        for txn in self.txns.values():
            if 0 < txn.epoch < mine and txn.state == "open":
                self.end(txn, "aborted")
        op.value["identity"] = ["transactional_id", "z", mine]
        yield
        self.complete(op, "ok")
        yield from self.read_all(who, C, f"{who}.first")
        yield from self.subscribe(who)
        for _ in range(3):
            if self.rng.random() < 0.5:
                yield from self.produce(who, mine)
            else:
                yield from self.copy(who, self.rng.randint(1, 3), True, mine)
        self.forget(who)

    # -- the end of a run --

    def token_holder(self, who: str) -> Iterator[None]:
        """Ends what is prepared, or learns how it has ended: its client may be gone, or may not know."""
        for name in dict.fromkeys(op.value["txn"] for op in self.ops if op.f == "prepare"):
            txn, f = self.txns[name], self.rng.choice(("commit", "abort"))
            wanted = "committed" if f == "commit" else "aborted"
            op = self.invoke(who, f, txn=name)
            yield
            if not txn.is_decided:
                self.end(txn, wanted)
            self.complete(op, "ok" if txn.state == wanted else "fail")

    def last_copier(self, who: str) -> Iterator[None]:
        """Copies what is left."""
        yield from self.subscribe(who)
        op = self.invoke(who, "final_read", topic="A", partition=-1, subscription="s")
        while any(not entry.settled for entry in self.visible(A)):
            yield from self.copy(who, 50, commit=True)
            self.now += (TIMEOUT_MS + 600) * MS  # a commit of unknown outcome may have left its transaction open
            self.tick()
        self.complete(op, "ok")

    def last_reads(self, who: str) -> Iterator[None]:
        """Reads everything."""
        for part in PARTS:
            yield from self.read_all(who, part, f"{who}.{part[0]}{part[1]}")
