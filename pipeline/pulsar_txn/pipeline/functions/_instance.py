"""One instance of a function: calls `process`, sends what it returns, holds what its contexts need."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsar_txn.client import AsyncTransaction, Message, MessageId
from pulsar_txn.client.errors import UsageError
from pulsar_txn.client.inside import ErrorKinds, Future, WorkerThread, answer, core_of, is_fatal, parse_topic
from pulsar_txn.client.messages import SendTicket
from pulsar_txn.pipeline.functions._loading import process_of, schema_of, serde_of
from pulsar_txn.pipeline.functions._outlets import Handed, Outlets
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.context import Context, WindowView
from pulsar_txn.pipeline.functions.interface import SerDe
from pulsar_txn.pipeline.functions.sections import ProcessingGuarantees
from pulsar_txn.pipeline.functions.state.owned import States
from pulsar_txn.pipeline.functions.stats import Counts
from pulsar_txn.pipeline.functions.windows.assign import Window

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient, AsyncConsumer

logger = logging.getLogger("pulsar_txn.pipeline.functions")

SecretsProvider: TypeAlias = Callable[[str, Any], "str | None"]

LEDGER_BITS: Final = 27
ENTRY_BITS: Final = 24
INDEX_BITS: Final = 12


class Instance:
    """Instance of a function, which calls `process` one message at a time: a coroutine on the loop, others on a thread."""

    def __init__(
        self,
        client: AsyncClient,
        config: FunctionConfig,
        function: Any,
        number: int,
        outlets: Outlets,
        secrets_provider: SecretsProvider,
        function_logger: logging.Logger,
        consumers: int,
    ) -> None:
        self.client = client
        self.config = config
        self.number = number
        self.outlets = outlets
        self.secrets_provider = secrets_provider
        self.logger = function_logger
        self.counts = Counts()
        self.raised: Exception | None = None
        """Last error of `process`."""
        self._kinds = ErrorKinds()
        self._process = process_of(function)
        self.states = States(client, config, on_loop=self._process.is_async, consumers=consumers)
        self._serdes: dict[str | None, SerDe] = {}
        self._output_serde = self.serde_of(config.output_serde_class_name)
        self.output_schema = schema_of(config.output_schema_type, config.output_type_class_name, config.py)
        self._readers = {str(parse_topic(topic)): self._reader(topic) for topic in config.topics}
        self._core = core_of(client)
        self._loop = asyncio.get_running_loop()
        self._thread = WorkerThread(f"pulsar-txn-function-{number}")
        self._callbacks = WorkerThread(f"pulsar-txn-function-callbacks-{number}")
        self._unacknowledged: dict[tuple[str, MessageId], tuple[AsyncConsumer[bytes], Message[bytes]]] = {}
        self._turn = asyncio.Lock()

    @property
    def is_closed(self) -> bool:
        """True if the client is."""
        return self._core.closed

    def serde_of(self, class_name: str | None) -> SerDe:
        """This instance's object of a SerDe class."""
        if class_name not in self._serdes:
            self._serdes[class_name] = serde_of(class_name, self.config.py)
        return self._serdes[class_name]

    def on_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call it there: at once when this is the loop's thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            function(*args)
        else:
            self._loop.call_soon_threadsafe(function, *args)

    async def invoke(
        self, consumer: AsyncConsumer[bytes], message: Message[bytes], pattern: str | None, txn: AsyncTransaction | None = None
    ) -> Context:
        """Call `process` and send what it returns; what was sent is in the context. Raises what deserializing and it raise."""
        context = Context(self, message, txn)
        async with self._turn:
            self.counts.took(1)
            value = self.value_of(message, pattern)
            if self.config.processing_guarantees is ProcessingGuarantees.MANUAL:
                self._unacknowledged[_place(message.topic, message.message_id)] = (consumer, message)
            if txn is None:
                await self.states.begin(None, (message,), consumer)
            output = await self._call(value, context)
            if txn is None:
                context.sent([_handed(ticket) for ticket in await self.states.write(None)])
                self.states.settle(committed=True)
        if output is not None and self.config.output is not None:
            name = sequence_id = None
            if self.config.is_effectively_once:
                name, sequence_id = f"{self.config.fqfn}-{message.topic}", sequence_of(message.message_id)
            context.send_output(self._payload(output), name, sequence_id)
        return context

    async def invoke_window(self, window: Window[Message[bytes]], pattern: str | None, txn: AsyncTransaction) -> Context:
        """Call `process` with the values of a window; its context is that of the last message."""
        messages = [item.message for item in window.items]
        context = Context(self, messages[-1], txn, WindowView(tuple(messages), window.start_ms, window.end_ms))
        async with self._turn:
            self.counts.took(len(messages))
            output = await self._call([self.value_of(message, pattern) for message in messages], context)
        if output is not None and self.config.output is not None:
            context.send_output(self._payload(output), None, None)
        return context

    def value_of(self, message: Message[bytes], pattern: str | None) -> Any:
        """Decode a message by the input's schema or SerDe."""
        read = self._readers.get(message.topic) or self._learn_reader(message.topic, pattern)
        return read(message)

    def wall_ms(self) -> int:
        """The time now, in milliseconds since the epoch."""
        return self._core.runtime.wall_ms()

    def _reader(self, topic: str) -> Callable[[Message[Any]], Any]:
        """Decoder for the messages of a configured topic, or pattern."""
        if self.config.schema_of(topic) is not None:
            return _value
        serde = self.serde_of(self.config.serde_of(topic))
        return lambda message: serde.deserialize(message.data)

    def _learn_reader(self, topic: str, pattern: str | None) -> Callable[[Message[Any]], Any]:
        """Learn the reader of a partition, or of a topic that a pattern has found."""
        whole = self._readers.get(str(parse_topic(topic).base))
        found = whole or self._reader(topic if pattern is None else pattern)
        self._readers[topic] = found
        return found

    def _payload(self, output: Any) -> Any:
        """Encode a value for the output's producer: bytes of the SerDe, or the value itself where the producer has a schema."""
        return self._output_serde.serialize(output) if self.output_schema is None else output

    async def _call(self, value: Any, context: Context) -> Any:
        args = (value, context) if self._process.takes_context else (value,)
        started = self._core.runtime.monotonic()
        self.counts.begins(self._core.runtime.wall_ms())
        try:
            if self._process.is_async:
                return await self._process.call(*args)
            called: Future[Any] = Future()
            self._thread.submit(functools.partial(answer, only=True), called, self._process.call, args)
            result = await asyncio.wrap_future(called)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            self.counts.raised()
            if not is_fatal(error):  # the run ends with that one, and tells it
                self._kinds.tell(self.logger, "process failed", error)
            self.raised = error
            raise
        finally:
            self.counts.ends(self._core.runtime.monotonic() - started)

    def report(self, handed: Handed, callback: Callable[[Any, Any], object]) -> None:
        """Call `callback(result, message_id)` when the outcome of a send is known."""
        self._core.spawn(self._report(handed, callback))

    async def _report(self, handed: Handed, callback: Callable[[Any, Any], object]) -> None:
        from pulsar_txn.compat.enums import Result
        from pulsar_txn.compat.exceptions import result_of
        from pulsar_txn.compat.messages import MessageId as OfficialId

        try:
            stored = await (await handed)
        except Exception as error:  # noqa: BLE001 - the callback is told
            self._callbacks.submit(callback, result_of(error), OfficialId())
        else:
            self._callbacks.submit(callback, Result.Ok, OfficialId.wrap(stored))

    def ack(self, message_id: MessageId, topic: str) -> None:
        """`context.ack`."""
        if self.config.processing_guarantees is not ProcessingGuarantees.MANUAL or self.config.is_managed:
            hint = "set processingGuarantees: MANUAL to do it yourself"
            raise UsageError("the runtime acknowledges", hint=hint, fatal=True)  # every message would fail
        found = self._unacknowledged.pop(_place(topic, message_id), None)
        if found is None:
            raise UsageError(f"this instance does not hold message {message_id} of {topic} (any more)")
        self.on_loop(self._acknowledge, *found)

    def _acknowledge(self, consumer: AsyncConsumer[bytes], message: Message[bytes]) -> None:
        self._core.spawn(_acknowledged(consumer, message))

    def forget(self, message: Message[bytes]) -> None:
        """Forget a message, because it comes again: what is acknowledged by hand is the next delivery."""
        self._unacknowledged.pop(_place(message.topic, message.message_id), None)

    async def close(self) -> None:
        """Give up the state; end the threads after they have finished what they do."""
        await self.states.close()
        self._thread.stop()
        self._callbacks.stop()


def _value(message: Message[Any]) -> Any:
    return message.value


def _handed(ticket: SendTicket) -> Handed:
    handed: Handed = asyncio.get_running_loop().create_future()
    handed.set_result(ticket)
    return handed


async def _acknowledged(consumer: AsyncConsumer[bytes], message: Message[bytes]) -> None:
    try:
        await consumer.acknowledge(message)
    except Exception as error:  # noqa: BLE001 - nobody waits for it; the message comes again
        logger.warning("message %s of %s was not acknowledged, and comes again: %s", message.message_id, message.topic, error)


def _place(topic: str, message_id: MessageId) -> tuple[str, MessageId]:
    place = MessageId(message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index)
    return str(parse_topic(topic).base), place


def sequence_of(message_id: MessageId) -> int:
    """The sequence id of what is made of an input: as the inputs of a topic ascend, so do these.

    UsageError (fatal) when its numbers do not fit into 63 bits: 27 for the ledger, 24 for the entry, 12 for the index.
    """
    index = max(message_id.batch_index, 0)
    if message_id.ledger_id >> LEDGER_BITS or message_id.entry_id >> ENTRY_BITS or index >> INDEX_BITS:
        text = f"message {message_id} is beyond what a sequence id can say"
        raise UsageError(text, hint="use transactionMode MANAGED instead", fatal=True)
    return (message_id.ledger_id << ENTRY_BITS + INDEX_BITS) | (message_id.entry_id << INDEX_BITS) | index
