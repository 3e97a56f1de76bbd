"""The outgoing messages of one topic partition, from the call that queues a message to its receipt.

This machine decides which messages leave together, with which sequence ids and in which order, what is sent again after a
reconnect, and how each message ends. It never encodes, writes, waits or looks at a clock: the shell
(`send/partition_producer.py`) tells it what happened, and performs the effects in their order.

Messages of one fate share a **group**: those of one transaction, those of none, and with batches by key those of one key of
these. A group has one **batch** that takes messages. The table says what becomes of a batch:

OPEN takes messages. The first message of a group that has nothing in flight asks for the end of the loop's turn, so a lone send
is not delayed; while something of the group is in flight, the batch collects until it is full, the answer of the earlier one
comes, or its delay is over. So batches grow by themselves under load.

COMPLETE takes no more. It leaves at once, unless its transaction has not registered the partition with the coordinator: then it
waits, and so does what comes after it in its group. Everybody else's messages pass it meanwhile.

SEALED has its sequence ids and is encoded, in the order in which it leaves; what leaves has ascending ids, however many groups
there are. No connection has taken it yet. WRITTEN: a connection took it. DOUBTFUL: that connection is lost, and nobody here
knows whether the broker has it. The next connection takes everything SEALED and DOUBTFUL again, in the same order and with the
same ids: a broker that looks for duplicates drops what it has. One that does not would have a message of a transaction twice,
so there each batch of a transaction that has a DOUBTFUL one fails (UNSURE), and the transaction with it.

REFUSED: the broker does not allow it, and its transaction may have been fenced; its coordinator is asked, and what it says is
the error (TOLD). ENDED has a receipt or an error.

LATE comes at the two moments at which a batch would leave, when its transaction is over: what reaches a topic after the abort
of its transaction may hold that topic back on some brokers. A WRITTEN batch stays: only its answer says what became of it.

Receipts come in the order of the ids. One that is missing closes the connection, because only sending all again in order can
tell what the broker has; one that nobody waits for belongs to what was given up, and is passed over.

Sources: PIP-31 and PIP-37 (chunks), CommandSend, CommandSendReceipt, CommandSendError; the sequence ids of PIP-6.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from pulsar_txn.client.errors import (
    ChecksumError,
    ConnectionLost,
    MessageTooLarge,
    NotAllowedError,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    TopicTerminatedError,
    TransactionAborted,
)
from pulsar_txn.wire.ids import TxnId


class State(enum.IntEnum):
    """A batch's state."""

    OPEN = 0
    COMPLETE = 1
    SEALED = 2
    WRITTEN = 3
    DOUBTFUL = 4
    REFUSED = 5
    ENDED = 6


class Event(enum.IntEnum):
    """Something that happens to a batch."""

    CLOSE = 0
    SEAL = 1
    WRITE = 2
    LOSE = 3
    RECEIPT = 4
    REFUSE = 5
    DISALLOW = 6
    TELL = 7
    EXPIRE = 8
    LATE = 9
    UNSURE = 10
    FAIL = 11


class Act(enum.Enum):
    """The machine's answer to an event."""

    CLOSE = "take no more"
    SEAL = "give it its sequence ids and encode it"
    WRITE = "write it"
    REPEAT = "write it again"
    DOUBT = "keep it for the next connection"
    SUCCEED = "give each message its id"
    ASK = "ask the coordinator whether it was fenced"
    FAIL = "fail its messages"
    SKIP = "do nothing"


class Cell(NamedTuple):
    """An act, and the state after it."""

    act: Act
    to: State


_NO_ROWS: Final[list[Any]] = []
"""Of a batch that is encoded; nobody adds to it."""

_OPEN, _COMPLETE, _SEALED, _WRITTEN, _DOUBTFUL, _REFUSED, _ENDED = State
_FAILS: Final = Cell(Act.FAIL, State.ENDED)
_DONE: Final = Cell(Act.SUCCEED, State.ENDED)


def _skip(state: State) -> Cell:
    return Cell(Act.SKIP, state)


TRANSITIONS: Final[Mapping[tuple[State, Event], Cell]] = {
    (_OPEN, Event.CLOSE): Cell(Act.CLOSE, _COMPLETE),
    (_OPEN, Event.SEAL): _skip(_OPEN),
    (_OPEN, Event.WRITE): _skip(_OPEN),
    (_OPEN, Event.LOSE): _skip(_OPEN),
    (_OPEN, Event.RECEIPT): _skip(_OPEN),
    (_OPEN, Event.REFUSE): _skip(_OPEN),
    (_OPEN, Event.DISALLOW): _skip(_OPEN),
    (_OPEN, Event.TELL): _skip(_OPEN),
    (_OPEN, Event.EXPIRE): _skip(_OPEN),
    (_OPEN, Event.LATE): _skip(_OPEN),
    (_OPEN, Event.UNSURE): _skip(_OPEN),
    (_OPEN, Event.FAIL): _FAILS,
    #
    (_COMPLETE, Event.CLOSE): _skip(_COMPLETE),
    (_COMPLETE, Event.SEAL): Cell(Act.SEAL, _SEALED),
    (_COMPLETE, Event.WRITE): _skip(_COMPLETE),
    (_COMPLETE, Event.LOSE): _skip(_COMPLETE),
    (_COMPLETE, Event.RECEIPT): _skip(_COMPLETE),
    (_COMPLETE, Event.REFUSE): _skip(_COMPLETE),
    (_COMPLETE, Event.DISALLOW): _skip(_COMPLETE),
    (_COMPLETE, Event.TELL): _skip(_COMPLETE),
    (_COMPLETE, Event.EXPIRE): _skip(_COMPLETE),
    (_COMPLETE, Event.LATE): _FAILS,
    (_COMPLETE, Event.UNSURE): _skip(_COMPLETE),
    (_COMPLETE, Event.FAIL): _FAILS,
    #
    (_SEALED, Event.CLOSE): _skip(_SEALED),
    (_SEALED, Event.SEAL): _skip(_SEALED),
    (_SEALED, Event.WRITE): Cell(Act.WRITE, _WRITTEN),
    (_SEALED, Event.LOSE): _skip(_SEALED),
    (_SEALED, Event.RECEIPT): _skip(_SEALED),
    (_SEALED, Event.REFUSE): _skip(_SEALED),
    (_SEALED, Event.DISALLOW): _skip(_SEALED),
    (_SEALED, Event.TELL): _skip(_SEALED),
    (_SEALED, Event.EXPIRE): _FAILS,
    (_SEALED, Event.LATE): _FAILS,
    (_SEALED, Event.UNSURE): _FAILS,
    (_SEALED, Event.FAIL): _FAILS,
    #
    (_WRITTEN, Event.CLOSE): _skip(_WRITTEN),
    (_WRITTEN, Event.SEAL): _skip(_WRITTEN),
    (_WRITTEN, Event.WRITE): _skip(_WRITTEN),
    (_WRITTEN, Event.LOSE): Cell(Act.DOUBT, _DOUBTFUL),
    (_WRITTEN, Event.RECEIPT): _DONE,
    (_WRITTEN, Event.REFUSE): _FAILS,
    (_WRITTEN, Event.DISALLOW): Cell(Act.ASK, _REFUSED),
    (_WRITTEN, Event.TELL): _skip(_WRITTEN),
    (_WRITTEN, Event.EXPIRE): _FAILS,
    (_WRITTEN, Event.LATE): _skip(_WRITTEN),
    (_WRITTEN, Event.UNSURE): _FAILS,
    (_WRITTEN, Event.FAIL): _FAILS,
    #
    (_DOUBTFUL, Event.CLOSE): _skip(_DOUBTFUL),
    (_DOUBTFUL, Event.SEAL): _skip(_DOUBTFUL),
    (_DOUBTFUL, Event.WRITE): Cell(Act.REPEAT, _WRITTEN),
    (_DOUBTFUL, Event.LOSE): _skip(_DOUBTFUL),
    (_DOUBTFUL, Event.RECEIPT): _DONE,
    (_DOUBTFUL, Event.REFUSE): _FAILS,
    (_DOUBTFUL, Event.DISALLOW): Cell(Act.ASK, _REFUSED),
    (_DOUBTFUL, Event.TELL): _skip(_DOUBTFUL),
    (_DOUBTFUL, Event.EXPIRE): _FAILS,
    (_DOUBTFUL, Event.LATE): _FAILS,
    (_DOUBTFUL, Event.UNSURE): _FAILS,
    (_DOUBTFUL, Event.FAIL): _FAILS,
    #
    (_REFUSED, Event.CLOSE): _skip(_REFUSED),
    (_REFUSED, Event.SEAL): _skip(_REFUSED),
    (_REFUSED, Event.WRITE): _skip(_REFUSED),
    (_REFUSED, Event.LOSE): _skip(_REFUSED),
    (_REFUSED, Event.RECEIPT): _skip(_REFUSED),
    (_REFUSED, Event.REFUSE): _skip(_REFUSED),
    (_REFUSED, Event.DISALLOW): _skip(_REFUSED),
    (_REFUSED, Event.TELL): _FAILS,
    (_REFUSED, Event.EXPIRE): _skip(_REFUSED),
    (_REFUSED, Event.LATE): _skip(_REFUSED),
    (_REFUSED, Event.UNSURE): _skip(_REFUSED),
    (_REFUSED, Event.FAIL): _FAILS,
    #
    (_ENDED, Event.CLOSE): _skip(_ENDED),
    (_ENDED, Event.SEAL): _skip(_ENDED),
    (_ENDED, Event.WRITE): _skip(_ENDED),
    (_ENDED, Event.LOSE): _skip(_ENDED),
    (_ENDED, Event.RECEIPT): _skip(_ENDED),
    (_ENDED, Event.REFUSE): _skip(_ENDED),
    (_ENDED, Event.DISALLOW): _skip(_ENDED),
    (_ENDED, Event.TELL): _skip(_ENDED),
    (_ENDED, Event.EXPIRE): _skip(_ENDED),
    (_ENDED, Event.LATE): _skip(_ENDED),
    (_ENDED, Event.UNSURE): _skip(_ENDED),
    (_ENDED, Event.FAIL): _skip(_ENDED),
}
"""(state, event) -> act and next state; complete."""


_WRITE_SEALED: Final = TRANSITIONS[State.SEALED, Event.WRITE]
_RECEIPT_WRITTEN: Final = TRANSITIONS[State.WRITTEN, Event.RECEIPT]
"""Cells of every message, looked up once."""


class Effect(enum.IntEnum):
    """The first item of an effect; the others are named here in their order."""

    WRITE = 0
    """buffers: one SEND for the connection."""
    ENDED = 1
    """batch, error: its messages fail with it."""
    LEAVE = 2
    """group: call `seal` until it has nothing more."""
    AT = 3
    """seconds: call `expire` at this time, at the latest."""
    COUNT = 4
    """group, messages, bytes: tell the transaction of messages that joined a batch which it knows."""
    AGAIN = 5
    """group: something of its transaction is written a second time."""
    WATCHED = 6
    """token, error or None: what was watched has ended."""
    ASK = 7
    """batch, error: find out why the broker does not allow it, and say so with `told`."""
    RECONNECT = 8
    """error: close the connection."""
    STOP = 9
    """error: the producer can never send again."""


Row: TypeAlias = bytes | tuple[Any, ...]
"""One message as `wire.batches.encode_batch` takes it: its payload, or a tuple that begins with it."""


def row_sequence_id(row: Row) -> int | None:
    """The sequence id that the program gave to a message."""
    return row[4] if isinstance(row, tuple) and len(row) > 4 else None


def row_payload(row: Row) -> bytes:
    """The payload of a message."""
    return row[0] if isinstance(row, tuple) else row


class UnitSends:
    """One transaction, as the messages of one partition see it.

    `txn_id` is None until the partition is registered. `over` is why nothing of it may leave any more. `given` has the sequence
    ids that the program gave to its messages.
    """

    __slots__ = ("given", "over", "txn_id")

    def __init__(self) -> None:
        self.txn_id: TxnId | None = None
        self.over: PulsarError | None = None
        self.given: set[int] = set()


class Watch:
    """One waiter for the end of a batch, or of the batches that it was cut into: `left` of them have not ended."""

    __slots__ = ("error", "left", "token")

    def __init__(self, token: Any) -> None:
        self.token = token
        self.left = 1
        self.error: BaseException | None = None


class Batch:
    """Messages that leave together, a message alone, a chunk of one, or a batch that was built elsewhere (`encoded`).

    `rows` until it is sealed, `buffers` afterwards. `messages` is 0 for all chunks of a message but the last.
    """

    __slots__ = (
        "alone",
        "buffers",
        "deadline",
        "encoded",
        "futures",
        "group",
        "highest",
        "messages",
        "rows",
        "sequence_id",
        "size",
        "state",
        "watches",
    )

    def __init__(
        self,
        group: Group,
        state: State,
        rows: list[Row],
        futures: list[Any],
        messages: int,
        size: int,
        alone: Any = None,
        encoded: Any = None,
    ) -> None:
        self.group = group
        self.state = state
        self.rows = rows
        self.futures = futures
        self.messages = messages
        self.size = size
        self.alone = alone
        self.encoded = encoded
        self.sequence_id = -1
        self.highest = -1
        self.buffers: Sequence[bytes] = ()
        self.deadline = math.inf
        self.watches: tuple[Watch, ...] = ()

    def watch(self, token: Any) -> None:
        """Have `token` told of the end."""
        self.watches += (Watch(token),)

    def part(self, cut: slice) -> Batch:
        """Some of the messages, as a batch that has not left; whoever waits for this one waits for it as well."""
        rows = self.rows[cut]
        size = sum(len(row_payload(each)) for each in rows)
        part = Batch(self.group, _COMPLETE, rows, self.futures[cut], len(rows), size)
        part.watches = self.watches
        return part


class Group:
    """Messages of one fate: of one transaction or of none, and with batches by key of one key (`name`) of these.

    `batch` takes messages, `full` are complete and have not left, `in_flight` counts those that have left without an answer.
    `counted` and `counted_size`: what the transaction knows of `batch`. `txn` is the transaction as the shell knows it.
    """

    __slots__ = ("batch", "counted", "counted_size", "due", "full", "in_flight", "key", "name", "txn", "unit")

    def __init__(self, key: object, unit: UnitSends | None, name: str | bytes | None, txn: Any = None) -> None:
        self.key = key
        self.unit = unit
        self.txn = txn
        self.name = name
        self.batch: Batch | None = None
        self.full: deque[Batch] = deque()
        self.in_flight = 0
        self.counted = self.counted_size = 0
        self.due = math.inf

    @property
    def waits(self) -> bool:
        """True until its transaction has registered the partition."""
        return self.unit is not None and self.unit.txn_id is None


class Way(enum.IntEnum):
    """Order to the shell about a SEND that leaves."""

    KEEP = 0
    """Nothing: there is no connection. The next one takes it."""
    WRITE = 1
    """Write it with what follows in this turn of the loop."""
    WRITE_NOW = 2
    """Write it at once: nothing else is in flight, and somebody may wait for it."""


_KEEP, _WRITE, _WRITE_NOW = Way


class Todo(enum.IntEnum):
    """Order to the shell after a message was queued."""

    NOTHING = 0
    TURN = 1
    """Call `turn_ends` at the end of the loop's turn."""
    LATER = 2
    """Call `collects`: the batch has its first message, and something is in flight before it."""
    LEAVE = 3
    """Call `seal` until the group has nothing more."""


_NOTHING, _TURN, _LATER, _LEAVE = Todo


class Outgoing:
    """The machine. Each method is an event; `effects` is what the shell then performs, in its order, and clears.

    What happens for every message returns what is to be done instead: `add`, `turn_ends`, `leaves` and `receipt`.

    `max_messages` and `max_bytes` bound a batch, `delay` is how long one may collect and `send_timeout` how long a message may
    wait for its receipt (both in seconds; None: for ever). All times are seconds of one monotonic clock. With `keyed`, each key
    has batches of its own.
    """

    def __init__(
        self,
        topic: str,
        *,
        max_messages: int,
        max_bytes: int,
        delay: float,
        send_timeout: float | None,
        keyed: bool,
        first_sequence_id: int | None,
    ) -> None:
        self.effects: list[tuple[Any, ...]] = []
        self.next_sequence_id = first_sequence_id
        """None until the broker has said which was the last."""
        self.last_sequence_id = -1
        """The highest one that has a receipt."""
        self.failure: PulsarError | None = None
        """Error that ends the queue."""
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self._topic = topic
        self._delay = delay
        self._send_timeout = send_timeout
        self._keyed = keyed
        self._connected = False
        self._groups: dict[object, Group] = {}  # those with an open batch in the order of their first messages
        self._single = Group(None, None, None)  # of messages that neither wait for others nor for a transaction
        self._ready: list[Group] = []
        self._in_flight: deque[Batch] = deque()
        self._asked: dict[Batch, PulsarError] = {}
        self._numbered_from: int | None = None
        self._refused_at = -math.inf
        self._refusal: PulsarError | None = None

    def taken(self) -> list[tuple[Any, ...]]:
        """The effects, which are the shell's then."""
        effects, self.effects = self.effects, []
        return effects

    # --- queueing ---------------------------------------------------------------------------------------------------

    def lone(self, row: Row, size: int, future: Any) -> Batch:
        """A message leaves by itself: encode the batch, and call `leaves` or `unsealable`."""
        batch = Batch(self._single, _SEALED, [row], [future], 1, size)
        self._single.in_flight += 1
        if type(row) is bytes:  # it has no id of its own
            self._numbered_from = following = self.next_sequence_id
            batch.sequence_id = batch.highest = following or 0
            self.next_sequence_id = batch.highest + 1
        else:
            self._number(batch)
        return batch

    def check(self, row: Row, unit: UnitSends | None) -> None:
        """A message of more than its payload is about to be queued; what has to leave before it, leaves.

        NotAllowedError for a sequence id that another message of its transaction has: a broker that looks for repeats would
        drop it, or refuse it, by what the two contain.
        """
        given = row_sequence_id(row)
        if given is None:
            return
        if unit is not None:
            if given in unit.given:
                text = f"another message of this transaction has sequence id {given} on {self._topic}"
                raise NotAllowedError(text, hint="give each message an id of its own, or none")
            unit.given.add(given)
        if not self._keyed and (len(self._groups) > 1 or unit not in self._groups):
            others = [each for each in self._groups.values() if each.batch is not None and each.key is not unit]
            if not all(each.waits for each in others):
                self.flush()  # a broker that looks for duplicates drops what comes after a higher sequence id

    def group(self, row: Row, unit: UnitSends | None, txn: Any = None) -> Group:
        """The group of a message. `txn`: what the shell calls the transaction."""
        key: object = unit
        name: str | bytes | None = None
        if self._keyed and isinstance(row, tuple):
            name = row[1] if row[5] is None else row[5]
            key = unit if name is None else (unit, name)
        return self._groups.get(key) or Group(key, unit, name, txn)

    def has_room(self, group: Group, size: int) -> bool:
        """True when the open batch takes a message of this size; else the batch is COMPLETE, and leaves first."""
        batch = group.batch
        if batch is None or batch.size + size <= self.max_bytes or not batch.size:
            return True
        self._close(group)
        return False

    def add(self, group: Group, row: Row, size: int, future: Any) -> Todo:
        """A message is queued, for which the open batch has room (`has_room`).

        The transaction knows the first one of a batch, and is told of the others.
        """
        batch = group.batch
        if batch is not None:
            batch.rows.append(row)
            batch.futures.append(future)
            batch.size += size
            batch.messages += 1
            if batch.messages < self.max_messages and batch.size < self.max_bytes:
                return _NOTHING
            self._close(group)
            return _LEAVE
        group.batch = Batch(group, _OPEN, [row], [future], 1, size)
        group.counted, group.counted_size = 1, size
        self._groups.pop(group.key, None)  # its place is that of its first message
        self._groups[group.key] = group
        if self.max_messages == 1:
            self._close(group)
            return _LEAVE
        if group.in_flight:
            return _NOTHING if group.waits else _LATER
        if group.waits:
            return _NOTHING
        self._ready.append(group)
        return _TURN if len(self._ready) == 1 else _NOTHING

    def collects(self, group: Group, now: float) -> None:
        """The open batch has its first message now, and collects while something is in flight, or for its delay."""
        group.due = now + self._delay
        self.effects.append((Effect.AT, group.due))

    def group_of_encoded(self, unit: UnitSends | None, txn: Any = None) -> Group:
        """The group of a batch that was built elsewhere."""
        key: object = object() if self._keyed else unit
        return self._groups.get(key) or Group(key, unit, None, txn)

    def apart(self, group: Group, rows: list[Row], future: Any, messages: int, size: int, alone: Any, encoded: Any) -> None:
        """A message or an encoded batch that shares no batch is queued, after all that its group has."""
        self._groups[group.key] = group
        self._close(group)
        group.full.append(Batch(group, _COMPLETE, rows, [future], messages, size, alone, encoded))
        self.effects.append((Effect.LEAVE, group))

    def turn_ends(self) -> list[Group]:
        """The loop's turn ends: the groups that leave, each until `seal` has nothing more of it."""
        ready, self._ready = self._ready, []
        return ready

    def flush(self) -> None:
        """Open batches leave; messages whose transaction is still registering follow by themselves."""
        ready = [each for each in self._groups.values() if (each.batch is not None or each.full) and not each.waits]
        self.effects += [(Effect.LEAVE, each) for each in ready]

    def count(self, unit: UnitSends) -> None:
        """The transaction wants to know all messages of its open batches."""
        for group in self._groups.values():
            if group.unit is unit:
                self._count(group)

    # --- transactions -----------------------------------------------------------------------------------------------

    def registered(self, unit: UnitSends, txn_id: TxnId) -> None:
        """The coordinator knows the partition: what waited for that leaves."""
        if unit.txn_id is None:
            unit.txn_id = txn_id
            self.effects += [(Effect.LEAVE, each) for each in self._groups.values() if each.unit is unit]

    def unregistered(self, unit: UnitSends, error: BaseException) -> None:
        """The coordinator refused the partition: what waited for it fails."""
        for group in [each for each in self._groups.values() if each.unit is unit]:
            for batch in self._given_up(group):
                self._happens(Event.FAIL, batch, error)

    def over(self, unit: UnitSends, error: PulsarError) -> None:
        """The transaction has ended, or can no longer be used: nothing of it leaves any more. The last reason is told."""
        unit.over = error

    def in_transactions(self) -> set[Group]:
        """Groups of transactions that have left something without an answer."""
        return {each.group for each in self._in_flight if each.group.unit is not None}

    # --- sealing ----------------------------------------------------------------------------------------------------

    def seal(self, group: Group) -> Batch | None:
        """The next batch of a group that leaves, with its sequence ids; None without one, or before it is registered.

        Encode it, and call `leaves`, after `chunks` when it is several SENDs; or `unsealable`.
        """
        if group.waits:
            return None
        if group.batch is not None:
            self._close(group)
        while group.full:
            batch = group.full.popleft()
            group.in_flight += 1
            unit = group.unit
            if unit is not None and unit.over is not None:
                self._happens(Event.LATE, batch, unit.over)
                continue
            self._number(batch)
            batch.state = TRANSITIONS[batch.state, Event.SEAL].to
            return batch
        return None

    def chunks(self, batch: Batch, count: int) -> list[Batch]:
        """A large message is encoded as several SENDs: a batch with its sequence id for each of its chunks but the last."""
        batch.group.in_flight += count
        chunks = [Batch(batch.group, _SEALED, _NO_ROWS, batch.futures, 0, 0) for _ in range(count)]
        for chunk in chunks:
            chunk.sequence_id = chunk.highest = batch.sequence_id
        return chunks

    def unsealable(self, batch: Batch, error: PulsarError) -> None:
        """A batch cannot be encoded. One that is too large is cut in two, which are its group's again; no id is used."""
        self.next_sequence_id = self._numbered_from
        group = batch.group
        if isinstance(error, MessageTooLarge) and len(batch.rows) > 1:
            group.in_flight -= 1  # what is said of the messages counts for nothing before it is encoded
            group.full.extendleft(reversed(self._split_in_two(batch)))
        else:
            self._happens(Event.FAIL, batch, error)

    def _number(self, batch: Batch) -> None:
        """Sequence ids: the program's own where it gave them, else the next ones."""
        self._numbered_from = self.next_sequence_id
        following, rows = self.next_sequence_id or 0, batch.rows
        first, last = following, following + batch.messages - 1
        if rows and not (type(rows[0]) is bytes and type(rows[-1]) is bytes):
            given, given_last = row_sequence_id(rows[0]), row_sequence_id(rows[-1])
            if given is not None:
                first, last = given, given + batch.messages - 1
            if given_last is not None:
                last = given_last
        batch.sequence_id = first
        batch.highest = last = max(first, last)
        self.next_sequence_id = max(following, last + 1)

    def leaves(self, batch: Batch, buffers: list[bytes], now: float) -> Way:
        """A batch is encoded as one SEND. What is to be done with that."""
        batch.buffers, batch.rows, batch.encoded = buffers, _NO_ROWS, None
        alone = not self._in_flight
        self._in_flight.append(batch)
        if self._send_timeout:
            batch.deadline = now + self._send_timeout
            if alone:
                self.effects.append((Effect.AT, batch.deadline))
        if not self._connected:
            return _KEEP
        batch.state = _WRITE_SEALED.to
        return _WRITE_NOW if alone else _WRITE

    # --- the connection ---------------------------------------------------------------------------------------------

    def opened(self, last_sequence_id: int, max_bytes: int, *, deduplicates: bool) -> None:
        """The broker has made the producer. `last_sequence_id`: the last one that it has of it, or -1.

        `deduplicates`: it drops what it has got already, in transactions at least.
        """
        if self.next_sequence_id is None:
            self.next_sequence_id = last_sequence_id + 1
            self.last_sequence_id = last_sequence_id
        self.max_bytes = max_bytes
        self._connected = True
        unsure = {each.group.unit for each in self._in_flight if each.state is State.DOUBTFUL and not deduplicates}
        before, self._in_flight = self._in_flight, deque()
        ended: list[tuple[Event, Batch, PulsarError]] = []
        for batch in before:
            unit = batch.group.unit
            if unit is not None and unit.over is not None:
                ended.append((Event.LATE, batch, unit.over))
            elif unit is not None and unit in unsure:
                text = f"the connection broke before the receipt, and {self._topic} does not look for duplicates"
                doubled = TransactionAborted(text, txn_id=unit.txn_id, hint="run the unit again, in a new transaction")
                ended.append((Event.UNSURE, batch, doubled))
            else:
                self._in_flight.append(batch)
                self._happens(Event.WRITE, batch)
        for event, batch, error in ended:
            self._happens(event, batch, error)

    def lost(self) -> None:
        """The connection is gone, or the broker has closed the producer."""
        self._connected = False
        for batch in self._in_flight:
            self._happens(Event.LOSE, batch)

    def receipt(self, sequence_id: int) -> Batch | None:
        """A SEND_RECEIPT has come. The batch whose messages have their ids now; there are effects beside that."""
        in_flight = self._in_flight
        if in_flight and in_flight[0].sequence_id == sequence_id:
            batch = in_flight.popleft()
            batch.state = (_RECEIPT_WRITTEN if batch.state is _WRITTEN else TRANSITIONS[batch.state, Event.RECEIPT]).to
            if batch.messages:
                self.last_sequence_id = batch.highest
            self._follows(batch, None)
            return batch
        if self._connected and any(each.sequence_id == sequence_id for each in in_flight):
            self.effects.append((Effect.RECONNECT, ConnectionLost("a receipt was skipped")))
        return None

    def refused(self, sequence_id: int, error: PulsarError, now: float) -> None:
        """A SEND_ERROR has come: the one message fails, or the producer ends, or all is sent again on another connection."""
        if isinstance(error, ProducerFenced | TopicTerminatedError):
            self.effects.append((Effect.STOP, error))
        elif error.retriable or isinstance(error, ChecksumError):
            self._refused_at, self._refusal = now, error
            if self._connected:
                self.effects.append((Effect.RECONNECT, ConnectionLost(f"a send was refused: {error}")))
        else:
            for batch in [each for each in self._in_flight if each.sequence_id == sequence_id]:  # all chunks of a message
                self._in_flight.remove(batch)
                asks = type(error) is NotAllowedError and batch.group.unit is not None
                self._happens(Event.DISALLOW if asks else Event.REFUSE, batch, error)

    def told(self, batch: Batch, error: PulsarError) -> None:
        """The coordinator has said why a batch was not allowed."""
        if self._asked.pop(batch, None) is not None:
            self._happens(Event.TELL, batch, error)

    # --- time and ends ----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """A time that was asked for has come."""
        while self._in_flight and self._in_flight[0].deadline <= now:
            batch = self._in_flight.popleft()
            error = OperationTimeout(self._no_receipt(batch.deadline - (self._send_timeout or 0)), maybe_processed=True)
            self._happens(Event.EXPIRE, batch, error)
        following = self._in_flight[0].deadline if self._in_flight else math.inf
        for group in self._groups.values():
            if group.batch is not None and not group.waits:
                if group.due <= now:
                    self.effects.append((Effect.LEAVE, group))
                else:
                    following = min(following, group.due)
        if following < math.inf:
            self.effects.append((Effect.AT, following))

    def outstanding(self) -> list[Batch]:
        """Batches without an answer, each to be given to `watch`. Open ones are COMPLETE then: call `flush`."""
        for group in self._groups.values():
            self._close(group)
        batches = [each for each in (*self._asked, *self._in_flight) if each.messages]
        batches += [each for group in self._groups.values() for each in group.full]
        return batches

    def watch(self, batch: Batch, token: Any) -> None:
        """`token` waits for the end of a batch: WATCHED says it."""
        batch.watch(token)

    def refuse(self, error: PulsarError) -> None:
        """Nothing is queued any more; what is queued goes on."""
        self.failure = error

    def fail(self, error: PulsarError) -> None:
        """The producer can never send again: everything fails."""
        self.failure = self.failure or error
        self._connected = False
        held = [batch for group in self._groups.values() for batch in self._given_up(group)]
        in_flight, self._in_flight = self._in_flight, deque()
        asked, self._asked = self._asked, {}
        for batch, why in asked.items():
            self._happens(Event.FAIL, batch, why)
        for batch in (*in_flight, *held):
            self._happens(Event.FAIL, batch, error)

    def _given_up(self, group: Group) -> deque[Batch]:
        """Take what has not left out of a group, as if it were in flight: each is about to fail."""
        self._close(group)
        batches, group.full = group.full, deque()
        group.in_flight += len(batches)
        return batches

    def _no_receipt(self, since: float) -> str:
        """The text of a timeout, with what the broker has said meanwhile."""
        text = f"no receipt from {self._topic} within {self._send_timeout or 0:g} s"
        if self._refusal is None or self._refused_at < since:
            return text
        return f"{text}; the broker's last answer: {self._refusal}"

    # --- the table --------------------------------------------------------------------------------------------------

    def _happens(self, event: Event, batch: Batch, error: Any = None) -> None:
        """Look the cell up, and do what it says. `error`: that of the batch's messages, where the event has one."""
        act, batch.state = TRANSITIONS[batch.state, event]
        if act is Act.WRITE or act is Act.REPEAT:
            if act is Act.REPEAT and batch.group.unit is not None:
                self.effects.append((Effect.AGAIN, batch.group))
            self.effects.append((Effect.WRITE, batch.buffers))
        elif act is Act.FAIL:
            self.effects.append((Effect.ENDED, batch, error))
            self._follows(batch, error)
        elif act is Act.ASK:
            self._asked[batch] = error
            self.effects.append((Effect.ASK, batch, error))

    def _close(self, group: Group) -> None:
        batch = group.batch
        if batch is not None:
            self._count(group)
            group.batch, group.counted, group.counted_size = None, 0, 0
            batch.state = TRANSITIONS[batch.state, Event.CLOSE].to
            group.full.append(batch)

    def _count(self, group: Group) -> None:
        batch = group.batch
        if group.unit is not None and batch is not None and batch.messages > group.counted:
            self.effects.append((Effect.COUNT, group, batch.messages - group.counted, batch.size - group.counted_size))
            group.counted, group.counted_size = batch.messages, batch.size

    def _follows(self, batch: Batch, error: BaseException | None) -> None:
        """The batch has its answer; the next one of its group, which waited for this one, leaves."""
        if batch.watches:
            self._tell(batch.watches, error)
        group = batch.group
        group.in_flight -= 1
        if group.in_flight == 0:
            if group.batch is not None:
                self.effects.append((Effect.LEAVE, group))
            elif not group.full and group.key is not None and self._groups.get(group.key) is group:
                del self._groups[group.key]

    def _tell(self, watches: tuple[Watch, ...], error: BaseException | None) -> None:
        for watch in watches:
            watch.left -= 1
            watch.error = watch.error or error
            if not watch.left:
                self.effects.append((Effect.WATCHED, watch.token, watch.error))

    @staticmethod
    def _split_in_two(batch: Batch) -> tuple[Batch, Batch]:
        middle = len(batch.rows) // 2
        cuts: Iterable[slice] = (slice(middle), slice(middle, None))
        first, second = (batch.part(cut) for cut in cuts)
        for watch in batch.watches:
            watch.left += 1
        return first, second
