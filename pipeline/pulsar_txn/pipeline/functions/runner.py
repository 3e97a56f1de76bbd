"""Running a function: its consumers, its instances and their end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.client import ConsumerType, DeadLetterPolicy, InitialPosition
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.inside import AMBIENT, first_error, parse_topic
from pulsar_txn.pipeline.functions._guarantees import FunctionEvent, Loop, Note
from pulsar_txn.pipeline.functions._instance import Instance, SecretsProvider
from pulsar_txn.pipeline.functions._loading import load, schema_of
from pulsar_txn.pipeline.functions._outlets import Outlets, TopicHandler
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.sections import InputSpec, ProcessingGuarantees, SubscriptionPosition
from pulsar_txn.pipeline.functions.stats import FunctionStats, total
from pulsar_txn.pipeline.functions.windows.loop import WindowLoop

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient, AsyncConsumer

NEGATIVE_ACK_DELAY: Final = 60.0


@attrs.frozen
class _Source:
    """Source from which one consumer of an instance receives."""

    topics: list[str] | Pattern[str]
    pattern: str | None
    spec: InputSpec


class FunctionRun:
    """One run of a function: `await FunctionRun(client, config).run()`; `stats()` at any time, `stop.set()` to end it.

    Arguments as `run`; `instances`: the numbers of those that run here, all by default. Used once.
    """

    def __init__(
        self,
        client: AsyncClient,
        config: FunctionConfig | Mapping[str, Any] | str | Path,
        function: Any = None,
        *,
        stop: asyncio.Event | None = None,
        observer: Callable[[FunctionEvent], object] | None = None,
        secrets_provider: SecretsProvider | None = None,
        negative_ack_delay: float = NEGATIVE_ACK_DELAY,
        instances: Sequence[int] | None = None,
    ) -> None:
        self.config = _config_of(config)
        self._numbers = range(self.config.parallelism) if instances is None else instances
        self.stop = stop or asyncio.Event()
        if function is None:
            if self.config.class_name is None:
                raise InvalidConfiguration("className is missing", hint="name it, or give the function itself")
            function = load(self.config.class_name, self.config.py)
        self._client = client
        self._function = function
        self._observer = observer
        self._secrets = secrets_provider or _from_environment
        self._negative_ack_delay = negative_ack_delay
        self._instances: list[Instance] = []

    def stats(self) -> FunctionStats:
        """Counts of its instances so far."""
        return total(each.counts for each in self._instances)

    async def run(self) -> FunctionStats:
        """See `run`."""
        ambient = AMBIENT.set(None)  # a block around the run is no transaction of the function's
        outlets = Outlets(self._client, self.config.producer)
        consumers = []
        handlers: list[tuple[logging.Logger, TopicHandler]] = []
        loops: list[Loop] = []
        windows: list[WindowLoop] = []
        try:
            await self._check_inputs()
            sources = self._sources()
            for number in self._numbers:
                function_logger = self._logger(number)
                instance = Instance(
                    self._client, self.config, self._function, number, outlets, self._secrets, function_logger, len(sources)
                )
                self._instances.append(instance)
                if self.config.log_topic is not None:
                    handler = TopicHandler(outlets, self.config.log_topic, self.config.fqfn, number)
                    function_logger.addHandler(handler)
                    handlers.append((function_logger, handler))
                for source in sources:
                    subscribe, note = functools.partial(self._subscribe, source), Note(instance, self._observer)
                    if self.config.window is not None:
                        windows.append(WindowLoop(instance, subscribe, source.pattern, self.stop, note))
                        continue
                    consumer = await subscribe()
                    consumers.append(consumer)
                    loops.append(Loop(instance, consumer, source.pattern, self.stop, note))
            await _run_all([*loops, *windows])
        finally:
            for function_logger, attached in handlers:
                function_logger.removeHandler(attached)
            AMBIENT.reset(ambient)
            await asyncio.gather(*(each.close() for each in consumers), *(each.close() for each in self._instances))
            await outlets.close()
        return self.stats()

    async def _subscribe(self, source: _Source) -> AsyncConsumer[bytes]:
        options = self._consumer_options(source.spec)
        schema = schema_of(source.spec.schema_type, self.config.input_type_class_name, self.config.py)
        if schema is not None:
            options["schema"] = schema
        consumer: AsyncConsumer[Any] = await self._client.subscribe(source.topics, self.config.subscription, **options)
        return consumer

    def _logger(self, number: int) -> logging.Logger:
        found = logging.getLogger(f"pulsar_txn.functions.{self.config.fqfn.replace('/', '.')}.{number}")
        if found.level == logging.NOTSET:
            found.setLevel(logging.INFO)
        return found

    async def _check_inputs(self) -> None:
        if self.config.window is not None and len(self._sources()) > 1:
            raise InvalidConfiguration(
                "windowConfig: the inputs of a window are received in one way",
                hint="give all inputs the same receiverQueueSize and consumerProperties",
            )
        overlapping = self.config.window is not None and self.config.window.counts_overlapping
        for topic in self.config.topics:
            name = parse_topic(topic)
            if overlapping and await self._client.get_topic_partitions(topic) != [str(name)]:
                raise InvalidConfiguration(
                    f"inputs: slidingIntervalCount takes no partitioned topics, and {topic} is one",
                    hint="the order between partitions is not the same after a crash: use windowLengthDurationMs",
                )
            if self.config.is_effectively_once and await self._client.get_topic_partitions(topic) != [str(name)]:
                raise InvalidConfiguration(
                    f"inputs: EFFECTIVELY_ONCE takes no partitioned topics, and {topic} is one",
                    hint="use transactionMode MANAGED, or one function per partition",
                )

    def _sources(self) -> list[_Source]:
        """Names that are received from in the same way share a consumer."""
        sources: list[_Source] = []
        for topic in self.config.topics:
            given = self.config.input_specs.get(topic, InputSpec())
            spec = attrs.evolve(given, serde_class_name=None, schema_type=self.config.schema_of(topic))
            for source in sources:
                if source.spec == spec and isinstance(source.topics, list):
                    source.topics.append(topic)
                    break
            else:
                sources.append(_Source([topic], None, spec))
        specs = self.config.input_specs
        return sources + [_Source(re.compile(each), each, specs.get(each, InputSpec())) for each in self.config.patterns]

    def _consumer_options(self, spec: InputSpec) -> dict[str, Any]:
        config = self.config
        options: dict[str, Any] = {
            "consumer_type": consumer_type_of(config),
            "initial_position": InitialPosition.EARLIEST
            if config.subscription_position is SubscriptionPosition.EARLIEST
            else InitialPosition.LATEST,
            "receiver_queue_size": spec.receiver_queue_size,
            "properties": dict(spec.consumer_properties) or None,
            "negative_ack_delay": self._negative_ack_delay,
        }
        if config.timeout_ms is not None:
            options["ack_timeout"] = config.timeout_ms / 1000
        if config.max_message_retries is not None and not config.is_managed:
            options["dead_letter_policy"] = DeadLetterPolicy(
                max_redeliver_count=config.max_message_retries, dead_letter_topic=config.dead_letter_topic
            )
        return options


async def run(
    client: AsyncClient,
    config: FunctionConfig | Mapping[str, Any] | str | Path,
    function: Any = None,
    *,
    stop: asyncio.Event | None = None,
    observer: Callable[[FunctionEvent], object] | None = None,
    secrets_provider: SecretsProvider | None = None,
    negative_ack_delay: float = NEGATIVE_ACK_DELAY,
) -> FunctionStats:
    """Run a function until `stop` is set and what was taken is finished; returns what it did.

    `config`: a `FunctionConfig`, a mapping with the official keys, or the path of a YAML file with them. `function`: an
    object with `process(input, context)`, a class of such, a callable of one or two arguments, or a module with
    `process(input)`; without it, what `className` and `py` name. Of a class each instance makes its own object; anything
    else is shared by the `parallelism` instances, whose threads may call it at the same time.
    `observer` is called with each `FunctionEvent`. `secrets_provider(name, value in secrets)` gives secrets; the
    environment's variables by default. What fails without a transaction comes again after `negative_ack_delay` seconds.

    Raises InvalidConfiguration for what cannot work, what loading the function raises, and what subscribing raises. Later,
    what no further attempt mends: `fatal` errors, and with transactions what `client.pipeline` raises.
    If cancelled: what was not acknowledged comes again; open transactions are aborted.
    """
    return await FunctionRun(
        client,
        config,
        function,
        stop=stop,
        observer=observer,
        secrets_provider=secrets_provider,
        negative_ack_delay=negative_ack_delay,
    ).run()


def consumer_type_of(config: FunctionConfig) -> ConsumerType:
    """The subscription's type."""
    if config.window is not None:
        return ConsumerType.EXCLUSIVE
    if config.retain_key_ordering:
        return ConsumerType.KEY_SHARED
    if config.retain_ordering or config.processing_guarantees is ProcessingGuarantees.EFFECTIVELY_ONCE:
        return ConsumerType.FAILOVER
    return ConsumerType.SHARED


def _config_of(config: FunctionConfig | Mapping[str, Any] | str | Path) -> FunctionConfig:
    if isinstance(config, FunctionConfig):
        return config
    return FunctionConfig.from_mapping(config) if isinstance(config, Mapping) else FunctionConfig.from_file(config)


def _from_environment(name: str, _value: Any) -> str | None:
    return os.environ.get(name)


async def _run_all(loops: Sequence[Loop | WindowLoop]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for loop in loops:
                tasks.create_task(loop.run())
    except BaseExceptionGroup as group:
        raise first_error(group) from None
