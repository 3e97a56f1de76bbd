"""How workers write consume, process, produce: each style in the way in which programs write it.

| style | |
|---|---|
| single | a transaction for a few messages; each is sent on and acknowledged by itself, so batches are taken in pieces |
| interleaved | several transactions at once, the messages of one batch spread over them, ended in any order |
| batch | `consumer.transactional_batch()`: everything is acknowledged together at the end |
| received | a block of the README: `receive_many(txn=…)`, and the commit acknowledges |
| pipeline | `client.pipeline()` |
| sync | as single, with the blocking client, on a thread |

An error of the client ends the unit of work, which is given back; every other error ends the process, and the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from chain_recorder import Fate, HopRecorder, Output, Transactions, note_sent
from history_format import HistoryWriter

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    CommitOutcomeUnknown,
    Message,
    PulsarError,
    TransactionAborted,
    TransactionState,
)
from pulsar_txn.client import sync as blocking
from pulsar_txn.client.half_messages import CheckQuestion, LocalOutcome
from pulsar_txn.client.pipelines import AsyncTransactionalBatch

RESOLVE_ATTEMPTS: Final = 20
PIPELINE_TIMEOUT: Final = 2.0
AFTER_A_FAILURE: Final = 0.02
"""Seconds: what conflicts with an open transaction comes again at once, and conflicts again."""
TOGETHER: Final = 0.5
"""The share of units that send all their messages at once, and acknowledge them in one request."""
TAKEN: Final = (1, 2, 3, 4, 12)
"""How many messages a single transaction takes at most."""
WORK: Final = (0.0, 0.0, 0.01)
"""Seconds that a step of a program may take."""
WAIT: Final = 0.2
"""Seconds that a style waits for messages before it looks whether it is to stop."""


CHECK_GROUP: Final = "workers"
CHECK_AFTER: Final = 1.0


def outcome_of(question: CheckQuestion) -> LocalOutcome:
    """Undo what its worker has not ended: a prepared transaction, and an open one when it is asked for a second time.

    At the first question an open one may be worked on. While a member of the group lives, no timeout ends it (ADR 43): without
    this answer one whose worker was killed before `prepare` would stay open, and everything behind its messages unread.
    """
    return LocalOutcome.UNKNOWN if question.count == 1 and not question.prepared else LocalOutcome.ROLLBACK


class Place:
    """Where a style works: the resources of one hop in one process. `checks`: whether the server asks a check group."""

    def __init__(
        self,
        client: AsyncClient,
        consumer: AsyncConsumer[bytes],
        producer: AsyncProducer[bytes],
        transactions: Transactions,
        stop: asyncio.Event,
        *,
        checks: bool,
    ) -> None:
        self.checks = checks
        self.client = client
        self.consumer = consumer
        self.producer = producer
        self.transactions = transactions
        self.stop = stop


Style = Callable[[Place, HopRecorder, random.Random], Awaitable[None]]


async def single(place: Place, recorder: HopRecorder, rng: random.Random) -> None:
    """See the module's table."""
    while not place.stop.is_set():
        messages = await place.consumer.receive_many(rng.choice(TAKEN), max_wait=WAIT)
        if messages:
            await _spread(place, [recorder], rng, messages, recorder.delivered(messages))


async def interleaved(place: Place, recorder: HopRecorder, rng: random.Random) -> None:
    """See the module's table."""
    slots = [recorder, recorder.part(1), recorder.part(2)]
    while not place.stop.is_set():
        messages = await place.consumer.receive_many(rng.randint(2, 9), max_wait=WAIT)
        if messages:
            await _spread(place, slots[: rng.randint(1, 3)], rng, messages, recorder.delivered(messages))


async def _spread(
    place: Place, slots: Sequence[HopRecorder], rng: random.Random, messages: Sequence[Message[bytes]], inputs: Sequence[Any]
) -> None:
    """Work on messages in as many transactions as there are slots."""
    shares: list[list[int]] = [[] for _ in slots]
    for number in range(len(messages)):
        rng.choice(shares).append(number)
    units = [
        _Unit(place, slot, [messages[number] for number in share], [inputs[number] for number in share], Fate(rng))
        for slot, share in zip(slots, shares, strict=True)
        if share
    ]
    together = rng.random() < TOGETHER
    for unit in units:
        await unit.attempt(unit.begin(together=together))
    # One may be over, and have its messages delivered again, while another still works on messages of the same batch.
    turns = [unit for unit in units for _ in range(len(unit.messages) + 1)]
    rng.shuffle(turns)
    for unit in turns:
        await unit.turn()
        await asyncio.sleep(rng.choice(WORK))


class _Unit:
    """One transaction: each message is sent on and acknowledged."""

    def __init__(
        self, place: Place, recorder: HopRecorder, messages: Sequence[Message[bytes]], inputs: Sequence[Any], fate: Fate
    ) -> None:
        self.messages = messages
        self._place = place
        self._recorder = recorder
        self._inputs = inputs
        self._fate = fate
        self._name = ""
        self._txn: AsyncTransaction | None = None
        self._outputs: list[Output] = []
        self._next = 0
        self._together = False
        self._failed = self._finished = False

    async def attempt(self, work: Any) -> None:
        """Do something, unless something has failed before."""
        if self._failed:
            work.close()
            return
        try:
            await work
        except PulsarError:
            self._failed = True

    async def begin(self, *, together: bool) -> None:
        """Open the transaction; `together`: send everything at once, so that it travels in batches, and acknowledge it so."""
        self._name = self._place.transactions.begin(self._fate.timeout)
        try:
            self._txn = await self._begin()
        except BaseException:  # as in `send`
            self._place.transactions.failed(self._name)
            raise
        self._outputs = self._recorder.outputs(self._name, self._inputs)
        self._together = together
        if together:
            await send_all(self._place.producer, self._recorder, self._txn, self._outputs)

    async def _begin(self) -> AsyncTransaction:
        begin, how = self._place.client.begin_transaction, {"timeout": self._fate.timeout, "name": self._name}
        if self._fate.prepares and self._place.checks:
            return await begin(check_group=CHECK_GROUP, check_after=CHECK_AFTER, **how)
        return await begin(**how)

    async def turn(self) -> None:
        """The next message, or the end of the transaction."""
        if self._next == len(self.messages) or self._failed:
            if not self._finished:
                self._finished = True
                await self.finish()
            return
        await self.attempt(self.step())

    async def step(self) -> None:
        """Send the next message on, and acknowledge it; or acknowledge all that was sent together."""
        assert self._txn is not None
        first = self._next
        self._next = len(self.messages) if self._together else first + 1
        those = self.messages[first : self._next]
        if not self._together:
            await send_all(self._place.producer, self._recorder, self._txn, self._outputs[first : self._next])
        op = self._recorder.acknowledging(self._name, those)
        try:
            await self._place.consumer.acknowledge(those, txn=self._txn)
        except BaseException as error:  # as in `send`
            self._recorder.writer.info(op, error=repr(error))
            raise
        self._recorder.writer.ok(op)

    async def finish(self) -> None:
        """End the transaction as was drawn; give the messages back if that is no commit."""
        committed = False
        if self._txn is not None:
            if not self._failed:
                await asyncio.sleep(self._fate.pause)
            committed = await self._end(self._txn)
        if not committed:
            if self._failed:
                await asyncio.sleep(AFTER_A_FAILURE)
            self._place.consumer.give_back(self.messages)

    async def _end(self, txn: AsyncTransaction) -> bool:
        try:
            if not self._failed and not self._fate.aborts:
                if self._fate.prepares and self._place.checks:
                    await self._prepare(txn)
                    await asyncio.sleep(self._fate.pause)
                await txn.commit()
                return True
            await txn.abort()
        except CommitOutcomeUnknown as unknown:
            return await resolved(unknown, self._place.stop) is TransactionState.COMMITTED
        except PulsarError:
            self._place.transactions.gave_up(txn)
            await asyncio.sleep(AFTER_A_FAILURE)
        return False

    async def _prepare(self, txn: AsyncTransaction) -> None:
        op = self._recorder.preparing(self._name)
        try:
            await txn.prepare()
        except BaseException as error:  # as in `send`
            self._recorder.writer.info(op, error=repr(error))
            raise
        self._recorder.writer.ok(op)


async def send_all(
    producer: AsyncProducer[bytes], recorder: HopRecorder, txn: AsyncTransaction, outputs: Sequence[Output]
) -> None:
    """Send messages in a transaction; the first error is raised when all are answered."""
    answers = await asyncio.gather(*(send(producer, recorder, txn, each) for each in outputs), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


async def send(producer: AsyncProducer[bytes], recorder: HopRecorder, txn: AsyncTransaction, output: Output) -> None:
    """Send one message in a transaction."""
    op = recorder.sending(output)
    try:
        message_id = await producer.send(output.data, key=output.key, txn=txn)
    except BaseException as error:  # cancelled as well, when another lane has lost the consumer
        recorder.writer.info(op, error=repr(error))
        raise
    note_sent(recorder.writer, op, message_id)


async def resolved(unknown: CommitOutcomeUnknown, stop: asyncio.Event) -> TransactionState:
    """The outcome of a commit without an answer; UNKNOWN when nobody says it for a while, or before the worker is to stop."""
    for attempt in range(RESOLVE_ATTEMPTS):
        if attempt and stop.is_set():
            break
        with contextlib.suppress(PulsarError):
            state: TransactionState = await unknown.resolve()
            if state is not TransactionState.UNKNOWN:
                return state
        await asyncio.sleep(0.1 * attempt)
    return TransactionState.UNKNOWN


async def batch(place: Place, recorder: HopRecorder, rng: random.Random) -> None:
    """See the module's table."""
    while not place.stop.is_set():
        fate = Fate(rng)
        block = place.consumer.transactional_batch(max_messages=rng.randint(1, 12), max_wait=WAIT, timeout=fate.timeout)
        taken: AsyncTransactionalBatch[bytes] | None = None
        try:
            async with block as taken:
                await _work_on(taken, place, recorder, fate, fate.timeout)
        except CommitOutcomeUnknown as unknown:
            if await resolved(unknown, place.stop) is not TransactionState.COMMITTED and taken:
                taken.redeliver()
        except PulsarError:
            if taken:
                place.transactions.gave_up(taken.txn)
            await asyncio.sleep(AFTER_A_FAILURE)


async def received(place: Place, recorder: HopRecorder, rng: random.Random) -> None:
    """See the module's table."""
    while not place.stop.is_set():
        fate, messages = Fate(rng), list[Message[bytes]]()
        transaction = place.client.transaction(timeout=fate.timeout)
        txn: AsyncTransaction | None = None
        try:
            async with transaction as txn:
                messages = await place.consumer.receive_many(rng.randint(1, 12), max_wait=WAIT, txn=txn)
                taken = AsyncTransactionalBatch(place.consumer, messages, txn)
                await _work_on(taken, place, recorder, fate, fate.timeout)
        except CommitOutcomeUnknown as unknown:
            if await resolved(unknown, place.stop) is not TransactionState.COMMITTED:
                place.consumer.give_back(messages)
        except PulsarError:
            if txn is not None and messages:
                place.transactions.gave_up(txn)
            await asyncio.sleep(AFTER_A_FAILURE)


async def pipeline(place: Place, recorder: HopRecorder, rng: random.Random) -> None:
    """See the module's table."""
    lanes = rng.randint(1, 3)
    free = [recorder.part(number) for number in range(lanes)]
    before: dict[HopRecorder, AsyncTransaction] = {}

    async def handle(taken: AsyncTransactionalBatch[bytes]) -> None:
        lane = free.pop()
        if lane in before:
            place.transactions.gave_up(before[lane])
        before[lane] = taken.txn
        try:
            await _work_on(taken, place, lane, Fate(rng), PIPELINE_TIMEOUT)
        finally:
            free.append(lane)

    await place.client.pipeline(
        place.consumer,
        handle,
        stop=place.stop,
        concurrency=lanes,
        max_messages=rng.randint(1, 12),
        max_wait=WAIT,
        timeout=PIPELINE_TIMEOUT,
        max_aborts=10_000,
    )


async def _work_on(
    taken: AsyncTransactionalBatch[bytes], place: Place, recorder: HopRecorder, fate: Fate, timeout: float
) -> None:
    """The body of a batch."""
    if not taken:
        return
    name = place.transactions.adopt(taken.txn, timeout)
    outputs = recorder.outputs(name, recorder.delivered(taken.messages))
    await send_all(place.producer, recorder, taken.txn, outputs)
    await asyncio.sleep(fate.pause)
    if fate.aborts:
        taken.txn.rollback()
    place.transactions.acknowledging(taken.txn, recorder.acknowledging(name, taken.messages))


def blocking_single(
    client: blocking.Client,
    consumer: blocking.Consumer[bytes],
    producer: blocking.Producer[bytes],
    recorder: HopRecorder,
    rng: random.Random,
    stop: threading.Event,
) -> None:
    """The style sync; returns when it is to stop."""
    number = 0
    while not stop.is_set():
        messages = consumer.receive_many(rng.randint(1, 4), max_wait=WAIT)
        if messages:
            number += 1
            _blocking_unit(
                client, consumer, producer, recorder, Fate(rng), messages, f"{recorder.writer.process}/{number}", stop
            )


def _blocking_unit(
    client: blocking.Client,
    consumer: blocking.Consumer[bytes],
    producer: blocking.Producer[bytes],
    recorder: HopRecorder,
    fate: Fate,
    messages: Sequence[Any],
    name: str,
    stop: threading.Event,
) -> None:
    writer = recorder.writer
    outputs = recorder.outputs(name, recorder.delivered(messages))
    end = "abort" if fate.aborts else "commit"
    committed = ending = False
    txn: blocking.Transaction | None = None
    op = writer.invoke("begin", txn=name, timeout_ms=int(fate.timeout * 1000), **recorder.identity)
    try:
        txn = client.begin_transaction(timeout=fate.timeout)
        writer.ok(op, id=str(txn.id))
        for message, output in zip(messages, outputs, strict=True):
            op = recorder.sending(output)
            message_id = producer.send(output.data, key=output.key, txn=txn)
            note_sent(writer, op, message_id)
            op = recorder.acknowledging(name, [message])
            consumer.acknowledge(message, txn=txn)
            writer.ok(op)
        stop.wait(fate.pause)
        op, ending = writer.invoke(end, txn=name), True
        (txn.abort if fate.aborts else txn.commit)()
        writer.ok(op)
        committed = not fate.aborts
    except CommitOutcomeUnknown as unknown:
        writer.info(op, error=repr(unknown))
        committed = _blocking_resolved(unknown, writer, name, stop) is TransactionState.COMMITTED
    except PulsarError as error:
        refused = ending and not fate.aborts and isinstance(error, TransactionAborted)
        (writer.fail if refused else writer.info)(op, error=repr(error))
        if txn is not None and not refused:
            _blocking_abort(txn, writer, name)
        stop.wait(AFTER_A_FAILURE)
    if not committed:
        consumer.give_back(messages)


def _blocking_abort(txn: blocking.Transaction, writer: HistoryWriter, name: str) -> None:
    op = writer.invoke("abort", txn=name)
    try:
        txn.abort()
    except PulsarError as error:  # the coordinator aborts it at its timeout
        writer.info(op, error=repr(error))
    else:
        writer.ok(op)


def _blocking_resolved(
    unknown: CommitOutcomeUnknown, writer: HistoryWriter, name: str, stop: threading.Event
) -> TransactionState:
    for attempt in range(RESOLVE_ATTEMPTS):
        if attempt and stop.is_set():
            break
        with contextlib.suppress(PulsarError):
            state: TransactionState = unknown.resolve()
            if state is not TransactionState.UNKNOWN:
                status = "committed" if state is TransactionState.COMMITTED else "aborted"
                writer.ok(writer.invoke("status", txn=name), status=status)
                return state
        stop.wait(0.1 * attempt)
    return TransactionState.UNKNOWN


STYLES: Final[dict[str, Style]] = {
    "single": single,
    "interleaved": interleaved,
    "batch": batch,
    "received": received,
    "pipeline": pipeline,
}
"""Those of asyncio."""
