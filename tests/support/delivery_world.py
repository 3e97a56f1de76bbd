"""A delivery machine with its shell, a program and a dispatcher, in virtual time: each step is one of its `moves`.

The broker reads, delivers, loses connections and ends transactions when it likes. The program receives, acknowledges, gives
back, moves the subscription, and works in units, some of which others end. `heal` lets everything go well then, and `judge`
looks at the end of it: each message is settled, once where nothing was cut; nothing was handed out before what had to come
first; and nobody waits for ever.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
from dispatcher_models import MARKER, OURS, OrderedDispatcher, SharedDispatcher, whole

from pulsar_txn.client.errors import TransactionConflict, TransactionStateError
from pulsar_txn.client.state import effects as do
from pulsar_txn.client.state.acknowledgements import Request, Share
from pulsar_txn.client.state.delivery import DeliveryMachine, DeliveryOptions
from pulsar_txn.client.state.owners import UNKNOWN, MessagePosition, indexes
from pulsar_txn.client.state.redelivery import Bits
from pulsar_txn.client.state.rewinds import Turn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import MessageId, Position, TxnAction

OPTIONS: Final = DeliveryOptions(
    keeps_order=True,
    is_failover=False,
    is_durable=True,
    start=None,
    queue_size=6,
    queue_bytes=0,
    ack_group_delay=0.1,
    negative_ack_delay=0.2,
    max_pending_chunked_messages=10,
    max_uncompressed_bytes=1000,
    auto_ack_oldest_chunked_message=False,
    expire_incomplete_chunks=0.0,
)

LONGEST_READ: Final = 0.0
"""Seconds that a read takes at most. The machine assumes that a read takes less than its shortest pause, 0.1."""

Move = tuple[Any, ...]


@attrs.define(eq=False)
class Work:
    """One unit of the program: what joined it, and how far its end is."""

    number: int
    share: Share = attrs.field(factory=Share)
    has: list[tuple[int, int]] = attrs.field(factory=list)
    asked: list[tuple[Request, Sequence[MessagePosition]]] = attrs.field(factory=list)
    """Acknowledgements without an answer."""
    wants: TxnAction | None = None
    """How it is to end, once these are answered."""


class World:
    """See the module. `chunks` says which entries are chunks: of which message, the number, and how many there are."""

    def __init__(
        self,
        broker: OrderedDispatcher | SharedDispatcher,
        *,
        options: DeliveryOptions = OPTIONS,
        chunks: dict[int, tuple[str, int, int]] | None = None,
        is_calm: bool = True,
        expects: bool = False,
        cuts: int = 1000,
        asks: int = 1000,
        units: int = 1000,
        nacks: int = 1000,
        seeks: int = 1000,
    ) -> None:
        self.broker = broker
        self.keeps_order = isinstance(broker, OrderedDispatcher)
        self.machine = DeliveryMachine("t", -1, attrs.evolve(options, keeps_order=self.keeps_order))
        self.chunks = chunks or {}
        self.is_calm = is_calm
        """True if nothing is read while a request that a timer makes is on its way."""
        self.expects = expects
        """True if the program waits for what its aborts bring back, as loops do."""
        self.left = {"cut": cuts, "ask": asks, "unit": units, "nack": nacks, "seek": seeks}
        """How often each may still happen."""
        self.now = 0.0
        self.queue: deque[tuple[int, int, Any]] = deque()
        self.to_broker: deque[Move] = deque()
        self.ends: deque[tuple[TxnAction, Work]] = deque()
        """Ends on their way to the coordinator."""
        self.late: list[tuple[TxnAction, Work, float]] = []
        """Ends that were answered, and which the subscription has not heard of; and since when."""
        self.early: list[tuple[TxnAction, Work]] = []
        """Ends that the subscription has heard of, and whose answers are on their way."""
        self.elsewhere: list[Work] = []
        """Units that others end."""
        self.timers: dict[object, tuple[float, int]] = {}
        self.heap: list[tuple[float, int, object]] = []
        self.numbers = 0
        self.works: list[Work] = []
        self.done: Counter[tuple[int, int]] = Counter()
        self.put_off: set[tuple[int, int]] = set()
        self.was_cut = False
        self.asked = 0
        """Requests to deliver again, for comparisons."""
        self.reads_since: dict[int, float] = {}
        self.subscribe()

    # --- the shell ----------------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        self.machine.subscribes_again(None)
        self.perform()
        self.broker.subscribe(self.machine.redelivery.epoch)
        self.machine.opened()
        self.perform()

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def perform(self) -> None:
        effects = self.machine.effects
        while effects:
            match effects.pop(0):
                case do.SendPermits(permits):
                    self.to_broker.append(("flow", permits))
                case do.SendAcks(individual, cumulative):
                    self.to_broker.append(("ack", individual, cumulative))
                case do.AskForAll(epoch):
                    self.asked += 1
                    self.to_broker.append(("all", epoch or 0))
                case do.AskFor(positions):
                    self.asked += 1
                    self.to_broker.append(("these", [entry for _, entry in positions]))
                case do.DropQueued():
                    dropped, self.queue = self.queue, deque()
                    self.machine.queue_dropped({(7, entry) for entry, _, _ in dropped}, len(dropped))
                case do.HandOut(messages):
                    self.machine.give_permits_back(-len(messages))
                    self.queue.extend(messages)
                case do.SetTimer(timer, seconds):
                    self.timers[timer] = (self.now + seconds, self.number())
                    heapq.heappush(self.heap, (*self.timers[timer], timer))
                case do.StopTimer(timer):
                    self.timers.pop(timer, None)

    def comes(self) -> None:
        """One frame arrives."""
        frame = self.broker.to_client.popleft()
        if frame[0] == "answer":
            self.answered(*frame[1:])
            self.perform()
            return
        entry, live, epoch = frame
        machine, position, size = self.machine, (7, entry), self.broker.sizes[entry]
        count = size or 1
        turn = machine.came(position, live, count, count * 10, epoch if self.keeps_order else None, self.now)
        if turn is Turn.REWOUND:
            self.perform()
            turn = machine.turn(position, live, count, self.now)
        if turn is Turn.NOW:
            self.unpack(entry, live)
        self.perform()

    def unpack(self, entry: int, live: int) -> None:
        machine, position, size = self.machine, (7, entry), self.broker.sizes[entry]
        if entry in self.chunks:
            uuid, number, total = self.chunks[entry]
            metadata = pb.MessageMetadata(uuid=uuid, chunk_id=number, num_chunks_from_msg=total, total_chunk_msg_size=total)
            if machine.chunk(position, metadata, b".", self.now) is None:
                machine.give_permits_back(1)
                return
        delivery, live = machine.admit(position, size, live)
        messages = [(entry, index, delivery) for index in indexes(live, size)]
        if messages and machine.admits(position, live, len(messages)):
            self.queue.extend(messages)
        machine.give_permits_back((size or 1) - len(messages))

    def goes(self) -> None:
        """One frame reaches the broker."""
        broker = self.broker
        match self.to_broker.popleft():
            case ("flow", permits):
                broker.permits += permits
            case ("ack", individual, cumulative):
                broker.ack(individual, cumulative=False)
                broker.ack(cumulative, cumulative=True)
            case ("all", epoch):
                broker.redeliver(epoch)
            case ("these", entries):
                assert isinstance(broker, SharedDispatcher)
                broker.redeliver_these(entries)
            case ("ack in", work, request):
                is_taken = broker.ack_in(work.number, request.ids)
                if not is_taken and not self.keeps_order:
                    for each in request.ids:  # else a stock dispatcher forgets them; the abort brings them back
                        broker.ack_in(work.number, [each])
                broker.to_client.append(("answer", work, request, is_taken))
            case ("seek", entry):
                self.sought(entry)
        self.perform()

    def answered(self, work: Work, request: Request, is_taken: bool) -> None:
        places = next(places for each, places in work.asked if each is request)
        work.asked = [each for each in work.asked if each[0] is not request]
        if is_taken:
            self.machine.answered(request, places, work.share)
        else:
            self.machine.units.refused(request, work.share, self.now)
            self.give_up(work)
        self.end_if_answered(work)

    def end_if_answered(self, work: Work) -> None:
        if work.wants is not None and not work.asked:
            self.ends.append((work.wants, work))

    def is_told(self, outcome: TxnAction, work: Work) -> None:
        """The coordinator has answered the end of a unit."""
        self.machine.ended(work.share, outcome, self.now)
        if outcome is TxnAction.COMMIT:
            self.done.update(work.has)
        elif self.expects and not self.keeps_order:
            entries: dict[Position, Bits] = {}
            for entry, index in work.has:
                bits = entries.get((7, entry), (0, 0, UNKNOWN))[0] | 1 << max(index, 0)
                entries[7, entry] = (bits, self.broker.sizes[entry], UNKNOWN)
            self.machine.redelivery.expect(entries, None)
        self.works.remove(work)
        self.perform()

    def applied(self, outcome: TxnAction, work: Work) -> None:
        """The subscription hears of the end of a unit."""
        if outcome is TxnAction.COMMIT:
            self.broker.commit(work.number)
        else:
            self.broker.abort(work.number)

    def expires(self) -> bool:
        """The next timer is due; False when there is none."""
        while self.heap:
            due, number, timer = heapq.heappop(self.heap)
            if self.timers.get(timer) == (due, number):
                del self.timers[timer]
                self.now = max(self.now, due)
                self.machine.expire(timer, self.now, has_queued=bool(self.queue))
                self.perform()
                return True
        return False

    def cut(self) -> None:
        """The connection is lost, with all that is on its way. Acknowledgements in units are sent again on the next one."""
        self.was_cut = True
        self.machine.lost()
        self.to_broker.clear()
        self.broker.leave()
        self.subscribe()
        self.to_broker.extend(("ack in", work, request) for work in self.works for request, _ in work.asked)

    def seeks(self, entry: int) -> None:
        """The program moves the subscription to an entry."""
        self.machine.seek(MessageId(7, entry), None, inclusive=True)
        self.perform()
        self.to_broker.append(("seek", entry))

    def sought(self, entry: int) -> None:
        """The broker moves the subscription, closes the consumer, and answers."""
        self.broker.seek(entry)
        self.broker.leave()
        self.to_broker.clear()
        self.was_cut = True
        self.put_off.clear()
        for message in self.messages():
            if message[0] < entry:
                self.done[message] = max(1, self.done[message])
            else:
                del self.done[message]
        self.machine.lost()
        self.machine.sought()
        self.subscribe()

    # --- the program --------------------------------------------------------------------------------------------------

    def messages(self) -> Iterator[tuple[int, int]]:
        """All messages, in order; one in chunks has the place of its last chunk."""
        for entry, size in enumerate(self.broker.sizes):
            if size != MARKER and (entry not in self.chunks or self.chunks[entry][1] == self.chunks[entry][2] - 1):
                yield from ((entry, index) for index in indexes(whole(size), size))

    def takes(self) -> tuple[int, int, Any]:
        message = self.queue.popleft()
        if self.keeps_order:
            self.judge_order(message[:2])
        self.put_off.discard(message[:2])
        self.machine.give_permits_back(1)
        self.perform()
        return message

    def judge_order(self, message: tuple[int, int]) -> None:
        """Everything before a message is settled, in a unit, or was put off by the program."""
        elsewhere = {each for work in self.works if not work.share.is_over for each in work.has} | self.put_off
        for before in self.messages():
            if before >= message:
                return
            assert before in self.done or before in elsewhere, ("overtaken", before, message)

    def acknowledges(self) -> None:
        entry, index, _ = self.takes()
        self.done[entry, index] += 1
        self.machine.acknowledge([((7, entry), index, self.broker.sizes[entry])])
        self.perform()

    def nacks(self) -> None:
        message = self.takes()
        entry, index, delivery = message
        self.put_off.add((entry, index))
        try:
            self.machine.negatively_acknowledge(((7, entry), index, self.broker.sizes[entry]), delivery, message, 0.2, self.now)
        except TransactionStateError:  # a second copy, after a cut
            self.put_off.discard((entry, index))
        self.perform()

    def forgets(self) -> None:
        """Receive, and never acknowledge: it comes again when its time is over."""
        message = self.takes()
        entry, index, delivery = message
        self.put_off.add((entry, index))
        bits = (0, self.broker.sizes[entry], delivery)
        self.machine.redelivery.received((7, entry), index, bits, message, self.now + 0.3, self.now)
        self.perform()

    def asks(self) -> None:
        """The program asks for everything again that is not acknowledged. On Shared no epoch tells what was on its way."""
        self.was_cut |= not self.keeps_order
        self.machine.redelivery.everything(self.now)
        self.perform()

    def works_on(self, work: Work | None) -> None:
        """Receive in a unit, a new one or one that is open."""
        if work is None:
            work = Work(self.number())
            self.works.append(work)
        message = self.takes()
        entry, index, delivery = message
        if self.machine.units.join(work.share, (7, entry), self.broker.sizes[entry], delivery, {index: message}, None):
            work.has.append((entry, index))

    def acknowledges_in(self, work: Work) -> None:
        """Acknowledge in the unit all that joined."""
        for places in self.machine.units.rest(work.share):
            try:
                request = self.machine.units.claim_rest(work.share, [])
            except TransactionConflict:
                self.give_up(work)
                return
            work.asked.append((request, places))
            self.machine.asks(request, places)
            self.machine.flush_acks()
            self.perform()
            self.to_broker.append(("ack in", work, request))

    def commits(self, work: Work) -> None:
        self.acknowledges_in(work)
        work.wants = work.wants or TxnAction.COMMIT
        self.end_if_answered(work)

    def give_up(self, work: Work) -> None:
        if work.wants is not TxnAction.ABORT:
            work.wants = TxnAction.ABORT
            self.machine.units.bring_back(work.share, 1.0, self.now, keep=False)
            self.perform()

    def aborts(self, work: Work) -> None:
        self.give_up(work)
        self.end_if_answered(work)

    def leaves(self) -> None:
        """The unit that was about to commit is prepared, or its outcome is unknown: others end it."""
        _, work = self.ends.popleft()
        self.machine.ended(work.share, None, self.now)
        self.works.remove(work)
        self.put_off.update(work.has)
        self.elsewhere.append(work)
        self.perform()

    def ended_elsewhere(self, outcome: TxnAction, *, is_told: bool) -> None:
        work = self.elsewhere.pop(0)
        self.applied(outcome, work)
        if outcome is TxnAction.ABORT:
            self.was_cut = True  # the broker goes back without a word, and may know less than was acknowledged
        if outcome is TxnAction.COMMIT:
            self.done.update(work.has)
        if is_told:
            self.machine.ended(work.share, outcome, self.now)
            self.perform()

    # --- the story ----------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:  # noqa: C901 - one line for each kind
        """Everything that may happen next."""
        if self.broker.published < len(self.broker.sizes):
            yield ("publish",)
        yield from (("broker", *each) for each in self.broker.moves())
        if self.broker.to_client:
            yield ("come",)
        if self.to_broker:
            yield ("go",)
        if self.ends:
            yield ("end",)
            if self.broker.kind != OURS:
                yield ("tell",)
            if self.ends[0][0] is TxnAction.COMMIT and self.left["unit"]:
                yield ("leave",)
            yield ("apply",)
        if self.late:
            yield ("late",)
        if self.early:
            yield ("early",)
        if self.elsewhere:
            yield from (
                ("elsewhere", outcome, told) for outcome in (TxnAction.COMMIT, TxnAction.ABORT) for told in (False, True)
            )
        if self.queue:
            yield from (("ack",), ("nack",), ("forget",)) if self.left["nack"] else (("ack",),)
            if self.left["unit"] and len(self.works) < (1 if self.keeps_order else 3):
                yield ("work", -1)
            yield from (("work", index) for index, work in enumerate(self.works) if work.wants is None)
        for index, work in enumerate(self.works):
            if work.wants is None:
                yield from (("commit", index), ("abort", index))
                if work.share.held.entries:
                    yield ("ack in", index)
        if self.left["ask"] and not self.machine.is_seeking:
            yield ("ask",)
        if self.left["cut"] and not self.machine.is_seeking:
            yield ("cut",)
        if self.left["seek"] and not (self.works or self.elsewhere or self.late or self.machine.is_seeking):
            for entry in range(self.broker.published):
                after = {uuid for at, (uuid, *_) in self.chunks.items() if at >= entry}
                if not any(uuid in after for at, (uuid, *_) in self.chunks.items() if at < entry):
                    yield ("seek", entry)
        if self.timers:
            yield ("wait",)

    def do(self, move: Move) -> None:  # noqa: C901 - one case for each kind
        """Let one of the moves happen."""
        match move:
            case ("publish",):
                self.broker.publish()
            case ("broker", what, which):
                self.broker.move((what, which))
            case ("come",):
                self.comes()
            case ("go",):
                self.goes()
            case ("end",):
                outcome, work = self.ends.popleft()
                self.applied(outcome, work)
                self.is_told(outcome, work)
            case ("tell",):
                outcome, work = self.ends.popleft()
                self.late.append((outcome, work, self.now))
                self.is_told(outcome, work)
            case ("apply",):
                self.early.append(self.ends.popleft())
                self.applied(*self.early[-1])
            case ("early",):
                self.is_told(*self.early.pop(0))
            case ("late",):
                outcome, work, _ = self.late.pop(0)
                self.applied(outcome, work)
            case ("leave",):
                self.left["unit"] -= 1
                self.leaves()
            case ("elsewhere", outcome, is_told):
                self.ended_elsewhere(outcome, is_told=is_told)
            case ("ack",):
                self.acknowledges()
            case ("nack",):
                self.left["nack"] -= 1
                self.nacks()
            case ("forget",):
                self.left["nack"] -= 1
                self.forgets()
            case ("work", -1):
                self.left["unit"] -= 1
                self.works_on(None)
            case ("work", index):
                self.works_on(self.works[index])
            case ("commit", index):
                self.commits(self.works[index])
            case ("abort", index):
                self.aborts(self.works[index])
            case ("ack in", index):
                self.acknowledges_in(self.works[index])
            case ("ask",):
                self.left["ask"] -= 1
                self.asks()
            case ("cut",):
                self.left["cut"] -= 1
                self.cut()
            case ("seek", entry):
                self.left["seek"] -= 1
                self.seeks(entry)
            case ("wait",):
                self.waits()
        for read in self.broker.reads:
            self.reads_since.setdefault(read.number, self.now)

    def waits(self) -> None:
        """Until the next timer is due: a frame takes less time than any timer, and a read at most `LONGEST_READ`."""
        until = min(due for due, _ in self.timers.values())
        while True:
            old = [read for read in self.broker.reads if self.reads_since.get(read.number, self.now) + LONGEST_READ <= until]
            if self.to_broker:
                self.goes()
            elif self.broker.to_client:
                self.comes()
            elif again := [each for each in self.broker.moves() if each[0] == "again"]:
                self.broker.move(again[0])
            elif old:
                index = self.broker.reads.index(old[0])
                self.broker.move(("land" if old[0].end is None else "handle", index))
            elif self.late and self.late[0][2] + LONGEST_READ <= until:
                outcome, work, _ = self.late.pop(0)
                self.applied(outcome, work)
            else:
                break
        self.expires()
        while self.is_calm and self.to_broker:
            self.goes()

    def heal(self) -> None:
        """Nothing goes wrong any more: everything is published, received and acknowledged."""
        end = self.now + 100
        while self.broker.unacked or self.to_broker or self.early or self.broker.published < len(self.broker.sizes):
            if self.broker.published < len(self.broker.sizes):
                self.broker.publish()
            elif self.to_broker:
                self.goes()
            elif self.broker.to_client:
                self.comes()
            elif moves := list(self.broker.moves()):
                self.broker.move(moves[-1])
            elif self.late:
                self.do(("late",))
            elif self.early:
                self.do(("early",))
            elif self.elsewhere:
                self.do(("elsewhere", TxnAction.ABORT, False))
            elif self.ends:
                self.do(("end",))
            elif self.queue:
                self.acknowledges()
            elif open_works := [work for work in self.works if work.wants is None]:
                self.commits(open_works[0])
            else:
                assert self.expires(), ("nobody asks any more", self.broker.unacked)
                assert self.now < end, ("waits for ever", self.broker.unacked)

    def judge(self) -> None:
        """After `heal`: nothing is lost or doubled."""
        missing = [message for message in self.messages() if not self.done[message]]
        assert missing == [], ("lost", missing)
        twice = [message for message, times in self.done.items() if times > 1]
        assert self.was_cut or twice == [], ("doubled", twice)
