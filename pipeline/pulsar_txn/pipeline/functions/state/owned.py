"""The state that an instance owns, opened when it is first used, and one with the transaction that is open.

With the scope FUNCTION one owner has the whole state. With the scope PARTITION each input partition has a state of its own,
and the instance that receives a partition owns its state.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from pulsar_txn.client import AsyncTransaction, Message, MessageId, TransactionState
from pulsar_txn.client.errors import ProducerFenced, PulsarError, SchemaMismatch, UsageError
from pulsar_txn.client.inside import core_of, receives_still
from pulsar_txn.pipeline.functions.config import ONE_STATE, ONE_STATE_HINT, FunctionConfig
from pulsar_txn.pipeline.functions.errors import StateMoved, StateTaken
from pulsar_txn.pipeline.functions.sections import StateScope
from pulsar_txn.pipeline.functions.state.table import TRIM_RECORDS, StateLog, Table, Value

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient, AsyncConsumer
    from pulsar_txn.client.messages import SendTicket

WHOLE: Final = -1
"""The number of a state that is not divided."""


@attrs.define(eq=False)
class _Owned:
    """State that is open in this process."""

    log: StateLog
    table: Table[MessageId]
    extra: int = 0
    """Records of the last transaction that hold no state."""
    sent: SendTicket | None = None
    """The last record that was sent."""
    ends: deque[tuple[int, SendTicket]] = attrs.field(factory=deque)
    """Numbers of kept records, with the last of these records."""
    trimming: asyncio.Task[None] | None = None


class States:
    """All states of one instance. On the loop, except the calls of a function: they come from its thread, one at a time."""

    def __init__(self, client: AsyncClient, config: FunctionConfig, *, on_loop: bool, consumers: int) -> None:
        """`on_loop`: the function is a coroutine function. `consumers`: of this instance."""
        self.used = config.state is not None
        """True if the function has used state, or will as its configuration says."""
        self._client = client
        self._core = core_of(client)
        self._config = config
        self._on_loop = on_loop
        self._consumers = consumers
        self._loop = asyncio.get_running_loop()
        self._owned: dict[int, _Owned] = {}
        self._opening: dict[int, asyncio.Task[_Owned]] = {}
        self._touched: dict[int, _Owned] = {}
        self._written: dict[int, _Owned] = {}
        self._txn: AsyncTransaction | None = None
        self._lock = threading.Lock()

    # --- for the runtime, on the loop -----------------------------------------------------------------------------------

    async def begin(
        self,
        txn: AsyncTransaction | None,
        messages: Iterable[Message[bytes]],
        consumer: AsyncConsumer[bytes] | None = None,
    ) -> None:
        """A transaction begins, or a call without one: the changes of the last one are kept or dropped by its outcome.

        StateMoved when another instance receives the partition of one of the `messages` of `consumer` now: its state is
        given up, and not taken from the other one.
        """
        self.settle(committed=self._txn is not None and self._txn.state is TransactionState.COMMITTED)
        self._txn = txn
        if self.used:
            firsts = {self.number_of(message): message for message in messages}
            for number, message in firsts.items():
                if number != WHOLE and consumer is not None and not receives_still(consumer, message):
                    await self.forget(number)
                    raise StateMoved(f"another instance receives {message.topic} now")
            for number in firsts:
                await self._open(number)

    def settle(self, *, committed: bool) -> None:
        """Keep or drop what the last transaction has changed."""
        written, self._written = self._written, {}
        for number, owned in self._touched.items():
            if committed and number in written:
                self._keep(owned)
            else:
                owned.table.drop()
        self._touched = {}

    async def write(self, txn: AsyncTransaction | None) -> list[SendTicket]:
        """Send what was changed; a state that was only read gets a record in the transaction, so that a fenced owner fails."""
        tickets: list[SendTicket] = []
        for number, owned in self._touched.items():
            records = owned.table.to_write()
            if txn is None and not records:
                continue
            try:
                sent = await owned.log.write(records, txn)
            except ProducerFenced as error:
                await self.forget(number)
                raise _lost(number, owned.log, error) from error
            if txn is None:
                sent = [self._watched(number, owned, ticket) for ticket in sent]
            owned.sent, owned.extra = sent[-1], 0 if txn is None else 1 + (not records)
            self._written[number] = owned
            tickets += sent
        return tickets

    async def read_own(self, key: str) -> bytes | None:
        """Value that the runtime itself has stored under a key that functions cannot use."""
        found = (await self._open(WHOLE)).table.get(key)
        return found if isinstance(found, bytes) else None

    def set_own(self, key: str, value: bytes) -> None:
        """Store something of the runtime with the changes of the transaction."""
        owned = self._owned[WHOLE]
        owned.table.set(key, value)
        self._touched[WHOLE] = owned

    async def reset(self) -> None:
        """Give the states up, so that the next use reads again what is committed."""
        self._touched, self._written, self._txn = {}, {}, None
        owned, self._owned = self._owned, {}
        for each in owned.values():
            if each.trimming is not None:
                each.trimming.cancel()
            await each.log.close()

    async def forget(self, number: int) -> None:
        """This state has another owner."""
        owned = self._owned.pop(number, None)
        self._touched.pop(number, None)
        if owned is not None:
            await owned.log.close()

    async def close(self) -> None:
        """Give the states up. What is open is aborted by its transaction."""
        for task in self._opening.values():
            task.cancel()
        await self.reset()

    def number_of(self, message: Message[bytes]) -> int:
        """The state that a message uses."""
        state = self._config.state
        if state is None or state.scope is StateScope.FUNCTION:
            return WHOLE
        return max(message.message_id.partition, 0)

    def _watched(self, number: int, owned: _Owned, ticket: SendTicket) -> SendTicket:
        """A ticket without a transaction, which nobody awaits here: when its owner is fenced, it says who has the state."""
        told: SendTicket = self._loop.create_future()

        def tell(_: SendTicket) -> None:
            if told.done() or ticket.cancelled():
                told.cancel()
                return
            error: BaseException | None = ticket.exception()
            if isinstance(error, ProducerFenced):
                if self._owned.get(number) is owned:
                    self._core.spawn(self.forget(number))
                error = _lost(number, owned.log, error)
            if error is None:
                told.set_result(ticket.result())
            else:
                told.set_exception(error)
                told.exception()  # nobody may await it, when the call has failed before

        ticket.add_done_callback(tell)
        return told

    async def _open(self, number: int) -> _Owned:
        if number in self._owned:
            return self._owned[number]
        if number not in self._opening:
            self._check_allowed()
            self._opening[number] = self._loop.create_task(self._take_over(number))
        try:
            return await asyncio.shield(self._opening[number])
        finally:
            if number in self._opening and self._opening[number].done():
                del self._opening[number]

    async def _take_over(self, number: int) -> _Owned:
        topic = self._config.state_topic
        log = StateLog(self._client, topic if number == WHOLE else f"{topic}-{number}")
        try:
            table = await log.open()
        except ProducerFenced as error:  # several may open it at once; the last one has it
            await log.close()
            raise _lost(number, log, error) from error
        except BaseException:
            await log.close()
            raise
        self._owned[number] = owned = _Owned(log, table)
        return owned

    def _check_allowed(self) -> None:
        config = self._config
        if config.parallelism > 1 and config.state is None:
            raise _fatal(ONE_STATE.format(config.parallelism), ONE_STATE_HINT)
        if config.is_managed and self._consumers > 1:
            raise _fatal(
                "inputs that are received in different ways have transactions side by side, and these cannot share a state",
                "give all inputs the same receiverQueueSize and consumerProperties, and no pattern beside names",
            )

    def _keep(self, owned: _Owned) -> None:
        """The changes are committed, or on their way without a transaction; what is garbage now may go."""
        if owned.sent is not None:
            owned.ends.append((owned.table.keep(owned.extra), owned.sent))
        while owned.ends and owned.ends[0][1].done():
            number, ticket = owned.ends.popleft()
            if not ticket.cancelled() and ticket.exception() is None:
                owned.table.mark(number, ticket.result())
        if owned.trimming is None or owned.trimming.done():
            position = owned.table.garbage(TRIM_RECORDS)
            if position is not None:
                owned.trimming = self._loop.create_task(owned.log.trim(position))

    # --- for contexts, from the function's thread -----------------------------------------------------------------------

    def get(self, message: Message[bytes], key: str) -> Value | None:
        """The value of a key."""
        return self._table(message, key).get(key)

    def set(self, message: Message[bytes], key: str, value: Value | None) -> None:
        """Change a key in the transaction; None deletes it."""
        self._table(message, key).set(key, value)

    def add(self, message: Message[bytes], key: str, amount: int) -> None:
        """Add to a counter, which begins with 0."""
        table = self._table(message, key)
        with self._lock:
            before = table.get(key)
            if isinstance(before, bytes):
                raise SchemaMismatch(f"the state {key!r} is a value, not a counter", hint="use another key, or delete it first")
            table.set(key, (before or 0) + amount)

    def _table(self, message: Message[bytes], key: str) -> Table[MessageId]:
        if not isinstance(key, str) or not key or key[0] == "\x00":
            raise SchemaMismatch(f"a key of the state must be a text that does not begin with a null character, not {key!r}")
        self.used = True
        number = self.number_of(message)
        owned = self._owned.get(number) or self._open_now(number)
        self._touched[number] = owned
        return owned.table

    def _open_now(self, number: int) -> _Owned:
        if self._on_loop:
            raise _fatal(
                "a coroutine function cannot wait here until its state is read",
                "say in the configuration that it has state: `state: {}`",
            )
        return asyncio.run_coroutine_threadsafe(self._open(number), self._loop).result()


def _lost(number: int, log: StateLog, error: ProducerFenced) -> PulsarError:
    """Error for a fenced owner: its messages went elsewhere with the state of their partition, or it has to end."""
    if number != WHOLE:
        return StateMoved(f"another instance took over the state in {log.topic}")
    return StateTaken(f"another instance took over the state in {log.topic}: {error.message}")


def _fatal(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, fatal=True)  # every message would fail
