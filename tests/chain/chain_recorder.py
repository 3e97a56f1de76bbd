"""What a worker writes into the history: its transactions as an observer of its client, its messages as it handles them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from chain_schedule import Hop
from history_format import HistoryWriter, decode_payload, encode_payload, make_payload

from pulsar_txn.client import AsyncTransaction, Message, MessageId, TransactionState
from pulsar_txn.wire.ids import TxnAction

SUBSCRIPTION: Final = "workers"
_VERBS: Final = {TxnAction.COMMIT: "commit", TxnAction.ABORT: "abort"}
_STATUS: Final = {TransactionState.COMMITTED: "committed", TransactionState.ABORTED: "aborted"}


def position_of(message_id: MessageId) -> list[int]:
    """As histories have it."""
    return [message_id.ledger_id, message_id.entry_id, message_id.batch_index]


def note_sent(writer: HistoryWriter, op: int, message_id: MessageId) -> None:
    """A send was answered. A broker that had the message before, from a lost connection, does not say where it is."""
    if message_id.ledger_id < 0:
        writer.info(op, note="the broker had it already")
    else:
        writer.ok(op, position=position_of(message_id))


class Output:
    """One message to be sent: its payload as a value and as bytes, and its key."""

    __slots__ = ("data", "key", "payload")

    def __init__(self, payload: dict[str, Any], key: str) -> None:
        self.payload = payload
        self.key = key
        self.data = encode_payload(payload)


class Transactions:
    """Names the transactions of a client and writes how they go; an observer of asyncio clients."""

    def __init__(self, writer: HistoryWriter) -> None:
        self.identity: dict[str, object] = {}
        """A field of each begin: of which incarnation of a transactional id it is."""
        self._writer = writer
        self._numbers = itertools.count()
        self._unnamed: WeakKeyDictionary[AsyncTransaction, str] = WeakKeyDictionary()
        self._begins: dict[str, int] = {}
        self._ends: dict[str, tuple[str, int]] = {}
        self._acks: dict[str, list[int]] = {}

    def begin(self, timeout: float) -> str:
        """A transaction is about to begin; the name that it is to be given."""
        name = f"{self._writer.process}/{next(self._numbers)}"
        self._begins[name] = self._writer.invoke("begin", txn=name, timeout_ms=int(timeout * 1000), **self.identity)
        return name

    def adopt(self, txn: AsyncTransaction, timeout: float) -> str:
        """The same for one that got its name from somebody else; before its first operation."""
        name = self._unnamed[txn] = self.begin(timeout)
        return name

    def name(self, txn: AsyncTransaction) -> str:
        """What the history calls it."""
        name = self._unnamed.get(txn, txn.name)
        assert name is not None
        return name

    def acknowledging(self, txn: AsyncTransaction, op: int) -> None:
        """An acknowledgement begins whose answer nobody shows us: it is in force if the transaction is."""
        self._acks.setdefault(self.name(txn), []).append(op)

    def failed(self, name: str) -> None:
        """A transaction did not begin, as far as its client knows."""
        op = self._begins.pop(name, None)
        if op is not None:
            self._writer.info(op)

    def gave_up(self, txn: AsyncTransaction) -> None:
        """Its end was asked for and not answered, and nobody waits any more: its coordinator aborts it at its timeout."""
        _, op = self._ends.pop(self.name(txn), (None, None))
        if op is not None:
            self._writer.info(op, state=txn.state.value)

    def txn_opened(self, txn: AsyncTransaction) -> None:
        """See `TransactionObserver`, here and below."""
        self._writer.ok(self._begins.pop(self.name(txn)), id=str(txn.id))

    def txn_ending(self, txn: AsyncTransaction, action: TxnAction) -> None:
        """END_TXN is about to be asked for."""
        if txn.id is not None:
            self.gave_up(txn)
            name, verb = self.name(txn), _VERBS[action]
            self._ends[name] = (verb, self._writer.invoke(verb, txn=name))

    def txn_ended(self, txn: AsyncTransaction) -> None:
        """It has ended, or nobody knows."""
        name, state = self.name(txn), txn.state
        verb, op = self._ends.pop(name, (None, None))
        if op is None:
            self._resolved(name, state)
        elif state in _STATUS:
            as_asked = (verb == "commit") == (state is TransactionState.COMMITTED)
            (self._writer.ok if as_asked else self._writer.fail)(op)
        elif verb == "commit" and state is TransactionState.TIMED_OUT:
            self._writer.fail(op)  # it never left, and will not: the coordinator aborts
        else:
            self._writer.info(op, state=state.value)
        for ack in self._acks.pop(name, ()):
            (self._writer.ok if state is TransactionState.COMMITTED else self._writer.info)(ack)

    def _resolved(self, name: str, state: TransactionState) -> None:
        if state in _STATUS:
            self._writer.ok(self._writer.invoke("status", txn=name), status=_STATUS[state])


class HopRecorder:
    """What one lane of a worker does on one hop."""

    def __init__(self, writer: HistoryWriter, hop: Hop, lane: str) -> None:
        self.hop = hop
        self.writer = writer
        self.identity: dict[str, object] = {}
        """As of `Transactions`, for clients that have no observer."""
        self._lane = lane
        self.producer = f"{writer.process}.{lane}"
        self.consumer = f"{writer.process}.{hop.source[-1]}"
        self._seqs: dict[str, itertools.count[int]] = {}
        self._parts: dict[int, HopRecorder] = {}
        self._source: Final[dict[str, Any]] = {"topic": hop.source, "partition": -1, "subscription": SUBSCRIPTION}

    def part(self, number: int) -> HopRecorder:
        """A lane within this one; the same each time, because the numbers of its messages go on when a style begins again."""
        if number not in self._parts:
            self._parts[number] = HopRecorder(self.writer, self.hop, f"{self._lane}.{number}")
        return self._parts[number]

    def delivered(self, messages: Sequence[Message[bytes]]) -> list[dict[str, Any]]:
        """The application has these; their payloads."""
        payloads = [decode_payload(message.data) for message in messages]
        for message, payload in zip(messages, payloads, strict=True):
            self.writer.event(
                "deliver",
                **self._source,
                consumer=self.consumer,
                reader=None,
                position=position_of(message.message_id),
                payload=payload,
                redeliveries=message.redelivery_count,
            )
        return payloads

    def outputs(self, txn: str, inputs: Sequence[dict[str, Any]]) -> list[Output]:
        """What one transaction makes of its inputs: one message of each."""
        parts = [[self.hop.target, -1]]
        made = []
        for number, source in enumerate(inputs):
            producer, key = self.producer, source["key"]
            if self.hop.batched:  # batches are by key there, so order is kept within a key only
                producer = f"{producer}.{key}"
            seq = next(self._seqs.setdefault(producer, itertools.count()))
            came_from = [[source["producer"], source["seq"]]]
            payload = make_payload(producer, seq, txn=txn, i=number, n=len(inputs), parts=parts, inputs=came_from)
            made.append(Output(payload | {"root": source["root"], "key": key}, key))
        return made

    def sending(self, output: Output) -> int:
        """A send begins."""
        payload = output.payload
        return self.writer.invoke(
            "send",
            topic=self.hop.target,
            partition=-1,
            producer=payload["producer"],
            seq=payload["seq"],
            txn=payload["txn"],
            payload=payload,
        )

    def acknowledging(self, txn: str, messages: Sequence[Message[bytes]]) -> int:
        """An acknowledgement begins."""
        positions = [position_of(message.message_id) for message in messages]
        return self.writer.invoke(
            "ack", **self._source, consumer=self.consumer, positions=positions, kind="individual", txn=txn
        )

    def preparing(self, txn: str) -> int:
        """A transaction is about to be prepared."""
        return self.writer.invoke("prepare", txn=txn)

    def subscribing(self) -> int:
        """The subscription is joined."""
        return self.writer.invoke("subscribe", **self._source, consumer=self.consumer, mode=self.hop.mode, initial="earliest")


class Fate:
    """How a transaction is to end, drawn at its beginning: `timeout` and `pause` in seconds.

    `prepares`: it is prepared before its commit. When its process dies in between, the check group of all workers ends it.
    """

    __slots__ = ("aborts", "pause", "prepares", "timeout")

    def __init__(self, rng: random.Random) -> None:
        drawn = rng.random()
        self.aborts = drawn < ABORTED
        late = ABORTED <= drawn < ABORTED + LATE
        self.prepares = not late and rng.random() < PREPARED
        self.timeout = SHORT_TIMEOUT if late else TIMEOUT
        self.pause = SHORT_TIMEOUT * rng.uniform(0.85, 1.15) if late else rng.choice((0.0, 0.01, 0.05))


ABORTED: Final = 0.15
LATE: Final = 0.03
"""Shares of the transactions: those that are aborted, and those whose commit comes about when their time is over."""
PREPARED: Final = 0.3
"""The share of the others that is prepared first, where the server can."""
TIMEOUT: Final = 4.0
SHORT_TIMEOUT: Final = 1.0
"""Seconds of a transaction; those of a killed worker end by it, and only then go their messages on."""
