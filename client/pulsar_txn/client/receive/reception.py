"""Reception of messages by a consumer: its partitions, its queue, and what acknowledges them or gives them back.

Programs hold an `AsyncConsumer`. Blocks, loops and the blocking client work on its reception (`reception_of`).
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from pulsar_txn.client._validation import number_of_seconds, validate_whole
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.net.runtime import thread_id
from pulsar_txn.client.net.tasks import Closable
from pulsar_txn.client.receive.acknowledging import Acknowledger
from pulsar_txn.client.receive.dead_letters import DeadLetters, check_letters
from pulsar_txn.client.receive.inbox import Inbox, Post
from pulsar_txn.client.receive.interceptors import ConsumerChain
from pulsar_txn.client.receive.joined import Inputs
from pulsar_txn.client.receive.key_order import KeyOrder
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType
from pulsar_txn.client.receive.partition_consumer import Common, PartitionConsumer
from pulsar_txn.client.receive.partitions import Partitions
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.txn.transaction import NOT_SAID, AsyncTransaction, joined_unit
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")


class Reception(Generic[T]):
    """Has the partitions, the inbox, and what acknowledges messages or gives them back."""

    def __init__(
        self,
        core: Core,
        topics: Sequence[tuple[str, int]],
        subscription: str,
        schema: Schema[T],
        options: ConsumerOptions,
        *,
        outside: Closable,
        pattern: TopicPattern | None,
        partitioned: Mapping[TopicName, int],
        extra_topics: Iterable[str],
    ) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self._thread = thread_id()
        self.options = options
        self.subscription = subscription
        self.consumer_name = options.consumer_name or f"{int(core.runtime.random() * 16**8):08x}"
        self.inbox: Inbox[T] = Inbox()
        if options.consumer_type is ConsumerType.KEY_SHARED:
            self.inbox.divide(KeyOrder(self.inbox, core.runtime))
        self.is_closed = False
        policy = options.dead_letter_policy
        if policy is not None and policy.dead_letter_topic is None:
            check_letters(subscription, topics=[name for name, _ in topics])
        first = topics[0][0] if topics and pattern is None else ""
        self.letters = None if policy is None else DeadLetters(core, first, subscription, schema, policy)
        self.chain = ConsumerChain(outside, options.interceptors) if options.interceptors else None
        self._is_timed = bool(options.ack_timeout) or options.ack_timeout_backoff is not None
        self.is_observed = self._is_timed or self.chain is not None
        """True if an observer is told of each received message."""
        common = Common(
            core=core,
            inbox=self.inbox,
            subscription=subscription,
            consumer_name=self.consumer_name,
            schema=schema,
            letters=self.letters,
            failed=lambda part, error: self.partitions.failed(part, error),
        )
        self.partitions = Partitions(
            core,
            self.inbox,
            common,
            options,
            topics,
            pattern=pattern,
            partitioned=partitioned,
            extra_topics=extra_topics,
        )
        self.acknowledger = Acknowledger(self.partitions, self.inbox, options, self.letters, self.chain)
        self.inputs = Inputs(self.partitions, self.inbox)
        self._id = core.next_resource_id()
        self._outside = outside
        self._closing: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """AlreadyClosed when the consumer is closed, WrongEventLoop in another loop than its client's."""
        if thread_id() != self._thread or not self._loop.is_running():  # a third of the cost of `check_here`
            self.core.check_here()
        if self.is_closed:
            raise AlreadyClosed(f"the consumer of {self.partitions.topic} is closed")

    async def start(self) -> None:
        """Subscribe everywhere; when one fails, or this is cancelled, all are closed and the error is raised."""
        try:
            await self.partitions.start()
        except BaseException:
            await self.close()
            raise
        self.core.register(self._id, self._outside)
        self.partitions.follow()

    async def close(self) -> None:
        """See `AsyncConsumer.close`."""
        self.core.check_here()
        if self.is_closed:
            return
        self.is_closed = True
        for part in self.partitions:
            part.stop()
        self.inbox.close(AlreadyClosed(f"the consumer of {self.partitions.topic} is closed"))
        self.partitions.stop_following()
        self.core.unregister(self._id)
        self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)  # which goes on when this is cancelled

    async def _close(self) -> None:
        await self.partitions.close()
        if self.letters is not None:
            await self.letters.close()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def unit(self, txn: AsyncTransaction | None) -> Unit | None:
        """The transaction that was given; where `txn=` was left out, the one around the running code.

        Readers and table views only keep their place with what they receive, which is nobody's unit of work.
        """
        if not self.options.durable and (txn is None or txn is NOT_SAID):
            return None
        return joined_unit(txn, self)

    @property
    def operation(self) -> str:
        """See `enlist.Caller`."""
        return f"an acknowledgement on {self.partitions.topic}"

    def deadline(self, timeout: float | timedelta | None, what: str) -> float | None:
        """The time at which the wait is over, on the runtime's clock; None for never."""
        if timeout is None:
            return None
        seconds = number_of_seconds(timeout, what)
        return None if seconds == math.inf else self.core.runtime.monotonic() + seconds

    async def wait(self, messages: int, deadline: float | None, unit: Unit | None = None) -> bool:
        """Until so many are queued, which the unit may have; False when the time is over before."""
        self.core.check_here()
        for part in self.partitions:
            part.flush_permits()
        if unit is None or self.inbox.keys is None:
            return await self.inbox.wait(messages, deadline)
        return await self.inbox.keys.wait(unit, messages, deadline)

    def enough(self, max_messages: int, max_wait: float | timedelta | None) -> int:
        """The number of messages that `receive_many` waits for."""
        validate_whole("max_messages", max_messages)
        if max_wait is None:
            return 1
        most = self.options.receiver_queue_size
        if self.options.receiver_queue_bytes:
            most = max(1, sum(part.machine.room for part in self.partitions))
        return min(max_messages, most)

    async def ready(self, max_messages: int, max_wait: float | timedelta | None, unit: Unit | None = None) -> None:
        """Wait as `receive_many` does, for what the unit may have."""
        enough = self.enough(max_messages, max_wait)
        if max_messages < 1:
            raise InvalidConfiguration(f"max_messages must be at least 1, not {max_messages}")
        if len(self.inbox.queue) < enough or (unit is not None and self.inbox.keys is not None):
            self.inbox.check()
            await self.wait(enough, self.deadline(max_wait, "max_wait"), unit)

    def take(self, max_messages: int, unit: Unit | None, *, whole: bool = False) -> list[Message[T]]:
        """Up to so many of those that are queued; they join the unit, if there is one. `whole`: entries as a whole.

        Second copies of what somebody here has already are left out. Raises as `Unit.join`, and takes nothing then.
        """
        joined = None
        if unit is not None:
            joined = self.inputs.of(unit)
            unit.join(self.core, joined)
        inbox, keys = self.inbox, self.inbox.keys
        with inbox.guard:
            if unit is not None and keys is not None:
                taken = keys.take(unit, max_messages, whole=whole)
            else:
                taken = inbox.take_whole(max_messages) if whole else inbox.take(max_messages)
            self.hand_out(taken)
        if joined is not None and taken:
            taken = joined.add(taken)
            if unit is not None and keys is not None:
                keys.given(unit, taken)
        if self.is_observed and taken:
            self.observe(taken)
        return taken

    def hand_out(self, taken: Sequence[Message[T]]) -> None:
        """Tell the partitions what is taken from the queue, whose guard the caller holds."""
        if not taken:
            return
        if self.inbox.only is not None:
            self.inbox.only.handed_out(taken[-1], len(taken))
            return
        for part, those in itertools.groupby(taken, lambda message: message.entry.consumer):
            of_part = list(those)
            part.handed_out(of_part[-1], len(of_part))

    def observe(self, messages: Sequence[Message[T]]) -> None:
        """The program has received these."""
        if self._is_timed:
            for part, those in itertools.groupby(messages, lambda message: message.entry.consumer):
                part.received(those)
        if self.chain is not None:
            self.chain.received(messages)

    # --- for the blocking client, in any thread ---------------------------------------------------------------------------

    def share_queue(self) -> None:
        """Threads take messages as well from now on."""
        self.inbox.share()

    def take_in_thread(self, max_messages: int, enough: int, post: Post) -> list[Message[T]] | None:
        """Take what is queued, without asking the loop for it.

        None where the loop has to be asked: fewer than `enough` are there, or others wait for them. `post` has a function
        called on the loop.
        """
        inbox = self.inbox
        if self.is_observed or self.is_closed or not inbox.has(enough):
            return None
        with inbox.guard:
            if len(inbox.queue) < enough:
                return None
            taken = inbox.take(max_messages)
            for message in taken:
                message.entry.consumer.taken_in_thread(message, post)
        return taken

    def take_one_in_thread(self, post: Post) -> Message[T] | None:
        """As `take_in_thread`, a single one."""
        inbox = self.inbox
        if self.is_observed or self.is_closed or not inbox.has(1):
            return None
        with inbox.guard:
            if not inbox.queue:
                return None
            message = inbox.take_one()
            message.entry.consumer.taken_in_thread(message, post)
        return message

    def may_acknowledge_soon(self, message: Message[Any]) -> bool:
        """True if the program need not wait for the acknowledgement of this message, outside of transactions."""
        part = message.entry.consumer
        return (
            isinstance(part, PartitionConsumer)
            and part.inbox is self.inbox
            and not part.owners
            and not (self.options.ack_receipt or self.is_observed or self.is_closed)
        )

    def acknowledge_soon(self, messages: Sequence[Message[Any]], *, cumulative: bool) -> None:
        """Acknowledge outside of transactions, on the loop; without effect once the consumer is closed."""
        if not self.is_closed:
            self.acknowledger.acknowledge_soon(messages, cumulative=cumulative)
